//! A TCP proxy that can delay, close and stall connections.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Passes bytes on between its address and another one. It ends with the test.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Connections stay open but transfer nothing.
    silent: AtomicBool,
    /// Connections of earlier numbers are cut.
    cut: AtomicU64,
    delay_ms: AtomicU64,
    connections: AtomicU64,
    stop: AtomicBool,
}

impl Relay {
    /// Starts a relay to an address of this machine.
    ///
    /// # Panics
    /// When there is no free port.
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0));
        let listener = listener.unwrap_or_else(|error| panic!("no relay: {error}"));
        let address = listener.local_addr();
        let address = address.unwrap_or_else(|error| panic!("no relay: {error}"));
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                if theirs.stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(near) = near else { continue };
                let number = theirs.connections.fetch_add(1, Ordering::Relaxed);
                let Ok(far) = TcpStream::connect(target) else {
                    continue;
                };
                let (Ok(a), Ok(b)) = (near.try_clone(), far.try_clone()) else {
                    continue;
                };
                for (from, to) in [(a, b), (far, near)] {
                    let shared = Arc::clone(&theirs);
                    std::thread::spawn(move || pass(from, to, number, &shared));
                }
            }
        });
        Self { address, shared }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets nothing pass, without telling anybody, or lets all pass again.
    pub fn set_silent(&self, silent: bool) {
        self.shared.silent.store(silent, Ordering::Relaxed);
    }

    /// Delays everything by this much.
    pub fn set_delay(&self, delay: Duration) {
        let delay = delay.as_millis() as u64;
        self.shared.delay_ms.store(delay, Ordering::Relaxed);
    }

    /// Cuts all connections that there are.
    pub fn cut(&self) {
        let all = self.shared.connections.load(Ordering::Relaxed);
        self.shared.cut.store(all, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, number: u64, shared: &Shared) {
    let _ = from.set_read_timeout(Some(Duration::from_millis(20)));
    let mut bytes = [0; 1 << 16];
    while shared.cut.load(Ordering::Relaxed) <= number && !shared.stop.load(Ordering::Relaxed) {
        if shared.silent.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => {
                let delay = shared.delay_ms.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(delay));
                if to.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
