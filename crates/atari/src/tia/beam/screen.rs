//! Where the beam's pixels go.

use crate::tia::lines::Line;

/// Somebody who looks at the beam.
pub(crate) trait Screen {
    /// Whether pixels are wanted.
    const DRAWS: bool;
    /// Whether collisions are wanted.
    const COLLIDES: bool;
    /// Draws the pixels `from..to` of a row, counted from the top of the picture; nothing but
    /// black where there is no look.
    fn draw(&mut self, row: u32, from: u32, to: u32, look: Option<Look<'_>>);
}

/// How a span of a line looks.
pub(crate) struct Look<'a> {
    /// The pixels of the six objects, valid where `live` has their bit.
    pub(crate) objects: &'a [Line; 6],
    pub(crate) live: u32,
    /// The palette indices of player 0, player 1, playfield and background.
    pub(crate) colours: [u8; 4],
    /// The control register: its bits 1 and 2 say how the playfield is coloured and placed.
    pub(crate) control: u8,
    /// Whether the line's first eight pixels are black.
    pub(crate) comb: bool,
    /// Whether all this is as it was when the whole row above was drawn.
    pub(crate) same: bool,
}

/// Nobody looks.
pub(crate) struct NoScreen;

impl Screen for NoScreen {
    const DRAWS: bool = false;
    const COLLIDES: bool = true;
    fn draw(&mut self, _row: u32, _from: u32, _to: u32, _look: Option<Look<'_>>) {}
}
