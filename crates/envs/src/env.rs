//! The trait that one environment implements.

use starling_settings::ConfigError;
use starling_tree::{Array, Element, Tree, ViewMut};

use crate::render::Picture;
use crate::{Rng, Space};

/// One environment: a game, a simulator, a task.
///
/// The semantics are Gymnasium's: `terminated` means that the task itself ended, `truncated` that
/// it was cut off (by a time limit) and that a learner should bootstrap from the last observation.
/// After either, the caller resets; an environment never resets itself.
///
/// All random numbers come from the generator that the caller passes in, so that an environment
/// needs no seed, and equal generators give equal episodes.
pub trait Env: Send {
    /// What [`reset`](Env::reset) and [`step`](Env::step) write.
    fn observation_space(&self) -> Space;

    /// What [`step`](Env::step) accepts.
    fn action_space(&self) -> Space;

    /// Starts an episode and writes its first observation.
    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError>;

    /// Takes one action and writes the next observation, also when the episode ends with it.
    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError>;

    /// The number of frames K, if an observation `[K, ..]` is a stack of the last K frames, newest
    /// last: within an episode, each observation is the previous one, shifted by one frame.
    ///
    /// Then only new frames have to be stored or sent.
    fn frame_stack(&self) -> Option<usize> {
        None
    }

    /// Whether some actions can be illegal; constant over the environment's lifetime.
    fn masks_actions(&self) -> bool {
        false
    }

    /// Writes 1 for each legal action of a discrete action space and 0 for the others.
    ///
    /// Called only if [`masks_actions`](Env::masks_actions) is true.
    fn legal_actions(&self, mask: &mut [u8]) {
        mask.fill(1);
    }

    /// The score of the whole game that ended with the last step, if it is not the sum of the
    /// episode's rewards: rewards may be clipped, and a game may last for several episodes.
    fn game_score(&self) -> Option<f64> {
        None
    }

    /// Whether [`game_score`](Env::game_score) is used; constant over the environment's lifetime.
    /// Statistics of a run are then about whole games, not episodes.
    fn counts_games(&self) -> bool {
        false
    }

    /// The lives that are left, in games that have such.
    fn lives(&self) -> Option<u32> {
        None
    }

    /// Notifies the environment that its episode was truncated from outside, by a time limit.
    ///
    /// Matters only if a game lasts for several episodes: the next [`reset`](Env::reset) starts a
    /// new game, and [`game_score`](Env::game_score) is that of the game cut off.
    fn cut_off(&mut self) {}

    /// A picture of the current state, for people; called after [`reset`](Env::reset).
    ///
    /// [`Canvas`](crate::render::Canvas) draws lines, polygons and circles,
    /// [`cells`](crate::render::cells) a board.
    fn render(&self) -> Result<Picture, EnvError> {
        Err(EnvError::NoPicture)
    }

    /// Steps per second for showing its pictures.
    fn render_fps(&self) -> f64 {
        15.0
    }

    /// The whole state, such that [`restore`](Env::restore) continues exactly; `None` if this
    /// environment cannot be saved. A resumed run starts a new episode then.
    fn snapshot(&self) -> Option<Vec<u8>> {
        None
    }

    /// Continues from a [`snapshot`](Env::snapshot) of the same kind of environment.
    fn restore(&mut self, _snapshot: &[u8]) -> Result<(), EnvError> {
        Err(EnvError::Snapshot("it cannot be saved".into()))
    }
}

impl<E: Env + ?Sized> Env for Box<E> {
    fn observation_space(&self) -> Space {
        (**self).observation_space()
    }

    fn action_space(&self) -> Space {
        (**self).action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        (**self).reset(rng, obs)
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        (**self).step(action, rng, obs)
    }

    fn frame_stack(&self) -> Option<usize> {
        (**self).frame_stack()
    }

    fn masks_actions(&self) -> bool {
        (**self).masks_actions()
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        (**self).legal_actions(mask);
    }

    fn game_score(&self) -> Option<f64> {
        (**self).game_score()
    }

    fn counts_games(&self) -> bool {
        (**self).counts_games()
    }

    fn lives(&self) -> Option<u32> {
        (**self).lives()
    }

    fn cut_off(&mut self) {
        (**self).cut_off();
    }

    fn render(&self) -> Result<Picture, EnvError> {
        (**self).render()
    }

    fn render_fps(&self) -> f64 {
        (**self).render_fps()
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        (**self).snapshot()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        (**self).restore(snapshot)
    }
}

/// What followed an action, besides the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// The reward of this step.
    pub reward: f32,
    /// The task ended here.
    pub terminated: bool,
    /// The episode was cut off here.
    pub truncated: bool,
}

impl Step {
    /// Whether the episode is over, for either reason.
    pub fn done(&self) -> bool {
        self.terminated || self.truncated
    }
}

/// What goes wrong inside an environment.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// The environment was given a value that is not in its action space.
    #[error("{action} is not an action of this environment; allowed: {allowed}")]
    Action {
        /// What it was given.
        action: String,
        /// What its action space holds.
        allowed: String,
    },
    /// A state could not be saved or restored.
    #[error("the environment's state cannot be restored: {0}")]
    Snapshot(String),
    /// It cannot be shown.
    #[error(
        "this environment has no picture; to give it one, implement Env::render (see \
         starling::envs::render and the chapter on environments in the book)"
    )]
    NoPicture,
    /// Its options cannot be used.
    #[error(transparent)]
    Options(#[from] ConfigError),
    /// Anything else that an environment reports.
    #[error("{0}")]
    Failed(String),
    /// The environment's code panicked.
    #[error("it panicked: {0}")]
    Panicked(String),
    /// A batch of environments failed.
    #[error("environments {first} to {last} ({id}): {cause}")]
    Among {
        /// The first of them, counted over the whole run.
        first: u64,
        /// The last of them.
        last: u64,
        /// Their id in the registry.
        id: String,
        /// What went wrong.
        cause: Box<EnvError>,
    },
    /// One of several environments failed.
    #[error("environment {index} ({id}): {cause}")]
    At {
        /// Which one, counted over the whole run.
        index: u64,
        /// Its id in the registry.
        id: String,
        /// What went wrong.
        cause: Box<EnvError>,
    },
}

/// One action, borrowed from the columns of a rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action<'a> {
    /// A choice of a [`Space::Discrete`].
    Discrete(usize),
    /// The choices of a [`Space::MultiDiscrete`].
    MultiDiscrete(&'a [i64]),
    /// The numbers of a [`Space::Box`].
    Continuous(&'a [f32]),
}

impl<'a> Action<'a> {
    /// The action as an environment gets it: continuous ones are clipped to the bounds of their
    /// space, in `bounded`.
    pub fn within(self, space: &Space, bounded: &'a mut Vec<f32>) -> Self {
        let (Action::Continuous(values), Space::Box { bounds, .. }) = (self, space) else {
            return self;
        };
        bounded.clear();
        bounded.extend(values.iter().enumerate().map(|(i, value)| {
            let (low, high) = bounds.of(i);
            // A NaN stays one, for the environment to refuse.
            if value.is_nan() {
                *value
            } else {
                value.max(low).min(high)
            }
        }));
        Action::Continuous(bounded)
    }

    /// The action at a leading index of a column of actions.
    pub fn at(space: &Space, column: &'a Array, index: &[usize]) -> Self {
        let view = column.at(index);
        match space {
            // A negative number wraps to a huge one, which no environment accepts.
            Space::Discrete { .. } => Action::Discrete(view.as_slice::<i64>()[0] as usize),
            Space::MultiDiscrete { .. } => Action::MultiDiscrete(view.as_slice()),
            Space::Box { .. } | Space::Dict(_) => Action::Continuous(view.as_slice()),
        }
    }

    /// The choice, if it is one of `n`.
    pub fn discrete(self, n: usize) -> Result<usize, EnvError> {
        match self {
            Action::Discrete(choice) if choice < n => Ok(choice),
            other => Err(EnvError::Action {
                action: format!("{other:?}"),
                allowed: format!("0 to {}", n.saturating_sub(1)),
            }),
        }
    }

    /// The numbers, if there are `n` of them and none is NaN.
    pub fn continuous(self, n: usize) -> Result<&'a [f32], EnvError> {
        match self {
            Action::Continuous(values)
                if values.len() == n && values.iter().all(|v| !v.is_nan()) =>
            {
                Ok(values)
            }
            other => Err(EnvError::Action {
                action: format!("{other:?}"),
                allowed: format!("{n} numbers"),
            }),
        }
    }
}

/// The row that an environment writes its observation into.
#[derive(Debug)]
pub struct ObsMut<'a>(Tree<ViewMut<'a>>);

impl<'a> ObsMut<'a> {
    /// A row in memory of the caller's: one view per array of the observation space. The bytes of a
    /// view are aligned for its element type.
    pub fn new(views: Tree<ViewMut<'a>>) -> Self {
        Self(views)
    }

    /// The row under a leading index of observation columns.
    pub fn at(columns: &'a mut Tree<Array>, index: &[usize]) -> Self {
        Self(columns.at_mut(index))
    }

    /// Writes an observation that is one array.
    ///
    /// # Panics
    /// When the observation has named parts, or another element type or size.
    pub fn write<T: Element>(&mut self, values: &[T]) {
        self.as_mut_slice::<T>().copy_from_slice(values);
    }

    /// The row of an observation that is one array, to be written in place. It holds whatever
    /// was there before.
    ///
    /// # Panics
    /// When the observation has named parts or another element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        match &mut self.0 {
            Tree::Leaf(view) => view.as_mut_slice(),
            Tree::Node(parts) => panic!(
                "this observation has named parts: {:?}",
                parts.iter().map(|(name, _)| name).collect::<Vec<_>>()
            ),
        }
    }

    /// One named part, to be written in place; parts within parts by a dotted path.
    ///
    /// # Panics
    /// When there is no such part or it has another element type.
    pub fn part<T: Element>(&mut self, path: &str) -> &mut [T] {
        match self.0.get_mut(path) {
            Some(Tree::Leaf(view)) => view.as_mut_slice(),
            _ => panic!("this observation has no part called '{path}'"),
        }
    }

    /// The bytes of one array: of the observation itself if `path` is empty, or else of the part
    /// with this dotted path.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn bytes(&mut self, path: &str) -> &mut [u8] {
        let part = match path {
            "" => Some(&mut self.0),
            path => self.0.get_mut(path),
        };
        match part {
            Some(Tree::Leaf(view)) => &mut *view.bytes,
            _ => panic!("this observation has no part called '{path}'"),
        }
    }

    /// A shorter borrow of the same row.
    pub fn reborrow(&mut self) -> ObsMut<'_> {
        ObsMut(self.0.map_mut(ViewMut::reborrow))
    }
}
