//! Slots: the shares of a machine's cores and GPUs that runs use.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What a run may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Its cores; empty for all.
    pub cores: Vec<usize>,
    /// Its GPU, as `CUDA_VISIBLE_DEVICES` names it; none if the run chooses.
    pub gpu: Option<String>,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cores.as_slice() {
            [] => write!(f, "all cores")?,
            [one] => write!(f, "core {one}")?,
            cores => write!(f, "cores {}", ranges(cores))?,
        }
        match &self.gpu {
            Some(gpu) => write!(f, ", GPU {gpu}"),
            None => Ok(()),
        }
    }
}

/// `[0, 1, 2, 5]` as `0-2,5`.
fn ranges(cores: &[usize]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for core in sorted {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => parts.push((core, core)),
        }
    }
    let text = parts.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

/// GPUs for slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// The GPUs, as `CUDA_VISIBLE_DEVICES` names them.
    pub names: Vec<String>,
    /// The runs that share one.
    pub per_gpu: usize,
}

/// Splits the cores that this process may use among `count` slots. Threads of the same physical
/// core, and cores of the same socket, stay together. With more slots than cores, all slots share
/// all cores. GPUs are given to the slots in turn.
pub fn slots(count: usize, gpus: &Gpus) -> Vec<Slot> {
    let cores = cores();
    let each = cores.len() / count.max(1);
    let left = cores.len() % count.max(1);
    let mut from = 0;
    let slots = (0..count).map(|i| {
        let own = match each {
            0 => Vec::new(),
            _ => {
                let to = from + each + usize::from(i < left);
                let own = cores[from..to].to_vec();
                from = to;
                own
            }
        };
        let gpu = match gpus.names.len() {
            0 => None,
            known => Some(gpus.names[i % known].clone()),
        };
        Slot { cores: own, gpu }
    });
    slots.collect()
}

/// The cores that this process may use, neighbours beside each other.
fn cores() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let mut cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect();
    let place: BTreeMap<usize, (usize, usize)> = cores
        .iter()
        .map(|&core| {
            let read = |name: &str| {
                let path = format!("/sys/devices/system/cpu/cpu{core}/topology/{name}");
                fs::read_to_string(path).ok()?.trim().parse().ok()
            };
            let socket = read("physical_package_id").unwrap_or(0);
            (core, (socket, read("core_id").unwrap_or(core)))
        })
        .collect();
    cores.sort_by_key(|core| (place[core], *core));
    cores
}

/// Restricts the calling thread, and the processes that it starts, to these cores.
pub(super) fn stay_on(cores: &[usize]) -> std::io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_belongs_to_one_slot() {
        let all = cores();
        for count in 1..=all.len() {
            let slots = slots(count, &Gpus::default());
            let mut given: Vec<usize> = slots.iter().flat_map(|slot| slot.cores.clone()).collect();
            let sizes: Vec<usize> = slots.iter().map(|slot| slot.cores.len()).collect();
            given.sort_unstable();
            let mut sorted = all.clone();
            sorted.sort_unstable();
            assert_eq!(given, sorted);
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
        let many = slots(all.len() + 1, &Gpus::default());
        assert!(many.iter().all(|slot| slot.cores.is_empty()));
    }

    #[test]
    fn gpus_are_given_in_turn() {
        let gpus = Gpus {
            names: vec!["0".to_owned(), "3".to_owned()],
            per_gpu: 2,
        };
        let gpus = slots(4, &gpus).into_iter().map(|slot| slot.gpu.unwrap());
        assert_eq!(gpus.collect::<Vec<_>>(), ["0", "3", "0", "3"]);
        assert_eq!(ranges(&[3, 0, 1, 2, 8]), "0-3,8");
    }
}
