//! Why a token was not admitted.

use std::{io, sync::Arc};

use super::{Hold, RESOURCE_BYTES_MAX};
use lockkeeper_types::Token;

/// Why a token was not admitted. In no case was the write begun.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The token came too late. The fence is unchanged.
    #[error(transparent)]
    Refused(#[from] RefusedToken),
    /// Tokens are never 0. Most likely it was never set, or lost in transfer.
    #[error("token 0 is not valid: send the token of the grant")]
    NoToken,
    /// The resource's name is empty, or too long.
    #[error("the resource's name has {bytes} bytes: the limits are 1 to {RESOURCE_BYTES_MAX}; choose another name")]
    Name {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The token, or an earlier one, could not be saved. Whether it will be known when the fence is opened again is uncertain; until then
    /// this fence admits nothing.
    #[error(
        "the fence cannot save tokens, so it admits nothing more: {0}; repair its store, then open the fence again"
    )]
    Store(#[source] Arc<io::Error>),
}

/// The token came too late: another client got the lock later, and was here before. Do not retry with this token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "token {} is refused at {resource:?}, which has seen {}token {}: another client got the lock since; stop, or acquire the lock again",
    token.0,
    match hold { Hold::Exclusive => "", Hold::Shared => "the exclusive " },
    seen.0
)]
pub struct RefusedToken {
    /// The resource.
    pub resource: String,
    /// The token that was shown.
    pub token: Token,
    /// The mode in which the lock is held.
    pub hold: Hold,
    /// The token that bars it: the highest seen; for a shared one, the highest exclusive one seen.
    pub seen: Token,
}
