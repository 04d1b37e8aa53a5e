//! Who watches what.
//!
//! **No client takes all**: the watches of one address may have half of the bytes that those of other addresses leave free, and those of
//! one connection half of what the others of its address leave of that. So there is room for one more client, always.
//!
//! **What a connection has got stays its own**: a watch of one shot that has fired is set again by the next read, and must find its room,
//! whoever has come meanwhile. So what counts is the most that a connection has had. It counts less once the client removes watches.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
};

use lockkeeper_planted::NodeLimit;

use super::above::{PathAbove, PathHasher};
use crate::{tree::ZnodePath, wire::WatcherKind};

/// Approximate bytes of memory of a watch without its path: a million watches, each of a different path, took 411 MiB.
const WATCH_BYTES: usize = 400;
/// Number of watches that are removed at once: nothing is told and nothing is read with a watch meanwhile.
pub(super) const REMOVED_AT_ONCE: usize = 512;
/// Room of a map that is never given back, in entries.
const ROOM_KEPT: usize = 1 << 10;

/// A connection of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WatcherId(pub(crate) u64);

/// How long a watch lives, and what it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WatchClass {
    /// Watches a node and its data. It ends when it fires.
    Data,
    /// Watches the children of a node. It ends when it fires.
    Children,
    /// Watches a node and its children until it is removed.
    Persistent,
    /// Watches a node and all nodes below it until it is removed.
    Recursive,
}

/// What watches may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchLimits {
    /// Watches of one connection.
    pub(crate) per_connection: usize,
    /// Bytes of all watches.
    pub(crate) bytes: usize,
}

/// Why a watch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchLimitReached {
    /// The connection has as many as one may have, at whichever node.
    OfConnection,
    /// The connection's share of this node's room is in use. Another node may have more.
    OfNode,
}

/// The states in which a watch was set, by their revisions: it is for later changes.
#[derive(Clone, Copy, Debug)]
struct WatchSpan {
    /// The first one. For a watch of one shot: the first one since it fired.
    first: u64,
    /// The last one.
    last: u64,
}

type Watchers = HashMap<Arc<str>, BTreeMap<WatcherId, WatchSpan>>;

/// The watches of one connection.
#[derive(Debug)]
struct ConnectionWatches {
    origin: IpAddr,
    /// What they take.
    bytes: usize,
    /// The most that they have taken.
    granted: usize,
    watches: HashSet<(WatchClass, Arc<str>)>,
}

/// The watches of all connections.
#[derive(Debug)]
pub(crate) struct WatchTable {
    limits: WatchLimits,
    /// What all connections were granted.
    granted: usize,
    /// The number of watches.
    watches: usize,
    /// The number of paths that are watched.
    paths: usize,
    data: Watchers,
    children: Watchers,
    persistent: Watchers,
    recursive: Watchers,
    /// The number of paths with recursive watches that have this hash.
    recursive_hashes: HashMap<u64, usize>,
    hasher: PathHasher,
    by_connection: HashMap<WatcherId, ConnectionWatches>,
    /// Connections that have ended, and whose watches are removed one part after the other.
    leaving: VecDeque<WatcherId>,
    /// The number of connections that have some.
    watching: usize,
    /// What the connections of each address were granted.
    by_origin: HashMap<IpAddr, usize>,
}

impl WatchTable {
    pub(super) fn new(limits: WatchLimits, hasher: PathHasher) -> Self {
        Self {
            limits,
            granted: 0,
            watches: 0,
            paths: 0,
            data: HashMap::new(),
            children: HashMap::new(),
            persistent: HashMap::new(),
            recursive: HashMap::new(),
            recursive_hashes: HashMap::new(),
            hasher,

            by_connection: HashMap::new(),
            leaving: VecDeque::new(),
            watching: 0,
            by_origin: HashMap::new(),
        }
    }

    /// Adds a connection from this address.
    pub(super) fn register(&mut self, connection: WatcherId, origin: IpAddr) {
        let own = ConnectionWatches {
            origin: lockkeeper_accept::origin(origin),
            bytes: 0,
            granted: 0,
            watches: HashSet::new(),
        };
        self.by_connection.insert(connection, own);
    }

    fn watchers(&mut self, class: WatchClass) -> &mut Watchers {
        match class {
            WatchClass::Data => &mut self.data,
            WatchClass::Children => &mut self.children,
            WatchClass::Persistent => &mut self.persistent,
            WatchClass::Recursive => &mut self.recursive,
        }
    }

    fn is_watched(&self, path: &str) -> bool {
        [&self.data, &self.children, &self.persistent, &self.recursive]
            .iter()
            .any(|watchers| watchers.contains_key(path))
    }

    /// Sets a watch for the changes after a revision. One that is set already is for those after both; of the two that stay, the later
    /// replaces the earlier.
    pub(crate) fn add(
        &mut self,
        connection: WatcherId,
        class: WatchClass,
        path: &ZnodePath,
        since: u64,
    ) -> Result<(), WatchLimitReached> {
        let replaced = match class {
            WatchClass::Persistent => self.take(connection, WatchClass::Recursive, path.as_str()),
            WatchClass::Recursive => self.take(connection, WatchClass::Persistent, path.as_str()),
            WatchClass::Data | WatchClass::Children => None,
        };

        let bytes = WATCH_BYTES + path.as_str().len();
        let own = self.by_connection.get(&connection).ok_or(WatchLimitReached::OfNode)?;
        if own.watches.contains(&(class, path.shared())) {
            let span = self.watchers(class).get_mut(path.as_str()).and_then(|watchers| watchers.get_mut(&connection));
            if let Some(span) = span {
                span.last = span.last.max(since);
            }
            return Ok(());
        }
        if replaced.is_none() {
            self.check_room(own, bytes)?;
        }

        self.paths += usize::from(!self.is_watched(path.as_str()));
        if class == WatchClass::Recursive && !self.recursive.contains_key(path.as_str()) {
            *self.recursive_hashes.entry(self.hasher.hash(path.as_str())).or_default() += 1;
        }
        self.count_added(connection, class, path, bytes);
        // The replaced watch may still have undelivered changes, so keep its start. Changes that only its old mode reports are lost.
        let first = replaced.map_or(since, |before| before.first);
        let span = WatchSpan { first, last: since };
        self.watchers(class).entry(path.shared()).or_default().insert(connection, span);
        Ok(())
    }

    /// Fails if a connection may not have a further watch that takes this number of bytes.
    fn check_room(&self, own: &ConnectionWatches, bytes: usize) -> Result<(), WatchLimitReached> {
        if own.watches.len() >= self.limits.per_connection {
            NodeLimit::ZookeeperWatches.note();
            return Err(WatchLimitReached::OfConnection);
        }

        let of_origin = self.by_origin.get(&own.origin).copied().unwrap_or_default();
        let of_others = self.granted - of_origin;
        let share_of_origin = self.limits.bytes.saturating_sub(of_others) / 2;
        let share = share_of_origin.saturating_sub(of_origin - own.granted) / 2;
        if own.bytes + bytes > share.max(own.granted) {
            NodeLimit::ZookeeperWatchesBytes.note();
            return Err(WatchLimitReached::OfNode);
        }
        Ok(())
    }

    fn count_added(&mut self, connection: WatcherId, class: WatchClass, path: &ZnodePath, bytes: usize) {
        self.watches += 1;
        let Some(own) = self.by_connection.get_mut(&connection) else { return };
        self.watching += usize::from(own.watches.is_empty());

        own.bytes += bytes;
        own.watches.insert((class, path.shared()));
        let more = own.bytes.saturating_sub(own.granted);
        own.granted += more;
        self.granted += more;
        *self.by_origin.entry(own.origin).or_default() += more;
    }

    fn count_removed(&mut self, connection: WatcherId, class: WatchClass, path: &str) {
        self.watches -= 1;
        let Some(own) = self.by_connection.get_mut(&connection) else { return };
        own.bytes -= WATCH_BYTES + path.len();
        own.watches.remove(&(class, Arc::from(path)));
        self.watching -= usize::from(own.watches.is_empty());
    }

    /// Takes back the bytes that a connection was granted and its watches do not use.
    fn take_back(&mut self, connection: WatcherId) {
        let Some(own) = self.by_connection.get_mut(&connection) else { return };
        let unused = own.granted - own.bytes;
        own.granted = own.bytes;
        self.granted -= unused;

        let of_origin = self.by_origin.entry(own.origin).or_default();
        *of_origin -= unused;
        if *of_origin == 0 {
            self.by_origin.remove(&own.origin);
        }
    }

    /// Removes a watch. Returns whether it was there.
    fn remove(&mut self, connection: WatcherId, class: WatchClass, path: &str) -> bool {
        self.take(connection, class, path).is_some()
    }

    fn take(&mut self, connection: WatcherId, class: WatchClass, path: &str) -> Option<WatchSpan> {
        let watchers = self.watchers(class);
        let connections = watchers.get_mut(path)?;
        let span = connections.remove(&connection)?;
        if connections.is_empty() {
            watchers.remove(path);
            if class == WatchClass::Recursive {
                self.forget_recursive(path);
            }
        }

        self.paths -= usize::from(!self.is_watched(path));
        self.count_removed(connection, class, path);
        Some(span)
    }

    /// No recursive watch is left at this path.
    fn forget_recursive(&mut self, path: &str) {
        let hash = self.hasher.hash(path);
        let is_last = self.recursive_hashes.get_mut(&hash).is_none_or(|paths| {
            *paths -= 1;
            *paths == 0
        });
        if is_last {
            self.recursive_hashes.remove(&hash);
        }
    }

    fn classes(kind: WatcherKind) -> &'static [WatchClass] {
        match kind {
            WatcherKind::Children => &[WatchClass::Children, WatchClass::Persistent],
            WatcherKind::Data => &[WatchClass::Data, WatchClass::Persistent, WatchClass::Recursive],
            WatcherKind::Any => {
                &[WatchClass::Data, WatchClass::Children, WatchClass::Persistent, WatchClass::Recursive]
            }
        }
    }

    /// Whether a connection has a watch of this kind.
    pub(crate) fn has(&self, connection: WatcherId, kind: WatcherKind, path: &ZnodePath) -> bool {
        let own = self.by_connection.get(&connection);
        let has = |class: &WatchClass| own.is_some_and(|own| own.watches.contains(&(*class, path.shared())));
        Self::classes(kind).iter().any(has)
    }

    /// Removes the watches of this kind. Returns whether there were any.
    pub(crate) fn remove_kind(&mut self, connection: WatcherId, kind: WatcherKind, path: &ZnodePath) -> bool {
        let mut has_removed = false;
        for class in Self::classes(kind) {
            has_removed |= self.remove(connection, *class, path.as_str());
        }
        if has_removed {
            self.take_back(connection);
        }
        has_removed
    }

    /// Removes a connection that has ended, and a part of its watches; the rest by [`Self::forget_more`].
    pub(super) fn forget(&mut self, connection: WatcherId) {
        if self.forget_some(connection) {
            self.leaving.push_back(connection);
        }
    }

    /// Removes a part of the watches that connections have left. Returns whether there are more.
    pub(super) fn forget_more(&mut self) -> bool {
        if let Some(connection) = self.leaving.front().copied()
            && !self.forget_some(connection)
        {
            self.leaving.pop_front();
        }
        self.is_clearing()
    }

    /// Whether there are watches of connections that have ended: their room is about to be free.
    pub(crate) fn is_clearing(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Removes a part of the watches of a connection that has ended. Returns whether it has more.
    fn forget_some(&mut self, connection: WatcherId) -> bool {
        let own = self.by_connection.get(&connection).map(|own| &own.watches);
        let some: Vec<_> = own.into_iter().flatten().take(REMOVED_AT_ONCE).cloned().collect();
        for (class, path) in some {
            self.remove(connection, class, &path);
        }

        self.take_back(connection);
        if self.by_connection.get(&connection).is_some_and(|own| !own.watches.is_empty()) {
            return true;
        }
        self.by_connection.remove(&connection);
        self.shrink();
        false
    }

    /// Gives memory back that watches have left.
    fn shrink(&mut self) {
        // A map keeps the room of the most that it ever had.
        for watchers in [&mut self.data, &mut self.children, &mut self.persistent, &mut self.recursive] {
            if watchers.capacity() > ROOM_KEPT.max(8 * watchers.len()) {
                watchers.shrink_to(2 * watchers.len());
            }
        }

        let hashes = &mut self.recursive_hashes;
        if hashes.capacity() > ROOM_KEPT.max(8 * hashes.len()) {
            hashes.shrink_to(2 * hashes.len());
        }
    }

    /// Whether there are recursive watches, so that the ancestors of a change matter.
    pub(super) fn has_recursive(&self) -> bool {
        !self.recursive.is_empty()
    }

    /// The connections whose watches a change of a revision fires: those that the classes name at this path, and recursive ones above it.
    /// `above` are the ancestors of the path; it may be empty if there was no recursive watch when the revision was applied.
    /// The watches of one shot are gone then, but for those that were set again by a read which shows the change: the change may be told
    /// after that read, and its client sets aside the earlier watch at the event, and the later one at the reply.
    pub(super) fn fire(
        &mut self,
        classes: &[WatchClass],
        path: &ZnodePath,
        above: &[PathAbove<'_>],
        revision: u64,
    ) -> BTreeSet<WatcherId> {
        let mut fired = BTreeSet::new();
        for class in classes {
            let at_path = self.watchers(*class).get_mut(path.as_str());
            let mut spent = Vec::new();
            for (connection, span) in at_path.into_iter().flatten().filter(|(_, span)| span.first < revision) {
                fired.insert(*connection);
                match class {
                    WatchClass::Data | WatchClass::Children if span.last < revision => spent.push(*connection),
                    WatchClass::Data | WatchClass::Children => span.first = span.last,
                    WatchClass::Persistent | WatchClass::Recursive => {}
                }
            }
            for connection in spent {
                self.remove(connection, *class, path.as_str());
            }
        }

        if classes.contains(&WatchClass::Recursive) {
            for ancestor in above.iter().filter(|ancestor| self.recursive_hashes.contains_key(&ancestor.hash)) {
                let watchers = self.recursive.get(ancestor.path).into_iter().flatten();
                fired.extend(watchers.filter(|(_, span)| span.first < revision).map(|(id, _)| *id));
            }
        }
        fired
    }

    /// The number of watches, of watched paths, and of connections that watch. Anybody may ask for them, so nothing is looked through.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.watches, self.paths, self.watching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn new_table(limits: WatchLimits) -> WatchTable {
        WatchTable::new(limits, PathHasher::default())
    }

    #[test]
    fn recursive_watches_hear_of_what_is_below_them_until_they_are_removed() {
        let mut table = new_table(WatchLimits { per_connection: 10, bytes: usize::MAX });
        let path = |text: &str| ZnodePath::parse(text).expect("a path");
        let [root, seats, other] = [1, 2, 3].map(WatcherId);
        for id in [root, seats, other] {
            table.register(id, HERE);
        }
        for (id, watched) in [(root, "/"), (seats, "/seats"), (other, "/seats/a5"), (other, "/seat")] {
            table.add(id, WatchClass::Recursive, &path(watched), 1).expect("there is room");
        }

        let hasher = table.hasher.clone();
        let fired = |table: &mut WatchTable, text: &str| {
            let node = path(text);
            table.fire(&[WatchClass::Recursive], &node, &hasher.above(&node), 2).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(fired(&mut table, "/seats/a5/0001"), [root, seats, other]);
        assert_eq!(fired(&mut table, "/seats"), [root, seats]);
        assert_eq!(fired(&mut table, "/seat/x"), [root, other]);
        assert_eq!(fired(&mut table, "/"), [root]);
        table.remove_kind(seats, WatcherKind::Any, &path("/seats"));
        assert_eq!(fired(&mut table, "/seats/b"), [root]);
        table.forget(root);
        table.forget(other);
        assert!(table.recursive_hashes.is_empty());
    }

    #[test]
    fn a_connection_with_many_watches_leaves_no_room_behind() {
        let mut table = new_table(WatchLimits { per_connection: 100_000, bytes: usize::MAX });
        let path = |number: usize| ZnodePath::parse(&format!("/w{number}")).expect("a path");
        let stays = WatcherId(1);
        table.register(stays, HERE);
        table.add(stays, WatchClass::Data, &path(0), 1).expect("there is room");
        let goes = WatcherId(2);
        table.register(goes, HERE);
        for number in 0..20_000 {
            table.add(goes, WatchClass::Data, &path(number), 1).expect("there is room");
        }

        table.forget(goes);
        while table.forget_more() {}
        assert!(table.data.capacity() <= ROOM_KEPT, "{}", table.data.capacity());
        assert_eq!(table.counts(), (1, 1, 1));
        assert_eq!(table.fire(&[WatchClass::Data], &path(0), &[], 2), BTreeSet::from([stays]));
        assert_eq!((table.granted, table.by_origin.len()), (WATCH_BYTES + "/w0".len(), 1), "it may be set again");
        table.forget(stays);
        assert_eq!((table.granted, table.by_origin.len()), (0, 0));
    }

    /// Caches on one host: the room of those that came first does not depend on who comes later.
    #[test]
    fn a_watch_that_has_fired_finds_its_room_again() {
        let path = |number: usize| ZnodePath::parse(&format!("/w{number:03}")).expect("a path");
        let each = WATCH_BYTES + "/w000".len();
        let mut table = new_table(WatchLimits { per_connection: 100_000, bytes: 256 * each });
        let first = WatcherId(1);
        table.register(first, HERE);
        for number in 0..60 {
            table.add(first, WatchClass::Data, &path(number), 1).expect("there is room");
        }

        // Others take what there is for them, also what is free while the watches of the first have fired.
        for number in 0..60 {
            assert_eq!(table.fire(&[WatchClass::Data], &path(number), &[], 2).len(), 1);
        }
        for id in 2..20 {
            let other = WatcherId(id);
            table.register(other, HERE);
            while table.add(other, WatchClass::Data, &path(table.counts().0 % 1000), 2).is_ok() {
                table.add(other, WatchClass::Children, &path(table.counts().0 % 1000), 2).ok();
                assert!(table.granted <= table.limits.bytes);
            }
        }
        for number in 0..60 {
            table.add(first, WatchClass::Data, &path(number), 2).expect("it had this room before");
        }
        assert!(table.granted <= table.limits.bytes);
        table.add(first, WatchClass::Data, &path(60), 2).expect_err("it never had more");

        // What it removes is free for others.
        assert!(table.remove_kind(first, WatcherKind::Any, &path(0)));
        table.add(first, WatchClass::Data, &path(60), 2).expect_err("it has less now");
    }

    #[test]
    fn watches_paths_and_connections_are_counted_as_they_come_and_go() {
        let mut table = new_table(WatchLimits { per_connection: 2, bytes: usize::MAX });
        let path = |text: &str| ZnodePath::parse(text).expect("a path");
        let first = WatcherId(1);
        let second = WatcherId(2);
        table.register(first, HERE);
        table.register(second, HERE);

        table.add(first, WatchClass::Data, &path("/a"), 1).expect("there is room");
        table.add(first, WatchClass::Persistent, &path("/a"), 1).expect("there is room");
        table.add(first, WatchClass::Data, &path("/a"), 2).expect("it is set already");
        table.add(first, WatchClass::Data, &path("/b"), 1).expect_err("a third one");
        table.add(second, WatchClass::Children, &path("/b"), 1).expect("there is room");
        assert_eq!(table.counts(), (3, 2, 2));

        table.add(first, WatchClass::Recursive, &path("/a"), 1).expect("it replaces one");
        assert_eq!(table.counts(), (3, 2, 2));
        table.fire(&[WatchClass::Data], &path("/a"), &[], 3);
        assert_eq!(table.counts(), (2, 2, 2));
        assert!(table.remove_kind(second, WatcherKind::Any, &path("/b")));
        assert_eq!(table.counts(), (1, 1, 1));
        table.forget(first);
        table.forget(second);
        assert_eq!(table.counts(), (0, 0, 0));
    }

    #[test]
    fn a_watch_that_is_set_again_before_its_change_is_told_fires_for_the_next_one_too() {
        let mut table = new_table(WatchLimits { per_connection: 10, bytes: usize::MAX });
        let path = ZnodePath::parse("/a").expect("a path");
        let one = WatcherId(1);
        table.register(one, HERE);
        let set = |table: &mut WatchTable, since: u64| {
            for class in [WatchClass::Data, WatchClass::Children] {
                table.add(one, class, &path, since).expect("there is room");
            }
        };
        let fired = |table: &mut WatchTable, revision: u64| {
            [WatchClass::Data, WatchClass::Children].map(|class| !table.fire(&[class], &path, &[], revision).is_empty())
        };

        // The read that sets it again shows the changes up to 5, none of which was told.
        set(&mut table, 1);
        set(&mut table, 5);
        let told = [1, 4, 5, 6, 7].map(|revision| fired(&mut table, revision));
        assert_eq!(told, [[false; 2], [true; 2], [false; 2], [true; 2], [false; 2]]);
        assert_eq!(table.counts(), (0, 0, 0));

        // Without a change between the two reads there is one watch.
        set(&mut table, 7);
        set(&mut table, 8);
        let told = [8, 9, 10].map(|revision| fired(&mut table, revision));
        assert_eq!(told, [[true; 2], [true; 2], [false; 2]]);
        set(&mut table, 10);
        set(&mut table, 11);
        assert_eq!([12, 13].map(|revision| fired(&mut table, revision)), [[true; 2], [false; 2]]);
    }

    #[test]
    fn a_watch_that_takes_the_place_of_another_one_hears_of_what_that_one_was_to_hear() {
        let mut table = new_table(WatchLimits { per_connection: 1, bytes: usize::MAX });
        let path = ZnodePath::parse("/a").expect("a path");
        let one = WatcherId(1);
        table.register(one, HERE);

        // The change of revision 5 is applied, and told after the mode was replaced.
        table.add(one, WatchClass::Persistent, &path, 1).expect("there is room");
        table.add(one, WatchClass::Recursive, &path, 5).expect("it needs no room");
        let mut fired =
            |revision: u64| table.fire(&[WatchClass::Persistent, WatchClass::Recursive], &path, &[], revision);
        assert_eq!([1, 5, 6].map(|revision| fired(revision).len()), [0, 1, 1]);
    }
}
