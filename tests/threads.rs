//! Actors on threads: in lockstep with the learner the result does not depend on timing.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::sync::atomic::AtomicBool;

use starling::Training;
use starling::record::{Table, checkpoint};
use starling::settings::{Request, resolve};

/// Trains with actors on threads; returns the learner's file and the mean returns over the run.
fn train(algo: &str, overrides: &[&str]) -> (Vec<u8>, Vec<f64>) {
    let mut request = Request::new("CartPole-v1");
    request.algo = Some(algo.to_owned());
    request.overrides = vec!["mode=threads".into(), "steps=20000".into(), "envs=6".into()];
    request
        .overrides
        .extend(overrides.iter().map(|pair| pair.to_string()));
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();
    let folder = starling::create_folder(&config, root.path(), "threads").unwrap();
    let training = Training::start(config, &folder).unwrap();
    training
        .run(&AtomicBool::new(false), None, &mut ())
        .unwrap();
    let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert!(damaged.is_empty());
    let table = Table::read(&folder.progress_path()).unwrap();
    let returns = table.column("ReturnAverage").unwrap();
    (latest.read("learner.safetensors").unwrap(), returns)
}

#[test]
fn lockstep_gives_the_same_weights_every_time() {
    for algo in ["ppo", "dqn"] {
        let overrides = ["threads=3", "log_every_steps=5000"];
        assert!(train(algo, &overrides) == train(algo, &overrides), "{algo}");
    }
}

/// With a fixed lag, what is learned depends neither on timing nor on the number of threads.
#[test]
fn a_fixed_lag_gives_the_same_weights_on_any_number_of_threads() {
    let on = |threads: &str| {
        let central = ["mode=central", "asynchronous=true", "fixed_lag=1"];
        train("ppo", &[&central[..], &[threads]].concat()).0
    };
    let one = on("threads=1");
    assert!(one == on("threads=2"));
    assert!(one == on("threads=3"));
    let in_turns = train("ppo", &["mode=central", "threads=2"]).0;
    assert!(one != in_turns, "the lag changes what is learned");
}

/// One batch of inference for all environments, with a replay and with a recurrent policy: in
/// lockstep the result does not depend on how many threads step the environments.
#[test]
fn central_inference_fills_a_replay_and_carries_memory() {
    let on = |algo: &str, threads: &str, own: &[&str]| {
        let central = ["mode=central", "asynchronous=false", "steps=4000", threads];
        train(algo, &[&central[..], own].concat()).0
    };
    let few = ["algo.replay_ratio=1", "algo.batch_size=16"];
    for (algo, own) in [
        ("dqn", &few[..]),
        ("apex-rainbow-iqn", &few[..]),
        ("r2d2", &["algo.replay_ratio=4", "algo.batch_size=8"]),
        ("ppo", &["algo.net.lstm=8"]),
    ] {
        let two = on(algo, "threads=2", own);
        assert!(two == on(algo, "threads=3", own), "{algo}");
    }
}

/// Actors with different numbers of environments do not get each other's buffers.
#[test]
fn environments_need_not_divide_evenly() {
    let uneven = ["envs=7", "threads=2", "steps=8000", "log_every_steps=4000"];
    assert!(train("ppo", &uneven) == train("ppo", &uneven));
    let free = ["envs=7", "threads=3", "steps=8000", "asynchronous=true"];
    let (_, returns) = train("dqn", &free);
    assert!(returns.last().is_some_and(|mean| mean.is_finite()));
}

/// Actors get new weights as often as asked for, and not more often.
#[test]
fn weights_are_published_as_often_as_set() {
    let published = |every: &str| {
        let mut request = Request::new("CartPole-v1");
        request.algo = Some("dqn".to_owned());
        let overrides = ["mode=threads", "asynchronous=true", "steps=6000", every];
        request.overrides = overrides.map(str::to_owned).to_vec();
        let config = resolve(&request).unwrap();
        let root = tempfile::tempdir().unwrap();
        let folder = starling::create_folder(&config, root.path(), "publish").unwrap();
        let training = Training::start(config, &folder).unwrap();
        training
            .run(&AtomicBool::new(false), None, &mut ())
            .unwrap();
        let (latest, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
        let state = latest.read("run.json").unwrap();
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        let number = |key: &str| state[key].as_u64().unwrap();
        (number("version"), number("updates"))
    };
    // A round makes some 30 updates.
    let (versions, updates) = published("publish_every_updates=400");
    assert!(
        versions > 0 && versions * 400 <= updates,
        "{versions} {updates}"
    );
    let (more, _) = published("publish_every_updates=1");
    assert!(more > 3 * versions, "{more} {versions}");
}

/// The lag between acting and learning is measured: none in lockstep, some without.
#[test]
fn asynchronous_actors_lag_and_say_so() {
    let lag = |asynchronous: &str| {
        let mut request = Request::new("CartPole-v1");
        request.overrides = vec![
            "mode=threads".into(),
            "steps=20000".into(),
            format!("asynchronous={asynchronous}"),
        ];
        let config = resolve(&request).unwrap();
        let root = tempfile::tempdir().unwrap();
        let folder = starling::create_folder(&config, root.path(), "lag").unwrap();
        let training = Training::start(config, &folder).unwrap();
        training
            .run(&AtomicBool::new(false), None, &mut ())
            .unwrap();
        let table = Table::read(&folder.progress_path()).unwrap();
        let lags = table.column("charts/policy_lag").unwrap();
        lags.iter().sum::<f64>() / lags.len() as f64
    };
    assert_eq!(lag("false"), 0.0);
    assert!(lag("true") > 0.0);
}

/// Batches that are drawn ahead teach as well as those that are drawn when they are needed, and
/// actors continue with the weights that are published now and then.
#[test]
fn batches_can_be_drawn_ahead() {
    let overrides = [
        "asynchronous=true",
        "prefetch_threads=2",
        "publish_every_updates=5",
        "steps=30000",
        "log_every_steps=5000",
    ];
    let (_, returns) = train("dqn", &overrides);
    let (first, best) = (returns[0], returns.iter().copied().fold(0.0, f64::max));
    assert!(best > 3.0 * first, "{returns:?}");
    let mut request = Request::new("CartPole-v1");
    request.algo = Some("dqn".into());
    request.overrides = vec!["prefetch_threads=2".into()];
    let refused = resolve(&request).unwrap_err().to_string();
    assert!(refused.contains("prefetch_threads"), "{refused}");
}
