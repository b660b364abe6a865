//! Sets of games that agents are compared on.

use starling_atari::games::{self, Game};

/// The names of the sets.
pub const SETS: [&str; 2] = ["atari57", "saber"];

/// The games of a set: `atari57`, the 57 of most papers since Wang et al. (2016), or `saber`, those
/// for which Toromanoff et al. (2019) have a world record.
pub fn set(name: &str) -> Option<Vec<&'static Game>> {
    let chosen = |game: &&Game| match name {
        "atari57" => ATARI57.contains(&game.name),
        _ => game.name != "surround" && (ATARI57.contains(&game.name) || MORE.contains(&game.name)),
    };
    SETS.contains(&name)
        .then(|| games::all().filter(chosen).collect())
}

const ATARI57: [&str; 57] = [
    "alien",
    "amidar",
    "assault",
    "asterix",
    "asteroids",
    "atlantis",
    "bank_heist",
    "battle_zone",
    "beam_rider",
    "berzerk",
    "bowling",
    "boxing",
    "breakout",
    "centipede",
    "chopper_command",
    "crazy_climber",
    "defender",
    "demon_attack",
    "double_dunk",
    "enduro",
    "fishing_derby",
    "freeway",
    "frostbite",
    "gopher",
    "gravitar",
    "hero",
    "ice_hockey",
    "jamesbond",
    "kangaroo",
    "krull",
    "kung_fu_master",
    "montezuma_revenge",
    "ms_pacman",
    "name_this_game",
    "phoenix",
    "pitfall",
    "pong",
    "private_eye",
    "qbert",
    "riverraid",
    "road_runner",
    "robotank",
    "seaquest",
    "skiing",
    "solaris",
    "space_invaders",
    "star_gunner",
    "surround",
    "tennis",
    "time_pilot",
    "tutankham",
    "up_n_down",
    "venture",
    "video_pinball",
    "wizard_of_wor",
    "yars_revenge",
    "zaxxon",
];

/// SABER's other games.
const MORE: [&str; 5] = [
    "air_raid",
    "carnival",
    "elevator_action",
    "journey_escape",
    "pooyan",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_game() {
        assert_eq!(set("atari57").unwrap().len(), 57);
        assert_eq!(set("saber").unwrap().len(), 61);
        assert!(set("atari58").is_none());
    }
}
