//! A Slurm cluster of a test's own: two nodes on this machine.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A controller and two nodes, with their files in a folder of the test. They end with the test.
#[derive(Debug)]
pub struct SlurmCluster {
    folder: PathBuf,
    processes: Vec<Child>,
}

impl SlurmCluster {
    /// Starts a cluster. Where there is no Slurm, or this is not root, records that `test` is skipped
    /// (see [`skip`](crate::skip)) and returns `None`.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(test: &str, folder: &Path) -> Option<Self> {
        // Without a configuration, not even `sbatch --version` works.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |program: &&str| {
            let mut folders = std::env::split_paths(&path);
            folders.any(|folder| folder.join(program).is_file())
        };
        if !["slurmctld", "slurmd", "sbatch", "munged"]
            .iter()
            .all(is_there)
        {
            crate::skip("slurm", test, "Slurm and munge are not installed");
            return None;
        }
        let id = Command::new("id").arg("-u").output();
        if !id.is_ok_and(|id| id.stdout == b"0\n") {
            crate::skip("slurm", test, "the nodes of Slurm take root");
            return None;
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (host, at) = (host.trim(), folder.display());
        // All at once, so that they differ.
        let free: Vec<TcpListener> = (0..4)
            .filter_map(|_| TcpListener::bind(("127.0.0.1", 0)).ok())
            .collect();
        let ports: Vec<u16> = free
            .iter()
            .filter_map(|free| Some(free.local_addr().ok()?.port()))
            .collect();
        drop(free);
        let config = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\nMpiDefault=none\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nReturnToService=2\n\
             SlurmctldPort={}\nSlurmdPort={}\nStateSaveLocation={at}/state\n\
             SlurmdSpoolDir={at}/spool-%n\nSlurmctldPidFile={at}/ctld.pid\n\
             SlurmdPidFile={at}/d-%n.pid\nSlurmctldLogFile={at}/ctld.txt\n\
             SlurmdLogFile={at}/d-%n.txt\nSchedulerType=sched/backfill\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
             JobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\n\
             NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=2 State=UNKNOWN\n\
             NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=2 State=UNKNOWN\n\
             PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n",
            ports[0], ports[1], ports[2], ports[3]
        );
        let key = folder.join("munge.key");
        let random: Vec<u8> = (0..8)
            .flat_map(|_| fs::read("/proc/sys/kernel/random/uuid").unwrap_or_default())
            .collect();
        let mut made = vec![
            fs::write(folder.join("slurm.conf"), config),
            fs::write(&key, random),
        ];
        for name in ["state", "spool-n1", "spool-n2"] {
            made.push(fs::create_dir(folder.join(name)));
        }
        assert!(made.iter().all(Result::is_ok), "{made:?}");
        // munged looks at who may write to its folder and read its key.
        for (path, mode) in [(folder, "755"), (&key, "600")] {
            let _ = Command::new("chmod").arg(mode).arg(path).status();
        }
        let mut cluster = Self {
            folder: folder.to_owned(),
            processes: Vec::new(),
        };
        let file = |option: &str, name: &str| format!("--{option}={at}/{name}");
        cluster.run(
            "munged",
            &[
                "--foreground",
                "--force",
                &file("key-file", "munge.key"),
                &file("socket", "munge.socket"),
                &file("pid-file", "munge.pid"),
                &file("log-file", "munge.txt"),
                &file("seed-file", "munge.seed"),
            ],
        );
        cluster.wait("munge", |cluster| {
            cluster.folder.join("munge.socket").exists()
        });
        let config = folder.join("slurm.conf").display().to_string();
        cluster.run("slurmctld", &["-D", "-f", &config]);
        for node in ["n1", "n2"] {
            cluster.run("slurmd", &["-D", "-N", node, "-f", &config]);
        }
        cluster.wait("the nodes", |cluster| {
            let said = cluster
                .command("sinfo")
                .args(["-h", "-o", "%D %t"])
                .output();
            said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim() == "2 idle")
        });
        Some(cluster)
    }

    /// One of Slurm's commands, for this cluster.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    fn run(&mut self, program: &str, args: &[&str]) {
        let mut command = self.command(program);
        command.args(args).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(process) => self.processes.push(process),
            Err(error) => panic!("{program} does not start: {error}"),
        }
    }

    fn wait(&self, what: &str, ready: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !ready(self) {
            assert!(began.elapsed() < Duration::from_secs(60), "no {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            // The controller has a helper of its own, which ends with it in order.
            crate::signal(process.id(), "TERM");
            let began = Instant::now();
            while !matches!(process.try_wait(), Ok(Some(_))) && began.elapsed().as_secs() < 5 {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
