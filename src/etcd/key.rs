//! etcd's keys, ranges and leases, and what they are in the store.
//!
//! Keys lie under [`PREFIX`], apart from those of other adapters, and under the same words in the policy. So a range never leaves it: the
//! end of all keys is the first key after the prefix.
//!
//! A lease is a session whose id has [`LEASES`] above the lease's 64 bits. So leases can be listed, and chosen, and no session of another
//! client is reached by one.

use lockkeeper_machine::{Key, KeyRange, LockName, SessionId};
use lockkeeper_names::{has_hash, lock_for_key};
use lockkeeper_planted::Planted;

use crate::error::Error;

/// What all keys begin with in the store, and the names of the locks that they are.
pub(crate) const PREFIX: &str = "etcd/";
/// The first key after all that begin with it.
const AFTER: &str = "etcd0";
/// The upper half of the ids of sessions that are leases: "etcdkeys".
const LEASES: u128 = 0x6574_6364_6b65_7973;
/// The end of a range of all keys from its beginning on.
const ALL: &[u8] = &[0];

/// The store's key of one of etcd's. Fails on an empty one.
pub(crate) fn from_wire(key: &[u8]) -> Result<Key, Error> {
    match key {
        [] => Err(Error::EmptyKey),
        key => Key::new(&[PREFIX.as_bytes(), key].concat()).map_err(|_| Error::TooLarge),
    }
}

/// etcd's key of one of the store's.
pub(crate) fn shown(key: &Key) -> &[u8] {
    key.as_bytes().strip_prefix(PREFIX.as_bytes()).unwrap_or(key.as_bytes())
}

/// The store's range for one of etcd's: one key, if there is no end; all from the key on, if the end is a zero byte; the keys below the end
/// otherwise, and no key if the end is not above the key.
pub(crate) fn range(key: &[u8], end: &[u8]) -> Result<KeyRange, Error> {
    let from = from_wire(key)?;
    let to = match end {
        [] => Key::new(&[from.as_bytes(), ALL].concat()),
        ALL => Key::new(AFTER.as_bytes()),
        end => Key::new(&[PREFIX.as_bytes(), end].concat()),
    };
    Ok(KeyRange { from: Some(from), to: Some(to.map_err(|_| Error::TooLarge)?) })
}

/// The range of all keys.
pub fn all_keys() -> KeyRange {
    KeyRange { from: Key::new(PREFIX.as_bytes()).ok(), to: Key::new(AFTER.as_bytes()).ok() }
}

/// The session of a lease.
pub(crate) fn session(lease: i64) -> SessionId {
    SessionId(LEASES << 64 | u128::from(lease.cast_unsigned()))
}

/// The lease of a session, unless a client of another API opened it.
pub(crate) fn lease(session: SessionId) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let lower = session.0 as u64;
    (session.0 >> 64 == LEASES).then_some(lower.cast_signed())
}

/// A lease as etcd's recipes write it into their keys: Go's `%x` of a signed number is a sign and the digits of its amount.
pub(crate) fn hex(lease: i64) -> String {
    let sign = if lease < 0 { "-" } else { "" };
    format!("{sign}{:x}", lease.unsigned_abs())
}

/// The lease that the last part of a key names, as [`hex`] writes it, if it names one.
pub(crate) fn named_lease(key: &Key) -> Option<i64> {
    let last = shown(key).rsplit(|byte| *byte == b'/').next()?;
    let last = std::str::from_utf8(last).ok().filter(|last| last.len() < shown(key).len())?;
    let lease = i64::from_str_radix(last, 16).ok()?;
    (hex(lease) == last).then_some(lease)
}

/// The first and the last session that can be a lease.
pub(crate) fn sessions() -> (SessionId, SessionId) {
    (session(0), session(-1))
}

/// The lock that a key of a known recipe stands for: `etcd/NAME` for the key `NAME/LEASE`, where LEASE is its lease in hexadecimal, with or
/// without leading zeros, or in decimal; a negative one with a sign, as Go writes it, or as its 64 bits. So name the keys of etcd's own
/// recipes, and those of its clients in other languages; NAME may be empty. Any other key has no queue.
pub(crate) fn queue(key: &Key, lease: i64) -> Option<LockName> {
    let shown = shown(key);
    let slash = shown.iter().rposition(|byte| *byte == b'/')?;
    let forms = [hex(lease), format!("{lease:x}"), format!("{lease:016x}"), lease.to_string()];
    let is_lease = forms.iter().any(|form| form.as_bytes() == &shown[slash + 1..]);
    is_lease.then(|| lock(&key.as_bytes()[..PREFIX.len() + slash])).flatten()
}

/// The lock that a single key stands for: `etcd/KEY`.
pub(crate) fn single(key: &Key) -> Option<LockName> {
    lock(key.as_bytes())
}

fn lock(key: &[u8]) -> Option<LockName> {
    let lock = lock_for_key(key);
    let is_unnamed = has_hash(&lock) && Planted::RestoredUnnamed.is_on();
    (!is_unnamed).then_some(lock)
}

/// Whether a key is a lock by itself without a condition too: `NAME/leader`, which Patroni puts so after it has founded a cluster.
pub(crate) fn is_leader(key: &Key) -> bool {
    shown(key).strip_suffix(b"/leader").is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_under_the_prefix_and_are_those_of_etcd() {
        let contains =
            |key: &[u8], end: &[u8], other: &[u8]| range(key, end).unwrap().contains(&from_wire(other).unwrap());
        assert!(contains(b"a", b"", b"a") && !contains(b"a", b"", b"a\0") && !contains(b"a", b"", b"b"));
        assert!(contains(b"a", b"c", b"bbb") && !contains(b"a", b"c", b"c"));
        assert!(contains(b"b", b"\0", b"\xff\xff") && !contains(b"b", b"\0", b"a"));
        assert!(contains(b"\0", b"\0", b"\0"));
        assert!(range(b"b", b"a").unwrap().is_empty());
        let all = range(b"\0", b"\0").unwrap();
        assert!(!all.contains(&Key::new(b"dynamodb/x").unwrap()) && !all.contains(&Key::new(b"etcd0").unwrap()));
        assert_eq!(range(b"", b"a"), Err(Error::EmptyKey));
        assert_eq!(from_wire(&[7; 4096]), Err(Error::TooLarge));
        assert_eq!(shown(&from_wire(b"a/b").unwrap()), b"a/b");
    }

    #[test]
    fn leases_are_sessions_of_their_own() {
        for id in [1, i64::MAX, -1] {
            assert_eq!(lease(session(id)), Some(id));
            let (first, last) = sessions();
            assert!(first < session(id) && session(id) <= last);
        }
        assert_eq!(lease(SessionId(1)), None);
    }

    #[test]
    fn the_last_part_of_a_key_names_a_lease_as_the_recipes_write_it() {
        let named = |key: &[u8]| named_lease(&from_wire(key).unwrap());
        for lease in [1, 0x7b, i64::MAX, -1, i64::MIN] {
            assert_eq!(named(format!("a/b/{}", hex(lease)).as_bytes()), Some(lease));
        }
        for other in [
            &b"7b"[..],
            b"jobs/",
            b"jobs/007b",
            b"jobs/+7b",
            b"jobs/7B",
            b"jobs/x",
            b"jobs/\xff",
            b"jobs/8000000000000000",
        ] {
            assert_eq!(named(other), None, "{}", other.escape_ascii());
        }
        assert_eq!(named(b"\xff/7b"), Some(0x7b));
    }

    #[test]
    fn keys_of_queues_name_their_lock() {
        let named = |key: &[u8], lease| queue(&from_wire(key).unwrap(), lease).map(|name| name.to_string());
        for key in [&b"jobs/7b"[..], b"jobs/000000000000007b", b"jobs/123"] {
            assert_eq!(named(key, 123).as_deref(), Some("etcd/jobs"));
        }
        assert_eq!(named(b"/a/b/7b", 123).as_deref(), Some("etcd//a/b"));
        for key in [&b"jobs/-7b"[..], b"jobs/ffffffffffffff85", b"jobs/-123"] {
            assert_eq!(named(key, -123).as_deref(), Some("etcd/jobs"));
        }
        assert_eq!((hex(-123), hex(i64::MIN), hex(123)), ("-7b".into(), "-8000000000000000".into(), "7b".into()));
        for key in [&b"jobs/7c"[..], b"jobs", b"7b", b"jobs/07b"] {
            assert_eq!(named(key, 123), None, "{}", key.escape_ascii());
        }

        assert_eq!(named(b"/7b", 123).as_deref(), Some("etcd/"));

        // A name that is not text, too.
        let place = named(b"\xff/7b", 123);
        assert!(place.as_deref().is_some_and(|name| name.starts_with("etcd/%ff%#")), "{place:?}");
        assert_eq!(named(b"\xff/123", 123), place);
        assert_eq!(named(b"\xff/7c", 123), None);
    }
}
