//! `collective=mpi`: all learners are processes that `mpirun` started with the same command line. The
//! first is learner 0; the others get its join file by MPI, and do what `starling learner` does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use starling_nets::{Collective as _, Mpi};

use crate::RunConfig;
use crate::cluster::JoinFile;
use crate::engine::CollectiveLibrary;
use crate::record::RunFolder;

use super::{Usage, group, learner};

/// How long the others wait for learner 0, which may have to load a checkpoint.
const START: Duration = Duration::from_secs(1800);

/// Where Open MPI, MPICH and Slurm say how many processes share the machine.
const BESIDE: [&str; 3] = [
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
];

/// The processes of this program's `mpirun`.
#[derive(Clone, Copy)]
pub(super) struct World(Mpi);

/// What learner 0 tells the others.
#[derive(Serialize, Deserialize)]
struct Invitation {
    join: String,
    run: PathBuf,
}

impl World {
    /// Joins the others, if the run uses MPI.
    pub(super) fn join(config: &RunConfig) -> anyhow::Result<Option<Self>> {
        let settings = &config.settings;
        if settings.collective != CollectiveLibrary::Mpi || settings.learners == 1 {
            return Ok(None);
        }
        let mpi = Mpi::join(START)?;
        let (learners, found) = (settings.learners, mpi.size());
        if found != learners {
            let text = format!(
                "learners={learners} and collective=mpi need `mpirun -n {learners}` before the command; \
                 {found} processes were started"
            );
            return Err(Usage(text).into());
        }
        Ok(Some(Self(mpi)))
    }

    /// The same for a run that is resumed.
    pub(super) fn of_run(run: &Path, changes: &[String]) -> anyhow::Result<Option<Self>> {
        let folder = RunFolder::open(run)?;
        let config = match changes {
            [] => super::read_config(&folder, None)?,
            changes => crate::read_changed_config(&folder, changes)?,
        };
        Self::join(&config)
    }

    /// Whether this is not learner 0.
    pub(super) fn follows(&self) -> bool {
        self.0.rank() > 0
    }

    /// Learns until the run ends.
    pub(super) fn follow(mut self) -> anyhow::Result<ExitCode> {
        let mut bytes = Vec::new();
        self.0.broadcast_bytes(&mut bytes, 0)?;
        let Invitation { join, run } = serde_json::from_slice(&bytes)?;
        let join = JoinFile::find(&join)?;
        let rank = self.0.rank();
        let folder = match run.is_dir() {
            true => group::learner_folder(&run, rank),
            // Another machine without a shared file system.
            false => PathBuf::from(format!("learner-{rank}")),
        };
        learner::follow(&join, rank, folder, beside())?;
        self.end()?;
        Ok(ExitCode::SUCCESS)
    }

    /// After a run that did not fail. Waits for the others.
    pub(super) fn end(self) -> anyhow::Result<()> {
        Ok(self.0.finalize()?)
    }
}

/// Learner 0: gives the join file to the others.
pub(super) fn invite(join: &Path, run: &Path) -> anyhow::Result<()> {
    let invitation = Invitation {
        join: std::fs::read_to_string(join)?,
        run: std::fs::canonicalize(run)?,
    };
    let mut bytes = serde_json::to_vec(&invitation)?;
    Ok(Mpi::join(START)?.broadcast_bytes(&mut bytes, 0)?)
}

/// Learners that share the cores of this machine.
pub(super) fn beside() -> usize {
    let said = BESIDE.iter().find_map(|name| std::env::var(name).ok());
    said.and_then(|said| said.parse().ok()).unwrap_or(1).max(1)
}
