//! A client that sends pipelines, and reads replies of both versions of the protocol.

use std::{
    fmt,
    io::{BufRead, BufReader, Read, Write},
};

/// A connection.
pub(super) struct WalkClient(BufReader<Box<dyn Connection>>);

/// A stream of either kind.
pub(super) trait Connection: Read + Write + Send {}

impl Connection for std::net::TcpStream {}
impl Connection for std::os::unix::net::UnixStream {}

/// A reply as it is on the wire.
#[derive(Clone, PartialEq, PartialOrd)]
pub(super) enum WireReply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Double(String),
    Nil(&'static str),
    Items(char, Vec<WireReply>),
}

impl WalkClient {
    pub(super) fn new(stream: impl Connection + 'static) -> Self {
        Self(BufReader::new(Box::new(stream)))
    }

    /// Sends requests in one write, and reads a reply to each.
    pub(super) fn pipeline(&mut self, requests: &[Vec<Vec<u8>>]) -> Vec<WireReply> {
        let mut bytes = Vec::new();
        for request in requests {
            bytes.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
            for word in request {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.0.get_mut().write_all(&bytes).expect("the server reads");
        requests.iter().map(|_| self.reply()).collect()
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).expect("the server answers");
        assert!(line.ends_with(b"\r\n"), "the server closed the connection");
        line.truncate(line.len() - 2);
        line
    }

    fn reply(&mut self) -> WireReply {
        let line = self.line();
        let (kind, rest) = line.split_first().expect("a kind of reply");
        let text = String::from_utf8_lossy(rest).into_owned();
        let number = || text.parse::<i64>().expect("a number");
        match kind {
            b'+' => WireReply::Status(text),
            b'-' => WireReply::Error(text),
            b':' => WireReply::Integer(number()),
            b',' => WireReply::Double(text),
            b'_' => WireReply::Nil("_"),
            b'$' if number() < 0 => WireReply::Nil("$-1"),
            b'*' if number() < 0 => WireReply::Nil("*-1"),
            b'$' | b'=' => {
                let mut bytes = vec![0; usize::try_from(number()).expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("a string");
                bytes.truncate(bytes.len() - 2);
                WireReply::Bulk(bytes)
            }
            b'*' | b'~' | b'>' => {
                let items = (0..number()).map(|_| self.reply()).collect();
                WireReply::Items(char::from(*kind), items)
            }
            b'%' => {
                let items = (0..2 * number()).map(|_| self.reply()).collect();
                WireReply::Items('%', items)
            }
            other => panic!("no reply begins with {other}"),
        }
    }
}

impl WireReply {
    /// The same with its items in one order, at any depth.
    pub(super) fn sorted(&self) -> Self {
        let Self::Items(kind, items) = self else { return self.clone() };
        let mut items: Vec<_> = items.iter().map(Self::sorted).collect();
        items.sort_by(|one, other| one.partial_cmp(other).expect("replies have an order"));
        Self::Items(*kind, items)
    }

    /// Whether it says the same: numbers may be written in other ways, and members of sets come in any order.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let number = |bytes: &[u8]| String::from_utf8_lossy(bytes).parse::<f64>().ok();
        match (self, other) {
            (Self::Items('~', _), Self::Items('~', _)) => self.sorted() == other.sorted(),
            (Self::Items(one_kind, one), Self::Items(other_kind, other)) => {
                let is_like = one.iter().zip(other).all(|(one, other)| one.is_like(other));
                one_kind == other_kind && one.len() == other.len() && is_like
            }
            // The rest of a life, such as within a transaction.
            (Self::Integer(one), Self::Integer(other)) if *one > 10_000 => (one - other).abs() <= 1500,
            (Self::Double(one), Self::Double(other)) => number(one.as_bytes()) == number(other.as_bytes()),
            // Redis 7.0 writes doubles with 17 digits, and later versions as short as they can be.
            (Self::Bulk(one), Self::Bulk(other)) => {
                one == other || number(one).is_some_and(|number| number.fract() != 0.0) && number(one) == number(other)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for WireReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(number) => write!(f, ":{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Double(text) => write!(f, ",{text}"),
            Self::Nil(kind) => write!(f, "{kind}"),
            Self::Items(kind, items) => {
                write!(f, "{kind}[")?;
                for item in items {
                    write!(f, "{item} ")?;
                }
                write!(f, "]")
            }
        }
    }
}
