//! Where the time of a run goes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time by component and activity, added up over all threads of a component.
#[derive(Debug, Default)]
pub struct Profile {
    spent: Mutex<BTreeMap<(&'static str, &'static str), Spent>>,
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
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = spent.entry((component, activity)).or_default();
        entry.time += time;
        entry.times += 1;
    }

    /// Components with their activities, the longest first.
    pub fn components(&self) -> Vec<(&'static str, Vec<(&'static str, Spent)>)> {
        let spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut components: Vec<(&'static str, Vec<(&'static str, Spent)>)> = Vec::new();
        for (&(component, activity), &time) in spent.iter() {
            match components.last_mut() {
                Some((name, activities)) if *name == component => activities.push((activity, time)),
                _ => components.push((component, vec![(activity, time)])),
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
}
