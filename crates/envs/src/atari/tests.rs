//! Tests of options, errors and snapshots.

use rand::RngExt as _;
use starling_atari::games;
use starling_tree::{Array, Tree};

use super::*;
use crate::{registry, stream};

/// Whether these games can be played here. If not, the test is skipped.
pub(super) fn has_roms(test: &str, games: &[&'static str]) -> bool {
    let missing: Vec<&str> = games
        .iter()
        .filter(|name| !roms::is_there(games::by_name(name).unwrap()))
        .copied()
        .collect();
    if !missing.is_empty() {
        let why = format!(
            "no ROM of {}; `./starling roms` fetches them",
            missing.join(", ")
        );
        starling_testing::skip("roms", test, &why);
    }
    missing.is_empty()
}

fn make(id: &str, options: &str) -> Result<Box<dyn Env>, EnvError> {
    registry::find(id)
        .unwrap()
        .make(&serde_json::from_str(options).unwrap())
}

fn row_of(env: &dyn Env) -> Tree<Array> {
    env.observation_space()
        .spec()
        .map(|spec| Array::zeros(spec.dtype, &spec.shape))
}

/// Plays random legal actions; returns what was seen and given.
fn play(env: &mut dyn Env, rng: &mut Rng, steps: usize) -> Vec<(Vec<u8>, Step)> {
    let mut row = row_of(env);
    let Space::Discrete { n } = env.action_space() else {
        panic!("actions are discrete")
    };
    let mut seen = Vec::new();
    for _ in 0..steps {
        let action = Action::Discrete(rng.random_range(0..n));
        let step = env.step(action, rng, ObsMut::at(&mut row, &[])).unwrap();
        seen.push((
            ObsMut::at(&mut row, &[]).as_mut_slice::<u8>().to_vec(),
            step,
        ));
        if step.done() {
            env.reset(rng, ObsMut::at(&mut row, &[])).unwrap();
        }
    }
    seen
}

#[test]
fn spaces_need_no_rom() {
    let env = make("ALE/Pong-v5", "{}").unwrap();
    assert_eq!(env.observation_space(), Space::bytes(&[4, 84, 84], 255));
    assert_eq!(env.action_space(), Space::Discrete { n: 6 });
    assert!(!env.masks_actions());
    let env = make(
        "Pong",
        r#"{"actions": "masked", "observation": "ram", "stack": 1}"#,
    )
    .unwrap();
    assert_eq!(env.observation_space(), Space::bytes(&[1, 128], 255));
    assert_eq!(env.action_space(), Space::Discrete { n: 18 });
    assert!(env.masks_actions());
    let mut mask = [9; 18];
    env.legal_actions(&mut mask);
    assert_eq!(mask.iter().filter(|flag| **flag == 1).count(), 6);
    assert_eq!((mask[0], mask[3], mask[2]), (1, 1, 0));
}

#[test]
fn wrong_options_are_refused() {
    for (options, words) in [
        (
            r#"{"stack": 0}"#,
            "env.stack is 0; allowed: between 1 and 64",
        ),
        (r#"{"frame_skip": 0}"#, "frame_skip is 0"),
        (r#"{"sticky_action_prob": -0.5}"#, "between 0 and 1"),
        (r#"{"max_frames": 0}"#, "max_frames is 0"),
        (r#"{"stuck_frames": 0}"#, "stuck_frames is 0"),
        (r#"{"mode": 99}"#, "pong has no mode 99"),
        (r#"{"difficulty": 7}"#, "pong has no difficulty 7"),
        (
            r#"{"difficulty_ramping": true}"#,
            "there is no setting called 'env.difficulty_ramping'; did you mean env.difficulty?",
        ),
        (
            r#"{"preset": "nature"}"#,
            "env.preset is \"nature\"; allowed: `gymnasium`, `deepmind`",
        ),
    ] {
        let error = make("ALE/Pong-v5", options)
            .err()
            .expect(options)
            .to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// What evaluation changes: lives and clipping, and nothing else.
#[test]
fn evaluation_is_of_whole_games_with_unclipped_rewards() {
    let (game, version) = parse("ALE/Breakout-v5").unwrap();
    for trained in [
        "{}",
        r#"{"preset": "deepmind", "stack": 3, "max_episode_steps": 9, "mode": 4}"#,
        r#"{"preset": "rela", "life_loss": "resets", "clip_rewards": true}"#,
        r#"{"preset": "saber"}"#,
        r#"{"life_loss": "continues", "clip_rewards": true, "fire_reset": true}"#,
    ] {
        let trained: EnvOptions = serde_json::from_str(trained).unwrap();
        let judged = options::for_evaluation(&trained);
        let read = |options| AtariOptions::of(game, version, options).unwrap();
        let expected = AtariOptions {
            life_loss: LifeLoss::Ignored,
            clip_rewards: false,
            ..read(&trained)
        };
        assert_eq!(read(&judged), expected);
        assert_eq!(judged.max_episode_steps, trained.max_episode_steps);
    }
}

#[test]
fn presets_show_what_their_systems_do() {
    for (options, shape, choices, masks) in [
        (r#"{"preset": "rela"}"#, [4, 84, 84], 18, true),
        (r#"{"preset": "rlpyt"}"#, [4, 104, 80], 6, false),
        (r#"{"preset": "saber"}"#, [4, 84, 84], 18, false),
        (
            r#"{"preset": "rlpyt", "observation": "gray84"}"#,
            [4, 84, 84],
            6,
            false,
        ),
    ] {
        let env = make("ALE/Pong-v5", options).unwrap();
        assert_eq!(env.observation_space(), Space::bytes(&shape, 255));
        assert_eq!(env.action_space(), Space::Discrete { n: choices });
        assert_eq!(env.masks_actions(), masks, "{options}");
    }
}

#[test]
fn a_score_that_rolls_over_loses_nothing() {
    assert_eq!(without_rollover(-21), -21.0);
    assert_eq!(without_rollover(150), 150.0);
    assert_eq!(without_rollover(-999_990), 10.0);
    assert_eq!(without_rollover(-9_999_900), 100.0);
}

/// The tables of human and random scores have Defender's own points: random play gains thousands.
#[test]
fn defender_under_saber_counts_its_own_points() {
    if !has_roms("defender_under_saber_counts_its_own_points", &["defender"]) {
        return;
    }
    let (game, version) = parse("ALE/Defender-v5").unwrap();
    let options: EnvOptions = serde_json::from_str(r#"{"preset": "saber"}"#).unwrap();
    let mut env = AtariEnv::new(game, version, &options::for_evaluation(&options)).unwrap();
    let mut rng = stream(4, "test", 0);
    let mut row = row_of(&env);
    env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
    let mut rewards = 0.0;
    loop {
        let action = Action::Discrete(rng.random_range(0..18));
        let step = env.step(action, &mut rng, ObsMut::at(&mut row, &[]));
        let step = step.unwrap();
        rewards += f64::from(step.reward);
        if step.done() {
            break;
        }
    }
    assert!(rewards >= 500.0, "{rewards}");
    assert_eq!(env.game_score(), Some(rewards));
}

#[test]
fn stacks_are_known_as_such() {
    let stack = |options: &str| make("ALE/Pong-v5", options).unwrap().frame_stack();
    assert_eq!(stack("{}"), Some(4));
    assert_eq!(stack(r#"{"preset": "rlpyt"}"#), Some(4));
    assert_eq!(stack(r#"{"preset": "saber", "stack": 2}"#), Some(2));
    assert_eq!(stack(r#"{"observation": "ram"}"#), Some(4));
    assert_eq!(stack(r#"{"observation": "ram", "stack": 1}"#), None);
}

/// What `frame_stack` promises, also across lost lives and the presses after them.
#[test]
fn a_stack_moves_by_one_frame_with_every_step() {
    if !has_roms("a_stack_moves_by_one_frame_with_every_step", &["breakout"]) {
        return;
    }
    for options in [
        r#"{"preset": "deepmind"}"#,
        r#"{"preset": "deepmind", "life_loss": "ignored"}"#,
        r#"{"preset": "rela"}"#,
        r#"{"preset": "rlpyt"}"#,
        r#"{"preset": "saber", "fire_reset": true}"#,
        r#"{"observation": "ram", "stack": 3, "life_loss": "continues"}"#,
        r#"{"observation": "gray", "stack": 2, "life_loss": "resets"}"#,
    ] {
        let mut env = make("ALE/Breakout-v5", options).unwrap();
        let stack = env.frame_stack().expect(options);
        let mut rng = stream(6, "test", 0);
        let mut row = row_of(&*env);
        env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        let mut shown = ObsMut::at(&mut row, &[]).as_mut_slice::<u8>().to_vec();
        let mut ends = 0;
        for (obs, step) in play(&mut *env, &mut rng, 400) {
            let frame = obs.len() / stack;
            // What follows an end is the step after a reset, which this does not see.
            if !shown.is_empty() {
                assert!(obs[..obs.len() - frame] == shown[frame..], "{options}");
            }
            ends += usize::from(step.done());
            shown = if step.done() { Vec::new() } else { obs };
        }
        assert!(ends > 0, "{options}");
    }
}

/// Evaluation plays the game that training plays; only how it is cut into episodes differs.
#[test]
fn evaluation_presses_fire_after_a_lost_life_as_training_does() {
    let test = "evaluation_presses_fire_after_a_lost_life_as_training_does";
    if !has_roms(test, &["breakout", "assault"]) {
        return;
    }
    let mut total = 0.0;
    // The agent never presses FIRE itself.
    for (id, options, moves) in [
        (
            "BreakoutNoFrameskip-v4",
            r#"{"preset": "deepmind"}"#,
            [0, 2, 3],
        ),
        ("BreakoutNoFrameskip-v4", r#"{"preset": "rela"}"#, [0, 3, 4]),
        (
            "AssaultNoFrameskip-v4",
            r#"{"preset": "deepmind"}"#,
            [0, 3, 4],
        ),
    ] {
        let options: EnvOptions = serde_json::from_str(options).unwrap();
        let (game, version) = parse(id).unwrap();
        let judged_options = options::for_evaluation(&options);
        let mut trained = AtariEnv::new(game, version, &options).unwrap();
        let mut judged = AtariEnv::new(game, version, &judged_options).unwrap();
        let (mut row, mut rng) = (row_of(&trained), stream(12, "test", 0));
        let mut same_rng = rng.clone();
        trained.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        judged
            .reset(&mut same_rng, ObsMut::at(&mut row, &[]))
            .unwrap();
        let mut agent = stream(12, "agent", 0);
        let (mut points, mut lives_lost) = (0.0, 0);
        let score = loop {
            let ram = |env: &AtariEnv| *env.console().unwrap().console().ram();
            assert!(
                ram(&trained) == ram(&judged),
                "{id} after {lives_lost} lives"
            );
            let action = Action::Discrete(moves[agent.random_range(0..3)]);
            let trains = trained.step(action, &mut rng, ObsMut::at(&mut row, &[]));
            let step = judged.step(action, &mut same_rng, ObsMut::at(&mut row, &[]));
            let step = step.unwrap();
            points += f64::from(step.reward);
            if !trains.unwrap().done() {
                assert!(!step.done());
                continue;
            }
            if step.done() {
                break judged.game_score();
            }
            lives_lost += 1;
            trained.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
            // What is still to be pressed is part of a snapshot.
            let saved = judged.snapshot().unwrap();
            judged = AtariEnv::new(game, version, &judged_options).unwrap();
            judged.restore(&saved).unwrap();
            for _ in 0..judged.relaunch.len() {
                let ignored = Action::Discrete(moves[agent.random_range(0..3)]);
                let step = judged.step(ignored, &mut same_rng, ObsMut::at(&mut row, &[]));
                let step = step.unwrap();
                assert!(!step.done());
                points += f64::from(step.reward);
            }
        };
        assert!(lives_lost >= 3, "{id}: {lives_lost}");
        total += points;
        // One score, of the whole game and unclipped.
        assert_eq!(
            (score, trained.game_score()),
            (Some(points), Some(points)),
            "{id}"
        );
    }
    assert!(total > 0.0, "there are points to compare");
}

/// As in Baselines, where `FireResetEnv` then continues with the next life.
#[test]
fn a_life_lost_while_fire_is_pressed_does_not_end_the_game() {
    let test = "a_life_lost_while_fire_is_pressed_does_not_end_the_game";
    if !has_roms(test, &["breakout"]) {
        return;
    }
    // A ball that nobody plays is lost after 97 frames.
    let options = r#"{"preset": "deepmind", "frame_skip": 97, "noop_max": 0}"#;
    let (game, version) = parse("BreakoutNoFrameskip-v4").unwrap();
    let options = serde_json::from_str(options).unwrap();
    let mut env = AtariEnv::new(game, version, &options).unwrap();
    let (mut row, mut rng) = (row_of(&env), stream(3, "test", 0));
    env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
    let lives = |env: &AtariEnv| env.console().unwrap().outcome().lives;
    assert_eq!(lives(&env), 4);
    // Where the last life is lost so, a new game starts.
    let games = (0..6).map(|_| {
        env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        lives(&env)
    });
    assert_eq!(games.collect::<Vec<_>>(), [3, 2, 1, 5, 4, 3]);
}

#[test]
fn a_time_limit_ends_a_game_of_several_lives() {
    if !has_roms("a_time_limit_ends_a_game_of_several_lives", &["breakout"]) {
        return;
    }
    let options = r#"{"observation": "ram", "stack": 1, "life_loss": "continues", "noop_max": 0,
        "max_episode_steps": 15}"#;
    let mut env = make("BreakoutNoFrameskip-v4", options).unwrap();
    let (mut row, mut rng) = (row_of(&*env), stream(3, "test", 0));
    let mut starts = Vec::new();
    for _ in 0..3 {
        env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        starts.push(ObsMut::at(&mut row, &[]).as_mut_slice::<u8>().to_vec());
        let mut rewards = 0.0;
        for t in 1..=15 {
            let action = Action::Discrete(if t == 1 { 1 } else { 2 });
            let step = env
                .step(action, &mut rng, ObsMut::at(&mut row, &[]))
                .unwrap();
            rewards += f64::from(step.reward);
            assert_eq!((step.truncated, step.terminated), (t == 15, false));
            assert_eq!(env.game_score(), (t == 15).then_some(rewards));
        }
    }
    assert!(starts.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn older_frames_are_zeros_where_they_should_be() {
    if !has_roms("older_frames_are_zeros_where_they_should_be", &["breakout"]) {
        return;
    }
    for (preset, repeated) in [
        ("gymnasium", true),
        ("rela", true),
        ("rlpyt", false),
        ("saber", false),
    ] {
        let options = format!(r#"{{"preset": "{preset}"}}"#);
        let mut env = make("ALE/Breakout-v5", &options).unwrap();
        let mut row = row_of(&*env);
        let mut rng = stream(2, "test", 0);
        env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        let bytes = ObsMut::at(&mut row, &[]).as_mut_slice::<u8>().to_vec();
        let frames: Vec<&[u8]> = bytes.chunks_exact(bytes.len() / 4).collect();
        assert!(frames[3].iter().any(|pixel| *pixel > 0), "{preset}");
        for older in &frames[..3] {
            match repeated {
                true => assert!(older == &frames[3], "{preset}"),
                false => assert!(older.iter().all(|pixel| *pixel == 0), "{preset}"),
            }
        }
    }
}

#[test]
fn a_game_s_points_are_told_when_it_ends() {
    if !has_roms("a_game_s_points_are_told_when_it_ends", &["breakout"]) {
        return;
    }
    let points = |options: &str| -> Vec<(bool, Option<f64>, f32)> {
        let mut env = make("BreakoutNoFrameskip-v4", options).unwrap();
        let mut rng = stream(8, "test", 0);
        let mut row = row_of(&*env);
        let mut games = Vec::new();
        for _ in 0..5 {
            env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
            let mut sum = 0.0;
            loop {
                let action = Action::Discrete([1, 2, 3][rng.random_range(0..3)]);
                let step = env.step(action, &mut rng, ObsMut::at(&mut row, &[]));
                let step = step.unwrap();
                sum += step.reward;
                if step.done() {
                    games.push((step.terminated, env.game_score(), sum));
                    break;
                }
                assert_eq!(env.game_score(), None);
            }
        }
        games
    };
    // Whole games, with their own points: the sum of rewards.
    for (_, score, sum) in points("{}") {
        assert_eq!(score, Some(f64::from(sum)));
    }
    // Single lives: the game's points after the fifth.
    let lives = points(r#"{"preset": "deepmind", "clip_rewards": false}"#);
    let told: Vec<_> = lives.iter().filter_map(|(_, score, _)| *score).collect();
    let whole: f32 = lives.iter().map(|(_, _, sum)| sum).sum();
    assert_eq!(told, [f64::from(whole)]);
    assert!(lives[4].1.is_some());
}

#[test]
fn the_checker_finds_nothing() {
    if !has_roms("the_checker_finds_nothing", &["seaquest"]) {
        return;
    }
    let spec = registry::find("ALE/Seaquest-v5").unwrap();
    let report = crate::check::check(&mut || spec.make(&EnvOptions::default()), 1, 2000);
    assert_eq!(report.findings, []);
    assert!(report.can_be_saved);
}

#[test]
fn a_missing_rom_names_the_command() {
    let error = RomsError::Missing {
        game: "pong",
        folders: vec!["a".into(), "b".into()],
    };
    assert_eq!(
        error.to_string(),
        "the ROM of pong is missing: there is no pong.bin in a or b; `./starling roms` fetches it"
    );
}

/// A file of a terabyte (of which nothing is on the disk) would not fit into memory.
#[test]
fn a_file_that_is_too_large_for_a_rom_is_not_read() {
    let name = format!("starling-rom-{}.bin", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let large = roms::read(&path);
    file.set_len(4096).unwrap();
    let small = roms::read(&path);
    std::fs::remove_file(&path).unwrap();
    let error = large.unwrap().unwrap_err().to_string();
    assert!(
        error.contains("1099511627776 bytes is not a ROM"),
        "{error}"
    );
    assert_eq!(small.unwrap().unwrap().1.len(), 4096);
}

#[test]
fn every_kind_of_observation_continues_from_a_snapshot() {
    if !has_roms(
        "every_kind_of_observation_continues_from_a_snapshot",
        &["breakout", "pitfall2", "seaquest"],
    ) {
        return;
    }
    for (id, options) in [
        (
            "ALE/Breakout-v5",
            r#"{"life_loss": "continues", "fire_reset": true}"#,
        ),
        ("ALE/Seaquest-v5", r#"{"observation": "rgb", "stack": 2}"#),
        ("Seaquest-v4", r#"{"observation": "gray", "stack": 1}"#),
        ("ALE/Seaquest-v5", r#"{"preset": "saber"}"#),
        ("ALE/Breakout-v5", r#"{"preset": "rela"}"#),
        ("ALE/Breakout-v5", r#"{"preset": "rlpyt"}"#),
        (
            "ALE/Pitfall2-v5",
            r#"{"observation": "ram", "actions": "full"}"#,
        ),
    ] {
        let mut env = make(id, options).unwrap();
        assert!(env.snapshot().is_none(), "nothing was started");
        let mut rng = stream(5, "test", 0);
        let mut row = row_of(&*env);
        env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        for steps in [3, 150, 40] {
            play(&mut *env, &mut rng, steps);
            let (saved, then) = (env.snapshot().unwrap(), rng.clone());
            let wanted = play(&mut *env, &mut rng, 120);
            let mut other = make(id, options).unwrap();
            other.restore(&saved).unwrap();
            assert!(other.snapshot().unwrap() == saved, "{id} {options}");
            assert!(
                play(&mut *other, &mut then.clone(), 120) == wanted,
                "{id} {options}"
            );
            // Also into one that has played something else.
            env.restore(&saved).unwrap();
            assert!(
                play(&mut *env, &mut then.clone(), 120) == wanted,
                "{id} {options}"
            );
        }
    }
}

#[test]
fn snapshots_of_others_are_refused() {
    if !has_roms("snapshots_of_others_are_refused", &["breakout", "pong"]) {
        return;
    }
    let mut pong = make("ALE/Pong-v5", "{}").unwrap();
    let mut row = row_of(&*pong);
    pong.reset(&mut stream(1, "test", 0), ObsMut::at(&mut row, &[]))
        .unwrap();
    let saved = pong.snapshot().unwrap();
    for (id, options) in [
        ("ALE/Breakout-v5", "{}"),
        ("ALE/Pong-v5", r#"{"stack": 3}"#),
    ] {
        let error = make(id, options)
            .unwrap()
            .restore(&saved)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("it is of pong, or of other options"),
            "{error}"
        );
    }
    assert!(pong.restore(&saved[..saved.len() - 1]).is_err());
    assert!(pong.restore(&[&saved[..], &[0]].concat()).is_err());
}

#[test]
fn lives_end_episodes_as_the_options_say() {
    if !has_roms("lives_end_episodes_as_the_options_say", &["breakout"]) {
        return;
    }
    let lives = |options: &str| -> Vec<u8> {
        let options = serde_json::from_str(options).unwrap();
        let (game, version) = parse("BreakoutNoFrameskip-v4").unwrap();
        let mut env = AtariEnv::new(game, version, &options).unwrap();
        let mut rng = stream(3, "test", 0);
        let mut row = row_of(&env);
        let mut lives = Vec::new();
        for _ in 0..7 {
            env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
            lives.push(env.console().unwrap().outcome().lives);
            // Fire and stay.
            while !env
                .step(Action::Discrete(1), &mut rng, ObsMut::at(&mut row, &[]))
                .unwrap()
                .done()
            {}
        }
        lives
    };
    assert_eq!(lives("{}"), [5; 7]);
    assert_eq!(lives(r#"{"life_loss": "resets"}"#), [5; 7]);
    assert_eq!(
        lives(r#"{"life_loss": "continues"}"#),
        [5, 4, 3, 2, 1, 5, 4]
    );
    assert_eq!(lives(r#"{"preset": "deepmind"}"#), [5, 4, 3, 2, 1, 5, 4]);
}

#[test]
fn games_are_cut_off() {
    if !has_roms("games_are_cut_off", &["freeway"]) {
        return;
    }
    for (options, wanted) in [
        (r#"{"noop_max": 0, "max_frames": 400}"#, 100),
        (r#"{"noop_max": 0, "stuck_frames": 200}"#, 50),
        (
            r#"{"noop_max": 0, "max_frames": 400, "max_episode_steps": 30}"#,
            30,
        ),
    ] {
        let mut env = make("FreewayNoFrameskip-v4", options).unwrap();
        let mut rng = stream(3, "test", 0);
        let mut row = row_of(&*env);
        env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        let mut steps = 1;
        loop {
            let step = env.step(Action::Discrete(0), &mut rng, ObsMut::at(&mut row, &[]));
            let step = step.unwrap();
            if step.done() {
                assert!(step.truncated && !step.terminated);
                break;
            }
            steps += 1;
        }
        assert_eq!(steps, wanted, "{options}");
    }
}
