//! Numbers on the command line, and how they are printed.

/// A whole number that may be written as `100000`, `100_000` or `1e5`.
pub(super) fn whole(text: &str) -> Result<u64, String> {
    let plain = text.replace('_', "");
    if let Ok(number) = plain.parse() {
        return Ok(number);
    }
    match plain.parse::<f64>() {
        // Up to here every whole number has a float of its own.
        Ok(number) if number.fract() == 0.0 && (0.0..9e15).contains(&number) => Ok(number as u64),
        _ => Err("allowed: a whole number, 0 or more, such as 100000, 100_000 or 1e5".into()),
    }
}

/// As [`whole`], but not 0.
pub(super) fn at_least_one(text: &str) -> Result<u64, String> {
    match whole(text) {
        Ok(0) | Err(_) => Err("allowed: a whole number from 1, such as 1000 or 1e3".into()),
        number => number,
    }
}

/// A number of environments, where `auto` is 0.
pub(super) fn at_least_one_or_auto(text: &str) -> Result<u64, String> {
    match text {
        "auto" => Ok(0),
        number => at_least_one(number).map_err(|_| "allowed: a number from 1, or auto".into()),
    }
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A measured number, with more digits where it is small: `487.2`, `0.953`.
pub(super) fn short(number: f64) -> String {
    let digits = match number.abs() {
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        _ => 1,
    };
    format!("{number:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_may_be_written_in_three_ways() {
        for text in ["100000", "100_000", "1e5", "1E5", "1.0e5"] {
            assert_eq!(whole(text), Ok(100_000), "{text}");
        }
        assert_eq!(whole("18446744073709551615"), Ok(u64::MAX));
        for text in ["-1", "1.5", "many", "", "nan", "inf", "1e30"] {
            assert!(whole(text).is_err(), "{text}");
        }
        assert!(at_least_one("0").is_err());
        assert_eq!(at_least_one_or_auto("auto"), Ok(0));
        assert!(at_least_one_or_auto("0").is_err());
    }

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
