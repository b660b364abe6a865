//! HMOVE: how far a strobe moves an object, depending on when in the line it comes.

/// The pixels that an object moves to the right (negative: to the left) when HMOVE is strobed at
/// `cycle` of a line (0 to 75) and its motion register holds `nibble` in its upper half.
///
/// The strobe sends each object one extra clock every four clocks, until its comparator fires:
/// between 0 and 15 of them. Strobed early, the blanking of eight pixels makes up for eight, and
/// the extra clocks that come too late for the horizontal blank are lost. Strobed late in a line,
/// the clocks of the running line have no effect and those in the next blank move to the left.
pub(crate) fn motion(cycle: i32, nibble: u8) -> i32 {
    let clocks = i32::from((nibble >> 4) ^ 8);
    match cycle {
        0..=20 => 8 - clocks.min(15 - ((3 * cycle - 7).max(0) / 4)),
        21..=54 => 0,
        55..=74 => -(clocks - (222 - 3 * cycle) / 4).max(0),
        _ => 8 - clocks,
    }
}

/// Whether a strobe at `cycle` of a line blanks the first eight pixels.
pub(crate) fn blanks(cycle: i32) -> bool {
    cycle <= 20 || cycle == 75
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strobed_at_the_start_of_a_line_all_sixteen_motions_are_whole() {
        let moved: Vec<i32> = (0..16).map(|nibble| motion(3, nibble << 4)).collect();
        let right_of_left = [0, -1, -2, -3, -4, -5, -6, -7, 8, 7, 6, 5, 4, 3, 2, 1];
        assert_eq!(moved, right_of_left);
    }

    #[test]
    fn strobed_late_objects_only_move_left() {
        assert_eq!(motion(73, 0x70), -15);
        assert_eq!(motion(73, 0x80), 0);
        assert_eq!(motion(60, 0x70), -5);
        assert_eq!(motion(40, 0x70), 0);
        assert_eq!(motion(17, 0x00), 4);
    }
}
