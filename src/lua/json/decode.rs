//! JSON as a value of Lua.

use mlua::{Lua, Number, Table, Value};

use super::{DEPTH_MAX, JsonFailure};

pub(super) fn decode(lua: &Lua, text: &[u8]) -> Result<Value, JsonFailure> {
    // JSON begins with two characters of ASCII, and one of them has a zero byte in those encodings (RFC 4627, 3).
    if text.len() >= 2 && text[..2].contains(&0) {
        return Err(JsonFailure::Text("JSON parser does not support UTF-16 or UTF-32".to_owned()));
    }

    let mut decoder = JsonDecoder { lua, text, at: 0, depth: 0 };
    let first = decoder.next();
    let value = decoder.value(first)?;
    let rest = decoder.next();
    if matches!(rest.kind, JsonTokenKind::End) { Ok(value) } else { Err(expected("the end", &rest)) }
}

/// A part of a text.
struct JsonToken {
    kind: JsonTokenKind,
    /// The position at which it begins, from 0.
    at: usize,
}

enum JsonTokenKind {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String(Vec<u8>),
    Number(Number),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

impl JsonTokenKind {
    /// Its name in errors.
    fn name(&self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::String(_) => "T_STRING",
            Self::Number(_) => "T_NUMBER",
            Self::Boolean(_) => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Error(text) => text,
        }
    }
}

fn expected(what: &str, found: &JsonToken) -> JsonFailure {
    JsonFailure::Text(format!("Expected {what} but found {} at character {}", found.kind.name(), found.at + 1))
}

struct JsonDecoder<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl JsonDecoder<'_> {
    fn value(&mut self, token: JsonToken) -> Result<Value, JsonFailure> {
        match token.kind {
            JsonTokenKind::String(bytes) => Ok(Value::String(self.lua.create_string(bytes)?)),
            JsonTokenKind::Number(number) => Ok(Value::Number(number)),
            JsonTokenKind::Boolean(boolean) => Ok(Value::Boolean(boolean)),
            JsonTokenKind::Null => Ok(Value::NULL),
            JsonTokenKind::ObjectBegin => self.nested(Self::object).map(Value::Table),
            JsonTokenKind::ArrayBegin => self.nested(Self::array).map(Value::Table),
            JsonTokenKind::ObjectEnd
            | JsonTokenKind::ArrayEnd
            | JsonTokenKind::Colon
            | JsonTokenKind::Comma
            | JsonTokenKind::End
            | JsonTokenKind::Error(_) => Err(expected("value", &token)),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Table, JsonFailure>) -> Result<Table, JsonFailure> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(JsonFailure::Text(format!(
                "Found too many nested data structures ({}) at character {}",
                self.depth, self.at
            )));
        }

        let table = read(self)?;
        self.depth -= 1;
        Ok(table)
    }

    fn object(&mut self) -> Result<Table, JsonFailure> {
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if matches!(token.kind, JsonTokenKind::ObjectEnd) {
            return Ok(table);
        }

        loop {
            let JsonTokenKind::String(key) = token.kind else { return Err(expected("object key string", &token)) };
            let colon = self.next();
            if !matches!(colon.kind, JsonTokenKind::Colon) {
                return Err(expected("colon", &colon));
            }
            let first = self.next();
            let value = self.value(first)?;
            table.raw_set(self.lua.create_string(key)?, value)?;

            token = self.next();
            match token.kind {
                JsonTokenKind::ObjectEnd => return Ok(table),
                JsonTokenKind::Comma => token = self.next(),
                _ => return Err(expected("comma or object end", &token)),
            }
        }
    }

    fn array(&mut self) -> Result<Table, JsonFailure> {
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if matches!(token.kind, JsonTokenKind::ArrayEnd) {
            return Ok(table);
        }

        for index in 1_i64.. {
            let value = self.value(token)?;
            table.raw_set(index, value)?;

            token = self.next();
            match token.kind {
                JsonTokenKind::ArrayEnd => break,
                JsonTokenKind::Comma => token = self.next(),
                _ => return Err(expected("comma or array end", &token)),
            }
        }
        Ok(table)
    }

    fn next(&mut self) -> JsonToken {
        while self.text.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }

        let at = self.at;
        let rest = &self.text[at..];
        let punctuation = match rest.first() {
            // The library reads a string of C, which a zero byte ends.
            None | Some(0) => return JsonToken { kind: JsonTokenKind::End, at },
            Some(b'{') => JsonTokenKind::ObjectBegin,
            Some(b'}') => JsonTokenKind::ObjectEnd,
            Some(b'[') => JsonTokenKind::ArrayBegin,
            Some(b']') => JsonTokenKind::ArrayEnd,
            Some(b':') => JsonTokenKind::Colon,
            Some(b',') => JsonTokenKind::Comma,
            Some(b'"') => return self.string(),
            Some(first) => {
                let (kind, length) = word(*first, rest);
                self.at += length;
                return JsonToken { kind, at };
            }
        };
        self.at += 1;
        JsonToken { kind: punctuation, at }
    }

    fn string(&mut self) -> JsonToken {
        let start = self.at;
        let mut at = start + 1;
        let mut bytes = Vec::new();
        loop {
            let failed = |text| JsonToken { kind: JsonTokenKind::Error(text), at };
            match self.text.get(at) {
                None | Some(0) => return failed("unexpected end of string"),
                Some(b'"') => break,
                Some(b'\\') => match self.text.get(at + 1) {
                    Some(b'u') => match unicode_escape(&self.text[at..]) {
                        Some((character, length)) => {
                            bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                            at += length;
                        }
                        None => return failed("invalid unicode escape code"),
                    },
                    Some(escaped) => match escaped_byte(*escaped) {
                        Some(byte) => {
                            bytes.push(byte);
                            at += 2;
                        }
                        None => return failed("invalid escape code"),
                    },
                    None => return failed("invalid escape code"),
                },
                Some(byte) => {
                    bytes.push(*byte);
                    at += 1;
                }
            }
        }

        self.at = at + 1;
        JsonToken { kind: JsonTokenKind::String(bytes), at: start }
    }
}

fn escaped_byte(escaped: u8) -> Option<u8> {
    match escaped {
        b'"' | b'\\' | b'/' => Some(escaped),
        b'b' => Some(8),
        b't' => Some(b'\t'),
        b'n' => Some(b'\n'),
        b'f' => Some(12),
        b'r' => Some(b'\r'),
        _ => None,
    }
}

/// Reads `\uXXXX`, or two of it that stand for one character, and returns the number of bytes as well.
fn unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let unit = |text: &[u8]| {
        let digits = text.strip_prefix(b"\\u")?.get(..4)?;
        let digits =
            std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|it| it.is_ascii_hexdigit()))?;
        u32::from_str_radix(digits, 16).ok()
    };

    let first = unit(text)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first).map(|character| (character, 6));
    }
    let second = unit(text.get(6..)?).filter(|second| (0xdc00..0xe000).contains(second))?;
    char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).map(|character| (character, 12))
}

/// Reads a number or a literal, and returns its length as well.
fn word(first: u8, rest: &[u8]) -> (JsonTokenKind, usize) {
    if first == b'-' || first.is_ascii_digit() || is_lax_number(rest) {
        return match number(rest) {
            Some((number, length)) => (JsonTokenKind::Number(number), length),
            None => (JsonTokenKind::Error("invalid number"), 0),
        };
    }
    for (literal, kind) in [
        ("true", JsonTokenKind::Boolean(true)),
        ("false", JsonTokenKind::Boolean(false)),
        ("null", JsonTokenKind::Null),
    ] {
        if rest.starts_with(literal.as_bytes()) {
            return (kind, literal.len());
        }
    }
    (JsonTokenKind::Error("invalid token"), 0)
}

/// Whether it begins like a number that the library accepts and JSON does not.
fn is_lax_number(rest: &[u8]) -> bool {
    rest[0] == b'+' || starts_with_word(rest, b"inf") || starts_with_word(rest, b"nan")
}

fn starts_with_word(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word))
}

/// Reads a number as `strtod` does, and returns its length as well.
fn number(text: &[u8]) -> Option<(Number, usize)> {
    let is_negative = text[0] == b'-';
    let sign = usize::from(is_negative || text[0] == b'+');
    let rest = &text[sign..];
    let (magnitude, length) = if starts_with_word(rest, b"infinity") {
        (Number::INFINITY, 8)
    } else if starts_with_word(rest, b"inf") {
        (Number::INFINITY, 3)
    } else if starts_with_word(rest, b"nan") {
        (Number::NAN, 3)
    } else if starts_with_word(rest, b"0x") && rest.get(2).is_some_and(u8::is_ascii_hexdigit) {
        hexadecimal(rest)
    } else {
        decimal(rest)?
    };
    Some((if is_negative { -magnitude } else { magnitude }, sign + length))
}

fn hexadecimal(text: &[u8]) -> (Number, usize) {
    let digits = text[2..].iter().map_while(|byte| char::from(*byte).to_digit(16));
    let count = digits.clone().count();
    (digits.fold(0.0, |number, digit| number * 16.0 + Number::from(digit)), 2 + count)
}

fn decimal(text: &[u8]) -> Option<(Number, usize)> {
    let digits = |from: usize| text[from.min(text.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(0);
    let mut end = whole;
    let mut fraction = 0;
    if text.get(end) == Some(&b'.') {
        fraction = digits(end + 1);
        end += 1 + fraction;
    }
    if whole + fraction == 0 {
        return None;
    }

    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    let number = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
    Some((number, end))
}
