//! Two machines on this one: network namespaces, joined by a link with a limited rate.

use std::path::Path;
use std::process::Command;

/// The network device of the first machine.
pub(super) const DEVICE: &str = "va";

/// Both machines. They are removed in the end.
pub(super) struct Net {
    a: String,
    b: String,
}

impl Net {
    /// Their names, if this user may make them (root). `rate` is that of each direction, as `tc` reads
    /// it.
    pub(super) fn new(rate: &str) -> Option<Self> {
        let id = std::process::id();
        let net = Self {
            a: format!("starling{id}a"),
            b: format!("starling{id}b"),
        };
        let (a, b) = (net.a.as_str(), net.b.as_str());
        let made = run("ip", &["netns", "add", a])
            && run("ip", &["netns", "add", b])
            && run(
                "ip",
                &[
                    "link", "add", DEVICE, "netns", a, "type", "veth", "peer", "name", "vb",
                    "netns", b,
                ],
            )
            && [(a, DEVICE, "10.78.0.1/24"), (b, "vb", "10.78.0.2/24")]
                .iter()
                .all(|(space, device, address)| {
                    run("ip", &["-n", space, "addr", "add", address, "dev", device])
                        && run("ip", &["-n", space, "link", "set", device, "up"])
                        && run("ip", &["-n", space, "link", "set", "lo", "up"])
                        && run(
                            "tc",
                            &[
                                "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate",
                                rate, "burst", "1mb", "latency", "50ms",
                            ],
                        )
                });
        made.then_some(net)
    }

    /// A command on the first machine.
    pub(super) fn on_a(&self, program: &Path) -> Command {
        inside(&self.a, program)
    }

    /// A command on the second.
    pub(super) fn on_b(&self, program: &Path) -> Command {
        inside(&self.b, program)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in [&self.a, &self.b] {
            run("ip", &["netns", "del", name]);
        }
    }
}

fn inside(space: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", space]).arg(program);
    command
}

fn run(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program).args(args).output();
    done.is_ok_and(|done| done.status.success())
}
