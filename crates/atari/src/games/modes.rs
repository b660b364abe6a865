//! How a game is brought into one of its modes: by pressing SELECT until its memory says so.
//!
//! Not known yet, and left in the first mode: `adventure` 1 and 2, `double_dunk` and `word_zapper`
//! (all modes, the first too, where something else is pressed than the table says) and the cubes
//! of `video_cube` from 200 up.

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
}

/// The way into a mode: asked for the next thing to hold until there is none.
#[derive(Clone, Debug)]
pub struct ModeSelector {
    select: Select,
    mode: u16,
    presses: u16,
    stage: Stage,
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
        }
    }

    /// What to hold next, for how many frames; the memory is that after the frames before.
    ///
    /// A press is followed by one frame of nothing, which is the frame that the environment counts
    /// as part of the episode. The last thing held is RESET, which starts the game in its mode.
    pub fn next(&mut self, memory: Memory<'_>) -> Option<(Press, u16)> {
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
        if let Some(presses) = self.select.presses {
            let wanted = presses
                .get(usize::from(self.mode % 100))
                .copied()
                .unwrap_or(0);
            return self.presses >= wanted;
        }
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
    /// The byte shows so many times the mode ...
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
    /// How often to press for each mode, where no byte is known to tell.
    presses: Option<&'static [u16]>,
}

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
    presses: None,
};

/// SELECT is held for two frames until this byte shows the mode.
pub(super) const fn shown_at(at: u8) -> Select {
    Select {
        at,
        hold: 2,
        ..ONE_MODE
    }
}

/// SELECT is held for two frames, this often for each mode; a mode that is not listed is not known
/// how to reach, and the game stays in its first.
pub(super) const fn pressed(presses: &'static [u16]) -> Select {
    Select {
        presses: Some(presses),
        hold: 2,
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
