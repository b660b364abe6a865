//! Random streams: all random numbers are functions of (seed, role, index).

use rand::SeedableRng as _;

/// The generator of all streams: small, fast, with a state that can be saved.
pub type Rng = rand_xoshiro::Xoshiro256PlusPlus;

/// The stream of one role and index under a run's seed.
///
/// Streams of different roles or indices are independent, so that adding an environment or an
/// evaluation never changes the numbers that another one draws.
pub fn stream(seed: u64, role: &str, index: u64) -> Rng {
    let mut state = splitmix(seed);
    for byte in role.bytes() {
        state = splitmix(state ^ u64::from(byte));
    }
    state = splitmix(state ^ index);
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_exact_mut(8) {
        state = splitmix(state);
        chunk.copy_from_slice(&state.to_le_bytes());
    }
    Rng::from_seed(bytes)
}

fn splitmix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng as _;

    #[test]
    fn streams_repeat_and_differ() {
        let first = |seed, role, index| stream(seed, role, index).next_u64();
        assert_eq!(first(1, "env", 0), first(1, "env", 0));
        let all = [
            first(1, "env", 0),
            first(1, "env", 1),
            first(2, "env", 0),
            first(1, "eval", 0),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }
}
