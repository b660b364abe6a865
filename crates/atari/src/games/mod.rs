//! Stand-in until the table of games is merged.

/// A game.
#[derive(Debug)]
pub struct Game {
    /// Name.
    pub name: &'static str,
    /// Md5.
    pub md5: &'static str,
    /// Actions that matter.
    pub minimal_actions: &'static [u8],
    /// Modes.
    pub modes: &'static [u16],
    /// Difficulties.
    pub difficulties: &'static [u8],
    /// Lives.
    pub start_lives: u8,
    /// What is pressed after a reset.
    pub starting_actions: &'static [(u8, u16)],
}

/// By md5.
pub fn by_md5(_md5: &str) -> Option<&'static Game> {
    None
}
