//! Joysticks, paddles and the console's switches.

use serde::{Deserialize, Serialize};

use crate::properties::Properties;

/// A controller's kind: a property of the game.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// A stick with four directions and a button.
    Joystick,
    /// A pair of knobs with a button each.
    Paddles,
}

/// One of the 18 actions of a joystick: [`Action::new`] takes the codes the Arcade Learning
/// Environment gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action(u8);

impl Action {
    /// Nothing pressed.
    pub const NOOP: Self = Self(0);
    /// The button alone.
    pub const FIRE: Self = Self(1);

    /// The action with this code; codes that mean nothing are no action.
    pub fn new(code: u8) -> Option<Self> {
        (code < 18).then_some(Self(code))
    }

    /// The Arcade Learning Environment's code, 0 to 17.
    pub fn code(self) -> u8 {
        self.0
    }

    fn fire(self) -> bool {
        self.0 == 1 || self.0 >= 10
    }

    /// The four direction bits of a stick's half of port A, clear where the stick is pushed.
    fn directions(self) -> u8 {
        const UP: u8 = 0x01;
        const DOWN: u8 = 0x02;
        const LEFT: u8 = 0x04;
        const RIGHT: u8 = 0x08;
        let pushed = match self.0 {
            2 | 10 => UP,
            3 | 11 => RIGHT,
            4 | 12 => LEFT,
            5 | 13 => DOWN,
            6 | 14 => UP | RIGHT,
            7 | 15 => UP | LEFT,
            8 | 16 => DOWN | RIGHT,
            9 | 17 => DOWN | LEFT,
            _ => 0,
        };
        !pushed & 0x0F
    }

    fn pushes_left(self) -> bool {
        self.directions() & 0x04 == 0
    }

    fn pushes_right(self) -> bool {
        self.directions() & 0x08 == 0
    }
}

/// The pins that the console reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    sticks: [u8; 2],
    fires: [bool; 2],
    paddles: Option<[Paddle; 2]>,
    /// Whether the two players' pins are exchanged: sticks between the ports, knobs within one.
    swapped: bool,
    right_paddles: bool,
    paddle_limit: i32,
    reset: bool,
    select: bool,
    difficulty: u8,
}

/// A knob: a resistance that charges a capacitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Paddle {
    resistance: i32,
}

const LEAST_RESISTANCE: i32 = 27_450;
/// The greatest resistance, where a game does not say otherwise.
const MOST_RESISTANCE: i32 = 790_196;
const KNOB_SPEED: i32 = 23_000;

impl Inputs {
    /// Everything released.
    pub fn new(properties: &Properties) -> Self {
        let middle = Paddle {
            resistance: (MOST_RESISTANCE + LEAST_RESISTANCE) / 2,
        };
        Self {
            sticks: [0x0F; 2],
            fires: [false; 2],
            paddles: (properties.controller == Controller::Paddles)
                .then(|| [middle.clone(), middle]),
            swapped: properties.swapped,
            right_paddles: properties.right_paddles,
            paddle_limit: MOST_RESISTANCE,
            reset: false,
            select: false,
            difficulty: 0,
        }
    }

    /// Makes a state that came from elsewhere one that controllers can be in.
    pub(crate) fn fit(&mut self) {
        self.paddle_limit = self.paddle_limit.clamp(LEAST_RESISTANCE, MOST_RESISTANCE);
        for paddle in self.paddles.iter_mut().flatten() {
            paddle.resistance = paddle.resistance.clamp(0, MOST_RESISTANCE);
        }
        self.difficulty &= 3;
    }

    /// Sets how far the knobs turn.
    pub fn set_paddle_limit(&mut self, resistance: i32) {
        self.paddle_limit = resistance.max(LEAST_RESISTANCE);
    }

    /// Puts the knobs back in the middle, as an environment reset does.
    pub fn center_paddles(&mut self) {
        if let Some(paddles) = &mut self.paddles {
            for paddle in paddles {
                paddle.resistance = (self.paddle_limit + LEAST_RESISTANCE) / 2;
            }
        }
    }

    /// Applies the two players' actions for one frame.
    pub fn act(&mut self, first: Action, second: Action) {
        match &mut self.paddles {
            None => {
                for (player, action) in [first, second].into_iter().enumerate() {
                    self.sticks[player] = action.directions();
                    self.fires[player] = action.fire();
                }
            }
            Some(paddles) => {
                for (player, action) in [first, second].into_iter().enumerate() {
                    let turn = match (action.pushes_left(), action.pushes_right()) {
                        (true, _) => KNOB_SPEED,
                        (_, true) => -KNOB_SPEED,
                        _ => 0,
                    };
                    let knob = &mut paddles[player].resistance;
                    *knob = (*knob + turn).clamp(LEAST_RESISTANCE, self.paddle_limit);
                    self.fires[player] = action.fire();
                }
            }
        }
    }

    /// Holds or releases the console's switches.
    pub fn switches(&mut self, reset: bool, select: bool) {
        self.reset = reset;
        self.select = select;
    }

    /// Sets the difficulty switches: bit 0 is the left one at A, bit 1 the right one.
    pub fn set_difficulty(&mut self, difficulty: u8) {
        self.difficulty = difficulty & 3;
    }

    /// The pins of the RIOT's port A.
    pub(crate) fn port_a(&self) -> u8 {
        match &self.paddles {
            None if self.swapped => self.sticks[1] << 4 | self.sticks[0],
            None => self.sticks[0] << 4 | self.sticks[1],
            Some(_) => {
                let mut pins = 0xFF;
                let (first, second) = if self.swapped {
                    (0x40, 0x80)
                } else {
                    (0x80, 0x40)
                };
                if self.fires[0] {
                    pins &= !first;
                }
                if self.fires[1] {
                    pins &= !second;
                }
                pins
            }
        }
    }

    /// The pins of the RIOT's port B.
    pub(crate) fn port_b(&self) -> u8 {
        let mut pins = 0x3F;
        if self.reset {
            pins &= !0x01;
        }
        if self.select {
            pins &= !0x02;
        }
        pins | self.difficulty << 6
    }

    /// Whether a button pin (input 4 or 5) is up.
    pub(crate) fn button_up(&self, port: usize) -> bool {
        self.paddles.is_some() || !self.fires[(port & 1) ^ usize::from(self.swapped)]
    }

    /// How many cycles the capacitor of an input takes to charge; none where nothing is plugged
    /// in.
    pub(crate) fn charge_cycles(&self, input: usize) -> Option<i64> {
        let paddles = self.paddles.as_ref()?;
        // The knobs of the right port are there, and always turned to nothing.
        let resistance = match (input, self.swapped) {
            (0, false) | (1, true) => paddles[0].resistance,
            (1, false) | (0, true) => paddles[1].resistance,
            _ if self.right_paddles => 0,
            _ => return None,
        };
        let seconds = 1.6 * f64::from(resistance) * 0.01e-6;
        Some((seconds * 1.19e6) as i64)
    }
}
