//! Hosts: their names, ranges of them, and the CSV of other systems.

use std::fmt;

use super::LaunchError;

/// Where a process runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// This machine, without ssh.
    Local,
    /// A machine that ssh reaches.
    Ssh {
        /// `[USER@]HOST`, as ssh takes it.
        destination: String,
        /// The port of its sshd, if it is not the usual one.
        port: Option<u16>,
    },
}

/// A line of the CSV.
pub(super) struct Row {
    pub(super) job: String,
    pub(super) host: Host,
    /// The port at which the learner listens.
    pub(super) port: Option<u16>,
    pub(super) device: Option<String>,
}

/// Hosts that one pattern may name.
const MOST_HOSTS: usize = 10_000;

impl Host {
    /// From `[USER@]HOST[:PORT]` or `local`.
    ///
    /// # Errors
    /// When it is none: only letters, digits, `.`, `-`, `_` and `@` are allowed, so that a name is
    /// never an option or a part of a command.
    pub fn parse(text: &str) -> Result<Self, LaunchError> {
        if text == "local" {
            return Ok(Self::Local);
        }
        let wrong = || {
            let what = format!("'{text}' is not a host; write [USER@]HOST[:PORT], or local");
            LaunchError::Plan(what)
        };
        let (destination, port) = match text.rsplit_once(':') {
            Some((destination, port)) => (destination, Some(port.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_@".contains(c);
        let good = !destination.is_empty()
            && !destination.starts_with(['-', '@', '.'])
            && !destination.ends_with('@')
            && destination.matches('@').count() <= 1
            && !destination.contains("@-")
            && destination.chars().all(plain);
        match good {
            true => Ok(Self::Ssh {
                destination: destination.to_owned(),
                port,
            }),
            false => Err(wrong()),
        }
    }

    /// Its name, without user and port.
    pub fn name(&self) -> &str {
        match self {
            Self::Local => "local",
            Self::Ssh { destination, .. } => {
                let name = destination.rsplit_once('@').map(|(_, name)| name);
                name.unwrap_or(destination)
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => write!(f, "local"),
            Self::Ssh {
                destination,
                port: Some(port),
            } => write!(f, "{destination}:{port}"),
            Self::Ssh { destination, .. } => write!(f, "{destination}"),
        }
    }
}

/// All hosts of a pattern: `cpu[01-16,20]` stands for seventeen.
pub(super) fn expand(pattern: &str) -> Result<Vec<Host>, LaunchError> {
    let wrong = |what: &str| LaunchError::Plan(format!("the hosts '{pattern}' {what}"));
    let Some((before, rest)) = pattern.split_once('[') else {
        return Ok(vec![Host::parse(pattern)?]);
    };
    let (inside, after) = rest
        .split_once(']')
        .ok_or_else(|| wrong("have a [ without its ]"))?;
    if after.contains('[') {
        return Err(wrong("have more than one range"));
    }
    let number = |text: &str| {
        let digits = !text.is_empty() && text.len() < 10;
        let digits = digits && text.bytes().all(|byte| byte.is_ascii_digit());
        match digits {
            true => text.parse::<usize>().map_err(|_| wrong("have no numbers")),
            false => Err(wrong("need whole numbers between the brackets")),
        }
    };
    let mut hosts = Vec::new();
    for part in inside.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (number(first)?, number(last)?);
        if to < from || to - from >= MOST_HOSTS || hosts.len() >= MOST_HOSTS {
            return Err(wrong("have a range that makes no sense"));
        }
        for one in from..=to {
            let width = first.len();
            hosts.push(Host::parse(&format!("{before}{one:0width$}{after}"))?);
        }
    }
    Ok(hosts)
}

/// The columns `job`, `ip` and optionally `tf_port`, `cuda_visible_devices`, `ssh_port`,
/// `ssh_username`.
pub(super) fn read_csv(text: &str) -> Result<Vec<Row>, LaunchError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let plan = |what: String| LaunchError::Plan(what);
    let (_, head) = lines
        .next()
        .ok_or_else(|| plan("the list of hosts is empty".into()))?;
    let columns: Vec<String> = head.split(',').map(|name| name.trim().to_owned()).collect();
    let known = [
        "job",
        "ip",
        "tf_port",
        "cuda_visible_devices",
        "ssh_port",
        "ssh_username",
    ];
    for column in &columns {
        if column.contains("password") {
            let what = format!(
                "the column '{column}' is refused: passwords do not belong in a file. Use keys or \
                 an agent (ssh-copy-id), and remove the column"
            );
            return Err(plan(what));
        }
        if !known.contains(&column.as_str()) {
            let known = known.join(", ");
            return Err(plan(format!(
                "'{column}' is not a column of the list of hosts; known: {known}"
            )));
        }
    }
    let mut rows = Vec::new();
    for (number, line) in lines {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells.len() != columns.len() {
            let (have, want) = (cells.len(), columns.len());
            return Err(plan(format!(
                "line {number} of the list of hosts has {have} cells, not {want}"
            )));
        }
        let cell = |name: &str| {
            let at = columns.iter().position(|column| column == name)?;
            Some(cells[at]).filter(|cell| !cell.is_empty())
        };
        let need = |name: &str| {
            cell(name)
                .ok_or_else(|| plan(format!("line {number} of the list of hosts has no {name}")))
        };
        let port = |name: &str| {
            let wrong = |_| plan(format!("line {number}: {name} is not a port"));
            cell(name).map(str::parse::<u16>).transpose().map_err(wrong)
        };
        let mut host = match (cell("ssh_username"), need("ip")?) {
            (_, "local") => "local".to_owned(),
            (Some(user), ip) => format!("{user}@{ip}"),
            (None, ip) => ip.to_owned(),
        };
        if let Some(port) = port("ssh_port")?.filter(|_| host != "local") {
            host += &format!(":{port}");
        }
        let job = need("job")?;
        let job = match job {
            "worker" => "actor",
            job => job,
        };
        if !["learner", "actor", "evaluator"].contains(&job) {
            return Err(plan(format!(
                "line {number}: the job '{job}' is not learner, actor or evaluator"
            )));
        }
        let device = match cell("cuda_visible_devices") {
            None => None,
            Some("-1" | "cpu") => Some("cpu".to_owned()),
            Some(number) => Some(format!("cuda:{number}")),
        };
        rows.push(Row {
            job: job.to_owned(),
            host: Host::parse(&host)?,
            port: port("tf_port")?,
            device,
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pattern: &str) -> Vec<String> {
        let hosts = expand(pattern).unwrap();
        hosts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_of_hosts_keep_their_zeros() {
        assert_eq!(names("gpu1"), ["gpu1"]);
        assert_eq!(names("cpu[08-10]"), ["cpu08", "cpu09", "cpu10"]);
        assert_eq!(
            names("me@n[1,3-4].lan:22"),
            ["me@n1.lan:22", "me@n3.lan:22", "me@n4.lan:22"]
        );
        for wrong in [
            "cpu[1",
            "cpu[a]",
            "cpu[3-1]",
            "c[1][2]",
            "c[0-99999999]",
            "c[]",
        ] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_host_is_never_an_option_or_a_command() {
        for wrong in [
            "",
            "-oProxyCommand=x",
            "a b",
            "a;b",
            "$(x)",
            "a@-b",
            "@a",
            "a@",
            "a@b@c",
            "h:x",
        ] {
            assert!(Host::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Host::parse("local").unwrap(), Host::Local);
        assert_eq!(Host::parse("me@10.0.0.5:2222").unwrap().name(), "10.0.0.5");
    }

    #[test]
    fn passwords_are_refused() {
        let text = "job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username,ssh_password\n\
                    learner,10.0.0.1,2222,0,22,me,secret\n";
        let error = read_csv(text).err().unwrap().to_string();
        assert!(
            error.contains("ssh_password") && !error.contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn a_list_of_hosts_is_read() {
        let text = "job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username\n\
                    # the machine with the GPU\n\
                    learner,10.0.0.1,7000,0,22,me\n\
                    worker, 10.0.0.2 ,,-1,,\n";
        let rows = read_csv(text).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].job.as_str(), rows[0].port),
            ("learner", Some(7000))
        );
        assert_eq!(rows[0].host.to_string(), "me@10.0.0.1:22");
        assert_eq!(rows[0].device.as_deref(), Some("cuda:0"));
        assert_eq!(
            (rows[1].job.as_str(), rows[1].device.as_deref()),
            ("actor", Some("cpu"))
        );
        assert!(read_csv("job,ip\nboss,a\n").is_err());
        assert!(read_csv("job,host\n").is_err());
        assert!(read_csv("job,ip\nactor\n").is_err());
    }
}
