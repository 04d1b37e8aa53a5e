//! The schema of a table, in the form of its entry in the store.
//!
//! Deliberately absent: how it is made from a request, and how clients see it (`tables`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorType, Result};

/// The format of a table's entry. Format 1 lacked the fields of [`TableProperties`] that have a default.
pub(crate) const FORMAT: u8 = 2;
const FORMAT_MIN: u8 = 1;

/// The tag by which an operator says what a table is used for: `locks` or `plain`.
pub(crate) const USE_TAG: &str = "lockkeeper:items";

/// The properties of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TableProperties {
    pub(crate) format: u8,
    pub(crate) name: String,
    pub(crate) partition: Attribute,
    pub(crate) sort: Option<Attribute>,
    pub(crate) created_ms: u64,
    /// The read and write units, unless the table is paid for by request.
    pub(crate) throughput: Option<(u64, u64)>,
    pub(crate) time_to_live: Option<String>,
    pub(crate) protected: bool,
    pub(crate) tags: BTreeMap<String, String>,
    /// The use of the table. Without it, the first item that is written decides.
    #[serde(default)]
    pub(crate) used_for: Option<TableUse>,
    /// Whether the table was deleted while some of its items may remain. It then reads as missing.
    #[serde(default)]
    pub(crate) is_dropped: bool,
}

/// The use of a table's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TableUse {
    /// Items that a lock client writes are locks.
    Locks,
    /// All items are ordinary items.
    Plain,
}

impl TableUse {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Plain => "plain",
        }
    }

    pub(crate) fn from_tag(value: &str) -> Result<Self> {
        [Self::Locks, Self::Plain].into_iter().find(|it| it.as_str() == value).ok_or_else(|| {
            Error::parameters(format!("the value of the tag {USE_TAG} is '{value}': it must be 'locks' or 'plain'"))
        })
    }
}

/// An attribute of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    /// The type: `S`, `N` or `B`.
    pub(crate) kind: String,
}

impl TableProperties {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let table: Option<Self> = serde_json::from_slice(bytes).ok();
        table.filter(|table| (FORMAT_MIN..=FORMAT).contains(&table.format)).ok_or_else(|| {
            Error::new(
                ErrorType::InternalServerError,
                "this table's metadata has a format that this version cannot read; upgrade this node first",
            )
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let written = Self { format: FORMAT, ..self.clone() };
        serde_json::to_vec(&written).expect("texts and numbers are JSON")
    }

    /// The names of the key's attributes, the partition first.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &str> {
        [Some(&self.partition), self.sort.as_ref()].into_iter().flatten().map(|attribute| &*attribute.name)
    }
}
