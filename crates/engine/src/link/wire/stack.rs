//! Observations without what the one before showed already.
//!
//! A stack of frames continues the observation before it where all but its newest frame are frames
//! of that one, shifted by one. Then the newest frame is enough. Whether it does is seen in the
//! bytes, so nothing has to be known of the environment, and any bytes survive.
//!
//! ```text
//! leaf = for each environment: (mark u8 | item, or its newest frame) for each row … | the same
//!        for the last observation of each ended episode, which may continue the row before it
//! ```
//!
//! An array that cannot be a stack (fewer than three dimensions) has no marks.

use starling_tree::Array;

use super::{WireError, take};

/// Sent as it is.
const WHOLE: u8 = 0;
/// Continues the one before: its newest frame follows.
const CONTINUED: u8 = 1;

/// One leaf of the observations, `[T + 1, B, …]`, as items.
#[derive(Clone, Copy)]
struct Layout {
    rows: usize,
    envs: usize,
    /// Bytes of an item.
    item: usize,
    /// Bytes of the newest frame; `None` if it is no stack.
    frame: Option<usize>,
}

impl Layout {
    fn of(shown: &Array) -> Self {
        let shape = shown.shape();
        let (rows, envs) = (shape[0], shape[1]);
        let item = shown.bytes().len() / (rows * envs).max(1);
        let frame = match shape[2..] {
            [frames, _, _, ..] if frames > 1 => Some(item / frames),
            _ => None,
        };
        Self {
            rows,
            envs,
            item,
            frame,
        }
    }

    fn at(&self, t: usize, b: usize) -> std::ops::Range<usize> {
        let start = (t * self.envs + b) * self.item;
        start..start + self.item
    }
}

pub(super) fn write(shown: &Array, last: &Array, ends: &[(usize, usize)], out: &mut Vec<u8>) {
    let layout = Layout::of(shown);
    let (bytes, last) = (shown.bytes(), last.bytes());
    let mut put = |before: Option<&[u8]>, item: &[u8]| match (layout.frame, before) {
        (Some(frame), Some(before)) if before[frame..] == item[..item.len() - frame] => {
            out.push(CONTINUED);
            out.extend(&item[item.len() - frame..]);
        }
        (Some(_), _) => {
            out.push(WHOLE);
            out.extend(item);
        }
        (None, _) => out.extend(item),
    };
    for b in 0..layout.envs {
        for t in 0..layout.rows {
            let before = t.checked_sub(1).map(|t| &bytes[layout.at(t, b)]);
            put(before, &bytes[layout.at(t, b)]);
        }
    }
    for (i, &(t, b)) in ends.iter().enumerate() {
        let item = &last[i * layout.item..(i + 1) * layout.item];
        put(Some(&bytes[layout.at(t, b)]), item);
    }
}

/// Reads what [`write`] wrote. The arrays have the shape that is expected.
pub(super) fn read(
    shown: &mut Array,
    last: &mut Array,
    ends: &[(usize, usize)],
    left: &mut &[u8],
) -> Result<(), WireError> {
    let layout = Layout::of(shown);
    let (bytes, last) = (shown.bytes_mut(), last.bytes_mut());
    for b in 0..layout.envs {
        for t in 0..layout.rows {
            let at = layout.at(t, b);
            if let Some(frame) = continued(&layout, left)? {
                // The first row has nothing before it.
                let before = t.checked_sub(1).ok_or(WireError::Damaged)?;
                let before = layout.at(before, b);
                bytes.copy_within(before.start + frame.len()..before.end, at.start);
                bytes[at.end - frame.len()..at.end].copy_from_slice(frame);
            } else {
                bytes[at].copy_from_slice(take(left, layout.item)?);
            }
        }
    }
    for (i, &(t, b)) in ends.iter().enumerate() {
        let item = &mut last[i * layout.item..(i + 1) * layout.item];
        if let Some(frame) = continued(&layout, left)? {
            let kept = layout.item - frame.len();
            let before = &bytes[layout.at(t, b)];
            item[..kept].copy_from_slice(&before[frame.len()..]);
            item[kept..].copy_from_slice(frame);
        } else {
            item.copy_from_slice(take(left, layout.item)?);
        }
    }
    Ok(())
}

/// The newest frame, where only that was sent.
fn continued<'a>(layout: &Layout, left: &mut &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    let Some(frame) = layout.frame else {
        return Ok(None);
    };
    match take(left, 1)? {
        [CONTINUED] => take(left, frame).map(Some),
        [WHOLE] => Ok(None),
        _ => Err(WireError::Damaged),
    }
}
