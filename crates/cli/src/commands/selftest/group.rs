//! `starling selftest --only group`: do the processes of a group add up their numbers, and does one notice
//! that another is lost?

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use starling_nets::{
    Collective, Device, Gloo, GlooStore, Kind, Mpi, Nccl, Tensor, check_collective, nccl_version,
};

use crate::engine::CollectiveLibrary;

use super::super::Usage;

/// Processes of the group.
const MEMBERS: usize = 2;

/// Numbers of the sum that is timed: about the Nature CNN.
const NUMBERS: i64 = 2_000_000;

/// Sums that are timed.
const TIMED: usize = 40;

const TIME_OUT: Duration = Duration::from_secs(60);

/// How long all processes may take.
const MOST: Duration = Duration::from_secs(300);

/// One process of the group, which the test starts.
#[derive(Clone, clap::Args)]
pub(super) struct Member {
    /// The rank of this process
    #[arg(long, value_name = "RANK", hide = true, requires = "store")]
    member: Option<usize>,
    /// Port of the store
    #[arg(long, value_name = "PORT", hide = true)]
    store: Option<u16>,
}

impl Member {
    pub(super) fn given(&self) -> Option<(usize, u16)> {
        self.member.zip(self.store)
    }
}

/// Tests a library with processes of this machine. Returns what went wrong.
pub(super) fn check(
    library: CollectiveLibrary,
    device: Device,
    name: &str,
) -> anyhow::Result<Vec<String>> {
    match library {
        CollectiveLibrary::Mpi => return check_mpi(),
        CollectiveLibrary::Nccl => {
            let version = nccl_version()?;
            say!("NCCL {version}");
        }
        CollectiveLibrary::Gloo => {}
    }
    if library == CollectiveLibrary::Nccl && device == Device::Cpu {
        return Err(Usage("NCCL needs a GPU: --device cuda:0".into()).into());
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let _store = GlooStore::serve(listener, TIME_OUT)?;
    let program = std::env::current_exe().context("cannot find the path of the running program")?;
    let library_name = match library {
        CollectiveLibrary::Nccl => "nccl",
        _ => "gloo",
    };
    let start = |rank: usize| {
        let mut command = Command::new(&program);
        command
            .args(["selftest", "--only", "group", "--device", name])
            .args(["--collective", library_name])
            .args(["--member", &rank.to_string()])
            .args(["--store", &port.to_string()])
            // NCCL refuses two processes on one GPU, unless they seem to be on two machines.
            .env("NCCL_HOSTID", format!("starling-{rank}"));
        command.spawn().map(Running)
    };
    let running: Result<Vec<Running>, _> = (0..MEMBERS).map(start).collect();
    let mut failed = Vec::new();
    for (rank, mut process) in running?.into_iter().enumerate() {
        if !process.succeeds()? {
            failed.push(format!("process {rank} of the group failed"));
        }
    }
    Ok(failed)
}

/// A process that does not outlive the test.
struct Running(Child);

impl Running {
    fn succeeds(&mut self) -> anyhow::Result<bool> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.success());
            }
            if began.elapsed() > MOST {
                bail!(
                    "a process of the group did not end within {} s",
                    MOST.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One process of the group.
pub(super) fn take_part(
    library: CollectiveLibrary,
    device: Device,
    (rank, port): (usize, u16),
) -> anyhow::Result<()> {
    let store = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let store = GlooStore::connect(store, TIME_OUT)?;
    let gloo =
        |name: &str, size: usize| Gloo::join(&store, name, "127.0.0.1", rank, size, TIME_OUT);
    let join = |name: &str, size: usize| -> anyhow::Result<Box<dyn Collective>> {
        let gloo = gloo(name, size)?;
        Ok(match library {
            CollectiveLibrary::Nccl => Box::new(Nccl::join(gloo, device, TIME_OUT)?),
            _ => Box::new(gloo),
        })
    };
    let mut group = join("first", MEMBERS)?;
    check_collective(&mut *group, device).map_err(anyhow::Error::msg)?;
    let values = Tensor::ones([NUMBERS], (Kind::Float, device));
    let mut times = Vec::new();
    for _ in 0..TIMED {
        let began = Instant::now();
        group.sum(&values)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    if rank > 0 {
        // As a process that is killed: without a word to the others.
        std::process::exit(0);
    }
    say!(
        "{MEMBERS} processes agree; a sum of {NUMBERS} numbers takes {:.2} ms (median of {TIMED})",
        times[TIMED / 2]
    );
    let began = Instant::now();
    let Err(lost) = (0..3).try_for_each(|_| group.sum(&values)) else {
        bail!("a sum with a process that is gone succeeded");
    };
    say!(
        "a lost process is noticed after {:.1} s: {lost}",
        began.elapsed().as_secs_f64()
    );
    let began = Instant::now();
    drop(group);
    let mut alone = join("second", 1)?;
    check_collective(&mut *alone, device).map_err(anyhow::Error::msg)?;
    say!(
        "the rest forms a new group in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// All processes that `mpirun` started.
fn check_mpi() -> anyhow::Result<Vec<String>> {
    let mut mpi = Mpi::join(TIME_OUT)?;
    if mpi.size() == 1 {
        let text = "start it with `mpirun -n 2` before the command: MPI has only this process";
        return Err(Usage(text.into()).into());
    }
    check_collective(&mut mpi, Device::Cpu).map_err(anyhow::Error::msg)?;
    if mpi.rank() == 0 {
        say!("{} processes agree", mpi.size());
    }
    mpi.finalize()?;
    Ok(Vec::new())
}
