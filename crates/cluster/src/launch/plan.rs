//! Which processes run on which hosts: `cluster.yaml`, or a CSV of hosts as other systems use it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::LaunchError;
use super::hosts::{self, Host};

/// The content of `cluster.yaml`. Unknown keys are rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The settings of the run: `env`, `algo` and `preset` as `train` takes them, and all others.
    pub run: Map<String, Value>,
    /// Name of the run.
    #[serde(default = "default_name")]
    pub name: String,
    /// Where the learner runs.
    pub learner: Learner,
    /// Where the other learners of a group run.
    #[serde(default)]
    pub learners: Vec<Group>,
    /// Where actors run.
    #[serde(default)]
    pub actors: Vec<Group>,
    /// Where evaluators run.
    #[serde(default)]
    pub evaluators: Vec<Group>,
    /// `grpc`, or the address of a Redis or Valkey server.
    #[serde(default = "default_transport")]
    pub transport: String,
    /// No encryption.
    #[serde(default)]
    pub insecure: bool,
    /// The program on the hosts; without it this one is copied where it differs.
    #[serde(default)]
    pub program: Option<String>,
    /// The folder of libtorch's libraries on the hosts; without it they are copied where they are
    /// missing.
    #[serde(default)]
    pub libtorch: Option<String>,
    /// The folder on the hosts in which programs are started, below the home folder if it is not
    /// absolute.
    #[serde(default = "default_folder")]
    pub folder: String,
    /// Further arguments of ssh.
    #[serde(default)]
    pub ssh: Vec<String>,
    /// How often a role may fail.
    #[serde(default)]
    pub restarts: Restarts,
    /// Seconds without a heartbeat from the launcher after which a process stops.
    #[serde(default = "default_heartbeat_timeout_s")]
    pub heartbeat_timeout_s: f64,
    /// For `--print slurm`.
    #[serde(default)]
    pub slurm: Slurm,
    /// For `--print kubernetes`.
    #[serde(default)]
    pub kubernetes: Kubernetes,
}

/// Where the learner runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learner {
    /// `[USER@]HOST[:PORT]`, or `local` for this machine without ssh.
    pub host: String,
    /// Where it listens [127.0.0.1:0 if everything is on this machine, else 0.0.0.0:7777].
    #[serde(default)]
    pub listen: Option<String>,
    /// The learner's name or address as actors reach it.
    #[serde(default)]
    pub advertise: Option<String>,
    /// Where it listens for other learners [127.0.0.1:0 if everything is on this machine, else
    /// 0.0.0.0:7788].
    #[serde(default)]
    pub learners_at: Option<String>,
    /// Its device.
    #[serde(default)]
    pub device: Option<String>,
}

/// Processes of one kind on one or more hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Hosts, where `cpu[01-16]` stands for sixteen.
    pub host: String,
    /// Processes on each host.
    #[serde(default = "one")]
    pub count: usize,
    /// Threads of each actor.
    #[serde(default)]
    pub threads: Option<u64>,
    /// Actors choose the actions of all their environments together.
    #[serde(default)]
    pub central: bool,
    /// Their device.
    #[serde(default)]
    pub device: Option<String>,
}

/// How often a role may fail before the launch ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Restarts {
    /// This many failures …
    pub most: usize,
    /// … within this many seconds.
    pub within_s: f64,
}

/// What a Slurm script needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Nodes of the job.
    pub nodes: u32,
    /// Cores of each process.
    pub cpus_per_task: u32,
    /// Time limit.
    pub time: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// Further lines for `#SBATCH`, such as `--gres=gpu:1`.
    pub options: Vec<String>,
}

/// What Kubernetes manifests need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kubernetes {
    /// An image with the program and libtorch.
    pub image: String,
    /// Namespace.
    pub namespace: Option<String>,
    /// Size of the volume for the run's folder.
    pub storage: String,
    /// Cores of the learner, and of each actor and evaluator.
    pub learner_cpu: String,
    /// See `learner_cpu`.
    pub cpu: String,
    /// Memory of the learner, and of each actor and evaluator.
    pub learner_memory: String,
    /// See `learner_memory`.
    pub memory: String,
    /// GPUs of the learner.
    pub learner_gpus: u32,
}

impl Default for Restarts {
    fn default() -> Self {
        Self {
            most: 5,
            within_s: 60.0,
        }
    }
}

impl Default for Slurm {
    fn default() -> Self {
        Self {
            nodes: 2,
            cpus_per_task: 1,
            time: None,
            partition: None,
            options: Vec::new(),
        }
    }
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            image: "starling:latest".into(),
            namespace: None,
            storage: "20Gi".into(),
            learner_cpu: "4".into(),
            cpu: "2".into(),
            learner_memory: "16Gi".into(),
            memory: "4Gi".into(),
            learner_gpus: 0,
        }
    }
}

fn default_name() -> String {
    "run".into()
}

fn default_transport() -> String {
    "grpc".into()
}

fn default_folder() -> String {
    "starling".into()
}

fn default_heartbeat_timeout_s() -> f64 {
    60.0
}

fn one() -> usize {
    1
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It learns.
    Learner,
    /// It collects.
    Actor,
    /// It evaluates.
    Evaluator,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Learner => "learner",
            Self::Actor => "actor",
            Self::Evaluator => "evaluator",
        }
    }
}

/// A process that is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// What it does.
    pub kind: Kind,
    /// Counts those of its kind from 0.
    pub number: usize,
    /// Where.
    pub host: Host,
    /// Its arguments; a learner's are those of `train`.
    pub arguments: Vec<String>,
    /// The learner whose join file it gets.
    pub serves: usize,
}

impl Role {
    /// Whether it is learner 0, which is the run.
    pub fn leads(&self) -> bool {
        self.kind == Kind::Learner && self.number == 0
    }
}

/// Processes that a plan may have.
const MOST_ROLES: usize = 10_000;

impl Plan {
    /// From the content of `cluster.yaml`, read as a tree.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_value(tree: Value) -> Result<Self, LaunchError> {
        let plan: Self = serde_json::from_value(tree).map_err(|error| wrong(&error.to_string()))?;
        plan.roles()?;
        if !(1.0..=86_400.0).contains(&plan.heartbeat_timeout_s) {
            let given = plan.heartbeat_timeout_s;
            let what = format!("heartbeat_timeout_s is {given}; allowed: 1 to 86400");
            return Err(wrong(&what));
        }
        Ok(plan)
    }

    /// From a CSV of hosts with the columns `job`, `ip`, and optionally `ssh_port` and `ssh_username`.
    /// The settings of the run come from elsewhere.
    ///
    /// # Errors
    /// What is wrong with it; a column for passwords is refused.
    pub fn from_csv(text: &str, run: Map<String, Value>) -> Result<Self, LaunchError> {
        let rows = hosts::read_csv(text)?;
        let of = |job: &'static str| rows.iter().filter(move |row| row.job == job);
        let mut learners = of("learner");
        let learner = learners
            .next()
            .ok_or_else(|| wrong("no line has the job 'learner'"))?;
        let group = |row: &hosts::Row| Group {
            host: row.host.to_string(),
            count: 1,
            threads: None,
            central: false,
            device: row.device.clone(),
        };
        let tree = serde_json::json!({
            "run": run,
            "learner": {
                "host": learner.host.to_string(),
                "listen": learner.port.map(|port| format!("0.0.0.0:{port}")),
                "advertise": (learner.host != Host::Local).then(|| learner.host.name().to_owned()),
                "device": learner.device,
            },
            "learners": learners.map(group).collect::<Vec<_>>(),
            "actors": of("actor").map(group).collect::<Vec<_>>(),
            "evaluators": of("evaluator").map(group).collect::<Vec<_>>(),
        });
        Self::from_value(tree)
    }

    /// All processes, the learner first.
    ///
    /// # Errors
    /// When the plan makes no sense.
    pub fn roles(&self) -> Result<Vec<Role>, LaunchError> {
        let mut roles = vec![Role {
            kind: Kind::Learner,
            number: 0,
            host: Host::parse(&self.learner.host)?,
            arguments: self.train_arguments()?,
            serves: 0,
        }];
        let learners = self.count_learners()?;
        let groups = [
            (Kind::Learner, &self.learners),
            (Kind::Actor, &self.actors),
            (Kind::Evaluator, &self.evaluators),
        ];
        for (kind, groups) in groups {
            let mut number = usize::from(kind == Kind::Learner);
            for group in groups {
                for host in hosts::expand(&group.host)? {
                    for _ in 0..group.count {
                        let mut arguments = group.arguments(kind)?;
                        if kind == Kind::Learner {
                            arguments.extend(["--rank".to_owned(), number.to_string()]);
                        }
                        roles.push(Role {
                            kind,
                            number,
                            host: host.clone(),
                            arguments,
                            // Actors are divided among the learners in turn.
                            serves: match kind {
                                Kind::Actor => number % learners,
                                Kind::Learner | Kind::Evaluator => 0,
                            },
                        });
                        number += 1;
                        if roles.len() > MOST_ROLES {
                            return Err(wrong(&format!("more than {MOST_ROLES} processes")));
                        }
                    }
                }
            }
        }
        Ok(roles)
    }

    /// Where the learner listens.
    ///
    /// # Errors
    /// When a host is none.
    pub fn listen(&self) -> Result<String, LaunchError> {
        if self.transport != "grpc" {
            return Ok(self.transport.clone());
        }
        if let Some(listen) = &self.learner.listen {
            return Ok(listen.clone());
        }
        Ok(match self.is_near()? {
            true => "127.0.0.1:0".into(),
            false => "0.0.0.0:7777".into(),
        })
    }

    /// Whether everything is on this machine.
    fn is_near(&self) -> Result<bool, LaunchError> {
        let mut all = vec![Host::parse(&self.learner.host)?];
        let groups = self.learners.iter().chain(&self.actors);
        for group in groups.chain(&self.evaluators) {
            all.extend(hosts::expand(&group.host)?);
        }
        Ok(all.iter().all(|host| *host == Host::Local))
    }

    /// How many learners there are.
    ///
    /// # Errors
    /// When a host is none.
    pub fn count_learners(&self) -> Result<usize, LaunchError> {
        let mut learners = 1;
        for group in &self.learners {
            learners += hosts::expand(&group.host)?.len() * group.count;
        }
        Ok(learners)
    }

    /// Whether learners have actors or evaluators elsewhere. A single learner always waits for some.
    pub(super) fn has_remote(&self, kind: Kind) -> bool {
        let some = |groups: &[Group]| groups.iter().any(|group| group.count > 0);
        match kind {
            Kind::Actor => some(&self.actors) || !some(&self.learners),
            Kind::Evaluator => some(&self.evaluators),
            Kind::Learner => some(&self.learners),
        }
    }

    /// The arguments of `train`, except for the address to listen on.
    ///
    /// # Errors
    /// When there is no environment.
    pub fn train_arguments(&self) -> Result<Vec<String>, LaunchError> {
        let mut run = self.run.clone();
        let mut arguments = vec!["train".to_owned()];
        // `env: X`, or `env: {id: X, …}`; the same for the algorithm.
        for (key, name, flag) in [("env", "id", None), ("algo", "name", Some("--algo"))] {
            let value = match run.get_mut(key) {
                Some(Value::Object(section)) => section.remove(name),
                Some(_) => run.remove(key),
                None => None,
            };
            match value {
                Some(Value::String(value)) => {
                    arguments.extend(flag.map(str::to_owned));
                    arguments.push(value);
                }
                Some(other) => return Err(wrong(&format!("run.{key} is {other}, not a name"))),
                None if flag.is_none() => return Err(wrong("run.env is missing")),
                None => {}
            }
        }
        if let Some(preset) = run.remove("preset") {
            let preset = preset.as_str().map(str::to_owned);
            let preset = preset.ok_or_else(|| wrong("run.preset is not a name"))?;
            arguments.extend(["--preset".to_owned(), preset]);
        }
        arguments.extend(["--name".to_owned(), self.name.clone()]);
        let mut pairs = Vec::new();
        flatten("", &Value::Object(run), &mut pairs);
        if self.evaluators.iter().any(|group| group.count > 0)
            && !pairs.iter().any(|pair| pair.starts_with("eval.by="))
        {
            pairs.push("eval.by=evaluators".into());
        }
        if self.has_remote(Kind::Learner) {
            let learners = format!("learners={}", self.count_learners()?);
            let given = pairs.iter().find(|pair| pair.starts_with("learners="));
            if let Some(given) = given.filter(|given| **given != learners) {
                let text = format!("run has {given}, but `learner` and `learners` are {learners}");
                return Err(wrong(&text));
            }
            pairs.retain(|pair| *pair != learners);
            pairs.push(learners);
        }
        if let Some(device) = &self.learner.device {
            pairs.retain(|pair| !pair.starts_with("device="));
            pairs.push(format!("device={device}"));
        }
        arguments.extend(pairs);
        Ok(arguments)
    }

    /// How the learner listens: the arguments for `train` and `resume`.
    ///
    /// # Errors
    /// When a host is none.
    pub fn listen_arguments(&self) -> Result<Vec<String>, LaunchError> {
        let mut arguments = Vec::new();
        if self.has_remote(Kind::Learner) {
            arguments.extend(["--learners-at".to_owned(), self.learners_at()?]);
        }
        if !self.has_remote(Kind::Actor) && !self.has_remote(Kind::Evaluator) {
            return Ok(arguments);
        }
        arguments.extend(["--listen".to_owned(), self.listen()?]);
        if let Some(host) = &self.learner.advertise {
            arguments.extend(["--advertise".to_owned(), host.clone()]);
        }
        if self.insecure {
            arguments.push("--insecure".into());
        }
        Ok(arguments)
    }

    /// Where learner 0 listens for the others.
    ///
    /// # Errors
    /// When a host is none.
    pub(super) fn learners_at(&self) -> Result<String, LaunchError> {
        Ok(match (&self.learner.learners_at, self.is_near()?) {
            (Some(address), _) => address.clone(),
            (None, true) => "127.0.0.1:0".into(),
            (None, false) => "0.0.0.0:7788".into(),
        })
    }

    /// The same for another learner, which has its own actors: at any port.
    ///
    /// # Errors
    /// When a host is none.
    pub(super) fn listen_arguments_of(&self, role: &Role) -> Result<Vec<String>, LaunchError> {
        if !self.has_remote(Kind::Actor) {
            return Ok(Vec::new());
        }
        let mut arguments = vec!["--listen".to_owned()];
        if self.transport != "grpc" {
            arguments.push(self.transport.clone());
            if let Some(host) = &self.learner.advertise {
                arguments.extend(["--advertise".to_owned(), host.clone()]);
            }
        } else {
            // At the same addresses as learner 0.
            let listen = self.listen()?;
            let host = listen.rsplit_once(':').map_or(&*listen, |(host, _)| host);
            arguments.push(format!("{host}:0"));
            if let (Host::Ssh { .. }, Some(_)) = (&role.host, &self.learner.advertise) {
                arguments.extend(["--advertise".to_owned(), role.host.name().to_owned()]);
            }
        }
        if self.insecure {
            arguments.push("--insecure".into());
        }
        Ok(arguments)
    }
}

impl Group {
    fn arguments(&self, kind: Kind) -> Result<Vec<String>, LaunchError> {
        let mut arguments = vec![kind.name().to_owned()];
        if kind != Kind::Actor && (self.threads.is_some() || self.central) {
            let name = kind.name();
            return Err(wrong(&format!("{name}s have no threads and central")));
        }
        if let Some(threads) = self.threads {
            arguments.extend(["--threads".to_owned(), threads.to_string()]);
        }
        if self.central {
            arguments.push("--central".into());
        }
        if let Some(device) = &self.device {
            arguments.extend(["--device".to_owned(), device.clone()]);
        }
        Ok(arguments)
    }
}

/// Every setting as `section.key=value`.
fn flatten(path: &str, value: &Value, pairs: &mut Vec<String>) {
    match value {
        Value::Object(section) if !section.is_empty() || path.is_empty() => {
            for (key, value) in section {
                let path = match path {
                    "" => key.clone(),
                    _ => format!("{path}.{key}"),
                };
                flatten(&path, value, pairs);
            }
        }
        Value::String(text) => pairs.push(format!("{path}={text}")),
        other => pairs.push(format!("{path}={other}")),
    }
}

fn wrong(what: &str) -> LaunchError {
    LaunchError::Plan(what.to_owned())
}
