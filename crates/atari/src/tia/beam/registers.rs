//! What a write to each picture register does to the beam.

use super::screen::Screen;
use super::{BLANK, Beam, Changed, moved};
use crate::tia::lines::WIDTH;
use crate::tia::objects::{BL, M0, M1, Moment, P0, P1, PF, StarShape};
use crate::tia::{LINE_CLOCKS, Write, motion};

impl Beam {
    /// Replays one write: lets the beam run up to the clock at which the write shows, if it
    /// changes pixels or collisions at all, then changes the register.
    #[inline(always)]
    pub(crate) fn write<S: Screen>(&mut self, write: Write, screen: &mut S) {
        let clock = write.clock();
        let (register, value) = (write.register(), write.value());
        match register {
            0x01 => {
                let vblank = value & 2 != 0;
                if self.vblank != vblank {
                    self.settle(clock + 1, screen);
                    self.counts_from = self.place();
                    self.vblank = vblank;
                    self.changed = Changed(true);
                }
            }
            0x04 | 0x05 => {
                let player = usize::from(register - 0x04);
                if self.sizes[player] != value
                    || self.skip_first[player]
                    || self.star_shape != StarShape::Plain
                {
                    self.reach(clock + 8, screen);
                    self.cut::<S>(player);
                    self.cut::<S>(M0 + player);
                    self.sizes[player] = value;
                    self.plain_star(player);
                    self.skip_first[player] = false;
                }
            }
            0x06..=0x09 => {
                let colour = &mut self.colours[usize::from(register - 0x06)];
                if !S::DRAWS {
                    *colour = value & 0xFE;
                } else if *colour != value & 0xFE {
                    self.reach_and_draw(clock, screen);
                    self.colours[usize::from(register - 0x06)] = value & 0xFE;
                    self.changed = Changed(true);
                }
            }
            0x0A if self.control != value || self.reflect != (value & 1 != 0) => {
                self.reach_and_draw(clock, screen);
                self.cut::<S>(BL);
                self.cut::<S>(PF);
                self.control = value;
                // The right half keeps its kind once the beam is there.
                if clock % LINE_CLOCKS < BLANK + 79 {
                    self.reflect = value & 1 != 0;
                }
            }
            0x0B | 0x0C => {
                let player = usize::from(register - 0x0B);
                let mirrored = value & 8 != 0;
                if self.mirrored[player] != mirrored {
                    self.reach(clock + 1, screen);
                    self.cut::<S>(player);
                    self.mirrored[player] = mirrored;
                }
            }
            0x0D..=0x0F => {
                let (mask, bits) = playfield_part(register, value);
                if self.playfield & mask != bits {
                    // The phase in the line: it has a multiple of four cycles.
                    let delay = [4, 5, 2, 3][usize::from(write.cycle() & 3)];
                    self.reach(clock + delay, screen);
                    self.cut::<S>(PF);
                    self.playfield = (self.playfield & !mask) | bits;
                    self.note_live(PF);
                }
            }
            0x10 | 0x11 => self.place_player(usize::from(register - 0x10), clock, screen),
            0x12 | 0x13 => {
                let missile = M0 + usize::from(register - 0x12);
                self.reach(clock + 8, screen);
                self.cut::<S>(missile);
                self.plain_star(missile - M0);
                self.place_small(missile, clock);
            }
            0x14 => {
                self.reach(clock, screen);
                self.cut::<S>(BL);
                self.place_small(BL, clock);
            }
            0x1B => self.write_graphics(P0, value, clock, screen),
            0x1C => self.write_graphics(P1, value, clock, screen),
            0x1D | 0x1E => {
                let player = usize::from(register - 0x1D);
                let on = value & 2 != 0;
                if self.missiles_on[player] != on {
                    self.reach(clock, screen);
                    self.cut::<S>(M0 + player);
                    self.missiles_on[player] = on;
                    self.note_live(M0 + player);
                }
            }
            0x1F => {
                let on = value & 2 != 0;
                if self.ball_on != on {
                    if !self.ball_delayed {
                        self.reach(clock, screen);
                        self.cut::<S>(BL);
                    }
                    self.ball_on = on;
                    self.note_live(BL);
                }
            }
            0x22 => {
                // A motion changed from 7 to 6 just as its last clock is due never ends.
                let due = clock as i32 == self.hmove_clock + 63;
                if due && self.motions[M0] == 0x70 && value & 0xF0 == 0x60 {
                    self.stars = true;
                    self.star_phase = 0;
                }
                self.motions[M0] = value & 0xF0;
            }
            0x20..=0x24 => self.motions[usize::from(register - 0x20)] = value & 0xF0,
            0x25 | 0x26 => {
                let player = usize::from(register - 0x25);
                let delayed = value & 1 != 0;
                if self.delayed[player] != delayed {
                    self.reach(clock, screen);
                    self.cut::<S>(player);
                    self.delayed[player] = delayed;
                    self.note_live(player);
                }
            }
            0x27 => {
                let delayed = value & 1 != 0;
                if self.ball_delayed != delayed {
                    self.reach(clock, screen);
                    self.cut::<S>(BL);
                    self.ball_delayed = delayed;
                    self.note_live(BL);
                }
            }
            0x28 | 0x29 => {
                let player = usize::from(register - 0x28);
                let lock = value & 2 != 0;
                if self.locked[player] != lock {
                    self.reach(clock, screen);
                    self.cut::<S>(M0 + player);
                    self.lock_missile(player, lock);
                    self.note_live(M0 + player);
                }
            }
            0x2A => {
                self.reach(clock, screen);
                self.strobe_motion::<S>(usize::from(write.cycle() % 76), clock);
            }
            0x2B => self.motions = [0; 5],
            0x2C => {
                self.reach(clock, screen);
                self.counts_from = self.place();
                self.collided = 0;
                self.sketch.apart = 0;
            }
            _ => {}
        }
    }

    /// GRP0 and GRP1: each also makes the other player's last graphics its old ones.
    #[inline(always)]
    fn write_graphics<S: Screen>(&mut self, player: usize, value: u8, clock: u32, screen: &mut S) {
        let other = 1 - player;
        if self.delayed == [false; 2] && !self.ball_delayed {
            if self.graphics[player] != value {
                self.reach(clock + 1, screen);
                self.cut::<S>(player);
            }
            self.graphics[player] = value;
            self.old_graphics[other] = self.graphics[other];
        } else {
            let new = !self.delayed[player] && self.graphics[player] != value;
            let late = self.delayed[other] && self.old_graphics[other] != self.graphics[other];
            let ball = player == P1 && self.ball_delayed && self.old_ball_on != self.ball_on;
            if new || late || ball {
                self.reach(clock + 1, screen);
                if new {
                    self.cut::<S>(player);
                }
                if late {
                    self.cut::<S>(other);
                }
                if ball {
                    self.cut::<S>(BL);
                }
            }
            self.graphics[player] = value;
            self.old_graphics[other] = self.graphics[other];
            self.note_live(other);
        }
        self.note_live(player);
        if player == P1 {
            self.old_ball_on = self.ball_on;
            self.note_live(BL);
        }
    }

    fn plain_star(&mut self, player: usize) {
        if player == 0 {
            self.star_shape = StarShape::Plain;
        }
    }

    /// RESP0 and RESP1.
    fn place_player<S: Screen>(&mut self, player: usize, clock: u32, screen: &mut S) {
        self.reach(clock, screen);
        let new = reset_position(clock % LINE_CLOCKS, 5, 3);
        let old = self.positions[player];
        let moment = Moment::of(self.sizes[player], old, new);
        if moment == Moment::Drawing {
            self.reach(clock + 11, screen);
        }
        self.cut::<S>(player);
        self.positions[player] = new;
        self.skip_first[player] = moment != Moment::Starting;
    }

    /// RESM0, RESM1 and RESBL.
    fn place_small(&mut self, object: usize, clock: u32) {
        self.positions[object] = self
            .odd_place(object, clock)
            .unwrap_or_else(|| reset_position(clock % LINE_CLOCKS, 4, 2));
    }

    /// Where a missile or the ball lands whose reset meets the clocks of an HMOVE that is still
    /// running: the seven cases that the reference knows.
    fn odd_place(&self, object: usize, clock: u32) -> Option<u8> {
        let cycle = clock as i32 % LINE_CLOCKS as i32 / 3;
        let strobed = cycle - (clock as i32 - self.hmove_clock) / 3;
        match (object, strobed, cycle) {
            (BL | M1, 3, 6) => Some(3),
            (BL, 3, 9) => Some(5),
            (BL, 3, 10) => Some(6),
            (BL, 2, 20) | (BL, 5, 23) => Some(10),
            (M0, 3, 23) => Some(8),
            _ => None,
        }
    }

    /// RESMP0 and RESMP1: a missile let go starts from its player's middle.
    fn lock_missile(&mut self, player: usize, lock: bool) {
        if self.locked[player] && !lock {
            let middle = match self.sizes[player] & 7 {
                5 => 8,
                7 => 16,
                _ => 4,
            };
            self.positions[M0 + player] = moved(self.positions[player], middle);
        }
        self.locked[player] = lock;
    }

    /// HMOVE.
    #[inline(always)]
    fn strobe_motion<S: Screen>(&mut self, cycle: usize, clock: u32) {
        if self.combs && motion::blanks(cycle) {
            if self.place() < 8 {
                self.comb = true;
            } else {
                self.comb_next = true;
            }
        }
        if self.skip_first != [false; 2] {
            for player in [P0, P1] {
                if self.skip_first[player] {
                    self.cut::<S>(player);
                    self.skip_first[player] = false;
                }
            }
        }
        self.stars = false;
        if self.star_shape != StarShape::Plain {
            self.cut::<S>(M0);
            self.star_shape = StarShape::Plain;
        }
        self.hmove_clock = clock as i32;
        if self.motions == [0; 5] && motion::rests(cycle) {
            return;
        }
        for object in P0..=BL {
            let pixels = motion::motion(cycle, self.motions[object]);
            if pixels != 0 {
                self.cut::<S>(object);
                self.positions[object] = moved(self.positions[object], pixels);
            }
        }
    }
}

/// Which of the playfield's 20 bits a register holds, and what a value makes of them.
#[inline(always)]
fn playfield_part(register: u8, value: u8) -> (u32, u32) {
    match register {
        0x0D => (0x0_000F, u32::from(value >> 4)),
        0x0E => (0x0_0FF0, u32::from(value.reverse_bits()) << 4),
        _ => (0xF_F000, u32::from(value) << 12),
    }
}

/// Where an object lands that is reset at clock `place` of a line.
fn reset_position(place: u32, latency: u32, in_blank: u8) -> u8 {
    if place < BLANK {
        in_blank
    } else {
        ((place - BLANK + latency) % WIDTH) as u8
    }
}
