//! What ZooKeeper's clients and servers send: requests and answers of every operation, as jute lays them out.
//!
//! Written from the wire, not from the server under test: the same mistake in both would show as no difference. A body that has bytes left
//! after its last field is refused, so that an answer which is too long fails as one that is too short does.

/// The operations of a request, and of a part of a multi.
pub(crate) mod op {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const SET_ACL: i32 = 7;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN_2: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE_2: i32 = 15;
    pub(crate) const CHECK_WATCHES: i32 = 17;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const CREATE_TTL: i32 = 21;
    pub(crate) const MULTI_READ: i32 = 22;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    pub(crate) const GET_EPHEMERALS: i32 = 103;
    pub(crate) const GET_ALL_CHILDREN_NUMBER: i32 = 104;
    pub(crate) const SET_WATCHES_2: i32 = 105;
    pub(crate) const ADD_WATCH: i32 = 106;
    pub(crate) const WHO_AM_I: i32 = 107;
    pub(crate) const CLOSE: i32 = -11;
}

/// The xids that are no number of a request.
pub(crate) const XID_EVENT: i32 = -1;
pub(crate) const XID_PING: i32 = -2;
pub(crate) const XID_AUTH: i32 = -4;
pub(crate) const XID_SET_WATCHES: i32 = -8;

/// Who may do what: rights, scheme, identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JuteAcl {
    pub(crate) rights: i32,
    pub(crate) scheme: String,
    pub(crate) identity: String,
}

impl JuteAcl {
    /// Everybody may do everything.
    pub(crate) fn open() -> Vec<Self> {
        vec![Self::new(31, "world", "anyone")]
    }

    pub(crate) fn new(rights: i32, scheme: &str, identity: &str) -> Self {
        Self { rights, scheme: scheme.to_owned(), identity: identity.to_owned() }
    }
}

/// What is known of a node, in 68 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct JuteStat {
    pub(crate) created_at: i64,
    pub(crate) modified_at: i64,
    pub(crate) created_ms: i64,
    pub(crate) modified_ms: i64,
    pub(crate) version: i32,
    pub(crate) children_version: i32,
    pub(crate) acl_version: i32,
    pub(crate) owner: i64,
    pub(crate) data_length: i32,
    pub(crate) children: i32,
    pub(crate) children_at: i64,
}

/// A request, without its header.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum JuteRequest {
    /// One of the four operations that create; with a TTL for [`op::CREATE_TTL`] alone.
    Create {
        op: i32,
        path: String,
        data: Option<Vec<u8>>,
        acl: Vec<JuteAcl>,
        flags: i32,
        ttl_ms: i64,
    },
    Delete {
        path: String,
        version: i32,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Vec<u8>>,
        version: i32,
    },
    GetAcl {
        path: String,
    },
    SetAcl {
        path: String,
        acl: Vec<JuteAcl>,
        version: i32,
    },
    GetChildren {
        path: String,
        watch: bool,
    },
    GetChildren2 {
        path: String,
        watch: bool,
    },
    Sync {
        path: String,
    },
    Check {
        path: String,
        version: i32,
    },
    Multi(Vec<JuteRequest>),
    MultiRead(Vec<JuteRequest>),
    CheckWatches {
        path: String,
        kind: i32,
    },
    RemoveWatches {
        path: String,
        kind: i32,
    },
    Auth {
        scheme: String,
        credentials: Vec<u8>,
    },
    /// Paths of watches for data, for existence and for children; persistent and recursive ones by [`op::SET_WATCHES_2`].
    SetWatches {
        since: i64,
        lists: Vec<Vec<String>>,
    },
    AddWatch {
        path: String,
        mode: i32,
    },
    GetEphemerals {
        prefix: String,
    },
    GetAllChildrenNumber {
        path: String,
    },
    WhoAmI,
    Ping,
    Close,
}

impl JuteRequest {
    /// A plain create that everybody may do everything with.
    pub(crate) fn create(path: &str, data: &[u8], flags: i32) -> Self {
        let (path, data) = (path.to_owned(), Some(data.to_vec()));
        Self::Create { op: op::CREATE, path, data, acl: JuteAcl::open(), flags, ttl_ms: 0 }
    }

    pub(crate) fn delete(path: &str) -> Self {
        Self::Delete { path: path.to_owned(), version: -1 }
    }

    pub(crate) fn op(&self) -> i32 {
        match self {
            Self::Create { op, .. } => *op,
            Self::Delete { .. } => op::DELETE,
            Self::Exists { .. } => op::EXISTS,
            Self::GetData { .. } => op::GET_DATA,
            Self::SetData { .. } => op::SET_DATA,
            Self::GetAcl { .. } => op::GET_ACL,
            Self::SetAcl { .. } => op::SET_ACL,
            Self::GetChildren { .. } => op::GET_CHILDREN,
            Self::GetChildren2 { .. } => op::GET_CHILDREN_2,
            Self::Sync { .. } => op::SYNC,
            Self::Check { .. } => op::CHECK,
            Self::Multi(_) => op::MULTI,
            Self::MultiRead(_) => op::MULTI_READ,
            Self::CheckWatches { .. } => op::CHECK_WATCHES,
            Self::RemoveWatches { .. } => op::REMOVE_WATCHES,
            Self::Auth { .. } => op::AUTH,
            Self::SetWatches { lists, .. } if lists.len() == 3 => op::SET_WATCHES,
            Self::SetWatches { .. } => op::SET_WATCHES_2,
            Self::AddWatch { .. } => op::ADD_WATCH,
            Self::GetEphemerals { .. } => op::GET_EPHEMERALS,
            Self::GetAllChildrenNumber { .. } => op::GET_ALL_CHILDREN_NUMBER,
            Self::WhoAmI => op::WHO_AM_I,
            Self::Ping => op::PING,
            Self::Close => op::CLOSE,
        }
    }

    /// The xid that clients always give this operation, if there is one.
    pub(crate) fn fixed_xid(&self) -> Option<i32> {
        match self.op() {
            op::PING => Some(XID_PING),
            op::AUTH => Some(XID_AUTH),
            op::SET_WATCHES | op::SET_WATCHES_2 => Some(XID_SET_WATCHES),
            _ => None,
        }
    }

    pub(crate) fn write(&self, out: &mut JuteWriter) {
        match self {
            Self::Create { op, path, data, acl, flags, ttl_ms } => {
                out.text(path).buffer(data.as_deref()).acl(acl).int(*flags);
                if *op == op::CREATE_TTL {
                    out.long(*ttl_ms);
                }
            }
            Self::Delete { path, version } | Self::Check { path, version } => {
                out.text(path).int(*version);
            }
            Self::Exists { path, watch }
            | Self::GetData { path, watch }
            | Self::GetChildren { path, watch }
            | Self::GetChildren2 { path, watch } => {
                out.text(path).boolean(*watch);
            }
            Self::SetData { path, data, version } => {
                out.text(path).buffer(data.as_deref()).int(*version);
            }
            Self::SetAcl { path, acl, version } => {
                out.text(path).acl(acl).int(*version);
            }
            Self::GetAcl { path } | Self::Sync { path } | Self::GetAllChildrenNumber { path } => {
                out.text(path);
            }
            Self::GetEphemerals { prefix } => {
                out.text(prefix);
            }
            Self::Multi(parts) | Self::MultiRead(parts) => {
                for part in parts {
                    out.int(part.op()).boolean(false).int(-1);
                    part.write(out);
                }
                out.int(-1).boolean(true).int(-1);
            }
            Self::CheckWatches { path, kind } | Self::RemoveWatches { path, kind } => {
                out.text(path).int(*kind);
            }
            Self::Auth { scheme, credentials } => {
                out.int(0).text(scheme).buffer(Some(credentials));
            }
            Self::SetWatches { since, lists } => {
                out.long(*since);
                for list in lists {
                    out.int(list.len() as i32);
                    for path in list {
                        out.text(path);
                    }
                }
            }
            Self::AddWatch { path, mode } => {
                out.text(path).int(*mode);
            }
            Self::WhoAmI | Self::Ping | Self::Close => {}
        }
    }
}

/// The body of an answer without an error.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum JuteAnswer {
    Nothing,
    Path(String),
    Stat(JuteStat),
    PathStat(String, JuteStat),
    Data(Option<Vec<u8>>, JuteStat),
    Names(Vec<String>),
    NamesStat(Vec<String>, JuteStat),
    Acl(Vec<JuteAcl>, JuteStat),
    Number(i32),
    Identities(Vec<(String, String)>),
    /// Of a multi: each an operation with its answer, or an error.
    Parts(Vec<Result<(i32, JuteAnswer), i32>>),
}

impl JuteAnswer {
    /// Reads the body of an answer to this operation. `None`: it is too short, too long, or malformed.
    pub(crate) fn read(op: i32, body: &[u8]) -> Option<Self> {
        let mut input = JuteReader(body);
        let answer = Self::read_part(op, &mut input)?;
        input.0.is_empty().then_some(answer)
    }

    fn read_part(op: i32, input: &mut JuteReader<'_>) -> Option<Self> {
        Some(match op {
            op::CREATE | op::SYNC => Self::Path(input.text()?),
            op::CREATE_2 | op::CREATE_CONTAINER | op::CREATE_TTL => Self::PathStat(input.text()?, input.stat()?),
            op::EXISTS | op::SET_DATA | op::SET_ACL => Self::Stat(input.stat()?),
            op::GET_DATA => Self::Data(input.buffer()?, input.stat()?),
            op::GET_CHILDREN | op::GET_EPHEMERALS => Self::Names(input.list(JuteReader::text)?),
            op::GET_CHILDREN_2 => Self::NamesStat(input.list(JuteReader::text)?, input.stat()?),
            op::GET_ACL => Self::Acl(input.list(JuteReader::acl)?, input.stat()?),
            op::ADD_WATCH | op::GET_ALL_CHILDREN_NUMBER => Self::Number(input.int()?),
            op::WHO_AM_I => Self::Identities(input.list(|input| Some((input.text()?, input.text()?)))?),
            op::MULTI | op::MULTI_READ => {
                let mut parts = Vec::new();
                loop {
                    let (op, is_end, error) = (input.int()?, input.boolean()?, input.int()?);
                    match op {
                        _ if is_end => break,
                        // The error stands a second time, as the body.
                        -1 => parts.push(Err(input.int().filter(|again| *again == error)?)),
                        _ if error != 0 => return None,
                        _ => parts.push(Ok((op, Self::read_part(op, input)?))),
                    }
                }
                Self::Parts(parts)
            }
            _ => Self::Nothing,
        })
    }
}

/// Writes the fields of a frame.
#[derive(Default)]
pub(crate) struct JuteWriter(pub(crate) Vec<u8>);

impl JuteWriter {
    pub(crate) fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn boolean(&mut self, value: bool) -> &mut Self {
        self.0.push(value.into());
        self
    }

    pub(crate) fn buffer(&mut self, value: Option<&[u8]>) -> &mut Self {
        let Some(value) = value else { return self.int(-1) };
        self.int(value.len() as i32);
        self.0.extend(value);
        self
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        self.buffer(Some(value.as_bytes()))
    }

    pub(crate) fn acl(&mut self, acl: &[JuteAcl]) -> &mut Self {
        self.int(acl.len() as i32);
        for entry in acl {
            self.int(entry.rights).text(&entry.scheme).text(&entry.identity);
        }
        self
    }
}

/// Reads the fields of a frame. `None`: it ends before the field does.
pub(crate) struct JuteReader<'frame>(pub(crate) &'frame [u8]);

impl JuteReader<'_> {
    fn bytes<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (bytes, rest) = self.0.split_first_chunk::<LENGTH>()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(crate) fn int(&mut self) -> Option<i32> {
        self.bytes().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<i64> {
        self.bytes().map(i64::from_be_bytes)
    }

    pub(crate) fn boolean(&mut self) -> Option<bool> {
        self.bytes::<1>().map(|[byte]| byte != 0)
    }

    /// A buffer, or a null one: the inner `None`.
    pub(crate) fn buffer(&mut self) -> Option<Option<Vec<u8>>> {
        let Ok(length) = usize::try_from(self.int()?) else { return Some(None) };
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Some(bytes.to_vec()))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()??).ok()
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.int()?).map(|_| item(self)).collect()
    }

    fn acl(&mut self) -> Option<JuteAcl> {
        Some(JuteAcl { rights: self.int()?, scheme: self.text()?, identity: self.text()? })
    }

    pub(crate) fn stat(&mut self) -> Option<JuteStat> {
        Some(JuteStat {
            created_at: self.long()?,
            modified_at: self.long()?,
            created_ms: self.long()?,
            modified_ms: self.long()?,
            version: self.int()?,
            children_version: self.int()?,
            acl_version: self.int()?,
            owner: self.long()?,
            data_length: self.int()?,
            children: self.int()?,
            children_at: self.long()?,
        })
    }
}
