//! Output on stdout: text, tables, or JSON.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::table::{TableLayout, TextColumn, TextTable};

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

    /// Writes one page: each entry as a row, as its name, or as a document.
    pub(super) fn write<E: Serialize>(
        &mut self,
        entries: &[E],
        row: impl Fn(&E) -> Vec<String>,
        name: impl Fn(&E) -> String,
    ) -> io::Result<()> {
        match self.printed {
            Printed::Table(_) => {
                entries.iter().for_each(|entry| self.table.row(row(entry)));
                print(&self.table.take())
            }
            Printed::Names => print(&entries.iter().map(|entry| name(entry) + "\n").collect::<String>()),
            Printed::Json => self.array.push(entries),
        }
    }

    pub(super) fn end(self) -> io::Result<()> {
        match self.printed {
            Printed::Table(_) | Printed::Names => Ok(()),
            Printed::Json => self.array.end(),
        }
    }
}
