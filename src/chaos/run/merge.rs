//! Merges the parts that the processes wrote into one history.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Write as _},
    iter,
    path::Path,
};

use serde::Deserialize;

use crate::{
    history::{Event, Fact, History, Meta, ReadError, What, Writer},
    parties::programs::PROGRAM,
};

#[derive(Deserialize)]
struct TimedEvent {
    time_ns: u64,
}

/// A line of a part: its time, its number in the file, and its text.
type HistoryLine = (u64, usize, String);

/// Writes the history, sorted by time. A killed process may have left an incomplete last line, which is dropped.
///
/// The part of a program of the user's own is checked by itself first. One that is not a history is left out, because it would cost the
/// verdict on all others. Returns a sentence about each of these, with its file and its line.
pub(super) fn merge(parts: &Path, meta: Meta, out: &Path) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut left_out = Vec::new();
    let meta = first_line(meta)?;
    let mut paths = fs::read_dir(parts)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // Lines of the same time are in the order of the parts' names.
    paths.sort();
    for path in paths {
        let from_program = is_from_program(&path);
        let part = read(&path).and_then(|part| if from_program { checked(&meta, part) } else { Ok(part) });
        match part {
            Ok(part) => lines.extend(part),
            Err(problem) if from_program => left_out.push(format!(
                "what a program wrote is not a history, and is left out of the verdict: {}: {problem}: correct the program",
                path.display()
            )),
            Err(problem) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", path.display())));
            }
        }
    }
    // The sort is stable: lines of one process with the same time keep their order.
    lines.sort_by_key(|(time_ns, ..)| *time_ns);

    let mut file = BufWriter::new(File::create_new(out)?);
    file.write_all(meta.as_bytes())?;
    for (.., line) in lines {
        writeln!(file, "{line}")?;
    }
    file.flush()?;
    Ok(left_out)
}

/// The first line of a history.
fn first_line(meta: Meta) -> io::Result<String> {
    let mut writer = Writer::new(Vec::new());
    let what = What::Fact(Fact::Meta(meta));
    writer.write(&Event { time_ns: 0, process: "nemesis".to_owned(), op: None, locks: Vec::new(), what })?;
    String::from_utf8(writer.into_inner()).map_err(|invalid| io::Error::new(io::ErrorKind::InvalidData, invalid))
}

/// Whether a part was written by a program of the user's own.
fn is_from_program(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PROGRAM))
}

/// Reads the lines of a part. Fails with the line and the problem.
fn read(path: &Path) -> Result<Vec<HistoryLine>, String> {
    let mut source = BufReader::new(File::open(path).map_err(|error| error.to_string())?);
    let mut lines = Vec::new();
    for number in 1.. {
        let problem = |error: &dyn std::fmt::Display| format!("line {number}: {error}");
        let mut line = String::new();
        let length = source.read_line(&mut line).map_err(|error| problem(&error))?;

        if length == 0 || !line.ends_with('\n') {
            break;
        }
        line.truncate(line.len() - 1);

        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }

        let TimedEvent { time_ns } = serde_json::from_str(&line).map_err(|error| problem(&error))?;
        lines.push((time_ns, number, line));
    }
    Ok(lines)
}

/// Returns the lines if they are a history by themselves. Fails with the line and the problem.
fn checked(meta: &str, mut part: Vec<HistoryLine>) -> Result<Vec<HistoryLine>, String> {
    part.sort_by_key(|(time_ns, ..)| *time_ns);
    let lines = part.iter().map(|(.., line)| format!("{line}\n"));
    let text: String = iter::once(meta.to_owned()).chain(lines).collect();

    match History::read(text.as_bytes()) {
        Ok(_) => Ok(part),
        Err(ReadError::Line { line, what }) => {
            // The first line is the meta.
            let number = line.checked_sub(2).and_then(|at| part.get(at)).map_or(0, |(_, number, _)| *number);
            Err(format!("line {number}: {what}"))
        }
        Err(error @ ReadError::Io(_)) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_one_history_and_half_a_line_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let parts = folder.path().join("parts");
        fs::create_dir(&parts).unwrap();
        let fact = |time: u64, f: &str| format!(r#"{{"time_ns":{time},"process":"nemesis","type":"info","f":"{f}"}}"#);
        fs::write(parts.join("a"), format!("{}\n{}\n", fact(1, "one"), fact(3, "three"))).unwrap();
        fs::write(parts.join("b"), format!("{}\n{{\"time_ns\":4", fact(2, "two"))).unwrap();
        let out = folder.path().join("history.jsonl");
        assert_eq!(merge(&parts, Meta::new(), &out).unwrap(), [""; 0]);
        let history = History::read(BufReader::new(File::open(&out).unwrap())).unwrap();
        let times: Vec<_> = history.events.iter().map(|(_, event)| event.time_ns).collect();
        assert_eq!(times, [0, 1, 2, 3]);
        assert!(merge(&parts, Meta::new(), &out).is_err(), "it overwrites nothing");
    }

    /// It would cost the verdict on all others, with the number of a line that is nowhere.
    #[test]
    fn a_program_whose_history_is_wrong_is_named_and_left_out() {
        let acquired = r#"{"time_ns":5,"process":"eve","type":"ok","f":"acquire","value":{"token":1}}"#;
        let fact = r#"{"time_ns":1,"process":"bob","type":"info","f":"one"}"#;
        for (wrong, says) in [
            (
                format!("# a comment\n\n{fact}\n{acquired}\n"),
                "program2.jsonl: line 4: eve ends acquire without a begin",
            ),
            (format!("{fact}\nnot JSON\n"), "program2.jsonl: line 2: "),
            (format!("{fact}\n{{\"time_ns\":2}}\n"), "program2.jsonl: line 2: "),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let parts = folder.path().join("parts");
            fs::create_dir(&parts).unwrap();
            fs::write(parts.join("program1.jsonl"), format!("{fact}\n")).unwrap();
            fs::write(parts.join("program2.jsonl"), &wrong).unwrap();
            let out = folder.path().join("history.jsonl");
            let left_out = merge(&parts, Meta::new(), &out).unwrap();
            assert!(left_out.len() == 1 && left_out[0].contains(says), "{left_out:?}");
            let history = History::read(BufReader::new(File::open(&out).unwrap())).unwrap();
            assert_eq!(history.events.len(), 2, "the meta, and that of the other program");
            // One of our own is a mistake of ours.
            fs::rename(parts.join("program2.jsonl"), parts.join("clients.jsonl")).unwrap();
            let out = folder.path().join("again.jsonl");
            let error = merge(&parts, Meta::new(), &out);
            assert!(
                !wrong.contains("not JSON")
                    || error.is_err_and(|error| error.to_string().contains("clients.jsonl: line"))
            );
        }
    }
}
