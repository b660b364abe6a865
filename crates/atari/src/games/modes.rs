//! How a game is brought into one of its modes.

/// How a mode is selected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Select {
    /// The game has one mode.
    None,
}

pub(super) const VIDEO_CUBE: &[u16] = &[0];
