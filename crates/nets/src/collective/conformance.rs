//! What every collective has to fulfil.

use tch::{Device, Kind, Tensor};

use super::Collective;

/// Numbers of the largest tensor; not a multiple of anything.
const MANY: i64 = 300_007;

/// Makes the calls that learners make, and compares the results with what they have to be. All members
/// of a group call it at the same time, each with tensors on its device.
///
/// # Errors
/// Says which result is wrong.
pub fn check_collective(collective: &mut dyn Collective, device: Device) -> Result<(), String> {
    let (rank, size) = (collective.rank(), collective.size());
    if rank >= size {
        return Err(format!("rank {rank} of {size} members"));
    }
    let failed = |error: crate::ReduceError| error.to_string();
    for kind in [Kind::Float, Kind::BFloat16] {
        for numbers in [1, 5, MANY] {
            // Small whole numbers: their sum is exact, in any order and in bfloat16.
            let pattern = Tensor::arange(numbers, (Kind::Int64, Device::Cpu)).remainder(7);
            let own = (&pattern + rank as i64).to_kind(kind).to_device(device);
            collective.sum(&own).map_err(failed)?;
            let ranks = (size * (size - 1) / 2) as i64;
            let expected = (&pattern * size as i64 + ranks).to_kind(kind);
            compare(
                &own,
                &expected,
                &format!("the sum of {numbers} numbers ({kind:?})"),
            )?;
        }
    }
    for root in 0..size {
        for (kind, numbers) in [(Kind::Uint8, 3), (Kind::Uint8, MANY), (Kind::Float, MANY)] {
            let values = Tensor::full([numbers], rank as i64 + 1, (kind, device));
            collective.broadcast(&values, root).map_err(failed)?;
            let expected = Tensor::full([numbers], root as i64 + 1, (kind, Device::Cpu));
            compare(
                &values,
                &expected,
                &format!("{numbers} numbers of member {root} ({kind:?})"),
            )?;
        }
    }
    // Rounded sums differ with their order: all members have to have the same ones.
    let own = Tensor::arange(MANY, (Kind::Float, Device::Cpu)) * 0.1 + rank as f64 * 0.7;
    let own = own.to_device(device);
    collective.sum(&own).map_err(failed)?;
    let first = own.copy();
    collective.broadcast(&first, 0).map_err(failed)?;
    compare(
        &own,
        &first.to_device(Device::Cpu),
        "a rounded sum of member 0",
    )
}

fn compare(ours: &Tensor, expected: &Tensor, what: &str) -> Result<(), String> {
    match ours.to_device(Device::Cpu).equal(expected) {
        true => Ok(()),
        false => Err(format!("{what} is wrong")),
    }
}
