//! Requests: what a frame asks for.

use super::{AclEntry, JuteError, Opcode, reader::JuteReader};

/// Maximum number of operations in a multi. The store may allow fewer.
const MULTI_MAX: usize = 10_000;

/// What stands before each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// The client's number, which its reply repeats.
    pub(crate) xid: i32,
    /// What it asks for.
    pub(crate) opcode: Opcode,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientRequest {
    Ping,
    Close,
    Read(ReadOperation),
    Write(WriteOperation),
    /// Writes that happen together or not at all.
    Multi(Vec<WriteOperation>),
    /// Reads, each with its own outcome.
    MultiRead(Vec<ReadOperation>),
    Sync {
        path: String,
    },
    Auth {
        scheme: String,
        credentials: Vec<u8>,
    },
    SetWatches {
        relative: i64,
        paths: WatchPaths,
    },
    AddWatch {
        path: String,
        is_recursive: bool,
    },
    CheckWatches {
        path: String,
        kind: WatcherKind,
    },
    RemoveWatches {
        path: String,
        kind: WatcherKind,
    },
    GetEphemerals {
        prefix: String,
    },
    WhoAmI,
    Sasl,
    Reconfig,
    /// Nothing that is served.
    Unknown,
}

/// A request that changes nothing and has a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadOperation {
    Exists { path: String, is_watched: bool },
    GetData { path: String, is_watched: bool },
    GetAcl { path: String },
    GetChildren { path: String, is_watched: bool, has_stat: bool },
    CountDescendants { path: String },
}

/// A request that changes something, and may stand in a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteOperation {
    Create(CreateRequest),
    Delete { path: String, version: i32 },
    SetData { path: String, data: Option<Vec<u8>>, version: i32 },
    SetAcl { path: String, acl: Vec<AclEntry>, version: i32 },
    Check { path: String, version: i32 },
}

/// A node that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateRequest {
    /// How it was asked for, which decides what the reply shows.
    pub(crate) opcode: Opcode,
    /// Its path, or what precedes its number.
    pub(crate) path: String,
    /// Its data.
    pub(crate) data: Option<Vec<u8>>,
    /// Who may do what with it.
    pub(crate) acl: Vec<AclEntry>,
    /// The kind of node, as the client's number: see `tree::CreateMode`.
    pub(crate) flags: i32,
    /// How long it lives unchanged and without children, in milliseconds; 0 for all kinds but those with a time to live.
    pub(crate) ttl_ms: i64,
}

/// The paths that a client watched before it connected again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchPaths {
    /// Watches of data.
    pub(crate) data: Vec<String>,
    /// Watches of nodes that were missing.
    pub(crate) exist: Vec<String>,
    /// Watches of children.
    pub(crate) child: Vec<String>,
    /// Watches that stay.
    pub(crate) persistent: Vec<String>,
    /// Watches that stay, and are of all below, too.
    pub(crate) recursive: Vec<String>,
}

/// Which watches are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatcherKind {
    Children,
    Data,
    Any,
}

impl RequestHeader {
    /// Reads the payload of a frame: the header, and the request behind it. A request that cannot be read has its header all the same.
    pub(crate) fn read(frame: &[u8]) -> Result<(Self, Result<ClientRequest, JuteError>), JuteError> {
        let mut reader = JuteReader::new(frame);
        let xid = reader.int()?;
        let opcode = Opcode(reader.int()?);
        Ok((Self { xid, opcode }, ClientRequest::read(opcode, &mut reader)))
    }
}

impl ClientRequest {
    fn read(opcode: Opcode, reader: &mut JuteReader<'_>) -> Result<Self, JuteError> {
        let request = match opcode {
            Opcode::PING => Self::Ping,
            Opcode::CLOSE => Self::Close,
            Opcode::MULTI => Self::Multi(read_multi(reader, WriteOperation::read)?),
            Opcode::MULTI_READ => Self::MultiRead(read_multi(reader, ReadOperation::read)?),

            Opcode::SYNC => Self::Sync { path: text(reader)? },
            Opcode::AUTH => {
                reader.int()?;
                let scheme = text(reader)?;
                Self::Auth { scheme, credentials: reader.buffer()?.unwrap_or_default().to_vec() }
            }
            Opcode::SET_WATCHES | Opcode::SET_ALL_WATCHES => read_watches(opcode, reader)?,
            Opcode::ADD_WATCH => {
                let path = text(reader)?;
                match reader.int()? {
                    0 => Self::AddWatch { path, is_recursive: false },
                    1 => Self::AddWatch { path, is_recursive: true },
                    mode => return Err(JuteError::Unknown(mode, "mode of a watch")),
                }
            }
            Opcode::CHECK_WATCHES => Self::CheckWatches { path: text(reader)?, kind: read_kind(reader)? },
            Opcode::REMOVE_WATCHES => Self::RemoveWatches { path: text(reader)?, kind: read_kind(reader)? },

            Opcode::GET_EPHEMERALS => Self::GetEphemerals { prefix: text(reader)? },
            Opcode::WHO_AM_I => Self::WhoAmI,
            Opcode::SASL => Self::Sasl,
            Opcode::RECONFIG => Self::Reconfig,
            _ => return Self::read_single(opcode, reader),
        };
        Ok(request)
    }

    fn read_single(opcode: Opcode, reader: &mut JuteReader<'_>) -> Result<Self, JuteError> {
        if let Some(write) = WriteOperation::read(opcode, reader)? {
            return Ok(Self::Write(write));
        }
        Ok(ReadOperation::read(opcode, reader)?.map_or(Self::Unknown, Self::Read))
    }
}

fn text(reader: &mut JuteReader<'_>) -> Result<String, JuteError> {
    reader.string().map(str::to_owned)
}

fn read_kind(reader: &mut JuteReader<'_>) -> Result<WatcherKind, JuteError> {
    match reader.int()? {
        1 => Ok(WatcherKind::Children),
        2 => Ok(WatcherKind::Data),
        3 => Ok(WatcherKind::Any),
        kind => Err(JuteError::Unknown(kind, "kind of a watch")),
    }
}

fn read_watches(opcode: Opcode, reader: &mut JuteReader<'_>) -> Result<ClientRequest, JuteError> {
    let relative = reader.long()?;
    let data = reader.strings()?;
    let exist = reader.strings()?;
    let child = reader.strings()?;
    let mut paths = WatchPaths { data, exist, child, ..WatchPaths::default() };
    if opcode == Opcode::SET_ALL_WATCHES {
        paths.persistent = reader.strings()?;
        paths.recursive = reader.strings()?;
    }
    Ok(ClientRequest::SetWatches { relative, paths })
}

/// Reads operations until their end. Each takes bytes of the frame, so the frame bounds their number; the limit bounds what a refusal of
/// them costs.
fn read_multi<T>(
    reader: &mut JuteReader<'_>,
    read: impl Fn(Opcode, &mut JuteReader<'_>) -> Result<Option<T>, JuteError>,
) -> Result<Vec<T>, JuteError> {
    let mut operations = Vec::new();
    loop {
        let opcode = Opcode(reader.int()?);
        let is_end = reader.bool()?;
        reader.int()?;
        if is_end {
            return Ok(operations);
        }

        let operation = read(opcode, reader)?.ok_or(JuteError::Unknown(opcode.0, "operation of a multi"))?;
        operations.push(operation);
        if operations.len() > MULTI_MAX {
            return Err(JuteError::TooMany(operations.len()));
        }
    }
}

impl WriteOperation {
    /// Reads a write; `None` if the operation is none.
    fn read(opcode: Opcode, reader: &mut JuteReader<'_>) -> Result<Option<Self>, JuteError> {
        let write = match opcode {
            Opcode::CREATE | Opcode::CREATE_WITH_STAT | Opcode::CREATE_CONTAINER | Opcode::CREATE_TTL => {
                Self::Create(CreateRequest::read(opcode, reader)?)
            }
            Opcode::DELETE => Self::Delete { path: text(reader)?, version: reader.int()? },
            Opcode::CHECK => Self::Check { path: text(reader)?, version: reader.int()? },

            Opcode::SET_DATA => {
                let path = text(reader)?;
                let data = reader.buffer()?.map(<[u8]>::to_vec);
                Self::SetData { path, data, version: reader.int()? }
            }
            Opcode::SET_ACL => {
                let path = text(reader)?;
                let acl = AclEntry::read_list(reader)?;
                Self::SetAcl { path, acl, version: reader.int()? }
            }
            _ => return Ok(None),
        };
        Ok(Some(write))
    }
}

impl CreateRequest {
    fn read(opcode: Opcode, reader: &mut JuteReader<'_>) -> Result<Self, JuteError> {
        let path = text(reader)?;
        let data = reader.buffer()?.map(<[u8]>::to_vec);
        let acl = AclEntry::read_list(reader)?;
        let flags = reader.int()?;
        let ttl_ms = if opcode == Opcode::CREATE_TTL { reader.long()? } else { 0 };
        Ok(Self { opcode, path, data, acl, flags, ttl_ms })
    }
}

impl ReadOperation {
    /// Reads a read; `None` if the operation is none.
    fn read(opcode: Opcode, reader: &mut JuteReader<'_>) -> Result<Option<Self>, JuteError> {
        let read = match opcode {
            Opcode::EXISTS => Self::Exists { path: text(reader)?, is_watched: reader.bool()? },
            Opcode::GET_DATA => Self::GetData { path: text(reader)?, is_watched: reader.bool()? },

            Opcode::GET_ACL => Self::GetAcl { path: text(reader)? },
            Opcode::GET_CHILDREN | Opcode::GET_CHILDREN_WITH_STAT => {
                let path = text(reader)?;
                let has_stat = opcode == Opcode::GET_CHILDREN_WITH_STAT;
                Self::GetChildren { path, is_watched: reader.bool()?, has_stat }
            }
            Opcode::COUNT_DESCENDANTS => Self::CountDescendants { path: text(reader)? },
            _ => return Ok(None),
        };
        Ok(Some(read))
    }
}
