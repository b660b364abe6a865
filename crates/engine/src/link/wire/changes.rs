//! Weights as changes since an earlier version, for slow connections.
//!
//! A few updates change the low bits of most weights and the high bits of few. So the bits of both
//! versions are combined by XOR, the first bytes of all values are put beside each other, then the
//! second ones, and zstd finds the zeros. The result is exact: the receiver has the same bits as if it
//! had received the weights themselves.

use std::sync::Arc;

use starling_nets::Snapshot;

use super::{
    CHANGES, Control, HEADER_BYTES, Publication, PublicationFormat, Weights, WireError, ZSTD_LEVEL,
    array, begin_frame, end_frame, read_frame, take,
};

/// Bytes of a frame of weights before its values.
const BEFORE_VALUES: usize = HEADER_BYTES + 16;

/// The frame of the changes from one frame of weights to another; `None` if it would not be much
/// smaller.
pub fn changes_between(base: &[u8], frame: &[u8]) -> Option<Vec<u8>> {
    let (_, old) = base.split_at_checked(BEFORE_VALUES)?;
    let (head, new) = frame.split_at_checked(BEFORE_VALUES)?;
    let values = new.len() / 4;
    if old.len() != new.len() {
        return None;
    }
    let mut planes = vec![0; 4 * values];
    for (byte, plane) in planes.chunks_exact_mut(values.max(1)).enumerate() {
        let pairs = old.chunks_exact(4).zip(new.chunks_exact(4));
        for (change, (old, new)) in plane.iter_mut().zip(pairs) {
            *change = old[byte] ^ new[byte];
        }
    }
    let packed = zstd::bulk::compress(&planes, ZSTD_LEVEL).ok()?;
    if packed.len() > new.len() / 4 * 3 {
        return None;
    }
    let mut out = Vec::with_capacity(HEADER_BYTES + 24 + packed.len());
    let begin = begin_frame(CHANGES, &mut out);
    out.extend(&base[HEADER_BYTES..HEADER_BYTES + 8]);
    out.extend(&head[HEADER_BYTES..]);
    out.extend(packed);
    end_frame(begin, &mut out);
    Some(out)
}

/// Reads what [`changes_between`] wrote.
pub(super) fn read(
    format: &PublicationFormat,
    frame: &[u8],
    held: impl Fn(u64) -> Option<Arc<Weights>>,
) -> Result<Publication, WireError> {
    let mut left = read_frame(CHANGES, frame, format.most_bytes())?;
    let mut number = || take(&mut left, 8).map(|bytes| u64::from_le_bytes(array(bytes)));
    let (base, version, env_steps) = (number()?, number()?, number()?);
    let unexpected = |what: String| WireError::Unexpected(what);
    let base = held(base).ok_or_else(|| {
        unexpected(format!(
            "these are changes of weights {base}, which are not held"
        ))
    })?;
    let old = base.values.values();
    if old.len() != format.weights {
        let expected = format.weights;
        return Err(unexpected(format!(
            "the base is not of a network of {expected} parameters"
        )));
    }
    // No more memory than the weights take, whatever comes.
    let mut planes = Vec::with_capacity(4 * old.len());
    let zstd = zstd::bulk::Decompressor::new();
    let read = zstd.and_then(|mut zstd| zstd.decompress_to_buffer(left, &mut planes));
    if !read.is_ok_and(|read| read == 4 * old.len()) {
        return Err(WireError::Damaged);
    }
    let plane = |byte: usize| &planes[byte * old.len()..(byte + 1) * old.len()];
    let [first, second, third, fourth] = [0, 1, 2, 3].map(plane);
    let value = |(i, old): (usize, &f32)| {
        let change = u32::from_le_bytes([first[i], second[i], third[i], fourth[i]]);
        f32::from_bits(old.to_bits() ^ change)
    };
    let values = old.iter().enumerate().map(value).collect();
    Ok(Publication {
        weights: Arc::new(Weights {
            version,
            values: Snapshot::from_values(values),
        }),
        control: Control { env_steps },
    })
}
