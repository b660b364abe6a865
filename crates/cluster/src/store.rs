//! Redis or Valkey as the transport between actors and learner: connections and keys.
//!
//! ```text
//! <run>:asks                stream   requests of actor processes to the learner
//! <run>:to:<process>        stream   replies of the learner to one process
//! <run>:feed:<process>:<n>  stream   parcels, over one connection to a lease
//! <run>:weights:<e>:<v>     value    weights of a version, for all who ask
//! <run>:judged:<process>    value    weights for an evaluator
//! <run>:closed              stream   has an entry once the run has ended
//! ```
//!
//! All data is in transit: what the server loses is requested or sent again, and unused keys expire.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, IntoConnectionInfo as _,
};
use redis::{RedisError, TlsCertificates, Value};

use crate::line::{CALL, Trouble, timely};
use crate::{ClusterError, JoinFile};

/// How long a read waits for something new.
pub(crate) const BLOCK: Duration = Duration::from_millis(500);

/// Unused streams and weights expire after this time.
pub(crate) const UNUSED: Duration = Duration::from_secs(600);

/// The lowest throughput for which command timeouts are sized.
const BYTES_PER_SECOND: usize = 25_000;

/// The field of an entry.
pub(crate) const FIELD: &str = "m";

/// The server, and the run's part of it.
#[derive(Clone)]
pub(crate) struct Store {
    client: Client,
    prefix: String,
}

/// The server's clock, from which it derives entry ids.
pub(crate) struct Clock {
    /// What it showed, in milliseconds, and when.
    showed: u64,
    at: Instant,
}

impl Clock {
    pub(crate) async fn read(connection: &mut MultiplexedConnection) -> Result<Self, Trouble> {
        let at = Instant::now();
        let (seconds, micros): (u64, u64) = answer(connection, &redis::cmd("TIME"), 0).await?;
        let showed = seconds * 1_000 + micros / 1_000;
        Ok(Self { showed, at })
    }

    /// How old the entry of this name is.
    pub(crate) fn age(&self, name: &str) -> Duration {
        let made = name.split('-').next().and_then(|made| made.parse().ok());
        let now = self.showed + self.at.elapsed().as_millis() as u64;
        Duration::from_millis(now.saturating_sub(made.unwrap_or(now)))
    }
}

/// Entries of a stream.
pub(crate) struct Entries {
    pub(crate) key: String,
    /// Their names and contents.
    pub(crate) entries: Vec<(String, Vec<u8>)>,
}

impl Store {
    /// Whether the address of a join file is that of such a server.
    pub(crate) fn is_meant(address: &str) -> bool {
        address.starts_with("redis://") || address.starts_with("rediss://")
    }

    /// The server of a join file. It is connected to later.
    pub(crate) fn new(join: &JoinFile) -> Result<Self, ClusterError> {
        let failed = |error: RedisError| {
            ClusterError::Trust(format!(
                "the address of the Redis server cannot be used: {error}"
            ))
        };
        let info = join.address.as_str().into_connection_info();
        let mut info = info.map_err(failed)?;
        if info.redis_settings().password().is_some() {
            let text = "the address of the Redis server has a password, which others can see: give it \
                        in STARLING_REDIS_PASSWORD, from where it goes into the join file";
            return Err(ClusterError::Trust(text.into()));
        }
        if let Some(password) = &join.password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let client = match &join.certificate {
            Some(certificate) => Client::build_with_tls(
                info,
                TlsCertificates {
                    client_tls: None,
                    root_cert: Some(certificate.clone().into_bytes()),
                },
            ),
            None => Client::open(info),
        };
        let name = join.token.get(..16).unwrap_or(&join.token);
        Ok(Self {
            client: client.map_err(failed)?,
            prefix: format!("starling:{name}"),
        })
    }

    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Trouble> {
        // Every command has its own deadline.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CALL))
            .set_response_timeout(None);
        let client = &self.client;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        timely(CALL, async { connection.await.map_err(trouble) }).await
    }

    pub(crate) fn asks(&self) -> String {
        format!("{}:asks", self.prefix)
    }

    pub(crate) fn to(&self, session: &[u8]) -> String {
        format!("{}:to:{}", self.prefix, hex(session))
    }

    pub(crate) fn feed(&self, session: &[u8], number: u64) -> String {
        format!("{}:feed:{}:{number}", self.prefix, hex(session))
    }

    pub(crate) fn judged(&self, session: &[u8]) -> String {
        format!("{}:judged:{}", self.prefix, hex(session))
    }

    pub(crate) fn closed(&self) -> String {
        format!("{}:closed", self.prefix)
    }

    /// Tells every process that the run has ended, including those that join later.
    pub(crate) async fn set_closed(&self) -> Result<(), Trouble> {
        add(&mut self.connect().await?, &self.closed(), 1, b"").await
    }

    /// Takes that back: the run continues.
    pub(crate) async fn set_open(&self) -> Result<(), Trouble> {
        let mut command = redis::cmd("UNLINK");
        command.arg(self.closed());
        answer(&mut self.connect().await?, &command, 0).await
    }

    pub(crate) fn weights(&self, epoch: u64, version: u64) -> String {
        format!("{}:weights:{epoch}:{version}", self.prefix)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The reply to a command that transfers this many bytes.
pub(crate) async fn answer<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    bytes: usize,
) -> Result<T, Trouble> {
    timely(limit(bytes), async {
        command.query_async(connection).await.map_err(trouble)
    })
    .await
}

fn limit(bytes: usize) -> Duration {
    CALL + Duration::from_secs((bytes / BYTES_PER_SECOND) as u64)
}

/// Adds an entry to a stream, which expires some time after its last one.
pub(crate) async fn add(
    connection: &mut MultiplexedConnection,
    key: &str,
    most: usize,
    content: &[u8],
) -> Result<(), Trouble> {
    let mut both = redis::pipe();
    both.cmd("XADD").arg(key).arg("MAXLEN").arg("~").arg(most);
    both.arg("*").arg(FIELD).arg(content).ignore();
    both.cmd("PEXPIRE")
        .arg(key)
        .arg(UNUSED.as_millis() as u64)
        .ignore();
    timely(limit(content.len()), async {
        both.query_async(connection).await.map_err(trouble)
    })
    .await
}

/// What is new in some streams since the entries of these names, waiting for it for a while.
pub(crate) async fn read(
    connection: &mut MultiplexedConnection,
    streams: &[(&str, &str)],
) -> Result<Vec<Entries>, Trouble> {
    let mut command = redis::cmd("XREAD");
    command.arg("COUNT").arg(16);
    command.arg("BLOCK").arg(BLOCK.as_millis() as u64);
    command.arg("STREAMS");
    for (key, _) in streams {
        command.arg(key);
    }
    for (_, since) in streams {
        command.arg(since);
    }
    let most = 1 << 20;
    let found: Option<StreamReadReply> = answer(connection, &command, most).await?;
    let keys = found.map(|found| found.keys).unwrap_or_default();
    let entries = keys.into_iter().map(|stream| Entries {
        key: stream.key,
        entries: stream
            .ids
            .into_iter()
            .map(|mut entry| {
                let content = match entry.map.remove(FIELD) {
                    Some(Value::BulkString(content)) => content,
                    _ => Vec::new(),
                };
                (entry.id, content)
            })
            .collect(),
    });
    Ok(entries.collect())
}

fn trouble(error: RedisError) -> Trouble {
    let refused = matches!(
        error.code(),
        Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "WRONGTYPE")
    );
    // What connecting fails with has no code of its own.
    let unknown = error.to_string().contains("Authentication required");
    match refused || unknown || error.kind() == ErrorKind::AuthenticationFailed {
        true => Trouble::Final(format!("Redis refused: {error}")),
        false => Trouble::Away(format!("Redis: {error}")),
    }
}
