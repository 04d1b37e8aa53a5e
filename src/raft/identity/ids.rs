//! The ids of clusters. Those of data directories are part of what the table knows of members: see [`Incarnation`].

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

pub use lockkeeper_table::Incarnation;

/// The name of a cluster: 1 to 64 letters, digits, `-`, `_` or `.`, ASCII only.
///
/// Chosen by people, once. It separates nodes of two clusters that were configured with each other's addresses.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(Arc<str>);

/// Why a text is not a valid id.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidId(pub(crate) &'static str);

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
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidId("a cluster id is 1 to 64 letters, digits, '-', '_' or '.'"))
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
