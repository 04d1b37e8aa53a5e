//! Watches that a client sets without a read, sets again after it was away, looks for, or removes.

use std::collections::HashSet;

use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{ClientSession, RequestAnswer};
use crate::{
    AppliedZnodes, ZookeeperStore,
    tree::{ZnodePath, look_up_stat},
    watches::{MissedChange, WatchClass, WatchHub, WatchLimitReached, WatchTable},
    wire::{ErrorCode, JuteWriter, WatchPaths, WatcherKind},
};
use lockkeeper_planted::Planted;

/// Maximum number of paths that are looked at while the delivery of changes is stopped.
const PATHS_AT_ONCE: usize = 512;

/// A watch that is set again.
struct ReturningWatch {
    path: ZnodePath,
    reason: WatchReason,
    /// Whether its client may read the node.
    is_allowed: bool,
}

/// Why watches are not set again.
enum NotSetAgain {
    /// The request is refused, and the client may go on.
    Refused(ErrorCode),
    /// This node has no room for them.
    NoRoom,
}

/// The reason why a watch was set. It decides which changes its client may have missed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum WatchReason {
    Data,
    Exist,
    Child,
    /// These watches do not report missed changes.
    Persistent,
    Recursive,
}

impl WatchReason {
    /// A change that a client of this kind of watch may expect, whatever the node's state is.
    fn any_change(self) -> MissedChange {
        match self {
            Self::Exist => MissedChange::Created,
            Self::Child => MissedChange::Children,
            Self::Data | Self::Persistent | Self::Recursive => MissedChange::Data,
        }
    }
}

impl<S: ZookeeperStore> ClientSession<S> {
    /// Sets watches again. Those whose change was missed fire at once, and before the reply.
    ///
    /// Clients do not look at the error of the reply: they count on all of their watches from then on. So no watch is left out silently.
    /// One for a node that its client may not read fires, and the client learns by its next read that it may not. Where this node has no
    /// room for all, the connection ends, and the client comes back, perhaps at another node.
    pub(super) async fn set_watches(&self, relative: i64, paths: &WatchPaths) -> RequestAnswer {
        let relative = u64::try_from(relative).unwrap_or_default();
        let lists = [
            (&paths.data, WatchReason::Data),
            (&paths.exist, WatchReason::Exist),
            (&paths.child, WatchReason::Child),
            (&paths.persistent, WatchReason::Persistent),
            (&paths.recursive, WatchReason::Recursive),
        ];
        let mut asked = Vec::new();
        for (paths, reason) in lists {
            asked.extend(paths.iter().map(|path| (path, reason)));
        }

        let deadline = Instant::now() + self.request_timeout;
        let mut seen = HashSet::new();
        let mut revision = self.node.hub.told();
        for some in asked.chunks(PATHS_AT_ONCE) {
            // A path that stands twice is one watch. A frame has room for a node's path a hundred thousand times.
            let some: Vec<_> = some.iter().copied().filter(|watch| seen.insert(*watch)).collect();
            match self.set_some(relative, &some, deadline, &mut revision).await {
                // A hundred thousand paths take a while, and others have changes to be told.
                Ok(()) => yield_now().await,
                Err(NotSetAgain::Refused(code)) => return RequestAnswer::new(revision, Err(code)),
                Err(NotSetAgain::NoRoom) => {
                    return RequestAnswer::new(revision, Err(ErrorCode::QuotaExceeded)).last();
                }
            }
        }
        RequestAnswer::new(revision, Ok(Vec::new()))
    }

    /// Sets some of the watches again. `revision` becomes that of the state that shows what they have missed, also if not all can be set:
    /// the reply must not overtake the events of those before.
    async fn set_some(
        &self,
        relative: u64,
        paths: &[(&String, WatchReason)],
        deadline: Instant,
        revision: &mut u64,
    ) -> Result<(), NotSetAgain> {
        // The policy is asked before: while a state is shown, nothing else is asked of the store.
        let returning = paths.iter().map(|(path, reason)| {
            let path = ZnodePath::parse(path)?;
            let is_allowed = self.may_read(&path).is_ok();
            Ok(ReturningWatch { path, reason: *reason, is_allowed })
        });
        let returning: Vec<_> = returning.collect::<Result<_, _>>().map_err(NotSetAgain::Refused)?;

        let mut rest = returning.as_slice();
        loop {
            let set = self.set_now(relative, rest, revision)?;
            rest = rest.get(set..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            // The connection that the client had before ended a moment ago, and the room of its watches comes back.
            if timeout_at(deadline, self.node.hub.cleared()).await.is_err() {
                return Err(NotSetAgain::NoRoom);
            }
        }
    }

    /// Sets watches again. Returns how many: not all if there is no room now, and watches of ended connections are about to leave some.
    fn set_now(&self, relative: u64, returning: &[ReturningWatch], revision: &mut u64) -> Result<usize, NotSetAgain> {
        self.node.hub.with_watches(|watches| {
            self.node.store.applied(|applied| {
                *revision = applied.revision();
                for (set, watch) in returning.iter().enumerate() {
                    match self.set_again(watches, applied, relative, watch) {
                        Ok(()) => {}
                        Err(WatchLimitReached::OfNode) if watches.is_clearing() => return Ok(set),
                        Err(WatchLimitReached::OfNode) => return Err(NotSetAgain::NoRoom),
                        Err(WatchLimitReached::OfConnection) => {
                            return Err(NotSetAgain::Refused(ErrorCode::QuotaExceeded));
                        }
                    }
                }
                Ok(returning.len())
            })
        })
    }

    fn set_again(
        &self,
        watches: &mut WatchTable,
        applied: &dyn AppliedZnodes,
        relative: u64,
        watch: &ReturningWatch,
    ) -> Result<(), WatchLimitReached> {
        let ReturningWatch { path, reason, is_allowed } = watch;
        let revision = applied.revision();
        if !is_allowed {
            if Planted::WatchLeftOut.is_on() {
                return Ok(());
            }
            WatchHub::tell_missed(&self.outbox, revision, reason.any_change(), path);
            return Ok(());
        }

        let stat = look_up_stat(applied, path);
        let (class, missed) = match (reason, stat) {
            (WatchReason::Data, Some(stat)) => {
                (WatchClass::Data, (stat.modified > relative).then_some(MissedChange::Data))
            }
            (WatchReason::Child, Some(stat)) => {
                (WatchClass::Children, (stat.children_modified > relative).then_some(MissedChange::Children))
            }
            (WatchReason::Data, None) => (WatchClass::Data, Some(MissedChange::Deleted)),
            (WatchReason::Child, None) => (WatchClass::Children, Some(MissedChange::Deleted)),
            (WatchReason::Exist, stat) => (WatchClass::Data, stat.map(|_| MissedChange::Created)),
            (WatchReason::Persistent, _) => (WatchClass::Persistent, None),
            (WatchReason::Recursive, _) => (WatchClass::Recursive, None),
        };

        if let Some(missed) = missed {
            WatchHub::tell_missed(&self.outbox, revision, missed, path);
            return Ok(());
        }
        watches.add(self.id, class, path, revision)
    }

    /// Sets a watch that stays.
    pub(super) fn add_watch(&self, path: &str, is_recursive: bool) -> RequestAnswer {
        let class = if is_recursive { WatchClass::Recursive } else { WatchClass::Persistent };
        let mut revision = self.node.hub.told();
        let set = ZnodePath::parse(path).and_then(|path| {
            self.may_read(&path)?;
            self.node.hub.with_watches(|watches| {
                revision = self.node.store.applied(|applied| applied.revision());
                watches.add(self.id, class, &path, revision).map_err(|_| ErrorCode::QuotaExceeded)
            })
        });

        let mut body = JuteWriter::default();
        // The body also contains an error code, here 0 for no error.
        body.int(0);
        RequestAnswer::new(revision, set.map(|()| body.into_bytes()))
    }

    /// Says whether there is a watch.
    pub(super) fn check_watches(&self, path: &str, kind: WatcherKind) -> RequestAnswer {
        self.find_watches(path, |watches, path| watches.has(self.id, kind, path))
    }

    /// Removes watches.
    pub(super) fn remove_watches(&self, path: &str, kind: WatcherKind) -> RequestAnswer {
        self.find_watches(path, |watches, path| watches.remove_kind(self.id, kind, path))
    }

    fn find_watches(&self, path: &str, find: impl FnOnce(&mut WatchTable, &ZnodePath) -> bool) -> RequestAnswer {
        let found = ZnodePath::parse(path).and_then(|path| {
            let has_found = self.node.hub.with_watches(|watches| find(watches, &path));
            if has_found { Ok(Vec::new()) } else { Err(ErrorCode::NoWatcher) }
        });
        // The events of watches that have fired before come before the answer.
        RequestAnswer::new(self.node.hub.fired(), found)
    }
}
