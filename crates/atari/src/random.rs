//! The Mersenne Twister: the random stream of the console's power-up state and of sticky actions.

use serde::{Deserialize, Serialize};

/// The 32-bit Mersenne Twister (mt19937), as C++'s standard library seeds it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mt19937 {
    #[serde(with = "crate::wide")]
    words: [u32; SIZE],
    next: u16,
}

const SIZE: usize = 624;
const SHIFT: usize = 397;

impl Mt19937 {
    /// The stream of one seed.
    pub fn new(seed: u32) -> Self {
        let mut words = [0; SIZE];
        let mut word = seed;
        for (index, slot) in words.iter_mut().enumerate() {
            if index > 0 {
                word = 1_812_433_253u32
                    .wrapping_mul(word ^ (word >> 30))
                    .wrapping_add(index as u32);
            }
            *slot = word;
        }
        Self {
            words,
            next: SIZE as u16,
        }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if usize::from(self.next) >= SIZE {
            self.refill();
        }
        let mut word = self.words[usize::from(self.next)];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9D2C_5680;
        word ^= (word << 15) & 0xEFC6_0000;
        word ^ (word >> 18)
    }

    fn refill(&mut self) {
        for index in 0..SIZE {
            let joined =
                (self.words[index] & 0x8000_0000) | (self.words[(index + 1) % SIZE] & 0x7FFF_FFFF);
            let mut word = self.words[(index + SHIFT) % SIZE] ^ (joined >> 1);
            if joined & 1 != 0 {
                word ^= 0x9908_B0DF;
            }
            self.words[index] = word;
        }
        self.next = 0;
    }
}

impl std::fmt::Debug for Mt19937 {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Mt19937")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_thousandth_draw_is_the_one_the_standard_names() {
        let mut random = Mt19937::new(5489);
        let last = (0..10_000).map(|_| random.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
