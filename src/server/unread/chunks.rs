//! Chunks of answers that the transport has taken: each counts until the transport lets go of it.
//!
//! A chunk is a copy. A slice would keep the whole answer in memory, up to some megabytes, for as long as the transport holds its last few
//! bytes. The copy of a small answer is cheap too, and frees the buffer in which it was encoded, which is larger.

use std::sync::Arc;

use bytes::Bytes;

use super::budgets::Account;

/// A chunk that the transport holds. Its bytes are given back on drop.
struct TakenChunk {
    bytes: Box<[u8]>,
    account: Arc<Account>,
}

/// Copies a chunk whose bytes the account has counted.
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
        self.account.leave(self.bytes.len());
    }
}
