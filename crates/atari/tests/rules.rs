//! The rules of every game against recordings of the Arcade Learning Environment.
//!
//! A recording is a sequence of memories with the reward, the lives and the end that ALE read from
//! them; `probe_rules.py` makes it. The one in `fixtures` holds a slice for every game. A sweep
//! over longer ones: `STARLING_RULE_RECORDINGS=DIR cargo test -p starling-atari --test rules`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use starling_atari::games::{self, Memory, Outcome, Rules};

#[test]
fn rules_agree_with_the_recordings() {
    let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rules.bin")];
    if let Some(folder) = std::env::var_os("STARLING_RULE_RECORDINGS") {
        paths.extend(
            std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().path()),
        );
    }
    let mut games_seen = std::collections::BTreeSet::new();
    let mut differences = vec![];
    for path in &paths {
        let bytes = std::fs::read(path).unwrap();
        let mut reader = Reader {
            rest: bytes.strip_prefix(b"RULES01\n").unwrap(),
        };
        while !reader.rest.is_empty() {
            replay(&mut reader, path, &mut games_seen, &mut differences);
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(games_seen.len(), 104);
}

#[test]
fn the_table_is_sorted_and_whole() {
    let names: Vec<_> = games::all().map(|game| game.name).collect();
    assert_eq!(names.len(), 104);
    assert!(names.is_sorted());
    for game in games::all() {
        assert_eq!(game.md5.len(), 32, "{}", game.name);
        assert_eq!(games::by_md5(game.md5).unwrap().name, game.name);
        assert_eq!(games::by_name(game.name).unwrap().md5, game.md5);
        assert!(
            game.minimal_actions.iter().all(|&action| action < 18),
            "{}",
            game.name
        );
        assert!(
            !game.modes.is_empty() && !game.difficulties.is_empty(),
            "{}",
            game.name
        );
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.rest.split_first_chunk().unwrap();
        self.rest = rest;
        *taken
    }
}

/// Replays the recording of one game: its name, the number of records, then for each record flags
/// (1: after a reset, 2: game over), lives, reward, and the bytes of memory that have changed.
fn replay(
    reader: &mut Reader<'_>,
    path: &Path,
    games_seen: &mut std::collections::BTreeSet<String>,
    differences: &mut Vec<String>,
) {
    let [length] = reader.take();
    let name: Vec<u8> = (0..length).map(|_| reader.take::<1>()[0]).collect();
    let name = String::from_utf8(name).unwrap();
    let mut rules = Rules::new(games::by_name(&name).unwrap());
    let mut bytes = [0; 256];
    let mut differs = false;
    for record in 0..u32::from_le_bytes(reader.take()) {
        let [flags, lives] = reader.take();
        let reward = i32::from_le_bytes(reader.take());
        for _ in 0..u16::from_le_bytes(reader.take()) {
            let [index, value] = reader.take();
            bytes[usize::from(index)] = value;
        }
        if flags & 1 != 0 {
            rules.reset();
        }
        let (ram, cartridge) = bytes.split_first_chunk().unwrap();
        let outcome = rules.step(Memory { ram, cartridge });
        let mut recorded = Outcome {
            reward,
            terminal: flags & 2 != 0,
            lives,
        };
        if flags & 1 != 0 {
            // What a reset itself gives is not part of the episode.
            recorded.reward = outcome.reward;
        }
        if outcome != recorded && !differs {
            differs = true;
            differences.push(format!(
                "{name}, record {record} of {}: {outcome:?} instead of {recorded:?}",
                path.display()
            ));
        }
    }
    games_seen.insert(name);
}
