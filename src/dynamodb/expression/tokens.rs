//! Splits an expression into tokens.

/// A token, and its position in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lexeme<'a> {
    pub(super) kind: TokenKind,
    pub(super) text: &'a str,
    pub(super) start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A name or a keyword.
    Word,
    /// A name's placeholder, `#name`.
    Name,
    /// A value's placeholder, `:value`.
    Value,
    /// The digits of an index.
    Digits,
    Symbol,
    /// A character that starts no token.
    Unknown,
    End,
}

/// Returns the tokens of a text. The last is [`TokenKind::End`].
pub(super) fn tokens(text: &str) -> Vec<Lexeme<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    loop {
        start += text[start..].len() - text[start..].trim_start_matches([' ', '\t', '\r', '\n']).len();

        let rest = &text[start..];
        let Some(first) = rest.chars().next() else {
            tokens.push(Lexeme { kind: TokenKind::End, text: "<EOF>", start });
            return tokens;
        };

        let (kind, length) = match first {
            'a'..='z' | 'A'..='Z' | '_' => (TokenKind::Word, word_length(rest)),
            '0'..='9' => (TokenKind::Digits, rest.bytes().take_while(u8::is_ascii_digit).count()),
            '#' | ':' => {
                let length = 1 + word_length(&rest[1..]);
                let kind = if first == '#' { TokenKind::Name } else { TokenKind::Value };
                (if length == 1 { TokenKind::Unknown } else { kind }, length)
            }
            '<' if rest.starts_with("<>") || rest.starts_with("<=") => (TokenKind::Symbol, 2),
            '>' if rest.starts_with(">=") => (TokenKind::Symbol, 2),
            '(' | ')' | '[' | ']' | ',' | '.' | '=' | '<' | '>' | '+' | '-' => (TokenKind::Symbol, 1),
            other => (TokenKind::Unknown, other.len_utf8()),
        };

        tokens.push(Lexeme { kind, text: &rest[..length], start });
        start += length;
    }
}

fn word_length(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

impl Lexeme<'_> {
    pub(super) fn end(&self) -> usize {
        if self.kind == TokenKind::End { self.start } else { self.start + self.text.len() }
    }

    pub(super) fn is(&self, symbol: &str) -> bool {
        self.kind == TokenKind::Symbol && self.text == symbol
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text.eq_ignore_ascii_case(word)
    }
}
