//! The id of a data directory.

use std::{fmt, str::FromStr};

use rand::RngCore;
use serde::{Deserialize, Serialize};

/// The id of a data directory: 16 random bytes, drawn when it was created. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Incarnation([u8; 16]);

/// Why a text or bytes are not a valid incarnation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidIncarnation(&'static str);

impl Incarnation {
    /// Draws a new one.
    pub fn draw(random: &mut impl RngCore) -> Self {
        let mut bytes = [0; 16];
        random.fill_bytes(&mut bytes);
        Self(bytes)
    }

    /// Its 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl TryFrom<&[u8]> for Incarnation {
    type Error = InvalidIncarnation;

    fn try_from(bytes: &[u8]) -> Result<Self, InvalidIncarnation> {
        bytes.try_into().map(Self).map_err(|_| InvalidIncarnation("an incarnation is 16 bytes"))
    }
}

impl FromStr for Incarnation {
    type Err = InvalidIncarnation;

    fn from_str(text: &str) -> Result<Self, InvalidIncarnation> {
        let invalid = InvalidIncarnation("an incarnation is 32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid);
        }
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes())).map_err(|_| invalid)
    }
}

impl TryFrom<String> for Incarnation {
    type Error = InvalidIncarnation;

    fn try_from(text: String) -> Result<Self, InvalidIncarnation> {
        text.parse()
    }
}

impl From<Incarnation> for String {
    fn from(incarnation: Incarnation) -> Self {
        incarnation.to_string()
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
