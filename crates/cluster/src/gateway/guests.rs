//! Connections to the learner: how many there may be, and for how long without the token of the run.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TlsConnectInfo};

/// The pause after a connection that could not be accepted, for example because the process has too
/// many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// How often that is logged.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// A connection. It is closed if it makes no call with the token in time: no TLS handshake, no call,
/// or a wrong token.
pub(crate) struct Guest {
    stream: TcpStream,
    known: Known,
    /// The deadline for the token.
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

/// Whether a connection has sent the token.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(Arc<AtomicBool>);

impl Known {
    /// Notes that the connection of this call has sent the token.
    pub(crate) fn note<T>(request: &http::Request<T>) {
        let extensions = request.extensions();
        let encrypted = extensions.get::<TlsConnectInfo<Known>>();
        let known = encrypted.map(TlsConnectInfo::get_ref);
        if let Some(known) = known.or_else(|| extensions.get()) {
            known.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Accepts connections until the receiver is dropped: at most `most` at a time, each with a deadline
/// for the token. Errors do not end it.
pub(crate) fn accept(
    listener: TcpListener,
    most: usize,
    patience: Duration,
) -> ReceiverStream<io::Result<Guest>> {
    let (guests, taken) = mpsc::channel(1);
    tokio::spawn(async move {
        let permits = Arc::new(Semaphore::new(most));
        let mut said: Option<Instant> = None;
        let mut warn = |text: String| {
            if said.is_none_or(|said| said.elapsed() > SAY_EVERY) {
                said = Some(Instant::now());
                tracing::warn!("{text}");
            }
        };
        loop {
            if permits.available_permits() == 0 {
                warn(format!("{most} connections are open: others have to wait"));
            }
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        warn(format!("a connection could not be accepted: {error}"));
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
                () = guests.closed() => return,
            };
            let _ = stream.set_nodelay(true);
            let guest = Guest {
                stream,
                known: Known::default(),
                deadline: Box::pin(tokio::time::sleep(patience)),
                _permit: permit,
            };
            if guests.send(Ok(guest)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(taken)
}

impl Connected for Guest {
    type ConnectInfo = Known;

    fn connect_info(&self) -> Known {
        self.known.clone()
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.known.0.load(Ordering::Relaxed) && self.deadline.as_mut().poll(context).is_ready()
        {
            let what = "no call with the token of the run came in time";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
