//! Rejects outputs of environments that would corrupt learning.

use starling_tree::{Array, DType, Tree};

use crate::{EnvError, Rollout, Step};

/// Has the legal actions written, where some are masked. It is an error if there is none.
pub(super) fn write_legal(
    row: usize,
    b: usize,
    rollout: &mut Rollout,
    write: impl FnOnce(&mut [u8]),
) -> Result<(), EnvError> {
    let Some(legal) = &mut rollout.legal else {
        return Ok(());
    };
    let mut legal = legal.at_mut(&[row, b]);
    let mask = legal.as_mut_slice::<u8>();
    write(mask);
    match mask.iter().any(|flag| *flag != 0) {
        true => Ok(()),
        false => Err(EnvError::Failed(
            "no action is legal although the episode continues".into(),
        )),
    }
}

pub(super) fn check_reward(step: Step) -> Result<(), EnvError> {
    let reward = step.reward;
    match reward.is_finite() {
        true => Ok(()),
        false => Err(EnvError::Failed(format!("it gave the reward {reward}"))),
    }
}

pub(super) fn check_score(score: Option<f64>) -> Result<(), EnvError> {
    match score {
        Some(score) if !score.is_finite() => {
            Err(EnvError::Failed(format!("it gave the game score {score}")))
        }
        _ => Ok(()),
    }
}

/// Refuses an observation with a NaN or an infinite number, which would spoil a network and what a
/// replay holds.
pub(super) fn check_observation(obs: &Tree<Array>, index: &[usize]) -> Result<(), EnvError> {
    match is_finite(obs, index) {
        true => Ok(()),
        false => Err(not_finite(obs, index)),
    }
}

pub(super) fn is_finite(obs: &Tree<Array>, index: &[usize]) -> bool {
    match obs {
        // Without early exit, so that the loops become vector instructions.
        Tree::Leaf(array) => match array.dtype() {
            DType::F32 => {
                let values = array.at(index).as_slice::<f32>().iter();
                values.fold(true, |all, value| all & value.is_finite())
            }
            DType::F64 => {
                let values = array.at(index).as_slice::<f64>().iter();
                values.fold(true, |all, value| all & value.is_finite())
            }
            DType::U8 | DType::I32 | DType::I64 => true,
        },
        Tree::Node(parts) => parts.iter().all(|(_, part)| is_finite(part, index)),
    }
}

/// Says where an observation is not finite.
#[cold]
fn not_finite(obs: &Tree<Array>, index: &[usize]) -> EnvError {
    for (path, array) in obs.leaves() {
        let view = array.at(index);
        let values: Vec<f64> = match view.dtype {
            DType::F32 => {
                let values = view.as_slice::<f32>().iter();
                values.map(|value| f64::from(*value)).collect()
            }
            DType::F64 => view.as_slice().to_vec(),
            DType::U8 | DType::I32 | DType::I64 => continue,
        };
        let bad = values
            .iter()
            .enumerate()
            .find(|(_, value)| !value.is_finite());
        if let Some((element, value)) = bad {
            let part = match path.is_empty() {
                true => String::new(),
                false => format!(" of '{path}'"),
            };
            return EnvError::Failed(format!(
                "its observation has {value} at element {element}{part}"
            ));
        }
    }
    EnvError::Failed("its observation is not finite".into())
}

/// What a panic said.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "it gave no message".to_owned()
    }
}
