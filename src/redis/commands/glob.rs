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

/// Matches one byte with a class, and returns the length of the class.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
    let mut is_in = false;
    let (is_negated, length) = read_class(class, |low, high| is_in |= (low..=high).contains(&byte));
    (is_in != is_negated).then_some(length)
}

/// Reads a class, and returns whether it is negated, and its length. A class without an end reaches to the end of the pattern.
fn read_class(class: &[u8], mut add_range: impl FnMut(u8, u8)) -> (bool, usize) {
    let is_negated = class.first() == Some(&b'^');
    let mut at = usize::from(is_negated);

    loop {
        match class.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                add_range(*escaped, *escaped);
                at += 2;
            }
            [first, b'-', last, ..] => {
                add_range(*first.min(last), *first.max(last));
                at += 3;
            }
            [literal, ..] => {
                add_range(*literal, *literal);
                at += 1;
            }
        }
    }
    (is_negated, at)
}

/// A pattern that is compared with many texts. All its places to which a text may have led are followed at once, as bits of a few words: a
/// pattern takes as many steps for each byte as it has words, whatever its signs are.
#[derive(Debug)]
pub(crate) struct GlobMatcher {
    /// Words that hold one bit for each place: before each sign, and behind the last one.
    words: usize,
    /// The place behind the last sign.
    end: usize,
    /// The places at which a `*` stands.
    stars: Vec<u64>,
    /// The places whose sign matches more than half of all bytes.
    wide: Vec<u64>,
    /// For each byte the places at which it is an exception: what is not wide matches it, and what is wide does not.
    exceptions: Vec<u64>,
}

/// The bytes that a sign of a pattern matches: one bit for each.
type ByteBits = [u64; 4];

impl GlobMatcher {
    /// Reads a pattern.
    pub(crate) fn new(pattern: &[u8]) -> Self {
        // No pattern has more signs than bytes.
        let words = pattern.len() / 64 + 1;
        let mut matcher =
            Self { words, end: 0, stars: vec![0; words], wide: vec![0; words], exceptions: vec![0; 256 * words] };

        let mut at = 0;
        while let Some(rest) = pattern.get(at..)
            && let Some(first) = rest.first()
        {
            if *first == b'*' {
                matcher.stars[matcher.end / 64] |= 1 << (matcher.end % 64);
                at += 1;
            } else {
                let (bytes, length) = read_sign(rest);
                matcher.add_sign(bytes);
                at += length;
            }
        }
        matcher
    }

    fn add_sign(&mut self, mut bytes: ByteBits) {
        let word = self.end / 64;
        let bit = 1 << (self.end % 64);
        self.end += 1;

        if bytes.iter().map(|bits| bits.count_ones()).sum::<u32>() > 128 {
            self.wide[word] |= bit;
            bytes = bytes.map(|bits| !bits);
        }
        for byte in (0..256).filter(|byte| (bytes[byte / 64] >> (byte % 64)) & 1 == 1) {
            self.exceptions[byte * self.words + word] |= bit;
        }
    }

    /// Whether the whole text matches.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        if self.words == 1 {
            return self.matches_in_one_word(text);
        }

        let mut places = vec![0; self.words];
        places[0] = 1;
        for byte in text {
            let exceptions = &self.exceptions[usize::from(*byte) * self.words..][..self.words];
            let mut carried = 0;
            let mut all = 0;
            for (word, place) in places.iter_mut().enumerate() {
                let moved = *place & (exceptions[word] ^ self.wide[word]);
                *place = (moved << 1) | carried | (*place & self.stars[word]);
                carried = moved >> 63;
                all |= *place;
            }
            if all == 0 {
                return false;
            }
        }
        (places[self.end / 64] >> (self.end % 64)) & 1 == 1
    }

    /// The same without memory of its own: nearly all patterns are that short.
    fn matches_in_one_word(&self, text: &[u8]) -> bool {
        let mut places = 1;
        for byte in text {
            let moved = places & (self.exceptions[usize::from(*byte)] ^ self.wide[0]);
            places = (moved << 1) | (places & self.stars[0]);
            if places == 0 {
                return false;
            }
        }
        (places >> self.end) & 1 == 1
    }

    /// Number of steps that a comparison with a text of so many bytes takes at most.
    pub(crate) fn steps(&self, text_bytes: usize) -> usize {
        1 + text_bytes.saturating_mul(self.words)
    }
}

/// The bytes that the first sign of a pattern matches, which is not a `*`, and how much of the pattern it takes.
fn read_sign(pattern: &[u8]) -> (ByteBits, usize) {
    let mut bytes = ByteBits::default();

    match pattern {
        [b'?', ..] => return ([u64::MAX; 4], 1),
        [b'[', class @ ..] => {
            let (is_negated, length) = read_class(class, |low, high| add_range(&mut bytes, low, high));
            return (if is_negated { bytes.map(|bits| !bits) } else { bytes }, length + 1);
        }
        [b'\\', escaped, ..] => {
            add_range(&mut bytes, *escaped, *escaped);
            return (bytes, 2);
        }
        [literal, ..] => add_range(&mut bytes, *literal, *literal),
        [] => {}
    }
    (bytes, 1)
}

/// Adds the bytes from `low` to `high`, word by word.
fn add_range(bytes: &mut ByteBits, low: u8, high: u8) {
    for (bits, first) in bytes.iter_mut().zip([0_u8, 64, 128, 192]) {
        let from = low.max(first);
        let to = high.min(first + 63);
        if from <= to {
            *bits |= (u64::MAX >> (63 - (to - from))) << (from - first);
        }
    }
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

    /// Lines of all signs, in every order.
    fn all_texts(signs: &[u8], length_max: usize) -> Vec<Vec<u8>> {
        let mut texts = vec![Vec::new()];
        let mut first = 0;
        for _ in 0..length_max {
            let end = texts.len();
            for text in first..end {
                texts.extend(signs.iter().map(|sign| [&texts[text][..], &[*sign]].concat()).collect::<Vec<_>>());
            }
            first = end;
        }
        texts
    }

    #[test]
    fn a_matcher_says_the_same() {
        let texts = all_texts(b"ab]", 2);
        let long = b"a".repeat(100);
        for pattern in all_texts(br"*?[]^-\ab", 4) {
            // Also in patterns of several words.
            let long_pattern = [&long[..], &pattern, b"*", &long].concat();
            let matchers = [GlobMatcher::new(&pattern), GlobMatcher::new(&long_pattern)];
            for text in &texts {
                let long_text = [&long[..], text, &long].concat();
                let shown = || format!("{} {}", pattern.escape_ascii(), text.escape_ascii());
                assert_eq!(matchers[0].matches(text), matches(&pattern, text), "{}", shown());
                assert_eq!(matchers[1].matches(&long_text), matches(&long_pattern, &long_text), "long {}", shown());
            }
        }
    }

    #[test]
    fn a_matcher_knows_all_bytes_of_a_class() {
        for (low, high) in [(0, 255), (0, 0), (255, 255), (63, 64), (1, 127), (100, 200)] {
            for pattern in [vec![b'[', low, b'-', high, b']'], vec![b'[', b'^', low, b'-', high, b']']] {
                let matcher = GlobMatcher::new(&pattern);
                for byte in 0..=255 {
                    assert_eq!(matcher.matches(&[byte]), matches(&pattern, &[byte]), "{pattern:?} {byte}");
                }
            }
        }
    }

    /// A comparison with stars in between would go back again and again.
    #[test]
    fn a_matcher_takes_few_steps_for_each_byte_whatever_the_pattern_is() {
        for pattern in ["*a".repeat(512), format!("*{}b", "a".repeat(1022)), "*[^b]?".repeat(170)] {
            let matcher = GlobMatcher::new(pattern.as_bytes());
            assert!(matcher.steps(1024) < 20_000, "{} steps", matcher.steps(1024));
            assert!(!matcher.matches(&[b'b'; 200]), "{pattern}");
        }
        assert!(GlobMatcher::new(b"*:lock:*").steps(1024) < 1100);
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
