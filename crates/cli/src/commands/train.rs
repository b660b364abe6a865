//! `starling train`: starts a run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use crate::queue::{Seeds, Sweep};
use crate::record::RunFolder;
use crate::settings::{self, Request};
use crate::{Outcome, Reason, Training, presets};

use super::group::Others;
use super::listen::Listen;
use super::numbers::{at_least_one, at_least_one_or_auto, grouped, whole};
use super::own_evaluator::OwnEvaluator;
use super::progress::Progress;
use super::{bf16, caller, dashboard, many, mpi, signals};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    wanted: Wanted,
    /// Name of the run
    #[arg(long, default_value = "run")]
    name: String,
    /// Folder in which runs are stored
    #[arg(long, default_value = super::RUNS, value_name = "DIR")]
    runs: PathBuf,
    /// Stop with a checkpoint after this many steps; `resume` continues from there
    #[arg(long, value_name = "STEPS", value_parser = whole, allow_negative_numbers = true)]
    stop_after: Option<u64>,
    /// Print only the folder of the run: no progress bar and no summary
    #[arg(long, short)]
    quiet: bool,
    /// Print a time breakdown, and compare the speed with that of the environments and of the
    /// learner alone
    #[arg(long)]
    profile: bool,
    /// Make one run for each of these seeds, such as 1..5 (five seeds) or 1,2,7
    #[arg(long, conflicts_with_all = ["seed", "listen", "learners_at", "profile", "stop_after"])]
    seeds: Option<Seeds>,
    /// With --seeds: runs at the same time [default: one per GPU, or one per two cores]
    #[arg(
        long,
        value_name = "N",
        requires = "seeds",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    jobs: Option<u64>,
    /// Show all runs in the folder of --runs in a browser while this one trains [default port: any free
    /// one]
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    dashboard: Option<u16>,
    /// Stop when this process, which started the program, ends
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<u32>,
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    others: Others,
}

/// What to train: shared with `starling config show`.
#[derive(clap::Args)]
pub(super) struct Wanted {
    /// Environment, such as CartPole-v1; `starling list envs` shows all
    #[arg(value_parser = env_ids(), hide_possible_values = true)]
    env: Option<String>,
    /// Algorithm; `starling list algos` shows all [default: ppo, or what `starling list
    /// envs` says]
    #[arg(long, value_parser = algo_names(), hide_possible_values = true)]
    algo: Option<String>,
    /// Preset to use instead of the default for the environment and algorithm; `none` for no preset
    #[arg(long, value_parser = preset_names(), hide_possible_values = true)]
    preset: Option<String>,
    /// YAML file of settings, applied on top of the preset
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, value_parser = whole, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Steps of all environments together, such as 1e6
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    steps: Option<u64>,
    /// Number of environments; `auto` chooses by mode, cores and device
    #[arg(
        long,
        value_name = "N|auto",
        value_parser = at_least_one_or_auto,
        allow_negative_numbers = true
    )]
    num_envs: Option<u64>,
    /// Device: auto, cpu, cuda:0
    #[arg(long, value_parser = devices(), hide_possible_values = true)]
    device: Option<String>,
    /// Settings, applied last: algo.learning_rate=0.001 mode=threads envs=32 …
    #[arg(
        value_name = "KEY=VALUE",
        value_parser = setting_names(),
        hide_possible_values = true
    )]
    overrides: Vec<String>,
}

impl Wanted {
    pub(super) fn request(self) -> Request {
        let mut overrides = self.overrides;
        let mut env = self.env;
        // Without an environment the first pair takes its place.
        if env.as_ref().is_some_and(|env| env.contains('=')) {
            overrides.extend(env.take());
        }
        overrides.extend(self.seed.map(|seed| format!("seed={seed}")));
        overrides.extend(self.steps.map(|steps| format!("steps={steps}")));
        overrides.extend(self.num_envs.map(|envs| format!("envs={envs}")));
        overrides.extend(self.device.map(|device| format!("device={device}")));
        Request {
            env,
            algo: self.algo,
            preset: self.preset,
            file: self.config,
            overrides,
        }
    }
}

/// Any text is accepted here, so that the error for a wrong name suggests the nearest names; the
/// known names are offered for completion.
pub(super) fn env_ids() -> Offered {
    Offered(|| {
        crate::envs::registry::all()
            .iter()
            .map(|env| env.id)
            .collect()
    })
}

fn preset_names() -> Offered {
    Offered(|| {
        let names = presets::all().iter().map(|preset| preset.name);
        names.chain(["none"]).collect()
    })
}

pub(super) fn devices() -> Offered {
    Offered(|| vec!["auto", "cpu", "cuda:0"])
}

pub(super) fn algo_names() -> Offered {
    Offered(|| {
        crate::algos::registry::all()
            .iter()
            .map(|algo| algo.name)
            .collect()
    })
}

/// Of every algorithm and family of environments: a completion script does not know which.
pub(super) fn setting_names() -> Offered {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(settings::names::assignments);
    Offered(|| NAMES.iter().map(String::as_str).collect())
}

#[derive(Clone)]
pub(super) struct Offered(pub(super) fn() -> Vec<&'static str>);

impl clap::builder::TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(
        &self,
    ) -> Option<Box<dyn Iterator<Item = clap::builder::PossibleValue> + '_>> {
        let names = (self.0)().into_iter();
        Some(Box::new(names.map(clap::builder::PossibleValue::new)))
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    signals::end_with(args.end_with)?;
    let mut request = args.wanted.request();
    if let Some(seeds) = args.seeds {
        if let Some(port) = args.dashboard {
            dashboard::beside(&args.runs, port, None, |line| note!("{line}"))?;
        }
        return run_seeds(&request, seeds, &args.runs, &args.name, args.jobs);
    }
    // The user's settings come after it.
    request.overrides.splice(0..0, args.listen.overrides());
    // The size of some observations is only known with the ROM or the model.
    if let Some(env) = settings::env_of(&request) {
        super::roms::ensure(&env)?;
        super::mujoco::ensure(&env)?;
    }
    let mut config = settings::resolve(&request)?;
    let world = mpi::World::join(&config)?;
    if let Some(follower) = world.filter(mpi::World::follows) {
        return follower.follow();
    }
    bf16::ensure(&mut config)?;
    args.others.adapt(&mut config, &args.listen)?;
    let mut progress = Progress::new(args.quiet);
    let stop = signals::stop_flag(progress.speaker())?;
    args.listen.obey(&stop)?;
    let asked = signals::checkpoint_flag()?;
    let folder = crate::create_folder(&config, &args.runs, &args.name)?;
    write_log(&folder)?;
    progress.begin(&config, folder.path());
    if let Some(port) = args.dashboard {
        let run = Some(folder.path());
        dashboard::beside(&args.runs, port, run, |line| note!("{line}"))?;
    }
    let training = Training::start(config.clone(), &folder)?;
    let profile = training.profile();
    progress.replay(training.replay_memory());
    let (training, gateway) = args
        .listen
        .open(training, &folder, |line| progress.say(line))?;
    let training = training.with_checkpoints_on_request(asked);
    let evaluator = OwnEvaluator::start(&training, &folder)?;
    let (training, learners) =
        args.others
            .gather(training, &folder, None, &args.listen, |line| {
                progress.say(line)
            })?;
    let outcome = training.run(&stop, args.stop_after, &mut progress);
    // Actors, evaluators and other learners are told that the run has ended.
    drop((gateway, evaluator, learners));
    progress.end(&outcome);
    let outcome = outcome.inspect_err(|_| suggest_resume(&folder))?;
    world.map_or(Ok(()), mpi::World::end)?;
    let code = finish(&outcome, folder.path(), args.quiet);
    if args.profile {
        super::profile::print(&config, &profile, outcome.status.steps_per_second)?;
    }
    Ok(code)
}

/// Whether these arguments would start a run, as far as this machine can tell.
pub(super) fn check(arguments: &[String]) -> anyhow::Result<()> {
    #[derive(clap::Parser)]
    struct Train {
        #[command(flatten)]
        args: Args,
    }
    let parsed = <Train as clap::Parser>::try_parse_from(arguments);
    let parsed = parsed.map_err(|error| super::Usage(error.to_string()))?;
    let mut request = parsed.args.wanted.request();
    if let Some(env) = settings::env_of(&request) {
        super::roms::ensure(&env)?;
        super::mujoco::ensure(&env)?;
    }
    // The learner's machine has its own devices.
    request
        .overrides
        .extend(["mode=threads".into(), "device=cpu".into()]);
    settings::resolve(&request)?;
    Ok(())
}

/// One run for each seed, as a queue below the folder of all runs.
fn run_seeds(
    request: &Request,
    seeds: Seeds,
    runs: &Path,
    name: &str,
    jobs: Option<u64>,
) -> anyhow::Result<ExitCode> {
    let base = settings::joined(request)?;
    let named = |pointer: &str| Some(base.pointer(pointer)?.as_str()?.replace('/', "-"));
    let parts = [named("/env/id"), named("/algo/name"), Some(name.to_owned())];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let folder = runs.join("queues").join(parts.join("-"));
    let mut sweep = Sweep {
        seeds,
        ..Sweep::default()
    };
    if let serde_json::Value::Object(settings) = base {
        sweep.base = settings;
    }
    if let Some(preset) = &request.preset {
        sweep
            .base
            .insert("preset".to_owned(), preset.as_str().into());
    }
    many::run(&sweep, &folder, &many::Places::of(jobs))
}

/// Everything that libraries report goes to the log file of the run, including panics.
pub(super) fn write_log(folder: &RunFolder) -> anyhow::Result<()> {
    let file = folder.open_log()?;
    tracing_subscriber::fmt()
        .with_writer(std::sync::Mutex::new(file))
        .with_ansi(false)
        .with_target(false)
        // They would go to standard error by `eprintln!`, which panics where that is full.
        .log_internal_errors(false)
        .init();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        usual(panic);
    }));
    Ok(())
}

/// Says that a failed run can be continued, if it has a checkpoint.
pub(super) fn suggest_resume(folder: &RunFolder) {
    let checkpoints = std::fs::read_dir(folder.checkpoints_path());
    let mut entries = checkpoints.into_iter().flatten().flatten();
    // Complete checkpoints are called by their step.
    let is_step = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    if entries.any(|entry| entry.file_name().to_str().is_some_and(is_step)) {
        let run = caller::path(folder.path());
        note!(
            "the run can be continued from its last checkpoint: {} resume {run}",
            caller::name()
        );
    }
}

/// Says how the run ended and what to do next.
pub(super) fn finish(outcome: &Outcome, folder: &Path, quiet: bool) -> ExitCode {
    let status = &outcome.status;
    let code = match outcome.reason {
        Reason::Interrupted => 130,
        Reason::Finished | Reason::Solved | Reason::Paused => 0,
    };
    if quiet {
        super::write_or_exit(&folder.display().to_string(), code);
        return code.into();
    }
    let how = match outcome.reason {
        Reason::Finished => "finished",
        Reason::Solved => "solved",
        Reason::Paused => "paused",
        Reason::Interrupted => "interrupted",
    };
    let mean = match (status.mean_return, status.counts_games) {
        (Some(mean), true) => format!("mean score {mean:.1} over the last games (at most 100)"),
        (Some(mean), false) => {
            let last = status.episodes.min(100);
            format!("mean return {mean:.1} over the last {last} episodes")
        }
        (None, true) => "no game ended".into(),
        (None, false) => "no episode ended".into(),
    };
    let mut text = format!(
        "{how}: {mean}\n{} steps and {} episodes in {:.1} s\n",
        grouped(status.env_steps),
        grouped(status.episodes),
        status.elapsed.as_secs_f64()
    );
    if status.updates == 0 {
        text += "nothing was learned yet: the learner made no update (see \
                 algo.learning_starts_steps)\n";
    }
    let (starling, run) = (caller::name(), caller::path(folder));
    text += &format!("run: {}\n\nnext:\n", folder.display());
    if matches!(outcome.reason, Reason::Paused | Reason::Interrupted) {
        text += &format!("  {starling} resume {run}\n");
    }
    text += &format!("  {starling} eval {run}\n");
    // A run that was stopped early may have no metrics yet.
    if folder.join("progress.csv").is_file() {
        text += &format!("  {starling} plot {run}\n  tensorboard --logdir {run}\n");
    }
    super::write_or_exit(&text, code);
    code.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_reach_the_log_of_the_run() {
        let root = tempfile::tempdir().unwrap();
        let config = settings::resolve(&Request::new("CartPole-v1")).unwrap();
        let folder = crate::create_folder(&config, root.path(), "test").unwrap();
        write_log(&folder).unwrap();
        let thread = std::thread::spawn(|| panic!("the wheel came off"));
        thread.join().unwrap_err();
        let log = std::fs::read_to_string(folder.log_path()).unwrap();
        assert!(
            log.contains("ERROR") && log.contains("the wheel came off"),
            "{log}"
        );
    }
}
