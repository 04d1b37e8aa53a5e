//! `lockkeeper check` says whether a token holds a lock now.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
    show,
};
use crate::{
    client::{CheckAnswer, Holder},
    machine::Token,
};

/// Checks whether a token holds a lock now. Exit code 0: it does; 10: it does not.
#[derive(Args, Debug)]
pub(super) struct CheckGrant {
    /// The lock
    name: String,
    /// The token of a grant
    #[arg(value_parser = super::arguments::token)]
    token: Token,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct CheckReport {
    held: bool,
    holder: Option<Holder>,
    last_token: u64,
    index: u64,
}

impl CheckGrant {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let answer = self.cluster.client()?.check(&self.name, self.token).await?;
        let exit = if answer.held { Exit::Success } else { Exit::NotAcquired };
        match self.output.output {
            Format::Text => print(&self.text(&answer))?,
            Format::Json => print_document(&CheckReport {
                held: answer.held,
                last_token: last_token(&answer),
                holder: answer.holder,
                index: answer.index,
            })?,
        }
        Ok(exit)
    }

    fn text(&self, answer: &CheckAnswer) -> String {
        let name = show::text(&self.name);
        let token = self.token.0;

        match &answer.holder {
            Some(holder) if answer.held => {
                let label = show::text(&holder.label);
                let left = show::duration(holder.remaining);
                format!("held: {label} holds {name} by token {token} for another {left}\n")
            }
            _ if answer.held => format!("held: {name} by token {token}\n"),
            _ if token > last_token(answer) => {
                format!("not held: token {token} was never granted (the last one is {})\n", last_token(answer))
            }
            _ => format!("not held: token {token} does not hold {name}\n"),
        }
    }
}

/// The last token, or 0 if none was granted yet.
fn last_token(answer: &CheckAnswer) -> u64 {
    answer.last_token.map_or(0, |token| token.0)
}
