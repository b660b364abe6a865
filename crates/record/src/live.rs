//! Live state of the process of a run: `live.json`.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::durable::{read_small, replace_unsynced};
use crate::error::Result;

/// The content of `live.json`. It is replaced every second, and stays when the run ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// When it was written, in seconds since 1970.
    pub written: f64,
    /// The run has ended.
    pub ended: bool,
    /// The process id.
    pub process: u32,
    /// Resident memory of the process, in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time of all threads since the process started, in seconds.
    pub cpu_s: Option<f64>,
    /// Where the time went since the process started.
    pub profile: Vec<Component>,
    /// The processes that take part in the run.
    pub roles: Vec<Role>,
    /// What was counted of processes that joined, if the run listens for some.
    pub joining: Option<Joining>,
}

/// Time of the threads that do the same work, added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Component {
    /// Such as `learner`.
    pub name: String,
    /// The longest first.
    pub activities: Vec<Activity>,
}

/// One thing that a component does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Such as `update`.
    pub name: String,
    /// All of it together.
    pub seconds: f64,
    /// How often it was done.
    pub times: u64,
}

/// A process, or a thread of one, that takes part in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// `learner`, `actor`, `spare` (an actor without a place) or `evaluator`.
    pub role: String,
    /// Machine and process.
    pub name: String,
    /// What it is doing.
    pub state: String,
    /// Environments that it steps.
    pub envs: Option<u64>,
    /// Parcels of experience that it has sent.
    pub parcels: Option<u64>,
    /// Their steps.
    pub steps: Option<u64>,
    /// Steps per second lately.
    pub steps_per_s: Option<f64>,
    /// Versions of the weights between those of its last parcel and the newest.
    pub lag: Option<u64>,
    /// Seconds since it joined.
    pub joined_s: Option<f64>,
    /// Seconds since something was heard of it.
    pub silent_s: Option<f64>,
    /// Seconds without a connection, if it has none.
    pub away_s: Option<f64>,
    /// Times that it connected again.
    pub reconnects: Option<u64>,
    /// Evaluations that it has reported.
    pub reported: Option<u64>,
    /// The step of the weights that it evaluates now.
    pub evaluating: Option<u64>,
}

/// Counters of a run that other processes join, since its process started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Joining {
    /// Places for actors.
    pub places: u64,
    /// Actors that got a place.
    pub joined: u64,
    /// Actors that gave it back.
    pub left: u64,
    /// Actors that failed or did not come back.
    pub lost: u64,
    /// Connections that were made again.
    pub reconnects: u64,
    /// Parcels that came twice.
    pub duplicates: u64,
    /// Messages that were not accepted.
    pub refused: u64,
    /// Bytes of parcels per second lately.
    pub bytes_per_s: f64,
}

/// A process that has not written for this long is not running any more.
const SILENCE_S: f64 = 10.0;

/// What a file may have: a run with thousands of actors stays below.
const MOST_BYTES: u64 = 8 << 20;

impl Live {
    /// Reads a file; none where it is missing, too large or from another version.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&read_small(path, MOST_BYTES).ok()?).ok()
    }

    /// Whether the run was running when this was read.
    pub fn is_running(&self) -> bool {
        !self.ended && now() - self.written < SILENCE_S
    }

    /// Replaces the file. It is not synced: what it says is soon out of date anyway.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        replace_unsynced(path, &bytes)
    }

    /// Fills in what the system knows about this process.
    #[must_use]
    pub fn of_this_process(mut self) -> Self {
        self.process = std::process::id();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        self.memory_bytes = resident(&status);
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        self.cpu_s = processor_time(&stat);
        self.written = now();
        self
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |since| since.as_secs_f64())
}

/// A line such as `VmRSS:     3012 kB`.
fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// User and system time in `/proc/<pid>/stat`, which the kernel counts in hundredths of a second there.
fn processor_time(stat: &str) -> Option<f64> {
    // The name in parentheses may have spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("live.json");
        assert_eq!(Live::read(&path), None);
        let live = Live {
            profile: vec![Component {
                name: "learner".into(),
                activities: vec![Activity {
                    name: "update".into(),
                    seconds: 1.5,
                    times: 3,
                }],
            }],
            roles: vec![Role {
                role: "actor".into(),
                silent_s: Some(0.5),
                ..Role::default()
            }],
            ..Live::default()
        }
        .of_this_process();
        live.write(&path).unwrap();
        assert_eq!(Live::read(&path).as_ref(), Some(&live));
        assert!(live.memory_bytes.unwrap() > 100_000);
        assert!(live.is_running());
        let ended = Live {
            ended: true,
            ..live.clone()
        };
        let silent = Live {
            written: live.written - 2.0 * SILENCE_S,
            ..live
        };
        assert!(!ended.is_running() && !silent.is_running());
        fs::write(&path, "{").unwrap();
        assert_eq!(Live::read(&path), None);
    }

    #[test]
    fn the_kernels_numbers() {
        assert_eq!(
            resident("Name:\tx\nVmRSS:\t    3012 kB\n"),
            Some(3012 * 1024)
        );
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 2 0 0 0 250 50 0 0 20 0 1 0 5 0";
        assert_eq!(processor_time(stat), Some(3.0));
        assert_eq!(processor_time("7 (a"), None);
    }
}
