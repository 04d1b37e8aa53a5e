//! One picture as text, or as a document.

use std::io;

use serde::Serialize;

use super::{
    super::{
        output::{self, Format, Table, print_document},
        show, status, views,
    },
    model::{Model, rate, since},
};
use crate::client::BusyLock;

/// Prints what is known.
pub(super) fn print(model: &Model, format: Format) -> io::Result<()> {
    match format {
        Format::Text => output::print(&text(model)),
        Format::Json => print_document(&Document::of(model)),
    }
}

pub(super) fn text(model: &Model) -> String {
    let Some(look) = model.look() else {
        let silent = model.notices(tokio::time::Instant::now()).into_iter().map(|(_, text)| text + "\n");
        return silent.collect();
    };
    let mut text = String::new();
    for (_, notice) in model.notices(look.at) {
        text += &format!("{notice}\n\n");
    }
    let newest = status::answered(&look.nodes).max_by_key(|status| status.applied_index);
    if let Some(status) = newest {
        let (sessions, locks) = (status.sessions, status.locks);
        text += &format!("sessions {sessions}, locks {locks}, waiters {}", status.waiters);
    }
    if let Some(rates) = model.rates() {
        let (granted, released, lost) = (rate(rates.granted), rate(rates.released), rate(rates.lost));
        text += &format!("; a second: grants {granted}, releases {released}, lost {lost}");
    }
    text += "\n\n";
    let tip = status::answered(model.nodes()).map(|status| status.last_log_index).max().unwrap_or(0);
    let mut members = Table::new(&["NODE", "ADDRESS", "ROLE", "TERM", "APPLIED", "LAG", "HEALTH"]);
    for node in model.nodes() {
        let id = node.node_id.map_or("-".to_owned(), |id| id.to_string());
        let mut row = vec![id, show::text(&node.address)];
        match &node.answer {
            Ok(status) => row.extend([
                status::role(status).to_owned(),
                status.term.to_string(),
                status.applied_index.to_string(),
                tip.saturating_sub(status.applied_index).to_string(),
            ]),
            Err(_) => row.extend(vec!["-".to_owned(); 4]),
        }
        row.push(status::health(node, None));
        members.row(row);
    }
    text += &members.take();
    let mut locks = Table::new(&["LOCK", "WAIT", "GRANTS/S", "HELD BY", "FOR"]);
    for busy in model.locks() {
        let holder = busy.lock.holders.first();
        locks.row(vec![
            show::cell(busy.lock.name.as_str()),
            busy.lock.queue_length.to_string(),
            model.grant_rate(busy).map_or("-".to_owned(), rate),
            holder.map_or("-".to_owned(), |holder| show::cell(&holder.label)),
            holder.map_or("-".to_owned(), |holder| since(holder.since.0, look.unix_ms)),
        ]);
    }
    text += &format!("\n{}", locks.take());
    let mut waits = Table::new(&["WAITED", "LOCK", "WAITER", "HELD BY"]);
    for wait in model.waits() {
        waits.row(vec![
            since(wait.waiter.since.0, look.unix_ms),
            show::cell(wait.name.as_str()),
            show::cell(&wait.waiter.label),
            wait.holder.as_ref().map_or("-".to_owned(), |holder| show::cell(&holder.label)),
        ]);
    }
    text += &format!("\n{}", waits.take());
    text
}

#[derive(Serialize)]
struct Document {
    members: Vec<Member>,
    sessions: u64,
    locks: u64,
    waiters: u64,
    /// `null`: not known.
    grants_per_second: Option<f64>,
    releases_per_second: Option<f64>,
    /// Lost with their sessions, or to an operator.
    lost_per_second: Option<f64>,
    busiest_locks: Vec<Busy>,
    longest_waits: Vec<Wait>,
    /// More acquires wait than were counted.
    more_waits: bool,
    /// What is wrong, for people.
    notices: Vec<String>,
}

#[derive(Serialize)]
struct Member {
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
struct Busy {
    #[serde(flatten)]
    lock: views::Lock,
    grants_per_second: Option<f64>,
}

#[derive(Serialize)]
struct Wait {
    name: String,
    #[serde(flatten)]
    waiter: views::Waiter,
    holder: Option<views::Holder>,
    queue_length: u64,
}

impl Document {
    fn of(model: &Model) -> Self {
        let nodes = model.nodes();
        let tip = status::answered(nodes).map(|status| status.last_log_index).max().unwrap_or(0);
        let newest = status::answered(nodes).max_by_key(|status| status.applied_index);
        let busiest = model.look().and_then(|look| look.busiest.as_ref()?.as_ref().ok());
        let at = model.look().map_or_else(tokio::time::Instant::now, |look| look.at);
        let rates = model.rates();
        let member = |node: &status::Node| {
            let answer = node.answer.as_ref().ok();
            Member {
                node_id: node.node_id,
                address: node.address.clone(),
                role: answer.map(status::role),
                term: answer.map(|status| status.term),
                applied_index: answer.map(|status| status.applied_index),
                lag: answer.map(|status| tip.saturating_sub(status.applied_index)),
                serving: answer.is_some_and(|status| status.serving),
                trouble: Some(status::trouble(node)).filter(|trouble| !trouble.is_empty()),
            }
        };
        let busy = |busy: &BusyLock| Busy { lock: busy.lock.clone().into(), grants_per_second: model.grant_rate(busy) };
        Self {
            members: nodes.iter().map(member).collect(),
            sessions: newest.map_or(0, |status| status.sessions),
            locks: newest.map_or(0, |status| status.locks),
            waiters: newest.map_or(0, |status| status.waiters),
            grants_per_second: rates.map(|rates| rates.granted),
            releases_per_second: rates.map(|rates| rates.released),
            lost_per_second: rates.map(|rates| rates.lost),
            busiest_locks: model.locks().iter().map(busy).collect(),
            longest_waits: model.waits().iter().cloned().map(Wait::from).collect(),
            more_waits: busiest.is_some_and(|busiest| busiest.more_waits),
            notices: model.notices(at).into_iter().map(|(_, text)| text).collect(),
        }
    }
}

impl From<crate::client::LongWait> for Wait {
    fn from(wait: crate::client::LongWait) -> Self {
        Self {
            name: wait.name.as_str().to_owned(),
            waiter: wait.waiter.into(),
            holder: wait.holder.map(views::Holder::from),
            queue_length: wait.queue_length,
        }
    }
}
