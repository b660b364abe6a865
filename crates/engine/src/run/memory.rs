//! What fits into this machine's memory.

use std::path::Path;

use starling_algos::{ConfigError, require};

/// Refuses rollouts that this machine's memory cannot hold, and names the larger of their two
/// dimensions.
pub(super) fn rollouts_fit(
    steps: usize,
    envs: usize,
    step_bytes: usize,
) -> Result<(), ConfigError> {
    let rows = steps.saturating_mul(envs);
    match envs > steps {
        true => {
            let hint = format!(" for rollouts of {steps} steps (algo.rollout_steps)");
            fits("envs", envs, rows, step_bytes, &hint)
        }
        false => {
            let hint = format!(" for rollouts of {envs} environments (envs)");
            fits("algo.rollout_steps", steps, rows, step_bytes, &hint)
        }
    }
}

/// Refuses a setting for which memory would have to hold more rows than this machine's can.
pub(super) fn fits(
    key: &str,
    value: usize,
    rows: usize,
    row_bytes: usize,
    hint: &str,
) -> Result<(), ConfigError> {
    let Some(memory) = memory_bytes() else {
        return Ok(());
    };
    let wanted = rows.saturating_mul(row_bytes.max(1));
    let allowed = format!(
        "what fits into memory: it would take {:.1} GB of {:.1}{hint}",
        wanted as f64 / 1e9,
        memory as f64 / 1e9
    );
    require(wanted <= memory, key, value, &allowed)
}

/// Memory that this process may use, where the system says how much: the machine's, less if a
/// control group (a container, a batch job) or `ulimit -v` allows less.
fn memory_bytes() -> Option<usize> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kilobytes: usize = line.split_whitespace().nth(1)?.parse().ok()?;
        kilobytes.checked_mul(1024)
    });
    let address_space = read(Path::new("/proc/self/limits")).and_then(|text| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("Max address space"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let group = group_limit(Path::new("/sys/fs/cgroup"), &groups);
    [machine, address_space, group].into_iter().flatten().min()
}

/// The smallest memory limit of the control groups that `/proc/self/cgroup` names (`groups`), of
/// either version, and of those around them.
fn group_limit(root: &Path, groups: &str) -> Option<usize> {
    let lines = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let path = path.trim_start_matches('/');
        match controllers {
            "" => Some((root.to_owned(), path, "memory.max")),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some((root.join("memory"), path, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    let limits = lines.flat_map(|(root, path, file)| {
        let all: Vec<_> = Path::new(path)
            .ancestors()
            .map(|at| root.join(at).join(file))
            .collect();
        all
    });
    let limits = limits.filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container or a batch job may have less memory than the machine.
    #[test]
    fn control_groups_limit_the_memory() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let limit = |groups| group_limit(root.path(), groups);
        assert_eq!(limit("0::/job/step\n"), None);
        write("job/step/memory.max", "max\n");
        assert_eq!(limit("0::/job/step\n"), None);
        write("job/memory.max", "3000\n");
        assert_eq!(limit("0::/job/step\n"), Some(3000));
        write("job/step/memory.max", "2000\n");
        assert_eq!(limit("0::/job/step\n"), Some(2000));
        write("memory/old/memory.limit_in_bytes", "1000\n");
        assert_eq!(limit("5:cpu:/old\n4:memory:/old\n"), Some(1000));
        assert_eq!(limit("5:cpu:/old\n"), None);
    }
}
