//! Output on stdout: text, tables, or JSON.
//!
//! A reader may close stdout early, as `head` does. The output of most commands is printed (`print`): that nobody reads it changes neither
//! what the command does nor its exit code. What somebody must have, and streams, which end with their reader, are delivered (`deliver`).

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{
    Failure,
    table::{TableLayout, TextColumn, TextTable},
};

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

/// The output of a command that prints a table.
#[derive(Args, Debug)]
pub(super) struct TableOutput {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TableFormat::Text)]
    output: TableFormat,
    /// Leave out the line of titles
    #[arg(long)]
    no_headers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TableFormat {
    /// For people: a table that fits the terminal
    #[value(alias = "table")]
    Text,
    /// For people: with all columns, and with times in place of ages
    Wide,
    /// Only the names or ids, one a line
    Name,
    /// For programs
    Json,
}

/// What a command prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Printed {
    Table(TableLayout),
    Names,
    Json,
}

impl TableOutput {
    pub(super) fn printed(&self) -> Printed {
        let mut layout = TableLayout::for_stdout();
        layout.without_titles = self.no_headers;
        match self.output {
            TableFormat::Text => Printed::Table(layout),
            TableFormat::Wide => Printed::Table(TableLayout { is_wide: true, width: None, ..layout }),
            TableFormat::Name => Printed::Names,
            TableFormat::Json => Printed::Json,
        }
    }
}

/// Writes and flushes at once, for readers of a pipe. A stdout that its reader has closed is not an error: what the command found is in
/// its exit code, and what it has still to do is done.
pub(super) fn print(text: &str) -> io::Result<()> {
    match deliver(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        delivered => delivered,
    }
}

/// One document, on several lines, as [`print`] does.
pub(super) fn print_document(document: &impl Serialize) -> io::Result<()> {
    print(&on_several_lines(document)?)
}

/// Writes and flushes as [`print`], and fails also if the reader has closed stdout. For a stream, see [`Failure::for_stream`].
pub(super) fn deliver(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// One document, on several lines, as [`deliver`] does.
pub(super) fn deliver_document(document: &impl Serialize) -> io::Result<()> {
    deliver(&on_several_lines(document)?)
}

/// One document, on one line, as [`deliver`] does: for streams of documents.
pub(super) fn deliver_line(document: &impl Serialize) -> io::Result<()> {
    deliver(&format!("{}\n", serde_json::to_string(document)?))
}

fn on_several_lines(document: &impl Serialize) -> io::Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(document)?))
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
        deliver(&text)
    }

    fn end(self) -> io::Result<()> {
        deliver(if self.begun { "\n]\n" } else { "[]\n" })
    }
}

/// Paged output: one table, a name a line, or one array.
#[derive(Debug)]
pub(super) struct Pages {
    printed: Printed,
    table: TextTable,
    array: Array,
}

impl Pages {
    pub(super) fn new(printed: Printed, columns: &[TextColumn]) -> Self {
        let layout = if let Printed::Table(layout) = printed { layout } else { TableLayout::default() };
        Self { printed, table: TextTable::new(layout, columns), array: Array::default() }
    }

    /// Writes one page: each entry as a row, as its name, or as a document. Further pages are not asked for without a reader.
    pub(super) fn write<E: Serialize>(
        &mut self,
        entries: &[E],
        row: impl Fn(&E) -> Vec<String>,
        name: impl Fn(&E) -> String,
    ) -> Result<(), Failure> {
        let written = match self.printed {
            Printed::Table(_) => {
                entries.iter().for_each(|entry| self.table.row(row(entry)));
                deliver(&self.table.take())
            }
            Printed::Names => deliver(&entries.iter().map(|entry| name(entry) + "\n").collect::<String>()),
            Printed::Json => self.array.push(entries),
        };
        written.map_err(Failure::for_stream)
    }

    pub(super) fn end(self) -> Result<(), Failure> {
        match self.printed {
            Printed::Table(_) | Printed::Names => Ok(()),
            Printed::Json => self.array.end().map_err(Failure::for_stream),
        }
    }
}
