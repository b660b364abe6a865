//! `starling atari verify`: compares the Atari emulator with ale-py, frame by frame.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;

use crate::atari::games::{self, Game};
use crate::envs::atari::parse;
use crate::envs::registry;
use crate::peers;
use crate::verify::{self, Part, Tally};

use super::Usage;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Compare RAM, screen, reward, lives and end of game with ale-py after every frame
    Verify(Verify),
}

/// Without --modes and --sticky, all three parts are compared: every game in its default mode,
/// 600 frames in every mode with every difficulty, and 5,000 frames with sticky actions at 0.25
/// (20 games, or those that are named). The exit code is 1 if anything differs.
#[derive(clap::Args)]
struct Verify {
    /// Games, such as pong or SpaceInvaders [default: all]
    games: Vec<String>,
    /// Frames of each game in its default mode
    #[arg(long, default_value_t = 20_000)]
    frames: u32,
    /// Compare only modes and difficulties
    #[arg(long)]
    modes: bool,
    /// Compare only sticky actions (with --modes: both)
    #[arg(long)]
    sticky: bool,
    /// Seed of the random actions and of the sticky actions
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    seed: u32,
    /// Games to compare at the same time, each with a separate ale-py process
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Python with ale-py 0.12.1 [default: python3, or a virtual environment in the user's cache]
    #[arg(long)]
    python: Option<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Verify(args) = args.command;
    let named: Vec<&'static Game> = args
        .games
        .iter()
        .map(|name| find(name))
        .collect::<Result<_, _>>()?;
    super::roms::ensure_games(&named)?;
    let python = peer(args.python.as_deref())?;
    let parts: &[Part] = match (args.modes, args.sticky) {
        (false, false) => &[Part::Default, Part::Modes, Part::Sticky],
        (true, true) => &[Part::Modes, Part::Sticky],
        (true, false) => &[Part::Modes],
        (false, true) => &[Part::Sticky],
    };
    let plans = verify::plan(&named, parts, args.frames, args.seed);
    let games = plans.len();
    let begin = Instant::now();
    let mut totals = [const { Tally::none() }; 3];
    let mut differences = Vec::new();
    say!(
        "{:<20} {:>24} {:>20} {:>24}",
        "game",
        "default mode",
        "modes, difficulties",
        "sticky 0.25"
    );
    verify::run(&python, plans, args.jobs, |compared| {
        let [default, modes, sticky] = &compared.parts;
        say!(
            "{:<20} {:>24} {:>20} {:>24}",
            compared.game.name,
            frames(default),
            runs(modes),
            frames(sticky)
        );
        for difference in &compared.differences {
            say!("  {difference}");
        }
        for (total, part) in totals.iter_mut().zip(&compared.parts) {
            total.add(part);
        }
        differences.extend(compared.differences);
    })?;
    let frames: u64 = totals.iter().map(|total| total.frames).sum();
    let resets: u64 = totals.iter().map(|total| total.resets).sum();
    say!(
        "\n{games} games, {frames} frames and {resets} resets in {:.0} s; equal: {} of {} in the \
         default mode, {} of {} in modes and difficulties, {} of {} with sticky actions",
        begin.elapsed().as_secs_f64(),
        totals[0].equal,
        totals[0].runs,
        totals[1].equal,
        totals[1].runs,
        totals[2].equal,
        totals[2].runs
    );
    if totals[1].runs > 0 {
        say!("not compared: modes 1 and 2 of adventure, in which ale-py is not deterministic");
    }
    for difference in &differences {
        say!("{difference}");
    }
    Ok(match differences.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A Python with ale-py, which is installed if necessary.
pub(super) fn peer(wanted: Option<&str>) -> anyhow::Result<PathBuf> {
    if let Some(python) = peers::find(wanted) {
        return Ok(python);
    }
    if let Some(wanted) = wanted {
        anyhow::bail!("{wanted} does not have {}, gymnasium and numpy", peers::ALE);
    }
    let folder = peers::folder().context("neither XDG_CACHE_HOME nor HOME is set")?;
    note!(
        "installing {}, gymnasium and numpy with pip into {} (once)",
        peers::ALE,
        folder.display()
    );
    Ok(peers::install(&[peers::ALE, "gymnasium", "numpy"])?)
}

/// A game by ALE's name, or by an environment's id.
fn find(name: &str) -> anyhow::Result<&'static Game> {
    if let Some(game) = games::by_name(name) {
        return Ok(game);
    }
    let id = registry::find(name)?.id;
    match parse(id) {
        Some((game, _)) => Ok(game),
        None => Err(Usage(format!("{id} is not an Atari game")).into()),
    }
}

fn frames(tally: &Tally) -> String {
    match (tally.runs, tally.runs == tally.equal) {
        (0, _) => "–".into(),
        (_, true) => format!("equal, {} frames", tally.frames),
        (_, false) => format!("DIFFERS, {} frames", tally.frames),
    }
}

fn runs(tally: &Tally) -> String {
    match tally.runs {
        0 => "–".into(),
        runs if runs == tally.equal => format!("equal, {runs} runs"),
        runs => format!("DIFFERS, {} of {runs}", runs - tally.equal),
    }
}
