//! `--listen`: a learner whose actors are other processes.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::cluster::{ClusterError, Gateway, Identity, JoinFile, Options};
use crate::engine::link::Terms;
use crate::engine::{EvalBy, OnActorLoss};
use crate::record::RunFolder;
use crate::{RunConfig, Training};

use super::{Usage, caller, signals};

/// What `starling actor` reads, in the run's folder.
pub(super) const JOIN_FILE: &str = "join.json";
/// The certificate's key.
const KEY_FILE: &str = "join.key";

/// Secrets that do not belong on a command line: the password of a Redis server, and a file with the
/// certificate of the authority that signed its own.
const REDIS_PASSWORD: &str = "STARLING_REDIS_PASSWORD";
const REDIS_CA: &str = "STARLING_REDIS_CA";

/// The port of a Redis server that names none.
const REDIS_PORT: u16 = 6379;

/// Losses of remote actors that a run survives.
const MOST_LOSSES: u64 = 1_000_000;

#[derive(clap::Args)]
#[command(next_help_heading = "Actors in other processes")]
pub(super) struct Listen {
    /// Listen for actors that join with `starling actor`, and collect nothing in this process:
    /// 127.0.0.1:0 (this machine, any port), 0.0.0.0:7777 (any machine), or redis://HOST:PORT[/DB] or
    /// rediss://… to communicate through a Redis or Valkey server (STARLING_REDIS_PASSWORD has its
    /// password, STARLING_REDIS_CA the path of a private CA's certificate)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Host name or address for the join file, under which actors reach this machine or the Redis
    /// server; with a port if that differs, too
    #[arg(long, value_name = "HOST[:PORT]", requires = "listen")]
    advertise: Option<String>,
    /// Do not encrypt: the token and all experience can be read on the network
    #[arg(long, requires = "listen")]
    insecure: bool,
    /// Seconds after which an actor without a connection loses its place
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0, value_parser = seconds, requires = "listen")]
    lease_seconds: f64,
    /// Also write a copy of the join file to this path
    #[arg(long, value_name = "FILE", requires = "listen")]
    join_file: Option<PathBuf>,
    /// Folder with a join.json and its join.key to use instead of creating a token and a certificate,
    /// such as a mounted secret
    #[arg(long, value_name = "DIR")]
    identity: Option<PathBuf>,
    /// Print join files on standard output, and stop when standard input ends or nothing was read from
    /// it for so long; for `starling launch`
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = signals::heartbeat_timeout)]
    launched: Option<Duration>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("allowed: 0.1 to 86400".into()),
    }
}

impl Listen {
    /// For a learner without remote actors.
    pub(super) fn none() -> Self {
        Self {
            listen: None,
            advertise: None,
            insecure: false,
            lease_seconds: 15.0,
            join_file: None,
            identity: None,
            launched: None,
        }
    }

    /// Stops the run when the launcher that started it is gone.
    pub(super) fn obey(&self, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
        match self.launched {
            Some(limit) => signals::end_with_launcher(stop, limit),
            None => Ok(()),
        }
    }

    /// Settings that a learner with remote actors needs, unless the user sets them. Remote actors come
    /// and go, so their losses do not end the run.
    pub(super) fn overrides(&self) -> Vec<String> {
        let losses = format!("max_actor_losses={MOST_LOSSES}");
        match self.listen {
            Some(_) => vec![
                "mode=threads".into(),
                "on_actor_loss=continue".into(),
                losses,
            ],
            None => Vec::new(),
        }
    }

    /// Whether the run has remote actors.
    pub(super) fn is_given(&self) -> bool {
        self.listen.is_some()
    }

    /// Whether `starling launch` started this process.
    pub(super) fn is_launched(&self) -> bool {
        self.launched.is_some()
    }

    /// The same for another learner of the same machine, which has its own actors: at the next ports, or
    /// at any.
    pub(super) fn arguments_of(&self, rank: usize) -> Vec<String> {
        let Some(listen) = &self.listen else {
            return Vec::new();
        };
        let shifted = |address: &str| match address.rsplit_once(':') {
            Some((host, port)) => match port.parse::<u16>() {
                Ok(port @ 1..) => format!("{host}:{}", usize::from(port) + rank),
                _ => address.to_owned(),
            },
            None => address.to_owned(),
        };
        let redis = listen.contains("://");
        let mut arguments = vec!["--listen".to_owned()];
        arguments.push(if redis {
            listen.clone()
        } else {
            shifted(listen)
        });
        if let Some(host) = &self.advertise {
            let bare = host.parse::<std::net::Ipv6Addr>().is_ok();
            let host = if redis || bare {
                host.clone()
            } else {
                shifted(host)
            };
            arguments.extend(["--advertise".to_owned(), host]);
        }
        if self.insecure {
            arguments.push("--insecure".into());
        }
        arguments.push(format!("--lease-seconds={}", self.lease_seconds));
        if let Some(folder) = &self.identity {
            arguments.extend(["--identity".to_owned(), folder.display().to_string()]);
        }
        if let Some(copy) = &self.join_file {
            let copy = format!("{}.{rank}", copy.display());
            arguments.extend(["--join-file".to_owned(), copy]);
        }
        arguments
    }

    /// The token and certificate that were given, such as a mounted secret.
    pub(super) fn identity(&self) -> anyhow::Result<Option<Identity>> {
        let Some(folder) = &self.identity else {
            return Ok(None);
        };
        let (join, key) = (folder.join(JOIN_FILE), folder.join(KEY_FILE));
        let missing = || Usage(format!("there is no {}", join.display()));
        Ok(Some(Identity::read(&join, &key)?.ok_or_else(missing)?))
    }

    /// The same for a resumed run that had no remote actors before.
    pub(super) fn adapt(&self, config: &mut RunConfig, folder: &RunFolder) {
        if self.listen.is_some() && !folder.path().join(JOIN_FILE).exists() {
            config.settings.on_actor_loss = OnActorLoss::Continue;
            config.settings.max_actor_losses = MOST_LOSSES;
        }
    }

    /// Lets actors elsewhere join a run. `say` tells the user how. The gateway is kept until the run
    /// has ended, so that actors hear of it.
    pub(super) fn open(
        &self,
        training: Training,
        folder: &RunFolder,
        say: impl Fn(&str),
    ) -> anyhow::Result<(Training, Option<Gateway>)> {
        let Some(listen) = &self.listen else {
            let eval = &training.config().settings.eval;
            if eval.by == EvalBy::Evaluators && eval.every_steps > 0 {
                let text = "eval.by=evaluators needs --listen, where evaluators join (or set \
                            eval.by=process)";
                return Err(Usage(text.into()).into());
            }
            return Ok((training, None));
        };
        let join = folder.path().join(JOIN_FILE);
        let terms = training.terms()?;
        let places = terms.places.len();
        let settings = training.config().to_value();
        let (gateway, address) = match listen.contains("://") {
            true => self.meet(listen, &join, terms, &settings)?,
            false => self.listen(listen, &join, terms, &settings)?,
        };
        if self.insecure {
            let text = format!(
                "nothing between this learner and its actors at {address} is encrypted (--insecure)"
            );
            tracing::warn!("{text}");
            say(&format!("warning: {text}"));
        }
        tracing::info!("actors join at {address} ({})", join.display());
        say(&format!(
            "waiting for actors at {address}, {places} places; start some with:"
        ));
        say(&format!(
            "  {} actor --join {}",
            caller::name(),
            caller::path(&join)
        ));
        let file = JoinFile::read(&join)?;
        if let Some(copy) = &self.join_file {
            file.write(copy)?;
        }
        if self.launched.is_some() {
            let run = folder.path().display().to_string();
            say!("{}", serde_json::json!({"run": run, "join": file}));
        }
        let training = training.with_link(Box::new(gateway.clone()))?;
        Ok((training, Some(gateway)))
    }

    fn options(&self) -> Options {
        Options {
            lease: Duration::from_secs_f64(self.lease_seconds),
            ..Options::default()
        }
    }

    /// Over gRPC: the gateway, and the address as actors reach it.
    fn listen(
        &self,
        listen: &str,
        join: &Path,
        terms: Terms,
        settings: &Value,
    ) -> anyhow::Result<(Gateway, String)> {
        let key = join.with_file_name(KEY_FILE);
        let given = self.identity()?;
        let before = Identity::read(join, &key)?;
        let identity = match given.or(before) {
            // Actors that joined an earlier start of the run can continue.
            Some(identity) if identity.is_encrypted() != self.insecure => identity,
            _ => Identity::new(!self.insecure)?,
        };
        let listener = bind(listen, join)?;
        let at = listener.local_addr()?;
        let options = self.options();
        let gateway = Gateway::listen(terms, settings, listener, identity.clone(), options)?;
        let host = self.advertise.clone().unwrap_or_else(|| reachable(at));
        let address = with_port(&host, at.port());
        identity.write(address.clone(), join, &key)?;
        Ok((gateway, address))
    }

    /// Over Redis: the gateway, and the address of the server as actors reach it.
    fn meet(
        &self,
        server: &str,
        join: &Path,
        terms: Terms,
        settings: &Value,
    ) -> anyhow::Result<(Gateway, String)> {
        let before = JoinFile::read(join).ok();
        let authority = match std::env::var_os(REDIS_CA) {
            Some(path) => {
                let read = std::fs::read_to_string(&path);
                Some(read.with_context(|| format!("cannot read {} ({REDIS_CA})", path.display()))?)
            }
            None => None,
        };
        let password = std::env::var(REDIS_PASSWORD).ok();
        let file = JoinFile::over_redis(server.to_owned(), password, authority, before.as_ref())?;
        if !file.is_encrypted() && !self.insecure && !file.is_near() {
            let text = format!(
                "{server} is not encrypted and on another machine: use rediss://, or --insecure"
            );
            return Err(Usage(text).into());
        }
        let gateway = Gateway::over_redis(terms, settings, &file, self.options())?;
        let address = match &self.advertise {
            Some(host) => advertised(server, host),
            None => server.to_owned(),
        };
        let file = JoinFile {
            address: address.clone(),
            ..file
        };
        file.write(join)?;
        Ok((gateway, address))
    }
}

/// The address of a server with another host, and another port where that is given.
fn advertised(server: &str, host: &str) -> String {
    let (scheme, rest) = server.split_once("://").unwrap_or(("redis", server));
    let (place, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (user, place) = match place.rsplit_once('@') {
        Some((user, place)) => (format!("{user}@"), place),
        None => (String::new(), place),
    };
    let port = place
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    let host = with_port(host, port.unwrap_or(REDIS_PORT));
    format!("{scheme}://{user}{host}{path}")
}

/// The socket. Where any port will do, it is that of the start before, if there was one.
pub(super) fn bind(listen: &str, join: &Path) -> Result<TcpListener, ClusterError> {
    let failed = |reason: String| ClusterError::Listen {
        address: listen.to_owned(),
        reason,
    };
    let mut found = listen
        .to_socket_addrs()
        .map_err(|error| failed(error.to_string()))?;
    let mut address = found
        .next()
        .ok_or_else(|| failed("there is no such host".into()))?;
    if address.port() == 0
        && let Ok(before) = JoinFile::read(join)
        && let Some((_, port)) = before.address.rsplit_once(':')
        && let Ok(port) = port.parse()
    {
        address.set_port(port);
        if let Ok(listener) = TcpListener::bind(address) {
            return Ok(listener);
        }
        address.set_port(0);
    }
    TcpListener::bind(address).map_err(|error| failed(error.to_string()))
}

/// An address with this port, unless it has one.
pub(super) fn with_port(host: &str, port: u16) -> String {
    // An IPv6 address has colons too; with a port it has brackets.
    let bare = host.parse::<std::net::Ipv6Addr>().is_ok();
    let given = host.rsplit_once(':').filter(|_| !bare);
    match given {
        Some((_, given)) if given.parse::<u16>().is_ok() => host.to_owned(),
        _ if bare => format!("[{host}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

/// An address of this machine as others reach it. Nothing is sent to find it.
pub(super) fn reachable(at: SocketAddr) -> String {
    if !at.ip().is_unspecified() {
        return at.ip().to_string();
    }
    let outward = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    match outward {
        Ok(address) => address.ip().to_string(),
        Err(_) => "127.0.0.1".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learners of one machine listen at ports of their own.
    #[test]
    fn other_learners_listen_elsewhere() {
        let of = |listen: &str, advertise: Option<&str>| {
            let listen = Listen {
                listen: Some(listen.into()),
                advertise: advertise.map(str::to_owned),
                insecure: false,
                lease_seconds: 2.0,
                join_file: Some("join".into()),
                identity: None,
                launched: None,
            };
            listen.arguments_of(2).join(" ")
        };
        let rest = "--lease-seconds=2 --join-file join.2";
        for (listen, advertise, expected) in [
            ("127.0.0.1:0", None, "127.0.0.1:0"),
            (
                "0.0.0.0:7777",
                Some("gpu1"),
                "0.0.0.0:7779 --advertise gpu1",
            ),
            (
                "[::]:7777",
                Some("gpu1:80"),
                "[::]:7779 --advertise gpu1:82",
            ),
            (
                "redis://a:6379",
                Some("b:1"),
                "redis://a:6379 --advertise b:1",
            ),
        ] {
            assert_eq!(of(listen, advertise), format!("--listen {expected} {rest}"));
        }
    }

    #[test]
    fn an_advertised_address_may_have_a_port() {
        for (given, expected) in [
            ("gpu1", "gpu1:7777"),
            ("gpu1:9", "gpu1:9"),
            ("10.0.0.5", "10.0.0.5:7777"),
            ("10.0.0.5:80", "10.0.0.5:80"),
            ("fe80::1", "[fe80::1]:7777"),
            ("[fe80::1]", "[fe80::1]:7777"),
            ("[fe80::1]:80", "[fe80::1]:80"),
        ] {
            assert_eq!(with_port(given, 7777), expected);
        }
        for (server, host, expected) in [
            ("redis://10.0.0.5", "redis1", "redis://redis1:6379"),
            (
                "rediss://me@10.0.0.5:9/2",
                "redis1",
                "rediss://me@redis1:9/2",
            ),
            ("redis://[fe80::1]:7/2", "redis1:8", "redis://redis1:8/2"),
        ] {
            assert_eq!(advertised(server, host), expected);
        }
    }
}
