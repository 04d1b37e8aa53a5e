//! Why a request got no answer, as the nodes themselves show it.
//!
//! The client's error names the last node that was asked. That is one of several, and seldom the one that matters: so before a command ends
//! with it, each node is asked for its status, and the answers are shown with a conclusion.

use std::{sync::OnceLock, time::Duration};

use super::{exit::Failure, nodes};
use crate::client::Client;

/// How long each node may take to say how it is.
const NODE_LIMIT: Duration = Duration::from_secs(1);

/// The client of this command. A command has one, and the process runs one command.
static CLIENT: OnceLock<Client> = OnceLock::new();

/// Lets a failure of this client be explained.
pub(super) fn remember(client: &Client) {
    // A command that makes a second client has the same cluster.
    let _ = CLIENT.set(client.clone());
}

/// The failure, with a line for each node and a conclusion if it is one for want of an answer. Takes two seconds at most.
pub(super) async fn explain(failure: Failure) -> Failure {
    let Some(without_last) = &failure.without_last else { return failure };
    let Some(client) = CLIENT.get() else { return failure };

    let nodes = nodes::ask_all(client, false, NODE_LIMIT).await;
    let message = format!("{without_last}\n{}{}", nodes::lines(&nodes), nodes::conclusion(&nodes));
    Failure { message, ..failure }
}
