//! Merges the parts that the processes wrote into one history.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Write as _},
    path::Path,
};

use serde::Deserialize;

use crate::chaos::history::{Event, Fact, Meta, What, Writer};

#[derive(Deserialize)]
struct Timed {
    time_ns: u64,
}

/// Writes the history, sorted by time. A killed process may have left an incomplete last line, which is dropped.
pub(super) fn merge(parts: &Path, meta: Meta, out: &Path) -> io::Result<()> {
    let mut lines = Vec::new();
    let mut paths = fs::read_dir(parts)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // Lines of the same time are in the order of the parts' names.
    paths.sort();
    for path in paths {
        read(&path, &mut lines)?;
    }
    // Stable: lines of one process with the same time keep their order.
    lines.sort_by_key(|(time_ns, _)| *time_ns);

    let mut writer = Writer::new(BufWriter::new(File::create_new(out)?));
    let what = What::Fact(Fact::Meta(meta));
    writer.write(&Event { time_ns: 0, process: "nemesis".to_owned(), op: None, locks: Vec::new(), what })?;
    let mut file = writer.into_inner();
    for (_, line) in lines {
        writeln!(file, "{line}")?;
    }
    file.flush()
}

fn read(path: &Path, lines: &mut Vec<(u64, String)>) -> io::Result<()> {
    let mut source = BufReader::new(File::open(path)?);
    loop {
        let mut line = String::new();
        if source.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        line.truncate(line.len() - 1);
        let Timed { time_ns } = serde_json::from_str(&line)?;
        lines.push((time_ns, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::history::History;

    #[test]
    fn parts_become_one_history_and_half_a_line_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let parts = folder.path().join("parts");
        fs::create_dir(&parts).unwrap();
        let fact = |time: u64, f: &str| format!(r#"{{"time_ns":{time},"process":"nemesis","type":"info","f":"{f}"}}"#);
        fs::write(parts.join("a"), format!("{}\n{}\n", fact(1, "one"), fact(3, "three"))).unwrap();
        fs::write(parts.join("b"), format!("{}\n{{\"time_ns\":4", fact(2, "two"))).unwrap();
        let out = folder.path().join("history.jsonl");
        merge(&parts, Meta::new(), &out).unwrap();
        let history = History::read(BufReader::new(File::open(&out).unwrap())).unwrap();
        let times: Vec<_> = history.events.iter().map(|(_, event)| event.time_ns).collect();
        assert_eq!(times, [0, 1, 2, 3]);
        assert!(merge(&parts, Meta::new(), &out).is_err(), "it overwrites nothing");
    }
}
