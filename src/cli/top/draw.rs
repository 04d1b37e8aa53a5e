//! The picture, at any size.
//!
//! Narrow terminals lose columns, the least important first; low ones lose rates and panes, down to the one that has the focus. Colour is
//! never the only sign: trouble is said in words, and the focus is marked with bold letters.

use std::{cmp::Reverse, env};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Borders, Paragraph, Row, Table, TableState},
};
use tokio::time::Instant;

use super::{
    super::{nodes, show},
    model::{NoticeLevel, Rates, TopModel, rate, since},
    ui::{LockOrder, Pane, Ui},
};
use crate::client::{BusyLock, LongWait, NodeStatus, Role};

/// From this width on, locks and waits stand side by side.
const WIDE: u16 = 120;
/// Below this height the rates have one line.
const LOW: u16 = 20;
/// Below this height only the pane with the focus is shown.
const VERY_LOW: u16 = 12;
/// Lines of notices.
const NOTICE_LINES: u16 = 4;
/// The steps of a graph's column.
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How things are set off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    has_colours: bool,
}

impl Theme {
    /// Without colours if `NO_COLOR` is set and not empty: <https://no-color.org>.
    pub(super) fn from_environment() -> Self {
        Self { has_colours: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self { has_colours: false }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn level(self, level: NoticeLevel) -> Style {
        match level {
            NoticeLevel::Note => Style::new(),
            NoticeLevel::Warning => self.coloured(Color::Yellow),
            NoticeLevel::Trouble => self.coloured(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// Draws the picture.
pub(super) fn draw(frame: &mut Frame<'_>, model: &TopModel, ui: &mut Ui, now: Instant, theme: Theme) {
    let area = frame.area();
    let notices = notices(model, ui, now, theme, area.width);
    let needed = u16::try_from(notices.len()).unwrap_or(NOTICE_LINES);

    let rates = if area.height < VERY_LOW {
        0
    } else if area.height < LOW {
        1
    } else {
        3
    };

    let [title, said, graphs, panes, help] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(needed.min(NOTICE_LINES)),
        Constraint::Length(rates),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);

    frame.render_widget(headline(model, title.width).style(Style::new().add_modifier(Modifier::BOLD)), title);
    frame.render_widget(Paragraph::new(notices), said);
    draw_rates(frame, graphs, model, theme);
    draw_panes(frame, panes, model, ui, theme);
    frame.render_widget(footline(ui, help.width), help);
}

/// As many of these texts as fit, the first ones first.
fn fitting(texts: impl IntoIterator<Item = String>, width: u16) -> String {
    let mut line = String::new();
    for text in texts {
        let between = if line.is_empty() { "" } else { "  " };
        if !line.is_empty() && columns(&line) + columns(between) + columns(&text) > usize::from(width) {
            break;
        }
        line = line + between + &text;
    }
    line
}

fn headline(model: &TopModel, width: u16) -> Line<'static> {
    let Some(look) = model.look() else { return Line::raw("lockkeeper top") };
    let answered: Vec<&NodeStatus> = nodes::answered(&look.nodes).collect();
    let leader = nodes::leader(&look.nodes);

    let newest = leader.or_else(|| answered.iter().copied().max_by_key(|status| status.applied_index));
    let cluster = newest.map_or_else(String::new, |status| show::text(&status.cluster_id));
    let led = match leader {
        _ if !model.is_answered() => "no answer".to_owned(),
        Some(leader) => format!("leader {}, term {}", leader.node_id, leader.term),
        None => "no leader".to_owned(),
    };
    let counted = newest.map(|status| {
        let sessions = show::count(status.sessions, "session", "sessions");
        let locks = show::count(status.locks, "lock", "locks");
        let waiters = show::count(status.waiters, "waiter", "waiters");
        [sessions, locks, waiters]
    });
    Line::raw(fitting([cluster, led].into_iter().chain(counted.into_iter().flatten()), width))
}

fn notices(model: &TopModel, ui: &Ui, now: Instant, theme: Theme, width: u16) -> Vec<Line<'static>> {
    let mut notices = model.notices(now);
    if ui.is_paused() {
        notices.insert(0, (NoticeLevel::Note, "paused: p goes on".to_owned()));
    }
    if !ui.prefix().is_empty() {
        notices.push((NoticeLevel::Note, format!("only locks under {}", show::text(ui.prefix()))));
    }
    let lines = notices.into_iter().flat_map(|(level, text)| {
        wrapped(&text, width).into_iter().map(move |line| Line::styled(line, theme.level(level)))
    });
    lines.collect()
}

/// Wraps a text into lines of at most this width, broken between words.
fn wrapped(text: &str, width: u16) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if columns(line) + 1 + columns(word) <= usize::from(width) => *line += &format!(" {word}"),
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Columns of the terminal that a text takes.
fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cut to this many columns, with an ellipsis where something was cut off.
fn cut(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for c in text.chars() {
        if columns(&shown) + columns(c.encode_utf8(&mut [0; 4])) + 1 > width {
            break;
        }
        shown.push(c);
    }
    shown + "…"
}

fn footline(ui: &Ui, width: u16) -> Line<'static> {
    if let Some(typed) = ui.typed() {
        return Line::raw(format!("prefix: {}█", show::text(typed)));
    }
    let sorted = match ui.order() {
        LockOrder::Queue => "s sort (by queue)",
        LockOrder::Grants => "s sort (by grants)",
        LockOrder::Name => "s sort (by name)",
    };
    let keys = ["q quit", "/ filter", sorted, "p pause", "Tab pane", "↑↓ row"];
    Line::styled(fitting(keys.map(str::to_owned), width), Style::new().add_modifier(Modifier::DIM))
}

/// A kind of rate: its name, its value.
type RateKind = (&'static str, fn(Rates) -> f64);
const KINDS: [RateKind; 3] =
    [("grants/s", |rates| rates.granted), ("releases/s", |rates| rates.released), ("lost/s", |rates| rates.lost)];

fn draw_rates(frame: &mut Frame<'_>, area: Rect, model: &TopModel, theme: Theme) {
    let value = |of: fn(Rates) -> f64| model.rates().map_or("-".to_owned(), |rates| rate(of(rates)));
    if area.height < 3 {
        let all = KINDS.map(|(name, of)| format!("{} {name}", value(of)));
        return frame.render_widget(Line::raw(fitting(all, area.width)), area);
    }
    for ((name, of), row) in KINDS.into_iter().zip(area.rows()) {
        let said = format!("{name:<10} {:>8} ", value(of));
        let columns = usize::from(row.width).saturating_sub(said.len());
        let graph = Span::styled(graph(model, of, columns), theme.coloured(Color::Cyan));
        frame.render_widget(Line::from(vec![Span::raw(said), graph]), row);
    }
}

/// The newest rates on the right, each as a column of the height of its share of the highest, or a dot if it is not known.
fn graph(model: &TopModel, of: fn(Rates) -> f64, columns: usize) -> String {
    let mut rates: Vec<Option<f64>> = model.history().take(columns).map(|rates| rates.map(of)).collect();
    rates.reverse();
    let highest = rates.iter().flatten().copied().fold(0.0, f64::max);
    let column = |value: f64| match value {
        value if value <= 0.0 => ' ',
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 7")]
        value => STEPS[((value / highest * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    let drawn: String = rates.into_iter().map(|rate| rate.map_or('·', column)).collect();
    format!("{drawn:>columns$}")
}

fn draw_panes(frame: &mut Frame<'_>, area: Rect, model: &TopModel, ui: &mut Ui, theme: Theme) {
    let members = members(model, theme);
    let locks = locks(model, ui.order());
    let waits = waits(model);

    if area.height < VERY_LOW - 2 {
        let focused = match ui.pane() {
            Pane::Members => members,
            Pane::Locks => locks,
            Pane::Waits => waits,
        };
        return focused.draw(frame, area, ui, theme);
    }

    // With its title and its header.
    let wanted = u16::try_from(members.rows.len()).unwrap_or(u16::MAX).saturating_add(2);
    let [above, below] =
        Layout::vertical([Constraint::Length(wanted.min(area.height / 3).max(3)), Constraint::Fill(1)]).areas(area);

    let [left, right] = if area.width >= WIDE {
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2).areas(below)
    } else {
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(below)
    };

    members.draw(frame, above, ui, theme);
    locks.draw(frame, left, ui, theme);
    waits.draw(frame, right, ui, theme);
}

/// A part of the picture with rows.
struct TopPart {
    pane: Pane,
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Span<'static>>>,
    /// The text to show if there are no rows.
    empty: &'static str,
}

struct Column {
    title: &'static str,
    width: Width,
    /// The column with the highest rank goes first where there is too little room.
    rank: u8,
}

#[derive(Clone, Copy)]
enum Width {
    /// As wide as its widest cell, but not more than this.
    Content(u16),
    /// The same, on the right of its column.
    Number(u16),
    /// A share of what is left, but not less than this.
    Rest(u16),
}

impl TopPart {
    fn draw(self, frame: &mut Frame<'_>, area: Rect, ui: &mut Ui, theme: Theme) {
        let has_focus = ui.pane() == self.pane;
        let style = if has_focus { theme.coloured(Color::Cyan).add_modifier(Modifier::BOLD) } else { Style::new() };
        let mark = if has_focus { "▸" } else { " " };
        let block = Block::new().borders(Borders::TOP).border_style(style).title(format!("{mark}{} ", self.title));

        if self.rows.is_empty() {
            return frame.render_widget(Paragraph::new(self.empty).block(block), area);
        }

        let shown = self.shown_columns(area.width);
        let constraints = shown.iter().map(|&(_, constraint)| constraint);
        let cells = Layout::horizontal(constraints).spacing(1).split(area);
        let widths = cells.iter().map(|cell| cell.width);

        let row = |texts: &dyn Fn(usize) -> Span<'static>| {
            let cells = shown.iter().zip(widths.clone()).map(|(&(column, _), width)| {
                let Span { content, style } = texts(column);
                let text = cut(&content, width);
                let width = usize::from(width);
                let blank = " ".repeat(width.saturating_sub(columns(&text)));
                let is_number = matches!(self.columns[column].width, Width::Number(_));
                Span::styled(if is_number { blank + &text } else { text }, style)
            });
            Row::new(cells.collect::<Vec<_>>())
        };

        let rows: Vec<Row<'_>> = self.rows.iter().map(|cells| row(&|column| cells[column].clone())).collect();
        let header =
            row(&|column| Span::raw(self.columns[column].title)).style(Style::new().add_modifier(Modifier::DIM));
        let widths = widths.clone().map(Constraint::Length);
        let table = Table::new(rows, widths).header(header).block(block);

        let highlight = if has_focus { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let mut state = TableState::new().with_selected(ui.row(self.pane, self.rows.len()));
        frame.render_stateful_widget(table.row_highlight_style(highlight), area, &mut state);
    }

    /// The columns that there is room for.
    fn shown_columns(&self, width: u16) -> Vec<(usize, Constraint)> {
        let content = |column: usize, most: u16| {
            let cells = self.rows.iter().map(|cells| cells[column].width());
            let widest = cells.max().unwrap_or(0).max(self.columns[column].title.len());
            u16::try_from(widest).unwrap_or(u16::MAX).min(most)
        };
        let needed = |column: usize| match self.columns[column].width {
            Width::Content(most) | Width::Number(most) => content(column, most),
            Width::Rest(least) => least,
        };

        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        while shown.len() > 1 && shown.iter().map(|&column| needed(column) + 1).sum::<u16>() > width + 1 {
            let last = shown.iter().copied().max_by_key(|&column| self.columns[column].rank);
            shown.retain(|column| Some(*column) != last);
        }

        let constraint = |column: usize| match self.columns[column].width {
            Width::Content(most) | Width::Number(most) => Constraint::Length(content(column, most)),
            Width::Rest(least) => Constraint::Min(least),
        };
        shown.into_iter().map(|column| (column, constraint(column))).collect()
    }
}

fn column(title: &'static str, width: Width, rank: u8) -> Column {
    Column { title, width, rank }
}

fn members(model: &TopModel, theme: Theme) -> TopPart {
    let nodes = model.nodes();
    let tip = nodes::answered(nodes).map(|status| status.last_log_index).max().unwrap_or(0);
    let rows = nodes.iter().map(|node| {
        let of = |text: fn(&NodeStatus) -> String| node.answer.as_ref().map_or("-".to_owned(), text);
        let lag =
            node.answer.as_ref().map_or("-".to_owned(), |status| tip.saturating_sub(status.applied_index).to_string());

        let style = match &node.answer {
            Ok(status) if status.serving && status.role == Role::Leader => theme.coloured(Color::Green),
            Ok(status) if status.serving => Style::new(),
            Ok(_) | Err(_) => theme.level(NoticeLevel::Trouble),
        };

        let id = node.node_id.map_or("-".to_owned(), |id| id.to_string());
        [
            id.into(),
            Span::styled(of(|status| status.role.name().to_owned()), style),
            of(|status| status.term.to_string()).into(),
            of(|status| status.applied_index.to_string()).into(),
            lag.into(),
            Span::styled(nodes::health(node, None), style),
            show::text(&node.address).into(),
        ]
        .into()
    });

    TopPart {
        pane: Pane::Members,
        title: "members".to_owned(),
        rows: rows.collect(),
        columns: vec![
            column("NODE", Width::Content(6), 0),
            column("ROLE", Width::Content(9), 1),
            column("TERM", Width::Number(8), 4),
            column("APPLIED", Width::Number(12), 5),
            column("LAG", Width::Number(8), 3),
            column("HEALTH", Width::Rest(12), 2),
            column("ADDRESS", Width::Content(32), 6),
        ],
        empty: "no node has answered yet",
    }
}

fn locks(model: &TopModel, order: LockOrder) -> TopPart {
    let now = model.look().map_or(0, |look| look.unix_ms);
    let mut locks: Vec<&BusyLock> = model.locks().iter().collect();
    match order {
        LockOrder::Queue => locks.sort_by_key(|busy| (Reverse((busy.lock.queue_length, busy.grants)), &busy.lock.name)),
        LockOrder::Grants => {
            locks.sort_by_key(|busy| (Reverse((busy.grants, busy.lock.queue_length)), &busy.lock.name))
        }
        LockOrder::Name => locks.sort_by_key(|busy| &busy.lock.name),
    }

    let rows = locks.into_iter().map(|busy| {
        let BusyLock { lock, grants: _ } = busy;
        let (held_by, held_for) = match lock.holders.first() {
            Some(holder) if lock.holder_count > 1 => (
                format!("{} and {} more", show::text(&holder.label), lock.holder_count - 1),
                since(holder.since.0, now),
            ),
            Some(holder) => (show::text(&holder.label), since(holder.since.0, now)),
            None if lock.delay_remaining.is_some() => ("(lock-delay)".to_owned(), "-".to_owned()),
            None => ("-".to_owned(), "-".to_owned()),
        };

        let grants = model.grant_rate(busy).map_or("-".to_owned(), rate);
        [show::text(lock.name.as_str()), lock.queue_length.to_string(), grants, held_by, held_for]
            .map(Span::from)
            .into()
    });

    TopPart {
        pane: Pane::Locks,
        title: "busiest locks".to_owned(),
        rows: rows.collect(),
        columns: vec![
            column("LOCK", Width::Rest(16), 0),
            column("WAIT", Width::Number(7), 1),
            column("GRANTS/S", Width::Number(8), 2),
            column("HELD BY", Width::Rest(12), 3),
            column("FOR", Width::Content(12), 4),
        ],
        empty: "nobody waits, and no lock was granted lately",
    }
}

fn waits(model: &TopModel) -> TopPart {
    let now = model.look().map_or(0, |look| look.unix_ms);

    let rows = model.waits().iter().map(|wait| {
        let LongWait { name, waiter, holder, queue_length: _ } = wait;
        let held_by = holder.as_ref().map_or("-".to_owned(), |holder| show::text(&holder.label));
        let left = waiter.remaining.map_or("no limit".to_owned(), show::duration);
        [since(waiter.since.0, now), show::text(name.as_str()), show::text(&waiter.label), held_by, left]
            .map(Span::from)
            .into()
    });

    TopPart {
        pane: Pane::Waits,
        title: "longest waits".to_owned(),
        rows: rows.collect(),
        columns: vec![
            column("WAITED", Width::Content(12), 1),
            column("LOCK", Width::Rest(14), 0),
            column("WAITER", Width::Rest(10), 2),
            column("HELD BY", Width::Rest(12), 3),
            column("GIVES UP IN", Width::Content(12), 4),
        ],
        empty: "nobody waits",
    }
}
