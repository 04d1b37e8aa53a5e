//! Passwords of sessions: made from their ids, so that every node knows them without a read.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::wire::PASSWORD_BYTES;

/// What passwords are made with.
pub(crate) struct PasswordKey(Vec<u8>);

impl PasswordKey {
    /// Makes passwords with this secret.
    pub(crate) fn new(secret: Vec<u8>) -> Self {
        Self(secret)
    }

    /// The password of a session.
    pub(crate) fn password(&self, session: u64) -> [u8; PASSWORD_BYTES] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.update(&session.to_be_bytes());
        let whole = mac.finalize().into_bytes();
        std::array::from_fn(|at| whole[at])
    }

    /// Whether this is the password of a session. The time that it takes tells nothing of where they differ.
    pub(crate) fn fits(&self, session: u64, password: &[u8]) -> bool {
        self.password(session)[..].ct_eq(password).into()
    }
}
