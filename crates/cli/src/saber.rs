//! Scoring of Atari agents by SABER (Toromanoff et al. 2019).
//!
//! Read first: [`saber`] (100 games with a checkpoint, according to the protocol),
//! [`training_scores`] (the mean score of the last 100 training games at fixed numbers of frames),
//! [`write_report`] (a table and a page per game).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use starling_engine::{Episodes, RunConfig, evaluate_checkpoint};
use starling_envs::EnvOptions;
use starling_envs::atari::{self, ActionSet, AtariOptions, LifeLoss};
use starling_record::{
    Checkpoint, GameScores, RunFolder, SCORE_COLUMN, STEP_COLUMN, Summary, Table, scores_of,
};

/// Frames of one minute.
const MINUTE: u64 = 3600;

/// Frames at which training scores are read, in millions.
pub const TRAINING_MILLIONS: [u64; 4] = [10, 50, 100, 200];

/// The games of one checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct SaberReport {
    /// Environment.
    pub env: String,
    /// Algorithm.
    pub algo: String,
    /// Steps that the agent had been trained for.
    pub step: u64,
    /// Scores after five minutes.
    pub five_minutes: Vec<f64>,
    /// Scores after half an hour.
    pub thirty_minutes: Vec<f64>,
    /// Scores at the end.
    pub scores: Vec<f64>,
    /// Frames of each game.
    pub frames: Vec<f64>,
}

/// Plays games with a checkpoint by SABER's rules: sticky actions, all 18 actions, no signal of
/// lost lives, corrected scores, and games that end by themselves, after 100 hours, or after five
/// minutes without a reward.
///
/// Observations stay as the agent was trained with.
///
/// # Errors
/// When the run is not of an Atari game, or its agent was trained with fewer than 18 actions.
pub fn saber(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    episodes: usize,
    seed: u64,
) -> anyhow::Result<SaberReport> {
    let mut judged = config.clone();
    judged.env = rules(config)?;
    // SABER has limits of its own.
    judged.settings.eval.max_steps = u64::MAX;
    let skip = frames_per_step(config)?;
    let marks = [5 * MINUTE / skip, 30 * MINUTE / skip];
    let episodes = Episodes {
        count: episodes,
        seed,
        index: 0,
        marks: marks.to_vec(),
    };
    let played = evaluate_checkpoint(&judged, checkpoint, &episodes)?;
    let [five_minutes, thirty_minutes]: [Vec<f64>; 2] = played
        .returns_at
        .try_into()
        .map_err(|_| anyhow::anyhow!("two marks were asked for"))?;
    Ok(SaberReport {
        env: config.env_id.clone(),
        algo: config.algo_name.clone(),
        step: checkpoint.step(),
        five_minutes,
        thirty_minutes,
        scores: played.returns,
        frames: played
            .lengths
            .iter()
            .map(|steps| steps * skip as f64)
            .collect(),
    })
}

/// SABER's environment for an agent that was trained with this configuration.
fn rules(config: &RunConfig) -> anyhow::Result<EnvOptions> {
    let spec = config.env_spec()?;
    check_atari(config)?;
    let trained = spec.make(&config.env)?;
    let rules = config.env.with(&serde_json::json!({
        "sticky_action_prob": 0.25,
        // A preset may have set the mask, so the environment itself is asked. The values of
        // actions that were masked in training mean nothing.
        "actions": match trained.masks_actions() {
            true => ActionSet::Masked,
            false => ActionSet::Full,
        },
        "noop_max": 0,
        "fire_reset": false,
        "life_loss": LifeLoss::Ignored,
        "clip_rewards": false,
        "score_fixes": true,
        "max_frames": 100 * 60 * MINUTE,
        "stuck_frames": 5 * MINUTE,
    }));
    if spec.make(&rules)?.action_space() != trained.action_space() {
        bail!(
            "SABER uses all 18 actions, and this agent was trained with fewer. Train with \
             env.actions=full or env.preset=saber"
        );
    }
    Ok(rules)
}

/// Frames of one step. A random number of them counts as 4, their most.
fn frames_per_step(config: &RunConfig) -> anyhow::Result<u64> {
    let (game, version) = atari::parse(&config.env_id)
        .with_context(|| format!("{} is not an Atari game", config.env_id))?;
    let options = AtariOptions::of(game, version, &config.env)?;
    Ok(u64::from(options.frame_skip.unwrap_or(4)))
}

fn check_atari(config: &RunConfig) -> anyhow::Result<()> {
    let spec = config.env_spec()?;
    match spec.family {
        "atari" => Ok(()),
        _ => bail!(
            "this protocol is for Atari games, and the run is of {}",
            spec.id
        ),
    }
}

impl SaberReport {
    /// Lines for the reader: scores, also relative to human play and to the world record.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        let rows = [
            ("5 minutes", &self.five_minutes),
            ("30 minutes", &self.thirty_minutes),
            ("whole game", &self.scores),
        ];
        for (name, scores) in rows {
            let all = Summary::of(scores.iter().copied());
            let _ = write!(text, "{name:<11} {:>10.1} ± {:.1}", all.average, all.std);
            text.push_str(&normalised(scores_of(&self.env), all.average));
            text.push('\n');
        }
        text
    }
}

/// `, 12.3 % of human, 0.4 % of the record`, where those are known.
fn normalised(game: Option<&GameScores>, score: f64) -> String {
    let mut text = String::new();
    let Some(game) = game else {
        return text;
    };
    if let Some(share) = game.human_normalized(score) {
        let _ = write!(text, ", {:.1} % of human", 100.0 * share);
    }
    if let Some(share) = game.record_normalized(score) {
        let _ = write!(text, ", {:.2} % of the record", 100.0 * share);
    }
    text
}

/// The columns of a game's table.
const COLUMNS: &str = "step,episode,score_5min,score_30min,score,frames";

/// Adds a report to `<game>.csv` in a folder, one row per game, and writes `<game>.html` from all
/// its rows. Returns both paths.
pub fn write_report(report: &SaberReport, folder: &Path) -> anyhow::Result<[PathBuf; 2]> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let name = match scores_of(&report.env) {
        Some(row) => row.game.to_owned(),
        None => report.env.replace('/', "_"),
    };
    let (table, page) = (
        folder.join(format!("{name}.csv")),
        folder.join(format!("{name}.html")),
    );
    let mut text = match std::fs::read_to_string(&table) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{COLUMNS}\n"),
        Err(error) => return Err(error).with_context(|| table.display().to_string()),
    };
    for (i, score) in report.scores.iter().enumerate() {
        let (five, thirty) = (report.five_minutes[i], report.thirty_minutes[i]);
        let (step, frames) = (report.step, report.frames[i]);
        let _ = writeln!(text, "{step},{i},{five},{thirty},{score},{frames}");
    }
    std::fs::write(&table, &text).with_context(|| table.display().to_string())?;
    let html = page_of(&name, &report.algo, &text);
    std::fs::write(&page, html).with_context(|| page.display().to_string())?;
    Ok([table, page])
}

/// A page with one line per evaluation of a game's table.
fn page_of(game: &str, algo: &str, table: &str) -> String {
    let mut steps: Vec<(u64, Vec<Vec<f64>>)> = Vec::new();
    for line in table.lines().skip(1) {
        let fields: Vec<f64> = line.split(',').filter_map(|f| f.parse().ok()).collect();
        let [step, _, rest @ ..] = fields.as_slice() else {
            continue;
        };
        match steps.iter_mut().find(|(known, _)| *known == *step as u64) {
            Some((_, rows)) => rows.push(rest.to_vec()),
            None => steps.push((*step as u64, vec![rest.to_vec()])),
        }
    }
    steps.sort_by_key(|(step, _)| *step);
    let known = scores_of(game);
    let mut rows = String::new();
    for (step, games) in &steps {
        let column = |i: usize| Summary::of(games.iter().filter_map(|row| row.get(i).copied()));
        let (five, thirty, score, frames) = (column(0), column(1), column(2), column(3));
        let share =
            |share: Option<f64>| share.map_or("–".into(), |s| format!("{:.2} %", 100.0 * s));
        let human = share(known.and_then(|row| row.human_normalized(score.average)));
        let record = share(known.and_then(|row| row.record_normalized(score.average)));
        let _ = writeln!(
            rows,
            "<tr><td>{step}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1} ± {:.1}</td>\
             <td>{:.1}</td><td>{:.1}</td><td>{human}</td><td>{record}</td><td>{:.0}</td>\
             <td>{:.0}</td></tr>",
            games.len(),
            five.average,
            thirty.average,
            score.average,
            score.std,
            score.min,
            score.max,
            frames.average,
            frames.max,
        );
    }
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{game}, {algo}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font:16px sans-serif;margin:2em}}\
         td,th{{padding:.3em .8em;text-align:right}}</style>\n\
         <h1>{game}, {algo}</h1>\n<p>SABER: sticky actions, 18 actions, no signal of lost lives, \
         stopped after five minutes without a reward.</p>\n<table>\n<tr><th>step<th>games<th>5 min\
         <th>30 min<th>score<th>lowest<th>highest<th>of human<th>of the record<th>frames\
         <th>longest</tr>\n{rows}</table>\n"
    )
}

/// What the last 100 games of training had reached, by millions of frames.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingScore {
    /// Frames, in millions.
    pub millions: u64,
    /// Mean score of the last 100 games.
    pub score: f64,
}

/// The training scores of a run, as far as it got: the scores of whole games, not the returns of
/// training, which may be of single lives and of clipped rewards. A mark is read from the last
/// row of metrics before it, which has to be within a hundredth of it.
///
/// # Errors
/// When the run is not of an Atari game, or has no game scores.
pub fn training_scores(
    folder: &RunFolder,
    config: &RunConfig,
) -> anyhow::Result<Vec<TrainingScore>> {
    check_atari(config)?;
    let skip = frames_per_step(config)?;
    let path = folder.progress_path();
    let table = Table::read(&path)?;
    let (Some(steps), Some(scores)) = (table.column(STEP_COLUMN), table.column(SCORE_COLUMN))
    else {
        bail!(
            "{} has no column {SCORE_COLUMN}: no whole game has ended yet",
            path.display()
        );
    };
    let rows: Vec<(f64, f64)> = steps
        .iter()
        .zip(&scores)
        .map(|(&step, &score)| (step * skip as f64, score))
        .collect();
    Ok(scores_at(&rows, &TRAINING_MILLIONS))
}

fn scores_at(rows: &[(f64, f64)], millions: &[u64]) -> Vec<TrainingScore> {
    let at = |&millions: &u64| {
        let mark = millions as f64 * 1e6;
        let before = rows
            .iter()
            .rev()
            .find(|(frames, score)| *frames <= mark && !score.is_nan())?;
        (before.0 >= 0.99 * mark).then_some(TrainingScore {
            millions,
            score: before.1,
        })
    };
    millions.iter().filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Request, resolve};

    fn report() -> SaberReport {
        SaberReport {
            env: "ALE/Breakout-v5".into(),
            algo: "rainbow-iqn".into(),
            step: 1000,
            five_minutes: vec![1.7, 30.5],
            thirty_minutes: vec![30.5, 30.5],
            scores: vec![30.5, 864.0],
            frames: vec![18_000.0, 400_000.0],
        }
    }

    /// (1.7 + 30.5) / 2 is half way from random play (1.7) to a person (30.5).
    #[test]
    fn a_summary_is_normalised() {
        let text = report().summary();
        assert!(
            text.starts_with("5 minutes         16.1 ± 14.4, 50.0 % of human"),
            "{text}"
        );
        assert!(text.contains("% of the record"));
    }

    #[test]
    fn a_table_grows_and_its_page_shows_every_evaluation() {
        let folder = tempfile::tempdir().unwrap();
        let first = report();
        let second = SaberReport {
            step: 2000,
            ..report()
        };
        write_report(&first, folder.path()).unwrap();
        let [table, page] = write_report(&second, folder.path()).unwrap();
        let table = std::fs::read_to_string(table).unwrap();
        assert_eq!(table.lines().count(), 5);
        assert!(table.contains("1000,1,30.5,30.5,864,400000"));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("<td>1000</td><td>2</td>") && page.contains("<td>2000</td>"));
    }

    fn config(env: &str, overrides: &[&str]) -> RunConfig {
        let mut request = Request::new(env);
        request.algo = Some("dqn".into());
        request.preset = Some("none".into());
        request.overrides = overrides.iter().map(|&pair| pair.to_owned()).collect();
        resolve(&request).unwrap()
    }

    /// Also where a preset says what the actions are, the agent is asked only for those that it
    /// was trained with.
    #[test]
    fn saber_keeps_the_mask_and_corrects_scores() {
        let small = "algo.capacity_steps=1000";
        let judged = |pair| {
            let rules = rules(&config("ALE/Pong-v5", &[pair, small])).unwrap();
            let (game, version) = atari::parse("ALE/Pong-v5").unwrap();
            AtariOptions::of(game, version, &rules).unwrap()
        };
        assert_eq!(judged("env.preset=rela").actions, ActionSet::Masked);
        let full = judged("env.actions=full");
        assert_eq!(full.actions, ActionSet::Full);
        assert!(full.score_fixes && !full.clip_rewards);
        assert_eq!(full.stuck_frames, Some(18_000));
        let error = rules(&config("ALE/Pong-v5", &[small])).unwrap_err();
        assert!(error.to_string().contains("env.actions=full"), "{error}");
        let error = rules(&config("CartPole-v1", &[])).unwrap_err();
        assert!(error.to_string().contains("Atari"), "{error}");
    }

    /// Ms. Pac-Man: 300 points are −0.1 % of human play; the clipped return 29.5 is something
    /// else.
    #[test]
    fn training_scores_are_those_of_whole_games() {
        let root = tempfile::tempdir().unwrap();
        let config = config("ALE/MsPacman-v5", &["algo.capacity_steps=1000"]);
        let folder = crate::create_folder(&config, root.path(), "t").unwrap();
        let table = "env_steps,ReturnAverage,GameScoreAverage\n2490000,29.5,300\n";
        std::fs::write(folder.progress_path(), table).unwrap();
        let scores = training_scores(&folder, &config).unwrap();
        let expected = TrainingScore {
            millions: 10,
            score: 300.0,
        };
        assert_eq!(scores, [expected]);
        std::fs::write(folder.progress_path(), "env_steps,ReturnAverage\n1,2\n").unwrap();
        let error = training_scores(&folder, &config).unwrap_err();
        assert!(error.to_string().contains("no whole game"), "{error}");
    }

    #[test]
    fn training_scores_are_read_just_before_their_marks() {
        let rows = [(9.95e6, 3.0), (10.01e6, 4.0), (49e6, 5.0)];
        let scores = scores_at(&rows, &[10, 50, 100]);
        let expected = TrainingScore {
            millions: 10,
            score: 3.0,
        };
        assert_eq!(scores, [expected]);
    }
}
