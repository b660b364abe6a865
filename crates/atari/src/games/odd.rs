//! Rules that data cannot express: one small function per game, in alphabetical order.

use super::rules::{Gain, Memory, Rules, bcd};

/// A point and the end for bringing the chalice home; the dragon ends it too.
pub(super) fn adventure(rules: &mut Rules, memory: Memory<'_>) {
    let won = memory.at(0xB9) == 0x12;
    rules.reward = i32::from(won);
    rules.terminal = won || memory.at(0xE0) == 2;
}

/// Won by bringing 15 stones home, lost when the other side does, told from a board that is whole.
pub(super) fn backgammon(rules: &mut Rules, memory: Memory<'_>) {
    // Points, bars and homes: stones of one side count up, of the other down.
    let stones = |at: u8| i32::from(memory.at(at).cast_signed());
    let of_up = |at: u8| at == 0x8E || at != 0x80 && stones(at) > 0;
    let up = (0x80..=0x9B)
        .filter(|&at| of_up(at))
        .map(stones)
        .sum::<i32>();
    let down = (0x80..=0x9B)
        .filter(|&at| !of_up(at))
        .map(stones)
        .sum::<i32>();
    let whole = up as u8 == 15 && down as u8 == 241;
    rules.reward = match (stones(0x80), stones(0x8E)) {
        _ if !whole => 0,
        (-15, _) => 1,
        (_, 15) => -1,
        _ => 0,
    };
    rules.terminal = rules.reward != 0;
}

/// A life is lost only once the byte that counts the ship's end says so.
pub(super) fn beam_rider_lives(memory: Memory<'_>, before: i32) -> i32 {
    let lives = i32::from(memory.at(0x85)) + 1;
    if lives == before - 1 && memory.at(0x8C) != 1 {
        before
    } else {
        lives
    }
}

/// The purse is the score. It ends at 1,000, or broke, which the game shows as 0xBBB.
pub(super) fn blackjack(rules: &mut Rules, memory: Memory<'_>) {
    let (high, low) = (memory.at(0x86), memory.at(0x89));
    let purse = 100 * bcd(high) + bcd(low);
    let broke = high == 0x0B && low == 0xBB;
    rules.terminal = purse >= 1000;
    rules.score_is(if broke { 0 } else { purse }, Gain::Difference);
}

/// Punches landed less punches taken; over by knock-out at 100 or when the clock runs out.
pub(super) fn boxing(rules: &mut Rules, memory: Memory<'_>) {
    // A knock-out shows as 0xC0.
    let punches = |at| {
        if memory.at(at) == 0xC0 {
            100
        } else {
            bcd(memory.at(at))
        }
    };
    let (mine, theirs) = (punches(0x92), punches(0x93));
    let clock_ran_out = memory.at(0x90) & 0xF0 == 0 && memory.at(0x91) == 0;
    rules.terminal = mine == 100 || theirs == 100 || clock_ran_out;
    rules.score_is(mine - theirs, Gain::Difference);
}

/// The purse is the score, except in the game that is played without money.
pub(super) fn casino(rules: &mut Rules, memory: Memory<'_>) {
    let purse = 100 * bcd(memory.at(0x8C)) + bcd(memory.at(0x95));
    let for_money = memory.at(0xD4) != 3;
    let evening_over = memory.at(0xD3) & 0x80 != 0;
    if for_money && evening_over {
        // The purse is refilled, which is neither gain nor loss: the last reward is kept.
        rules.score = purse;
    } else {
        rules.score_is(purse, Gain::Difference);
    }
    rules.terminal = if for_money {
        purse == 0 || evening_over && memory.at(0x9E) != 0
    } else {
        purse != 0 && memory.at(0x9E) == 0xAA
    };
}

/// Over when the strength is gone, or when level or score say that a new game has begun.
pub(super) fn darkchambers(rules: &mut Rules, memory: Memory<'_>) {
    let score = 10 * (100 * bcd(memory.at(0xCF)) + bcd(memory.at(0xCC)));
    let level = i32::from(memory.at(0xD5));
    if level < rules.notes[0] || score < rules.score {
        rules.reward = 0;
        rules.terminal = true;
    } else {
        rules.score_is(score, Gain::Difference);
        rules.notes[0] = level;
        rules.terminal = memory.at(0xCA) & 0x1F == 0;
    }
}

/// Until the first wave the score's bytes hold the maker's sign.
pub(super) fn demon_attack_score(memory: Memory<'_>) -> i32 {
    match (memory.at(0x81), memory.at(0x83), memory.at(0x85)) {
        (0xAB, 0xCD, 0xEA) => 0,
        (high, middle, low) => 10_000 * bcd(high) + 100 * bcd(middle) + bcd(low),
    }
}

/// Points made less points taken; over at 24 once the whistle is blown.
pub(super) fn double_dunk(rules: &mut Rules, memory: Memory<'_>) {
    let (mine, theirs) = (bcd(memory.at(0xF6)), bcd(memory.at(0xF7)));
    rules.terminal = memory.at(0xFE) == 0xE7 && (mine >= 24 || theirs >= 24);
    rules.score_is(mine - theirs, Gain::Difference);
}

/// Cars overtaken: memory holds the day and how many are left today.
pub(super) fn enduro_score(memory: Memory<'_>) -> i32 {
    let left = 100 * bcd(memory.at(0xAC)) + bcd(memory.at(0xAB));
    match i32::from(memory.at(0xAD)) {
        0 => 0,
        1 => 200 - left,
        day => 200 + 300 * (day - 1) - left,
    }
}

/// The byte is signed.
pub(super) fn et_lives(memory: Memory<'_>, _before: i32) -> i32 {
    i32::from(memory.at(0xE5).wrapping_add(1).cast_signed())
}

/// One bit per carrot.
pub(super) fn gopher_lives(memory: Memory<'_>, _before: i32) -> i32 {
    (memory.at(0xB4) & 7).count_ones().cast_signed()
}

/// Six until the game has begun.
pub(super) fn gravitar_lives(memory: Memory<'_>, _before: i32) -> i32 {
    if memory.at(0x81) == 0 {
        6
    } else {
        i32::from(memory.at(0x84)) + 1
    }
}

/// Words found less words missed; one word is one game.
pub(super) fn hangman(rules: &mut Rules, memory: Memory<'_>) {
    rules.score_is(
        bcd(memory.at(0xEB)) - bcd(memory.at(0xEC)),
        Gain::Difference,
    );
    // Nobody has touched the controls for so long that this counter has gone round.
    let clock = i32::from(memory.at(0xF1));
    rules.terminal = rules.reward != 0 || rules.notes[0] == 0xFF && clock == 0;
    rules.notes[0] = clock;
}

/// A match lit costs a point; leaving with the urn gives a hundred.
pub(super) fn haunted_house(rules: &mut Rules, memory: Memory<'_>) {
    let matches = bcd(memory.at(0x82));
    let won = memory.at(0x99) == 0x44;
    rules.reward = 100 * i32::from(won) - i32::from(matches != rules.score);
    rules.score = matches;
    rules.lives = i32::from(memory.at(0x96));
    rules.terminal = won || rules.lives == 0;
}

/// Money, where the 50,000 of the start are no gain; over when the time is.
pub(super) fn journey_escape(rules: &mut Rules, memory: Memory<'_>) {
    let money = 10_000 * bcd(memory.at(0x90)) + 100 * bcd(memory.at(0x91)) + bcd(memory.at(0x92));
    rules.score_is(money, Gain::Difference);
    if rules.reward == 50_000 {
        rules.reward = 0;
    }
    rules.terminal = memory.at(0x95) == 0 && memory.at(0x96) == 0;
}

/// Lives that the rule itself counts.
pub(super) fn kept(_memory: Memory<'_>, before: i32) -> i32 {
    before
}

/// The score lies in the cartridge's own RAM.
pub(super) fn klax(rules: &mut Rules, memory: Memory<'_>) {
    let digits = |index| bcd(memory.cartridge_at(index));
    rules.score_is(
        10_000 * digits(0x36) + 100 * digits(0x35) + digits(0x34),
        Gain::Difference,
    );
    let missed = memory.cartridge_at(0x6E);
    rules.terminal =
        missed != 0 && missed == memory.cartridge_at(0x69) || memory.cartridge_at(0x1D) == 0x99;
}

/// A hole done gives its par less the strokes it took.
///
/// The byte at $87 shows all strokes so far, two decimal digits that go round, except while $88
/// shows the par of the next hole. `lives` holds the hole and `score` the strokes shown before it.
pub(super) fn miniature_golf(rules: &mut Rules, memory: Memory<'_>) {
    let (hole, par) = (i32::from(memory.at(0xAF)), bcd(memory.at(0x88)));
    let [strokes, gone_round, this_par] = &mut rules.notes;
    rules.reward = 0;
    if hole != rules.lives {
        let taken = *strokes - rules.score + *gone_round;
        rules.reward = if taken == 0 { 0 } else { *this_par - taken };
        rules.score = *strokes;
        rules.lives = hole;
        *gone_round = 0;
    } else if par == 0 {
        let shown = bcd(memory.at(0x87));
        if shown < *strokes {
            *gone_round += *strokes;
        }
        *strokes = shown;
    }
    if par != 0 {
        *this_par = par;
    }
    rules.terminal = hole == 0;
}

/// Stones won less stones lost; over once nobody has been to move for more than 50 frames.
pub(super) fn othello(rules: &mut Rules, memory: Memory<'_>) {
    rules.score_is(
        bcd(memory.at(0xCE)) - bcd(memory.at(0xD0)),
        Gain::Difference,
    );
    rules.notes[0] = if memory.at(0xC0) == 0 {
        rules.notes[0] + 1
    } else {
        0
    };
    rules.terminal = rules.notes[0] > 50;
}

/// The lives are drawn as marks in the upper half of a byte.
pub(super) fn pitfall_lives(memory: Memory<'_>, _before: i32) -> i32 {
    match memory.at(0x80) >> 4 {
        0xA => 3,
        0x8 => 2,
        _ => 1,
    }
}

/// Memory holds the lives in an order that only tells when one is lost.
pub(super) fn qbert(rules: &mut Rules, memory: Memory<'_>) {
    let mark = i32::from(memory.at(0x88).cast_signed());
    rules.terminal = mark == -2 || mark == 2 && rules.notes[0] == -1;
    if mark == rules.notes[0] - 1 {
        rules.lives -= 1;
    }
    rules.notes[0] = mark;
    if rules.terminal {
        rules.reward = 0;
        return;
    }
    let score = 10_000 * bcd(memory.at(0xD9)) + 100 * bcd(memory.at(0xDA)) + bcd(memory.at(0xDB));
    rules.score_is(score, Gain::Difference);
}

/// Score and lives are addresses of pictures, eight lines each.
pub(super) fn riverraid(rules: &mut Rules, memory: Memory<'_>) {
    let digit = |at| match memory.at(at) {
        picture if picture % 8 == 0 && picture <= 72 => i32::from(picture / 8),
        _ => 0,
    };
    let score = [0xCD, 0xCF, 0xD1, 0xD3, 0xD5, 0xD7]
        .iter()
        .fold(0, |sum, &at| 10 * sum + digit(at));
    rules.score_is(score, Gain::Difference);
    let mark = i32::from(memory.at(0xC0));
    // The byte is blank both before the first life and after the last, which shows as 0x59.
    rules.terminal = mark == 0x58 && rules.notes[0] == 0x59;
    rules.notes[0] = mark;
    rules.lives = match mark {
        0x58 => 4,
        0x59 => 1,
        _ => mark / 8 + 1,
    };
}

pub(super) fn star_gunner(rules: &mut Rules, memory: Memory<'_>) {
    let digit = |at| match memory.at(at) & 15 {
        10 => 0,
        digit => i32::from(digit),
    };
    let score = [0x86, 0x85, 0x84, 0x83]
        .iter()
        .fold(0, |sum, &at| 10 * sum + digit(at));
    rules.score_is(100 * score, Gain::Difference);
    let lives = memory.at(0x87);
    // Other lives than five before the first five are left over from the title.
    if lives == 5 {
        rules.notes[0] = 1;
    }
    rules.terminal = lives == 0;
    if rules.notes[0] == 1 {
        rules.lives = i32::from(lives & 15);
    }
}

/// No points until the end: then what is left of 5,999 seconds.
pub(super) fn superman(rules: &mut Rules, memory: Memory<'_>) {
    rules.score = 60 * bcd(memory.at(0xE3)) + bcd(memory.at(0xE2));
    rules.terminal =
        memory.at(0x80) == 0xAC && memory.at(0x81) == 0xF2 && memory.at(0x9F) & 0x40 != 0;
    rules.reward = if rules.terminal {
        5_999 - rules.score
    } else {
        0
    };
}

/// A game won or lost counts; within a game, a point.
pub(super) fn tennis(rules: &mut Rules, memory: Memory<'_>) {
    let byte = |at| i32::from(memory.at(at));
    let points = byte(0xC5) - byte(0xC6);
    let (mine, theirs) = (byte(0xC7), byte(0xC8));
    let games = mine - theirs;
    rules.reward = if games == rules.notes[0] {
        points - rules.score
    } else {
        games - rules.notes[0]
    };
    rules.score = points;
    rules.notes[0] = games;
    let set_won = (mine >= 6 || theirs >= 6) && games.abs() >= 2;
    rules.terminal = set_won || mine == 7 || theirs == 7;
}

pub(super) fn tetris(rules: &mut Rules, memory: Memory<'_>) {
    rules.score_is(
        100 * bcd(memory.at(0xF2)) + bcd(memory.at(0xF1)),
        Gain::NeverLoss,
    );
    let over = memory.at(0xF3) & 0x80 != 0;
    rules.terminal = over && rules.notes[0] == 1;
    rules.notes[0] = i32::from(!over);
}

/// Won or lost, told apart by the line that was drawn.
pub(super) fn tic_tac_toe_3d(rules: &mut Rules, memory: Memory<'_>) {
    rules.terminal = memory.at(0xFE) == 0x10 && memory.at(0xFF) == 0xF3;
    rules.reward = match memory.at(0xE1) {
        _ if !rules.terminal => 0,
        0x08 => 1,
        _ => -1,
    };
}

/// The byte holds something else while no plane is in play.
pub(super) fn time_pilot_lives(memory: Memory<'_>, before: i32) -> i32 {
    if memory.at(0x80) & 15 == 2 {
        i32::from(memory.at(0x8B) & 7) + 1
    } else {
        before
    }
}

/// The byte counts hits.
pub(super) fn trondead_lives(memory: Memory<'_>, _before: i32) -> i32 {
    5 - i32::from(memory.at(0xC8))
}

/// Lost without a piece left, won when the other side has none.
pub(super) fn video_checkers(rules: &mut Rules, memory: Memory<'_>) {
    // Rows of eight squares lie nine bytes apart; a piece is a man or a king.
    let on_board = |man, king| {
        (0x80..0xA3_u8).any(|at| at % 9 != 136 % 9 && [man, king].contains(&memory.at(at)))
    };
    rules.reward = match (on_board(0x10, 0x20), on_board(0x90, 0xA0)) {
        (false, _) => -1,
        (true, false) => 1,
        (true, true) => 0,
    };
    rules.terminal = rules.reward != 0;
}

/// The game says who is mated.
pub(super) fn video_chess(rules: &mut Rules, memory: Memory<'_>) {
    rules.reward = match memory.at(0xEE) {
        _ if memory.at(0xE1) != 0x82 => 0,
        0 => 1,
        1 => -1,
        _ => 0,
    };
    rules.terminal = rules.reward != 0;
}

/// A point per side that is all of one colour; over when all six are, or when time is up.
pub(super) fn video_cube(rules: &mut Rules, memory: Memory<'_>) {
    let done = |side: u8| {
        let first = 0xA0 + 9 * side;
        (first..first + 9).all(|at| memory.at(at) == memory.at(first))
    };
    let sides = (0..6).filter(|&side| done(side)).count() as i32;
    rules.score_is(sides, Gain::Difference);
    let clock = i32::from(memory.at(0xDB));
    let time_is_up = rules.notes[0] == 0xFF && clock == 0;
    rules.notes[0] = clock;
    if time_is_up {
        rules.reward = -1;
    }
    rules.terminal = sides == 6 || time_is_up;
}

/// The byte counts the ball in play; an extra ball is a bit elsewhere.
pub(super) fn video_pinball_lives(memory: Memory<'_>, _before: i32) -> i32 {
    4 - i32::from(memory.at(0x99) & 7) + i32::from(memory.at(0xA8) & 1)
}

/// The score goes round at 800,000.
pub(super) fn wizard_of_wor_score(memory: Memory<'_>) -> i32 {
    let score = 10_000 * bcd(memory.at(0x88)) + 100 * bcd(memory.at(0x86));
    if score >= 800_000 {
        score - 800_000
    } else {
        score
    }
}

/// Lives are only to be trusted while the worrior is in play.
pub(super) fn wizard_of_wor_lives(memory: Memory<'_>, before: i32) -> i32 {
    if memory.at(0xD7) & 1 == 0 {
        i32::from(memory.at(0x8D) & 15)
    } else {
        before
    }
}

pub(super) fn word_zapper(rules: &mut Rules, memory: Memory<'_>) {
    if memory.at(0xCF) == 0 {
        return;
    }
    let left = memory.at(0xDC).cast_signed();
    rules.score_is(2 - i32::from(left), Gain::Difference);
    rules.terminal = left == -1 || memory.at(0xDE) == 0;
}
