//! What `--profile` prints: a time breakdown, and the speed relative to its limits.

use starling_engine::{Profile, limits};

use crate::RunConfig;

/// Seconds that each limit is measured for.
const MEASURE_S: f64 = 3.0;

pub(super) fn print(config: &RunConfig, profile: &Profile, rate: f64) -> anyhow::Result<()> {
    say!("\ntime breakdown (all threads of a component together):");
    for (component, activities) in profile.components() {
        let total: f64 = activities.iter().map(|(_, s)| s.time.as_secs_f64()).sum();
        say!("  {component:<14} {total:>9.2} s");
        for (activity, spent) in activities {
            let seconds = spent.time.as_secs_f64();
            let each = seconds / spent.times.max(1) as f64 * 1e6;
            say!(
                "    {activity:<12} {seconds:>9.2} s {:>6.1} %  {} times, {each:.0} us each",
                100.0 * seconds / total.max(1e-9),
                spent.times
            );
        }
    }
    let limits = limits(config, MEASURE_S)?;
    say!("speed relative to its limits:");
    let share = |limit: f64| 100.0 * rate / limit;
    let (envs, learner) = (limits.env_steps_per_second, limits.learner_steps_per_second);
    say!("  the run           {rate:>9.0} steps/s");
    say!(
        "  environments only {envs:>9.0} steps/s ({:.0} % reached)",
        share(envs)
    );
    // With a replay the number of updates per step is a setting.
    if learner.is_finite() {
        say!(
            "  learner only      {learner:>9.0} steps/s ({:.0} % reached)",
            share(learner)
        );
    }
    Ok(())
}
