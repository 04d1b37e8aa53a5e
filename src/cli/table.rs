//! Tables for people: rows in aligned columns.
//!
//! On a terminal a table fits its width: the columns of names and texts are cut, the others are not. Elsewhere nothing is cut, since
//! another program may read it, and a cell that is longer than [`PADDED_MAX`] does not push the cells of all other rows to the right.

use std::{io, os::fd::AsFd};

use rustix::termios::tcgetwinsize;

/// Longest cell that the cells below it are padded to, where nothing is cut, characters.
const PADDED_MAX: usize = 64;
/// A column of texts is not cut below this width, characters.
const TEXT_MIN: usize = 6;
/// Between two columns.
const GAP: &str = "  ";

/// A column, by its title.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextColumn {
    title: &'static str,
    /// Its cells are names or texts, which a terminal may cut.
    is_text: bool,
    /// It is shown only with `-o wide`.
    is_wide: bool,
}

impl TextColumn {
    /// Numbers, ids and words, which are never cut.
    pub(super) const fn exact(title: &'static str) -> Self {
        Self { title, is_text: false, is_wide: false }
    }

    /// Names or texts, which are cut where they do not fit a terminal.
    pub(super) const fn text(title: &'static str) -> Self {
        Self { title, is_text: true, is_wide: false }
    }

    /// The same column, shown only with `-o wide`.
    pub(super) const fn if_wide(self) -> Self {
        Self { is_wide: true, ..self }
    }
}

/// How tables are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TableLayout {
    /// All columns are shown.
    pub(super) is_wide: bool,
    /// The line of titles is left out.
    pub(super) without_titles: bool,
    /// The width to fit, characters. Without one, nothing is cut.
    pub(super) width: Option<usize>,
}

impl TableLayout {
    /// The layout for the present stdout: it fits a terminal, and shows whole texts elsewhere.
    pub(super) fn for_stdout() -> Self {
        Self { width: columns(io::stdout()), ..Self::default() }
    }
}

/// The width of a terminal; nothing for another stream, and for a terminal that does not say.
pub(super) fn columns(stream: impl AsFd + io::IsTerminal) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Rows in aligned columns, written in one or several parts. Where nothing is cut, a column never becomes narrower in a later part.
#[derive(Debug)]
pub(super) struct TextTable {
    layout: TableLayout,
    columns: Vec<TextColumn>,
    /// The widest cell of each column that is shown, so far.
    widest: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(super) fn new(layout: TableLayout, columns: &[TextColumn]) -> Self {
        let titles = columns.iter().map(|column| column.title.to_owned()).collect();
        let mut table = Self { layout, columns: columns.to_vec(), widest: Vec::new(), rows: Vec::new() };
        if !layout.without_titles {
            table.row(titles);
        }
        table
    }

    /// Adds a row, which has a cell for each column, also for those that are not shown.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        let shown = cells.into_iter().zip(&self.columns).filter(|(_, column)| self.layout.is_wide || !column.is_wide);
        self.rows.push(shown.map(|(cell, _)| cell).collect());
    }

    /// The text of the rows added since the last call.
    pub(super) fn take(&mut self) -> String {
        let rows = std::mem::take(&mut self.rows);
        for row in &rows {
            self.widest.resize(self.widest.len().max(row.len()), 0);
            for (widest, cell) in self.widest.iter_mut().zip(row) {
                *widest = (*widest).max(cell.chars().count());
            }
        }

        let widths = self.widths();
        rows.iter().map(|row| self.line(row, &widths)).collect()
    }

    fn shown(&self) -> impl Iterator<Item = &TextColumn> {
        self.columns.iter().filter(|column| self.layout.is_wide || !column.is_wide)
    }

    /// The widths to which cells are padded, and on a terminal cut.
    fn widths(&self) -> Vec<usize> {
        let Some(width) = self.layout.width else {
            return self.widest.iter().map(|widest| (*widest).min(PADDED_MAX)).collect();
        };

        let mut widths = self.widest.clone();
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        let room = width.saturating_sub(gaps);
        while widths.iter().sum::<usize>() > room {
            // The widest text is cut first, so that short ones stay whole as long as possible.
            let texts = widths.iter_mut().zip(self.shown()).filter(|(_, column)| column.is_text);
            let widest = texts.map(|(width, _)| width).max_by_key(|width| **width);
            match widest.filter(|width| **width > TEXT_MIN) {
                Some(width) => *width -= 1,
                // All texts are as short as they may be: the lines wrap.
                None => break,
            }
        }
        widths
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((width, cell), column) in widths.iter().zip(row).zip(self.shown()) {
            let is_cut = column.is_text && self.layout.width.is_some();
            let cell = if is_cut { cut(cell, *width) } else { cell.clone() };
            line.push_str(&format!("{cell:<width$}{GAP}"));
        }
        format!("{}\n", line.trim_end())
    }
}

/// Cuts a text to at most `width` characters. An ellipsis replaces the omitted ones.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [TextColumn; 4] = [
        TextColumn::text("NAME"),
        TextColumn::exact("N"),
        TextColumn::exact("SINCE").if_wide(),
        TextColumn::text("DATA"),
    ];

    fn table(layout: TableLayout, rows: &[[&str; 4]]) -> String {
        let mut table = TextTable::new(layout, &COLUMNS);
        rows.iter().for_each(|row| table.row(row.map(str::to_owned).to_vec()));
        table.take()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_blanks() {
        let mut table = TextTable::new(TableLayout::default(), &[TextColumn::text("NAME"), TextColumn::exact("N")]);
        table.row(vec!["öffnen".into(), "1".into()]);
        table.row(vec!["b".into(), String::new()]);
        assert_eq!(table.take(), "NAME    N\nöffnen  1\nb\n");
        table.row(vec!["c".into(), "2".into()]);
        assert_eq!(table.take(), "c       2\n");
    }

    #[test]
    fn columns_that_few_need_are_shown_on_request() {
        let row = ["a", "1", "yesterday", "x"];
        assert_eq!(table(TableLayout::default(), &[row]), "NAME  N  DATA\na     1  x\n");
        let wide = TableLayout { is_wide: true, ..TableLayout::default() };
        assert_eq!(table(wide, &[row]), "NAME  N  SINCE      DATA\na     1  yesterday  x\n");
        let bare = TableLayout { without_titles: true, ..TableLayout::default() };
        assert_eq!(table(bare, &[row]), "a  1  x\n");
    }

    #[test]
    fn one_long_name_does_not_pad_the_other_rows() {
        let long = "n".repeat(512);
        let text = table(TableLayout::default(), &[[&long, "1", "", "x"], ["a", "2", "", "y"]]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], format!("{long}  1  x"), "where nothing is cut, the name is whole");
        assert_eq!(lines[2], format!("{:<64}  2  y", "a"));
    }

    #[test]
    fn a_terminal_cuts_texts_and_nothing_else() {
        let layout = TableLayout { width: Some(30), ..TableLayout::default() };
        let long = "n".repeat(512);
        let text = table(layout, &[[&long, "1234567890", "", "data of the lock"], ["a", "2", "", "y"]]);
        let expected = "\
NAME      N           DATA
nnnnnnn…  1234567890  data of…
a         2           y
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= 30));

        // Texts stay readable, even if the lines wrap then.
        let narrow = TableLayout { width: Some(10), ..layout };
        assert!(table(narrow, &[[&long, "1234567890", "", "data of the lock"]]).contains("nnnnn…  1234567890  data …"));
    }
}
