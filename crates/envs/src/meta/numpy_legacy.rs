//! numpy's legacy generator (`numpy.random.seed`), the Mersenne Twister MT19937 (Matsumoto and
//! Nishimura 1998), so that tasks are those of code that drew them with numpy.

const SIZE: usize = 624;
const MIDDLE: usize = 397;

/// The numbers that `numpy.random` draws after `numpy.random.seed(seed)`.
#[derive(Clone, Debug)]
pub struct NumpyLegacy {
    state: [u32; SIZE],
    next: usize,
}

impl NumpyLegacy {
    /// As after `numpy.random.seed(seed)`.
    pub fn new(seed: u32) -> Self {
        let mut state = [seed; SIZE];
        for i in 1..SIZE {
            let before = state[i - 1];
            let mixed = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30));
            state[i] = mixed.wrapping_add(i as u32);
        }
        Self { state, next: SIZE }
    }

    /// `numpy.random.uniform(low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// `numpy.random.random()`: 53 bits, from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        let (high, low) = (self.bits() >> 5, self.bits() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// `numpy.random.shuffle(values)`.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            let other = self.at_most(last as u32) as usize;
            values.swap(last, other);
        }
    }

    /// A whole number from 0 to `most`.
    fn at_most(&mut self, most: u32) -> u32 {
        let mask = u32::MAX.checked_shr(most.leading_zeros()).unwrap_or(0);
        loop {
            let value = self.bits() & mask;
            if value <= most {
                return value;
            }
        }
    }

    fn bits(&mut self) -> u32 {
        if self.next == SIZE {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..SIZE {
            let upper = self.state[i] & 0x8000_0000;
            let joined = upper | (self.state[(i + 1) % SIZE] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + MIDDLE) % SIZE] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.random.seed(1337); numpy.random.uniform(0, 3, 1000)`, of which the last ones come
    /// after the state was made again, and `numpy.random.shuffle(numpy.arange(10))`.
    #[test]
    fn numbers_are_numpys() {
        let mut numpy = NumpyLegacy::new(1337);
        let drawn: Vec<f64> = (0..1000).map(|_| numpy.uniform(0.0, 3.0)).collect();
        let close = |ours: f64, theirs: f64| (ours - theirs).abs() < 1e-12;
        assert!(close(drawn[0], 0.7860740250467451));
        assert!(close(drawn[1], 0.47605191646339684));
        assert!(close(drawn[2], 0.8343795584830792));
        assert!(close(drawn[998], 2.2448071634110343));
        assert!(close(drawn[999], 2.4059643970235918));
        let mut order: Vec<usize> = (0..10).collect();
        NumpyLegacy::new(1337).shuffle(&mut order);
        assert_eq!(order, [6, 3, 0, 4, 5, 2, 1, 9, 8, 7]);
    }
}
