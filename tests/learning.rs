//! Agents learn: every algorithm on a task it must solve, in minutes at most.
//!
//! Thresholds hold for the seeds below with room to spare; what several seeds reached is in the
//! book's chapter of results.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use starling::engine::Evaluation;
use starling::settings::{Request, resolve};
use starling::{Outcome, Reason, Status, Watcher};

fn train(env: &str, algo: &str, overrides: &[&str]) -> Outcome {
    let mut request = Request::new(env);
    request.algo = Some(algo.to_owned());
    request.overrides = overrides.iter().map(|pair| pair.to_string()).collect();
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();
    starling::train(config, root.path(), "test", &mut ()).unwrap()
}

/// The preset ends a run as soon as the mean return of 100 episodes is 475.
fn solves_cartpole(algo: &str) {
    let outcome = train("CartPole-v1", algo, &[]);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
    assert!(outcome.status.mean_return.unwrap() >= 475.0);
}

#[test]
fn ppo_solves_cartpole() {
    solves_cartpole("ppo");
}

#[test]
fn a2c_solves_cartpole() {
    solves_cartpole("a2c");
}

/// Their presets collect asynchronously.
#[test]
fn impala_solves_cartpole() {
    solves_cartpole("impala");
}

#[test]
fn appo_solves_cartpole() {
    solves_cartpole("appo");
}

#[test]
fn pqn_solves_cartpole() {
    solves_cartpole("pqn");
}

/// A network that was defined in Python (examples/torchscript/export.py).
#[test]
fn ppo_solves_cartpole_with_a_network_from_torchscript() {
    let file = concat!(
        "algo.net.torchscript=",
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/torchscript/cartpole.pt"
    );
    let outcome = train("CartPole-v1", "ppo", &["algo.net.hidden=null", file]);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

#[test]
fn dqn_solves_cartpole() {
    solves_cartpole("dqn");
}

#[test]
fn c51_solves_cartpole() {
    solves_cartpole("c51");
}

#[test]
fn qr_dqn_solves_cartpole() {
    solves_cartpole("qr-dqn");
}

#[test]
fn iqn_solves_cartpole() {
    solves_cartpole("iqn");
}

#[test]
fn rainbow_solves_cartpole() {
    solves_cartpole("rainbow");
}

#[test]
fn epsilon_rainbow_solves_cartpole() {
    solves_cartpole("epsilon-rainbow");
}

/// Learns within 40,000 steps in one thread, where a seed always gives the same run. A random agent
/// scores 22, and the rungs of Ape-X's ladder less than a greedy agent would.
fn learns_cartpole(algo: &str) {
    let overrides = [
        "mode=serial",
        "asynchronous=false",
        "steps=40000",
        "stop_at_return=100",
        "eval.every_steps=0",
    ];
    let outcome = train("CartPole-v1", algo, &overrides);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

#[test]
fn rainbow_iqn_learns_cartpole() {
    learns_cartpole("rainbow-iqn");
}

#[test]
fn apex_dqn_learns_cartpole() {
    learns_cartpole("apex-dqn");
}

#[test]
fn apex_rainbow_learns_cartpole() {
    learns_cartpole("apex-rainbow");
}

#[test]
fn apex_rainbow_iqn_learns_cartpole() {
    learns_cartpole("apex-rainbow-iqn");
}

#[test]
fn ngu_learns_cartpole() {
    learns_cartpole("ngu");
}

/// Who does not remember the sign cannot do better than 0 on average.
#[test]
fn r2d2_solves_the_t_maze() {
    let outcome = train("TMaze-v0", "r2d2", &[]);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

#[test]
fn dqn_cannot_solve_the_t_maze() {
    let outcome = train("TMaze-v0", "dqn", &["steps=50000"]);
    let mean = outcome.status.mean_return.unwrap();
    assert!(mean < 0.5, "{mean}");
}

/// The asynchronous half of the engine: actors on threads, replay, rate limiter.
#[test]
fn dqn_solves_cartpole_with_asynchronous_actors() {
    let overrides = ["mode=threads", "threads=2", "asynchronous=true"];
    let outcome = train("CartPole-v1", "dqn", &overrides);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

#[test]
fn ppo_solves_cartpole_with_asynchronous_actors() {
    let overrides = ["mode=threads", "threads=2", "asynchronous=true"];
    let outcome = train("CartPole-v1", "ppo", &overrides);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

/// A network with memory learns too, from whole sequences; a random agent scores 22.
#[test]
fn recurrent_ppo_learns_cartpole() {
    let overrides = [
        "algo.net.lstm=32",
        "algo.minibatches=4",
        "stop_at_return=200",
    ];
    let outcome = train("CartPole-v1", "ppo", &overrides);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

/// A random agent scores 0.5.
#[test]
fn ppo_learns_breakout_of_minatar() {
    let outcome = train("MinAtar/Breakout-v1", "ppo", &["steps=150000"]);
    let mean = outcome.status.mean_return.unwrap();
    assert!(mean >= 4.0, "{mean}");
}

#[test]
fn dqn_learns_breakout_of_minatar() {
    let overrides = ["steps=100000", "algo.epsilon_decay_steps=50000"];
    let outcome = train("MinAtar/Breakout-v1", "dqn", &overrides);
    let mean = outcome.status.mean_return.unwrap();
    assert!(mean >= 4.0, "{mean}");
}

/// An agent that saves fuel and never reaches the top scores 0; Gymnasium's threshold is 90.
#[test]
fn ppo_solves_the_continuous_mountain_car() {
    let overrides = ["stop_at_return=90"];
    let outcome = train("MountainCarContinuous-v0", "ppo", &overrides);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

#[test]
fn recurrent_ppo_solves_the_t_maze() {
    let outcome = train("TMaze-v0", "ppo", &[]);
    assert_eq!(outcome.reason, Reason::Solved, "{:?}", outcome.status);
}

/// Remembers the mean return of the last evaluation.
#[derive(Default)]
struct LastEvaluation(Option<f64>);

impl Watcher for LastEvaluation {
    fn evaluated(&mut self, _: &Status, evaluation: &Evaluation) {
        self.0 = Some(evaluation.mean());
    }
}

/// Who does nothing or acts at random scores about −1,200, a good agent about −150.
fn swings_the_pendulum_up(algo: &str) {
    let mut request = Request::new("Pendulum-v1");
    request.algo = Some(algo.to_owned());
    let overrides = [
        "steps=8000",
        "eval.every_steps=8000",
        "eval.episodes=20",
        "algo.batch_size=128",
    ];
    request.overrides = overrides.map(str::to_owned).to_vec();
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();
    let mut last = LastEvaluation::default();
    starling::train(config, root.path(), "test", &mut last).unwrap();
    let mean = last.0.unwrap();
    assert!(mean > -400.0, "{algo}: {mean}");
}

#[test]
fn sac_swings_the_pendulum_up() {
    swings_the_pendulum_up("sac");
}

#[test]
fn crossq_swings_the_pendulum_up() {
    swings_the_pendulum_up("crossq");
}

#[test]
fn td3_swings_the_pendulum_up() {
    swings_the_pendulum_up("td3");
}

#[test]
fn ddpg_swings_the_pendulum_up() {
    swings_the_pendulum_up("ddpg");
}

/// Remembers the mean return of each trajectory of the last evaluation's trials.
#[derive(Default)]
struct LastTrials(Vec<(String, f64)>);

impl Watcher for LastTrials {
    fn evaluated(&mut self, _: &Status, evaluation: &Evaluation) {
        let mean = |returns: &[f64]| returns.iter().sum::<f64>() / returns.len() as f64;
        let means = evaluation.by_trajectory.iter();
        self.0 = means.map(|(name, all)| (name.clone(), mean(all))).collect();
    }
}

/// Goals that it has not been trained on, and does not see. Who does nothing has about −18; with the
/// goal in the observation it is −5.5.
#[test]
fn pearl_adapts_to_a_new_goal() {
    let mut request = Request::new("PointRobot-v0");
    let overrides = [
        "steps=40000",
        "envs=40",
        "env.train_tasks=40",
        "env.eval_tasks=20",
        "eval.every_steps=40000",
        "eval.episodes=60",
        "algo.meta_batch=8",
        "algo.batch_size=64",
        "algo.context_batch=32",
        "algo.hidden=[64, 64]",
        "algo.encoder_hidden=[64, 64]",
        "algo.learning_starts_steps=4000",
        "algo.updates_per_step=0.25",
        "algo.prior_steps=40",
        "algo.extra_steps=40",
        "algo.learning_rate=0.001",
        "algo.gamma=0.9",
        "algo.target_tau=0.01",
        "algo.reward_scale=20",
    ];
    request.overrides = overrides.map(str::to_owned).to_vec();
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();
    let mut last = LastTrials::default();
    starling::train(config, root.path(), "test", &mut last).unwrap();
    let mean = |name: &str| {
        let found = last.0.iter().find(|(known, _)| known == name);
        found.unwrap().1
    };
    let (first, third) = (mean("Trajectory1"), mean("Trajectory3"));
    assert!(third > -14.5, "{:?}", last.0);
    assert!(third > first + 2.0, "{:?}", last.0);
    assert!(third > mean("Prior") + 2.0, "{:?}", last.0);
}
