//! A link of its own: actors in processes of their own, connected to the learner by a Unix socket.
//!
//! `outside socket-train CartPole-v1 threads=2` is the learner. It starts as many actors as the run has
//! places (with `mode=threads`, one per thread), each as `outside socket-actor <socket>`. What is learned
//! in lockstep equals a run with threads, bit for bit.

use std::env::args;
use std::error::Error;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use starling::engine::link::remote::{Gateway, Remote, Stream, Welcome};
use starling::engine::serve;
use starling::settings::{Request, resolve};
use starling::{RunConfig, Training, create_folder};

/// Does what the command line says, if it is about this link.
pub fn command() -> Option<ExitCode> {
    let args: Vec<String> = args().skip(1).collect();
    let (name, rest) = args.split_first()?;
    let done = match (name.as_str(), rest) {
        ("socket-train", [env, settings @ ..]) => learn(env, settings),
        ("socket-actor", [socket]) => act(Path::new(socket)),
        _ => return None,
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: error: {error}");
            ExitCode::FAILURE
        }
    })
}

/// The learner and its actors.
fn learn(env: &str, settings: &[String]) -> Result<(), Box<dyn Error>> {
    let mut request = Request::new(env);
    request.overrides.push("mode=threads".into());
    request.overrides.extend_from_slice(settings);
    let config = resolve(&request)?;
    let folder = create_folder(&config, Path::new("runs"), "socket")?;
    let training = Training::start(config, &folder)?;
    let terms = training.terms()?;
    let places = terms.places.len();
    let socket = std::env::temp_dir().join(format!("starling-{}.sock", std::process::id()));
    let link = Gateway::new(terms, training.config().to_value());
    listen(&link, &socket)?;
    let training = training.with_link(Box::new(link))?;
    let program = std::env::current_exe()?;
    let start = |_| {
        Command::new(&program)
            .arg("socket-actor")
            .arg(&socket)
            .spawn()
    };
    let mut actors = (0..places).map(start).collect::<Result<Vec<_>, _>>()?;
    let outcome = training.run(&AtomicBool::new(false), None, &mut ());
    // The run has ended, and its actors are told so.
    for actor in &mut actors {
        actor.wait()?;
    }
    std::fs::remove_file(&socket)?;
    let steps = outcome?.status.env_steps;
    println!(
        "{steps} steps by {places} actors: {}",
        folder.path().display()
    );
    Ok(())
}

/// Lets actors connect to a socket.
fn listen(gateway: &Gateway, socket: &Path) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    gateway.attend_all(move || {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    });
    Ok(())
}

/// One actor: needs nothing but the socket.
fn act(socket: &Path) -> Result<(), Box<dyn Error>> {
    let Some(Welcome {
        lease,
        config,
        link,
    }) = join(socket)?
    else {
        return Err("no place is free".into());
    };
    let config = RunConfig::from_value(&config)?;
    Ok(serve(&config, &lease, Arc::new(link))?)
}

fn join(socket: &Path) -> std::io::Result<Option<Welcome>> {
    match UnixStream::connect(socket) {
        Ok(stream) => Remote::join(Stream(stream)),
        // The run has ended.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling::engine::link::conformance::{Rig, check};
    use starling::engine::link::{ActorLink, Terms};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn it_conforms() {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let socket = |number: usize| {
            let name = format!("starling-{}-{number}.sock", std::process::id());
            std::env::temp_dir().join(name)
        };
        let make = |terms: Terms| {
            let socket = socket(NUMBER.fetch_add(1, Ordering::Relaxed));
            let link = Gateway::new(terms, Default::default());
            listen(&link, &socket).unwrap();
            Rig {
                learner: Box::new(link),
                join: Box::new(move || {
                    let welcome = join(&socket).unwrap()?;
                    let link: Arc<dyn ActorLink> = Arc::new(welcome.link);
                    Some((welcome.lease, link))
                }),
            }
        };
        let checked = check(make);
        for number in 0..NUMBER.load(Ordering::Relaxed) {
            std::fs::remove_file(socket(number)).unwrap();
        }
        checked.unwrap();
    }
}
