//! Numbers as decimals with 38 significant digits, between 1E-130 and 9.99…E+125 in magnitude.
//!
//! They are exact: no float touches them. A number is `coefficient × 10^exponent`, and 38 digits fit into a `u128`. One value has one
//! form, so numbers are equal if their fields are: `1.0` and `1` are the same set element, and the same key.

use std::{
    cmp::Ordering,
    fmt::{self, Display, Formatter},
    str::FromStr,
};

use thiserror::Error;

/// Maximum number of significant digits.
const DIGITS_MAX: usize = 38;
/// The smallest exponent of the first digit, in scientific notation.
const MAGNITUDE_MIN: i64 = -130;
const MAGNITUDE_MAX: i64 = 125;

/// A number. Its coefficient has no trailing zeros. Zero has the exponent 0 and no sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Number {
    negative: bool,
    coefficient: u128,
    exponent: i16,
}

/// The reasons why a text is not a number that can be stored. The messages are DynamoDB's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NumberError {
    /// The text is not a number.
    #[error("The parameter cannot be converted to a numeric value{}", if .0.is_empty() { String::new() } else { format!(": {}", .0) })]
    NotANumber(String),
    /// The magnitude is 1E+126 or more.
    #[error("Number overflow. Attempting to store a number with magnitude larger than supported range")]
    Overflow,
    /// The magnitude is less than 1E-130.
    #[error("Number underflow. Attempting to store a number with magnitude smaller than supported range")]
    Underflow,
    /// The number would lose digits.
    #[error("Attempting to store more than 38 significant digits in a Number")]
    Digits,
}

impl Number {
    /// The number zero.
    pub const ZERO: Self = Self { negative: false, coefficient: 0, exponent: 0 };

    /// The sum, if it can be stored without loss.
    pub fn plus(self, other: Self) -> Result<Self, NumberError> {
        if self.coefficient == 0 {
            return Ok(other);
        }
        if other.coefficient == 0 {
            return Ok(self);
        }

        let (high, low) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        let shift = u32::from(high.exponent.abs_diff(low.exponent));

        // If this does not fit, the sum has 39 digits or more: its last digit is the last one of `low`, which is not zero.
        let scale = 10_u128.checked_pow(shift).ok_or(NumberError::Digits)?;
        let shifted = high.coefficient.checked_mul(scale).ok_or(NumberError::Digits)?;

        let (negative, coefficient) = if high.negative == low.negative {
            (high.negative, shifted.checked_add(low.coefficient).ok_or(NumberError::Digits)?)
        } else if shifted >= low.coefficient {
            (high.negative, shifted - low.coefficient)
        } else {
            (low.negative, low.coefficient - shifted)
        };

        Self::normal(negative, coefficient, i64::from(low.exponent))
    }

    /// The difference, if it can be stored without loss.
    pub fn minus(self, other: Self) -> Result<Self, NumberError> {
        let negative = !other.negative && other.coefficient != 0;
        self.plus(Self { negative, ..other })
    }

    /// The value as a whole number of 64 bits, if it is one.
    pub fn to_u64(self) -> Option<u64> {
        let scale = 10_u128.checked_pow(u32::try_from(self.exponent).ok()?)?;
        let whole = self.coefficient.checked_mul(scale)?;
        if self.negative { None } else { u64::try_from(whole).ok() }
    }

    /// The value times 1,000, rounded down, as a whole number of 64 bits.
    pub fn to_thousandths(self) -> Option<u64> {
        let exponent = self.exponent + 3;
        if exponent >= 0 {
            return Self { exponent, ..self }.to_u64();
        }
        let divisor = 10_u128.checked_pow(u32::from(exponent.unsigned_abs()));
        let whole = divisor.map_or(0, |divisor| self.coefficient / divisor);
        if self.negative { None } else { u64::try_from(whole).ok() }
    }

    /// The size that DynamoDB counts for it in an item: a byte for two digits, and one or two bytes more.
    pub(crate) fn size(self) -> usize {
        1 + self.digits().div_ceil(2) + usize::from(self.negative)
    }

    /// Returns bytes with the order of the numbers, so that the bytes of no number are a prefix of another's.
    pub(crate) fn ordered_bytes(self) -> Vec<u8> {
        if self.coefficient == 0 {
            return vec![0x80];
        }
        let mut bytes = vec![0x81];

        // This is 0 for the smallest magnitude, and 255 for the largest.
        bytes.push(u8::try_from(self.magnitude() - MAGNITUDE_MIN).expect("checked when it was made"));

        let digits = self.coefficient.to_string();
        for pair in digits.as_bytes().chunks(2) {
            let tens = pair[0] - b'0';
            let ones = pair.get(1).map_or(0, |digit| digit - b'0');
            bytes.push(1 + 10 * tens + ones);
        }
        bytes.push(0);

        if self.negative {
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        bytes
    }

    /// The fields, for storage.
    pub(crate) fn parts(self) -> (bool, u128, i16) {
        (self.negative, self.coefficient, self.exponent)
    }

    /// Makes a number of stored fields, unless no number has these.
    pub(crate) fn from_parts(negative: bool, coefficient: u128, exponent: i16) -> Option<Self> {
        Self::normal(negative, coefficient, i64::from(exponent)).ok()
    }

    fn normal(negative: bool, mut coefficient: u128, mut exponent: i64) -> Result<Self, NumberError> {
        if coefficient == 0 {
            return Ok(Self::ZERO);
        }
        while coefficient.is_multiple_of(10) {
            coefficient /= 10;
            exponent += 1;
        }

        let digits = i64::from(coefficient.ilog10()) + 1;
        let magnitude = exponent.saturating_add(digits - 1);

        if magnitude > MAGNITUDE_MAX {
            Err(NumberError::Overflow)
        } else if magnitude < MAGNITUDE_MIN {
            Err(NumberError::Underflow)
        } else if coefficient >= 10_u128.pow(38) {
            Err(NumberError::Digits)
        } else {
            let exponent = i16::try_from(exponent).expect("bounded by the magnitude");
            Ok(Self { negative, coefficient, exponent })
        }
    }

    fn digits(self) -> usize {
        self.coefficient.checked_ilog10().map_or(1, |tens| tens as usize + 1)
    }

    /// The exponent of the first digit.
    fn magnitude(self) -> i64 {
        i64::from(self.exponent) + self.digits() as i64 - 1
    }
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self::normal(false, u128::from(value), 0).expect("20 digits are few")
    }
}

impl FromStr for Number {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        let bad = || NumberError::NotANumber(text.to_owned());
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, parse_power(power).ok_or_else(bad)?),
            None => (unsigned, 0),
        };

        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = || whole.bytes().chain(fraction.bytes());
        if digits().next().is_none() || !digits().all(|digit| digit.is_ascii_digit()) {
            return Err(bad());
        }

        let all = whole.len() + fraction.len();
        let leading = digits().take_while(|digit| *digit == b'0').count();
        if leading == all {
            return Ok(Self::ZERO);
        }
        let trailing = fraction.bytes().rev().chain(whole.bytes().rev()).take_while(|digit| *digit == b'0').count();
        let significant = all - leading - trailing;

        let magnitude = power.saturating_add(whole.len() as i64 - leading as i64 - 1);
        if magnitude > MAGNITUDE_MAX {
            return Err(NumberError::Overflow);
        } else if magnitude < MAGNITUDE_MIN {
            return Err(NumberError::Underflow);
        } else if significant > DIGITS_MAX {
            return Err(NumberError::Digits);
        }

        let coefficient =
            digits().skip(leading).take(significant).fold(0, |sum, digit| 10 * sum + u128::from(digit - b'0'));
        Self::normal(text.starts_with('-'), coefficient, magnitude - significant as i64 + 1)
    }
}

/// Reads the exponent of a text. If it is far beyond the limits, any number outside of them stands for it.
fn parse_power(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // Far from the limits of the type, since numbers of digits are added to it.
    let power = digits.parse::<i64>().unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    Some(if text.starts_with('-') { -power } else { power })
}

impl Display for Number {
    /// Writes the number without an exponent, as DynamoDB does.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let digits = self.coefficient.to_string();
        let Ok(zeros) = usize::try_from(self.exponent) else {
            let fraction = usize::from(self.exponent.unsigned_abs());
            let padded = format!("{digits:0>width$}", width = fraction + 1);
            let (whole, fraction) = padded.split_at(padded.len() - fraction);
            return write!(f, "{sign}{whole}.{fraction}");
        };
        write!(f, "{sign}{digits}{:0<zeros$}", "")
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| if number.coefficient == 0 { 0 } else { 1 - 2 * i8::from(number.negative) };
        let magnitudes = || {
            let by_magnitude = self.magnitude().cmp(&other.magnitude());
            by_magnitude.then_with(|| self.all_digits().cmp(&other.all_digits()))
        };
        match sign(self).cmp(&sign(other)) {
            Ordering::Equal if self.negative => magnitudes().reverse(),
            Ordering::Equal => magnitudes(),
            different @ (Ordering::Less | Ordering::Greater) => different,
        }
    }
}

impl Number {
    /// The digits, as a number of exactly 38 of them.
    fn all_digits(self) -> u128 {
        self.coefficient * 10_u128.pow(u32::try_from(DIGITS_MAX - self.digits()).expect("38 at most"))
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Number {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_number_has_one_form() {
        for (text, plain) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("1.0", "1"),
            ("+5", "5"),
            ("1e2", "100"),
            (".5", "0.5"),
            ("-00012.3400", "-12.34"),
            ("123E-5", "0.00123"),
            ("0e999999999999999999999", "0"),
        ] {
            assert_eq!(number(text).to_string(), plain, "{text}");
        }
        assert_eq!(number("1.0"), number("1"));
    }

    #[test]
    fn the_range_is_checked() {
        let parse = |text: &str| text.parse::<Number>();
        assert!(parse("9.9999999999999999999999999999999999999E+125").is_ok());
        assert!(parse("1E-130").is_ok());
        assert_eq!(parse("1E126"), Err(NumberError::Overflow));
        assert_eq!(parse("-1E126"), Err(NumberError::Overflow));
        assert_eq!(parse("1E-131"), Err(NumberError::Underflow));
        assert_eq!(parse("1e9999999999999999999999"), Err(NumberError::Overflow));
        assert_eq!(parse("123456789012345678901234567890123456789"), Err(NumberError::Digits));
        assert!(parse("12345678901234567890123456789012345678000").is_ok());
        for text in ["", "-", ".", "e5", "1e", "1e+", "0x5", "NaN", " 1", "1 ", "1_0", "--1", "1.2.3", "١"] {
            assert!(matches!(parse(text), Err(NumberError::NotANumber(_))), "{text:?}");
        }
        assert_eq!(parse("").unwrap_err().to_string(), "The parameter cannot be converted to a numeric value");
    }

    #[test]
    fn sums_lose_no_digit() {
        let sum = |a: &str, b: &str| number(a).plus(number(b)).map(|sum| sum.to_string());
        assert_eq!(sum("1", "-1").as_deref(), Ok("0"));
        assert_eq!(sum("0.1", "0.2").as_deref(), Ok("0.3"));
        assert_eq!(sum("1e37", "1").as_deref(), Ok("10000000000000000000000000000000000001"));
        assert_eq!(sum("1e38", "1"), Err(NumberError::Digits));
        assert_eq!(sum("1e125", "1e-130"), Err(NumberError::Digits));
        assert_eq!(sum("5e125", "5e125"), Err(NumberError::Overflow));
        let most = "9".repeat(38);
        assert_eq!(sum(&most, "1").as_deref(), Ok(&*format!("1{}", "0".repeat(38))));
        assert_eq!(number("5").minus(number("7.5")).map(|number| number.to_string()).as_deref(), Ok("-2.5"));
        assert_eq!(number("5").minus(Number::ZERO), Ok(number("5")));
    }

    fn any_number() -> impl Strategy<Value = Number> {
        (any::<bool>(), any::<u128>(), 0_u32..39, -130_i16..126)
            .prop_filter_map("in range", |(sign, digits, few, power)| {
                Number::from_parts(sign, digits % 10_u128.pow(few), power)
            })
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Number>();
        }

        #[test]
        fn a_printed_number_is_read_again(number in any_number()) {
            prop_assert_eq!(number.to_string().parse(), Ok(number));
        }

        #[test]
        fn bytes_have_the_order_of_the_numbers(a in any_number(), b in any_number()) {
            let (of_a, of_b) = (a.ordered_bytes(), b.ordered_bytes());
            prop_assert_eq!(of_a.cmp(&of_b), a.cmp(&b));
            prop_assert!(a == b || !of_a.starts_with(&of_b));
        }

        #[test]
        fn the_order_agrees_with_the_difference(a in any_number(), b in any_number()) {
            if let Ok(difference) = a.minus(b) {
                prop_assert_eq!(difference.cmp(&Number::ZERO), a.cmp(&b));
                prop_assert_eq!(difference.plus(b), Ok(a));
            }
        }
    }
}
