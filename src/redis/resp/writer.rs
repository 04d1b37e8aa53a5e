//! Writes replies in either version of the protocol.

use crate::{RedisReply, number::format_double};

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The version that each connection begins with.
    #[default]
    Resp2,
    /// The version that HELLO 3 asks for.
    Resp3,
}

impl Protocol {
    /// The number that HELLO says.
    pub(crate) fn version(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }

    /// Whether maps, sets, doubles and pushes have signs of their own.
    fn is_resp3(self) -> bool {
        self == Self::Resp3
    }
}

/// Writes a reply after the bytes that are there.
pub(crate) fn write_reply(reply: &RedisReply, protocol: Protocol, out: &mut Vec<u8>) {
    match reply {
        RedisReply::Status(text) => write_line(b'+', text, out),
        RedisReply::Error(text) => write_line(b'-', text, out),
        RedisReply::Integer(number) => write_line(b':', number.to_string().as_bytes(), out),
        RedisReply::Bulk(bytes) => write_bulk(b'$', bytes, out),
        RedisReply::Nil | RedisReply::OwnRevision if protocol.is_resp3() => out.extend_from_slice(b"_\r\n"),
        // Without a commit there is no revision.
        RedisReply::Nil | RedisReply::OwnRevision => out.extend_from_slice(b"$-1\r\n"),
        RedisReply::NilArray if protocol.is_resp3() => out.extend_from_slice(b"_\r\n"),
        RedisReply::NilArray => out.extend_from_slice(b"*-1\r\n"),
        RedisReply::Array(items) => write_items(b'*', items, protocol, out),
        RedisReply::Map(pairs) => {
            let is_map = protocol.is_resp3();
            write_length(if is_map { b'%' } else { b'*' }, pairs.len() * if is_map { 1 } else { 2 }, out);
            write_pairs(pairs, protocol, out);
        }

        RedisReply::Pairs(pairs) if protocol.is_resp3() => {
            write_length(b'*', pairs.len(), out);
            for (first, second) in pairs {
                write_length(b'*', 2, out);
                write_reply(first, protocol, out);
                write_reply(second, protocol, out);
            }
        }
        RedisReply::Pairs(pairs) => {
            write_length(b'*', pairs.len() * 2, out);
            write_pairs(pairs, protocol, out);
        }
        RedisReply::Set(items) => write_items(if protocol.is_resp3() { b'~' } else { b'*' }, items, protocol, out),
        RedisReply::Push(items) => write_items(if protocol.is_resp3() { b'>' } else { b'*' }, items, protocol, out),
        RedisReply::Double(number) if protocol.is_resp3() => {
            write_line(b',', format_double(*number).as_bytes(), out);
        }
        RedisReply::Double(number) => write_bulk(b'$', format_double(*number).as_bytes(), out),
        RedisReply::Verbatim(text) if protocol.is_resp3() => write_bulk(b'=', &[b"txt:", &text[..]].concat(), out),
        RedisReply::Verbatim(text) => write_bulk(b'$', text, out),
    }
}

/// Writes strings that no command asked for.
pub(crate) fn write_push(strings: &[&[u8]], protocol: Protocol, out: &mut Vec<u8>) {
    write_length(if protocol.is_resp3() { b'>' } else { b'*' }, strings.len(), out);
    for string in strings {
        write_bulk(b'$', string, out);
    }
}

/// Writes pairs one after the other, without a length.
fn write_pairs(pairs: &[(RedisReply, RedisReply)], protocol: Protocol, out: &mut Vec<u8>) {
    for (first, second) in pairs {
        write_reply(first, protocol, out);
        write_reply(second, protocol, out);
    }
}

/// Writes a number of items and the items.
fn write_items(kind: u8, items: &[RedisReply], protocol: Protocol, out: &mut Vec<u8>) {
    write_length(kind, items.len(), out);
    for item in items {
        write_reply(item, protocol, out);
    }
}

/// Writes the number of parts that follow.
fn write_length(kind: u8, length: usize, out: &mut Vec<u8>) {
    write_line(kind, length.to_string().as_bytes(), out);
}

/// Writes bytes of any kind, with their number before them.
fn write_bulk(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    write_length(kind, bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes a line. An end of a line within the text, such as of an error that names an argument, would begin another reply.
fn write_line(kind: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &RedisReply) -> [String; 2] {
        [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = Vec::new();
            write_reply(reply, protocol, &mut out);
            String::from_utf8(out).expect("text").replace("\r\n", "|")
        })
    }

    #[test]
    fn each_reply_has_its_form_in_both_versions() {
        let bulk = |text: &str| RedisReply::Bulk(text.as_bytes().to_vec());
        let pairs = || vec![(bulk("a"), RedisReply::Double(1.0))];

        for (reply, expected) in [
            (RedisReply::ok(), ["+OK|", "+OK|"]),
            (RedisReply::error("ERR a\r\nb"), ["-ERR a  b|", "-ERR a  b|"]),
            (RedisReply::Integer(-1), [":-1|", ":-1|"]),
            (RedisReply::Nil, ["$-1|", "_|"]),
            (RedisReply::NilArray, ["*-1|", "_|"]),
            (RedisReply::Map(pairs()), ["*2|$1|a|$1|1|", "%1|$1|a|,1|"]),
            (RedisReply::Pairs(pairs()), ["*2|$1|a|$1|1|", "*1|*2|$1|a|,1|"]),
            (RedisReply::Set(vec![bulk("")]), ["*1|$0||", "~1|$0||"]),
            (RedisReply::Push(vec![RedisReply::Nil]), ["*1|$-1|", ">1|_|"]),
            (RedisReply::Double(0.5), ["$3|0.5|", ",0.5|"]),
            (RedisReply::Verbatim(b"x".to_vec()), ["$1|x|", "=5|txt:x|"]),
        ] {
            assert_eq!(written(&reply), expected.map(str::to_owned), "{reply:?}");
        }
    }
}
