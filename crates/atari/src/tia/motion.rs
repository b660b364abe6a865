//! HMOVE: how far a strobe moves an object, depending on its position in the line.

/// The pixels that an object moves to the right (negative: to the left) when HMOVE is strobed at
/// `cycle` of a line (0 to 75) and its motion register holds `nibble` in its upper half.
///
/// The strobe sends each object one extra clock every four clocks, until its comparator fires:
/// between 0 and 15 of them. Strobed early, the blanking of eight pixels makes up for eight, and
/// the extra clocks that come too late for the horizontal blank are lost. Strobed late in a line,
/// the clocks of the running line have no effect and those in the next blank move to the left.
#[inline(always)]
pub(super) fn motion(cycle: usize, nibble: u8) -> i32 {
    i32::from(MOTIONS[usize::from(nibble >> 4)][cycle % 76])
}

const MOTIONS: [[i8; 76]; 16] = {
    let mut table = [[0; 76]; 16];
    let mut nibble = 0;
    while nibble < 16 {
        let mut cycle = 0;
        while cycle < 76 {
            table[nibble][cycle] = extra_clocks(cycle as i32, nibble as i32);
            cycle += 1;
        }
        nibble += 1;
    }
    table
};

const fn extra_clocks(cycle: i32, nibble: i32) -> i8 {
    let clocks = nibble ^ 8;
    let pixels = match cycle {
        0..=20 => {
            let late = 3 * cycle - 7;
            let most = 15 - if late < 0 { 0 } else { late / 4 };
            8 - if clocks < most { clocks } else { most }
        }
        21..=54 => 0,
        55..=74 => {
            let moved = clocks - (222 - 3 * cycle) / 4;
            if moved < 0 { 0 } else { -moved }
        }
        _ => 8 - clocks,
    };
    pixels as i8
}

/// Whether a strobe at `cycle` of a line leaves objects without motion where they are.
pub(super) fn rests(cycle: usize) -> bool {
    MOTIONS[0][cycle % 76] == 0
}

/// Whether a strobe at `cycle` of a line blanks the first eight pixels.
pub(super) fn blanks(cycle: usize) -> bool {
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
