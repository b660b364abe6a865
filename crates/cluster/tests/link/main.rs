//! Links to other processes do what every link has to do, whatever becomes of connections and servers.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

mod grpc;
mod redis;
mod relay;
