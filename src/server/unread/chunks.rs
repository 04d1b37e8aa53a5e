//! Chunks of answers that the transport has taken: each counts until the transport lets go of it.
//!
//! A chunk is a copy. A slice would keep the whole answer in memory, up to some megabytes, for as long as the transport holds its last few
//! bytes. The copy of a small answer is cheap too, and frees the buffer in which it was encoded, which is larger.
//!
//! The transport keeps a record of each chunk. So a chunk counts as at least [`LEAST`]: a client that leaves answers of 20 bytes unread
//! would otherwise take twenty times the memory that counts.

use std::sync::Arc;

use bytes::Bytes;

use super::budgets::Account;

/// Bytes that a chunk counts for at least, and a buffer that has some.
pub(super) const LEAST: usize = 128;

/// The bytes that so many bytes of an answer count for.
pub(super) fn counted(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.max(LEAST) }
}

/// A chunk that the transport holds. Its bytes are given back on drop.
struct TakenChunk {
    bytes: Box<[u8]>,
    account: Arc<Account>,
}

/// Copies a chunk whose bytes the account has [`counted`].
pub(super) fn taken(bytes: &[u8], account: &Arc<Account>) -> Bytes {
    Bytes::from_owner(TakenChunk { bytes: bytes.into(), account: Arc::clone(account) })
}

impl AsRef<[u8]> for TakenChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for TakenChunk {
    fn drop(&mut self) {
        self.account.leave(counted(self.bytes.len()));
    }
}
