//! `starling queue`: environments × algorithms × settings × seeds, from the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::queue::{Level, Seeds, Sweep};
use crate::settings;

use super::Usage;
use super::many::{self, Places};
use super::train::{algo_names, env_ids};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Environments, and settings with one or more values: algo.learning_rate=1e-4,3e-4
    #[arg(required = true, value_parser = env_ids(), hide_possible_values = true)]
    what: Vec<String>,
    /// Algorithms, such as ppo,dqn
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = algo_names(),
        hide_possible_values = true
    )]
    algo: Vec<String>,
    /// Seeds, such as 1..5 (five seeds) or 1,2,7
    #[arg(long, default_value = "1")]
    seeds: Seeds,
    /// Folder of the queue; if it has the same plan, its runs continue
    #[arg(long, value_name = "DIR", default_value = "runs/queues/queue")]
    out: PathBuf,
    #[command(flatten)]
    places: Places,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (pairs, envs): (Vec<String>, Vec<String>) =
        args.what.into_iter().partition(|word| word.contains('='));
    let mut sweep = Sweep {
        seeds: args.seeds,
        ..Sweep::default()
    };
    let texts = |values: Vec<String>| values.into_iter().map(Value::String).collect();
    add(&mut sweep, "env", texts(envs));
    add(&mut sweep, "algo", texts(args.algo));
    for pair in pairs {
        let Some((key, values)) = pair.split_once('=') else {
            return Err(Usage(format!("'{pair}' is not of the form key=value")).into());
        };
        let values = alternatives(values).into_iter();
        add(&mut sweep, key, values.map(settings::parse_value).collect());
    }
    many::run(&sweep, &args.out, &args.places)
}

/// One value belongs to the base; several are a level.
fn add(sweep: &mut Sweep, key: &str, mut values: Vec<Value>) {
    match values.len() {
        0 => {}
        1 => {
            sweep.base.insert(key.to_owned(), values.remove(0));
        }
        _ => {
            let grid = Map::from_iter([(key.to_owned(), Value::Array(values))]);
            sweep.levels.push(Level::Grid(grid));
        }
    }
}

/// Splits `1,2` but not `[1, 2]` or `{start: 1, end: 0}`.
fn alternatives(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_i32, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_tables_are_single_values() {
        assert_eq!(alternatives("1e-4,3e-4"), ["1e-4", "3e-4"]);
        assert_eq!(alternatives("[64, 64],[256]"), ["[64, 64]", "[256]"]);
        assert_eq!(alternatives("{start: 1, end: 0}"), ["{start: 1, end: 0}"]);
    }
}
