//! Who watches what.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use crate::{tree::ZnodePath, wire::WatcherKind};

/// Bytes of memory of a watch beside its path, about: a million watches, each of a path of its own, took 411 MiB.
const WATCH_BYTES: usize = 400;
/// Room of a map that is never given back, in entries.
const ROOM_KEPT: usize = 1 << 10;

/// A connection of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WatcherId(pub(crate) u64);

/// How long a watch lives, and what it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WatchClass {
    /// Of a node and its data, until it fires.
    Data,
    /// Of the children of a node, until it fires.
    Children,
    /// Of a node and its children, until it is removed.
    Persistent,
    /// Of a node and all below, until it is removed.
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

/// A watch is refused, since there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchLimitReached;

type Watchers = HashMap<Arc<str>, BTreeMap<WatcherId, u64>>;

/// The watches of all connections. Each has the revision of the state in which it was set: it is for later changes.
#[derive(Debug)]
pub(crate) struct WatchTable {
    limits: WatchLimits,
    bytes: usize,
    data: Watchers,
    children: Watchers,
    persistent: Watchers,
    recursive: Watchers,
    by_connection: HashMap<WatcherId, HashSet<(WatchClass, Arc<str>)>>,
}

impl WatchTable {
    pub(super) fn new(limits: WatchLimits) -> Self {
        Self {
            limits,
            bytes: 0,
            data: HashMap::new(),
            children: HashMap::new(),
            persistent: HashMap::new(),
            recursive: HashMap::new(),
            by_connection: HashMap::new(),
        }
    }

    fn watchers(&mut self, class: WatchClass) -> &mut Watchers {
        match class {
            WatchClass::Data => &mut self.data,
            WatchClass::Children => &mut self.children,
            WatchClass::Persistent => &mut self.persistent,
            WatchClass::Recursive => &mut self.recursive,
        }
    }

    /// Sets a watch for the changes after a revision. One that is set already stays as it is; of the two that stay, the later replaces the
    /// earlier.
    pub(crate) fn add(
        &mut self,
        connection: WatcherId,
        class: WatchClass,
        path: &ZnodePath,
        since: u64,
    ) -> Result<(), WatchLimitReached> {
        match class {
            WatchClass::Persistent => drop(self.remove(connection, WatchClass::Recursive, path.as_str())),
            WatchClass::Recursive => drop(self.remove(connection, WatchClass::Persistent, path.as_str())),
            WatchClass::Data | WatchClass::Children => {}
        }

        let bytes = WATCH_BYTES + path.as_str().len();
        let own = self.by_connection.entry(connection).or_default();
        let entry = (class, path.shared());
        if own.contains(&entry) {
            return Ok(());
        }
        if own.len() >= self.limits.per_connection || self.bytes + bytes > self.limits.bytes {
            return Err(WatchLimitReached);
        }

        own.insert(entry);
        self.bytes += bytes;
        self.watchers(class).entry(path.shared()).or_default().insert(connection, since);
        Ok(())
    }

    /// Removes a watch. Returns whether it was there.
    fn remove(&mut self, connection: WatcherId, class: WatchClass, path: &str) -> bool {
        let watchers = self.watchers(class);
        let Some(connections) = watchers.get_mut(path) else { return false };
        if connections.remove(&connection).is_none() {
            return false;
        }
        if connections.is_empty() {
            watchers.remove(path);
        }

        self.bytes -= WATCH_BYTES + path.len();
        if let Some(own) = self.by_connection.get_mut(&connection) {
            own.remove(&(class, Arc::from(path)));
        }
        true
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
        own.is_some_and(|own| Self::classes(kind).iter().any(|class| own.contains(&(*class, path.shared()))))
    }

    /// Removes the watches of this kind. Returns whether there were any.
    pub(crate) fn remove_kind(&mut self, connection: WatcherId, kind: WatcherKind, path: &ZnodePath) -> bool {
        let mut has_removed = false;
        for class in Self::classes(kind) {
            has_removed |= self.remove(connection, *class, path.as_str());
        }
        has_removed
    }

    /// Removes all watches of a connection.
    pub(super) fn forget(&mut self, connection: WatcherId) {
        for (class, path) in self.by_connection.remove(&connection).unwrap_or_default() {
            self.remove(connection, class, &path);
        }

        // A map keeps the room of the most that it ever had.
        for watchers in [&mut self.data, &mut self.children, &mut self.persistent, &mut self.recursive] {
            if watchers.capacity() > ROOM_KEPT.max(8 * watchers.len()) {
                watchers.shrink_to(2 * watchers.len());
            }
        }
    }

    /// The connections whose watches a change of a revision fires: those that the classes name at this path, and recursive ones above it.
    /// The watches of one shot are gone then.
    pub(super) fn fire(&mut self, classes: &[WatchClass], path: &ZnodePath, revision: u64) -> BTreeSet<WatcherId> {
        let mut fired = BTreeSet::new();
        for class in classes {
            let at_path = self.watchers(*class).get(path.as_str());
            let is_due = |(_, since): &(&WatcherId, &u64)| **since < revision;
            let due: Vec<_> = at_path.into_iter().flatten().filter(is_due).map(|(id, _)| *id).collect();
            if matches!(class, WatchClass::Data | WatchClass::Children) {
                for connection in &due {
                    self.remove(*connection, *class, path.as_str());
                }
            }
            fired.extend(due);
        }

        if classes.contains(&WatchClass::Recursive) && !self.recursive.is_empty() {
            let mut above = path.parent();
            while let Some(at) = above {
                let watchers = self.recursive.get(at.as_str()).into_iter().flatten();
                fired.extend(watchers.filter(|(_, since)| **since < revision).map(|(id, _)| *id));
                above = at.parent();
            }
        }
        fired
    }

    /// The number of watches, of watched paths, and of connections that watch.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let watches = self.by_connection.values().map(HashSet::len).sum();
        let classes = [&self.data, &self.children, &self.persistent, &self.recursive];
        let paths: HashSet<&str> = classes.iter().flat_map(|watchers| watchers.keys().map(|path| &**path)).collect();
        let connections = self.by_connection.values().filter(|own| !own.is_empty()).count();
        (watches, paths.len(), connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_with_many_watches_leaves_no_room_behind() {
        let mut table = WatchTable::new(WatchLimits { per_connection: 100_000, bytes: usize::MAX });
        let path = |number: usize| ZnodePath::parse(&format!("/w{number}")).expect("a path");
        let stays = WatcherId(1);
        table.add(stays, WatchClass::Data, &path(0), 1).expect("there is room");
        let goes = WatcherId(2);
        for number in 0..20_000 {
            table.add(goes, WatchClass::Data, &path(number), 1).expect("there is room");
        }

        table.forget(goes);
        assert!(table.data.capacity() <= ROOM_KEPT, "{}", table.data.capacity());
        assert_eq!(table.counts(), (1, 1, 1));
        assert_eq!(table.fire(&[WatchClass::Data], &path(0), 2), BTreeSet::from([stays]));
        assert_eq!(table.bytes, 0);
    }
}
