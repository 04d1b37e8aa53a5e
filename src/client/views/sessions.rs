//! Sessions and the revocations of their grants.

use std::time::Duration;

use lockkeeper_proto::v1;
use lockkeeper_types::Token;

/// A grant that an operator revoked. Renewals no longer extend it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revocation {
    /// The grant.
    pub token: Token,
    /// The operator's reason.
    pub reason: String,
    /// How long the lock stays closed if the holder does not release it. Zero: it is open and the grant is over.
    pub remaining: Duration,
}

impl Revocation {
    pub(crate) fn of(wire: v1::Revocation) -> Self {
        let v1::Revocation { token, reason, remaining_ms } = wire;
        Self { token: Token(token), reason, remaining: Duration::from_millis(remaining_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revocation_keeps_every_value() {
        let wire = v1::Revocation { token: 7, reason: "stuck".to_owned(), remaining_ms: 300 };
        let expected =
            Revocation { token: Token(7), reason: "stuck".to_owned(), remaining: Duration::from_millis(300) };
        assert_eq!(Revocation::of(wire), expected);
    }
}
