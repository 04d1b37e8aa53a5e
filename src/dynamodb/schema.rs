//! A table, as its entry in the store says it.
//!
//! Left out: how it comes from a request, and how clients are told of it (`tables`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};

/// The format of a table's entry. 1: without what [`Table`] has by default.
pub(crate) const FORMAT: u8 = 2;
const FORMAT_MIN: u8 = 1;

/// The tag by which an operator says what a table is used for: `locks` or `plain`.
pub(crate) const USE_TAG: &str = "lockkeeper:items";

/// What is known of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) format: u8,
    pub(crate) name: String,
    pub(crate) partition: Attribute,
    pub(crate) sort: Option<Attribute>,
    pub(crate) created_ms: u64,
    /// Read and write units; `None`: paid for by request.
    pub(crate) throughput: Option<(u64, u64)>,
    pub(crate) time_to_live: Option<String>,
    pub(crate) protected: bool,
    pub(crate) tags: BTreeMap<String, String>,
    /// `None`: the first item that is written decides.
    #[serde(default)]
    pub(crate) used_for: Option<TableUse>,
    /// It was deleted, and some of its items may be there: it reads as no table.
    #[serde(default)]
    pub(crate) is_dropped: bool,
}

/// What the items of a table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TableUse {
    /// Those that a lock client writes are locks.
    Locks,
    /// Items, and nothing else.
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
    /// `S`, `N` or `B`.
    pub(crate) kind: String,
}

impl Table {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let table: Option<Self> = serde_json::from_slice(bytes).ok();
        table.filter(|table| (FORMAT_MIN..=FORMAT).contains(&table.format)).ok_or_else(|| {
            Error::new(
                Kind::InternalServerError,
                "this table's metadata has a format that this version cannot read; upgrade this node first",
            )
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let written = Self { format: FORMAT, ..self.clone() };
        serde_json::to_vec(&written).expect("texts and numbers are JSON")
    }

    /// The attributes of its key, the partition first.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &str> {
        [Some(&self.partition), self.sort.as_ref()].into_iter().flatten().map(|attribute| &*attribute.name)
    }
}
