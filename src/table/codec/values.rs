//! The machine's basic values as messages, and back: the encoding that commands and records share.
//!
//! Decoding checks the form of a value, and no limit ([`Txn::from_log`] and the like). A damaged or foreign message is malformed, and never
//! puts a value into the table that the table cannot have. A value beyond a limit of this version was within those of the version that
//! proposed it: a node that refused it would stop, and with it all that have this program.

use std::sync::Arc;

use bytes::Bytes;

use super::Malformed;
use crate::messages as pb;
use lockkeeper_machine::*;

/// A session's id as it is in messages.
pub fn write_session(id: SessionId) -> Bytes {
    Bytes::copy_from_slice(&session_bytes(id))
}

pub(super) fn session_bytes(id: SessionId) -> [u8; 16] {
    id.0.to_be_bytes()
}

/// The session's id of a message. Fails on one of another length.
pub fn read_session(bytes: &(impl AsRef<[u8]> + ?Sized)) -> Result<SessionId, Malformed> {
    let bytes =
        <[u8; 16]>::try_from(bytes.as_ref()).map_err(|_| Malformed("a session id that is not 16 bytes long"))?;
    Ok(SessionId(u128::from_be_bytes(bytes)))
}

pub(super) fn write_name(name: &LockName) -> Bytes {
    Bytes::copy_from_slice(name.as_str().as_bytes())
}

pub(super) fn read_name(name: &(impl AsRef<[u8]> + ?Sized)) -> Result<LockName, Malformed> {
    let name = str::from_utf8(name.as_ref()).map_err(|_| Malformed("a lock's name that is not UTF-8"))?;
    LockName::from_log(name).map_err(|_| Malformed("a lock's name that is empty or has a NUL in it"))
}

pub(super) fn read_label(label: &str) -> Label {
    Label::from_log(label)
}

/// Empty: unknown.
pub(super) fn write_address(address: Option<Address>) -> String {
    address.map_or_else(String::new, |address| address.to_string())
}

pub(super) fn read_address(address: &str) -> Result<Option<Address>, Malformed> {
    match address {
        "" => Ok(None),
        address => address.parse().map(Some).map_err(|_| Malformed("an address that is none")),
    }
}

/// Empty: none.
pub(super) fn write_identity(identity: Option<&Identity>) -> String {
    identity.map_or_else(String::new, |identity| identity.as_str().into())
}

pub(super) fn read_identity(identity: &str) -> Result<Option<Identity>, Malformed> {
    match identity {
        "" => Ok(None),
        identity => Identity::from_log(identity).map(Some).map_err(|_| Malformed("an identity that is empty")),
    }
}

pub(super) fn read_reason(reason: &str) -> Result<Reason, Malformed> {
    Reason::from_log(reason).map_err(|_| Malformed("a reason that is empty"))
}

pub(super) fn read_ttl(ms: u32) -> Result<Ttl, Malformed> {
    Ttl::from_log(ms).map_err(|_| Malformed("a TTL of zero"))
}

pub(super) fn read_permits(permits: u32) -> Result<Permits, Malformed> {
    Permits::from_log(permits).map_err(|_| Malformed("a semaphore without permits"))
}

pub(super) fn read_open(lowest: u64, kept: Vec<u64>) -> Result<OpenIds, Malformed> {
    OpenIds::from_log(lowest, kept)
        .map_err(|_| Malformed("kept request ids that are not ascending or not below the lowest"))
}

pub(super) fn write_names(names: &[LockName]) -> Vec<String> {
    names.iter().map(|name| name.as_str().into()).collect()
}

pub(super) fn read_names(names: &[String]) -> Result<Arc<[LockName]>, Malformed> {
    names.iter().map(read_name).collect()
}

pub(super) fn write_data(data: Option<&Data>) -> Option<Bytes> {
    data.map(|data| Bytes::copy_from_slice(data.as_bytes()))
}

pub(super) fn read_data(data: Option<Bytes>) -> Option<Data> {
    data.map(|data| Data::from_log(&data))
}

pub(super) fn write_mode(mode: Mode) -> pb::Mode {
    pb::Mode {
        kind: Some(match mode {
            Mode::Exclusive => pb::mode::Kind::Exclusive(true),
            Mode::Shared => pb::mode::Kind::Shared(true),
            Mode::Permit(permits) => pb::mode::Kind::Permit(permits.get()),
        }),
    }
}

pub(super) fn read_mode(mode: Option<pb::Mode>) -> Result<Mode, Malformed> {
    let kind = mode.and_then(|mode| mode.kind).ok_or(Malformed("a lock without a mode"))?;
    Ok(match kind {
        pb::mode::Kind::Exclusive(_) => Mode::Exclusive,
        pb::mode::Kind::Shared(_) => Mode::Shared,
        pb::mode::Kind::Permit(permits) => Mode::Permit(read_permits(permits)?),
    })
}

pub(super) fn write_wants(acquire: &Acquire) -> Vec<pb::Want> {
    let want = |want: &Want| pb::Want {
        name: write_name(&want.name),
        mode: Some(write_mode(want.mode)),
        data: write_data(want.data.as_ref()),
        keep_data: want.keep_data,
        must_exist: want.must_exist,
    };
    acquire.wants().iter().map(want).collect()
}

pub(super) fn write_wait(wait: Wait) -> Option<u64> {
    match wait {
        Wait::Never => Some(0),
        Wait::Millis(ms) => Some(ms),
        Wait::Forever => None,
    }
}

pub(super) fn read_acquire(
    wants: Vec<pb::Want>,
    wait_ms: Option<u64>,
    lock_delay_ms: u32,
) -> Result<Acquire, Malformed> {
    let want = |want: pb::Want| {
        Ok(Want {
            name: read_name(&want.name)?,
            mode: read_mode(want.mode)?,
            data: read_data(want.data),
            keep_data: want.keep_data,
            must_exist: want.must_exist,
        })
    };

    let wants = wants.into_iter().map(want).collect::<Result<_, _>>()?;
    acquire_of(wants, wait_ms, lock_delay_ms)
}

pub(super) fn acquire_of(wants: Vec<Want>, wait_ms: Option<u64>, lock_delay_ms: u32) -> Result<Acquire, Malformed> {
    let wait = match wait_ms {
        None => Wait::Forever,
        Some(ms) => Wait::from_log(ms),
    };
    Acquire::from_log(wants, wait, lock_delay_ms)
        .map_err(|_| Malformed("an acquire without locks, or of one lock twice"))
}
