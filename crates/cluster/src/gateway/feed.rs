//! One connection of an actor to its lease, over whichever transport.

use std::sync::Arc;

use starling_engine::link::{LeaseId, ledger};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::{Stream, StreamExt as _};

use super::desk::Desk;
use crate::protocol::{Ack, HEARTBEAT, Said, State, Upward};

/// Serves a connection until it, the lease or the run ends. `upward` ends with the connection.
pub(super) async fn serve(
    desk: &Arc<Desk>,
    lease: LeaseId,
    mut upward: impl Stream<Item = Upward> + Unpin,
    acks: &mpsc::Sender<Ack>,
) {
    match desk.open(lease) {
        Ok(connection) => {
            converse(desk, lease, connection, &mut upward, acks).await;
            desk.ledger.away(lease, connection);
        }
        Err(ended) => {
            let _ = acks.send(ended).await;
        }
    }
}

async fn converse(
    desk: &Arc<Desk>,
    lease: LeaseId,
    connection: u64,
    upward: &mut (impl Stream<Item = Upward> + Unpin),
    acks: &mpsc::Sender<Ack>,
) {
    let mut closed = desk.closed();
    let mut beat = tokio::time::interval(HEARTBEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if desk.ledger.is_superseded(lease, connection) {
            // The end of the stream. An actor that still uses it connects again.
            return;
        }
        let ack = desk.ack(lease, connection);
        let over = matches!(ack.state(), State::Ended | State::Closed);
        if acks.send(ack).await.is_err() || over {
            return;
        }
        let said = tokio::select! {
            said = upward.next() => said,
            _ = closed.wait_for(|closed| *closed) => continue,
            _ = beat.tick() => continue,
        };
        match said.map(|upward| upward.said) {
            Some(Some(Said::Parcel(parcel))) => {
                let taker = Arc::clone(desk);
                let mut taken =
                    tokio::task::spawn_blocking(move || taker.take(lease, connection, &parcel));
                // It may wait for long for its room; the actor is to know that the learner is there.
                let taken = loop {
                    tokio::select! {
                        taken = &mut taken => break taken.unwrap_or(false),
                        _ = beat.tick() => {
                            if acks.send(desk.ack(lease, connection)).await.is_err() {
                                return;
                            }
                        }
                    }
                };
                if !taken {
                    // Nothing after it can be taken either. The actor hears why, or asks again.
                    let _ = acks.send(desk.ack(lease, connection)).await;
                    return;
                }
            }
            Some(Some(Said::Goodbye(goodbye))) => {
                let failure = goodbye.failure.map(ledger::Failure::from);
                desk.ledger.goodbye(lease, connection, failure);
            }
            // The connection ended without a goodbye.
            Some(_) | None => return,
        }
    }
}
