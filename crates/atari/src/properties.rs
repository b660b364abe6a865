//! What cannot be derived from a cartridge: its controllers and the position of its picture.

use crate::controllers::Controller;

/// A television format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 262 lines, 60 Hz.
    Ntsc,
    /// 312 lines, 50 Hz.
    Pal,
}

impl Format {
    /// A write after this line ends the frame.
    pub(crate) fn last_line(self) -> i64 {
        match self {
            Self::Ntsc => 290,
            Self::Pal => 342,
        }
    }
}

/// The properties of one cartridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// What is plugged into both ports.
    pub controller: Controller,
    /// Whether the two players' controllers are exchanged.
    pub swapped: bool,
    /// Whether there are paddles in the right port too, which nobody turns.
    pub right_paddles: bool,
    /// The format, where watching the program would not find it.
    pub format: Option<Format>,
    /// The first line of the picture.
    pub top: u32,
    /// The picture's height, where it is not the format's.
    pub height: Option<u32>,
    /// Whether HMOVE blanks the left edge of a line, as it does in hardware.
    pub combs: bool,
}

impl Properties {
    /// The properties of the cartridge with this md5.
    pub fn of(md5: &str) -> Self {
        let mut properties = Self {
            controller: Controller::Joystick,
            swapped: SWAPPED.contains(&md5),
            right_paddles: RIGHT_PADDLES.contains(&md5),
            format: None,
            top: 34,
            height: None,
            combs: !SMOOTH_EDGES.contains(&md5),
        };
        if PADDLE_GAMES.contains(&md5) {
            properties.controller = Controller::Paddles;
        }
        if let Some((_, top, height)) = PICTURES.iter().find(|(known, ..)| *known == md5) {
            properties.top = *top;
            properties.height = *height;
        }
        properties
    }

    pub(crate) fn height(&self, format: Format) -> u32 {
        self.height.unwrap_or(match format {
            Format::Ntsc => 210,
            Format::Pal => 250,
        })
    }
}

/// Cartridges played with paddles: backgammon, blackjack, breakout, casino, kaboom, pong.
const PADDLE_GAMES: [&str; 6] = [
    "8556b42aa05f94bc29ff39c39b11bff4",
    "0a981c03204ac2b278ba392674682560",
    "f34f08e5eb96e500e851a80be3277a56",
    "b816296311019ab69a21cb9e9e235d12",
    "5428cdfada281c569c74c7308c7f2c26",
    "60e0ea3cbe0913d39803477945e9e5ec",
];

/// Cartridges whose picture starts or ends elsewhere: qbert, carnival, pooyan, up_n_down,
/// journey_escape.
const PICTURES: [(&str, u32, Option<u32>); 5] = [
    ("484b0076816a104875e00467d431c2d2", 40, None),
    ("028024fb8e5e5f18ea586652f9799c96", 26, Some(214)),
    ("4799a40b6e889370b7ee55c17ba65141", 26, Some(220)),
    ("a499d720e7ee35c62424de882a3351b6", 30, None),
    ("718ae62c70af4e5fd8e932fee216948a", 34, Some(230)),
];

/// Cartridges whose left edge the reference does not blank: asteroids, battle_zone,
/// darkchambers, ms_pacman.
const SMOOTH_EDGES: [&str; 4] = [
    "106855474c69d08c8ffa308d47337269",
    "ccbd36746ed4525821a8083b0d6d2c2c",
    "41f252a66c6301f1e8ab3612c19bc5d4",
    "87e79cd41ce136fd4f72cc6e2c161bee",
];

/// Cartridges whose first player has the second paddle or the right stick: pong, surround,
/// wizard_of_wor.
const SWAPPED: [&str; 3] = [
    "4d7517ae69f95cfbc053be01312b7dba",
    "7e8aa18bc9502eb57daaf5e7c1e94da7",
    "60e0ea3cbe0913d39803477945e9e5ec",
];

/// Cartridges with paddles in both ports: pong.
const RIGHT_PADDLES: [&str; 1] = ["60e0ea3cbe0913d39803477945e9e5ec"];
