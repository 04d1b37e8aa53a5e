//! Parsers of common arguments. Errors name the value and show a valid one.

use std::time::Duration;

use crate::machine::{Ticket, Token};

/// A duration: numbers with units.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| {
        if error == humantime::DurationError::NumberOverflow {
            format!("{text} is too long: choose a shorter time")
        } else if is_number(text) {
            format!("{text} has no unit: write {text}s for seconds, or {text}ms, {text}m, {text}h")
        } else {
            "give numbers with their units: ms, s, m, h or d, as in 500ms, 10s or 1h30m".to_owned()
        }
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The token of a grant.
pub(super) fn token(text: &str) -> Result<Token, String> {
    match text.parse() {
        Ok(0) => Err("there is no token 0: the first grant of a cluster has token 1".to_owned()),
        Ok(token) => Ok(Token(token)),
        Err(_) => Err("a token is a whole number from 1 on, as `acquire` printed it".to_owned()),
    }
}

/// The ticket of a waiting acquire.
pub(super) fn ticket(text: &str) -> Result<Ticket, String> {
    text.parse().map(Ticket).map_err(|_| "a ticket is a whole number, as `get` shows it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_a_unit_is_told_the_units() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("10").unwrap_err(), "10 has no unit: write 10s for seconds, or 10ms, 10m, 10h");
        for wrong in ["", "soon", "-5s", "5 parsecs", "s"] {
            let said = duration(wrong).unwrap_err();
            assert!(said.contains("500ms, 10s or 1h30m"), "{wrong:?}: {said}");
        }
        assert!(duration("99999999999999999999y").unwrap_err().contains("too long"));
    }

    #[test]
    fn no_grant_has_token_0() {
        assert_eq!(token("7"), Ok(Token(7)));
        assert!(token("0").unwrap_err().contains("no token 0"));
        for wrong in ["", "-1", "x", "18446744073709551616"] {
            assert!(token(wrong).unwrap_err().contains("from 1 on"), "{wrong:?}");
        }
    }
}
