//! Where the time of a run goes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time by component and activity, added up over all threads of a component.
#[derive(Debug, Default)]
pub struct Profile {
    /// Threads that add at the same time have different ones, so that they do not wait for each
    /// other: it is done twice per step of every actor.
    shards: [Shard; SHARDS],
}

const SHARDS: usize = 32;

/// On separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Spendings>);

type Spendings = BTreeMap<(&'static str, &'static str), Spent>;

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Spendings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the calling thread's one.
    fn of_thread() -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
        }
        NUMBER.with(|number| *number)
    }
}

/// What an activity took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// All of it together.
    pub time: Duration,
    /// How often it was done.
    pub times: u64,
}

impl Profile {
    /// Counts one more time.
    pub fn add(&self, component: &'static str, activity: &'static str, time: Duration) {
        let mut spent = self.shards[Shard::of_thread()].lock();
        let entry = spent.entry((component, activity)).or_default();
        entry.time += time;
        entry.times += 1;
    }

    /// Components with their activities, the longest first.
    pub fn components(&self) -> Vec<(&'static str, Vec<(&'static str, Spent)>)> {
        let mut all = Spendings::new();
        for shard in &self.shards {
            for (&activity, spent) in shard.lock().iter() {
                let entry = all.entry(activity).or_default();
                entry.time += spent.time;
                entry.times += spent.times;
            }
        }
        let mut components: Vec<(&'static str, Vec<(&'static str, Spent)>)> = Vec::new();
        for ((component, activity), spent) in all {
            match components.last_mut() {
                Some((name, activities)) if *name == component => {
                    activities.push((activity, spent));
                }
                _ => components.push((component, vec![(activity, spent)])),
            }
        }
        for (_, activities) in &mut components {
            activities.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.time));
        }
        components
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activities_are_grouped_and_sorted() {
        let profile = Profile::default();
        let millis = Duration::from_millis;
        profile.add("learner", "wait", millis(1));
        profile.add("actor", "step", millis(5));
        profile.add("learner", "update", millis(2));
        profile.add("learner", "update", millis(2));
        let components = profile.components();
        assert_eq!(components.len(), 2);
        let (name, activities) = &components[1];
        assert_eq!((*name, activities[0].0), ("learner", "update"));
        let twice = Spent {
            time: millis(4),
            times: 2,
        };
        assert_eq!(activities[0].1, twice);
    }
    /// Whatever thread adds, it counts.
    #[test]
    fn threads_are_added_up() {
        let profile = Profile::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| profile.add("actor", "step", Duration::from_millis(3)));
            }
        });
        let times = 2 * SHARDS as u64;
        let time = Duration::from_millis(3 * times);
        let spent = Spent { time, times };
        assert_eq!(profile.components(), [("actor", vec![("step", spent)])]);
    }
}
