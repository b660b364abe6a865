//! The entries of the table, except those of the Atari games, which are derived from the emulator's
//! table.

use super::EnvSpec;
use crate::meta::{POINT_ROBOT, SPARSE_POINT_ROBOT};
use crate::minatar::{self, MinAtar, MinAtarOptions};
use crate::{Env, EnvError, EnvOptions, Schema, classic, exploration, memory};

pub(super) static ENVS: &[EnvSpec] = &[
    EnvSpec {
        max_episode_steps: Some(500),
        reward_threshold: Some(475.0),
        ..EnvSpec::new(
            "CartPole-v1",
            "classic",
            "balance a pole on a cart that is pushed left or right",
            |_, _| Ok(Box::new(classic::CartPole::new())),
        )
    },
    EnvSpec {
        max_episode_steps: Some(200),
        reward_threshold: Some(-110.0),
        ..EnvSpec::new(
            "MountainCar-v0",
            "classic",
            "rock a weak car out of a valley",
            |_, _| Ok(Box::new(classic::MountainCar::new())),
        )
    },
    EnvSpec {
        max_episode_steps: Some(999),
        reward_threshold: Some(90.0),
        ..EnvSpec::new(
            "MountainCarContinuous-v0",
            "classic",
            "rock a weak car out of a valley, with a throttle that costs",
            |_, _| Ok(Box::new(classic::MountainCarContinuous::new())),
        )
    },
    EnvSpec {
        max_episode_steps: Some(500),
        reward_threshold: Some(-100.0),
        ..EnvSpec::new(
            "Acrobot-v1",
            "classic",
            "swing two links up by a torque at the joint between them",
            |_, _| Ok(Box::new(classic::Acrobot::new())),
        )
    },
    EnvSpec {
        max_episode_steps: Some(200),
        ..EnvSpec::new(
            "Pendulum-v1",
            "classic",
            "swing a pendulum up and hold it there by a weak torque",
            |_, _| Ok(Box::new(classic::Pendulum::new())),
        )
    },
    EnvSpec {
        max_episode_steps: Some(500),
        ..EnvSpec::new(
            "CartPoleMasked-v1",
            "memory",
            "balance a pole on a cart without seeing how fast they move",
            |_, _| Ok(Box::new(memory::MaskedCartPole::new())),
        )
    },
    EnvSpec {
        max_episode_steps: Some(50),
        ..EnvSpec::new(
            "TMaze-v0",
            "memory",
            "remember a sign for ten steps, then turn the way it said",
            |_, _| Ok(Box::new(memory::TMaze::new())),
        )
    },
    EnvSpec {
        max_episode_steps: Some(120),
        ..EnvSpec::new(
            "KeyDoor-v0",
            "exploration",
            "fetch a key, open a door and reach the only reward, 40 steps away",
            |_, _| Ok(Box::new(exploration::KeyDoor::new())),
        )
    },
    POINT_ROBOT,
    SPARSE_POINT_ROBOT,
    minatar(
        "MinAtar/Asterix-v1",
        "gather gold and avoid enemies on a 10 x 10 board",
        |_, options| play::<minatar::Asterix>(false, options),
    ),
    minatar(
        "MinAtar/Asterix-v0",
        "gather gold and avoid enemies on a 10 x 10 board, with all six actions",
        |_, options| play::<minatar::Asterix>(true, options),
    ),
    minatar(
        "MinAtar/Breakout-v1",
        "break bricks with ball and paddle on a 10 x 10 board",
        |_, options| play::<minatar::Breakout>(false, options),
    ),
    minatar(
        "MinAtar/Breakout-v0",
        "break bricks with ball and paddle on a 10 x 10 board, with all six actions",
        |_, options| play::<minatar::Breakout>(true, options),
    ),
    minatar(
        "MinAtar/Freeway-v1",
        "cross a road of eight lanes on a 10 x 10 board",
        |_, options| play::<minatar::Freeway>(false, options),
    ),
    minatar(
        "MinAtar/Freeway-v0",
        "cross a road of eight lanes on a 10 x 10 board, with all six actions",
        |_, options| play::<minatar::Freeway>(true, options),
    ),
    minatar(
        "MinAtar/Seaquest-v1",
        "rescue divers, shoot and surface for air on a 10 x 10 board",
        |_, options| play::<minatar::Seaquest>(false, options),
    ),
    minatar(
        "MinAtar/Seaquest-v0",
        "rescue divers, shoot and surface for air on a 10 x 10 board, with all six actions",
        |_, options| play::<minatar::Seaquest>(true, options),
    ),
    minatar(
        "MinAtar/SpaceInvaders-v1",
        "shoot waves of aliens on a 10 x 10 board",
        |_, options| play::<minatar::SpaceInvaders>(false, options),
    ),
    minatar(
        "MinAtar/SpaceInvaders-v0",
        "shoot waves of aliens on a 10 x 10 board, with all six actions",
        |_, options| play::<minatar::SpaceInvaders>(true, options),
    ),
];

const fn minatar(id: &'static str, summary: &'static str, build: super::MakeEnv) -> EnvSpec {
    EnvSpec {
        options: Schema::of::<MinAtarOptions>,
        ..EnvSpec::new(id, "minatar", summary, build)
    }
}

fn play<G: minatar::Game + 'static>(
    all_moves: bool,
    options: &EnvOptions,
) -> Result<Box<dyn Env>, EnvError> {
    Ok(Box::new(MinAtar::<G>::new(all_moves, options.read()?)))
}
