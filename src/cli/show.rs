//! Formats values for people.

use std::{fmt, time::Duration};

use jiff::{Timestamp, tz::TimeZone};

use crate::{
    client::LockKind,
    machine::{Mode, WallTime},
};

/// Longest text in a table cell, characters.
const CELL_MAX: usize = 48;

/// A name, a label or a reason. Control characters are escaped, and those that turn the direction of what follows: a name must not control
/// the terminal, nor look like another one.
pub(super) fn text(value: &str) -> String {
    let steers = |c: char| c.is_control() || DIRECTIONS.contains(&c);
    value.chars().flat_map(|c| if steers(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Unicode's controls of the direction of writing (UAX #9).
const DIRECTIONS: [char; 12] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}',
    '\u{2067}', '\u{2068}', '\u{2069}',
];

/// As [`text`], cut to [`CELL_MAX`].
pub(super) fn cell(value: &str) -> String {
    let value = text(value);
    match value.char_indices().nth(CELL_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value,
    }
}

/// The data of a lock: as text if it is valid text, otherwise in hexadecimal, cut to [`CELL_MAX`]. What is cut has its length.
pub(super) fn data(data: &[u8]) -> String {
    let begin = data_begin(data);
    if begin.ends_with('…') { format!("{begin} ({})", count(data.len(), "byte", "bytes")) } else { begin }
}

/// As [`data`], without the length.
pub(super) fn data_begin(data: &[u8]) -> String {
    match std::str::from_utf8(data) {
        Ok(value) if value.chars().all(|c| !c.is_control() || c.is_whitespace()) => cell(value),
        Ok(_) | Err(_) => cell(&format!("0x{}", hex(data))),
    }
}

pub(super) fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The words after the mode: nothing for an ordinary lock.
pub(super) fn kind(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Entry => " (entry)",
        LockKind::Lock | _ => "",
    }
}

pub(super) fn mode(mode: Option<Mode>) -> String {
    match mode {
        Some(Mode::Exclusive) => "exclusive".into(),
        Some(Mode::Shared) => "shared".into(),
        Some(Mode::Permit(permits)) => format!("permit of {}", permits.get()),
        None => "-".into(),
    }
}

/// A number of things, in the word that fits.
pub(super) fn count<N: fmt::Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    let word = if number == N::from(1) { one } else { many };
    format!("{number} {word}")
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A duration in its two largest units.
pub(super) fn duration(duration: Duration) -> String {
    let ms = millis(duration);
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds}.{} s", ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A wall-clock time in the local time zone.
pub(super) fn time(time: Timestamp) -> String {
    time_in(time, TimeZone::system())
}

fn time_in(time: Timestamp, zone: TimeZone) -> String {
    time.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// The time since then, in its largest unit: for columns of tables.
#[expect(clippy::disallowed_methods, reason = "shown to people; nothing is decided by it")]
pub(super) fn age(time: WallTime) -> String {
    age_at(time.0, Timestamp::now())
}

fn age_at(unix_ms: u64, now: Timestamp) -> String {
    // The clocks of two machines differ: a time in the future is shown as now.
    let ms = u64::try_from(now.as_millisecond()).unwrap_or(0).saturating_sub(unix_ms);
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A wall-clock time and its age.
#[expect(clippy::disallowed_methods, reason = "shown to people; nothing is decided by it")]
pub(super) fn since(time: WallTime) -> String {
    since_in(time.0, Timestamp::now(), TimeZone::system())
}

fn since_in(unix_ms: u64, now: Timestamp, zone: TimeZone) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let Some(time) = time else { return "-".into() };
    // The clocks of two machines differ: a time in the future is shown as now.
    let ago = now.as_millisecond().saturating_sub(time.as_millisecond());
    let ago = duration(Duration::from_millis(u64::try_from(ago).unwrap_or(0)));
    format!("{} ({ago} ago)", time_in(time, zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let said = [0u64, 1, 2].map(|number| count(number, "lock", "locks"));
        assert_eq!(said, ["0 locks", "1 lock", "2 locks"]);
    }

    #[test]
    fn durations_have_the_units_that_fit() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (9_240, "9.2 s"),
            (61_000, "1 min 1 s"),
            (3_723_000, "1 h 2 min"),
            (604_800_000, "7 d 0 h"),
        ];
        for (ms, shown) in cases {
            assert_eq!(duration(Duration::from_millis(ms)), shown);
        }
    }

    #[test]
    fn data_is_text_where_it_is_one_and_never_steers_the_terminal() {
        assert_eq!(data(b"to do: all"), "to do: all");
        assert_eq!(data(b"two\nlines"), "two\\nlines");
        assert_eq!(data(b"\x1b[2J"), "0x1b5b324a");
        assert_eq!(data(&[0xff, 0]), "0xff00");
        assert_eq!(data(&[b'x'; 100]), format!("{}… (100 bytes)", "x".repeat(48)));
        assert_eq!(text("a\x1bb"), "a\\u{1b}b");
        assert_eq!(text("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn an_age_has_one_unit() {
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        let ages =
            [999_999_999_500, 999_999_941_000, 999_999_939_000, 999_992_000_000, 999_000_000_000, 1_000_000_001_000];
        assert_eq!(ages.map(|at| age_at(at, now)), ["0 s", "59 s", "1 min", "2 h", "11 d", "0 s"]);
    }

    #[test]
    fn a_time_is_shown_with_its_distance() {
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        assert_eq!(since_in(999_999_991_000, now, TimeZone::UTC), "2001-09-09 01:46:31 (9.0 s ago)");
        assert_eq!(since_in(1_000_000_001_000, now, TimeZone::UTC), "2001-09-09 01:46:41 (0 ms ago)");
        assert_eq!(since_in(u64::MAX, now, TimeZone::UTC), "-");
    }
}
