//! The store for resources whose data survive a crash.

use std::{io, mem, path::Path};

use super::{Seen, Store};
use crate::{
    machine::Token,
    raft::durable_map::{Contents, DurableMap, OpenError},
};

/// Keeps what was seen in a directory, by the same means as a node keeps its log: sled, with syncs that reach the disk. Resources that
/// are shown tokens at the same time share a sync.
///
/// One process at a time has the directory open. Dropping it closes the files, which may block for as long as a sync takes.
#[derive(Debug)]
pub struct Disk {
    map: DurableMap,
    /// What it held at the opening, until it is loaded.
    contents: Contents,
}

impl Disk {
    /// Opens the store in a directory, or makes a new one there. Blocks: call it before serving, or where blocking is allowed.
    ///
    /// Refuses to open what is damaged, and a system on which syncs are not real: a token that is forgotten lets an old holder in.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, OpenError> {
        let (map, contents) = DurableMap::open(directory.as_ref())?;
        Ok(Self { map, contents })
    }
}

impl Store for Disk {
    fn load(&mut self) -> io::Result<Vec<(String, Seen)>> {
        mem::take(&mut self.contents).into_iter().map(|(key, value)| decode(key, &value)).collect()
    }

    async fn save(&self, resource: &str, seen: Seen) -> io::Result<()> {
        self.map.insert(resource.as_bytes().to_vec(), encode(seen)).await
    }
}

/// Both tokens, big-endian.
fn encode(seen: Seen) -> Vec<u8> {
    let Seen { highest, highest_exclusive } = seen;
    [highest.0.to_be_bytes(), highest_exclusive.0.to_be_bytes()].concat()
}

fn decode(key: Vec<u8>, value: &[u8]) -> io::Result<(String, Seen)> {
    let resource = String::from_utf8(key).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let tokens = value.as_chunks::<8>();
    let ([highest, highest_exclusive], []) = tokens else {
        let what = format!("what is kept of {resource:?} is not of a fence");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    };
    let token = |bytes: &[u8; 8]| Token(u64::from_be_bytes(*bytes));
    Ok((resource, Seen { highest: token(highest), highest_exclusive: token(highest_exclusive) }))
}
