//! Compares every step with recorded runs of Gymnasium's preprocessing (`tests/record_atari.py`,
//! which also says how the records are laid out).

use std::collections::VecDeque;

use serde::Deserialize;
use starling_tree::{Array, DType, Tree};

use super::tests::has_roms;
use super::*;

#[derive(Deserialize)]
struct Record {
    id: String,
    options: EnvOptions,
    seed: u32,
    noops: Vec<u32>,
    actions: String,
    rewards: Vec<(usize, i32)>,
    ends: Vec<(usize, String)>,
    checks: String,
}

/// Plays back recorded random numbers.
struct Recorded {
    seed: Option<u32>,
    noops: VecDeque<u32>,
}

impl Draws for Recorded {
    fn seed(&mut self) -> u32 {
        self.seed.take().expect("the reference is seeded once")
    }

    fn times(&mut self, _least: u32, _most: u32) -> u32 {
        self.noops.pop_front().expect("the reference reset less")
    }

    fn choice(&mut self, _count: usize) -> usize {
        unreachable!("the reference starts with no-ops")
    }

    fn frames(&mut self) -> u32 {
        unreachable!("there are no recordings of environments with a random skip")
    }
}

/// The reference's CRC-32, continued.
fn crc(crc: u32, bytes: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|index| {
        (0..8).fold(index as u32, |word, _| {
            (word >> 1) ^ if word & 1 == 1 { 0xEDB8_8320 } else { 0 }
        })
    });
    !bytes.iter().fold(!crc, |word, byte| {
        table[usize::from(word as u8 ^ byte)] ^ (word >> 8)
    })
}

#[test]
fn twelve_games() {
    let text = include_str!("../../tests/fixtures/atari.json");
    let records: Vec<Record> = serde_json::from_str(text).unwrap();
    assert!(records.len() >= 12);
    let games = records
        .iter()
        .map(|record| parse(&record.id).unwrap().0.name);
    if !has_roms("twelve_games", &games.collect::<Vec<_>>()) {
        return;
    }
    let mut wrong = Vec::new();
    for record in records {
        let (game, version) = parse(&record.id).unwrap();
        let env = AtariEnv::new(game, version, &record.options).unwrap();
        wrong.extend(compare(&record, env).err());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Says where the first difference is.
fn compare(record: &Record, mut env: AtariEnv) -> Result<(), String> {
    let id = &record.id;
    let mut draws = Recorded {
        seed: Some(record.seed),
        noops: record.noops.iter().copied().collect(),
    };
    let mut row = Tree::Leaf(Array::zeros(DType::U8, &[4, 84, 84]));
    let (mut check, mut checks) = (0, record.checks.as_bytes().chunks_exact(4));
    let mut see = |env: &AtariEnv, step: usize| {
        env.write(ObsMut::at(&mut row, &[]));
        check = crc(check, ObsMut::at(&mut row, &[]).as_mut_slice::<u8>());
        let wanted = std::str::from_utf8(checks.next().unwrap()).unwrap();
        match format!("{:04x}", check & 0xFFFF) == wanted {
            true => Ok(()),
            false => Err(format!("{id}: step {step}")),
        }
    };
    env.start(&mut draws).unwrap();
    see(&env, 0)?;
    let (mut rewards, mut ends) = (Vec::new(), Vec::new());
    for (step, letter) in record.actions.bytes().enumerate() {
        let press = env.presses[usize::from(letter - b'a')];
        let running = env.running.as_mut().unwrap();
        let turn = running.turn(press, &env.settings, &mut draws);
        running.draw(turn);
        see(&env, step)?;
        if turn.reward != 0 {
            rewards.push((step, turn.reward));
        }
        if turn.terminated || turn.truncated {
            let how = if turn.terminated {
                "terminated"
            } else {
                "truncated"
            };
            ends.push((step, how.to_owned()));
            env.start(&mut draws).unwrap();
            see(&env, step)?;
        }
    }
    assert!(checks.next().is_none(), "{id}: the reference reset more");
    match rewards == record.rewards && ends == record.ends {
        true => Ok(()),
        false => Err(format!("{id}: rewards {rewards:?}, ends {ends:?}")),
    }
}
