//! Atari 2600 games: `starling-atari`'s console as environments.
//!
//! Read first: [`AtariEnv`]. Observations are equal to those of Gymnasium's `AtariPreprocessing`
//! and `FrameStackObservation`, byte for byte; [`AtariOptions`] are the settings. [`roms`] finds the ROMs.

mod bilinear;
mod ids;
mod options;
mod picture;
pub mod roms;
mod sets;

#[cfg(test)]
mod against_gymnasium;
#[cfg(test)]
mod tests;

pub use ids::{Version, parse};
pub use options::{
    ActionSet, AtariOptions, AtariPreset, History, LifeLoss, Observation, Resize, Start,
};

pub use sets::{SETS, set};

pub(crate) use ids::{of_bare_name, specs};

use rand::{Rng as _, RngExt as _};
use serde::{Deserialize, Serialize};
use starling_atari::ale::{Ale, AleError, SavedGame};
use starling_atari::controllers::Action as Press;
use starling_atari::games::Game;
use starling_atari::palette;

use crate::render;
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, EnvOptions, ObsMut, Rng, Space, Step};
use picture::{Frames, Picture};
use roms::RomsError;

impl From<RomsError> for EnvError {
    fn from(error: RomsError) -> Self {
        EnvError::Failed(error.to_string())
    }
}

impl From<AleError> for EnvError {
    fn from(error: AleError) -> Self {
        EnvError::Failed(error.to_string())
    }
}

/// An Atari game as an environment.
pub struct AtariEnv {
    game: &'static Game,
    settings: AtariOptions,
    /// What each action presses.
    presses: Vec<Press>,
    /// What is pressed for the agent at the start of a game (`fire_reset`).
    launch: Vec<Press>,
    /// What is pressed for the agent after a lost life: the same, after a no-op if the settings ask
    /// for one.
    relaunch: Vec<Press>,
    /// The console is switched on when it is needed: the ROM may be missing until then.
    running: Option<Box<Running>>,
}

/// A console and the state of the episode.
struct Running {
    ale: Ale,
    picture: Picture,
    episode: Episode,
}

/// The state between steps, besides the console's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Episode {
    /// Whether there was a reset, which seeds the sticky actions.
    started: bool,
    /// Whether the next reset starts a new game.
    over: bool,
    lives: u8,
    /// The frame of the last reward.
    rewarded_at: u64,
    /// The game's points so far.
    score: f64,
    /// The frames of the observation as a ring, and the place of the oldest.
    stack: Vec<u8>,
    oldest: usize,
    /// How many of the presses after a lost life are still to come, where a lost life does not
    /// end the episode. They take the place of the agent's next actions.
    presses_due: usize,
}

/// What one action led to.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// The console's points, and the same after `score_fixes`.
    reward: i32,
    points: f64,
    /// The game is over, or a life was lost that ends the episode.
    terminated: bool,
    truncated: bool,
    /// A life was lost that is not the last one.
    lost_life: bool,
    frames: Option<Frames>,
}

impl Turn {
    fn done(&self) -> bool {
        self.terminated || self.truncated
    }
}

/// Which of a turn's frames one is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    BeforeLast,
    Last,
}

/// What one frame led to.
struct Played {
    reward: i32,
    /// Whether the game is over or cut off.
    done: bool,
    /// Whether the frame was drawn as it was played.
    drawn: bool,
}

impl AtariEnv {
    /// An environment of a game.
    ///
    /// # Errors
    /// When an option is out of range, or the ROM is missing and the observation space depends on
    /// it (pictures that are not resized).
    pub fn new(
        game: &'static Game,
        version: Version,
        options: &EnvOptions,
    ) -> Result<Self, EnvError> {
        let settings = AtariOptions::of(game, version, options)?;
        let codes = match settings.actions {
            ActionSet::Minimal => game.minimal_actions.to_vec(),
            ActionSet::Full | ActionSet::Masked => (0..18).collect(),
        };
        let presses: Vec<Press> = codes.into_iter().filter_map(Press::new).collect();
        let launch = match settings.fire_reset && game.minimal_actions.contains(&1) {
            true => {
                let third = presses.get(2).filter(|_| settings.third_after_fire());
                [Some(&Press::FIRE), third]
                    .into_iter()
                    .flatten()
                    .copied()
                    .collect()
            }
            false => Vec::new(),
        };
        let noop = settings.noop_after_life() && !launch.is_empty();
        let relaunch = noop
            .then_some(Press::NOOP)
            .into_iter()
            .chain(launch.iter().copied());
        let mut env = Self {
            game,
            settings,
            presses,
            relaunch: relaunch.collect(),
            launch,
            running: None,
        };
        env.check_mode()?;
        if matches!(
            env.settings.observation,
            Observation::Gray | Observation::Rgb
        ) {
            env.running()?;
        }
        Ok(env)
    }

    /// The game.
    pub fn game(&self) -> &'static Game {
        self.game
    }

    /// The console, once an episode was started.
    pub fn console(&self) -> Option<&Ale> {
        self.running.as_ref().map(|running| &running.ale)
    }

    /// Refuses modes and difficulties that the game does not have, without a ROM.
    fn check_mode(&self) -> Result<(), EnvError> {
        let (game, settings) = (self.game, &self.settings);
        if let Some(mode) = settings.mode
            && !game.modes.contains(&mode)
        {
            let (game, modes) = (game.name, game.modes);
            return Err(AleError::UnknownMode { game, mode, modes }.into());
        }
        if let Some(difficulty) = settings.difficulty
            && !game.difficulties.contains(&difficulty)
        {
            let (game, difficulties) = (game.name, game.difficulties);
            return Err(AleError::UnknownDifficulty {
                game,
                difficulty,
                difficulties,
            }
            .into());
        }
        Ok(())
    }

    /// The console, switched on if it was not.
    fn running(&mut self) -> Result<&mut Running, EnvError> {
        let running = match self.running.take() {
            Some(running) => running,
            None => {
                let mut ale = roms::console(self.game)?;
                ale.set_sticky(self.settings.sticky_action_prob as f32);
                if let Some(mode) = self.settings.mode {
                    ale.set_mode(mode)?;
                }
                if let Some(difficulty) = self.settings.difficulty {
                    ale.set_difficulty(difficulty)?;
                }
                let settings = &self.settings;
                let picture = Picture::new(settings.observation, settings.resize, &ale);
                let length = picture.shape(self.settings.stack).iter().product();
                let stack = vec![0; length];
                Box::new(Running {
                    ale,
                    picture,
                    episode: Episode {
                        over: true,
                        stack,
                        ..Episode::default()
                    },
                })
            }
        };
        Ok(self.running.insert(running))
    }

    /// Starts an episode, up to the picture that it starts with.
    fn start(&mut self, draws: &mut impl Draws) -> Result<(), EnvError> {
        let (settings, launch) = (self.settings.clone(), self.launch.clone());
        let running = self.running()?;
        if !running.episode.started {
            running.ale.reload(draws.seed())?;
            running.episode.started = true;
        }
        running.episode.over |= settings.life_loss != LifeLoss::Continues;
        let mut new_game = running.begin(&settings, draws);
        for press in launch {
            let turn = running.turn(press, &settings, draws);
            running.draw(turn);
            if turn.done() {
                new_game |= running.begin(&settings, draws);
            }
        }
        match settings.history {
            History::Zeros => running.empty_stack(),
            History::Repeated if new_game || settings.noop_after_life() => running.fill_stack(),
            History::Repeated => {}
        }
        Ok(())
    }

    fn write(&self, mut obs: ObsMut<'_>) {
        let Some(running) = &self.running else { return };
        let (recent, old) = running.episode.stack.split_at(running.episode.oldest);
        let out = obs.as_mut_slice::<u8>();
        out[..old.len()].copy_from_slice(old);
        out[old.len()..].copy_from_slice(recent);
    }
}

impl Running {
    /// Starts a new game if the last one is over, else the next life. Returns whether it is a new
    /// game.
    fn begin(&mut self, settings: &AtariOptions, draws: &mut impl Draws) -> bool {
        let new_game = self.episode.over;
        if new_game {
            self.restart(settings, draws);
        } else if settings.noop_after_life() {
            // The next life begins with the next frame; until then its end is still shown.
            let turn = self.turn(Press::NOOP, settings, draws);
            self.draw(turn);
        }
        new_game
    }

    /// Starts a new game and plays what the settings ask for before the agent acts.
    fn restart(&mut self, settings: &AtariOptions, draws: &mut impl Draws) {
        self.new_game();
        if settings.noop_max > 0 {
            let least = u32::from(settings.start == Start::Noops);
            let minimal = self.ale.game().minimal_actions;
            for _ in 0..draws.times(least, settings.noop_max) {
                let done = match settings.start {
                    Start::Noops | Start::NoopsOrNone => {
                        self.play(Press::NOOP, settings, draws, None).done
                    }
                    Start::RandomActions => {
                        let press = Press::new(minimal[draws.choice(minimal.len())]);
                        let turn = self.turn(press.unwrap_or(Press::NOOP), settings, draws);
                        turn.truncated || self.ale.outcome().terminal
                    }
                };
                if done {
                    self.new_game();
                }
            }
        }
        // Points from before the agent acts are not its own.
        self.episode.score = 0.0;
        self.episode.over = false;
        self.episode.presses_due = 0;
        self.episode.lives = self.ale.outcome().lives;
        self.episode.rewarded_at = self.ale.frame_numbers().1;
        self.draw(Turn {
            frames: Some(Frames::Last),
            ..Turn::default()
        });
    }

    fn new_game(&mut self) {
        self.ale.reset();
        self.episode.rewarded_at = self.ale.frame_numbers().1;
    }

    /// One frame, or a random number from two to four.
    ///
    /// A frame that will be looked at is drawn on the way where that can be: `looked_at` says
    /// whether it is the last of a turn or the one before.
    fn play(
        &mut self,
        press: Press,
        settings: &AtariOptions,
        draws: &mut impl Draws,
        looked_at: Option<Place>,
    ) -> Played {
        let frames = match settings.frame_skip {
            Some(_) => 1,
            None => draws.frames(),
        };
        let (mut reward, mut drawn) = (0, false);
        for _ in 0..frames {
            let outcome = match looked_at {
                Some(place) => {
                    let last = place == Place::Last;
                    let outcome;
                    (outcome, drawn) = self.picture.play(&mut self.ale, press, last);
                    outcome
                }
                None => self.ale.act(press),
            };
            reward += outcome.reward;
        }
        let frame = self.ale.frame_numbers().1;
        if reward != 0 {
            self.episode.rewarded_at = frame;
        }
        let done = self.ale.outcome().terminal || self.truncated(settings);
        Played {
            reward,
            done,
            drawn,
        }
    }

    fn truncated(&self, settings: &AtariOptions) -> bool {
        let frame = self.ale.frame_numbers().1;
        let idle = frame - self.episode.rewarded_at.min(frame);
        frame >= settings.max_frames || settings.stuck_frames.is_some_and(|most| idle >= most)
    }

    /// One action, for the frames of one step.
    fn turn(&mut self, press: Press, settings: &AtariOptions, draws: &mut impl Draws) -> Turn {
        let skip = settings.frame_skip.unwrap_or(1);
        let mut turn = Turn::default();
        let (mut played, mut drawn_in_a_row) = (0, 0);
        let mut lost = false;
        while played < skip {
            let looked_at = match skip - played {
                _ if !self.picture.draws_while_playing() => None,
                1 => Some(Place::Last),
                2 => Some(Place::BeforeLast),
                _ => None,
            };
            let Played {
                reward,
                done,
                drawn,
            } = self.play(press, settings, draws, looked_at);
            turn.reward += reward;
            played += 1;
            drawn_in_a_row = if drawn { drawn_in_a_row + 1 } else { 0 };
            if settings.life_loss == LifeLoss::Resets {
                lost |= self.ale.outcome().lives < self.episode.lives;
                self.episode.lives = self.ale.outcome().lives;
            }
            if done || lost {
                break;
            }
        }
        turn.points = match settings.score_fixes {
            true => without_rollover(turn.reward),
            false => f64::from(turn.reward),
        };
        self.episode.score += turn.points;
        turn.terminated = self.ale.outcome().terminal || lost;
        turn.truncated = self.truncated(settings);
        let ended = turn.terminated || turn.truncated;
        self.episode.over |= ended;
        // As in the reference, the frame with which the game ends is not shown: the last picture is
        // shown again, with the frame before the end pooled into it if that was reached.
        turn.frames = match (ended, skip) {
            (false, 1) => Some(Frames::Last),
            (false, _) if drawn_in_a_row >= 2 => Some(Frames::LastTwoDrawn),
            (false, _) => Some(Frames::LastTwo),
            (true, 2..) if played == skip => Some(Frames::ShownAndBefore),
            (true, _) => None,
        };
        if settings.life_loss != LifeLoss::Resets {
            let lives = self.ale.outcome().lives;
            turn.lost_life = lives > 0 && lives < self.episode.lives;
            turn.terminated |= turn.lost_life && settings.life_loss == LifeLoss::Continues;
            self.episode.lives = lives;
        }
        turn
    }

    /// Replaces the oldest frame by what a turn shows.
    fn draw(&mut self, turn: Turn) {
        let episode = &mut self.episode;
        let length = self.picture.frame_len();
        // The picture only writes what has changed since it wrote last.
        let latest = (episode.oldest + episode.stack.len() - length) % episode.stack.len();
        episode
            .stack
            .copy_within(latest..latest + length, episode.oldest);
        let place = &mut episode.stack[episode.oldest..episode.oldest + length];
        match turn.frames {
            Some(frames) => self.picture.draw(&self.ale, frames, place),
            None => self.picture.show(&self.ale, place),
        }
        episode.oldest = (episode.oldest + length) % episode.stack.len();
    }

    /// Replaces all frames but the latest by zeros.
    fn empty_stack(&mut self) {
        let episode = &mut self.episode;
        let length = self.picture.frame_len();
        let size = episode.stack.len();
        let latest = (episode.oldest + size - length) % size;
        episode
            .stack
            .copy_within(latest..latest + length, size - length);
        episode.stack[..size - length].fill(0);
        episode.oldest = 0;
    }

    /// Replaces all frames by the latest.
    fn fill_stack(&mut self) {
        let episode = &mut self.episode;
        let length = self.picture.frame_len();
        let latest = (episode.oldest + episode.stack.len() - length) % episode.stack.len();
        for place in (0..episode.stack.len()).step_by(length) {
            episode.stack.copy_within(latest..latest + length, place);
        }
        episode.oldest = 0;
    }
}

/// The points of a turn in which the score may have rolled over from its largest value to 0, which
/// the console reports as a large loss.
fn without_rollover(reward: i32) -> f64 {
    let points = f64::from(reward);
    match points < -900_000.0 {
        true => points + 10f64.powf(points.abs().log10().ceil()),
        false => points,
    }
}

/// Where an environment gets its random numbers: from a generator, or in tests from a recording.
trait Draws {
    /// The seed of the sticky actions.
    fn seed(&mut self) -> u32;

    /// How often something is done at the start: `least` to `most` times.
    fn times(&mut self, least: u32, most: u32) -> u32;

    /// One of `count` choices.
    fn choice(&mut self, count: usize) -> usize;

    /// Frames of one step: 2, 3 or 4.
    fn frames(&mut self) -> u32;
}

impl Draws for Rng {
    fn seed(&mut self) -> u32 {
        self.next_u32()
    }

    fn times(&mut self, least: u32, most: u32) -> u32 {
        self.random_range(least..=most)
    }

    fn choice(&mut self, count: usize) -> usize {
        self.random_range(0..count)
    }

    fn frames(&mut self) -> u32 {
        self.random_range(2..=4)
    }
}

/// A saved environment.
#[derive(Serialize, Deserialize)]
struct Saved {
    game: SavedGame,
    episode: Episode,
    full: Vec<u8>,
}

impl Env for AtariEnv {
    fn observation_space(&self) -> Space {
        let height = self
            .running
            .as_ref()
            .map_or(0, |running| running.ale.console().height());
        let settings = &self.settings;
        Space::bytes(
            &picture::shape(settings.observation, settings.stack, height),
            255,
        )
    }

    fn action_space(&self) -> Space {
        Space::Discrete {
            n: self.presses.len(),
        }
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.start(rng)?;
        self.write(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let chosen = self.presses[action.discrete(self.presses.len())?];
        let Some(running) = &mut self.running else {
            return Err(EnvError::Failed(
                "it was not reset before its first step".into(),
            ));
        };
        let due = running.episode.presses_due;
        let press = match self.relaunch.len().checked_sub(due) {
            Some(next) if due > 0 => self.relaunch[next],
            _ => chosen,
        };
        running.episode.presses_due = due.saturating_sub(1);
        let turn = running.turn(press, &self.settings, rng);
        if turn.lost_life && !turn.done() {
            running.episode.presses_due = self.relaunch.len();
        }
        running.draw(turn);
        self.write(obs);
        let reward = match self.settings.clip_rewards {
            true if turn.points == 0.0 => 0.0,
            true => turn.points.signum(),
            false => turn.points,
        };
        Ok(Step {
            reward: reward as f32,
            terminated: turn.terminated,
            truncated: turn.truncated,
        })
    }

    fn frame_stack(&self) -> Option<usize> {
        let settings = &self.settings;
        // Frames in colour are three planes each, so that the first dimension does not count them.
        let stacked = settings.observation != Observation::Rgb && settings.stack > 1;
        stacked.then_some(settings.stack)
    }

    fn masks_actions(&self) -> bool {
        self.settings.actions == ActionSet::Masked
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        for (flag, press) in mask.iter_mut().zip(&self.presses) {
            *flag = u8::from(self.game.minimal_actions.contains(&press.code()));
        }
    }

    fn game_score(&self) -> Option<f64> {
        let running = self.running.as_ref()?;
        running.episode.over.then_some(running.episode.score)
    }

    fn counts_games(&self) -> bool {
        true
    }

    fn lives(&self) -> Option<u32> {
        let running = self.running.as_ref()?;
        Some(u32::from(running.ale.outcome().lives))
    }

    fn cut_off(&mut self) {
        if let Some(running) = &mut self.running {
            running.episode.over = true;
        }
    }

    /// What the console shows, with each pixel twice as wide as it is high.
    fn render(&self) -> Result<render::Picture, EnvError> {
        let Some(running) = &self.running else {
            return Err(EnvError::Failed(
                "it was not reset before its first picture".into(),
            ));
        };
        let console = running.ale.console();
        let (width, height) = (160, console.height());
        let mut pixels = vec![0; width * height];
        console.screen(&mut pixels);
        let colours = pixels
            .iter()
            .map(|index| palette::rgb(console.format(), *index));
        Ok(render::Picture {
            width: 2 * width,
            height,
            rgb: colours.flat_map(|colour| [colour; 2]).flatten().collect(),
        })
    }

    fn render_fps(&self) -> f64 {
        60.0 / f64::from(self.settings.frame_skip.unwrap_or(3))
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        let running = self
            .running
            .as_ref()
            .filter(|running| running.episode.started)?;
        save(&(running.ale.save(), &running.episode, running.picture.full()))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let saved: Saved = load(snapshot)?;
        let (game, most_due) = (self.game.name, self.relaunch.len());
        let running = self.running()?;
        let length = running.picture.frame_len();
        let episode = &running.episode;
        if saved.game.game().name != game
            || saved.episode.stack.len() != episode.stack.len()
            || saved.full.len() != running.picture.full().len()
            || saved.episode.oldest >= saved.episode.stack.len()
            || !saved.episode.oldest.is_multiple_of(length)
            || saved.episode.presses_due > most_due
        {
            return Err(EnvError::Snapshot(format!(
                "it is of {}, or of other options",
                saved.game.game().name
            )));
        }
        running.ale.restore(&saved.game);
        running.episode = saved.episode;
        running.picture.set_full(saved.full);
        Ok(())
    }
}

impl std::fmt::Debug for AtariEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AtariEnv")
            .field("game", &self.game.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
