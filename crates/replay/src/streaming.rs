//! Copies that bypass the caches.

/// From this many bytes on a copy goes past the caches: a stack of frames, not a row of numbers.
#[cfg(any(test, target_arch = "x86_64"))]
const LARGE: usize = 16 << 10;

/// Copies bytes to where they will not be read soon.
///
/// A batch of many large items does not fit into the caches. With ordinary stores the processor
/// reads every line of the target before it overwrites it; with streaming ones it does not, which
/// is a third less traffic with the memory. The C library does the same for large copies, but one
/// item is too small for it.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if to.len() >= LARGE {
        return stream(to, from);
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "streaming stores have no safe form")]
fn stream(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };
    const WORD: usize = size_of::<__m128i>();
    /// Words of a line of the cache.
    const LINE: usize = 4;
    /// The processor itself looks ahead within 4 KiB only.
    const AHEAD: usize = 4 << 10;

    assert_eq!(to.len(), from.len());
    // SAFETY: any bytes are a valid `__m128i`.
    let (head, body, tail) = unsafe { to.align_to_mut::<__m128i>() };
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(size_of_val(body));
    head.copy_from_slice(first);
    tail.copy_from_slice(last);
    for (to, from) in body.chunks_mut(LINE).zip(middle.chunks(LINE * WORD)) {
        let soon = from.as_ptr().wrapping_add(AHEAD);
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(soon.cast()) };
        for (to, from) in to.iter_mut().zip(from.chunks_exact(WORD)) {
            // SAFETY: `from` has 16 bytes, `to` is 16 bytes at a multiple of 16; the instructions
            // are those of every x86-64.
            unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
        }
    }
    // SAFETY: as above. Streaming stores are not ordered with the others, by which threads tell
    // each other that a batch is there.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the place and the length, all bytes arrive and those around stay.
    #[test]
    fn copies_are_exact() {
        let from: Vec<u8> = (0..LARGE + 64).map(|i| (i % 251) as u8).collect();
        for length in [0, 1, 100, LARGE - 1, LARGE, LARGE + 5, LARGE + 32] {
            for at in 0..20 {
                let mut to = vec![255; LARGE + 64];
                copy(&mut to[at..at + length], &from[3..3 + length]);
                assert_eq!(to[at..at + length], from[3..3 + length]);
                let mut around = to[..at].iter().chain(&to[at + length..]);
                assert!(around.all(|&byte| byte == 255));
            }
        }
    }
}
