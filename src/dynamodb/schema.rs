//! A table, as its entry in the store says it.
//!
//! Left out: how it comes from a request, and how clients are told of it (`tables`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};

/// The format of a table's entry.
pub(crate) const FORMAT: u8 = 1;

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
        table.filter(|table| table.format == FORMAT).ok_or_else(|| {
            Error::new(Kind::InternalServerError, "the entry of this table is none that this version can read")
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }

    /// The attributes of its key, the partition first.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &str> {
        [Some(&self.partition), self.sort.as_ref()].into_iter().flatten().map(|attribute| &*attribute.name)
    }
}
