//! `watch`: the locks under a prefix, then every change.

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure, complain,
    output::{Format, Output, print, print_line},
    show, views,
};
use crate::{
    client::Error,
    proto::v1::{Change, LockInfo, WatchResponse, change::Kind, watch_response::What},
};

/// Prints the locks under a prefix and then every change, one line each, until it is stopped.
#[derive(Args, Debug)]
pub(super) struct Watch {
    /// Prefix of the lock names
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

impl Watch {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut watch = self.cluster.client()?.watch(&self.prefix);
        let mut began = false;
        loop {
            let next = tokio::select! {
                next = watch.next() => next,
                stopped = tokio::signal::ctrl_c() => {
                    stopped?;
                    return Ok(Exit::Success);
                }
            };
            match next {
                Ok(message) => {
                    began = true;
                    self.show(message)?;
                }
                // After a first answer, the cluster is expected to come back. Without one, the endpoints are probably
                // wrong.
                Err(error) if began && !matches!(error, Error::Refused(_)) => complain(&error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn show(&self, message: WatchResponse) -> std::io::Result<()> {
        let documents = match message.what {
            Some(What::State(state)) => {
                let begin = state.first.then_some(Document::Begin { index: state.index });
                let end = state.last.then_some(Document::End { index: state.index });
                begin.into_iter().chain(state.locks.into_iter().map(Document::state)).chain(end).collect()
            }
            Some(What::Changes(changes)) => {
                changes.changes.into_iter().map(|change| Document::change(changes.index, change)).collect()
            }
            // The state that follows repeats this: it begins with `begin`.
            Some(What::Progress(_) | What::TooOld(_)) | None => Vec::new(),
        };
        documents.iter().try_for_each(|document| match self.output.output {
            Format::Text => print(&document.text()),
            Format::Json => print_line(document),
        })
    }
}

/// A line of the output. `begin` invalidates all earlier lines; with `end`, the state is complete.
#[derive(Serialize, Debug)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Document {
    Begin {
        index: u64,
    },
    State {
        lock: Box<views::Lock>,
        #[serde(skip)]
        text: String,
    },
    End {
        index: u64,
    },
    Change(Box<ChangeDocument>),
}

#[derive(Serialize, Debug)]
struct ChangeDocument {
    index: u64,
    name: String,
    change: &'static str,
    token: Option<u64>,
    ticket: Option<u64>,
    session_id: Option<String>,
    label: Option<String>,
    reason: Option<String>,
    mode: Option<views::Mode>,
    #[serde(flatten)]
    data: views::Data,
    #[serde(skip)]
    text: String,
}

impl Document {
    fn state(lock: LockInfo) -> Self {
        Self::State { text: state_text(&lock), lock: Box::new(lock.into()) }
    }

    fn change(index: u64, change: Change) -> Self {
        let set = |value: u64| Some(value).filter(|value| *value != 0);
        let given = |value: String| Some(value).filter(|value| !value.is_empty());
        Self::Change(Box::new(ChangeDocument {
            index,
            change: kind(change.kind()),
            text: change_text(index, &change),
            name: change.name,
            token: set(change.token),
            ticket: set(change.ticket),
            session_id: given(change.session_id),
            label: given(change.label),
            reason: given(change.reason),
            mode: views::mode(change.mode),
            data: change.data.into(),
        }))
    }

    fn text(&self) -> String {
        match self {
            Self::Begin { index } => format!("{index:>10}  -- the state --\n"),
            Self::State { text, .. } => format!("{:>10}  {text}\n", ""),
            Self::End { index } => format!("{index:>10}  -- changes --\n"),
            Self::Change(change) => format!("{}\n", change.text),
        }
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Unspecified => "unknown",
        Kind::Granted => "granted",
        Kind::Released => "released",
        Kind::Lost => "lost",
        Kind::Revoked => "revoked",
        Kind::Queued => "queued",
        Kind::Left => "left",
        Kind::Data => "data",
        Kind::Delayed => "delayed",
        Kind::Opened => "opened",
        Kind::Resized => "resized",
    }
}

fn state_text(lock: &LockInfo) -> String {
    let holders: Vec<String> =
        lock.holders.iter().map(|holder| format!("{} (token {})", show::cell(&holder.label), holder.token)).collect();
    let mut text = show::text(&lock.name);
    if !holders.is_empty() {
        text += &format!("  held by {}", holders.join(", "));
    }
    if lock.holder_count > lock.holders.len() as u64 {
        text += &format!(" and {} more", lock.holder_count - lock.holders.len() as u64);
    }
    if lock.queue_length > 0 {
        text += &format!("  {} waiting", lock.queue_length);
    }
    if lock.delay_remaining_ms > 0 {
        text += &format!("  closed for {}", show::duration(lock.delay_remaining_ms));
    }
    if let Some(data) = &lock.data {
        text += &format!("  data {}", show::data(data));
    }
    text
}

fn change_text(index: u64, change: &Change) -> String {
    let mut text = format!("{index:>10}  {:<8}  {}", kind(change.kind()), show::text(&change.name));
    if change.token != 0 {
        text += &format!("  token {}", change.token);
    }
    if change.ticket != 0 {
        text += &format!("  ticket {}", change.ticket);
    }
    if !change.label.is_empty() {
        text += &format!("  {}", show::cell(&change.label));
    }
    if !change.reason.is_empty() {
        text += &format!("  because: {}", show::text(&change.reason));
    }
    if change.kind() == Kind::Resized {
        text += &format!("  {}", show::mode(change.mode.as_ref()));
    }
    if let Some(data) = &change.data {
        text += &format!("  {}", show::data(data));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_line_for_people_and_one_for_programs() {
        let change = Change {
            name: "jobs".into(),
            kind: Kind::Lost.into(),
            token: 7,
            label: "ann".into(),
            reason: "stuck".into(),
            ..Change::default()
        };
        let document = Document::change(42, change);
        assert_eq!(document.text(), "        42  lost      jobs  token 7  ann  because: stuck\n");
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!((&json["type"], &json["change"], &json["token"]), (&"change".into(), &"lost".into(), &7.into()));
        assert!(json.get("text").is_none());
    }
}
