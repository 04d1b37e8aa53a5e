//! Formats moments and grants.

use std::fmt;

use super::grants::Grant;

/// A moment or a duration in milliseconds, with all its digits.
pub(super) struct Ms(pub(super) u64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000);
        write!(f, "{} ms", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl fmt::Display for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} of session {:?}", self.token, self.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_shown_as_milliseconds_without_loss() {
        assert_eq!(Ms(12_500_000).to_string(), "12.5 ms");
        assert_eq!(Ms(1).to_string(), "0.000001 ms");
        assert_eq!(Ms(20_000_000).to_string(), "20 ms");
    }
}
