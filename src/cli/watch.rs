//! `lockkeeper watch` prints the locks under a prefix, then every change.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure, complain,
    output::{Format, Output, deliver, deliver_line},
    show,
};
use crate::client::{Change, ChangeKind, Error, LockInfo, WatchMessage};

/// Prints the locks under a prefix and then every change, one line each, until it is stopped.
#[derive(Args, Debug)]
pub(super) struct LockWatch {
    /// Prefix of the lock names
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

impl LockWatch {
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
                    self.show(message).map_err(Failure::for_stream)?;
                }
                // After a first answer, the cluster is expected to come back. Without one, the endpoints are probably
                // wrong.
                Err(error) if began && !matches!(error, Error::Refused(_)) => complain(&error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn show(&self, message: WatchMessage) -> std::io::Result<()> {
        let documents = match message {
            WatchMessage::State(state) => {
                let begin = state.first.then_some(WatchLine::Begin { index: state.index });
                let end = state.last.then_some(WatchLine::End { index: state.index });
                begin.into_iter().chain(state.locks.into_iter().map(WatchLine::state)).chain(end).collect()
            }
            WatchMessage::Changes(changes) => {
                changes.changes.into_iter().map(|change| WatchLine::change(changes.index, change)).collect()
            }
            // The state that follows `TooOld` repeats this: it begins with `begin`.
            WatchMessage::Progress { .. } | WatchMessage::TooOld { .. } | _ => Vec::new(),
        };

        documents.iter().try_for_each(|document| match self.output.output {
            Format::Text => deliver(&document.text()),
            Format::Json => deliver_line(document),
        })
    }
}

/// A line of the output. `begin` invalidates all earlier lines; with `end`, the state is complete.
#[derive(Serialize, Debug)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WatchLine {
    Begin { index: u64 },
    State { lock: Box<LockInfo> },
    End { index: u64 },
    Change(Box<ChangeLine>),
}

#[derive(Serialize, Debug)]
struct ChangeLine {
    index: u64,
    #[serde(flatten)]
    change: Change,
}

impl WatchLine {
    fn state(lock: LockInfo) -> Self {
        Self::State { lock: Box::new(lock) }
    }

    fn change(index: u64, change: Change) -> Self {
        Self::Change(Box::new(ChangeLine { index, change }))
    }

    fn text(&self) -> String {
        match self {
            Self::Begin { index } => format!("{index:>10}  -- the state --\n"),
            Self::State { lock } => format!("{:>10}  {}\n", "", state_text(lock)),
            Self::End { index } => format!("{index:>10}  -- changes --\n"),
            Self::Change(line) => format!("{}\n", change_text(line.index, &line.change)),
        }
    }
}

fn state_text(lock: &LockInfo) -> String {
    let holders: Vec<String> =
        lock.holders.iter().map(|holder| format!("{} (token {})", show::cell(&holder.label), holder.token.0)).collect();

    let mut text = show::text(lock.name.as_str());
    if !holders.is_empty() {
        text += &format!("  held by {}", holders.join(", "));
    }
    if lock.holder_count > lock.holders.len() as u64 {
        text += &format!(" and {} more", lock.holder_count - lock.holders.len() as u64);
    }
    if lock.queue_length > 0 {
        text += &format!("  {} waiting", lock.queue_length);
    }

    if let Some(left) = lock.delay_remaining {
        text += &format!("  closed for {}", show::duration(left));
    }
    if let Some(data) = &lock.data {
        text += &format!("  data {}", show::data(data));
    }
    text
}

fn change_text(index: u64, change: &Change) -> String {
    let mut text = format!("{index:>10}  {:<8}  {}", change.kind.name(), show::text(change.name.as_str()));
    if let Some(token) = change.token {
        text += &format!("  token {}", token.0);
    }
    if let Some(ticket) = change.ticket {
        text += &format!("  ticket {}", ticket.0);
    }

    if let Some(label) = &change.label {
        text += &format!("  {}", show::cell(label));
    }
    if let Some(reason) = &change.reason {
        text += &format!("  because: {}", show::text(reason));
    }
    if let Some(by) = &change.by {
        text += &format!("  by {}", show::text(by));
    }

    if change.kind == ChangeKind::Resized {
        text += &format!("  {}", show::mode(change.mode));
    }
    if let Some(data) = &change.data {
        text += &format!("  {}", show::data(data));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{LockName, Token};

    #[test]
    fn a_change_is_a_line_for_people_and_one_for_programs() {
        let change = Change {
            name: LockName::new("jobs").unwrap(),
            lock_kind: crate::client::LockKind::Lock,
            kind: ChangeKind::Lost,
            token: Some(Token(7)),
            session_id: None,
            label: Some("ann".into()),
            ticket: None,
            reason: Some("stuck".into()),
            by: Some("ops".into()),
            data: None,
            mode: None,
        };
        let document = WatchLine::change(42, change);
        assert_eq!(document.text(), "        42  lost      jobs  token 7  ann  because: stuck  by ops\n");
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!((&json["type"], &json["change"], &json["token"]), (&"change".into(), &"lost".into(), &7.into()));
        assert!(json.get("text").is_none());
    }
}
