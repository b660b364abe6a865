//! A codec for frames of games, designed for fast decoding.
//!
//! A frame of a game consists mostly of flat areas, lines that repeat the one above, and pixels
//! that did not change. So an item is a list of four kinds of parts: literal bytes, a run of the
//! previous byte, a copy of the line above, and a copy of the same position in an earlier frame.
//! Decoding fills and copies large pieces, which takes a fraction of the time of a general codec on
//! the same frames. The codec is lossless for any bytes.
//!
//! A part begins with one byte: the kind in the upper two bits, its length minus one in the
//! lower six. 63 there means that two more bytes follow, with the length minus 64.

/// Compresses `from`, whose lines are `line` bytes long, beside an earlier frame that will be
/// there when it is read: of the same length, or empty.
pub(crate) fn pack(from: &[u8], line: usize, earlier: &[u8]) -> Box<[u8]> {
    let line = line.max(1);
    let mut packed = Vec::with_capacity(from.len() / 4);
    let (mut at, mut literal) = (0, 0);
    while at < from.len() {
        let rest = &from[at..];
        let mut best = (
            SAME,
            equal_bytes(earlier.get(at..).unwrap_or_default(), rest),
        );
        for (kind, distance) in [(ABOVE, line), (RUN, 1)] {
            // Nothing is gained by looking for more than a whole line.
            if let Some(start) = at.checked_sub(distance).filter(|_| best.1 < line) {
                let length = equal_bytes(&from[start..], rest);
                if length > best.1 {
                    best = (kind, length);
                }
            }
        }
        let (kind, length) = best;
        if length < SHORTEST {
            at += 1;
            continue;
        }
        push_literal(&mut packed, &from[literal..at]);
        push_head(&mut packed, kind, length);
        at += length;
        literal = at;
    }
    push_literal(&mut packed, &from[literal..]);
    packed.into_boxed_slice()
}

/// Restores what [`pack`] was given, beside the same earlier frame. An item that was never
/// written reads as zeros.
pub(crate) fn unpack(packed: &[u8], line: usize, earlier: &[u8], to: &mut [u8]) {
    let line = line.max(1);
    let (mut rest, mut at) = (packed, 0);
    while let [head, tail @ ..] = rest {
        rest = tail;
        let mut length = usize::from(head & LENGTH) + 1;
        if length > usize::from(LENGTH)
            && let [low, high, tail @ ..] = rest
        {
            length += usize::from(u16::from_le_bytes([*low, *high]));
            rest = tail;
        }
        let length = length.min(to.len() - at);
        match head & !LENGTH {
            RUN if at > 0 => {
                let byte = to[at - 1];
                if !put_short(to, at, length, &[byte; SHORT]) {
                    to[at..at + length].fill(byte);
                }
            }
            ABOVE if at >= line => {
                let mut above = [0; SHORT];
                if line >= SHORT && length <= SHORT {
                    above.copy_from_slice(&to[at - line..at - line + SHORT]);
                }
                if line < SHORT || !put_short(to, at, length, &above) {
                    copy_above(to, at, length, line);
                }
            }
            SAME if at + length <= earlier.len() => {
                if !put_short(to, at, length, &earlier[at..]) {
                    to[at..at + length].copy_from_slice(&earlier[at..at + length]);
                }
            }
            _ => {
                let bytes = length.min(rest.len());
                if !put_short(to, at, bytes, rest) {
                    to[at..at + bytes].copy_from_slice(&rest[..bytes]);
                }
                rest = &rest[bytes..];
            }
        }
        at += length;
    }
    to[at..].fill(0);
}

const LITERAL: u8 = 0;
const RUN: u8 = 1 << 6;
const ABOVE: u8 = 2 << 6;
const SAME: u8 = 3 << 6;
/// The bits of the head that hold the length.
const LENGTH: u8 = 63;
/// Shorter parts would save little room, and reading them would take longer than copying.
const SHORTEST: usize = 16;
/// The longest part.
const LONGEST: usize = LENGTH as usize + 1 + u16::MAX as usize;

/// Most parts are no longer than this.
const SHORT: usize = 32;

/// Writes a short part together with some bytes after it, which later parts overwrite: a fixed
/// number of bytes takes less time than the exact number. Returns whether there was room for that.
fn put_short(to: &mut [u8], at: usize, length: usize, from: &[u8]) -> bool {
    if length <= SHORT
        && let (Some(to), Some(from)) = (to.get_mut(at..at + SHORT), from.get(..SHORT))
    {
        to.copy_from_slice(from);
        return true;
    }
    false
}

/// How many bytes at the beginning of both are equal.
fn equal_bytes(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8));
    let mut equal = 0;
    for (a, b) in words {
        let difference = word(a) ^ word(b);
        if difference != 0 {
            return equal + difference.trailing_zeros() as usize / 8;
        }
        equal += 8;
    }
    let rest = a[equal..].iter().zip(&b[equal..]);
    equal + rest.take_while(|(a, b)| a == b).count()
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn push_literal(packed: &mut Vec<u8>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (part, rest) = bytes.split_at(bytes.len().min(LONGEST));
        push_one_head(packed, LITERAL, part.len());
        packed.extend_from_slice(part);
        bytes = rest;
    }
}

fn push_head(packed: &mut Vec<u8>, kind: u8, mut length: usize) {
    while length > 0 {
        let part = length.min(LONGEST);
        push_one_head(packed, kind, part);
        length -= part;
    }
}

fn push_one_head(packed: &mut Vec<u8>, kind: u8, length: usize) {
    match u8::try_from(length - 1) {
        Ok(short) if short < LENGTH => packed.push(kind | short),
        _ => {
            packed.push(kind | LENGTH);
            // At most LONGEST − 64, which is the largest u16.
            let more = (length - 1 - usize::from(LENGTH)) as u16;
            packed.extend_from_slice(&more.to_le_bytes());
        }
    }
}

/// Repeats the line before `at`, for `length` bytes.
fn copy_above(to: &mut [u8], mut at: usize, mut length: usize, line: usize) {
    let mut period = line;
    while length > 0 {
        let part = length.min(period);
        to.copy_within(at - period..at - period + part, at);
        at += part;
        length -= part;
        // What has been written repeats the line as well.
        period += part - part % line;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn returns(bytes: &[u8], line: usize) -> usize {
        returns_beside(bytes, line, &[])
    }

    fn returns_beside(bytes: &[u8], line: usize, earlier: &[u8]) -> usize {
        let packed = pack(bytes, line, earlier);
        let mut unpacked = vec![77; bytes.len()];
        unpack(&packed, line, earlier, &mut unpacked);
        assert_eq!(unpacked, bytes);
        packed.len()
    }

    #[test]
    fn flat_frames_become_a_few_bytes() {
        assert_eq!(returns(&[9; 84 * 84], 84), 5);
        // A picture of equal lines: one line as it is, then a copy of it.
        let line: Vec<u8> = (0..84).map(|x| x * 3).collect();
        assert_eq!(returns(&line.repeat(84), 84), 3 + 84 + 3);
        assert_eq!(returns(&[], 84), 0);
        // A frame that shows what the earlier one did, but for one pixel.
        let noise: Vec<u8> = (0..84 * 84u32).map(|i| ((i * i) >> 5) as u8).collect();
        let mut next = noise.clone();
        next[3000] ^= 1;
        assert_eq!(returns_beside(&next, 84, &noise), 3 + 2 + 3);
    }

    #[test]
    fn long_parts_are_split() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| ((i * i) >> 7) as u8).collect();
        returns(&bytes, 84);
        assert!(returns(&[3; 300_000], 1) < 20);
        assert!(returns(&[1, 2, 3].repeat(100_000), 3) < 20);
    }

    #[test]
    fn what_was_never_written_is_zero() {
        let mut to = [5; 10];
        unpack(&[], 4, &[], &mut to);
        assert_eq!(to, [0; 10]);
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(
            bytes in prop::collection::vec(prop::sample::select(vec![0u8, 1, 200]), 0..3000),
            line in 1usize..90,
            changes in prop::collection::vec((0usize..3000, any::<u8>()), 0..40),
        ) {
            returns(&bytes, line);
            let mut next = bytes.clone();
            for (at, byte) in changes {
                if let Some(old) = next.get_mut(at) {
                    *old = byte;
                }
            }
            returns_beside(&next, line, &bytes);
        }

        #[test]
        fn damaged_items_do_not_reach_outside(
            packed in prop::collection::vec(any::<u8>(), 0..300),
            size in 0usize..500,
            line in 1usize..90,
            earlier in 0usize..500,
        ) {
            unpack(&packed, line, &vec![1; earlier], &mut vec![0; size]);
        }
    }
}
