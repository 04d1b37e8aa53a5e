//! Output on stdout: text in columns, or JSON.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

/// The output format of a command.
#[derive(Args, Debug)]
pub(super) struct Output {
    /// Output format
    #[arg(short, long = "output", value_enum, default_value_t = Format::Text)]
    pub(super) output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Format {
    /// For people
    #[value(alias = "table")]
    Text,
    /// For programs
    Json,
}

/// Writes and flushes at once, for readers of a pipe. Unlike `println!`, it returns an error when stdout is closed.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// One document, on several lines.
pub(super) fn print_document(document: &impl Serialize) -> io::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(document)?))
}

/// One document, on one line: for streams of documents.
pub(super) fn print_line(document: &impl Serialize) -> io::Result<()> {
    print(&format!("{}\n", serde_json::to_string(document)?))
}

/// An array that is written in parts, as they arrive.
#[derive(Debug, Default)]
struct Array {
    begun: bool,
}

impl Array {
    fn push(&mut self, documents: &[impl Serialize]) -> io::Result<()> {
        let mut text = String::new();
        for document in documents {
            text.push_str(if self.begun { ",\n" } else { "[\n" });
            text.push_str(&serde_json::to_string(document)?);
            self.begun = true;
        }
        print(&text)
    }

    fn end(self) -> io::Result<()> {
        print(if self.begun { "\n]\n" } else { "[]\n" })
    }
}

/// Paged output: one table or one array.
#[derive(Debug)]
pub(super) struct Pages {
    format: Format,
    table: Table,
    array: Array,
}

impl Pages {
    pub(super) fn new(format: Format, header: &[&str]) -> Self {
        Self { format, table: Table::new(header), array: Array::default() }
    }

    /// Writes one page: each entry as a row or as a document.
    pub(super) fn write<E, D: Serialize>(
        &mut self,
        entries: Vec<E>,
        row: impl Fn(&E) -> Vec<String>,
        document: impl Fn(E) -> D,
    ) -> io::Result<()> {
        match self.format {
            Format::Text => {
                entries.iter().for_each(|entry| self.table.row(row(entry)));
                print(&self.table.take())
            }
            Format::Json => self.array.push(&entries.into_iter().map(document).collect::<Vec<_>>()),
        }
    }

    pub(super) fn end(self) -> io::Result<()> {
        match self.format {
            Format::Text => Ok(()),
            Format::Json => self.array.end(),
        }
    }
}

/// Rows in aligned columns, written in one or several parts: a column never becomes narrower in a later part.
#[derive(Debug)]
pub(super) struct Table {
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str]) -> Self {
        let header = header.iter().map(|&title| title.to_owned()).collect();
        Self { widths: Vec::new(), rows: vec![header] }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text of the rows added since the last call.
    pub(super) fn take(&mut self) -> String {
        let rows = std::mem::take(&mut self.rows);
        for row in &rows {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        rows.iter().map(|row| self.line(row)).collect()
    }

    fn line(&self, row: &[String]) -> String {
        let mut line = String::new();
        for (width, cell) in self.widths.iter().zip(row) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        format!("{}\n", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_blanks() {
        let mut table = Table::new(&["NAME", "N"]);
        table.row(vec!["öffnen".into(), "1".into()]);
        table.row(vec!["b".into(), String::new()]);
        assert_eq!(table.take(), "NAME    N\nöffnen  1\nb\n");
        table.row(vec!["c".into(), "2".into()]);
        assert_eq!(table.take(), "c       2\n");
    }
}
