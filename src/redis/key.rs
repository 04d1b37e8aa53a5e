//! The keys of the store, and the names of locks.
//!
//! The key KEY of database DB is `redis/DB/KEY` in the store. Cached scripts are `redis/script/SHA1`, and `redis/flushed` is written when
//! they are forgotten. A lock has the name of its key, in which control characters, `%` and bytes that are no text are written as `%` and
//! two hexadecimal digits. A name that is too long is cut, and ends with `%#` and the begin of the SHA-1 of the whole.

use lockkeeper_names::{NAME_BYTES_MAX, append_escaped, end_with_hash};

use crate::sha1;

/// Number of databases. They are separate keyspaces.
pub(crate) const DATABASES: u8 = 16;
/// The entry that is written when scripts are forgotten.
pub(crate) const FLUSHED: &[u8] = b"redis/flushed";

/// Maximum number of bytes of a key that is waited for, and of the name of a channel or a pattern: the port's own keys are longer.
pub(crate) const WAITED_BYTES_MAX: usize = 1024;

/// A key that begins so reads as the token of the lock whose key follows.
const TOKEN_PREFIX: &[u8] = b"lockkeeper:token:";

/// The key in the store.
pub(crate) fn store_key(database: u8, key: &[u8]) -> Vec<u8> {
    let mut stored = database_start(database);
    stored.extend_from_slice(key);
    stored
}

/// The key of the lock whose token this key reads as.
pub(crate) fn token_key(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(TOKEN_PREFIX)
}

/// The first key that a database can have in the store.
pub(crate) fn database_start(database: u8) -> Vec<u8> {
    format!("redis/{database}/").into_bytes()
}

/// The end of a database in the store, which is not part of it.
pub(crate) fn database_end(database: u8) -> Vec<u8> {
    prefix_end(database_start(database))
}

/// The end of the range of all keys with a prefix. The prefix has a byte that can be greater.
pub(crate) fn prefix_end(mut prefix: Vec<u8>) -> Vec<u8> {
    while prefix.last() == Some(&u8::MAX) {
        prefix.pop();
    }
    if let Some(last) = prefix.last_mut() {
        *last += 1;
    }
    prefix
}

/// The key of a cached script in the store.
pub(crate) fn script_key(sha1: &str) -> Vec<u8> {
    format!("redis/script/{sha1}").into_bytes()
}

/// The range of all cached scripts in the store.
pub(crate) fn script_range() -> (Vec<u8>, Vec<u8>) {
    let start = script_key("");
    (start.clone(), prefix_end(start))
}

/// Whether this is the name of the lock that a key of the store stands for: it belongs to that key alone, and who may write the key may
/// hold the lock.
pub fn is_lock_of_key(stored: &[u8], name: &str) -> bool {
    is_key_of_client(stored) && lock_name(stored) == name
}

/// Whether a key of the store is one of a database, and not one that the port keeps for itself.
pub fn is_key_of_client(stored: &[u8]) -> bool {
    let database = stored.strip_prefix(b"redis/").and_then(|rest| rest.split(|byte| *byte == b'/').next());
    database.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// The name of the lock that a key of the store is.
pub(crate) fn lock_name(stored: &[u8]) -> String {
    let mut name = String::with_capacity(stored.len());
    append_escaped(&mut name, stored, |_| false);
    if name.len() > NAME_BYTES_MAX {
        let hash = sha1::digest(name.as_bytes());
        end_with_hash(&mut name, &hash);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_do_not_meet() {
        for database in 0..DATABASES {
            let range = database_start(database)..database_end(database);
            for other in 0..DATABASES {
                for key in [&b""[..], b"a", &[0xff; 20]] {
                    assert_eq!(range.contains(&store_key(other, key)), database == other);
                }
            }
            assert!(!range.contains(&script_key("a")) && !range.contains(&FLUSHED.to_vec()));
        }
    }

    #[test]
    fn names_of_locks_are_text_of_bounded_length() {
        assert_eq!(lock_name(&store_key(0, b"seats/A5")), "redis/0/seats/A5");
        assert_eq!(lock_name(&store_key(1, b"100%\n\xff\xc3\xa9")), "redis/1/100%25%0a%ffé");
        let long = lock_name(&store_key(0, &[b'a'; 2000]));
        assert_eq!(long.len(), NAME_BYTES_MAX);
        assert_ne!(long, lock_name(&store_key(0, &[b'a'; 1999])));
    }

    #[test]
    fn the_end_of_a_prefix_is_above_all_its_keys() {
        assert_eq!(prefix_end(b"redis/0/a\xff".to_vec()), b"redis/0/b");
        assert_eq!(prefix_end(b"redis/0/".to_vec()), b"redis/00");
    }
}
