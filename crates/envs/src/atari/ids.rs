//! The ids of the Atari games, derived from the emulator's table.

use std::sync::LazyLock;

use starling_atari::games::{self, Game};

use super::AtariEnv;
use super::options;
use crate::registry::EnvSpec;
use crate::{Env, EnvError, EnvOptions};

/// What the form of an id says about the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `ALE/Pong-v5`: sticky actions.
    V5,
    /// `PongNoFrameskip-v4`: nothing random but the number of no-ops at the start.
    NoFrameskip,
    /// `Pong-v4`: a random number of frames per step, 2 to 4.
    V4,
}

/// One line per game and [`Version`].
pub(crate) fn specs() -> &'static [EnvSpec] {
    static SPECS: LazyLock<Vec<EnvSpec>> = LazyLock::new(|| {
        let versions = [Version::V5, Version::NoFrameskip, Version::V4];
        let lines = versions
            .iter()
            .flat_map(|version| games::all().map(|game| spec(game, *version)));
        lines.collect()
    });
    &SPECS
}

/// The usual id of a game given by its bare name, `Pong`.
pub(crate) fn of_bare_name(name: &str) -> Option<String> {
    let game = games::all().find(|game| game.id == name)?;
    Some(id(game, Version::V5))
}

/// The game and version that an id stands for.
pub fn parse(id: &str) -> Option<(&'static Game, Version)> {
    let forms = [
        (
            id.strip_prefix("ALE/")
                .and_then(|id| id.strip_suffix("-v5")),
            Version::V5,
        ),
        (id.strip_suffix("NoFrameskip-v4"), Version::NoFrameskip),
        (id.strip_suffix("-v4"), Version::V4),
    ];
    forms.into_iter().find_map(|(name, version)| {
        let name = name?;
        let game = games::all().find(|game| game.id == name)?;
        Some((game, version))
    })
}

fn id(game: &Game, version: Version) -> String {
    match version {
        Version::V5 => format!("ALE/{}-v5", game.id),
        Version::NoFrameskip => format!("{}NoFrameskip-v4", game.id),
        Version::V4 => format!("{}-v4", game.id),
    }
}

fn spec(game: &'static Game, version: Version) -> EnvSpec {
    let name = game.name.replace('_', " ");
    let summary = match version {
        Version::V5 => format!("the Atari 2600 game {name}, with sticky actions"),
        Version::NoFrameskip => format!("the Atari 2600 game {name}, without sticky actions"),
        Version::V4 => format!("the Atari 2600 game {name}, with 2 to 4 frames per step"),
    };
    EnvSpec {
        options: options::schema,
        for_evaluation: options::for_evaluation,
        ..EnvSpec::new(id(game, version).leak(), "atari", summary.leak(), make)
    }
}

fn make(id: &str, options: &EnvOptions) -> Result<Box<dyn Env>, EnvError> {
    let (game, version) =
        parse(id).ok_or_else(|| EnvError::Failed(format!("{id} is not an Atari game")))?;
    Ok(Box::new(AtariEnv::new(game, version, options)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_read_back() {
        assert_eq!(specs().len(), 3 * games::all().len());
        for spec in specs() {
            let (game, version) = parse(spec.id).unwrap();
            assert_eq!(id(game, version), spec.id);
        }
        assert_eq!(
            of_bare_name("SpaceInvaders").unwrap(),
            "ALE/SpaceInvaders-v5"
        );
        assert!(of_bare_name("Combat").is_none());
        assert!(parse("ALE/Combat-v5").is_none());
        assert!(parse("ALE/Pong-v4").is_none());
    }
}
