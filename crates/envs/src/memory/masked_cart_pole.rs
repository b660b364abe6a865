//! `CartPoleMasked-v1`: CartPole without its velocities, which have to be inferred from earlier
//! observations.

use starling_tree::{Array, DType, Tree};

use crate::classic::CartPole;
use crate::render::Picture;
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

/// CartPole whose observation is only the cart's position and the pole's angle.
#[derive(Debug)]
pub struct MaskedCartPole {
    env: CartPole,
    whole: Tree<Array>,
}

impl Default for MaskedCartPole {
    fn default() -> Self {
        Self {
            env: CartPole::new(),
            whole: Tree::Leaf(Array::zeros(DType::F32, &[4])),
        }
    }
}

impl MaskedCartPole {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }

    fn show(&self, mut obs: ObsMut<'_>) {
        if let Some(whole) = self.whole.leaf() {
            let whole = whole.as_slice::<f32>();
            obs.write(&[whole[0], whole[2]]);
        }
    }
}

impl Env for MaskedCartPole {
    fn observation_space(&self) -> Space {
        match self.env.observation_space() {
            Space::Box { bounds, .. } => {
                let (position, angle) = (bounds.of(0), bounds.of(2));
                Space::vector(&[position.0, angle.0], &[position.1, angle.1])
            }
            other => other,
        }
    }

    fn action_space(&self) -> Space {
        self.env.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.env.reset(rng, ObsMut::at(&mut self.whole, &[]))?;
        self.show(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let step = self
            .env
            .step(action, rng, ObsMut::at(&mut self.whole, &[]))?;
        self.show(obs);
        Ok(step)
    }

    /// The whole state: the agent does not see how fast it moves, and neither does a picture.
    fn render(&self) -> Result<Picture, EnvError> {
        self.env.render()
    }

    fn render_fps(&self) -> f64 {
        self.env.render_fps()
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        self.env.snapshot()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        self.env.restore(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream;

    #[test]
    fn it_shows_position_and_angle_of_cart_pole() {
        let mut whole = Tree::Leaf(Array::zeros(DType::F32, &[4]));
        let mut half = Tree::Leaf(Array::zeros(DType::F32, &[2]));
        let (mut plain, mut masked) = (CartPole::new(), MaskedCartPole::new());
        let (mut one, mut two) = (stream(1, "env", 0), stream(1, "env", 0));
        plain.reset(&mut one, ObsMut::at(&mut whole, &[])).unwrap();
        masked.reset(&mut two, ObsMut::at(&mut half, &[])).unwrap();
        for t in 0..8 {
            let action = || Action::Discrete(t % 2);
            let left = plain.step(action(), &mut one, ObsMut::at(&mut whole, &[]));
            let right = masked.step(action(), &mut two, ObsMut::at(&mut half, &[]));
            assert_eq!(left.unwrap(), right.unwrap());
            let whole = whole.leaf().unwrap().as_slice::<f32>();
            assert_eq!(half.leaf().unwrap().as_slice::<f32>(), [whole[0], whole[2]]);
        }
    }
}
