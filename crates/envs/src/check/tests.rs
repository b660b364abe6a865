//! Tests that good environments pass and every fault is found.

use super::*;
use crate::{EnvError, EnvOptions, registry};

#[test]
fn every_environment_of_the_table_passes() {
    // The Atari games need ROMs, and have their own tests.
    let specs = registry::all().into_iter();
    for spec in specs.filter(|spec| spec.family != "atari") {
        let report = check(&mut || spec.make(&EnvOptions::default()), 5, 3000);
        assert_eq!(report.findings, [], "{}", spec.id);
        assert_eq!(report.steps, 3000);
        assert!(report.can_be_saved, "{}", spec.id);
        assert!(report.steps_per_second > 0.0);
    }
}

/// An environment with one fault at a time.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    OutOfBounds,
    InfiniteObservation,
    NanReward,
    NanScore,
    HalfWritten,
    OwnGenerator,
    ForgetfulSnapshot,
    AcceptsAnything,
    PanicsOnBadAction,
    NothingLegal,
    OddMask,
    FailsToReset,
    Endless,
    NoChoice,
}

struct Faulty {
    fault: Fault,
    count: u32,
    lives: u32,
    /// Which of the environments it is.
    number: u32,
}

impl Faulty {
    fn show(&self, mut obs: ObsMut<'_>) {
        let row = obs.as_mut_slice::<f32>();
        row[0] = if self.fault == Fault::OwnGenerator {
            (self.lives * self.number) as f32 / 1e6
        } else if self.fault == Fault::OutOfBounds && self.count == 3 {
            1.5
        } else if self.fault == Fault::InfiniteObservation && self.count == 3 {
            f32::NEG_INFINITY
        } else {
            self.count as f32 / 1000.0
        };
        if self.fault != Fault::HalfWritten || self.count != 2 {
            row[1] = 0.0;
        }
    }
}

impl Env for Faulty {
    fn observation_space(&self) -> Space {
        match self.fault {
            Fault::InfiniteObservation => Space::unbounded(&[2]),
            _ => Space::floats(&[2], 0.0, 1.0),
        }
    }

    fn action_space(&self) -> Space {
        Space::Discrete {
            n: if self.fault == Fault::NoChoice { 0 } else { 3 },
        }
    }

    fn reset(&mut self, _: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.lives += 1;
        if self.fault == Fault::FailsToReset && self.lives > 2 {
            return Err(EnvError::Failed("the door is locked".into()));
        }
        self.count = 0;
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: ObsMut<'_>) -> Result<Step, EnvError> {
        match self.fault {
            Fault::AcceptsAnything => {}
            Fault::PanicsOnBadAction => assert_ne!(action, Action::Discrete(3)),
            _ => {
                action.discrete(3)?;
            }
        }
        self.count += u32::from(self.fault != Fault::Endless || self.count < 500);
        self.show(obs);
        let nan = self.fault == Fault::NanReward && self.count == 4;
        Ok(Step {
            reward: if nan { f32::NAN } else { 0.5 },
            terminated: self.count == 50 && self.fault != Fault::Endless,
            truncated: false,
        })
    }

    fn masks_actions(&self) -> bool {
        true
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        match self.fault {
            Fault::NothingLegal if self.count == 5 => mask.fill(0),
            Fault::OddMask => mask[0] = 1,
            _ => mask.fill(1),
        }
    }

    fn game_score(&self) -> Option<f64> {
        (self.fault == Fault::NanScore).then_some(f64::NAN)
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        let kept = self.fault != Fault::ForgetfulSnapshot;
        kept.then(|| self.count.to_le_bytes().to_vec())
            .or(Some(vec![1, 2, 3, 4]))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let bytes = <[u8; 4]>::try_from(snapshot);
        let bytes = bytes.map_err(|_| EnvError::Snapshot("it is not 4 bytes".into()))?;
        if self.fault != Fault::ForgetfulSnapshot {
            self.count = u32::from_le_bytes(bytes);
        }
        Ok(())
    }
}

fn findings(fault: Fault) -> String {
    let mut made = 0;
    let mut make = || {
        made += 1;
        Ok(Box::new(Faulty {
            fault,
            count: 0,
            lives: 0,
            number: made,
        }) as Box<dyn Env>)
    };
    let report = check(&mut make, 1, 10_000);
    let lines = report.findings.iter().map(Finding::to_string);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_fault_is_found() {
    assert_eq!(findings(Fault::None), "");
    for (fault, says) in [
        (
            Fault::OutOfBounds,
            "is outside its bounds (0 to 1) at element 0",
        ),
        (Fault::InfiniteObservation, "has -inf at element 0"),
        (Fault::NanReward, "a reward is NaN"),
        (Fault::NanScore, "a game score is NaN"),
        (Fault::HalfWritten, "does not write the whole observation"),
        (
            Fault::OwnGenerator,
            "equal generators give different episodes",
        ),
        (Fault::ForgetfulSnapshot, "continues differently"),
        (Fault::AcceptsAnything, "is accepted"),
        (Fault::PanicsOnBadAction, "makes it panic"),
        (Fault::NothingLegal, "no action is legal"),
        (Fault::OddMask, "neither 0 nor 1"),
        (Fault::FailsToReset, "the door is locked"),
        (Fault::Endless, "no episode ended"),
        (Fault::NoChoice, "has no choices"),
    ] {
        let found = findings(fault);
        assert!(found.contains(says), "'{says}' is not in: {found}");
    }
}
