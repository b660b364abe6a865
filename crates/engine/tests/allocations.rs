//! Decoding a message allocates no more memory than a message of this run can need, whatever length it
//! announces. A separate test binary, because it counts every allocation of its process.

use std::alloc::System;

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

#[test]
fn forged_messages_take_no_more_memory_than_real_ones() {
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
