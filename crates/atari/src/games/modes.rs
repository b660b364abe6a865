//! How a mode of a game is selected: by pressing SELECT until its memory shows the mode, or, for
//! some games, by a function at the end of this file.
//!
//! In modes 1 and 2 of `adventure` the reference waits for a random time, so its runs are not
//! reproducible; this emulator does not wait.

use super::{Game, Memory};

/// What is held on the way into a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Press {
    /// Nothing.
    Nothing,
    /// The console's SELECT switch.
    Select,
    /// The console's RESET switch.
    Reset,
    /// The first player's controller, as one of ALE's codes 0 to 17.
    Push(u8),
    /// The same as an agent would do it: it may stick.
    Act(u8),
}

/// The way into a mode: asked for the next thing to hold until there is none.
#[derive(Clone, Debug)]
pub struct ModeSelector {
    select: Select,
    mode: u16,
    presses: u16,
    stage: Stage,
    steps: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Looking,
    Releasing,
    Done,
}

/// No mode is further away than this: a game that never gets there is left where it is.
const MOST_PRESSES: u16 = 1_000;

impl ModeSelector {
    /// The way of a game into a mode, from right after its first RESET.
    #[must_use]
    pub fn new(game: &Game, mode: u16) -> Self {
        Self {
            select: game.select,
            mode,
            presses: 0,
            stage: Stage::Waiting,
            steps: 0,
        }
    }

    /// What to hold next, for how many frames; the memory is that after the frames before.
    ///
    /// A press is followed by one frame of nothing, which is the frame that the environment counts
    /// as part of the episode. The last thing held is RESET, which starts the game in its mode.
    pub fn next(&mut self, memory: Memory<'_>) -> Option<(Press, u16)> {
        if let Some(odd) = self.select.odd {
            self.steps += 1;
            return odd(self.mode, self.steps - 1, memory);
        }
        if self.stage == Stage::Done || self.select.hold == 0 {
            return None;
        }
        if self.stage == Stage::Waiting {
            self.stage = Stage::Looking;
            if self.select.wait > 0 {
                return Some((Press::Nothing, self.select.wait));
            }
        }
        if self.stage == Stage::Releasing {
            self.stage = Stage::Looking;
            return Some((Press::Nothing, 1));
        }
        if self.arrived(memory) || self.presses == MOST_PRESSES {
            self.stage = Stage::Done;
            return Some((Press::Reset, 4));
        }
        self.presses += 1;
        self.stage = Stage::Releasing;
        Some((Press::Select, self.select.hold))
    }

    fn arrived(&self, memory: Memory<'_>) -> bool {
        let Select {
            at,
            mask,
            times,
            plus,
            decimal,
            least,
            per_look,
            ..
        } = self.select;
        let mode = if decimal {
            16 * (self.mode / 10) + self.mode % 10
        } else {
            self.mode
        };
        let wanted = mode.wrapping_mul(times).wrapping_add_signed(plus) & u16::from(mask);
        self.presses >= least
            && self.presses.is_multiple_of(per_look)
            && u16::from(memory.at(at) & mask) == wanted
    }
}

/// Where a game's memory shows its mode, and how SELECT has to be pressed to change it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Select {
    at: u8,
    mask: u8,
    /// The byte shows this multiple of the mode ...
    times: u16,
    /// ... and so much more.
    plus: i16,
    /// The byte shows the mode in two decimal digits.
    decimal: bool,
    /// Frames for which SELECT is held; 0 where the game has but one mode.
    hold: u16,
    /// Frames before the first press.
    wait: u16,
    /// Presses before the first look at the byte.
    least: u16,
    /// Presses from one look to the next.
    per_look: u16,
    /// Takes the place of all of the above.
    odd: Option<Way>,
}

/// What to hold next, given the mode, what number of step it is and the memory.
type Way = fn(u16, u16, Memory<'_>) -> Option<(Press, u16)>;

/// The game has but one mode.
pub(super) const ONE_MODE: Select = Select {
    at: 0x80,
    mask: 0xFF,
    times: 1,
    plus: 0,
    decimal: false,
    hold: 0,
    wait: 0,
    least: 0,
    per_look: 1,
    odd: None,
};

/// SELECT is held for two frames until this byte shows the mode.
pub(super) const fn shown_at(at: u8) -> Select {
    Select {
        at,
        hold: 2,
        ..ONE_MODE
    }
}

/// The way into a mode is a function.
pub(super) const fn odd(way: Way) -> Select {
    Select {
        odd: Some(way),
        ..ONE_MODE
    }
}

impl Select {
    pub(super) const fn hold(self, hold: u16) -> Select {
        Select { hold, ..self }
    }

    pub(super) const fn plus(self, plus: i16) -> Select {
        Select { plus, ..self }
    }

    pub(super) const fn times(self, times: u16) -> Select {
        Select { times, ..self }
    }

    pub(super) const fn mask(self, mask: u8) -> Select {
        Select { mask, ..self }
    }

    pub(super) const fn decimal(self) -> Select {
        Select {
            decimal: true,
            ..self
        }
    }

    pub(super) const fn wait(self, wait: u16) -> Select {
        Select { wait, ..self }
    }

    pub(super) const fn least(self, least: u16) -> Select {
        Select { least, ..self }
    }

    pub(super) const fn per_look(self, per_look: u16) -> Select {
        Select {
            per_look,
            least: per_look,
            ..self
        }
    }
}

/// Walks down a menu, switches the mode's bits on there, begins the game and fires once. What is
/// done may stick; in the menu it is done until memory shows it.
pub(super) fn double_dunk(mode: u16, step: u16, memory: Memory<'_>) -> Option<(Press, u16)> {
    const SWITCHES: [u8; 4] = [0x08, 0x10, 0x04, 0x20];
    const LAST_ROW: u8 = 5;
    let (switches, row) = (memory.at(0x80), memory.at(0xB0));
    let reset_is_held = memory.at(0x88) & 0x80 != 0;
    let in_menu = switches & 3 == 1 && !reset_is_held;
    let is_off = |bit: &usize| mode >> bit & 1 == 1 && switches & SWITCHES[*bit] == 0;
    let wanted = (0..4).find(is_off).map(|bit| bit as u8 + 2);
    match step {
        0 => Some((Press::Select, 1)),
        1 => Some((Press::Nothing, 1)),
        _ if step >= MOST_PRESSES => None,
        // RESET takes one step, so that what is let go of on odd steps in the menu is let go of
        // on even ones later.
        _ if in_menu == (step % 2 == 1) => Some((Press::Act(0), 1)),
        _ if in_menu && wanted == Some(row) => Some((Press::Act(3), 1)),
        _ if in_menu && row < LAST_ROW => Some((Press::Act(5), 1)),
        _ if in_menu => Some((Press::Reset, 4)),
        _ if reset_is_held => Some((Press::Act(10), 1)),
        _ => None,
    }
}

/// SELECT as often as the mode says: no byte is known to tell.
pub(super) fn klax(mode: u16, step: u16, _memory: Memory<'_>) -> Option<(Press, u16)> {
    pressed(mode, step)
}

/// SELECT until the cube is turned as it should be, which no byte is known to tell, RESET, and
/// then right until memory shows the cube, in two decimal digits.
pub(super) fn video_cube(mode: u16, step: u16, memory: Memory<'_>) -> Option<(Press, u16)> {
    let presses = [0, 11, 44][usize::from(mode % 100).min(2)];
    if step <= 2 * presses {
        return pressed(presses, step);
    }
    let cube = (mode / 100).max(1);
    let shown = u16::from(memory.at(0x9F));
    (shown != 16 * (cube / 10) + cube % 10 && step < 2 * MOST_PRESSES)
        .then_some((Press::Push(3), 1))
}

/// SELECT for two frames and a frame of nothing, `times` times, then RESET.
fn pressed(times: u16, step: u16) -> Option<(Press, u16)> {
    match step {
        _ if step > 2 * times => None,
        _ if step == 2 * times => Some((Press::Reset, 4)),
        _ if step.is_multiple_of(2) => Some((Press::Select, 2)),
        _ => Some((Press::Nothing, 1)),
    }
}

/// A hundred times the number of the cube, and how it is to be turned.
pub(super) const VIDEO_CUBE: [u16; 153] = {
    let mut modes = [0; 153];
    let mut index = 0;
    while index < 153 {
        modes[index as usize] = 100 * (index / 3) + index % 3;
        index += 1;
    }
    modes
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::games::by_name;

    #[test]
    fn select_is_pressed_until_memory_shows_the_mode() {
        let mut ram = [0; 128];
        let mut selector = ModeSelector::new(by_name("alien").unwrap(), 2);
        let mut held = vec![];
        while let Some((press, frames)) = selector.next(Memory {
            ram: &ram,
            cartridge: &[],
        }) {
            // The game goes to its next mode each time SELECT is let go.
            ram[1] += u8::from(press == Press::Nothing);
            held.push((press, frames));
        }
        let once = [(Press::Select, 1), (Press::Nothing, 1)];
        assert_eq!(held, [&once[..], &once[..], &[(Press::Reset, 4)]].concat());
    }

    #[test]
    fn a_game_with_one_mode_presses_nothing() {
        let mut selector = ModeSelector::new(by_name("seaquest").unwrap(), 0);
        assert_eq!(
            selector.next(Memory {
                ram: &[0; 128],
                cartridge: &[]
            }),
            None
        );
    }

    #[test]
    fn a_mode_that_never_shows_is_given_up() {
        let mut selector = ModeSelector::new(by_name("alien").unwrap(), 3);
        let memory = Memory {
            ram: &[0; 128],
            cartridge: &[],
        };
        let mut steps = 0;
        while selector.next(memory).is_some() {
            steps += 1;
        }
        assert_eq!(steps, 2 * 1_000 + 1);
    }
}
