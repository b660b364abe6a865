//! Gymnasium's eleven MuJoCo tasks, in the versions v5 and v4, and families of tasks for meta-learning
//! (`meta.rs`).
//!
//! In Gymnasium's, the order of every sum and product is that of Gymnasium and numpy, so that observations and rewards
//! are equal to the last bit of double precision. The options of a task are those of Gymnasium's
//! constructor, less those that concern its renderer. Gymnasium has no `Pusher-v4` with MuJoCo 3, so
//! there is none here.

mod ant;
mod half_cheetah;
mod humanoid;
mod humanoid_standup;
mod inverted_double_pendulum;
mod inverted_pendulum;
mod meta;
mod pusher;
mod random_params;
mod reacher;
mod swimmer;
mod walkers;

pub use ant::{AntOptions, AntV4Options, BodyOption};
pub use half_cheetah::{HalfCheetahOptions, HalfCheetahV4Options};
pub use humanoid::{HumanoidOptions, HumanoidV4Options};
pub use humanoid_standup::HumanoidStandupOptions;
pub use inverted_double_pendulum::InvertedDoublePendulumOptions;
pub use inverted_pendulum::InvertedPendulumOptions;
pub use meta::{
    AntGoalOptions, CheetahDirOptions, CheetahVelOptions, DirectionOptions, meta_specs,
};
pub use pusher::PusherOptions;
pub use random_params::RandomParamsOptions;
pub use reacher::ReacherOptions;
pub use swimmer::{SwimmerOptions, SwimmerV4Options};
pub use walkers::{HopperOptions, HopperV4Options, Walker2dOptions, Walker2dV4Options};

use std::sync::Once;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvSpec, Schema, registry};

use crate::FAMILY;
#[cfg(test)]
use crate::robot::Exact;

/// Adds all tasks to the table of environments, at the first call. A program's own environment with
/// the id of one of them stays.
pub fn add() {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        for spec in specs().into_iter().chain(meta_specs()) {
            let _ = registry::add(spec);
        }
    });
}

/// Whether an environment needs MuJoCo, by its id.
pub fn needs_mujoco(id: &str) -> bool {
    let mut all = specs().into_iter().chain(meta_specs());
    all.any(|spec| spec.id == id)
}

macro_rules! tasks {
    ($($id:literal, $limit:literal steps, $threshold:expr, $options:ty, $make:path, $summary:literal;)*) => {
        /// The entries of all tasks for the table of environments.
        pub fn specs() -> Vec<EnvSpec> {
            vec![$(EnvSpec {
                max_episode_steps: Some($limit),
                reward_threshold: $threshold,
                options: Schema::of::<$options>,
                ..EnvSpec::new($id, FAMILY, $summary, |_, options| {
                    Ok(Box::new($make(options.read::<$options>()?)?))
                })
            }),*]
        }

        /// The same environments, without a limit on the steps of an episode and in double precision.
        #[cfg(test)]
        pub(crate) fn exact(
            id: &str,
            options: &starling_envs::EnvOptions,
        ) -> Result<Box<dyn Exact>, starling_envs::EnvError> {
            Ok(match id {
                $($id => Box::new($make(options.read::<$options>()?)?),)*
                other => panic!("there is no task called {other}"),
            })
        }
    };
}

tasks! {
    "HalfCheetah-v5", 1000 steps, Some(4800.0), HalfCheetahOptions, half_cheetah::v5,
        "run on two legs in a plane";
    "Hopper-v5", 1000 steps, Some(3800.0), HopperOptions, walkers::hopper_v5,
        "hop on one leg in a plane";
    "Walker2d-v5", 1000 steps, None, Walker2dOptions, walkers::walker2d_v5,
        "walk on two legs in a plane";
    "Ant-v5", 1000 steps, Some(6000.0), AntOptions, ant::v5,
        "run on four legs";
    "Humanoid-v5", 1000 steps, None, HumanoidOptions, humanoid::v5,
        "walk as a human does";
    "HumanoidStandup-v5", 1000 steps, None, HumanoidStandupOptions, humanoid_standup::v5,
        "stand up from lying on the back";
    "Swimmer-v5", 1000 steps, Some(360.0), SwimmerOptions, swimmer::v5,
        "swim by bending a chain of three links";
    "Reacher-v5", 50 steps, Some(-3.75), ReacherOptions, reacher::v5,
        "reach a target with an arm of two links";
    "InvertedPendulum-v5", 1000 steps, Some(950.0), InvertedPendulumOptions, inverted_pendulum::v5,
        "balance a pole on a cart with a continuous force";
    "InvertedDoublePendulum-v5", 1000 steps, Some(9100.0), InvertedDoublePendulumOptions,
        inverted_double_pendulum::v5, "balance two poles, one on the other, on a cart";
    "Pusher-v5", 100 steps, Some(0.0), PusherOptions, pusher::v5,
        "push an object to a target with an arm of seven joints";
    "HalfCheetah-v4", 1000 steps, Some(4800.0), HalfCheetahV4Options, half_cheetah::v4,
        "run on two legs in a plane (equal to v5)";
    "Hopper-v4", 1000 steps, Some(3800.0), HopperV4Options, walkers::hopper_v4,
        "hop on one leg in a plane (the terminal step also gets the healthy reward)";
    "Walker2d-v4", 1000 steps, None, Walker2dV4Options, walkers::walker2d_v4,
        "walk on two legs in a plane (feet of different friction)";
    "Ant-v4", 1000 steps, Some(6000.0), AntV4Options, ant::v4,
        "run on four legs (contact forces neither observed nor penalised)";
    "Humanoid-v4", 1000 steps, None, HumanoidV4Options, humanoid::v4,
        "walk as a human does (contact forces not penalised)";
    "HumanoidStandup-v4", 1000 steps, None, NoOptions, humanoid_standup::v4,
        "stand up from lying on the back (28 more constants are observed)";
    "Swimmer-v4", 1000 steps, Some(360.0), SwimmerV4Options, swimmer::v4,
        "swim by bending a chain of three links (equal to v5)";
    "Reacher-v4", 50 steps, Some(-3.75), NoOptions, reacher::v4,
        "reach a target with an arm of two links (rewarded for the place before the step)";
    "InvertedPendulum-v4", 1000 steps, Some(950.0), NoOptions, inverted_pendulum::v4,
        "balance a pole on a cart (the terminal step also gets the healthy reward)";
    "InvertedDoublePendulum-v4", 1000 steps, Some(9100.0), NoOptions, inverted_double_pendulum::v4,
        "balance two poles, one on the other, on a cart (the terminal step also gets the healthy reward)";
}

/// The options of a task that has none.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NoOptions {}
