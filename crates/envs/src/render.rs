//! Pictures of environments, for people.
//!
//! Read first: [`Picture`] (what [`Env::render`](crate::Env::render) gives), [`Canvas`] (lines,
//! polygons and circles with smooth edges), [`cells`] (boards of coloured cells).

mod canvas;

pub use self::canvas::{Canvas, Point};

/// A picture: rows of red, green and blue, from the top left on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `3 × width × height` bytes.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// The colour of a pixel.
    ///
    /// # Panics
    /// When it is outside the picture.
    pub fn pixel(&self, x: usize, y: usize) -> Colour {
        assert!(x < self.width, "the picture is {} wide", self.width);
        let at = 3 * (y * self.width + x);
        [self.rgb[at], self.rgb[at + 1], self.rgb[at + 2]]
    }
}

/// Red, green and blue.
pub type Colour = [u8; 3];

/// The colours that the pictures of this crate share.
pub mod colours {
    use super::Colour;

    /// Behind drawings.
    pub const PAPER: Colour = [248, 248, 245];
    /// Outlines and solid bodies.
    pub const INK: Colour = [45, 52, 64];
    /// The ground, a track, a frame.
    pub const GROUND: Colour = [190, 196, 204];
    /// What the agent is, or moves.
    pub const AGENT: Colour = [224, 122, 31];
    /// Joints and axles.
    pub const JOINT: Colour = [38, 110, 160];
    /// Where to go.
    pub const GOAL: Colour = [70, 150, 84];
    /// Behind boards.
    pub const BOARD: Colour = [24, 26, 33];
    /// An empty cell of a board.
    pub const CELL: Colour = [35, 38, 47];
}

/// A board of `rows × columns` square cells of `side` pixels each. `colour` gives the colour of the
/// cell in a row and a column; `None` leaves it empty.
pub fn cells(
    rows: usize,
    columns: usize,
    side: usize,
    colour: impl Fn(usize, usize) -> Option<Colour>,
) -> Picture {
    let (width, height) = (columns * side, rows * side);
    let mut rgb = colours::BOARD.repeat(width * height);
    // A line between cells, where there is room for one.
    let gap = usize::from(side >= 8);
    for row in 0..rows {
        for column in 0..columns {
            let colour = colour(row, column).unwrap_or(colours::CELL);
            for y in row * side + gap..(row + 1) * side - gap {
                let first = 3 * (y * width + column * side + gap);
                let last = 3 * (y * width + (column + 1) * side - gap);
                for pixel in rgb[first..last].chunks_exact_mut(3) {
                    pixel.copy_from_slice(&colour);
                }
            }
        }
    }
    Picture { width, height, rgb }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvOptions, ObsMut, registry, stream};
    use starling_tree::Tree;

    /// Small enough for a GIF, and not blank.
    #[test]
    fn every_environment_has_a_picture_that_changes() {
        for spec in registry::all()
            .into_iter()
            .filter(|spec| spec.family != "atari")
        {
            let mut env = spec.make(&EnvOptions::default()).unwrap();
            let mut obs = Tree::zeros(&env.observation_space().spec(), &[]);
            let mut rng = stream(1, "test", 0);
            env.reset(&mut rng, ObsMut::at(&mut obs, &[])).unwrap();
            let first = env.render().unwrap();
            assert_eq!(
                first.rgb.len(),
                3 * first.width * first.height,
                "{}",
                spec.id
            );
            assert!((100..=640).contains(&first.width), "{}", spec.id);
            let blank = first
                .rgb
                .chunks_exact(3)
                .all(|pixel| *pixel == first.rgb[..3]);
            assert!(!blank, "{}", spec.id);
            assert!((5.0..=60.0).contains(&env.render_fps()), "{}", spec.id);
            let mut actions = crate::Rollout::action_spec(&env.action_space());
            actions.shape.insert(0, 1);
            let mut column = starling_tree::Array::zeros(actions.dtype, &actions.shape);
            let space = env.action_space();
            let changes = (0..50).any(|_| {
                space.sample(&mut rng, None, column.at_mut(&[0]));
                let action = crate::Action::at(&space, &column, &[0]);
                env.step(action, &mut rng, ObsMut::at(&mut obs, &[]))
                    .unwrap();
                env.render().unwrap() != first
            });
            assert!(changes, "{}", spec.id);
        }
    }

    #[test]
    fn cells_are_crisp_squares() {
        let red = [200, 0, 0];
        let board = cells(2, 3, 10, |row, column| {
            (row == 1 && column == 2).then_some(red)
        });
        assert_eq!((board.width, board.height), (30, 20));
        assert_eq!(board.pixel(21, 11), red);
        assert_eq!(board.pixel(28, 18), red);
        assert_eq!(board.pixel(20, 15), colours::BOARD);
        assert_eq!(board.pixel(15, 15), colours::CELL);
        let reds = board.rgb.chunks_exact(3).filter(|pixel| **pixel == red);
        assert_eq!(reds.count(), 64);
    }

    #[test]
    fn an_environment_without_a_picture_says_how_to_add_one() {
        struct Bare;
        impl crate::Env for Bare {
            fn observation_space(&self) -> crate::Space {
                crate::Space::unbounded(&[1])
            }
            fn action_space(&self) -> crate::Space {
                crate::Space::Discrete { n: 1 }
            }
            fn reset(&mut self, _: &mut crate::Rng, _: ObsMut<'_>) -> Result<(), crate::EnvError> {
                Ok(())
            }
            fn step(
                &mut self,
                _: crate::Action<'_>,
                _: &mut crate::Rng,
                _: ObsMut<'_>,
            ) -> Result<crate::Step, crate::EnvError> {
                Ok(crate::Step::default())
            }
        }
        let boxed: Box<dyn crate::Env> = Box::new(crate::TimeLimit::new(Bare, 3));
        let error = crate::Env::render(&boxed).unwrap_err().to_string();
        assert!(error.contains("implement Env::render"), "{error}");
    }
}
