//! The names of locks that the keys of other protocols stand for.
//!
//! A key may be longer than a lock's name, and may be bytes that are not text. Names are for people: they keep what can be read of a key,
//! and no two keys have the same. So operators see every lock of these protocols, and limits and a restored cluster know of it. Which keys
//! are locks is said by each adapter.

use std::fmt::Write as _;

use lockkeeper_types::LockName;
pub use lockkeeper_types::NAME_BYTES_MAX;
use sha2::{Digest as _, Sha256};

/// What stands between a name that was cut and its hash.
pub const HASH_MARK: &str = "%#";
/// Number of bytes of a hash that a name shows.
const HASH_BYTES: usize = 16;

/// The name of the lock that a key stands for. Two keys never have the same name.
///
/// It is the key itself, if that can be a lock's name and has no [`HASH_MARK`] in it. Any other is made readable, cut, and ends with the
/// mark and half of the key's SHA-256.
pub fn lock_for_key(key: &[u8]) -> LockName {
    let text = str::from_utf8(key).ok().filter(|text| !text.contains(HASH_MARK));
    if let Some(name) = text.and_then(|text| LockName::new(text).ok()) {
        return name;
    }

    let mut name = String::with_capacity(key.len());
    append_escaped(&mut name, key, |_| false);
    end_with_hash(&mut name, &Sha256::digest(key));
    LockName::new(&name).expect("it is cut, and has no NUL")
}

/// Whether a lock has the name of a key that could not be its name itself.
pub fn has_hash(name: &LockName) -> bool {
    name.as_str().contains(HASH_MARK)
}

/// Appends a part of a key to a name: printable text as it is; a `%`, control characters, the characters that are chosen and bytes that
/// are not UTF-8 as `%` and two hexadecimal digits for each byte.
pub fn append_escaped(name: &mut String, part: &[u8], is_chosen: impl Fn(char) -> bool) {
    for chunk in part.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || character == '%' || is_chosen(character) {
                character.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| escape(name, byte));
            } else {
                name.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(name, *byte));
    }
}

/// Ends a name with [`HASH_MARK`] and the first 16 bytes of a hash in hexadecimal. What is too long before them is cut: the whole has at
/// most [`NAME_BYTES_MAX`] bytes.
pub fn end_with_hash(name: &mut String, hash: &[u8]) {
    let room = NAME_BYTES_MAX - HASH_MARK.len() - 2 * HASH_BYTES;
    name.truncate(name.floor_char_boundary(room));
    name.push_str(HASH_MARK);
    hash.iter().take(HASH_BYTES).for_each(|byte| write_hex(name, *byte));
}

fn escape(name: &mut String, byte: u8) {
    name.push('%');
    write_hex(name, byte);
}

fn write_hex(name: &mut String, byte: u8) {
    write!(name, "{byte:02x}").expect("a text takes all that is written");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_key_that_can_be_a_name_is_its_own() {
        for key in ["etcd/jobs", "etcd/100%", "etcd/a\nb", &"x".repeat(NAME_BYTES_MAX)] {
            let name = lock_for_key(key.as_bytes());
            assert_eq!(name.as_str(), key);
            assert!(!has_hash(&name));
        }
    }

    #[test]
    fn other_keys_have_names_that_can_be_read_and_are_theirs_alone() {
        let long = "é".repeat(NAME_BYTES_MAX / 2);
        let longer = format!("{long}a");
        let other = format!("{long}b");
        let marked = lock_for_key(b"etcd/\xff").to_string();
        let keys = [&b""[..], b"etcd/a\0b", b"etcd/\xff", marked.as_bytes(), longer.as_bytes(), other.as_bytes()];
        let names: BTreeSet<_> = keys.iter().map(|key| lock_for_key(key)).collect();
        assert_eq!(names.len(), keys.len());
        assert!(names.iter().all(has_hash));
        assert!(marked.starts_with("etcd/%ff%#"), "{marked}");
        assert!(lock_for_key(b"etcd/a\0b").as_str().starts_with("etcd/a%00b%#"));
        assert!(lock_for_key(other.as_bytes()).as_str().starts_with("éé"));
    }
}
