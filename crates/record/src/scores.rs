//! Atari scores of random play, human players and world records.
//!
//! Random and human scores are those in common use since Mnih et al. (2015); world records are
//! those that the SABER protocol compares with (Toromanoff et al. 2019), as they are published
//! with DreamerV2. The record of Journey Escape has a doubtful sign there and is left out.

/// Scores of one game.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GameScores {
    /// The game's name in small letters, words joined by underscores.
    pub game: &'static str,
    /// Of random play.
    pub random: f64,
    /// Of a person who tests games, where it was measured.
    pub human: Option<f64>,
    /// The world record, where one is known.
    pub record: Option<f64>,
}

impl GameScores {
    /// 0 for random play, 1 for the human score.
    pub fn human_normalized(&self, score: f64) -> Option<f64> {
        Some((score - self.random) / (self.human? - self.random))
    }

    /// 0 for random play, 1 for the world record.
    pub fn record_normalized(&self, score: f64) -> Option<f64> {
        Some((score - self.random) / (self.record? - self.random))
    }
}

/// The scores of the game of an environment's id (`ALE/SpaceInvaders-v5`,
/// `SpaceInvadersNoFrameskip-v4`) or of a game's name.
pub fn scores_of(id: &str) -> Option<&'static GameScores> {
    let name = match id.split_once('/') {
        Some(("ALE", name)) => name,
        // Games of the same name elsewhere, such as MinAtar's, have other scores.
        Some(_) => return None,
        None => id,
    };
    let name = name.split('-').next().unwrap_or(name);
    let name = name.trim_end_matches("NoFrameskip");
    let letters = |name: &str| {
        let letters = name.chars().filter(char::is_ascii_alphanumeric);
        letters.collect::<String>().to_ascii_lowercase()
    };
    let wanted = letters(name);
    GAMES.iter().find(|row| letters(row.game) == wanted)
}

const fn row(
    game: &'static str,
    random: f64,
    human: Option<f64>,
    record: Option<f64>,
) -> GameScores {
    GameScores {
        game,
        random,
        human,
        record,
    }
}

static GAMES: &[GameScores] = &[
    row("air_raid", 579.25, None, Some(23050.0)),
    row("alien", 227.8, Some(7127.7), Some(251916.0)),
    row("amidar", 5.8, Some(1719.5), Some(104159.0)),
    row("assault", 222.4, Some(742.0), Some(8647.0)),
    row("asterix", 210.0, Some(8503.3), Some(1000000.0)),
    row("asteroids", 719.1, Some(47388.7), Some(10506650.0)),
    row("atlantis", 12850.0, Some(29028.1), Some(10604840.0)),
    row("bank_heist", 14.2, Some(753.1), Some(82058.0)),
    row("battle_zone", 2360.0, Some(37187.5), Some(801000.0)),
    row("beam_rider", 363.9, Some(16926.5), Some(999999.0)),
    row("berzerk", 123.7, Some(2630.4), Some(1057940.0)),
    row("bowling", 23.1, Some(160.7), Some(300.0)),
    row("boxing", 0.1, Some(12.1), Some(100.0)),
    row("breakout", 1.7, Some(30.5), Some(864.0)),
    row("carnival", 700.8, None, Some(2541440.0)),
    row("centipede", 2090.9, Some(12017.0), Some(1301709.0)),
    row("chopper_command", 811.0, Some(7387.8), Some(999999.0)),
    row("crazy_climber", 10780.5, Some(35829.4), Some(219900.0)),
    row("defender", 2874.5, Some(18688.9), Some(6010500.0)),
    row("demon_attack", 152.1, Some(1971.0), Some(1556345.0)),
    row("double_dunk", -18.6, Some(-16.4), Some(22.0)),
    row("elevator_action", 4387.0, None, Some(156550.0)),
    row("enduro", 0.0, Some(860.5), Some(9500.0)),
    row("fishing_derby", -91.7, Some(-38.7), Some(71.0)),
    row("freeway", 0.0, Some(29.6), Some(38.0)),
    row("frostbite", 65.2, Some(4334.7), Some(454830.0)),
    row("gopher", 257.6, Some(2412.5), Some(355040.0)),
    row("gravitar", 173.0, Some(3351.4), Some(162850.0)),
    row("hero", 1027.0, Some(30826.4), Some(1000000.0)),
    row("ice_hockey", -11.2, Some(0.9), Some(36.0)),
    row("james_bond", 29.0, Some(302.8), Some(45550.0)),
    row("journey_escape", -19977.0, None, None),
    row("kangaroo", 52.0, Some(3035.0), Some(1424600.0)),
    row("krull", 1598.0, Some(2665.5), Some(104100.0)),
    row("kung_fu_master", 258.5, Some(22736.3), Some(1000000.0)),
    row("montezuma_revenge", 0.0, Some(4753.3), Some(1219200.0)),
    row("ms_pacman", 307.3, Some(6951.6), Some(290090.0)),
    row("name_this_game", 2292.3, Some(8049.0), Some(25220.0)),
    row("phoenix", 761.4, Some(7242.6), Some(4014440.0)),
    row("pitfall", -229.4, Some(6463.7), Some(114000.0)),
    row("pong", -20.7, Some(14.6), Some(21.0)),
    row("pooyan", 371.2, None, Some(13025.0)),
    row("private_eye", 24.9, Some(69571.3), Some(101800.0)),
    row("qbert", 163.9, Some(13455.0), Some(2400000.0)),
    row("riverraid", 1338.5, Some(17118.0), Some(1000000.0)),
    row("road_runner", 11.5, Some(7845.0), Some(2038100.0)),
    row("robotank", 2.2, Some(11.9), Some(76.0)),
    row("seaquest", 68.4, Some(42054.7), Some(999999.0)),
    row("skiing", -17098.1, Some(-4336.9), Some(-3272.0)),
    row("solaris", 1236.3, Some(12326.7), Some(111420.0)),
    row("space_invaders", 148.0, Some(1668.7), Some(621535.0)),
    row("star_gunner", 664.0, Some(10250.0), Some(77400.0)),
    row("surround", -10.0, Some(6.5), None),
    row("tennis", -23.8, Some(-8.3), Some(21.0)),
    row("time_pilot", 3568.0, Some(5229.2), Some(65300.0)),
    row("tutankham", 11.4, Some(167.6), Some(5384.0)),
    row("up_n_down", 533.4, Some(11693.2), Some(82840.0)),
    row("venture", 0.0, Some(1187.5), Some(38900.0)),
    row("video_pinball", 16256.9, Some(17667.9), Some(89218328.0)),
    row("wizard_of_wor", 563.5, Some(4756.5), Some(395300.0)),
    row("yars_revenge", 3092.9, Some(54576.9), Some(15000105.0)),
    row("zaxxon", 32.5, Some(9173.3), Some(83700.0)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn games_are_found_by_their_ids() {
        let game = |id: &str| scores_of(id).map(|row| row.game);
        assert_eq!(game("ALE/SpaceInvaders-v5"), Some("space_invaders"));
        assert_eq!(game("JamesbondNoFrameskip-v4"), Some("james_bond"));
        assert_eq!(game("pong"), Some("pong"));
        assert_eq!(game("UpNDown-v4"), Some("up_n_down"));
        assert_eq!(game("CartPole-v1"), None);
        assert_eq!(game("MinAtar/Breakout-v1"), None);
    }

    /// Breakout: random 1.7, human 30.5, record 864.
    #[test]
    fn normalised_by_hand() {
        let breakout = scores_of("ALE/Breakout-v5").unwrap();
        let human = breakout.human_normalized(16.1).unwrap();
        assert!((human - 0.5).abs() < 1e-12);
        let record = breakout.record_normalized(864.0).unwrap();
        assert!((record - 1.0).abs() < 1e-12);
        assert_eq!(
            scores_of("Surround-v5").unwrap().record_normalized(1.0),
            None
        );
        assert_eq!(scores_of("AirRaid-v5").unwrap().human_normalized(1.0), None);
    }
}
