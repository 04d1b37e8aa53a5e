//! The store for resources whose data survives a crash.

use std::{io, mem, path::Path};

use super::{HighestTokens, Store};
use lockkeeper_storage::durable_map::{DurableMap, MapContents, OpenError};
use lockkeeper_types::Token;

/// Stores the seen tokens in a directory, with the same durability as a node's log: sled, with fsyncs that reach the disk. Concurrent
/// tokens of several resources share an fsync (group commit).
///
/// One process at a time has the directory open. Dropping it closes the files, which may block for as long as an fsync takes.
#[derive(Debug)]
pub struct Disk {
    map: DurableMap,
    /// The contents at opening, until they are loaded.
    contents: MapContents,
}

impl Disk {
    /// Opens the store in a directory, or creates one there. Blocks: call it before serving, or where blocking is allowed.
    ///
    /// Refuses damaged data, and systems on which an fsync does not reach the disk: a forgotten token would admit an old holder.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, OpenError> {
        let (map, contents) = DurableMap::open(directory.as_ref())?;
        Ok(Self { map, contents })
    }
}

impl Store for Disk {
    fn load(&mut self) -> io::Result<Vec<(String, HighestTokens)>> {
        mem::take(&mut self.contents).into_iter().map(|(key, value)| decode(key, &value)).collect()
    }

    async fn save(&self, resource: &str, seen: HighestTokens) -> io::Result<()> {
        self.map.insert(resource.as_bytes().to_vec(), encode(seen)).await
    }
}

/// Both tokens, big-endian.
fn encode(seen: HighestTokens) -> Vec<u8> {
    let HighestTokens { highest, highest_exclusive } = seen;
    [highest.0.to_be_bytes(), highest_exclusive.0.to_be_bytes()].concat()
}

fn decode(key: Vec<u8>, value: &[u8]) -> io::Result<(String, HighestTokens)> {
    let resource = String::from_utf8(key).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let tokens = value.as_chunks::<8>();
    let ([highest, highest_exclusive], []) = tokens else {
        let what = format!("the value of resource {resource:?} was not written by a fence");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    };
    let token = |bytes: &[u8; 8]| Token(u64::from_be_bytes(*bytes));
    Ok((resource, HighestTokens { highest: token(highest), highest_exclusive: token(highest_exclusive) }))
}
