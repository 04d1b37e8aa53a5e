//! The endpoints, the quorum, and what the nodes say of themselves.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{nodes, show, status},
    Remark,
    clock::NodeClock,
};
use crate::client::Client;

/// What the nodes show.
pub(super) struct Examined {
    pub(super) endpoints: Vec<Remark>,
    pub(super) cluster: Vec<Remark>,
    pub(super) clocks: Vec<NodeClock>,
}

/// Asks each node, members that are not among the endpoints included. `limit` is how long to wait for each.
pub(super) async fn examine(client: &Client, source: &str, limit: Duration) -> Examined {
    let asked = nodes::ask_all(client, false, limit).await;
    let mut endpoints = vec![Remark::ok(format!("{} ({source})", client.endpoints().join(",")))];
    let mut clocks = Vec::new();

    for node in &asked {
        let address = show::text(&node.address);
        // Asked again, alone and over an open connection: the time of this answer is that of the network and of the node.
        let began = Instant::now();
        let answer = if node.answer.is_ok() { client.status(&node.address, limit).await } else { node.answer.clone() };
        let took = began.elapsed();

        let Ok(status) = answer else {
            endpoints.push(Remark::problem(format!("{address}: {}", nodes::health(node, None))));
            continue;
        };
        let facts = format!(
            "{address}: node {} of cluster {}, {}, term {}, version {}, answered in {:.1} ms",
            status.node_id,
            show::text(&status.cluster_id),
            status.role.name(),
            status.term,
            show::text(&status.version),
            took.as_secs_f64() * 1_000.0
        );
        endpoints.push(if status.serving {
            Remark::ok(facts)
        } else {
            Remark::problem(format!("{facts}; {}", nodes::health(node, None)))
        });
        clocks.extend(NodeClock::read(&status, took));
    }

    Examined { endpoints, cluster: cluster(&asked), clocks }
}

fn cluster(asked: &[nodes::AskedNode]) -> Vec<Remark> {
    let mut remarks = Vec::new();
    remarks.push(match nodes::quorum(asked) {
        Some((text, true)) if nodes::leader(asked).is_some() => {
            Remark::ok(format!("quorum: {text}, and a leader serves"))
        }
        Some(_) | None => Remark::problem(nodes::conclusion(asked)),
    });

    if let Some(leader) = nodes::leader(asked) {
        let sessions = show::count(leader.sessions, "session", "sessions");
        let locks = show::count(leader.locks, "lock", "locks");
        let waiters = show::count(leader.waiters, "waiter", "waiters");
        remarks.push(Remark::ok(format!("{sessions}, {locks}, {waiters}")));
    }
    // Where nothing is wrong, `status` has nothing to add to its table.
    remarks.extend(status::sentences(asked).into_iter().map(Remark::note));
    remarks
}
