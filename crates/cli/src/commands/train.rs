//! `starling train`: a run from its beginning.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::record::RunFolder;
use crate::settings::{self, Request};
use crate::{Outcome, Reason, Training};

use super::progress::Progress;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    wanted: Wanted,
    /// Name of the run
    #[arg(long, default_value = "run")]
    name: String,
    /// Folder that runs are kept in
    #[arg(long, default_value = "runs", value_name = "DIR")]
    runs: PathBuf,
    /// Stop with a checkpoint after so many steps; `resume` goes on
    #[arg(long, value_name = "STEPS")]
    stop_after: Option<u64>,
    /// No progress bar and no summary
    #[arg(long, short)]
    quiet: bool,
    /// Say at the end where the time went, and how near it came to what the environments and
    /// the learner could do alone
    #[arg(long)]
    profile: bool,
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
    /// Preset instead of the usual one of environment and algorithm; `none` for none
    #[arg(long)]
    preset: Option<String>,
    /// YAML file of settings, laid over the preset
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Every random number of the run follows from it
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of all environments together
    #[arg(long)]
    steps: Option<u64>,
    /// Environments of the run; `auto` chooses by mode, cores and device
    #[arg(long, value_name = "N|auto", value_parser = number_or_auto)]
    num_envs: Option<usize>,
    /// Settings, laid over everything else: algo.learning_rate=0.001 mode=threads envs=32 …
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

impl Wanted {
    pub(super) fn request(self) -> Request {
        let mut overrides = self.overrides;
        let mut env = self.env;
        // Without an environment the first pair stands in its place.
        if env.as_ref().is_some_and(|env| env.contains('=')) {
            overrides.extend(env.take());
        }
        overrides.extend(self.seed.map(|seed| format!("seed={seed}")));
        overrides.extend(self.steps.map(|steps| format!("steps={steps}")));
        overrides.extend(self.num_envs.map(|envs| format!("envs={envs}")));
        Request {
            env,
            algo: self.algo,
            preset: self.preset,
            file: self.config,
            overrides,
        }
    }
}

/// A number, where `auto` is 0.
fn number_or_auto(text: &str) -> Result<usize, String> {
    match text {
        "auto" => Ok(0),
        number => number
            .parse()
            .map_err(|_| "allowed: a number, or auto".to_owned()),
    }
}

/// Any text is accepted here, so that a wrong name gets our own message with the nearest names;
/// the known ones are offered for completion.
fn env_ids() -> Offered {
    Offered(|| {
        crate::envs::registry::all()
            .iter()
            .map(|env| env.id)
            .collect()
    })
}

fn algo_names() -> Offered {
    Offered(|| {
        crate::algos::registry::all()
            .iter()
            .map(|algo| algo.name)
            .collect()
    })
}

#[derive(Clone)]
struct Offered(fn() -> Vec<&'static str>);

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
    let request = args.wanted.request();
    // The size of some observations is only known with the ROM.
    if let Some(env) = &request.env {
        super::roms::ensure(env)?;
    }
    let config = settings::resolve(&request)?;
    super::roms::ensure(&config.env_id)?;
    let stop = stop_flag()?;
    let folder = crate::create_folder(&config, &args.runs, &args.name)?;
    write_log(&folder)?;
    let mut progress = Progress::new(args.quiet);
    progress.begin(&config, folder.path());
    let training = Training::start(config.clone(), &folder)?;
    let profile = training.profile();
    progress.replay(training.replay_memory());
    let outcome = training.run(&stop, args.stop_after, &mut progress)?;
    progress.end();
    let code = finish(&outcome, folder.path(), args.quiet);
    if args.profile {
        super::profile::print(&config, &profile, outcome.status.steps_per_second)?;
    }
    Ok(code)
}

/// Set by the first Ctrl-C or SIGTERM; the second one ends the program at once.
pub(super) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and only sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Everything that libraries report goes to the run's own log file.
pub(super) fn write_log(folder: &RunFolder) -> anyhow::Result<()> {
    let file = folder.open_log()?;
    tracing_subscriber::fmt()
        .with_writer(std::sync::Mutex::new(file))
        .with_ansi(false)
        .with_target(false)
        .init();
    Ok(())
}

/// Says how the run ended and what to do next.
pub(super) fn finish(outcome: &Outcome, folder: &Path, quiet: bool) -> ExitCode {
    let status = &outcome.status;
    let code = match outcome.reason {
        Reason::Interrupted => ExitCode::from(130),
        Reason::Finished | Reason::Solved | Reason::Paused => ExitCode::SUCCESS,
    };
    if quiet {
        return code;
    }
    let how = match outcome.reason {
        Reason::Finished => "finished",
        Reason::Solved => "solved",
        Reason::Paused => "paused",
        Reason::Interrupted => "interrupted",
    };
    let mean = match status.mean_return {
        Some(mean) => {
            let last = status.episodes.min(100);
            format!("mean return {mean:.1} over the last {last} episodes")
        }
        None => "no episode ended".into(),
    };
    say!(
        "{how}: {mean}, {} steps and {} episodes in {:.1} s",
        status.env_steps,
        status.episodes,
        status.elapsed.as_secs_f64()
    );
    if status.updates == 0 {
        say!(
            "nothing was learned yet: the learner made no update (see algo.learning_starts_steps)"
        );
    }
    let run = folder.display();
    say!("run: {run}\n\nnext:");
    if matches!(outcome.reason, Reason::Paused | Reason::Interrupted) {
        say!("  ./starling resume {run}");
    }
    say!("  ./starling eval {run}");
    say!("  ./starling plot {run}");
    say!("  tensorboard --logdir {run}");
    code
}
