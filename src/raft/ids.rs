//! The ids of clusters and of data directories.

use std::{fmt, str::FromStr, sync::Arc};

use rand::RngCore;
use serde::{Deserialize, Serialize};

/// The name of a cluster: 1 to 64 letters, digits, `-`, `_` or `.`, ASCII only.
///
/// Chosen by people, once. It separates nodes of two clusters that were configured with each other's addresses.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(Arc<str>);

/// The id of a data directory: 16 random bytes, drawn when it was created. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Incarnation([u8; 16]);

/// Why a text is not a valid id.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidId(pub(super) &'static str);

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
    type Error = InvalidId;

    fn try_from(bytes: &[u8]) -> Result<Self, InvalidId> {
        bytes.try_into().map(Self).map_err(|_| InvalidId("an incarnation is 16 bytes"))
    }
}

impl FromStr for Incarnation {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = InvalidId("an incarnation is 32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid);
        }
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes())).map_err(|_| invalid)
    }
}

impl TryFrom<String> for Incarnation {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
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

impl ClusterId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            true => Ok(Self(text.into())),
            false => Err(InvalidId("a cluster id is 1 to 64 letters, digits, '-', '_' or '.'")),
        }
    }
}

impl TryFrom<String> for ClusterId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.0.as_ref().into()
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
