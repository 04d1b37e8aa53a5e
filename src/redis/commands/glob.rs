//! Patterns of KEYS and SCAN: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before a character that means itself.

/// Whether the whole text matches. The time is at most the product of both lengths.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut at_pattern = 0;
    let mut at_text = 0;
    // The last `*`, and the text that it was tried to end at. Only the last one has to be tried again.
    let mut star: Option<(usize, usize)> = None;

    while at_text < text.len() {
        if pattern.get(at_pattern) == Some(&b'*') {
            star = Some((at_pattern + 1, at_text));
            at_pattern += 1;
            continue;
        }
        let matched = pattern.get(at_pattern..).and_then(|rest| match_one(rest, text[at_text]));
        if let Some(consumed) = matched {
            at_pattern += consumed;
            at_text += 1;
        } else if let Some((after_star, tried)) = star {
            at_pattern = after_star;
            at_text = tried + 1;
            star = Some((after_star, tried + 1));
        } else {
            return false;
        }
    }
    pattern[at_pattern.min(pattern.len())..].iter().all(|byte| *byte == b'*')
}

/// Units of work that [`matches`] takes at most for a text of so many bytes, of 64 steps each.
pub(crate) fn work(pattern: &[u8], text_bytes: usize) -> usize {
    let star = pattern.iter().position(|byte| *byte == b'*');
    let after_star = star.map_or(&[][..], |star| &pattern[star..]);
    // A class is read as a whole at each byte. Anything else ends with the text.
    let read = |part: &[u8]| if part.contains(&b'[') { part.len() } else { part.len().min(text_bytes) };

    let begins = if after_star.iter().all(|byte| *byte == b'*') { 1 } else { text_bytes };
    let steps = read(pattern) + begins.saturating_mul(read(after_star));
    1 + text_bytes / 8 + steps / 64
}

/// The bytes that all matching texts begin with.
pub(crate) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Matches one byte with the begin of a pattern, and returns how much of the pattern it took.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => match_class(class, byte).map(|consumed| consumed + 1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Matches one byte with a class, and returns the length of the class. A class without an end reaches to the end of the pattern.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
    let is_negated = class.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_in = false;

    loop {
        match class.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                is_in |= *escaped == byte;
                at += 2;
            }
            [first, b'-', last, ..] => {
                let low = first.min(last);
                let high = first.max(last);
                is_in |= (low..=high).contains(&&byte);
                at += 3;
            }
            [literal, ..] => {
                is_in |= *literal == byte;
                at += 1;
            }
        }
    }
    (is_in != is_negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_redis() {
        for (pattern, text, is_match) in [
            ("*", "", true),
            ("lock:*", "lock:a", true),
            ("lock:*", "loc", false),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xaxxbc", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[a", "a", true),
            ("a\\", "a\\", true),
            ("", "", true),
            ("", "a", false),
            ("**a", "bba", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_little_time() {
        let pattern = "*a".repeat(500);
        let text = "a".repeat(20_000);
        assert!(!matches(format!("{pattern}b").as_bytes(), text.as_bytes()));
        assert!(matches(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn work_is_bounded_by_both_lengths_and_usual_patterns_take_little() {
        assert!(work(b"lock:*", 40) < 10);
        assert!(work(b"*:lock:*", 40) < 15);
        let hard = format!("*{}b", "a".repeat(500));
        assert!(work(hard.as_bytes(), 1_000) > 7_000);
        assert!(work(format!("*[{hard}]").as_bytes(), 10) > 70);
        assert!(work("a".repeat(1 << 20).as_bytes(), 10) < 10);
    }

    #[test]
    fn prefixes_end_at_the_first_sign() {
        assert_eq!(literal_prefix(b"lock:*"), b"lock:");
        assert_eq!(literal_prefix(b"a\\*"), b"a");
        assert_eq!(literal_prefix(b"abc"), b"abc");
    }
}
