//! Requests that look at the state of this node, after everything that this connection did before is in it.

use super::{ClientSession, RequestAnswer};
use crate::{
    AppliedZnodes, ZookeeperStore,
    tree::{ClientIdentities, Znode, ZnodePath, look_up, look_up_stat},
    watches::WatchClass,
    wire::{AclEntry, ErrorCode, JuteWriter, Opcode, ReadOperation, permissions},
};

/// What a read finds.
struct ReadFinding {
    result: Result<Vec<u8>, ErrorCode>,
    /// The watch to set.
    watch: Option<(WatchClass, ZnodePath)>,
}

/// A read whose path can be, and which the policy allows.
struct AllowedRead<'a> {
    request: &'a ReadOperation,
    path: ZnodePath,
}

/// Who reads.
struct ZnodeReader<'a>(&'a ClientIdentities);

impl<S: ZookeeperStore> ClientSession<S> {
    /// Answers a read, and sets its watch in the same moment.
    pub(super) fn read(&self, request: &ReadOperation) -> RequestAnswer {
        let read = match self.allow(request) {
            Ok(read) => read,
            Err(code) => return self.refusal(code),
        };
        let reader = ZnodeReader(&self.identities);
        let look = || self.node.store.applied(|applied| (applied.revision(), reader.find(applied, &read)));
        if !request.is_watched() {
            let (revision, finding) = look();
            return RequestAnswer::new(revision, finding.result);
        }

        // No change is delivered while the table of watches is locked, so the watch gets all changes after the state that is read here.
        self.node.hub.with_watches(|watches| {
            let (revision, finding) = look();
            let set = finding.watch.map_or(Ok(()), |(class, path)| watches.add(self.id, class, &path, revision));
            let result = if set.is_ok() { finding.result } else { Err(ErrorCode::QuotaExceeded) };
            RequestAnswer::new(revision, result)
        })
    }

    /// Answers reads, all of one state. Each has its own outcome.
    pub(super) fn read_all(&self, requests: &[ReadOperation]) -> RequestAnswer {
        let reader = ZnodeReader(&self.identities);
        let bytes_max = self.node.options.connection_replies_bytes_max;

        // The policy is asked before: while a state is shown, nothing else is asked of the store.
        let reads: Vec<_> = requests.iter().map(|request| self.allow(request)).collect();

        self.node.store.applied(|applied| {
            let mut body = JuteWriter::default();
            for (request, read) in requests.iter().zip(&reads) {
                let result = match request {
                    ReadOperation::GetData { .. } | ReadOperation::GetChildren { has_stat: false, .. } => {
                        read.as_ref().map_err(|code| *code).and_then(|read| reader.find(applied, read).result)
                    }
                    ReadOperation::Exists { .. }
                    | ReadOperation::GetAcl { .. }
                    | ReadOperation::GetChildren { .. }
                    | ReadOperation::CountDescendants { .. } => Err(ErrorCode::Unimplemented),
                };

                match result {
                    Ok(found) => body.multi_header(request.opcode(), false, 0).raw(&found),
                    Err(code) => body.multi_error(code.number()),
                };

                // A request of a thousand reads of the same large node must not become a reply of a gigabyte.
                if body.len() > bytes_max {
                    return RequestAnswer::new(applied.revision(), Err(ErrorCode::BadArguments));
                }
            }

            // The header that ends the list.
            body.multi_header(Opcode::NONE, true, -1);
            RequestAnswer::new(applied.revision(), Ok(body.into_bytes()))
        })
    }

    /// Looks whether the path of a read can be, and whether the policy allows it.
    fn allow<'a>(&self, request: &'a ReadOperation) -> Result<AllowedRead<'a>, ErrorCode> {
        let path = parse(request)?;
        self.may_read(&path)?;
        Ok(AllowedRead { request, path })
    }

    /// Whether the policy lets the client see a node.
    pub(super) fn may_read(&self, path: &ZnodePath) -> Result<(), ErrorCode> {
        let is_allowed = self.node.store.may_read(&self.caller(), &path.key());
        if is_allowed { Ok(()) } else { Err(ErrorCode::NoAuth) }
    }

    /// The nodes that end with this session.
    pub(super) fn list_ephemerals(&self, prefix: &str) -> RequestAnswer {
        let prefix = if prefix.trim() == "/" { "" } else { prefix.trim() };
        self.node.store.applied(|applied| {
            let keys = applied.owned_by(self.attached.session);
            let paths = keys.iter().filter_map(|key| ZnodePath::from_key(key));
            let paths: Vec<_> = paths.filter(|path| path.as_str().starts_with(prefix)).collect();
            let mut body = JuteWriter::default();
            body.strings(paths.iter().map(ZnodePath::as_str));
            RequestAnswer::new(applied.revision(), Ok(body.into_bytes()))
        })
    }
}

impl ZnodeReader<'_> {
    fn find(&self, applied: &dyn AppliedZnodes, read: &AllowedRead<'_>) -> ReadFinding {
        let path = read.path.clone();
        let result = self.look(applied, read.request, &path);
        let watch = match (read.request, &result) {
            // A node that is missing can be watched by this one alone.
            (ReadOperation::Exists { is_watched: true, .. }, Ok(_) | Err(ErrorCode::NoNode))
            | (ReadOperation::GetData { is_watched: true, .. }, Ok(_)) => Some((WatchClass::Data, path)),
            (ReadOperation::GetChildren { is_watched: true, .. }, Ok(_)) => Some((WatchClass::Children, path)),
            _ => None,
        };
        ReadFinding { result, watch }
    }

    /// A node that must be there, and the right to see it.
    fn node(&self, applied: &dyn AppliedZnodes, path: &ZnodePath, rights: i32) -> Result<Znode, ErrorCode> {
        let node = look_up(applied, path).ok_or(ErrorCode::NoNode)?;
        self.0.check(&node.value, rights)?;
        Ok(node)
    }

    fn look(
        &self,
        applied: &dyn AppliedZnodes,
        request: &ReadOperation,
        path: &ZnodePath,
    ) -> Result<Vec<u8>, ErrorCode> {
        let revision = applied.revision();
        let mut body = JuteWriter::default();

        match request {
            ReadOperation::Exists { .. } => {
                // As in ZooKeeper 3.8, no right is needed to see that a node is there.
                look_up_stat(applied, path).ok_or(ErrorCode::NoNode)?.write(&mut body);
            }
            ReadOperation::GetData { .. } => {
                let node = self.node(applied, path, permissions::READ)?;
                body.buffer(node.value.data.as_deref());
                node.stat(revision).write(&mut body);
            }
            ReadOperation::GetAcl { .. } => {
                let node = self.node(applied, path, permissions::READ | permissions::ADMIN)?;
                let mut acl = node.value.shown_acl();
                if self.0.check(&node.value, permissions::ADMIN).is_err() {
                    acl.iter_mut().for_each(hide_hash);
                }
                AclEntry::write_list(&acl, &mut body);
                node.stat(revision).write(&mut body);
            }
            ReadOperation::GetChildren { has_stat, .. } => {
                let node = self.node(applied, path, permissions::READ)?;
                let names = child_names(applied, path);
                body.strings(names.iter().map(String::as_str));
                if *has_stat {
                    node.stat(revision).write(&mut body);
                }
            }
            ReadOperation::CountDescendants { .. } => {
                self.node(applied, path, permissions::READ)?;
                body.count(count_descendants(applied, path));
            }
        }
        Ok(body.into_bytes())
    }
}

/// The path of a read. An empty one means the root for these two, as in ZooKeeper.
fn parse(request: &ReadOperation) -> Result<ZnodePath, ErrorCode> {
    match request {
        ReadOperation::Exists { path, .. } | ReadOperation::GetData { path, .. } if path.is_empty() => {
            Ok(ZnodePath::root())
        }
        ReadOperation::Exists { path, .. }
        | ReadOperation::GetData { path, .. }
        | ReadOperation::GetAcl { path }
        | ReadOperation::GetChildren { path, .. }
        | ReadOperation::CountDescendants { path } => ZnodePath::parse(path),
    }
}

/// The names of the children of a node.
fn child_names(applied: &dyn AppliedZnodes, path: &ZnodePath) -> Vec<String> {
    let (from, to) = path.child_keys();
    let mut names: Vec<String> = system_names(path).map(str::to_owned).collect();
    applied.keys(&from, &to, &mut |key| {
        names.push(String::from_utf8_lossy(&key[from.len()..]).into_owned());
        true
    });
    names
}

/// The children of a node that are always there.
fn system_names(path: &ZnodePath) -> impl Iterator<Item = &'static str> {
    let names: &[&str] = match path.as_str() {
        "/" => &["zookeeper"],
        "/zookeeper" => &["config", "quota"],
        _ => &[],
    };
    names.iter().copied()
}

fn count_descendants(applied: &dyn AppliedZnodes, path: &ZnodePath) -> usize {
    // The nodes below the root that always exist: `/zookeeper` and its two children.
    let mut count = if path.is_root() { 3 } else { system_names(path).count() };
    for (from, to) in [path.child_keys(), path.deeper_keys()] {
        applied.keys(&from, &to, &mut |_| {
            count += 1;
            true
        });
    }
    count
}

/// Who may not change a list sees its users without the hashes of their passwords.
fn hide_hash(entry: &mut AclEntry) {
    if entry.scheme == "digest"
        && let Some((user, _)) = entry.id.split_once(':')
    {
        entry.id = format!("{user}:x");
    }
}

impl ReadOperation {
    fn is_watched(&self) -> bool {
        match self {
            Self::Exists { is_watched, .. }
            | Self::GetData { is_watched, .. }
            | Self::GetChildren { is_watched, .. } => *is_watched,
            Self::GetAcl { .. } | Self::CountDescendants { .. } => false,
        }
    }

    fn opcode(&self) -> Opcode {
        match self {
            Self::Exists { .. } => Opcode::EXISTS,
            Self::GetData { .. } => Opcode::GET_DATA,
            Self::GetAcl { .. } => Opcode::GET_ACL,
            Self::GetChildren { has_stat: true, .. } => Opcode::GET_CHILDREN_WITH_STAT,
            Self::GetChildren { has_stat: false, .. } => Opcode::GET_CHILDREN,
            Self::CountDescendants { .. } => Opcode::COUNT_DESCENDANTS,
        }
    }
}
