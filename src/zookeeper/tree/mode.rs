//! Kinds of nodes.

use crate::wire::{CreateRequest, ErrorCode, Opcode};

/// Maximum time to live: 40 bits of milliseconds, about 34 years, as in ZooKeeper.
const TTL_MS_MAX: i64 = (1 << 40) - 1;

/// How long a node lives that ends with no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeLife {
    /// Until it is deleted.
    Persistent,
    /// Until it has had children and has none.
    Container,
    /// Until it has not been written for this long and has no children.
    Ttl {
        /// The time, in milliseconds.
        ms: i64,
    },
}

/// What a create asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateMode {
    /// How long it lives, if it ends with no session.
    pub(crate) life: NodeLife,
    /// Whether it ends with the session.
    pub(crate) is_ephemeral: bool,
    /// Whether its parent's next number is appended to its name.
    pub(crate) is_numbered: bool,
}

impl CreateMode {
    /// Reads the flags of a request.
    pub(crate) fn from_request(request: &CreateRequest) -> Result<Self, ErrorCode> {
        let plain = Self { life: NodeLife::Persistent, is_ephemeral: false, is_numbered: false };
        let mode = match request.flags {
            0 => plain,
            1 => Self { is_ephemeral: true, ..plain },
            2 => Self { is_numbered: true, ..plain },
            3 => Self { is_ephemeral: true, is_numbered: true, ..plain },
            4 => Self { life: NodeLife::Container, ..plain },
            5 => Self { life: NodeLife::Ttl { ms: request.ttl_ms }, ..plain },
            6 => Self { life: NodeLife::Ttl { ms: request.ttl_ms }, is_numbered: true, ..plain },
            _ => return Err(ErrorCode::BadArguments),
        };

        // The flags and the operation must agree: only one of the operations has a place for the time.
        let has_ttl = matches!(mode.life, NodeLife::Ttl { .. });
        let is_ttl_fine = !has_ttl || (1..=TTL_MS_MAX).contains(&request.ttl_ms);
        if has_ttl != (request.opcode == Opcode::CREATE_TTL) || !is_ttl_fine {
            return Err(ErrorCode::BadArguments);
        }
        Ok(mode)
    }
}
