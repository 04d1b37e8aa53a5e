//! One picture as text, or as a document.

use std::io;

use serde::Serialize;

use super::{
    super::{
        nodes,
        output::{self, Format, print_document},
        show,
        table::{TableLayout, TextColumn, TextTable},
    },
    model::{TopModel, rate, since},
};
use crate::client::{BusyLock, LockInfo, LongWait};

/// Prints what is known.
pub(super) fn print(model: &TopModel, format: Format) -> io::Result<()> {
    match format {
        Format::Text => output::print(&text(model, TableLayout::for_stdout())),
        Format::Json => print_document(&TopReport::new(model)),
    }
}

const MEMBER_COLUMNS: [TextColumn; 7] = [
    TextColumn::exact("NODE"),
    TextColumn::text("ADDRESS"),
    TextColumn::exact("ROLE"),
    TextColumn::exact("TERM"),
    TextColumn::exact("APPLIED"),
    TextColumn::exact("LAG"),
    TextColumn::text("HEALTH"),
];
const LOCK_COLUMNS: [TextColumn; 5] = [
    TextColumn::text("LOCK"),
    TextColumn::exact("WAIT"),
    TextColumn::exact("GRANTS/S"),
    TextColumn::text("HELD BY"),
    TextColumn::exact("FOR"),
];
const WAIT_COLUMNS: [TextColumn; 4] =
    [TextColumn::exact("WAITED"), TextColumn::text("LOCK"), TextColumn::text("WAITER"), TextColumn::text("HELD BY")];

pub(super) fn text(model: &TopModel, layout: TableLayout) -> String {
    let Some(look) = model.look() else {
        let silent = model.notices(tokio::time::Instant::now()).into_iter().map(|(_, text)| text + "\n");
        return silent.collect();
    };

    let mut text = String::new();
    for (_, notice) in model.notices(look.at) {
        text += &format!("{notice}\n\n");
    }

    let newest = nodes::answered(&look.nodes).max_by_key(|status| status.applied_index);
    if let Some(status) = newest {
        text += &format!("sessions {}, locks {}, waiters {}", status.sessions, status.locks, status.waiters);
    }
    if let Some(rates) = model.rates() {
        let granted = rate(rates.granted);
        let released = rate(rates.released);
        text += &format!("; a second: grants {granted}, releases {released}, lost {}", rate(rates.lost));
    }

    text += "\n\n";
    let tip = nodes::answered(model.nodes()).map(|status| status.last_log_index).max().unwrap_or(0);

    let mut members = TextTable::new(layout, &MEMBER_COLUMNS);
    for node in model.nodes() {
        let id = node.node_id.map_or("-".to_owned(), |id| id.to_string());
        let mut row = vec![id, show::text(&node.address)];
        match &node.answer {
            Ok(status) => row.extend([
                status.role.name().to_owned(),
                status.term.to_string(),
                status.applied_index.to_string(),
                tip.saturating_sub(status.applied_index).to_string(),
            ]),
            Err(_) => row.extend(vec!["-".to_owned(); 4]),
        }
        row.push(nodes::health(node, None));
        members.row(row);
    }

    text += &members.take();

    let mut locks = TextTable::new(layout, &LOCK_COLUMNS);
    for busy in model.locks() {
        let holder = busy.lock.holders.first();
        locks.row(vec![
            show::text(busy.lock.name.as_str()),
            busy.lock.queue_length.to_string(),
            model.grant_rate(busy).map_or("-".to_owned(), rate),
            holder.map_or("-".to_owned(), |holder| show::text(&holder.label)),
            holder.map_or("-".to_owned(), |holder| since(holder.since.0, look.unix_ms)),
        ]);
    }

    text += &format!("\n{}", locks.take());

    let mut waits = TextTable::new(layout, &WAIT_COLUMNS);
    for wait in model.waits() {
        waits.row(vec![
            since(wait.waiter.since.0, look.unix_ms),
            show::text(wait.name.as_str()),
            show::text(&wait.waiter.label),
            wait.holder.as_ref().map_or("-".to_owned(), |holder| show::text(&holder.label)),
        ]);
    }

    text += &format!("\n{}", waits.take());
    text
}

#[derive(Serialize)]
struct TopReport {
    members: Vec<MemberLine>,
    sessions: u64,
    locks: u64,
    waiters: u64,
    /// `null` if it is not known.
    grants_per_second: Option<f64>,
    releases_per_second: Option<f64>,
    /// Lost with their sessions, or to an operator.
    lost_per_second: Option<f64>,
    busiest_locks: Vec<BusyReport>,
    longest_waits: Vec<LongWait>,
    /// More acquires wait than were counted.
    more_waits: bool,
    /// The problems, for people.
    notices: Vec<String>,
}

#[derive(Serialize)]
struct MemberLine {
    node_id: Option<u64>,
    address: String,
    role: Option<&'static str>,
    term: Option<u64>,
    applied_index: Option<u64>,
    lag: Option<u64>,
    serving: bool,
    trouble: Option<String>,
}

#[derive(Serialize)]
struct BusyReport {
    #[serde(flatten)]
    lock: LockInfo,
    grants_per_second: Option<f64>,
}

impl TopReport {
    fn new(model: &TopModel) -> Self {
        let nodes = model.nodes();
        let tip = nodes::answered(nodes).map(|status| status.last_log_index).max().unwrap_or(0);
        let newest = nodes::answered(nodes).max_by_key(|status| status.applied_index);

        let busiest = model.look().and_then(|look| look.busiest.as_ref()?.as_ref().ok());
        let at = model.look().map_or_else(tokio::time::Instant::now, |look| look.at);
        let rates = model.rates();

        let member = |node: &nodes::AskedNode| {
            let answer = node.answer.as_ref().ok();
            MemberLine {
                node_id: node.node_id,
                address: node.address.clone(),
                role: answer.map(|status| status.role.name()),
                term: answer.map(|status| status.term),
                applied_index: answer.map(|status| status.applied_index),
                lag: answer.map(|status| tip.saturating_sub(status.applied_index)),
                serving: answer.is_some_and(|status| status.serving),
                trouble: Some(nodes::trouble(node)).filter(|trouble| !trouble.is_empty()),
            }
        };

        let busy = |busy: &BusyLock| BusyReport { lock: busy.lock.clone(), grants_per_second: model.grant_rate(busy) };

        Self {
            members: nodes.iter().map(member).collect(),
            sessions: newest.map_or(0, |status| status.sessions),
            locks: newest.map_or(0, |status| status.locks),
            waiters: newest.map_or(0, |status| status.waiters),
            grants_per_second: rates.map(|rates| rates.granted),
            releases_per_second: rates.map(|rates| rates.released),
            lost_per_second: rates.map(|rates| rates.lost),
            busiest_locks: model.locks().iter().map(busy).collect(),
            longest_waits: model.waits().to_vec(),
            more_waits: busiest.is_some_and(|busiest| busiest.more_waits),
            notices: model.notices(at).into_iter().map(|(_, text)| text).collect(),
        }
    }
}
