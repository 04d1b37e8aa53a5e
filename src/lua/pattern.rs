//! Lua's patterns, matched in bounded time.
//!
//! The library of Lua 5.1 matches by recursion, as deep as the pattern is long, and tries all ways to match: a pattern of a few bytes can
//! take hours, and a long one can overflow the thread's stack. No hook of the interpreter is called meanwhile. So the functions that take
//! patterns are here: each comparison is charged to the [`RunBudget`], and the recursion has a limit.
//!
//! All else is as in Lua 5.1, its texts of errors included. A pattern ends at its first zero byte, since there it is a string of C.

use crate::budget::{RunBudget, RunEnded};

/// The character that gives others a meaning.
const ESCAPE: u8 = b'%';

/// The most captures of a pattern.
const CAPTURES_MAX: usize = 32;

/// The most matches within matches. Lua 5.1 has no such limit and overflows its stack; Lua 5.2 has the same.
const DEPTH_MAX: usize = 200;

/// Comparisons that cost as much as one instruction of the interpreter.
const COMPARISONS_PER_INSTRUCTION: u64 = 2;

/// Why a match has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchFailure {
    /// The pattern is wrong: the text of Lua.
    Pattern(&'static str),
    /// The run is over.
    Ended(RunEnded),
}

impl From<RunEnded> for MatchFailure {
    fn from(ended: RunEnded) -> Self {
        Self::Ended(ended)
    }
}

/// A captured part of the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// The text from this position, with this length.
    Part(usize, usize),
    /// The position alone, from 0.
    Position(usize),
    /// Its end was not reached yet.
    Open(usize),
}

/// A pattern at work on a subject.
pub(crate) struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<Capture>,
    depth: usize,
    budget: &'a RunBudget,
    /// Comparisons that were not charged yet.
    uncharged: u64,
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(subject: &'a [u8], pattern: &'a [u8], budget: &'a RunBudget) -> Self {
        Self { subject, pattern: until_zero(pattern), captures: Vec::new(), depth: 0, budget, uncharged: 0 }
    }

    /// What the run may still cost.
    pub(crate) fn budget(&self) -> &'a RunBudget {
        self.budget
    }

    /// Matches the pattern from its byte `from` at a position of the subject, and returns the position after the match.
    pub(crate) fn match_at(&mut self, position: usize, from: usize) -> Result<Option<usize>, MatchFailure> {
        self.captures.clear();
        self.depth = 0;
        self.charge(1)?;

        self.advance(position, from)
    }

    /// The captures of the last match. Without any in the pattern, the whole match is the only one.
    pub(crate) fn captured(&self, start: usize, end: usize) -> Result<Vec<Capture>, MatchFailure> {
        if self.captures.is_empty() {
            return Ok(vec![Capture::Part(start, end - start)]);
        }
        self.own_captures()
    }

    /// The captures that the pattern names.
    pub(crate) fn own_captures(&self) -> Result<Vec<Capture>, MatchFailure> {
        if self.captures.iter().any(|capture| matches!(capture, Capture::Open(_))) {
            return Err(MatchFailure::Pattern("unfinished capture"));
        }
        Ok(self.captures.clone())
    }

    /// One capture of the last match, from 0.
    pub(crate) fn capture(&self, index: usize, start: usize, end: usize) -> Result<Capture, MatchFailure> {
        match self.captures.get(index) {
            None if index == 0 => Ok(Capture::Part(start, end - start)),
            None => Err(MatchFailure::Pattern("invalid capture index")),
            Some(Capture::Open(_)) => Err(MatchFailure::Pattern("unfinished capture")),
            Some(capture) => Ok(*capture),
        }
    }

    fn charge(&mut self, comparisons: u64) -> Result<(), RunEnded> {
        self.uncharged += comparisons;
        // Each charge reads the clock, so comparisons are charged by the hundred.
        if self.uncharged < 512 {
            return Ok(());
        }
        self.budget.spend(std::mem::take(&mut self.uncharged) / COMPARISONS_PER_INSTRUCTION)
    }

    fn advance(&mut self, position: usize, at: usize) -> Result<Option<usize>, MatchFailure> {
        if self.depth == DEPTH_MAX {
            return Err(MatchFailure::Pattern("pattern too complex"));
        }

        self.depth += 1;
        let matched = self.items(position, at);
        self.depth -= 1;
        matched
    }

    /// Matches the items of the pattern from `at`, one after the other. What must be tried in more ways than one calls [`Self::advance`].
    fn items(&mut self, mut position: usize, mut at: usize) -> Result<Option<usize>, MatchFailure> {
        loop {
            self.charge(1)?;
            match (self.pattern.get(at), self.pattern.get(at + 1)) {
                (None, _) => return Ok(Some(position)),
                (Some(b'('), Some(b')')) => return self.open(position, at + 2, Capture::Position(position)),
                (Some(b'('), _) => return self.open(position, at + 1, Capture::Open(position)),
                (Some(b')'), _) => return self.close(position, at + 1),
                (Some(b'$'), None) => return Ok((position == self.subject.len()).then_some(position)),
                (Some(&ESCAPE), Some(b'b')) => match self.balanced(position, at + 2)? {
                    Some(end) => {
                        position = end;
                        at += 4;
                    }
                    None => return Ok(None),
                },
                (Some(&ESCAPE), Some(b'f')) => match self.frontier(position, at + 2)? {
                    Some(end) => at = end,
                    None => return Ok(None),
                },
                (Some(&ESCAPE), Some(digit)) if digit.is_ascii_digit() => match self.repeated(position, *digit)? {
                    Some(end) => {
                        position = end;
                        at += 2;
                    }
                    None => return Ok(None),
                },
                _ => {
                    let end = self.class_end(at)?;
                    let fits = self.fits(position, at, end);

                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if fits && let Some(matched) = self.advance(position + 1, end + 1)? {
                                return Ok(Some(matched));
                            }
                            at = end + 1;
                        }
                        Some(b'*') => return self.most(position, at, end),
                        Some(b'+') if fits => return self.most(position + 1, at, end),
                        Some(b'-') => return self.least(position, at, end),
                        _ if fits && self.pattern.get(end) != Some(&b'+') => {
                            position += 1;
                            at = end;
                        }
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// Matches as often as possible, then less often.
    fn most(&mut self, position: usize, at: usize, end: usize) -> Result<Option<usize>, MatchFailure> {
        let mut count = 0;
        while self.fits(position + count, at, end) {
            self.charge(1)?;
            count += 1;
        }

        loop {
            let matched = self.advance(position + count, end + 1)?;
            if matched.is_some() || count == 0 {
                return Ok(matched);
            }
            count -= 1;
        }
    }

    /// Matches as seldom as possible, then more often.
    fn least(&mut self, mut position: usize, at: usize, end: usize) -> Result<Option<usize>, MatchFailure> {
        loop {
            let matched = self.advance(position, end + 1)?;
            if matched.is_some() || !self.fits(position, at, end) {
                return Ok(matched);
            }
            position += 1;
        }
    }

    fn open(&mut self, position: usize, at: usize, capture: Capture) -> Result<Option<usize>, MatchFailure> {
        if self.captures.len() >= CAPTURES_MAX {
            return Err(MatchFailure::Pattern("too many captures"));
        }

        let level = self.captures.len();
        self.captures.push(capture);
        let matched = self.advance(position, at)?;
        if matched.is_none() {
            self.captures.truncate(level);
        }
        Ok(matched)
    }

    fn close(&mut self, position: usize, at: usize) -> Result<Option<usize>, MatchFailure> {
        let open = self.captures.iter().rposition(|capture| matches!(capture, Capture::Open(_)));
        let index = open.ok_or(MatchFailure::Pattern("invalid pattern capture"))?;
        let Capture::Open(start) = self.captures[index] else { unreachable!("the capture is open") };

        self.captures[index] = Capture::Part(start, position - start);
        let matched = self.advance(position, at)?;
        if matched.is_none() {
            self.captures[index] = Capture::Open(start);
        }
        Ok(matched)
    }

    /// Matches `%bxy`, from an x to the y that closes it.
    fn balanced(&mut self, position: usize, at: usize) -> Result<Option<usize>, MatchFailure> {
        let delimiters = (self.pattern.get(at), self.pattern.get(at + 1));
        let (Some(&opening), Some(&closing)) = delimiters else {
            return Err(MatchFailure::Pattern("unbalanced pattern"));
        };
        if self.subject.get(position) != Some(&opening) {
            return Ok(None);
        }

        let mut open = 1;
        for next in position + 1..self.subject.len() {
            self.charge(1)?;
            let byte = self.subject[next];
            if byte == closing {
                open -= 1;
                if open == 0 {
                    return Ok(Some(next + 1));
                }
            } else if byte == opening {
                open += 1;
            }
        }
        Ok(None)
    }

    /// Matches `%f[set]`, between a byte outside the set and one inside it. Returns the place in the pattern after the set.
    fn frontier(&mut self, position: usize, at: usize) -> Result<Option<usize>, MatchFailure> {
        if self.pattern.get(at) != Some(&b'[') {
            return Err(MatchFailure::Pattern("missing '[' after '%f' in pattern"));
        }

        let end = self.class_end(at)?;
        // Before the first byte of the subject, and behind its last one, counts a zero byte.
        let before = position.checked_sub(1).map_or(0, |before| self.subject[before]);
        let after = self.subject.get(position).copied().unwrap_or(0);
        let is_frontier = !self.in_set(before, at, end - 1) && self.in_set(after, at, end - 1);
        Ok(is_frontier.then_some(end))
    }

    /// Matches `%1` to `%9`, what was captured, once more.
    fn repeated(&mut self, position: usize, digit: u8) -> Result<Option<usize>, MatchFailure> {
        let captured = (digit as usize).checked_sub(b'1' as usize).and_then(|index| self.captures.get(index));
        let (start, length) = match captured {
            Some(Capture::Part(start, length)) => (*start, *length),
            // A position has no text. Lua would compare bytes of unrelated memory; this does not match.
            Some(Capture::Position(_)) => return Ok(None),
            Some(Capture::Open(_)) | None => return Err(MatchFailure::Pattern("invalid capture index")),
        };

        self.charge(length as u64)?;
        let again = self.subject[position..].starts_with(&self.subject[start..start + length]);
        Ok(again.then_some(position + length))
    }

    /// The end of the item that begins at `at`: one character, one class, or one set.
    fn class_end(&self, at: usize) -> Result<usize, MatchFailure> {
        match self.pattern[at] {
            ESCAPE if at + 1 < self.pattern.len() => Ok(at + 2),
            ESCAPE => Err(MatchFailure::Pattern("malformed pattern (ends with '%')")),
            b'[' => self.set_end(at),
            _ => Ok(at + 1),
        }
    }

    fn set_end(&self, at: usize) -> Result<usize, MatchFailure> {
        let mut next = at + 1;
        if self.pattern.get(next) == Some(&b'^') {
            next += 1;
        }

        // The first byte of a set belongs to it, even a bracket.
        loop {
            let byte = self.pattern.get(next).ok_or(MatchFailure::Pattern("malformed pattern (missing ']')"))?;
            next += 1;
            if *byte == ESCAPE && next < self.pattern.len() {
                next += 1;
            }
            if self.pattern.get(next) == Some(&b']') {
                return Ok(next + 1);
            }
        }
    }

    /// Whether the item `at..end` fits the byte at a position of the subject.
    fn fits(&self, position: usize, at: usize, end: usize) -> bool {
        let Some(&byte) = self.subject.get(position) else { return false };
        match self.pattern[at] {
            b'.' => true,
            ESCAPE => in_class(byte, self.pattern[at + 1]),
            b'[' => self.in_set(byte, at, end - 1),
            literal => literal == byte,
        }
    }

    /// Whether a byte is in the set that begins with the bracket at `at`, and ends with the one at `end`.
    fn in_set(&self, byte: u8, at: usize, end: usize) -> bool {
        let mut next = at + 1;
        let is_inverted = self.pattern[next] == b'^';
        if is_inverted {
            next += 1;
        }

        while next < end {
            let first = self.pattern[next];
            if first == ESCAPE {
                if in_class(byte, self.pattern[next + 1]) {
                    return !is_inverted;
                }
                next += 2;
            } else if self.pattern[next + 1] == b'-' && next + 2 < end {
                if (first..=self.pattern[next + 2]).contains(&byte) {
                    return !is_inverted;
                }
                next += 3;
            } else {
                if first == byte {
                    return !is_inverted;
                }
                next += 1;
            }
        }
        is_inverted
    }
}

/// The bytes before the first zero byte.
fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Whether a pattern is a plain text.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !until_zero(pattern).iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// Whether a byte is in a class such as `%a`. A capital letter inverts the class. A character that names no class stands for itself.
fn in_class(byte: u8, class: u8) -> bool {
    let is_member = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        // White space of C has the vertical tab too.
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_member != class.is_ascii_uppercase()
}
