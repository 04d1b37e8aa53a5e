//! What people look at in a browser: one level of the tree of names, names that contain a text, and what a session holds.
//!
//! Any node answers from its own table, as a stale read does. So it still shows what it knew when its cluster has no leader, and the leader
//! pays nothing for people who watch. The number of names that a look visits is bounded ([`LOOK_MAX`]), whatever the size of the table.
//! Looks that visit many take turns ([`super::long_reads`]).

use lockkeeper_machine::{LockName, Machine, NAME_BYTES_MAX, Page, Ticket, Token};

use crate::{
    access::{Access, guard::Guarded},
    api::{Caller, Error, requests::*},
};

/// Maximum number of names that one look visits. It takes some milliseconds.
const LOOK_MAX: usize = 20_000;
/// Maximum number of locks of one folder that are counted. The folder may have more.
const COUNTED_MAX: usize = 1_000;
/// Maximum number of children in one page of a level, of locks in one answer of a search, and of grants and waits in one page of a session.
const PAGE_MAX: usize = 200;
/// The holder and the waiter that a list shows of each lock.
const FIRST: Page = Page { size: 1, holders_after: Token(0), waiters_after: Ticket(0) };
/// A page with the numbers of holders and waiters, and none of them.
const NONE: Page = Page { size: 0, ..FIRST };

/// A look at a clone of the table.
pub(crate) trait Browse: Guarded + Send + Sync {
    /// What the caller gets to see.
    type View;

    /// The name of the look in metrics.
    const NAME: &'static str;

    /// The number of names that it visits at the most.
    const VISITS_MAX: usize;

    /// Looks at the table as it is after the entry with this index.
    fn look(self, access: &Access, caller: &Caller, table: &Machine, index: u64) -> Result<Self::View, Error>;
}

impl Browse for BrowseLocks {
    type View = Level;

    const NAME: &'static str = "browse_locks";
    const VISITS_MAX: usize = LOOK_MAX;

    fn look(self, _: &Access, _: &Caller, table: &Machine, index: u64) -> Result<Level, Error> {
        let size = self.size.clamp(1, PAGE_MAX);
        let mut after = match self.after {
            Some(After::Lock(name)) => Some(name),
            Some(After::Folder(folder)) => Some(end_of(&folder)?),
            None => None,
        };

        let mut children = Vec::new();
        let mut left = LOOK_MAX;
        while let Some(name) = table.locks(&self.prefix, after.as_ref()).next() {
            if children.len() == size {
                return Ok(Level { children, more: true, index });
            }

            let child = match name.as_str()[self.prefix.len()..].find('/') {
                None => {
                    after = Some(name.clone());
                    Child::Lock(table.lock(name, FIRST))
                }
                Some(at) => {
                    let folder = folder(table, &name.as_str()[..=self.prefix.len() + at], left)?;
                    left = left.saturating_sub(folder.locks);
                    after = Some(end_of(&folder.prefix)?);
                    Child::Folder(folder)
                }
            };

            children.push(child);
        }
        Ok(Level { children, more: false, index })
    }
}

/// Counts the locks of a folder. The budget limits the count; at least one lock is counted. A chain of folders that have nothing but
/// another folder in them is one folder.
fn folder(table: &Machine, prefix: &str, budget: usize) -> Result<Folder, Error> {
    let most = budget.clamp(1, COUNTED_MAX);
    let mut folder = Folder { prefix: joined(table, prefix)?, ..Folder::default() };
    for name in table.locks(prefix, None) {
        if folder.locks == most {
            folder.more = true;
            break;
        }

        let lock = table.lock(name, NONE);
        folder.locks += 1;
        folder.held += usize::from(lock.holder_count > 0);
        folder.waiters = folder.waiters.saturating_add(lock.queue_length);
    }
    Ok(folder)
}

/// The deepest folder that has all names of this one. Takes two look-ups for each folder of the chain, however many names it has.
fn joined(table: &Machine, prefix: &str) -> Result<String, Error> {
    let Some(first) = table.locks(prefix, None).next() else { return Ok(prefix.to_owned()) };
    let mut common = shared_folder(first.as_str(), first.as_str());
    while common.len() > prefix.len() {
        // Names are sorted, and the first one is in this folder, so the first name outside of it is after the folder's end.
        match table.locks(prefix, Some(&end_of(common)?)).next() {
            Some(outside) => common = shared_folder(common, outside.as_str()),
            None => break,
        }
    }
    Ok(common.to_owned())
}

/// The deepest folder of `name` in which `other` is too, with its `/`.
fn shared_folder<'a>(name: &'a str, other: &str) -> &'a str {
    let same = name.bytes().zip(other.bytes()).take_while(|(one, two)| one == two).count();
    let end = name.as_bytes()[..same].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    &name[..end]
}

/// Returns a name above all those in the folder: the highest characters, up to the limit of a name.
fn end_of(folder: &str) -> Result<LockName, Error> {
    let highest = char::MAX;
    let room = NAME_BYTES_MAX.saturating_sub(folder.len()) / highest.len_utf8();
    let name: String = folder.chars().chain(std::iter::repeat_n(highest, room)).collect();
    LockName::new(&name).map_err(Error::invalid_value("after"))
}

impl Browse for SearchLocks {
    type View = LocksFound;

    const NAME: &'static str = "search_locks";
    const VISITS_MAX: usize = LOOK_MAX;

    fn look(self, _: &Access, _: &Caller, table: &Machine, index: u64) -> Result<LocksFound, Error> {
        let size = self.size.clamp(1, PAGE_MAX);
        let wanted = self.text.to_lowercase();

        let mut locks = Vec::new();
        let mut looked = 0;
        let mut last = None;
        let mut names = table.locks(&self.prefix, self.after.as_ref());
        for name in names.by_ref() {
            looked += 1;
            last = Some(name);
            if name.as_str().to_lowercase().contains(&wanted) {
                locks.push(table.lock(name, FIRST));
            }

            if locks.len() == size || looked == LOOK_MAX {
                break;
            }
        }

        // A search that ended at the last name needs no next page.
        let more_after = names.next().and(last).cloned();
        Ok(LocksFound { locks, looked, more_after, index })
    }
}

impl Browse for ShowLock {
    type View = LockKnown;

    const NAME: &'static str = "show_lock";
    const VISITS_MAX: usize = PAGE_MAX;

    fn look(self, _: &Access, _: &Caller, table: &Machine, index: u64) -> Result<LockKnown, Error> {
        let size = self.page.size.clamp(1, PAGE_MAX);
        let lock = table.lock(&self.name, Page { size, ..self.page });
        let sessions = lock.holders.iter().map(|holder| table.session(holder.session)).collect();
        Ok(LockKnown { lock, sessions, index })
    }
}

impl Browse for ShowSession {
    type View = Option<SessionShown>;

    const NAME: &'static str = "show_session";
    const VISITS_MAX: usize = PAGE_MAX;

    fn look(self, access: &Access, caller: &Caller, table: &Machine, index: u64) -> Result<Self::View, Error> {
        let Some(view) = table.session(self.session) else { return Ok(None) };

        // Without this right, a list of sessions leaves it out too.
        if access.has_policy() && !access.administers(caller) && view.owner != caller.identity {
            return Err(Error::not_owner(caller.identity.as_ref()));
        }

        let mut grants: Vec<_> = table.grants_of(self.session, self.after).take(PAGE_MAX + 1).collect();
        let more = grants.len() > PAGE_MAX;
        grants.truncate(PAGE_MAX);
        let waits = table.waits_of(self.session).take(PAGE_MAX).collect();
        Ok(Some(SessionShown { view, grants, more, waits, index }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{Acquire, Command, Label, Mode, Operation, SessionId, Time, Ttl, Wait, Want};

    fn table(names: impl IntoIterator<Item = String>) -> Machine {
        let mut machine = Machine::default();
        let session = SessionId(1);
        let ttl = Ttl::from_millis(60_000).expect("valid");
        let open = Command::Open { session, ttl, label: Label::default(), address: None, owner: None };
        machine.apply(Time::default(), open, &mut Vec::new());
        for name in names {
            let name = LockName::new(&name).expect("a name");
            let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
            let acquire = Acquire::new(vec![want], Wait::Never, 0).expect("valid");
            let operation = Operation::Acquire(acquire);
            machine.apply(Time::default(), Command::Session { session, request: None, operation }, &mut Vec::new());
        }
        machine
    }

    #[test]
    fn the_end_of_a_folder_is_above_its_names_and_below_its_neighbours() {
        let end = end_of("jobs/").expect("a name");
        assert!(end.as_str() > "jobs/zzz/\u{10FFFF}" && end.as_str() < "jobs0");
        assert!(end_of(&"/".repeat(NAME_BYTES_MAX)).is_ok());
    }

    #[test]
    fn a_folder_counts_to_its_limit_and_says_that_there_is_more() {
        let machine = table((0..COUNTED_MAX + 5).map(|number| format!("jobs/{number:06}")));
        let counted = folder(&machine, "jobs/", LOOK_MAX).expect("a folder");
        assert_eq!((counted.locks, counted.held, counted.more), (COUNTED_MAX, COUNTED_MAX, true));
        let least = folder(&machine, "jobs/", 0).expect("a folder");
        assert_eq!(least.locks, 1, "each folder that is shown has a lock");
    }

    #[test]
    fn the_pages_of_a_level_have_each_child_once() {
        let names = ["a", "a/", "a/1", "a/2/x", "a0", "b/1", "b/2", "c", "c-", "c/d/e", "d"];
        let machine = table(names.map(str::to_owned));
        let access = Access::open(&lockkeeper_config::AuthConfig::default(), false).expect("no files");
        let level = |prefix: &str, size: usize| {
            let mut found = Vec::new();
            let mut after = None;
            loop {
                let asked = BrowseLocks { prefix: prefix.to_owned(), after, size };
                let page = asked.look(&access, &Caller::default(), &machine, 1).expect("allowed");
                found.extend(page.children.iter().map(|child| match child {
                    Child::Lock(lock) => lock.name.to_string(),
                    Child::Folder(folder) => format!("{}*{}", folder.prefix, folder.locks),
                }));
                after = page.children.last().map(|last| match last {
                    Child::Lock(lock) => After::Lock(lock.name.clone()),
                    Child::Folder(folder) => After::Folder(folder.prefix.clone()),
                });
                if !page.more {
                    return found.join(" ");
                }
            }
        };
        for size in 1..8 {
            assert_eq!(level("", size), "a a/*3 a0 b/*2 c c- c/d/*1 d");
            assert_eq!(level("a/", size), "a/ a/1 a/2/*1");
        }
    }

    #[test]
    fn a_chain_of_single_folders_is_one_folder_however_many_names_it_has() {
        let joined_of = |names: &[&str]| {
            let machine = table(names.iter().map(|name| (*name).to_owned()));
            joined(&machine, "a/").expect("a folder")
        };
        assert_eq!(joined_of(&["a/b/c/1"]), "a/b/c/");
        assert_eq!(joined_of(&["a/b/c/1", "a/b/c/2/3"]), "a/b/c/");
        assert_eq!(joined_of(&["a/b/c/1", "a/b/c0"]), "a/b/");
        // A lock is between the folders, or has the name of one of them.
        assert_eq!(joined_of(&["a/b", "a/b/c/1"]), "a/");
        assert_eq!(joined_of(&["a/b/", "a/b/c/1"]), "a/b/");
        assert_eq!(joined_of(&["a/", "a/b/c/1"]), "a/");
        assert_eq!(joined_of(&["a/b/c/1", "a/b/d/1", "a/e"]), "a/");
        assert_eq!(joined_of(&["a/\u{e9}/1", "a/\u{e8}/1"]), "a/");
        assert_eq!(joined_of(&["a//1", "a//2"]), "a//");
        assert_eq!(joined_of(&[]), "a/");

        // The name that breaks the chain comes after all that are counted.
        let many = (0..COUNTED_MAX + 5).map(|number| format!("a/b/c/{number:06}"));
        let machine = table(many.clone().chain(["a/z".to_owned()]));
        let counted = folder(&machine, "a/", LOOK_MAX).expect("a folder");
        assert_eq!((counted.prefix.as_str(), counted.locks, counted.more), ("a/", COUNTED_MAX, true));
        let counted = folder(&table(many), "a/", LOOK_MAX).expect("a folder");
        assert_eq!((counted.prefix.as_str(), counted.more), ("a/b/c/", true));
    }
}
