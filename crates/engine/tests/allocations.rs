//! Decoding a message allocates no more memory than a message of this run can need, whatever length it
//! announces. A separate test binary, because it counts every allocation of its process.

use std::alloc::System;
use std::sync::{Mutex, PoisonError};

use starling_engine::group::{
    Agreement, Answer, Formation, GroupError, Offer, Pauses, Standing, Table, Verdict, Word,
};
use starling_envs::Episode;

use starling_engine::link::conformance;
use starling_engine::link::wire::{self, HEADER_BYTES};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A small generator: the test is the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }
}

/// Gives a frame the checksum of its body.
fn seal(frame: &mut [u8]) {
    let (header, body) = frame.split_at_mut(HEADER_BYTES);
    header[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[16..20].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// Bytes that are allocated, in all, while something is done.
fn allocated<T>(work: impl FnOnce() -> T) -> usize {
    let region = Region::new(COUNTING);
    drop(work());
    region.change().bytes_allocated
}

/// The tests of this binary count each other's allocations.
static ALONE: Mutex<()> = Mutex::new(());

/// A message with some bytes changed, cut off or added.
fn damaged(noise: &mut Noise, message: &[u8]) -> Vec<u8> {
    let mut forged = message.to_vec();
    for _ in 0..=noise.below(6) {
        let at = noise.below(forged.len());
        forged[at] = match noise.below(3) {
            0 => 0xff,
            1 => 0x80,
            _ => noise.next() as u8,
        };
    }
    match noise.below(4) {
        0 => forged.truncate(noise.below(forged.len() + 1)),
        1 => forged.extend((0..noise.below(40)).map(|_| 0xff)),
        _ => {}
    }
    forged
}

/// Learners send each other messages of numbers, texts and episodes. Damaged and random ones are
/// refused, or understood as another message that the coordinator survives.
#[test]
fn forged_messages_of_a_group_are_survived() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let standing = Standing {
        updates: 7,
        steps: 300,
    };
    let episode = Episode {
        env: 3,
        return_: 200.0,
        discounted_return: 90.0,
        length: 200,
        nonzero_rewards: 200,
        game_score: Some(7.0),
    };
    let offer = Offer {
        steps: 640,
        updates: 4,
        episodes: vec![episode; 20],
        standing,
        checksum: Some(99),
        pauses: Pauses {
            now: false,
            at: 1000,
            check_at: 2000,
        },
    };
    let reason = String::from("reset by peer");
    let words = [
        Word::Ready(standing),
        Word::Offer(offer),
        Word::Broken {
            standing,
            reason: reason.clone(),
        },
        Word::Done(standing),
        Word::Failed(reason.clone()),
        Word::Close(Verdict::default()),
        Word::Entered {
            standing,
            checksum: 99,
        },
    ];
    let formation = Formation {
        generation: 3,
        members: vec![0, 1, 2],
        most_advanced: 1,
        env_steps: 1000,
    };
    let answers = [
        Answer::Form(formation),
        Answer::Agree(Agreement::default()),
        Answer::Verdict(Verdict::default()),
        Answer::Failed(GroupError::Diverged(vec![1, 2])),
        Answer::Failed(GroupError::Lost { rank: 1, reason }),
        Answer::Closed,
        Answer::Equal,
    ];
    for word in &words {
        assert_eq!(Word::from_bytes(&word.to_bytes()).as_ref(), Ok(word));
    }
    for answer in &answers {
        assert_eq!(Answer::from_bytes(&answer.to_bytes()).as_ref(), Ok(answer));
    }
    let words = words.map(|word| word.to_bytes());
    let answers = answers.map(|answer| answer.to_bytes());
    let mut noise = Noise(11);
    let (mut refused, mut understood) = (0, Vec::new());
    for round in 0..40_000 {
        let forged = match round % 4 {
            0 => (0..noise.below(200)).map(|_| noise.next() as u8).collect(),
            1 => {
                let answer = noise.below(answers.len());
                damaged(&mut noise, &answers[answer])
            }
            _ => {
                let word = noise.below(words.len());
                damaged(&mut noise, &words[word])
            }
        };
        // What is read, the text of an error, and what the decoder takes in advance for a list.
        let bound = 64 * forged.len() + (1 << 20) + 4096;
        let mut word = None;
        let took = allocated(|| word = Word::from_bytes(&forged).ok());
        assert!(took <= bound, "{took} bytes for {}", forged.len());
        let took = allocated(|| Answer::from_bytes(&forged).is_ok());
        assert!(took <= bound, "{took} bytes for {}", forged.len());
        match word {
            Some(word) => understood.push(word),
            None => refused += 1,
        }
    }
    assert!(refused > 1_000 && understood.len() > 1_000, "{refused}");
    // Three learners say them at random, and some leave and come back.
    let mut table = Table::new(3, u64::MAX);
    for word in understood {
        let rank = noise.below(3);
        match noise.below(20) {
            0 => table.lost(rank, "killed"),
            // A run that ended does not hear anything any more.
            1 => table = Table::new(3, u64::MAX),
            _ => {
                for rank in 0..3 {
                    let _ = table.sit(Some(rank), Box::new(|_| ()));
                }
                table.say(rank, word);
            }
        }
        assert!(table.present() <= 3);
    }
}

#[test]
fn forged_messages_take_no_more_memory_than_real_ones() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let terms = conformance::terms();
    let lease = terms.places.lease().unwrap();
    let mut frame = Vec::new();
    wire::write_parcel(&conformance::parcel(&lease, 0, 1.0), &mut frame).unwrap();
    let honest = allocated(|| terms.parcels.read(&frame).unwrap());
    // The head is decoded before it is checked: up to the length of the message, with its overhead, and
    // what the decoder takes in advance for a list, 1 MiB at most, for each of the lists within lists.
    let bound = 4 * honest + 16 * terms.parcels.most_bytes() as usize + (4 << 20);
    let mut noise = Noise(7);
    let (mut read, mut most) = (0, 0);
    for _ in 0..20_000 {
        let mut forged = frame.clone();
        for _ in 0..=noise.below(6) {
            let at = HEADER_BYTES + noise.below(forged.len() - HEADER_BYTES);
            // Large numbers are what asks for memory.
            forged[at] = match noise.below(3) {
                0 => 0xff,
                1 => 0x80,
                _ => noise.next() as u8,
            };
        }
        if noise.below(4) == 0 {
            forged.truncate(HEADER_BYTES + noise.below(forged.len() - HEADER_BYTES));
        }
        seal(&mut forged);
        let took = allocated(|| read += usize::from(terms.parcels.read(&forged).is_ok()));
        most = most.max(took);
        assert!(
            took <= bound,
            "{took} bytes for a message of {}",
            forged.len()
        );
    }
    assert!(read < 20_000, "nothing was refused");
    assert!(most > 0);

    // What a header or a compressed part announces is not believed.
    for announced in [1 << 30, 1 << 40, u64::MAX] {
        let mut long = frame.clone();
        long[8..16].copy_from_slice(&announced.to_le_bytes());
        assert!(allocated(|| terms.parcels.read(&long).unwrap_err()) < 4096);
    }
    let bomb = zstd::bulk::compress(&vec![0; 1 << 26], 1).unwrap();
    let head = u32::from_le_bytes(*frame[HEADER_BYTES..].first_chunk().unwrap()) as usize;
    for announced in [1 << 26, 1 << 40, terms.parcels.most_bytes()] {
        let mut forged = frame[..HEADER_BYTES + 4 + head].to_vec();
        forged.extend(announced.to_le_bytes());
        forged.extend(&bomb);
        seal(&mut forged);
        assert!(allocated(|| terms.parcels.read(&forged).unwrap_err()) <= bound);
    }
}
