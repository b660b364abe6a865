//! A trained agent outside of a run plays as evaluation does.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::Path;

use starling::engine::{Agent, Episodes, evaluate_checkpoint};
use starling::envs::{ObsMut, stream};
use starling::record::{RunFolder, checkpoint};
use starling::settings::{Request, resolve};
use starling_tree::Tree;

const SEED: u64 = 5;

fn trained(root: &Path, env: &str, algo: &str, overrides: &[&str]) -> RunFolder {
    let mut request = Request::new(env);
    request.algo = Some(algo.into());
    let common = [
        "device=cpu",
        "torch_threads=1",
        "mode=serial",
        "asynchronous=false",
    ];
    let all = common.iter().chain(overrides);
    request.overrides = all.map(|pair| (*pair).to_owned()).collect();
    let config = resolve(&request).unwrap();
    let folder = starling::create_folder(&config, root, "run").unwrap();
    let training = starling::engine::Training::start(config, &folder).unwrap();
    let never = std::sync::atomic::AtomicBool::new(false);
    training.run(&never, None, &mut ()).unwrap();
    folder
}

/// With a memory, with rewards as inputs, and without either: the same episode, step for step.
#[test]
fn an_agent_plays_the_episode_of_an_evaluation() {
    let root = tempfile::tempdir().unwrap();
    let lstm: &[&str] = &[
        "steps=2048",
        "algo.net.lstm=16",
        "algo.net.last_action_reward=true",
    ];
    let small: &[&str] = &["steps=1500", "algo.learning_starts_steps=500"];
    for (env, algo, overrides) in [
        ("CartPole-v1", "ppo", &["steps=4096"][..]),
        ("MountainCarContinuous-v0", "ppo", &["steps=4096"]),
        ("CartPoleMasked-v1", "ppo", lstm),
        ("CartPoleMasked-v1", "r2d2", small),
        ("CartPole-v1", "rainbow", small),
    ] {
        let folder = trained(root.path(), env, algo, overrides);
        let config = starling::read_config(&folder, None).unwrap();
        let (latest, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
        let episodes = Episodes {
            count: 17,
            seed: SEED,
            ..Episodes::default()
        };
        let expected = evaluate_checkpoint(&config, &latest, &episodes).unwrap();

        let mut agent = Agent::load(folder.path()).unwrap();
        agent = agent.with_rng(stream(SEED, "eval-policy", 0));
        let spec = config.env_spec().unwrap();
        let mut game = spec.make(&(spec.for_evaluation)(&config.env)).unwrap();
        let mut rng = stream(SEED, "eval", 0);
        let mut seen = Tree::zeros(&game.observation_space().spec(), &[]);
        // The first of sixteen environments plays the first and the last episode.
        for episode in [0, 16] {
            agent.reset();
            game.reset(&mut rng, ObsMut::at(&mut seen, &[])).unwrap();
            let (mut sum, mut steps) = (0.0, 0.0);
            loop {
                let action = agent.act(&seen).unwrap();
                let mut next = seen.clone();
                let step = game
                    .step(action, &mut rng, ObsMut::at(&mut next, &[]))
                    .unwrap();
                seen = next;
                agent.rewarded(step.reward);
                sum += f64::from(step.reward);
                steps += 1.0;
                if step.done() {
                    break;
                }
            }
            let what = format!("episode {episode} of {algo} on {env}");
            assert_eq!(expected.lengths[episode], steps, "{what}");
            let expected = expected.returns[episode];
            assert!(
                (expected - sum).abs() < 1e-4 * (1.0 + sum.abs()),
                "{what}: {expected}, {sum}"
            );
        }
    }
}

/// Observations that do not fit are refused in words.
#[test]
fn a_wrong_observation_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = trained(root.path(), "CartPole-v1", "ppo", &["steps=512"]);
    let mut agent = Agent::load_best(folder.path()).unwrap();
    agent.act(&[0.0, 0.1, 0.0, 0.1]).unwrap();
    let short = agent.act(&[0.0, 0.1]).unwrap_err().to_string();
    assert!(short.contains("it has 2 numbers, 4 are needed"), "{short}");
    let bytes = agent.act(&[0u8; 4][..]).unwrap_err().to_string();
    assert!(bytes.contains("F32 is needed"), "{bytes}");
    agent.act(&[0.0, 0.1, 0.0, 0.1]).unwrap();
}
