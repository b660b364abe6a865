//! UTC times, as they appear in folder names.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time as `20261115T082500Z`. A time before 1970 counts as 1970.
pub(crate) fn compact(time: SystemTime) -> String {
    let seconds = unix_seconds(time);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Whole seconds since 1970; 0 for times before.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Year, month and day of a day counted from 1970-01-01.
fn date(mut day: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    while day >= days_in_year(year) {
        day -= days_in_year(year);
        year += 1;
    }
    let february = days_in_year(year) - 337;
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

fn days_in_year(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_times() {
        let at = |seconds| compact(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101T000000Z");
        assert_eq!(at(951_782_399), "20000228T235959Z");
        assert_eq!(at(951_782_400), "20000229T000000Z");
        assert_eq!(at(1_709_251_199), "20240229T235959Z");
        assert_eq!(at(1_735_689_599), "20241231T235959Z");
        assert_eq!(at(1_794_731_100), "20261115T082500Z");
    }
}
