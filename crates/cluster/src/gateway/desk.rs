//! The learner's side of the protocol: passes the requests of actors to the ledger, and returns its
//! replies. The same for every transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use starling_engine::Evaluation;
use starling_engine::link::ledger::{self, Claim, Claimed, Ledger, Taken};
use starling_engine::link::{LearnerLink as _, LeaseId, Terms, Wanted, wire};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::Options;
use crate::protocol::{
    self, Ack, Ask, Follow, Hello, LONGEST_POLL, PROTOCOL, Report, Role, State, Told, VERSION,
    Welcome,
};

/// A single wait for room in the queue.
const SLICE: Duration = Duration::from_millis(100);

/// What all connections share.
pub(crate) struct Desk {
    pub(crate) ledger: Ledger,
    pub(crate) options: Options,
    settings: String,
    closed: watch::Sender<bool>,
    /// Whether actors can reach the learner, as far as that is known.
    reachable: AtomicBool,
    /// Whether the run goes on without this link.
    pub(super) stays: AtomicBool,
}

impl Desk {
    pub(super) fn new(terms: Terms, settings: &Value, options: Options) -> Self {
        Self {
            ledger: Ledger::new(terms),
            options,
            settings: settings.to_string(),
            closed: watch::Sender::new(false),
            reachable: AtomicBool::new(true),
            stays: AtomicBool::new(false),
        }
    }

    pub(super) fn close(&self) {
        if self.stays.load(Ordering::Relaxed) {
            return;
        }
        // In this order, so that threads that wake up find the run closed.
        self.ledger.close();
        if let Some(evaluations) = &self.ledger.terms().evaluations {
            evaluations.close();
        }
        self.closed.send_replace(true);
    }

    /// Sets whether actors can reach the learner. Those that could not get time to reconnect.
    pub(super) fn set_reachable(&self, reachable: bool) {
        if reachable {
            self.ledger.renew();
        }
        self.reachable.store(reachable, Ordering::Relaxed);
    }

    pub(super) fn is_reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    /// Tells when the run has ended.
    pub(super) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Leases a place, or says that none is free, or why not.
    pub(super) fn hello(&self, hello: Hello) -> Result<Welcome, String> {
        let frames = u32::from(wire::PROTOCOL);
        let same = (hello.protocol, hello.frames) == (PROTOCOL, frames);
        if !same || !is_same_version(&hello.version, VERSION) {
            return Err(format!(
                "the learner runs Starling {VERSION} (protocol {PROTOCOL}.{frames}), this process \
                 Starling {} (protocol {}.{}): use the same version on both sides",
                hello.version, hello.protocol, hello.frames
            ));
        }
        if hello.role() == Role::Evaluator {
            let Some(evaluations) = &self.ledger.terms().evaluations else {
                return Err("this run evaluates in its own process (see eval.by and \
                            eval.every_steps)"
                    .into());
            };
            return Ok(Welcome {
                settings: self.settings.clone(),
                parameters: self.ledger.terms().publications.weights as u64,
                lease: None,
                closed: evaluations.is_closed(),
            });
        }
        if self.ledger.terms().places.is_empty() {
            return Err(
                "the actors of this run are threads of its own process (see --listen)".into(),
            );
        }
        let claimed = self.ledger.join(Claim {
            session: hello.session.to_vec(),
            seat: hello.seat,
            attempt: hello.attempt,
            name: hello.name,
        })?;
        let lease = match claimed {
            Claimed::Place(lease) => Some(lease.into()),
            Claimed::Spare | Claimed::Closed => None,
        };
        Ok(Welcome {
            settings: self.settings.clone(),
            parameters: self.ledger.terms().publications.weights as u64,
            lease,
            closed: claimed == Claimed::Closed,
        })
    }

    /// A new connection to a lease, or the answer that there is no such lease.
    pub(super) fn open(&self, lease: LeaseId) -> Result<u64, Ack> {
        let ended = || Ack {
            next: 0,
            state: match self.ledger.is_closed() {
                true => State::Closed.into(),
                false => State::Ended.into(),
            },
        };
        self.ledger.open(lease).ok_or_else(ended)
    }

    /// The reply to the actor of a connection.
    pub(super) fn ack(&self, lease: LeaseId, connection: u64) -> Ack {
        let (next, state) = self.ledger.standing(lease, connection);
        Ack {
            next,
            state: State::from(state).into(),
        }
    }

    /// Passes a parcel on; waits until there is room for it. Returns false when the connection has to
    /// end.
    pub(super) fn take(&self, lease: LeaseId, connection: u64, parcel: &protocol::Parcel) -> bool {
        loop {
            let (number, frame) = (parcel.number, &parcel.frame);
            match self.ledger.take(lease, connection, number, frame, SLICE) {
                Taken::Yes => return true,
                Taken::No => return false,
                Taken::Full => {}
            }
        }
    }

    /// The answer to a question for weights, and the frame that follows.
    pub(super) fn weights(&self, ask: &Ask) -> (Told, Bytes) {
        let wanted = ask.exactly.map_or(Wanted::Latest, Wanted::Exactly);
        let limit = Duration::from_millis(ask.patience_ms).min(LONGEST_POLL);
        let (state, found) = self.ledger.weights(ask.lease.into(), wanted, limit);
        let state = State::from(state).into();
        let Some(publication) = found else {
            let told = Told {
                state,
                ..Told::default()
            };
            return (told, Bytes::new());
        };
        let version = publication.weights.version;
        let frame = match ask.have.contains(&version) {
            true => Bytes::new(),
            false => Bytes::from_owner(self.ledger.encoded(&publication)),
        };
        let told = Told {
            state,
            found: true,
            version,
            env_steps: publication.control.env_steps,
            bytes: frame.len() as u64,
        };
        (told, frame)
    }
}

impl Desk {
    /// Weights for an evaluator, and the frame that follows; or whether those that it has are wanted.
    pub(super) fn follow(&self, ask: &Follow) -> (Told, Bytes) {
        let told = |state: State, found| Told {
            state: state.into(),
            found,
            ..Told::default()
        };
        let Some(evaluations) = &self.ledger.terms().evaluations else {
            return (told(State::Ended, false), Bytes::new());
        };
        if ask.goodbye {
            evaluations.forget(&ask.session);
            return (told(State::Open, false), Bytes::new());
        }
        let (who, name) = (&ask.session, &ask.name);
        let (wanted, claimed) = match ask.holding {
            Some(step) => (evaluations.renew(who, name, step), None),
            None => {
                let limit = Duration::from_millis(ask.patience_ms).min(LONGEST_POLL);
                (false, evaluations.claim(who, name, limit))
            }
        };
        if evaluations.is_closed() {
            evaluations.forget(who);
            return (told(State::Closed, false), Bytes::new());
        }
        let Some(publication) = claimed else {
            return (told(State::Open, wanted), Bytes::new());
        };
        let mut frame = Vec::new();
        wire::write_publication(&publication, &mut frame);
        let told = Told {
            version: publication.weights.version,
            env_steps: publication.control.env_steps,
            bytes: frame.len() as u64,
            ..told(State::Open, true)
        };
        (told, frame.into())
    }

    /// Takes the result of an evaluator: whether it was accepted, or why it is invalid.
    pub(super) fn report(&self, report: Report) -> Result<Told, String> {
        let Some(evaluations) = &self.ledger.terms().evaluations else {
            return Err("this run evaluates in its own process".into());
        };
        let episodes = report.returns.len();
        let of_trials = report.by_trajectory.iter();
        let of_trials = of_trials.flat_map(|trajectory| &trajectory.returns);
        let numbers = report.returns.iter().chain(&report.lengths);
        let numbers = numbers.chain(of_trials);
        let sound = episodes > 0
            && report.lengths.len() == episodes
            && report.cut_off <= episodes as u64
            && numbers.into_iter().all(|number| number.is_finite());
        if !sound {
            self.ledger.refuse();
            return Err("this is not the result of an evaluation".into());
        }
        let evaluation = Evaluation {
            returns: report.returns,
            lengths: report.lengths,
            returns_at: Vec::new(),
            cut_off: report.cut_off as usize,
            by_trajectory: {
                let all = report.by_trajectory.into_iter();
                all.map(|trajectory| (trajectory.name, trajectory.returns))
                    .collect()
            },
        };
        let (step, version) = (report.env_steps, report.version);
        let found = evaluations.report(&report.session, step, version, evaluation);
        let state = match evaluations.is_closed() {
            true => State::Closed,
            false => State::Open,
        };
        Ok(Told {
            state: state.into(),
            found,
            ..Told::default()
        })
    }

    /// Whether there are processes that do not know yet that the run has ended.
    pub(super) fn anybody(&self) -> bool {
        let evaluations = self.ledger.terms().evaluations.as_ref();
        self.ledger.anybody()
            || evaluations.is_some_and(|evaluations| !evaluations.evaluators().is_empty())
    }
}

/// Whether two versions are the same. Where only one of them names a commit, that is not compared.
pub(crate) fn is_same_version(one: &str, other: &str) -> bool {
    match (one.split_once('+'), other.split_once('+')) {
        (Some(_), Some(_)) | (None, None) => one == other,
        (Some((one, _)), None) => one == other,
        (None, Some((other, _))) => one == other,
    }
}

impl From<ledger::State> for State {
    fn from(state: ledger::State) -> Self {
        match state {
            ledger::State::Open => Self::Open,
            ledger::State::Busy => Self::Busy,
            ledger::State::Ended => Self::Ended,
            ledger::State::Closed => Self::Closed,
        }
    }
}

/// Ends the leases of actors that do not reconnect.
pub(super) async fn expire(desk: Arc<Desk>) {
    let lease = desk.options.lease;
    let mut tick = tokio::time::interval((lease / 10).max(Duration::from_millis(10)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !desk.ledger.is_closed() {
        tick.tick().await;
        if desk.is_reachable() {
            desk.ledger.expire(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use starling_engine::link::conformance;

    use super::*;

    #[test]
    fn commits_are_compared_where_both_are_known() {
        for (one, other, same) in [
            ("0.1.0", "0.1.0", true),
            ("0.1.0", "0.2.0", false),
            ("0.1.0+a", "0.1.0+a", true),
            ("0.1.0+a", "0.1.0+b", false),
            ("0.1.0+a", "0.1.0", true),
            ("0.1.0", "0.1.0+b", true),
            ("0.2.0", "0.1.0+b", false),
        ] {
            assert_eq!(is_same_version(one, other), same, "{one} {other}");
        }
    }

    #[test]
    fn other_versions_are_refused_by_name() {
        let desk = Desk::new(conformance::terms(), &Value::Null, Options::default());
        let hello = || Hello {
            protocol: PROTOCOL,
            frames: wire::PROTOCOL.into(),
            version: VERSION.into(),
            ..Hello::default()
        };
        for other in [
            Hello {
                version: "9.9.9".into(),
                ..hello()
            },
            Hello {
                protocol: PROTOCOL + 7,
                ..hello()
            },
            Hello {
                frames: 77,
                ..hello()
            },
        ] {
            let named = format!(
                "{} (protocol {}.{})",
                other.version, other.protocol, other.frames
            );
            let message = desk.hello(other).unwrap_err();
            assert!(
                message.contains(&named) && message.contains(VERSION),
                "{message}"
            );
        }
        assert_eq!(desk.ledger.terms().places.held(), 0);
        assert!(desk.hello(hello()).unwrap().lease.is_some());
    }
}
