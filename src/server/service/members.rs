//! Requests about the members of the cluster.

use std::time::Duration;

use super::{Local, Serve};
use crate::{
    api::{Caller, Error, requests::*},
    wire::Form,
};
use lockkeeper_machine::Note;
use lockkeeper_raft::{NoteKind, elections::handover};

/// Time limit of a transfer of the leadership.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

impl Serve for AddMember {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<MembersChanged>, Error> {
        let Self { node_id, client_address, peer_address, incarnation, stays_learner } = self;
        tracing::debug!(node_id, peer_address, from = %caller.shown(), "asked to add a member");
        let addresses = (peer_address, client_address);
        node.members.add(node_id, incarnation, addresses, stays_learner).await.map_err(Error::membership)?;
        Ok(Form::Typed(MembersChanged))
    }
}

impl Serve for PromoteMember {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<MembersChanged>, Error> {
        tracing::info!(node_id = self.node_id, from = %caller.shown(), "asked to promote a member");
        node.members.promote(self.node_id).await.map_err(Error::membership)?;
        Ok(Form::Typed(MembersChanged))
    }
}

impl Serve for RemoveMember {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<MembersChanged>, Error> {
        let Self { node_id } = self;
        tracing::info!(node_id, from = %caller.shown(), "asked to remove a member");
        if node_id == node.replica.node_id() {
            return leave(node).await;
        }
        node.members.remove(node_id).await.map_err(Error::membership)?;
        Ok(Form::Typed(MembersChanged))
    }
}

/// Hands over the leadership, because this leader is to be removed: its successor removes it, once the caller asks there again.
async fn leave(node: &Local) -> Result<Form<MembersChanged>, Error> {
    node.members.may_remove(node.replica.node_id()).await.map_err(Error::membership)?;
    handover::transfer(&node.replica, None, TRANSFER_TIMEOUT).await.map_err(Error::transfer)?;
    Err(Error::no_leader())
}

impl Serve for ReplaceMember {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<MembersChanged>, Error> {
        let Self { node_id, with, keep } = self;
        tracing::info!(node_id, ?with, keep, from = %caller.shown(), "asked to replace a member");

        // A leader does not replace itself: its successor does.
        let is_own_place = node_id == node.replica.node_id() && with != Some(node_id);
        if is_own_place && !keep && with.is_some_and(|with| node.members.is_voter(with)) {
            return leave(node).await;
        }

        let changed = if keep { node.members.keep(node_id).await } else { node.members.replace(node_id, with).await };
        changed.map_err(Error::membership)?;
        Ok(Form::Typed(MembersChanged))
    }
}

impl Serve for TransferLeader {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<LeaderTransferred>, Error> {
        tracing::info!(to = ?self.to, from = %caller.shown(), "asked to hand the leadership over");
        if !node.replica.leads() {
            return Err(Error::no_leader());
        }

        if self.to == Some(node.replica.node_id()) {
            return Ok(Form::Typed(LeaderTransferred { leader_id: node.replica.node_id() }));
        }

        // Note it before the transfer: this node writes no entries afterwards.
        let target = self.to.map(|to| format!("node {to}")).unwrap_or_default();
        let who = caller.identity.as_ref().map(ToString::to_string);
        let note = Note { who, act: "transfer-leader".to_owned(), target, ..Note::default() };
        if let Some(noting) = node.replica.note(NoteKind::OperatorAct, note) {
            // The note has a deadline of its own. If it fails, the process's log still has the outcome.
            _ = noting.await;
        }

        let leader_id = handover::transfer(&node.replica, self.to, TRANSFER_TIMEOUT).await.map_err(Error::transfer)?;
        Ok(Form::Typed(LeaderTransferred { leader_id }))
    }
}
