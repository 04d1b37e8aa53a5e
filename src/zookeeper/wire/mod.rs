//! Bytes: frames, records, requests in, replies out.

mod codes;
mod connect;
mod frames;
mod reader;
mod records;
mod request;
mod writer;

pub(crate) use codes::{ErrorCode, Opcode};
pub(crate) use connect::{ConnectAnswer, ConnectRequest, PASSWORD_BYTES};
pub(crate) use frames::{FrameError, FrameReader};
pub(crate) use reader::JuteError;
pub(crate) use records::{AclEntry, ZnodeStat, permissions};
pub(crate) use request::{
    ClientRequest, CreateRequest, ReadOperation, RequestHeader, WatchPaths, WatcherKind, WriteOperation,
};
pub(crate) use writer::JuteWriter;
