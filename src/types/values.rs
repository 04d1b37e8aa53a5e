//! The basic values that the other types are made of.

use std::{
    borrow::Borrow,
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    str::FromStr,
    sync::Arc,
};

use crate::limits::*;

/// A session's id: 128 random bits, drawn outside the machine. Its text has 32 hexadecimal digits.
// Packed to 8 bytes, like the other fields of a grant: an alignment of 16 would add 16 bytes to each of a million grants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(8))]
pub struct SessionId(pub u128);

impl SessionId {
    /// Stands for the session of a holder or waiter without one: an entry of the keyspace with its own deadline. No client draws this id.
    pub const NONE: Self = Self(0);
}

/// The id of a grant, which is also its fencing token. It strictly increases over all grants of the cluster, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// A waiter's place in the order of arrival. The first is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

/// A cluster time in milliseconds. It is only ever compared with other stamps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp(pub u64);

/// A wall-clock time in milliseconds since 1970-01-01 UTC. People read it; nothing is decided by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WallTime(pub u64);

/// The time at which a batch of commands is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Time {
    /// The cluster time. All decisions depend on it.
    pub stamp: Stamp,
    /// The leader's wall clock. It is only shown.
    pub wall: WallTime,
}

/// Why a value was refused. The message names the limit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub(super) String);

/// A lock's name: UTF-8, 1 to [`NAME_BYTES_MAX`] bytes, without NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

/// A client's label for its session, for people to read: at most [`LABEL_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Label(Arc<str>);

/// The name under which a client is known: from its certificate or its token. Sessions belong to it, and policies and limits name it.
///
/// 1 to [`IDENTITY_BYTES_MAX`] bytes, each an ASCII letter, a digit, or one of `.`, `_`, `-`, `@`, `:`, `/`, and the first a letter or a
/// digit. So no two identities look alike, none is mistaken for an option of a command, and none contains the `*` of patterns, a
/// space, a comma or a quote. `anonymous` is not one: in policies it means callers without an identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

/// The address from which a session was opened, for people to read: the client's IP address and port, as seen by the node that took the
/// call. Nothing is decided by it. An IPv4-mapped IPv6 address is converted to IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    ip: IpAddr,
    port: u16,
}

/// Why an operator forced a release: 1 to [`REASON_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason(Arc<str>);

/// The data on a lock: at most [`DATA_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data(Arc<[u8]>);

/// How long a session lives without a renewal, milliseconds: [`TTL_MS_MIN`] to [`TTL_MS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ttl(NonZeroU32);

/// The size of a semaphore: how many grants may hold it at a time, 1 to [`PERMITS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Permits(NonZeroU32);

/// The mode in which a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// One holder has the lock.
    Exclusive,
    /// Any number of sharers have the lock, while there is no exclusive holder.
    Shared,
    /// Up to this many holders have the semaphore at a time.
    Permit(Permits),
}

impl Invalid {
    /// A value was refused for this reason, which names the limit and the remedy.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// Fails over this number of bytes.
pub(super) fn length(what: &str, bytes: usize, most: usize) -> Result<(), Invalid> {
    if bytes > most {
        return Err(Invalid(format!("{what} has {bytes} bytes: the limit is {most}")));
    }
    Ok(())
}

fn not_empty(what: &str, value: &str, most: usize) -> Result<Arc<str>, Invalid> {
    if value.is_empty() {
        return Err(Invalid(format!("{what} is empty: give it 1 to {most} bytes")));
    }
    Ok(value.into())
}

pub(super) fn number<N: PartialOrd + fmt::Display>(what: &str, value: N, least: N, most: N) -> Result<N, Invalid> {
    if value < least || value > most {
        return Err(Invalid(format!("{what} is {value}: give it {least} to {most}")));
    }
    Ok(value)
}

impl LockName {
    const WHAT: &str = "the lock's name";

    /// Fails on an empty name, one over [`NAME_BYTES_MAX`], and one with a NUL in it.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        length(Self::WHAT, name.len(), NAME_BYTES_MAX)?;
        Self::from_log(name)
    }

    /// Like `new`, but of any length: see the [crate](crate).
    pub fn from_log(name: &str) -> Result<Self, Invalid> {
        let name = not_empty(Self::WHAT, name, NAME_BYTES_MAX)?;
        if name.contains('\0') {
            return Err(Invalid(format!("the lock's name {name:?} has a NUL in it: leave it out")));
        }
        Ok(Self(name))
    }

    /// Checks the length. Fails over [`NAME_BYTES_MAX`].
    pub fn check_limits(&self) -> Result<(), Invalid> {
        length(Self::WHAT, self.0.len(), NAME_BYTES_MAX)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Lets a table of locks be searched from a prefix, which need not be a valid name.
impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Label {
    /// Fails over [`LABEL_BYTES_MAX`].
    pub fn new(label: &str) -> Result<Self, Invalid> {
        length("the session's label", label.len(), LABEL_BYTES_MAX)?;
        Ok(Self::from_log(label))
    }

    /// Like `new`, but of any length: see the [crate](crate).
    pub fn from_log(label: &str) -> Self {
        Self(label.into())
    }

    /// Fails over [`LABEL_BYTES_MAX`].
    pub fn check_limits(&self) -> Result<(), Invalid> {
        length("the session's label", self.0.len(), LABEL_BYTES_MAX)
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Identity {
    /// In a policy: callers without an identity. Reserved, so that no identity is mistaken for them.
    pub const ANONYMOUS: &str = "anonymous";

    /// Fails on an empty identity, one over [`IDENTITY_BYTES_MAX`], one with another character than the allowed ones, and on
    /// [`Identity::ANONYMOUS`].
    pub fn new(identity: &str) -> Result<Self, Invalid> {
        length("the identity", identity.len(), IDENTITY_BYTES_MAX)?;
        let checked = Self::from_log(identity)?;

        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-@:/".contains(c);
        if let Some(bad) = identity.chars().find(|c| !allowed(*c)) {
            return Err(Invalid(format!(
                "the identity {identity:?} contains {bad:?}: use ASCII letters, digits and the characters . _ - @ : /"
            )));
        }
        if !identity.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            return Err(Invalid(format!("the identity {identity:?} does not begin with a letter or a digit")));
        }
        if identity == Self::ANONYMOUS {
            return Err(Invalid(format!(
                "the identity {identity:?} is reserved for callers without one: choose another"
            )));
        }
        Ok(checked)
    }

    /// Like `new`, but of any length and with any characters: see the [crate](crate). Fails on an empty one.
    pub fn from_log(identity: &str) -> Result<Self, Invalid> {
        not_empty("the identity", identity, IDENTITY_BYTES_MAX).map(Self)
    }

    /// Fails on what [`new`](Self::new) refuses.
    pub fn check_limits(&self) -> Result<(), Invalid> {
        Self::new(&self.0).map(|_| ())
    }

    /// The identity.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Identity {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::new(text)
    }
}

impl Address {
    /// The IP address of the host, or of the last network address translator before the node.
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// The port of the connection by which the session was opened.
    pub fn port(self) -> u16 {
        self.port
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self { ip: address.ip().to_canonical(), port: address.port() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&SocketAddr::new(self.ip, self.port), f)
    }
}

impl FromStr for Address {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let address = text.parse::<SocketAddr>().map(Self::from);
        address.map_err(|_| Invalid(format!("the address {text:?} is not IP:PORT")))
    }
}

impl Reason {
    /// Fails on an empty reason and one over [`REASON_BYTES_MAX`].
    pub fn new(reason: &str) -> Result<Self, Invalid> {
        length("the reason", reason.len(), REASON_BYTES_MAX)?;
        Self::from_log(reason)
    }

    /// Like `new`, but of any length: see the [crate](crate).
    pub fn from_log(reason: &str) -> Result<Self, Invalid> {
        not_empty("the reason", reason, REASON_BYTES_MAX).map(Self)
    }

    /// Fails over [`REASON_BYTES_MAX`].
    pub fn check_limits(&self) -> Result<(), Invalid> {
        length("the reason", self.0.len(), REASON_BYTES_MAX)
    }

    /// The reason.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Data {
    /// Fails over [`DATA_BYTES_MAX`].
    pub fn new(data: &[u8]) -> Result<Self, Invalid> {
        let data = Self::from_log(data);
        data.check_limits().map(|()| data)
    }

    /// Like `new`, but of any length: see the [crate](crate).
    pub fn from_log(data: &[u8]) -> Self {
        Self(data.into())
    }

    /// Fails over [`DATA_BYTES_MAX`].
    pub fn check_limits(&self) -> Result<(), Invalid> {
        if self.0.len() > DATA_BYTES_MAX {
            return Err(Invalid(format!("the data have {} bytes: the limit is {DATA_BYTES_MAX}", self.0.len())));
        }
        Ok(())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Ttl {
    const WHAT: &str = "the TTL in milliseconds";

    /// Fails outside [`TTL_MS_MIN`] to [`TTL_MS_MAX`].
    pub fn from_millis(ms: u32) -> Result<Self, Invalid> {
        Self::from_log(number(Self::WHAT, ms, TTL_MS_MIN, TTL_MS_MAX)?)
    }

    /// Like `from_millis`, but of any length: see the [crate](crate). Fails on zero.
    pub fn from_log(ms: u32) -> Result<Self, Invalid> {
        let zero = || Invalid(format!("{} is 0: give it {TTL_MS_MIN} to {TTL_MS_MAX}", Self::WHAT));
        NonZeroU32::new(ms).map(Self).ok_or_else(zero)
    }

    /// Fails outside [`TTL_MS_MIN`] to [`TTL_MS_MAX`].
    pub fn check_limits(self) -> Result<(), Invalid> {
        number(Self::WHAT, self.as_millis(), TTL_MS_MIN, TTL_MS_MAX).map(|_| ())
    }

    /// The TTL in milliseconds.
    pub fn as_millis(self) -> u32 {
        self.0.get()
    }
}

impl Permits {
    const WHAT: &str = "the number of permits";

    /// Fails outside 1 to [`PERMITS_MAX`].
    pub fn new(permits: u32) -> Result<Self, Invalid> {
        Self::from_log(number(Self::WHAT, permits, 1, PERMITS_MAX)?)
    }

    /// Like `new`, but of any size: see the [crate](crate). Fails on zero.
    pub fn from_log(permits: u32) -> Result<Self, Invalid> {
        let zero = || Invalid(format!("{} is 0: give it 1 to {PERMITS_MAX}", Self::WHAT));
        NonZeroU32::new(permits).map(Self).ok_or_else(zero)
    }

    /// Fails over [`PERMITS_MAX`].
    pub fn check_limits(self) -> Result<(), Invalid> {
        number(Self::WHAT, self.get(), 1, PERMITS_MAX).map(|_| ())
    }

    /// The number of permits.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl Mode {
    /// The size of the semaphore, or `None` for a lock. All sessions that use a name agree on it.
    pub fn permits(self) -> Option<Permits> {
        match self {
            Self::Exclusive | Self::Shared => None,
            Self::Permit(permits) => Some(permits),
        }
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", { self.0 })
    }
}

impl FromStr for SessionId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(id) if digits => Ok(Self(id)),
            _ => Err(Invalid(format!("the session id {text:?} is not 32 hexadecimal digits"))),
        }
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
