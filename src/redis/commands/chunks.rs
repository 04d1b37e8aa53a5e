//! Commands of very many keys, in parts: other connections have turns on the same thread between them. All parts see the same moment.

use super::arguments::{Arguments, is_word};
use crate::RedisReply;

/// Number of keys of a part.
pub(crate) const KEYS_TOGETHER: usize = 1000;
/// The commands that may be divided: the reply is made of the replies for their keys, and they refuse nothing because of one key.
const DIVISIBLE: [&str; 5] = ["del", "exists", "mget", "touch", "unlink"];

/// The parts of a command, each a command by itself. `None` means that it runs as a whole.
pub(crate) fn divide<'a>(arguments: &'a Arguments<'a>) -> Option<impl Iterator<Item = Vec<&'a [u8]>> + 'a> {
    let (name, keys) = arguments.split_first()?;
    let is_divisible = keys.len() > KEYS_TOGETHER && DIVISIBLE.iter().any(|divisible| is_word(name, divisible));
    is_divisible.then(|| keys.chunks(KEYS_TOGETHER).map(move |part| [&[*name][..], part].concat()))
}

/// The reply to two parts that follow each other.
pub(crate) fn join(first: RedisReply, second: RedisReply) -> RedisReply {
    match (first, second) {
        (RedisReply::Integer(first), RedisReply::Integer(second)) => RedisReply::Integer(first.saturating_add(second)),
        (RedisReply::Array(mut items), RedisReply::Array(more)) => {
            items.extend(more);
            RedisReply::Array(items)
        }
        (first, _) => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_of_very_many_keys_are_divided() {
        let keys = vec![&b"k"[..]; 2 * KEYS_TOGETHER + 1];
        let parts = |name: &'static [u8], count: usize| {
            let arguments = [&[name][..], &keys[..count]].concat();
            divide(&arguments).map(|parts| parts.map(|part| (part[0].to_vec(), part.len() - 1)).collect::<Vec<_>>())
        };
        assert_eq!(parts(b"MGET", KEYS_TOGETHER), None);
        assert_eq!(parts(b"BLPOP", keys.len()), None);
        let expected = [KEYS_TOGETHER, KEYS_TOGETHER, 1].map(|count| (b"Exists".to_vec(), count));
        assert_eq!(parts(b"Exists", keys.len()), Some(expected.to_vec()));
    }
}
