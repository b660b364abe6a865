//! Compares every step with recorded games of the `minatar` package (`tests/record_minatar.py`,
//! which also says how the records are laid out).

use std::collections::VecDeque;

use super::*;

/// Plays back recorded draws.
#[derive(Default)]
struct Record(VecDeque<(u8, u8)>);

impl Draws for Record {
    fn unit(&mut self) -> f64 {
        let (kind, value) = self.0.pop_front().expect("the package drew less");
        assert_eq!(kind, 0, "the package drew an integer");
        (f64::from(value) + 0.5) / 256.0
    }

    fn below(&mut self, n: u8) -> u8 {
        let (kind, value) = self.0.pop_front().expect("the package drew less");
        assert_eq!(kind, n, "the package drew from another range");
        value
    }
}

#[test]
fn asterix() {
    compare::<Asterix>(include_bytes!("../../tests/fixtures/minatar_asterix.bin"));
}

#[test]
fn breakout() {
    compare::<Breakout>(include_bytes!("../../tests/fixtures/minatar_breakout.bin"));
}

#[test]
fn freeway() {
    compare::<Freeway>(include_bytes!("../../tests/fixtures/minatar_freeway.bin"));
}

#[test]
fn seaquest() {
    compare::<Seaquest>(include_bytes!("../../tests/fixtures/minatar_seaquest.bin"));
}

#[test]
fn space_invaders() {
    compare::<SpaceInvaders>(include_bytes!(
        "../../tests/fixtures/minatar_space_invaders.bin"
    ));
}

fn compare<G: Game>(mut record: &[u8]) {
    let mut env = MinAtar::<G>::new(true, MinAtarOptions::default());
    let mut expected = vec![0; G::CHANNELS * SIZE * SIZE];
    let mut shown = expected.clone();
    let mut steps = 0;
    while !record.is_empty() {
        let choice = byte(&mut record);
        let count = byte(&mut record);
        let draws = (0..count).map(|_| (byte(&mut record), byte(&mut record)));
        let mut draws = Record(draws.collect());
        if choice == 255 {
            env.game.reset(&mut draws);
        } else {
            let wanted = (f32::from(byte(&mut record)), byte(&mut record) == 1);
            let choice = ALL_MOVES[usize::from(choice)];
            let outcome = env.play(choice, &mut draws);
            assert_eq!(outcome, wanted, "step {steps}: reward and end");
            steps += 1;
        }
        assert!(draws.0.is_empty(), "step {steps}: the package drew more");

        let changes = u16::from_le_bytes([byte(&mut record), byte(&mut record)]);
        let mut index = -1;
        for _ in 0..changes {
            loop {
                let distance = byte(&mut record);
                index += i32::from(distance);
                if distance < 255 {
                    break;
                }
            }
            expected[index as usize] ^= 1;
        }
        shown.fill(0);
        env.game.show(&mut Board(&mut shown));
        if let Some(cell) = (0..shown.len()).find(|i| shown[*i] != expected[*i]) {
            panic!(
                "step {steps}: channel {}, row {}, column {} is {}",
                cell / 100,
                cell / 10 % 10,
                cell % 10,
                shown[cell]
            );
        }
    }
    assert!(steps >= 4000, "only {steps} steps are recorded");
}

fn byte(record: &mut &[u8]) -> u8 {
    let (first, rest) = record.split_first().expect("the record ends in a step");
    *record = rest;
    *first
}
