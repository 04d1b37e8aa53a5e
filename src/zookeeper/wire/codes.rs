//! Numbers of operations and of errors.

/// The number of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Opcode(pub(crate) i32);

impl Opcode {
    pub(crate) const CREATE: Self = Self(1);
    pub(crate) const DELETE: Self = Self(2);
    pub(crate) const EXISTS: Self = Self(3);
    pub(crate) const GET_DATA: Self = Self(4);
    pub(crate) const SET_DATA: Self = Self(5);
    pub(crate) const GET_ACL: Self = Self(6);
    pub(crate) const SET_ACL: Self = Self(7);
    pub(crate) const GET_CHILDREN: Self = Self(8);
    pub(crate) const SYNC: Self = Self(9);
    pub(crate) const PING: Self = Self(11);
    pub(crate) const GET_CHILDREN_WITH_STAT: Self = Self(12);
    pub(crate) const CHECK: Self = Self(13);
    pub(crate) const MULTI: Self = Self(14);
    pub(crate) const CREATE_WITH_STAT: Self = Self(15);
    pub(crate) const RECONFIG: Self = Self(16);
    pub(crate) const CHECK_WATCHES: Self = Self(17);
    pub(crate) const REMOVE_WATCHES: Self = Self(18);
    pub(crate) const CREATE_CONTAINER: Self = Self(19);
    pub(crate) const CREATE_TTL: Self = Self(21);
    pub(crate) const MULTI_READ: Self = Self(22);
    pub(crate) const AUTH: Self = Self(100);
    pub(crate) const SET_WATCHES: Self = Self(101);
    pub(crate) const SASL: Self = Self(102);
    pub(crate) const GET_EPHEMERALS: Self = Self(103);
    pub(crate) const COUNT_DESCENDANTS: Self = Self(104);
    pub(crate) const SET_ALL_WATCHES: Self = Self(105);
    pub(crate) const ADD_WATCH: Self = Self(106);
    pub(crate) const WHO_AM_I: Self = Self(107);
    pub(crate) const CLOSE: Self = Self(-11);
    /// What a frame asks for.
    pub(crate) fn from_frame(frame: &[u8]) -> Option<Self> {
        let opcode = frame.get(4..)?.first_chunk()?;
        Some(Self(i32::from_be_bytes(*opcode)))
    }

    /// Whether it is a write that stands by itself.
    pub(crate) fn is_single_write(self) -> bool {
        [
            Self::CREATE,
            Self::CREATE_WITH_STAT,
            Self::CREATE_CONTAINER,
            Self::CREATE_TTL,
            Self::DELETE,
            Self::SET_DATA,
            Self::SET_ACL,
        ]
        .contains(&self)
    }

    /// In a multi: a result that is an error, and its end.
    pub(crate) const NONE: Self = Self(-1);

    /// All that are counted, with the names that operators read.
    pub(crate) const COUNTED: [(Self, &'static str); 29] = [
        (Self::CREATE, "create"),
        (Self::DELETE, "delete"),
        (Self::EXISTS, "exists"),
        (Self::GET_DATA, "getData"),
        (Self::SET_DATA, "setData"),
        (Self::GET_ACL, "getACL"),
        (Self::SET_ACL, "setACL"),
        (Self::GET_CHILDREN, "getChildren"),
        (Self::SYNC, "sync"),
        (Self::PING, "ping"),
        (Self::GET_CHILDREN_WITH_STAT, "getChildren2"),
        (Self::CHECK, "check"),
        (Self::MULTI, "multi"),
        (Self::CREATE_WITH_STAT, "create2"),
        (Self::RECONFIG, "reconfig"),
        (Self::CHECK_WATCHES, "checkWatches"),
        (Self::REMOVE_WATCHES, "removeWatches"),
        (Self::CREATE_CONTAINER, "createContainer"),
        (Self::CREATE_TTL, "createTTL"),
        (Self::MULTI_READ, "multiRead"),
        (Self::AUTH, "auth"),
        (Self::SET_WATCHES, "setWatches"),
        (Self::SASL, "sasl"),
        (Self::GET_EPHEMERALS, "getEphemerals"),
        (Self::COUNT_DESCENDANTS, "getAllChildrenNumber"),
        (Self::SET_ALL_WATCHES, "setWatches2"),
        (Self::ADD_WATCH, "addWatch"),
        (Self::WHO_AM_I, "whoAmI"),
        (Self::CLOSE, "closeSession"),
    ];
}

/// An error of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorCode {
    /// In a multi: an operation after the one that failed.
    RuntimeInconsistency = -2,
    /// The request cannot be read.
    Marshalling = -5,
    /// The operation is not served.
    Unimplemented = -6,
    /// A path, a flag or a size that cannot be right.
    BadArguments = -8,
    /// The node is missing.
    NoNode = -101,
    /// A right is missing.
    NoAuth = -102,
    /// The node has another version.
    BadVersion = -103,
    /// The parent ends with a session.
    NoChildrenForEphemerals = -108,
    /// The node exists.
    NodeExists = -110,
    /// The node has children.
    NotEmpty = -111,
    /// The session is over.
    SessionExpired = -112,
    /// An access list that is empty, or names what there is not.
    InvalidAcl = -114,
    /// A proof of identity that is none.
    AuthFailed = -115,
    /// Another connection has the session.
    SessionMoved = -118,
    /// The connection has no watch of this kind.
    NoWatcher = -121,
    /// The members of the cluster are not for clients of this protocol to change.
    ReconfigDisabled = -123,
    /// The store is full, or the client's part of it.
    QuotaExceeded = -125,
}

impl ErrorCode {
    /// The number in a reply.
    pub(crate) fn number(self) -> i32 {
        self as i32
    }
}
