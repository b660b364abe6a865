//! Tasks that cannot be solved from the current observation: an agent has to remember.

mod masked_cart_pole;
mod t_maze;

pub use masked_cart_pole::MaskedCartPole;
pub use t_maze::TMaze;
