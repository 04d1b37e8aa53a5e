//! Where a fence keeps what it has seen.

use std::io;

use super::Seen;

/// Keeps what each resource has seen.
///
/// The promise on which all rests: what was saved before the resource's last write is loaded after a restart, whatever happened in
/// between. If the resource's data survive a power failure, so must this.
pub trait Store: Send + Sync + 'static {
    /// All that was saved: each resource once, by the last save. Called once, before any save. May block.
    fn load(&mut self) -> io::Result<Vec<(String, Seen)>>;

    /// Returns when what a resource has seen is durable. For different resources it is called at the same time: let them share a sync.
    ///
    /// After an error it is not called again: what a second sync reports says nothing about the first. If the future is dropped, the save
    /// may still take place, but not after a later one for the same resource.
    fn save(&self, resource: &str, seen: Seen) -> impl Future<Output = io::Result<()>> + Send;
}

/// Keeps nothing beyond the process: for a resource whose data are gone with the process too, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory;

impl Store for Memory {
    fn load(&mut self) -> io::Result<Vec<(String, Seen)>> {
        Ok(Vec::new())
    }

    async fn save(&self, _resource: &str, _seen: Seen) -> io::Result<()> {
        Ok(())
    }
}
