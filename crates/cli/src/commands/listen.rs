//! `--listen`: a learner whose actors are other processes.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::cluster::{ClusterError, Gateway, Identity, JoinFile, Options};
use crate::engine::OnActorLoss;
use crate::record::RunFolder;
use crate::{RunConfig, Training};

use super::caller;

/// What `starling actor` reads, in the run's folder.
const JOIN_FILE: &str = "join.json";
/// The certificate's key.
const KEY_FILE: &str = "join.key";

/// Losses of remote actors that a run survives.
const MOST_LOSSES: u64 = 1_000_000;

#[derive(clap::Args)]
#[command(next_help_heading = "Actors in other processes")]
pub(super) struct Listen {
    /// Listen for actors that join with `starling actor`, and collect nothing in this process:
    /// 127.0.0.1:0 (this machine, any port), 0.0.0.0:7777 (any machine)
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Name or address of this machine as actors reach it, for the join file
    #[arg(long, value_name = "HOST", requires = "listen")]
    advertise: Option<String>,
    /// Do not encrypt: the token and all experience can be read on the way
    #[arg(long, requires = "listen")]
    insecure: bool,
    /// Seconds that the place of an actor without a connection is kept
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0, value_parser = seconds, requires = "listen")]
    lease_seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("allowed: 0.1 to 86400".into()),
    }
}

impl Listen {
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
            return Ok((training, None));
        };
        let (join, key) = (folder.path().join(JOIN_FILE), folder.path().join(KEY_FILE));
        let before = Identity::read(&join, &key)?;
        let identity = match before {
            // Actors of an earlier start of the run can go on.
            Some(identity) if identity.is_encrypted() != self.insecure => identity,
            _ => Identity::new(!self.insecure)?,
        };
        let listener = bind(listen, &join)?;
        let terms = training.terms()?;
        let places = terms.places.len();
        let options = Options {
            lease: Duration::from_secs_f64(self.lease_seconds),
            ..Options::default()
        };
        let settings = training.config().to_value();
        let gateway = Gateway::listen(terms, &settings, listener, identity.clone(), options)?;
        let at = gateway.address();
        let host = self.advertise.clone().unwrap_or_else(|| reachable(at));
        let host = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host,
        };
        let address = format!("{host}:{}", at.port());
        identity.write(address.clone(), &join, &key)?;
        if self.insecure {
            let text = format!(
                "nothing between this learner and its actors at {at} is encrypted (--insecure)"
            );
            tracing::warn!("{text}");
            say(&format!("warning: {text}"));
        }
        tracing::info!("listening at {at} ({address} in {})", join.display());
        say(&format!(
            "waiting for actors at {address}, {places} places; start some with:"
        ));
        say(&format!(
            "  {} actor --join {}",
            caller::name(),
            caller::path(&join)
        ));
        let training = training.with_link(Box::new(gateway.clone()))?;
        Ok((training, Some(gateway)))
    }
}

/// The socket. Where any port will do, it is that of the start before, if there was one.
fn bind(listen: &str, join: &Path) -> Result<TcpListener, ClusterError> {
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

/// An address of this machine as others reach it. Nothing is sent to find it.
fn reachable(at: SocketAddr) -> String {
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
