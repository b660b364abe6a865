//! A relay that cuts connections, is slow or swallows everything.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longer than any test.
const LASTING: Duration = Duration::from_secs(3600);

/// Passes bytes on between two sockets. Cuts every connection after 50 to 400 ms, or none.
pub(crate) struct Relay {
    /// While it is set nothing passes, and nobody is told.
    pub(crate) silent: Arc<AtomicBool>,
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Relay {
    pub(crate) fn cutting(target: SocketAddr) -> Self {
        Self::to(
            target,
            Duration::from_millis(50)..Duration::from_millis(400),
            None,
        )
    }

    pub(crate) fn lasting(target: SocketAddr) -> Self {
        Self::to(target, LASTING..LASTING, None)
    }

    /// One that lets so many bytes pass in a second.
    pub(crate) fn slow(target: SocketAddr, bytes_per_second: u32) -> Self {
        Self::to(target, LASTING..LASTING, Some(bytes_per_second))
    }

    fn to(target: SocketAddr, lives: Range<Duration>, rate: Option<u32>) -> Self {
        let silent = Arc::new(AtomicBool::new(false));
        let muted = Arc::clone(&silent);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, connections) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&connections));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Ok((near, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                let number = counted.fetch_add(1, Ordering::Relaxed);
                near.set_nonblocking(false).unwrap();
                let Ok(far) = TcpStream::connect(target) else {
                    continue;
                };
                // Any lengths will do, as long as they differ.
                let spread = (lives.end - lives.start).as_millis() as u64;
                let life = lives.start + Duration::from_millis(number * 149 % (spread + 1));
                let until = Instant::now() + life;
                let (a, b) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (from, to) in [(a, b), (far, near)] {
                    let (silent, stopped) = (Arc::clone(&muted), Arc::clone(&stopped));
                    std::thread::spawn(move || pass(from, to, until, rate, &silent, &stopped));
                }
            }
        });
        Self {
            silent,
            address,
            connections,
            stop,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    until: Instant,
    rate: Option<u32>,
    silent: &AtomicBool,
    stopped: &AtomicBool,
) {
    from.set_read_timeout(Some(Duration::from_millis(10)))
        .unwrap();
    let mut bytes = [0; 4096];
    while Instant::now() < until && !stopped.load(Ordering::Relaxed) {
        if silent.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) if to.write_all(&bytes[..read]).is_err() => break,
            Ok(read) => {
                if let Some(rate) = rate {
                    std::thread::sleep(Duration::from_secs(1) * read as u32 / rate);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
