//! Actors elsewhere: a second implementation of the link, over TCP, passes the same checks as the
//! one within the process, and a run over it is the same run.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use starling_engine::link::conformance::{self, Rig};
use starling_engine::link::remote::{Gateway, Remote, Stream};
use starling_engine::link::{ActorLink, Event, LearnerLink as _, LinkError, Terms};
use starling_engine::{EngineError, RunConfig, Status, Training, Watcher, serve};
use starling_record::{RunFolder, Table, checkpoint};
use starling_settings::merge;

static NEVER: AtomicBool = AtomicBool::new(false);

#[test]
fn a_link_over_tcp_conforms() {
    conformance::check(|terms| {
        let (gateway, address) = listen(terms, Value::Null);
        Rig {
            learner: Box::new(gateway),
            join: Box::new(move || {
                let welcome = Remote::join(Stream(dial(address))).unwrap()?;
                let link: Arc<dyn ActorLink> = Arc::new(welcome.link);
                Some((welcome.lease, link))
            }),
        }
    })
    .unwrap();
}

/// An actor that sends a parcel of another's lease loses its own place, and the other one keeps its.
#[test]
fn nobody_sends_for_others() {
    let terms = conformance::terms();
    let places = Arc::clone(&terms.places);
    let (gateway, address) = listen(terms, Value::Null);
    let [one, other] = [(); 2].map(|()| Remote::join(Stream(dial(address))).unwrap().unwrap());
    let patience = Duration::from_secs(20);
    let forged = conformance::parcel(&other.lease, 0, 1.0);
    let sent = one.link.send(forged, patience).map(drop);
    assert_eq!(sent, Err(LinkError::LeaseEnded(one.lease.id)));
    let lost = loop {
        match gateway.receive(patience).unwrap() {
            Event::Joined { .. } => {}
            Event::Lost(loss) => break loss,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(lost.leases, [one.lease.id]);
    assert!(lost.reason.contains("of another lease"), "{lost:?}");
    assert!(places.holds(other.lease.id));
    let own = conformance::parcel(&other.lease, 0, 1.0);
    other.link.send(own, patience).unwrap();
    assert!(matches!(gateway.receive(patience), Ok(Event::Parcel(_))));
}

/// A gateway at a free port of this machine.
fn listen(terms: Terms, config: Value) -> (Gateway, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Gateway::new(terms, config);
    gateway.attend_all(move || {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    (gateway, address)
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn config(settings: Value) -> RunConfig {
    let mut tree = json!({
        "env": {"id": "CartPole-v1"},
        "mode": "threads",
        "threads": 2,
        "envs": 6,
        "steps": 6_000,
        "device": "cpu",
        "torch_threads": 1,
        "log_every_steps": 1_000,
    });
    merge(&mut tree, &settings);
    RunConfig::from_value(&tree).unwrap()
}

fn folder(root: &Path, config: &RunConfig) -> RunFolder {
    let (env, algo) = (&config.env_id, &config.algo_name);
    RunFolder::create(root, env, algo, "test", 1, SystemTime::now()).unwrap()
}

/// The learner's file and the table of metrics of a run that has ended.
fn results(folder: &RunFolder) -> (Vec<u8>, Table) {
    let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert!(damaged.is_empty());
    let table = Table::read(&folder.progress_path()).unwrap();
    (latest.read("learner.safetensors").unwrap(), table)
}

/// Trains with actors on threads of the same process.
fn train_locally(config: RunConfig) -> (Vec<u8>, Table) {
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path(), &config);
    let training = Training::start(config, &folder).unwrap();
    training.run(&NEVER, None, &mut ()).unwrap();
    results(&folder)
}

/// A learner without actors, and where actors can join it.
fn open(training: Training) -> (Training, SocketAddr) {
    let config = training.config().to_value();
    let (gateway, address) = listen(training.terms().unwrap(), config);
    (training.with_link(Box::new(gateway)).unwrap(), address)
}

type Actor = JoinHandle<Result<(), EngineError>>;

/// What a process of its own would do that knows nothing but an address; `None` if no place is
/// free. Also returns its connection, which can be broken.
fn connect(address: SocketAddr) -> Option<(Actor, TcpStream)> {
    let stream = dial(address);
    let line = stream.try_clone().unwrap();
    let welcome = Remote::join(Stream(stream)).unwrap()?;
    let config = RunConfig::from_value(&welcome.config).unwrap();
    let link = Arc::new(welcome.link);
    Some((
        std::thread::spawn(move || serve(&config, &welcome.lease, link)),
        line,
    ))
}

/// Trains with actors that are connected by TCP.
fn train_remotely(config: RunConfig) -> (Vec<u8>, Table) {
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path(), &config);
    let (training, address) = open(Training::start(config, &folder).unwrap());
    let actors = [connect(address).unwrap(), connect(address).unwrap()];
    assert!(connect(address).is_none(), "there are two places");
    training.run(&NEVER, None, &mut ()).unwrap();
    for (actor, _) in actors {
        actor.join().unwrap().unwrap();
    }
    results(&folder)
}

/// Where the actors are makes no difference, bit for bit: in lockstep and with a fixed lag, with
/// rollouts and with a replay whose exploration follows the steps of the run.
#[test]
fn a_run_with_actors_elsewhere_is_the_same_run() {
    let ppo = json!({"algo": {"name": "ppo"}});
    let lagging = json!({"algo": {"name": "ppo"}, "asynchronous": true, "fixed_lag": 1});
    let dqn = json!({
        "algo": {"name": "dqn", "learning_starts_steps": 1_000, "batch_size": 16},
    });
    let dqn_lagging = json!({
        "algo": {"name": "dqn", "learning_starts_steps": 1_000, "batch_size": 16},
        "asynchronous": true,
        "fixed_lag": 2,
    });
    for settings in [ppo, lagging, dqn, dqn_lagging] {
        let (here, here_rows) = train_locally(config(settings.clone()));
        let (there, there_rows) = train_remotely(config(settings.clone()));
        assert!(here == there, "{settings}");
        for column in ["ReturnAverage", "losses/loss", "Diagnostics/CumSteps"] {
            let (a, b) = (here_rows.column(column), there_rows.column(column));
            let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            assert_eq!(a.map(bits), b.map(bits), "{column}");
        }
    }
}

/// Asynchronously, from rollouts and from a replay.
#[test]
fn asynchronous_runs_work_with_actors_elsewhere() {
    let impala = json!({"algo": {"name": "impala"}, "asynchronous": true});
    let dqn = json!({
        "algo": {"name": "dqn", "learning_starts_steps": 1_000, "batch_size": 16},
        "asynchronous": true,
    });
    for settings in [impala, dqn] {
        let (_, rows) = train_remotely(config(settings));
        let steps = rows.column("Diagnostics/CumSteps").unwrap();
        assert!(*steps.last().unwrap() >= 6_000.0);
        assert_eq!(
            *rows.column("Diagnostics/Actors").unwrap().last().unwrap(),
            2.0
        );
    }
}

/// Says how far a run is.
struct Steps<'a>(&'a AtomicU64);

impl Watcher for Steps<'_> {
    fn round(&mut self, status: &Status) {
        self.0.store(status.env_steps, Ordering::Relaxed);
    }
}

/// An actor whose connection breaks leaves its place to the next one, in lockstep too; with
/// `on_actor_loss=stop` the run ends.
#[test]
fn actors_come_and_go() {
    for (pace, asynchronous) in [("lockstep", false), ("free", true)] {
        let given = config(json!({
            "algo": {"name": "impala"},
            "asynchronous": asynchronous,
            "steps": 20_000,
            "on_actor_loss": "continue",
            "stall_timeout_s": 60.0,
        }));
        let root = tempfile::tempdir().unwrap();
        let folder = folder(root.path(), &given);
        let (training, address) = open(Training::start(given, &folder).unwrap());
        let (stays, _) = connect(address).unwrap();
        let (goes, line) = connect(address).unwrap();
        let steps = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&steps);
        let relief = std::thread::spawn(move || {
            while seen.load(Ordering::Relaxed) < 3_000 {
                std::thread::sleep(Duration::from_millis(1));
            }
            line.shutdown(Shutdown::Both).unwrap();
            let lost = goes.join().unwrap().unwrap_err();
            assert!(
                matches!(lost, EngineError::Link(LinkError::Lost(_))),
                "{lost}"
            );
            // The place is free as soon as the learner has heard of it.
            loop {
                match connect(address) {
                    Some((next, _)) => break next.join().unwrap(),
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let outcome = training.run(&NEVER, None, &mut Steps(&steps)).unwrap();
        assert!(outcome.status.env_steps >= 20_000, "{pace}");
        stays.join().unwrap().unwrap();
        relief.join().unwrap().unwrap();
        let (_, rows) = results(&folder);
        let last = |column: &str| *rows.column(column).unwrap().last().unwrap();
        assert_eq!(last("Diagnostics/ActorLosses"), 1.0);
        assert_eq!(last("Diagnostics/Actors"), 2.0);
    }
}

#[test]
fn the_loss_of_an_actor_elsewhere_ends_the_run() {
    let given = config(json!({"algo": {"name": "ppo"}, "steps": 1_000_000}));
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path(), &given);
    let (training, address) = open(Training::start(given, &folder).unwrap());
    let (stays, _) = connect(address).unwrap();
    let (goes, line) = connect(address).unwrap();
    let relief = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        line.shutdown(Shutdown::Both).unwrap();
    });
    let error = training.run(&NEVER, None, &mut ()).unwrap_err().to_string();
    assert!(error.contains("the connection ended"), "{error}");
    relief.join().unwrap();
    stays.join().unwrap().unwrap();
    assert!(goes.join().unwrap().is_err());
}

/// A learner that starts again knows nothing of the leases before, also if it has not saved since
/// it granted them.
#[test]
fn leases_do_not_outlive_their_learner() {
    let given = config(json!({"algo": {"name": "ppo"}}));
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path(), &given);
    let training = Training::start(given.clone(), &folder).unwrap();
    let first = training.places().unwrap().epoch();
    training.run(&NEVER, Some(2_000), &mut ()).unwrap();
    let resume = || Training::resume(given.clone(), &folder).unwrap().0;
    let second = resume().places().unwrap().lease().unwrap();
    let places = resume().places().unwrap();
    let third = places.lease().unwrap();
    assert!(first < second.id.epoch && second.id.epoch < third.id.epoch);
    assert!(places.holds(third.id) && !places.holds(second.id));
    assert_eq!(
        third.seed, second.seed,
        "what is drawn follows from the checkpoint"
    );
}
