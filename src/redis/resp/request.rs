//! Reads requests: arrays of bulk strings, and inline commands.
//!
//! The reader is incremental and bounded. It takes complete parts out of the buffer of a connection, and keeps the arguments that it has
//! until the request is whole. A length above its limit is refused when it is read, before any of its bytes.
//!
//! A request that breaks the protocol ends the connection, as with Redis: nobody knows where the next one begins.

use std::mem;

use bytes::{Buf as _, BytesMut};

use crate::number::parse_integer;

/// Maximum number of bytes of a line: a length, or an inline command.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of arguments of a request from a client that has to authenticate first, and maximum number of bytes of each.
const STRANGER: RequestLimits =
    RequestLimits { arguments_max: 10, argument_bytes_max: 16 << 10, request_bytes_max: 64 << 10 };
/// Number of bytes that an argument takes beyond its own.
const ARGUMENT_COST: usize = mem::size_of::<Vec<u8>>();

/// A command's name and its arguments.
pub(crate) type RequestWords = Vec<Vec<u8>>;

/// Number of bytes that a request takes.
pub(crate) fn bytes_in_memory(request: &RequestWords) -> usize {
    request.iter().map(|argument| argument.len() + ARGUMENT_COST).sum()
}

/// What a request may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum number of arguments, including the name of the command.
    pub arguments_max: usize,
    /// Maximum number of bytes of one argument.
    pub argument_bytes_max: usize,
    /// Maximum number of bytes of all arguments, each counted with what it costs in memory.
    pub request_bytes_max: usize,
}

impl Default for RequestLimits {
    /// These limits exceed those of a transaction of the keyspace, so that clients meet the limits of the transaction.
    fn default() -> Self {
        Self { arguments_max: 64 << 10, argument_bytes_max: 1 << 20, request_bytes_max: 4 << 20 }
    }
}

/// Reads the requests of one connection.
#[derive(Debug)]
pub(crate) struct RequestReader {
    /// The limits of clients that are known.
    limits: RequestLimits,
    /// Whether the client has proven who it is, or does not have to.
    is_known: bool,
    /// The position within a request.
    state: RequestState,
    /// Bytes at the begin of the buffer that are known to have no end of a line.
    scanned: usize,
}

/// The position of the reader within a request.
#[derive(Debug)]
enum RequestState {
    /// Between two requests.
    Begin,
    /// Within an array.
    Array {
        /// Number of arguments that are still missing.
        missing: usize,
        /// The length of the argument that is being read, if its line was read.
        length: Option<usize>,
        arguments: Vec<Vec<u8>>,
        bytes: usize,
    },
}

/// The request breaks the protocol. The text is that of Redis, without its word in capitals.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub(crate) struct ProtocolError(String);

impl ProtocolError {
    /// Makes an error of Redis' words.
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl RequestReader {
    /// Makes a reader for a client that is known.
    pub(crate) fn new(limits: RequestLimits) -> Self {
        Self { limits, is_known: true, state: RequestState::Begin, scanned: 0 }
    }

    /// Says whether the client is known. The requests of strangers are short.
    pub(crate) fn set_known(&mut self, is_known: bool) {
        self.is_known = is_known;
    }

    /// Whether a part of a request was read.
    pub(crate) fn is_within_request(&self) -> bool {
        matches!(self.state, RequestState::Array { .. })
    }

    /// Number of bytes of the arguments that were read and do not make a request yet.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.state {
            RequestState::Begin => 0,
            // The argument that arrives is in the buffer still.
            RequestState::Array { bytes, length, .. } => *bytes - length.unwrap_or(0),
        }
    }

    /// Takes the next request out of the buffer. `None` means that it has not arrived completely. Requests without arguments are passed
    /// over.
    pub(crate) fn read(&mut self, buffer: &mut BytesMut) -> Result<Option<RequestWords>, ProtocolError> {
        loop {
            let is_begin = matches!(self.state, RequestState::Begin);
            let step = if !is_begin {
                self.read_argument(buffer)?
            } else if buffer.first() == Some(&b'*') {
                self.read_array_length(buffer)?
            } else {
                self.read_inline(buffer)?
            };

            match step {
                RequestStep::Unfinished => return Ok(None),
                RequestStep::Goes => {}
                RequestStep::Complete(request) => return Ok(Some(request)),
            }
        }
    }

    /// The limits for this client.
    fn limits(&self) -> RequestLimits {
        if self.is_known { self.limits } else { STRANGER }
    }

    /// Reads the line that a request begins with.
    fn read_array_length(&mut self, buffer: &mut BytesMut) -> Result<RequestStep, ProtocolError> {
        let Some(line) = self.line(buffer, b'\r', "too big mbulk count string")? else {
            return Ok(RequestStep::Unfinished);
        };
        let invalid = || ProtocolError::new("invalid multibulk length");
        let length = parse_integer(&line[1..]).ok_or_else(invalid)?;
        if length <= 0 {
            return Ok(RequestStep::Goes);
        }

        let missing = usize::try_from(length).map_err(|_| invalid())?;
        if missing > self.limits().arguments_max {
            return Err(if self.is_known { invalid() } else { ProtocolError::new("unauthenticated multibulk length") });
        }
        // Room for a few: the length is only a claim.
        let arguments = Vec::with_capacity(missing.min(16));
        self.state = RequestState::Array { missing, length: None, arguments, bytes: 0 };
        Ok(RequestStep::Goes)
    }

    /// Reads the line of an argument, or its bytes.
    fn read_argument(&mut self, buffer: &mut BytesMut) -> Result<RequestStep, ProtocolError> {
        let RequestState::Array { length, .. } = &self.state else { return Ok(RequestStep::Goes) };
        let Some(length) = *length else { return self.read_argument_length(buffer) };
        if buffer.len() < length + 2 {
            // The buffer grows with what arrives. Room for what was announced would cost the port a megabyte for each line of a stranger.
            return Ok(RequestStep::Unfinished);
        }

        let argument = buffer[..length].to_vec();
        // Redis does not look at these two bytes, either.
        buffer.advance(length + 2);
        let RequestState::Array { missing, length, arguments, .. } = &mut self.state else {
            return Ok(RequestStep::Goes);
        };
        *length = None;
        *missing -= 1;
        arguments.push(argument);
        if *missing > 0 {
            return Ok(RequestStep::Goes);
        }

        let request = mem::take(arguments);
        self.state = RequestState::Begin;
        Ok(RequestStep::Complete(request))
    }

    /// Reads the line before an argument.
    fn read_argument_length(&mut self, buffer: &mut BytesMut) -> Result<RequestStep, ProtocolError> {
        let Some(line) = self.line(buffer, b'\r', "too big bulk count string")? else {
            return Ok(RequestStep::Unfinished);
        };
        let first = line.first().copied().unwrap_or_default();
        if first != b'$' {
            return Err(ProtocolError::new(format!("expected '$', got '{}'", char::from(first).escape_debug())));
        }

        let limits = self.limits();
        let announced = parse_integer(&line[1..]).and_then(|length| usize::try_from(length).ok());
        let Some(announced) = announced.filter(|length| *length <= limits.argument_bytes_max) else {
            let is_refused_stranger = announced.is_some() && !self.is_known;
            let why = if is_refused_stranger { "unauthenticated bulk length" } else { "invalid bulk length" };
            return Err(ProtocolError::new(why));
        };

        let RequestState::Array { length, bytes, .. } = &mut self.state else { return Ok(RequestStep::Goes) };
        let together = *bytes + announced + ARGUMENT_COST;
        if together > limits.request_bytes_max {
            let bytes_max = limits.request_bytes_max;
            return Err(ProtocolError::new(format!("the request has more than {bytes_max} bytes, the limit")));
        }
        *bytes = together;
        *length = Some(announced);
        Ok(RequestStep::Goes)
    }

    /// Reads a request that a person has typed.
    fn read_inline(&mut self, buffer: &mut BytesMut) -> Result<RequestStep, ProtocolError> {
        let Some(line) = self.line(buffer, b'\n', "too big inline request")? else {
            return Ok(RequestStep::Unfinished);
        };
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let arguments = split_inline(line).ok_or_else(|| ProtocolError::new("unbalanced quotes in request"))?;
        Ok(if arguments.is_empty() { RequestStep::Goes } else { RequestStep::Complete(arguments) })
    }

    /// Takes a line out of the buffer, without its end: `\n`, or `\r` and the byte after it.
    fn line(
        &mut self,
        buffer: &mut BytesMut,
        end: u8,
        too_long: &'static str,
    ) -> Result<Option<Vec<u8>>, ProtocolError> {
        let end_bytes = if end == b'\r' { 2 } else { 1 };
        let found = buffer[self.scanned..].iter().position(|byte| *byte == end).map(|at| self.scanned + at);

        match found {
            Some(at) if at > LINE_BYTES_MAX => Err(ProtocolError::new(too_long)),
            Some(at) if at + end_bytes <= buffer.len() => {
                let line = buffer[..at].to_vec();
                buffer.advance(at + end_bytes);
                self.scanned = 0;
                Ok(Some(line))
            }
            Some(at) => {
                self.scanned = at;
                Ok(None)
            }
            None if buffer.len() > LINE_BYTES_MAX => Err(ProtocolError::new(too_long)),
            None => {
                self.scanned = buffer.len();
                Ok(None)
            }
        }
    }
}

/// What one step of the reader has found.
enum RequestStep {
    /// More bytes are needed.
    Unfinished,
    /// The next step may follow.
    Goes,
    /// A request is whole.
    Complete(RequestWords),
}

/// Splits an inline command at its spaces. `"` and `'` hold words together; within `"`, there are escapes such as `\n` and `\x41`. `None`
/// means that a quote has no end, or does not end its word.
fn split_inline(line: &[u8]) -> Option<RequestWords> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        rest = read_word(rest, &mut word)?;
        words.push(word);
    }
}

/// Reads one word of an inline command, and returns what follows it.
fn read_word<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let Some((&first, after)) = rest.split_first() {
        if first.is_ascii_whitespace() || first == 0 {
            return Some(after);
        }
        rest = after;
        if first != b'"' && first != b'\'' {
            word.push(first);
            continue;
        }

        rest = read_quoted(after, first, word)?;
        let ends_word = rest.first().is_none_or(u8::is_ascii_whitespace);
        return ends_word.then_some(rest);
    }
    Some(rest)
}

/// Reads the rest of a quoted word, and returns what follows its closing quote.
fn read_quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let hexadecimal = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());

    loop {
        match rest {
            [] => return None,
            [b'\\', b'x', high, low, after @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(hexadecimal(high)? * 16 + hexadecimal(low)?);
                rest = after;
            }
            [b'\\', escaped, after @ ..] if quote == b'"' => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = after;
            }
            [b'\\', b'\'', after @ ..] if quote == b'\'' => {
                word.push(b'\'');
                rest = after;
            }
            [byte, after @ ..] if *byte == quote => return Some(after),
            [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all requests of some bytes, which arrive in parts of this length.
    fn read_in_parts(bytes: &[u8], part: usize) -> Result<Vec<RequestWords>, ProtocolError> {
        let mut reader = RequestReader::new(RequestLimits::default());
        let mut buffer = BytesMut::new();
        let mut requests = Vec::new();
        for part in bytes.chunks(part) {
            buffer.extend_from_slice(part);
            while let Some(request) = reader.read(&mut buffer)? {
                requests.push(request);
            }
        }
        assert!(requests.is_empty() || !reader.is_within_request(), "a rest is left");
        Ok(requests)
    }

    fn read(bytes: &[u8]) -> Result<Vec<RequestWords>, ProtocolError> {
        let whole = read_in_parts(bytes, bytes.len().max(1));
        for part in 1..bytes.len().min(40) {
            assert_eq!(read_in_parts(bytes, part), whole, "in parts of {part}");
        }
        whole
    }

    fn words(words: &[&str]) -> RequestWords {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    fn problem(bytes: &[u8]) -> String {
        read(bytes).expect_err("it breaks the protocol").to_string()
    }

    #[test]
    fn arrays_and_inline_commands_are_read_in_any_parts() {
        let requests = read(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*0\r\n*-1\r\n\r\n  SET a 'b c'\r\nPING\n*1\r\n$0\r\n\r\n");
        assert_eq!(
            requests,
            Ok(vec![words(&["GET", "k"]), words(&["SET", "a", "b c"]), words(&["PING"]), words(&[""])])
        );
    }

    #[test]
    fn quotes_of_inline_commands() {
        let one = |line: &[u8]| split_inline(line);
        assert_eq!(one(br#"a "\x41\n\"" 'it\'s'"#), Some(words(&["a", "A\n\"", "it's"])));
        assert_eq!(one(br#""a"b"#), None);
        assert_eq!(one(br#""a"#), None);
        assert_eq!(one(br#"x"y z""#), Some(words(&["xy z"])));
        assert_eq!(one(b"  "), Some(Vec::new()));
        assert_eq!(problem(b"GET \"x\r\n"), "Protocol error: unbalanced quotes in request");
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_their_bytes() {
        for length in ["9223372036854775808", "9223372036854775807", "1000001", "x", "+1", "01", ""] {
            let says = problem(format!("*{length}\r\n").as_bytes());
            assert_eq!(says, "Protocol error: invalid multibulk length", "{length}");
        }
        for length in ["9223372036854775808", "9223372036854775807", "1048577", "-1", "x", ""] {
            let says = problem(format!("*1\r\n${length}\r\n").as_bytes());
            assert_eq!(says, "Protocol error: invalid bulk length", "{length}");
        }
        assert_eq!(problem(b"*1\r\n:1\r\n"), "Protocol error: expected '$', got ':'");
        assert_eq!(problem(&vec![b'*'; LINE_BYTES_MAX + 1]), "Protocol error: too big mbulk count string");
        assert_eq!(problem(&vec![b'a'; LINE_BYTES_MAX + 1]), "Protocol error: too big inline request");
    }

    #[test]
    fn many_arguments_are_refused_before_they_take_memory() {
        let mut bytes = b"*65536\r\n".to_vec();
        for _ in 0..65_536 {
            bytes.extend_from_slice(b"$100\r\n");
            bytes.extend([b'x'; 100]);
            bytes.extend_from_slice(b"\r\n");
        }
        let mut reader = RequestReader::new(RequestLimits::default());
        let mut buffer = BytesMut::new();

        let mut most = 0;
        let refused = bytes.chunks(4096).find_map(|part| {
            buffer.extend_from_slice(part);
            let read = reader.read(&mut buffer);
            most = most.max(reader.held_bytes());
            read.err()
        });
        assert!(refused.expect("too large").to_string().contains("the limit"));
        assert!(most <= RequestLimits::default().request_bytes_max, "{most}");
    }

    #[test]
    fn strangers_are_given_less() {
        let mut reader = RequestReader::new(RequestLimits::default());
        reader.set_known(false);
        let refused = reader.read(&mut BytesMut::from(&b"*11\r\n"[..])).expect_err("too many");
        assert_eq!(refused.to_string(), "Protocol error: unauthenticated multibulk length");
        let refused = reader.read(&mut BytesMut::from(&b"*1\r\n$16385\r\n"[..])).expect_err("too long");
        assert_eq!(refused.to_string(), "Protocol error: unauthenticated bulk length");
    }
}
