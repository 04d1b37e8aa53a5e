//! Where a fence stores the tokens that it has seen.

use std::io;

use super::HighestTokens;

/// Stores the tokens that each resource has seen.
///
/// The promise that fencing relies on: tokens that were saved before the resource's last write are loaded after a restart, whatever
/// happened in between. If the resource's data survives a power failure, so must this.
pub trait Store: Send + Sync + 'static {
    /// All saved states: each resource once, by its last save. Called once, before any save. May block.
    fn load(&mut self) -> io::Result<Vec<(String, HighestTokens)>>;

    /// Returns when the state of a resource is durable. Called concurrently for different resources, which should share an fsync.
    ///
    /// Not called again after an error: the result of a second fsync says nothing about the first. If the future is dropped, the save may
    /// still take place, but not after a later one for the same resource.
    fn save(&self, resource: &str, seen: HighestTokens) -> impl Future<Output = io::Result<()>> + Send;
}

/// Stores nothing beyond the process: for a resource whose data is lost with the process too, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory;

impl Store for Memory {
    fn load(&mut self) -> io::Result<Vec<(String, HighestTokens)>> {
        Ok(Vec::new())
    }

    async fn save(&self, _resource: &str, _seen: HighestTokens) -> io::Result<()> {
        Ok(())
    }
}
