//! How reward, lives and the end of an episode are read from a game's memory.
//!
//! For most games a [`Rule`] is only data: the addresses of the score and the lives, and the bytes
//! that show that the game is over. What data cannot express is a small function in [`super::odd`].

use serde::{Deserialize, Serialize};

use super::Game;

/// What one frame did to the episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Points gained (or lost) in this frame.
    pub reward: i32,
    /// Whether the game is over.
    pub terminal: bool,
    /// Lives left; 0 where a game has none.
    pub lives: u8,
}

/// The memory a rule may look at.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// The 128 bytes at $80 to $FF.
    pub ram: &'a [u8; 128],
    /// The extra RAM of the cartridge; empty where it has none.
    pub cartridge: &'a [u8],
}

impl Memory<'_> {
    /// The byte at an address from $80 to $FF.
    pub(super) fn at(self, address: u8) -> u8 {
        self.ram[usize::from(address & 0x7F)]
    }

    /// A byte of the cartridge's RAM, 0 where there is none.
    pub(super) fn cartridge_at(self, index: u8) -> u8 {
        self.cartridge.get(usize::from(index)).copied().unwrap_or(0)
    }
}

/// What the rules of a game remember from frame to frame: plain data, part of a saved state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rules {
    #[serde(with = "by_name")]
    game: &'static Game,
    pub(super) score: i32,
    pub(super) reward: i32,
    pub(super) terminal: bool,
    pub(super) lives: i32,
    /// What an odd rule remembers besides these.
    pub(super) notes: [i32; 3],
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        self.game.md5 == other.game.md5
            && (
                self.score,
                self.reward,
                self.terminal,
                self.lives,
                self.notes,
            ) == (
                other.score,
                other.reward,
                other.terminal,
                other.lives,
                other.notes,
            )
    }
}

impl Rules {
    /// The rules of a game at the start of an episode.
    #[must_use]
    pub fn new(game: &'static Game) -> Rules {
        let rule = &game.rule;
        Rules {
            game,
            score: rule.start_score,
            reward: 0,
            terminal: false,
            lives: rule.start_lives.unwrap_or(i32::from(game.start_lives)),
            notes: rule.start_notes,
        }
    }

    /// Back to the start of an episode.
    pub fn reset(&mut self) {
        *self = Rules::new(self.game);
    }

    /// The game these rules are of.
    #[must_use]
    pub fn game(&self) -> &'static Game {
        self.game
    }

    /// Looks at the memory after an emulated frame.
    pub fn step(&mut self, memory: Memory<'_>) -> Outcome {
        let rule = &self.game.rule;
        if let Some(odd) = rule.odd {
            odd(self, memory);
        } else {
            self.terminal = rule
                .over
                .iter()
                .any(|all| all.iter().all(|is| is.holds(memory)));
            if self.terminal && rule.score_stops_at_end {
                self.reward = 0;
            } else {
                self.score_is(rule.score.read(memory), rule.gain);
            }
            self.lives = rule.lives.read(memory, self.lives);
        }
        self.outcome()
    }

    /// The state as an outcome, without looking at memory.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let lives = match self.game.rule.lives {
            _ if self.terminal && !self.game.rule.lives_stay_at_end => 0,
            Lives::None => 0,
            Lives::One => 1,
            _ => self.lives.clamp(0, 255) as u8,
        };
        Outcome {
            reward: self.reward,
            terminal: self.terminal,
            lives,
        }
    }

    /// Takes a new score, and the reward from its difference to the last.
    pub(super) fn score_is(&mut self, score: i32, gain: Gain) {
        let difference = score - self.score;
        self.reward = match gain {
            Gain::Difference => difference,
            Gain::Cost => -difference,
            Gain::NeverLoss => difference.max(0),
            Gain::AtMostOne => difference.min(1),
            Gain::OneOrNone => difference.clamp(0, 1),
            Gain::Wraps(at) if difference < 0 => difference + at,
            Gain::Wraps(_) => difference,
        };
        self.score = score;
    }
}

/// A game in a saved state: its name.
mod by_name {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use crate::games::{self, Game};

    pub(super) fn serialize<S: Serializer>(game: &Game, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(game.name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<&'static Game, D::Error> {
        let name = String::deserialize(from)?;
        games::by_name(&name).ok_or_else(|| D::Error::custom(format!("no game is called {name}")))
    }
}

/// How a game's memory becomes an [`Outcome`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) score: Score,
    pub(super) gain: Gain,
    pub(super) lives: Lives,
    /// The game is over when all conditions of any line hold.
    pub(super) over: &'static [&'static [Is]],
    /// The frame that ends the game gives no reward and leaves the score as it was.
    pub(super) score_stops_at_end: bool,
    /// Lives are reported as they are when the game is over, not as 0.
    pub(super) lives_stay_at_end: bool,
    pub(super) start_score: i32,
    /// Where it differs from the lives reported after a reset.
    pub(super) start_lives: Option<i32>,
    pub(super) start_notes: [i32; 3],
    /// Takes the place of all of the above but the start values.
    pub(super) odd: Option<fn(&mut Rules, Memory<'_>)>,
}

/// A game without score, lives or end, to build the others on.
pub(super) const PLAIN: Rule = Rule {
    score: Score::Bcd(&[], 1),
    gain: Gain::Difference,
    lives: Lives::None,
    over: &[],
    score_stops_at_end: false,
    lives_stay_at_end: false,
    start_score: 0,
    start_lives: None,
    start_notes: [0; 3],
    odd: None,
};

/// Where the score lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Score {
    /// Two decimal digits per byte, the highest byte first, and what the lowest digit is worth.
    Bcd(&'static [u8], i32),
    /// A sum of bytes that are read and weighed one by one.
    Sum(&'static [Part]),
    /// Whatever this function says.
    Odd(fn(Memory<'_>) -> i32),
}

impl Score {
    pub(super) fn read(self, memory: Memory<'_>) -> i32 {
        match self {
            Score::Bcd(bytes, worth) => {
                worth
                    * bytes
                        .iter()
                        .fold(0, |sum, &at| 100 * sum + bcd(memory.at(at)))
            }
            Score::Sum(parts) => parts
                .iter()
                .map(|part| part.worth * part.digits.read(memory.at(part.at)))
                .sum(),
            Score::Odd(read) => read(memory),
        }
    }
}

/// One byte of a score.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    at: u8,
    digits: Digits,
    worth: i32,
}

/// A byte of a score: where, how it is read, what one of it is worth.
pub(super) const fn part(at: u8, digits: Digits, worth: i32) -> Part {
    Part { at, digits, worth }
}

/// How a byte holds digits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Digits {
    /// The whole byte, binary.
    Byte,
    /// Two decimal digits.
    Bcd,
    /// The lower four bits.
    Low,
    /// The upper four bits.
    High,
    /// The lower four bits, where ten stands for a blank.
    LowOrBlank,
    /// The upper four bits, where ten stands for a blank.
    HighOrBlank,
    /// Two decimal digits, where ten stands for a blank.
    BcdOrBlank,
    /// Eight lines of picture per digit; $80 is a blank.
    Eighths,
}

impl Digits {
    fn read(self, byte: u8) -> i32 {
        let blank = |digit: u8| if digit == 10 { 0 } else { i32::from(digit) };
        match self {
            Digits::Byte => i32::from(byte),
            Digits::Bcd => bcd(byte),
            Digits::Low => i32::from(byte & 15),
            Digits::High => i32::from(byte >> 4),
            Digits::LowOrBlank => blank(byte & 15),
            Digits::HighOrBlank => blank(byte >> 4),
            Digits::BcdOrBlank => 10 * blank(byte >> 4) + blank(byte & 15),
            Digits::Eighths if byte == 0x80 => 0,
            Digits::Eighths => i32::from(byte >> 3),
        }
    }
}

/// Two decimal digits in a byte.
pub(super) fn bcd(byte: u8) -> i32 {
    10 * i32::from(byte >> 4) + i32::from(byte & 15)
}

/// How a difference of scores becomes a reward.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gain {
    /// The difference itself.
    Difference,
    /// The difference, counted as a loss.
    Cost,
    /// A falling score gives nothing.
    NeverLoss,
    /// A rising score gives at most one point.
    AtMostOne,
    /// A rising score gives one point, a falling one nothing.
    OneOrNone,
    /// A score that falls has passed this limit.
    Wraps(i32),
}

/// Where the lives lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lives {
    /// The game has none: always 0.
    None,
    /// One until the game is over.
    One,
    /// The bits of a byte under a mask, shifted down, and some more.
    Bits { at: u8, mask: u8, more: i32 },
    /// Whatever this function says, given the lives of the frame before.
    Odd(fn(Memory<'_>, i32) -> i32),
}

impl Lives {
    fn read(self, memory: Memory<'_>, before: i32) -> i32 {
        match self {
            Lives::None => 0,
            Lives::One => 1,
            Lives::Bits { at, mask, more } => {
                i32::from((memory.at(at) & mask) >> mask.trailing_zeros()) + more
            }
            Lives::Odd(read) => read(memory, before),
        }
    }
}

/// A byte that holds the lives, and how many more there are than it says.
pub(super) const fn byte(at: u8, more: i32) -> Lives {
    Lives::Bits {
        at,
        mask: 0xFF,
        more,
    }
}

/// Some bits of a byte that hold the lives, and how many more there are than they say.
pub(super) const fn bits(at: u8, mask: u8, more: i32) -> Lives {
    Lives::Bits { at, mask, more }
}

/// A condition on one byte of memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Is {
    /// The byte equals the value.
    Eq(u8, u8),
    /// The byte differs from the value.
    Ne(u8, u8),
    /// The byte is greater than the value.
    Above(u8, u8),
    /// The bits under the mask equal the value.
    Bits(u8, u8, u8),
    /// The byte's two decimal digits make this number.
    Decimal(u8, i32),
}

impl Is {
    fn holds(self, memory: Memory<'_>) -> bool {
        match self {
            Is::Eq(at, value) => memory.at(at) == value,
            Is::Ne(at, value) => memory.at(at) != value,
            Is::Above(at, value) => memory.at(at) > value,
            Is::Bits(at, mask, value) => memory.at(at) & mask == value,
            Is::Decimal(at, value) => bcd(memory.at(at)) == value,
        }
    }
}
