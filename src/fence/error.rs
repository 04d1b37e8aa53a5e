//! Why a token was not admitted.

use std::{io, sync::Arc};

use super::{Hold, RESOURCE_BYTES_MAX};
use crate::machine::Token;

/// Why a token was not admitted. In no case was the write begun.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// It came too late. The fence is as it was.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No token is 0. Most likely it was never set, or lost on its way.
    #[error("0 is no token: send the one that came with the grant")]
    NoToken,
    /// The resource's name is empty, or too long.
    #[error("the resource's name has {bytes} bytes: give it 1 to {RESOURCE_BYTES_MAX}")]
    Name {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The token could not be remembered, or an earlier one could not. Whether it will be known when the fence is opened again is open;
    /// until then this fence admits nothing more.
    #[error("the fence cannot remember tokens and admits nothing more: {0}; mend its store, then open it anew")]
    Store(#[source] Arc<io::Error>),
}

/// A token came too late: the lock has gone to somebody else, who was here before. Do not try again with this token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "token {} is refused at {resource:?}, which has seen {}token {}: the lock has gone to somebody else; stop, or acquire it anew",
    token.0,
    match hold { Hold::Exclusive => "", Hold::Shared => "the exclusive " },
    seen.0
)]
pub struct Refused {
    /// The resource.
    pub resource: String,
    /// The token that was shown.
    pub token: Token,
    /// How it holds the lock.
    pub hold: Hold,
    /// The token that bars it: the highest seen; for a shared one, the highest exclusive one seen.
    pub seen: Token,
}
