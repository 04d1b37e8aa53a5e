//! Numbers as Redis reads and writes them: integers without signs and zeros in front, doubles as short as they can be.

/// Digits that a double can need so that it is read back as the same.
const DIGITS_MAX: i32 = 17;
/// Digits after the point that a sum of HINCRBYFLOAT keeps.
const FRACTION_DIGITS: u32 = 17;
/// The number one, in units of the last of these digits.
const FRACTION_ONE: i128 = 10_i128.pow(FRACTION_DIGITS);

/// Reads an integer. Fails on everything that Redis would write in another way, such as `+1`, `01` and `-0`.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.len() < 19 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !is_plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a double, such as a score: digits, an exponent, infinities. NaN is refused, and so is a number that a double cannot hold.
pub(crate) fn parse_double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: f64 = text.parse().ok()?;
    let names_infinity = text.contains(['i', 'I']);
    let is_too_large = number.is_infinite() && !names_infinity;

    // A number too small for a double is parsed as zero. It is refused, like one that is too large.
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let is_too_small = number == 0.0 && mantissa.contains(|digit: char| ('1'..='9').contains(&digit));
    (!number.is_nan() && !is_too_large && !is_too_small).then_some(number)
}

/// Reads a bound of scores. One beyond all doubles is infinite, and nothing is zero, as with Redis.
pub(crate) fn parse_bound(text: &[u8]) -> Option<f64> {
    if text.is_empty() {
        return Some(0.0);
    }
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Writes a double with the fewest digits that are read back as the same number. An exponent is written only below 10^-4 and from 10^17 on,
/// so that the times in milliseconds that clients use as scores are integers.
pub(crate) fn format_double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }

    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the format has a number as its exponent");
    if (-4..DIGITS_MAX).contains(&exponent) {
        return format!("{number}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Adds two numbers that are written as decimals, and writes the sum without an exponent. Up to 10^20 the sum is exact to 17 digits after
/// the point; beyond that it is a sum of doubles. Fails if one of them is not a number, or the sum is infinite.
pub(crate) fn add_decimals(one: &[u8], other: &[u8]) -> Result<String, DecimalError> {
    let doubles = parse_double(one).zip(parse_double(other)).ok_or(DecimalError::Invalid)?;
    let exact = parse_decimal(one).zip(parse_decimal(other)).and_then(|(one, other)| one.checked_add(other));
    if let Some(sum) = exact {
        return Ok(format_decimal(sum));
    }

    let sum = doubles.0 + doubles.1;
    if sum.is_finite() { Ok(format!("{sum}")) } else { Err(DecimalError::Infinite) }
}

/// Why decimals cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DecimalError {
    /// One of them is not a number.
    Invalid,
    /// Their sum is infinite.
    Infinite,
}

/// Reads a decimal as a number of units of its last possible digit. Further digits are rounded half up. `None` if it is too large.
fn parse_decimal(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let is_negative = text.starts_with('-');
    let text = text.trim_start_matches(['+', '-']);
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));

    let mut units: i128 = 0;
    // The place of the next digit, counted in powers of ten of the unit.
    let mut place = i64::from(FRACTION_DIGITS) + i64::from(exponent) + i64::try_from(whole.len()).ok()? - 1;
    for digit in whole.bytes().chain(fraction.bytes()) {
        let digit = i128::from(char::from(digit).to_digit(10)?);
        if digit != 0 && place >= 0 {
            let power = 10_i128.checked_pow(u32::try_from(place).ok()?)?;
            units = units.checked_add(digit.checked_mul(power)?)?;
        } else if place == -1 && digit >= 5 {
            units = units.checked_add(1)?;
        }
        place -= 1;
    }
    let is_in_bounds = units / FRACTION_ONE < 10_i128.pow(20);
    is_in_bounds.then_some(if is_negative { -units } else { units })
}

/// Writes a number of units without zeros at the end.
fn format_decimal(units: i128) -> String {
    let sign = if units < 0 { "-" } else { "" };
    let whole = (units / FRACTION_ONE).unsigned_abs();
    let fraction = format!("{:017}", (units % FRACTION_ONE).unsigned_abs());
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_only_as_they_are_written() {
        for good in ["0", "-1", "9223372036854775807", "-9223372036854775808", "10"] {
            assert_eq!(parse_integer(good.as_bytes()).map(|number| number.to_string()).as_deref(), Some(good));
        }
        for bad in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "99999999999999999999", "0x1"]
        {
            assert_eq!(parse_integer(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn doubles_are_short_and_times_have_no_exponent() {
        let written = |number| format_double(number);
        assert_eq!(written(1_795_343_189_134.0), "1795343189134");
        assert_eq!(written(1.5), "1.5");
        assert_eq!(written(0.1), "0.1");
        assert_eq!(written(-0.0), "-0");
        assert_eq!(written(f64::NEG_INFINITY), "-inf");

        assert_eq!(written(1e16), "10000000000000000");
        assert_eq!(written(1e17), "1e+17");
        assert_eq!(written(1.25e-5), "1.25e-05");
        assert_eq!(written(0.0001), "0.0001");
        assert_eq!(parse_double(b"nan"), None);
        assert_eq!(parse_double(b"1e400"), None);
        assert_eq!(parse_double(b"1e-400"), None);
        assert_eq!(parse_double(b"0e5"), Some(0.0));
        assert_eq!(parse_double(b"+inf"), Some(f64::INFINITY));
        assert_eq!(parse_double(b""), None);
    }

    #[test]
    fn sums_of_decimals_are_exact() {
        let sum = |one: &str, other: &str| add_decimals(one.as_bytes(), other.as_bytes());
        assert_eq!(sum("0.1", "0.2").as_deref(), Ok("0.3"));
        assert_eq!(sum("10.50", "0.1").as_deref(), Ok("10.6"));
        assert_eq!(sum("5.0e3", "2.0e2").as_deref(), Ok("5200"));
        assert_eq!(sum("3", "-3.5").as_deref(), Ok("-0.5"));
        assert_eq!(sum("x", "1"), Err(DecimalError::Invalid));
        assert_eq!(sum("1e307", "1e307").map(|sum| sum.len()), Ok(308));
        assert_eq!(sum("1.7e308", "1.7e308"), Err(DecimalError::Infinite));
    }
}
