//! SHA-1: the names of scripts for clients, and of locks whose key is too long. It protects nothing.

use std::fmt::Write as _;

use sha1::{Digest as _, Sha1};

/// The hash.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 20] {
    Sha1::digest(bytes).into()
}

/// The hash in 40 lower-case hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(40);
    for byte in digest(bytes) {
        write!(digits, "{byte:02x}").expect("a text takes all that is written");
    }
    digits
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_hash_that_redis_prints() {
        assert_eq!(super::hexadecimal(b"return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
