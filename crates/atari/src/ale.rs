//! A game as the Arcade Learning Environment plays it: resets, actions, rewards, one frame at a
//! time.

use serde::{Deserialize, Serialize};

use std::sync::Arc;

use crate::cartridge::Rom;
use crate::console::{Console, Machine};
use crate::controllers::Action;
use crate::games::{self, Game, Memory, ModeSelector, Outcome, Press, Rules};
use crate::random::Mt19937;

/// Why a cartridge cannot be played as a game.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AleError {
    /// No game in the table has this cartridge.
    #[error("the ROM with md5 {0} is not one of the known games")]
    UnknownGame(String),
    /// The game has no such mode.
    #[error("{game} has no mode {mode}; its modes are {modes:?}")]
    UnknownMode {
        /// The game's name.
        game: &'static str,
        /// The mode that was asked for.
        mode: u16,
        /// The modes there are.
        modes: &'static [u16],
    },
    /// The game has no such difficulty.
    #[error("{game} has no difficulty {difficulty}; its difficulties are {difficulties:?}")]
    UnknownDifficulty {
        /// The game's name.
        game: &'static str,
        /// The difficulty that was asked for.
        difficulty: u8,
        /// The difficulties there are.
        difficulties: &'static [u8],
    },
}

/// A game being played.
#[derive(Clone)]
pub struct Ale {
    console: Console,
    play: Play,
    sticky: f32,
}

/// Everything that decides how a game continues: a few KiB of plain data.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedGame {
    machine: Machine,
    play: Play,
}

impl SavedGame {
    /// The game that was saved.
    pub fn game(&self) -> &'static Game {
        self.play.rules.game()
    }
}

/// The state between frames, besides the console's.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Play {
    rules: Rules,
    outcome: Outcome,
    /// The stream of sticky actions.
    random: Mt19937,
    last: [Action; 2],
    mode: u16,
    difficulty: u8,
    frame: u64,
    episode_frame: u64,
}

/// How long NOOP is held after a system reset.
const SETTLE_FRAMES: u16 = 60;
/// How long the console's RESET switch is held.
const RESET_FRAMES: u16 = 4;

impl Ale {
    /// Loads a cartridge and resets the environment once, as `loadROM` does. `seed` starts the
    /// stream of sticky actions.
    pub fn new(rom: Arc<Rom>, seed: u32) -> Result<Self, AleError> {
        Self::sticky(rom, seed, 0.0)
    }

    /// The same with sticky actions from the beginning: it makes a difference to `double_dunk`,
    /// whose menu is part of a reset.
    pub fn sticky(rom: Arc<Rom>, seed: u32, probability: f32) -> Result<Self, AleError> {
        let game =
            games::by_md5(rom.md5()).ok_or_else(|| AleError::UnknownGame(rom.md5().to_owned()))?;
        let mut ale = Self {
            console: Console::new(rom),
            play: Play {
                rules: Rules::new(game),
                outcome: Outcome {
                    reward: 0,
                    terminal: false,
                    lives: 0,
                },
                random: Mt19937::new(seed),
                last: [Action::NOOP; 2],
                mode: game.modes.first().copied().unwrap_or(0),
                // Backgammon too starts with both switches at B, though it offers only A.
                difficulty: 0,
                frame: 0,
                episode_frame: 0,
            },
            sticky: probability,
        };
        ale.console.inputs().set_paddle_limit(game.paddle_limit);
        ale.reset();
        Ok(ale)
    }

    /// The game.
    pub fn game(&self) -> &'static Game {
        self.play.rules.game()
    }

    /// The console.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// The 128 bytes of memory.
    pub fn ram(&self) -> &[u8; 128] {
        self.console.ram()
    }

    /// Frames since loading, and since the last reset.
    pub fn frame_numbers(&self) -> (u64, u64) {
        (self.play.frame, self.play.episode_frame)
    }

    /// Reward of the last frame, lives left, and whether the episode is over.
    pub fn outcome(&self) -> Outcome {
        self.play.outcome
    }

    /// Restarts the stream of sticky actions, as loading the ROM again does. The next
    /// thing is a reset.
    ///
    /// # Errors
    /// Never for a cartridge that was loaded before.
    pub fn reload(&mut self, seed: u32) -> Result<(), AleError> {
        if self.sticky > 0.0 && self.game().sticks_in_menu() {
            let fresh = Self::sticky(Arc::clone(self.console.rom()), seed, self.sticky)?;
            let (mode, difficulty) = (self.play.mode, self.play.difficulty);
            *self = fresh;
            (self.play.mode, self.play.difficulty) = (mode, difficulty);
        } else {
            self.play.random = Mt19937::new(seed);
        }
        Ok(())
    }

    /// Sets the probability that a frame repeats the last action instead of the new one.
    pub fn set_sticky(&mut self, probability: f32) {
        self.sticky = probability;
    }

    /// Chooses the mode that the next reset starts.
    pub fn set_mode(&mut self, mode: u16) -> Result<(), AleError> {
        let game = self.game();
        if !game.modes.contains(&mode) {
            let (game, modes) = (game.name, game.modes);
            return Err(AleError::UnknownMode { game, mode, modes });
        }
        self.play.mode = mode;
        Ok(())
    }

    /// Sets the difficulty switches from the next frame on.
    pub fn set_difficulty(&mut self, difficulty: u8) -> Result<(), AleError> {
        let game = self.game();
        if !game.difficulties.contains(&difficulty) {
            let (game, difficulties) = (game.name, game.difficulties);
            return Err(AleError::UnknownDifficulty {
                game,
                difficulty,
                difficulties,
            });
        }
        self.play.difficulty = difficulty;
        Ok(())
    }

    /// Starts a new episode.
    pub fn reset(&mut self) {
        self.play.episode_frame = 0;
        self.play.last = [Action::NOOP; 2];
        self.console.reset();
        self.console.inputs().center_paddles();
        self.hold(Action::NOOP, SETTLE_FRAMES);
        self.press_reset();
        self.play.rules.reset();
        let game = self.game();
        let mut selector = ModeSelector::new(game, self.play.mode);
        while let Some((press, frames)) = selector.next(self.memory()) {
            let pushed = match press {
                Press::Push(code) => Action::new(code).unwrap_or(Action::NOOP),
                Press::Act(code) => self.stick(Action::new(code).unwrap_or(Action::NOOP))[0],
                Press::Nothing | Press::Select | Press::Reset => Action::NOOP,
            };
            let inputs = self.console.inputs();
            inputs.switches(press == Press::Reset, press == Press::Select);
            self.hold(pushed, frames);
            self.console.inputs().switches(false, false);
            if !matches!(press, Press::Select | Press::Reset) {
                self.play.frame += u64::from(frames);
                self.play.episode_frame += u64::from(frames);
            }
        }
        self.press_reset();
        for (code, frames) in game.starting_actions {
            self.console.inputs().switches(*code == games::RESET, false);
            self.hold(Action::new(*code).unwrap_or(Action::NOOP), *frames);
            self.console.inputs().switches(false, false);
        }
        self.play.last = [Action::NOOP; 2];
        self.play.outcome = Outcome {
            reward: 0,
            ..self.play.rules.outcome()
        };
    }

    /// Plays one frame. After the end of an episode nothing happens until a reset.
    pub fn act(&mut self, action: Action) -> Outcome {
        self.act_by(action, Console::run_frame).0
    }

    /// The same, and draws the picture on the way, each palette index as `shades` says: less work
    /// than drawing it afterwards. Says also whether `pixels` is the picture: it is not after the
    /// end of an episode, or where a frame does not end as it should.
    pub fn act_and_draw(
        &mut self,
        action: Action,
        shades: &[u8; 256],
        pixels: &mut [u8],
    ) -> (Outcome, bool) {
        let draw = |console: &mut Console| console.run_and_draw_frame(shades, pixels);
        let (outcome, drawn) = self.act_by(action, draw);
        (outcome, drawn == Some(true))
    }

    fn act_by<T>(
        &mut self,
        action: Action,
        run: impl FnOnce(&mut Console) -> T,
    ) -> (Outcome, Option<T>) {
        if self.play.outcome.terminal {
            self.play.outcome.reward = 0;
            return (self.play.outcome, None);
        }
        let [first, second] = self.stick(action);
        let ran = self.emulate(first, second, run);
        self.play.frame += 1;
        self.play.episode_frame += 1;
        (self.play.outcome, Some(ran))
    }

    /// The whole state of the game except the picture.
    pub fn save(&self) -> SavedGame {
        SavedGame {
            machine: self.console.save(),
            play: self.play.clone(),
        }
    }

    /// Goes back to a state of the same game. The picture is the old one until the next frame.
    pub fn restore(&mut self, saved: &SavedGame) {
        self.console.restore(&saved.machine);
        self.play.clone_from(&saved.play);
    }

    /// What the two players do, where the first wants this and the second nothing.
    fn stick(&mut self, action: Action) -> [Action; 2] {
        for (last, new) in self.play.last.iter_mut().zip([action, Action::NOOP]) {
            let draw = f64::from(self.play.random.next_u32()) / 4_294_967_296.0;
            if draw >= f64::from(self.sticky) {
                *last = new;
            }
        }
        self.play.last
    }

    /// Runs a frame and takes its outcome.
    fn emulate<T>(
        &mut self,
        first: Action,
        second: Action,
        run: impl FnOnce(&mut Console) -> T,
    ) -> T {
        let inputs = self.console.inputs();
        inputs.set_difficulty(self.play.difficulty);
        inputs.act(first, second);
        let ran = run(&mut self.console);
        let memory = Memory {
            ram: self.console.ram(),
            cartridge: self.console.cartridge_memory(),
        };
        self.play.outcome = self.play.rules.step(memory);
        ran
    }

    fn memory(&self) -> Memory<'_> {
        Memory {
            ram: self.console.ram(),
            cartridge: self.console.cartridge_memory(),
        }
    }

    fn hold(&mut self, action: Action, frames: u16) {
        for _ in 0..frames {
            self.emulate(action, Action::NOOP, Console::run_frame);
        }
    }

    fn press_reset(&mut self) {
        self.console.inputs().switches(true, false);
        self.hold(Action::NOOP, RESET_FRAMES);
        self.console.inputs().switches(false, false);
    }
}
