//! A link over TCP with threads alone: one connection per actor, one request at a time.
//!
//! The learner's end is a gateway: for every connection a thread plays the actor towards an
//! in-process link. It is small and slow, and shows that the engine needs no change for actors
//! elsewhere.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use starling_engine::link::wire::{self, HEADER_BYTES, ParcelFormat, PublicationFormat};
use starling_engine::link::{
    ActorLink, Event, InProcess, LearnerLink, Lease, LeaseId, LinkError, Loss, Parcel, Places,
    Publication, Wanted,
};
use starling_envs::Rollout;

/// What an actor says; a parcel follows `Send` as a frame.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Join,
    Weights(Wanted, Duration),
    Send(Duration),
    Fail(Loss),
}

/// What the learner's end answers; a publication follows `Weights` as a frame.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Welcome(Option<Lease>, Value),
    Weights,
    Done,
    TimedOut(u64),
    LeaseEnded(LeaseId),
    Closed,
}

/// The longest message that is not a frame.
const MOST_JSON: usize = 1 << 20;

/// The learner's side.
pub(crate) struct Gateway {
    link: InProcess,
    address: SocketAddr,
    closed: Arc<AtomicBool>,
}

/// What the threads of a gateway share.
#[derive(Clone)]
struct Desk {
    link: InProcess,
    places: Arc<Places>,
    parcels: ParcelFormat,
    /// The settings of the run, for whoever joins.
    config: Value,
}

impl Gateway {
    /// Listens on a free port of this machine.
    pub(crate) fn listen(
        places: Arc<Places>,
        parcels: ParcelFormat,
        config: Value,
        history: usize,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let link = InProcess::new(Arc::clone(&places), history);
        let closed = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&closed);
        let desk = Desk {
            link: link.clone(),
            places,
            parcels,
            config,
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let desk = desk.clone();
                std::thread::spawn(move || desk.attend(stream));
            }
        });
        Ok(Self {
            link,
            address,
            closed,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl LearnerLink for Gateway {
    fn publish(&self, publication: Publication) {
        self.link.publish(publication);
    }

    fn receive(&self, patience: Duration) -> Result<Event, LinkError> {
        self.link.receive(patience)
    }

    fn set_busy(&self, busy: bool) {
        self.link.set_busy(busy);
    }

    fn close(&self) {
        self.link.close();
        if !self.closed.swap(true, Ordering::Relaxed) {
            // Wakes the thread that listens.
            let _ = TcpStream::connect(self.address);
        }
    }
}

impl Desk {
    /// Serves one actor until its connection ends, which is its loss unless it said so before.
    fn attend(&self, mut stream: TcpStream) {
        let mut lease = None;
        let ended = self.converse(&mut stream, &mut lease);
        if let (Some(lease), Err(error)) = (lease, ended) {
            self.link.fail(Loss {
                lease,
                who: format!("the actor of place {}", lease.place),
                reason: format!("the connection ended: {error}"),
                stalled: false,
            });
        }
    }

    fn converse(&self, stream: &mut TcpStream, held: &mut Option<LeaseId>) -> io::Result<()> {
        loop {
            match read_json(stream)? {
                Request::Join => {
                    let lease = self.places.lease();
                    if let Some(lease) = lease {
                        *held = Some(lease.id);
                        let who = format!("the actor of place {}", lease.id.place);
                        self.link.join(lease.id, who);
                    }
                    write_json(stream, &Answer::Welcome(lease, self.config.clone()))?;
                }
                Request::Weights(wanted, patience) => match self.link.weights(wanted, patience) {
                    Ok(publication) => {
                        write_json(stream, &Answer::Weights)?;
                        let mut frame = Vec::new();
                        wire::write_publication(&publication, &mut frame);
                        stream.write_all(&frame)?;
                    }
                    Err(error) => write_json(stream, &answer_of(error))?,
                },
                Request::Send(patience) => {
                    let frame = read_frame(stream, self.parcels.most_bytes())?;
                    let parcel = self.parcels.read(&frame).map_err(io::Error::other)?;
                    let answer = match self.link.send(parcel, patience) {
                        Ok(_) => Answer::Done,
                        Err(error) => answer_of(error),
                    };
                    write_json(stream, &answer)?;
                }
                Request::Fail(loss) => {
                    self.link.fail(loss);
                    *held = None;
                    write_json(stream, &Answer::Done)?;
                }
            }
        }
    }
}

fn answer_of(error: LinkError) -> Answer {
    match error {
        LinkError::TimedOut { seconds, .. } => Answer::TimedOut(seconds),
        LinkError::LeaseEnded(lease) => Answer::LeaseEnded(lease),
        LinkError::Closed | LinkError::ActorLost { .. } | LinkError::Lost(_) => Answer::Closed,
    }
}

/// An actor's side.
pub(crate) struct Remote {
    stream: Mutex<TcpStream>,
    /// The same stream, for whoever does not wait for an answer.
    line: TcpStream,
    publications: PublicationFormat,
    closed: AtomicBool,
}

/// What an actor gets that joins: a lease, the settings of the run, and its side of the link.
pub(crate) type Welcome = (Lease, Value, Remote);

/// Joins a run; `None` if no place is free.
pub(crate) fn join(
    address: SocketAddr,
    format: impl FnOnce(&Value) -> PublicationFormat,
) -> io::Result<Option<Welcome>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    write_json(&mut stream, &Request::Join)?;
    let Answer::Welcome(lease, config) = read_json(&mut stream)? else {
        return Err(io::Error::other("no welcome"));
    };
    let line = stream.try_clone()?;
    Ok(lease.map(|lease| {
        let remote = Remote {
            stream: Mutex::new(stream),
            line,
            publications: format(&config),
            closed: AtomicBool::new(false),
        };
        (lease, config, remote)
    }))
}

impl Remote {
    /// Ends the connection as a crash would.
    pub(crate) fn hang_up(&self) {
        let _ = self.line.shutdown(std::net::Shutdown::Both);
    }

    /// One request, with what follows it, and what `read` makes of the answer.
    fn ask<T>(
        &self,
        request: &Request,
        frame: &[u8],
        read: impl FnOnce(&mut TcpStream, Answer) -> io::Result<Result<T, Answer>>,
    ) -> Result<T, LinkError> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let exchange = || {
            write_json(&mut stream, request)?;
            stream.write_all(frame)?;
            let answer = read_json(&mut stream)?;
            read(&mut stream, answer)
        };
        let (who, what) = ("an actor", "the learner");
        match exchange() {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(Answer::TimedOut(seconds))) => Err(LinkError::TimedOut { who, what, seconds }),
            Ok(Err(Answer::LeaseEnded(lease))) => Err(LinkError::LeaseEnded(lease)),
            Ok(Err(Answer::Closed)) => {
                self.closed.store(true, Ordering::Relaxed);
                Err(LinkError::Closed)
            }
            Ok(Err(other)) => Err(LinkError::Lost(format!("{other:?}"))),
            Err(error) => Err(LinkError::Lost(error.to_string())),
        }
    }
}

impl ActorLink for Remote {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError> {
        let format = self.publications;
        let request = Request::Weights(wanted, patience);
        self.ask(&request, &[], |stream, answer| match answer {
            Answer::Weights => {
                let frame = read_frame(stream, format.most_bytes())?;
                Ok(Ok(format.read(&frame).map_err(io::Error::other)?))
            }
            other => Ok(Err(other)),
        })
    }

    fn send(&self, parcel: Parcel, patience: Duration) -> Result<Option<Vec<Rollout>>, LinkError> {
        let mut frame = Vec::new();
        let written = wire::write_parcel(&parcel, &mut frame);
        written.map_err(|error| LinkError::Lost(error.to_string()))?;
        self.ask(&Request::Send(patience), &frame, |_, answer| match answer {
            Answer::Done => Ok(Ok(())),
            other => Ok(Err(other)),
        })?;
        // Its bytes are copied: the buffers can be filled again.
        let rollouts = parcel.rollouts.into_iter().map(|(_, rollout)| rollout);
        Ok(Some(rollouts.collect()))
    }

    fn fail(&self, loss: Loss) {
        let _ = self.ask(&Request::Fail(loss), &[], |_, _| Ok(Ok(())));
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

fn write_json(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    stream.write_all(&(bytes.len() as u32).to_le_bytes())?;
    stream.write_all(&bytes)
}

fn read_json<T: for<'a> Deserialize<'a>>(stream: &mut TcpStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_JSON {
        return Err(io::Error::other("a message is too long"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn read_frame(stream: &mut TcpStream, most: u64) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    stream.read_exact(&mut frame)?;
    let header = frame.first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    let body = wire::body_bytes(header, most).map_err(io::Error::other)?;
    frame.resize(HEADER_BYTES + body, 0);
    stream.read_exact(&mut frame[HEADER_BYTES..])?;
    Ok(frame)
}
