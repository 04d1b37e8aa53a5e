//! Bearer tokens: a client that sends one has its identity.
//!
//! A token is 256 random bits, so one SHA-256 suffices to store it. A slow hash protects passwords, which people choose and others can
//! guess. 256 random bits cannot be guessed. The file of a node holds hashes only; the token itself is printed once, when it is made.

use std::fmt;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use toml::Spanned;

use crate::{PolicyFileError, file};
use lockkeeper_types::Identity;

/// The beginning of each token. Programs that search repositories and logs for leaked secrets recognize it.
pub const TOKEN_PREFIX: &str = "lkp_";
/// The number of random bytes in a token.
const BYTES: usize = 32;

/// A token. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(String);

/// The hashes of a file, and the identity that belongs to each.
#[derive(Clone, Default)]
pub struct Tokens(Vec<([u8; BYTES], Identity)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTokenFile {
    /// Missing in an empty file; `token = []` says that there are none.
    #[serde(default, rename = "token")]
    tokens: Option<Vec<RawToken>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawToken {
    identity: Spanned<String>,
    sha256: Spanned<String>,
}

impl BearerToken {
    /// Makes a token of 32 bytes from the operating system's random number generator.
    pub fn from_random(bytes: [u8; BYTES]) -> Self {
        Self(format!("{TOKEN_PREFIX}{}", hex(&bytes)))
    }

    /// The token as text, for the one who will use it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The entry for a file of tokens.
    pub fn entry(&self, identity: &Identity) -> String {
        format!("[[token]]\nidentity = \"{identity}\"\nsha256 = \"{}\"\n", hex(&hash(&self.0)))
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The hash of a token that a client showed. A node keeps this instead of the token.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; BYTES]);

impl TokenHash {
    /// The hash of a token, well-formed or not.
    pub fn from_token(token: &str) -> Self {
        Self(hash(token))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({} of them)", self.0.len())
    }
}

impl Tokens {
    /// Reads a file of tokens. An identity may have several, so one can be replaced while the other is in use. No message
    /// shows a hash.
    pub fn parse(text: &str) -> Result<Self, PolicyFileError> {
        let raw: RawTokenFile = file::parse(text)?;
        Self::from_raw(raw.tokens.unwrap_or_default(), text)
    }

    /// Reads the file again that these tokens are from. Where there are some, a text without any is refused: it is more likely half
    /// written, as `cp` leaves it for a moment, than meant. A text that says `token = []` is meant.
    pub fn parse_next(&self, text: &str) -> Result<Self, PolicyFileError> {
        let raw: RawTokenFile = file::parse(text)?;
        match raw.tokens {
            None if !self.0.is_empty() => {
                let problem = "there is no token, which would withdraw all of them: to do that, write `token = []`";
                Err(PolicyFileError { line: 1, problem: problem.to_owned() })
            }
            tokens => Self::from_raw(tokens.unwrap_or_default(), text),
        }
    }

    fn from_raw(raw: Vec<RawToken>, text: &str) -> Result<Self, PolicyFileError> {
        let mut tokens: Vec<([u8; BYTES], Identity)> = Vec::with_capacity(raw.len());
        for RawToken { identity, sha256 } in raw {
            let who = Identity::new(identity.as_ref());
            let who = who.map_err(|invalid| PolicyFileError::at(text, &identity.span(), invalid.to_string()))?;

            let hash = unhex(sha256.as_ref()).ok_or_else(|| {
                let problem = "`sha256` is not 64 hexadecimal digits: take the line that `lockkeeper token new` prints";
                PolicyFileError::at(text, &sha256.span(), problem)
            })?;

            if tokens.iter().any(|(known, _)| *known == hash) {
                return Err(PolicyFileError::at(text, &sha256.span(), "this token is there twice: remove one"));
            }

            tokens.push((hash, who));
        }

        Ok(Self(tokens))
    }

    /// The identity of a token. All hashes are compared, each in constant time, so the time does not tell how near a guess is.
    pub fn identity(&self, TokenHash(given): &TokenHash) -> Option<&Identity> {
        let mut found = None;
        for (known, identity) in &self.0 {
            if bool::from(known.ct_eq(given)) {
                found = Some(identity);
            }
        }
        found
    }
}

fn hash(token: &str) -> [u8; BYTES] {
    Sha256::digest(token.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; BYTES]> {
    if text.len() != 2 * BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}
