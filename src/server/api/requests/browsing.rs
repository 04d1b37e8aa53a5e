//! What the console asks for: levels of the tree of names, searches, one lock, one session.

use lockkeeper_machine::{GrantView, LockName, LockView, Page, SessionId, SessionView, Token, WaitView};

/// Shows one level of the tree of names, in which `/` separates folders: at any node, from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BrowseLocks {
    /// The folder, with its `/`. Empty means the root.
    pub(crate) prefix: String,
    /// Shows only children after this one.
    pub(crate) after: Option<After>,
    /// Maximum number of children.
    pub(crate) size: usize,
}

/// The last child of the previous page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// A lock.
    Lock(LockName),
    /// A folder, by its prefix.
    Folder(String),
}

/// A page of a level, in the order of the names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) children: Vec<Child>,
    /// Whether there are more children, after the last one.
    pub(crate) more: bool,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

/// A child of a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Child {
    /// A lock with its first holder and its first waiter.
    Lock(LockView),
    Folder(Folder),
}

/// A folder, and what was counted in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Folder {
    /// The folder's prefix, with the `/` at its end.
    pub(crate) prefix: String,
    /// Number of its locks, including those of its folders.
    pub(crate) locks: usize,
    /// Number of its locks that are held.
    pub(crate) held: usize,
    /// Number of acquires that wait for its locks.
    pub(crate) waiters: u64,
    /// Whether it has more locks, which were not counted.
    pub(crate) more: bool,
}

/// Finds names that contain a text, in upper or lower case, at any node in its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SearchLocks {
    /// Finds only names that begin with this.
    pub(crate) prefix: String,
    pub(crate) text: String,
    /// Finds only names above this one, which is [`LocksFound::more_after`] of the previous answer.
    pub(crate) after: Option<LockName>,
    /// Maximum number of locks.
    pub(crate) size: usize,
}

/// Locks that were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LocksFound {
    /// The locks with their first holders and first waiters.
    pub(crate) locks: Vec<LockView>,
    /// Number of names that were looked at.
    pub(crate) looked: usize,
    /// The name after which to continue, if there are more.
    pub(crate) more_after: Option<LockName>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}

/// Shows a lock with the sessions of its holders, at any node from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowLock {
    pub(crate) name: LockName,
    /// The page of holders and waiters.
    pub(crate) page: Page,
}

/// A lock as this node knows it. A lock that does not exist is shown as free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LockKnown {
    pub(crate) lock: LockView,
    /// The session of each holder that is shown, if it is alive.
    pub(crate) sessions: Vec<Option<SessionView>>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}

/// Shows a session and what it holds, at any node from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowSession {
    pub(crate) session: SessionId,
    /// Shows only grants above this one.
    pub(crate) after: Token,
}

/// A session that is alive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionShown {
    pub(crate) view: SessionView,
    pub(crate) grants: Vec<GrantView>,
    /// Whether it holds more grants, above the last one.
    pub(crate) more: bool,
    /// Its first waits.
    pub(crate) waits: Vec<WaitView>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}
