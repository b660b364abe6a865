//! The movable objects and the playfield as sets of a line's pixels.

use super::beam::Beam;
use super::lines::{self, EMPTY, Line, WIDTH};

pub(super) const P0: usize = 0;
pub(super) const P1: usize = 1;
pub(super) const M0: usize = 2;
pub(super) const M1: usize = 3;
pub(super) const BL: usize = 4;
pub(super) const PF: usize = 5;

/// How missile 0 looks on a line of the starfield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum StarShape {
    Plain,
    Wide,
    Hidden,
}

/// The objects' pixels, as far as they have been worked out: it follows from the registers, so
/// that it is no part of the state and all are equal.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    /// The pixels of the six objects, where `stale` does not name them.
    objects: [Line; 6],
    // Wide integers, so that none is loaded together with its neighbours right after these were
    // stored.
    stale: u32,
    /// Which objects have any pixels, unless `unsure`, as after a restore.
    live: u32,
    unsure: bool,
    /// Pairs of objects that are as they were when they had a whole line to meet in and did not.
    pub(super) apart: u32,
}

impl Default for Sketch {
    fn default() -> Self {
        Self {
            objects: [EMPTY; 6],
            stale: 0x3F,
            live: 0,
            unsure: true,
            apart: 0,
        }
    }
}

impl PartialEq for Sketch {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Sketch {
    /// Notes that an object has changed.
    #[inline(always)]
    pub(super) fn touch(&mut self, object: usize) {
        self.stale |= 1 << object;
        self.apart &= !u32::from(PAIRS_WITH[object]);
    }

    /// The pixels of the six objects; those without any may not be up to date.
    #[inline(always)]
    pub(super) fn objects(&self) -> &[Line; 6] {
        &self.objects
    }
}

impl Beam {
    /// Which objects have any pixels, or may have.
    #[inline(always)]
    pub(super) fn live(&mut self) -> u32 {
        if self.sketch.unsure {
            self.sketch.unsure = false;
            for object in P0..=PF {
                self.note_live(object);
            }
        }
        self.sketch.live
    }

    /// After a change that may have given an object pixels or taken them away.
    #[inline(always)]
    pub(super) fn note_live(&mut self, object: usize) {
        let shows = match object {
            P0 | P1 => self.player_bits(object) != 0,
            M0 | M1 => self.missiles_on[object - M0] && !self.locked[object - M0],
            BL => self.ball_shows(),
            _ => self.playfield != 0,
        };
        self.sketch.live = self.sketch.live & !(1 << object) | u32::from(shows) << object;
    }

    /// Brings the pixels of the `live` objects up to date.
    #[inline(always)]
    pub(super) fn refresh(&mut self, live: u32) {
        let mut stale = self.sketch.stale & live;
        self.sketch.stale &= !live;
        while stale != 0 {
            let object = stale.trailing_zeros() as usize;
            stale &= stale - 1;
            self.sketch.objects[object.min(PF)] = match object {
                P0 | P1 => self.player_line(object),
                M0 | M1 => self.missile_line(object - M0),
                BL => self.ball_line(),
                _ => lines::playfield(self.playfield, self.reflect),
            };
        }
    }

    #[inline(always)]
    fn player_bits(&self, player: usize) -> u8 {
        if self.delayed[player] {
            self.old_graphics[player]
        } else {
            self.graphics[player]
        }
    }

    #[inline(always)]
    fn ball_shows(&self) -> bool {
        if self.ball_delayed {
            self.old_ball_on
        } else {
            self.ball_on
        }
    }

    fn player_line(&self, player: usize) -> Line {
        let mut bits = self.player_bits(player);
        if !self.mirrored[player] {
            bits = bits.reverse_bits();
        }
        let size = usize::from(self.sizes[player] & 7);
        let position = u32::from(self.positions[player]);
        // Wide players start a pixel late, and have no copies.
        match size {
            5 | 7 if self.skip_first[player] => EMPTY,
            5 => lines::place(u64::from(DOUBLE[usize::from(bits)]), position + 1),
            7 => lines::place(quadruple(bits), position + 1),
            _ => {
                let mut near = COPIES[size].near;
                if self.skip_first[player] {
                    near &= !1;
                }
                let line = lines::place(u64::from(bits) * near, position);
                if COPIES[size].far {
                    lines::both(&line, &lines::place(u64::from(bits), position + FAR))
                } else {
                    line
                }
            }
        }
    }

    fn missile_line(&self, player: usize) -> Line {
        let mut size = self.sizes[player];
        if player == 0 {
            match self.star_shape {
                StarShape::Plain => {}
                StarShape::Wide => size |= 0x10,
                StarShape::Hidden => return EMPTY,
            }
        }
        let pattern = (1 << (1 << (size >> 4 & 3))) - 1;
        let copies = &COPIES[usize::from(size & 7)];
        let position = u32::from(self.positions[M0 + player]);
        let line = lines::place(pattern * copies.near, position);
        if copies.far {
            lines::both(&line, &lines::place(pattern, position + FAR))
        } else {
            line
        }
    }

    fn ball_line(&self) -> Line {
        let pattern = (1 << (1 << (self.control >> 4 & 3))) - 1;
        lines::place(pattern, u32::from(self.positions[BL]))
    }
}

/// How a player's reset meets the copies that are on their way to the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Away from all copies.
    Between,
    /// A copy has been triggered and is about to start.
    Starting,
    /// A copy is being drawn.
    Drawing,
}

impl Moment {
    pub(super) fn of(size: u8, old: u8, new: u8) -> Self {
        let size = usize::from(size & 7);
        let width = match size {
            5 => 16,
            7 => 32,
            _ => 8,
        };
        for offset in OFFSETS[size] {
            let after = (u32::from(new) + 2 * WIDTH - u32::from(old) - offset) % WIDTH;
            if after < 4 {
                return Self::Starting;
            }
            if after < 4 + width {
                return Self::Drawing;
            }
        }
        Self::Between
    }
}

/// Where the copies of a player or missile start, by the low bits of its size register.
const OFFSETS: [&[u32]; 8] = [
    &[0],
    &[0, 16],
    &[0, 32],
    &[0, 16, 32],
    &[0, 64],
    &[0],
    &[0, 32, 64],
    &[0],
];

/// The farthest copy.
const FAR: u32 = 64;

/// The copies of a player or missile.
struct Copies {
    /// One bit where each copy starts, up to 32 pixels on: a pattern's product with it has all.
    near: u64,
    /// Whether there is one 64 pixels on.
    far: bool,
}

const COPIES: [Copies; 8] = {
    const NONE: Copies = Copies {
        near: 0,
        far: false,
    };
    let mut table = [NONE; 8];
    let mut size = 0;
    while size < 8 {
        let mut copy = 0;
        while copy < OFFSETS[size].len() {
            if OFFSETS[size][copy] == FAR {
                table[size].far = true;
            } else {
                table[size].near |= 1 << OFFSETS[size][copy];
            }
            copy += 1;
        }
        size += 1;
    }
    table
};

/// Which two objects each collision bit is about: D6 and D7 of the eight registers in turn.
pub(super) const PAIRS: [(usize, usize); 16] = [
    (M0, P0),
    (M0, P1),
    (M1, P1),
    (M1, P0),
    (P0, BL),
    (P0, PF),
    (P1, BL),
    (P1, PF),
    (M0, BL),
    (M0, PF),
    (M1, BL),
    (M1, PF),
    (BL, BL),
    (BL, PF),
    (M0, M1),
    (P0, P1),
];
/// The bit that no collision sets.
const UNUSED_BIT: usize = 12;

/// Which collision bits a set of objects can set.
pub(super) const PAIRS_OF: [u16; 64] = {
    let mut table = [0; 64];
    let mut live = 0;
    while live < 64 {
        let mut bit = 0;
        while bit < 16 {
            let (first, second) = PAIRS[bit];
            if bit != UNUSED_BIT && live >> first & live >> second & 1 != 0 {
                table[live] |= 1 << bit;
            }
            bit += 1;
        }
        live += 1;
    }
    table
};

/// Which collision bits an object is part of.
pub(super) const PAIRS_WITH: [u16; 6] = {
    let mut table = [0; 6];
    let mut bit = 0;
    while bit < 16 {
        let (first, second) = PAIRS[bit];
        table[first] |= 1 << bit;
        table[second] |= 1 << bit;
        bit += 1;
    }
    table
};

/// Eight bits at twice their width.
const DOUBLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut bit = 0;
        while bit < 8 {
            if bits >> bit & 1 != 0 {
                table[bits] |= 0b11 << (bit * 2);
            }
            bit += 1;
        }
        bits += 1;
    }
    table
};

/// Eight bits at four times their width.
fn quadruple(bits: u8) -> u64 {
    let double = DOUBLE[usize::from(bits)].to_le_bytes();
    let [low, high] = double.map(|half| u64::from(DOUBLE[usize::from(half)]));
    low | high << 16
}
