//! The words of an expression.

/// A word, and where it lies in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name or a keyword.
    Word,
    /// `#name`
    Name,
    /// `:value`
    Value,
    /// Digits: an index.
    Digits,
    Symbol,
    /// A character that begins no word.
    Unknown,
    End,
}

/// The words of a text. The last is [`Kind::End`].
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    loop {
        start += text[start..].len() - text[start..].trim_start_matches([' ', '\t', '\r', '\n']).len();
        let rest = &text[start..];
        let Some(first) = rest.chars().next() else {
            tokens.push(Token { kind: Kind::End, text: "<EOF>", start });
            return tokens;
        };
        let (kind, length) = match first {
            'a'..='z' | 'A'..='Z' | '_' => (Kind::Word, word_length(rest)),
            '0'..='9' => (Kind::Digits, rest.bytes().take_while(u8::is_ascii_digit).count()),
            '#' | ':' => {
                let length = 1 + word_length(&rest[1..]);
                let kind = if first == '#' { Kind::Name } else { Kind::Value };
                (if length == 1 { Kind::Unknown } else { kind }, length)
            }
            '<' if rest.starts_with("<>") || rest.starts_with("<=") => (Kind::Symbol, 2),
            '>' if rest.starts_with(">=") => (Kind::Symbol, 2),
            '(' | ')' | '[' | ']' | ',' | '.' | '=' | '<' | '>' | '+' | '-' => (Kind::Symbol, 1),
            other => (Kind::Unknown, other.len_utf8()),
        };
        tokens.push(Token { kind, text: &rest[..length], start });
        start += length;
    }
}

fn word_length(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        if self.kind == Kind::End { self.start } else { self.start + self.text.len() }
    }

    pub(super) fn is(&self, symbol: &str) -> bool {
        self.kind == Kind::Symbol && self.text == symbol
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(word)
    }
}
