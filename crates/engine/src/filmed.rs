//! Renders one environment, in a terminal or as a video.

use std::path::Path;

use starling_envs::render::Picture;
use starling_envs::{Action, Env, EnvError, EnvOptions, EnvSpec, ObsMut, Rng, Space, Step, stream};
use starling_record::Video;
use starling_tree::{Array, Tree};

use crate::{Agent, EngineError};

/// Progress of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Played {
    /// The sum of its rewards.
    pub return_: f64,
    /// Its steps.
    pub steps: u64,
}

impl std::fmt::Display for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Rewards are single precision: more digits mean nothing.
        write!(f, "return {} in {} steps", self.return_ as f32, self.steps)
    }
}

/// One environment that can be rendered, and the policy that chooses its actions.
pub struct Filmed {
    env: Box<dyn Env>,
    chooser: Chooser,
    rng: Rng,
    space: Space,
    seen: Tree<Array>,
    legal: Option<Vec<u8>>,
}

enum Chooser {
    Agent(Box<Agent>),
    Random { rng: Rng, action: Array },
}

impl Filmed {
    /// Plays with an agent, or with random actions. `roles` name the random streams of the
    /// environment and of the actions.
    pub fn new(
        spec: &EnvSpec,
        options: &EnvOptions,
        agent: Option<Agent>,
        roles: [&str; 2],
        seed: u64,
    ) -> Result<Self, EngineError> {
        let env = spec.make(&(spec.for_pictures)(options))?;
        let space = env.action_space();
        let [env_role, action_role] = roles;
        let choices = stream(seed, action_role, 0);
        Ok(Self {
            chooser: match agent {
                Some(agent) => Chooser::Agent(Box::new(agent.with_rng(choices))),
                None => {
                    let spec = space.spec();
                    let named = || EnvError::Failed("its actions have named parts".into());
                    let spec = spec.leaf().ok_or_else(named)?;
                    let shape: Vec<usize> = [1].iter().chain(&spec.shape).copied().collect();
                    Chooser::Random {
                        rng: choices,
                        action: Array::zeros(spec.dtype, &shape),
                    }
                }
            },
            legal: match &space {
                Space::Discrete { n } if env.masks_actions() => Some(vec![1; *n]),
                _ => None,
            },
            seen: Tree::zeros(&env.observation_space().spec(), &[]),
            rng: stream(seed, env_role, 0),
            space,
            env,
        })
    }

    /// Plays an episode of at most `most` steps and writes its pictures as videos; `shown` is called
    /// with each.
    pub fn film<E: From<EngineError>>(
        &mut self,
        paths: &[&Path],
        most: u64,
        mut shown: impl FnMut(&Picture, Played) -> Result<(), E>,
    ) -> Result<Played, E> {
        self.begin()?;
        let first = self.picture()?;
        let size = (first.width, first.height);
        let mut videos = Vec::new();
        for path in paths {
            let video = Video::create(path, size, self.fps());
            videos.push(video.map_err(EngineError::from)?);
        }
        let mut add = |picture: &Picture| -> Result<(), EngineError> {
            for video in &mut videos {
                video.add(&picture.rgb)?;
            }
            Ok(())
        };
        add(&first)?;
        let mut played = Played::default();
        shown(&first, played)?;
        while played.steps < most {
            let step = self.step()?;
            let picture = self.picture()?;
            played.return_ += f64::from(step.reward);
            played.steps += 1;
            add(&picture)?;
            shown(&picture, played)?;
            if step.done() {
                break;
            }
        }
        for video in videos {
            video.finish().map_err(EngineError::from)?;
        }
        Ok(played)
    }

    /// Pictures per second, whatever the environment says.
    pub fn fps(&self) -> f64 {
        match self.env.render_fps() {
            fps if fps.is_nan() => 15.0,
            fps => fps.clamp(1.0, 240.0),
        }
    }

    /// Starts an episode.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        let obs = ObsMut::at(&mut self.seen, &[]);
        self.env.reset(&mut self.rng, obs)?;
        if let Chooser::Agent(agent) = &mut self.chooser {
            agent.reset();
        }
        Ok(())
    }

    /// What the environment shows now.
    pub fn picture(&self) -> Result<Picture, EngineError> {
        Ok(self.env.render()?)
    }

    /// One step of the episode.
    pub fn step(&mut self) -> Result<Step, EngineError> {
        if let Some(legal) = &mut self.legal {
            self.env.legal_actions(legal);
        }
        let legal = self.legal.as_deref();
        let action = match &mut self.chooser {
            Chooser::Agent(agent) => agent
                .act_legally(&self.seen, legal)
                // It was made for the environment of the same settings.
                .map_err(|error| EngineError::Weights(error.to_string()))?,
            Chooser::Random { rng, action } => {
                self.space.sample(rng, legal, action.at_mut(&[0]));
                Action::at(&self.space, action, &[0])
            }
        };
        let obs = ObsMut::at(&mut self.seen, &[]);
        let step = self.env.step(action, &mut self.rng, obs)?;
        if let Chooser::Agent(agent) = &mut self.chooser {
            agent.rewarded(step.reward);
        }
        Ok(step)
    }
}

impl std::fmt::Debug for Filmed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filmed")
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}
