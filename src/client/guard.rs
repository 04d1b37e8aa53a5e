//! A grant, as its holder has it in hand.

use std::{mem, sync::Arc, time::Duration};

use super::{Error, Loss, Session, call::with, requests::Outstanding, session::Core};
use crate::{
    machine::{Data, LockName, Token, Want},
    proto::v1::{ReleaseRequest, UpdateRequest, UpdateResponse, locks_client::LocksClient, release_request::Target},
};

/// Locks that are held. Dropped, it releases them in the background; [`Guard::release`] says whether that worked.
///
/// The cluster gives the locks to nobody else before [`Guard::remaining`] is zero. A process that is stopped in between does not notice:
/// for that, whatever the locks protect checks [`Guard::token`].
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
pub struct Guard {
    session: Session,
    token: u64,
    names: Vec<LockName>,
    released: bool,
}

impl Guard {
    pub(super) fn new(session: Session, token: u64, wants: &[Want]) -> Self {
        let names = wants.iter().map(|want| want.name.clone()).collect();
        Self { session, token, names, released: false }
    }

    /// The grant's name and fence: higher than that of any grant before, in the whole cluster, for ever.
    pub fn token(&self) -> Token {
        Token(self.token)
    }

    /// The locks, in the order of their names.
    pub fn names(&self) -> &[LockName] {
        &self.names
    }

    /// The session that holds it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How long it may still be trusted. Zero: it is lost.
    pub fn remaining(&self) -> Duration {
        self.core().lease.remaining(Some(self.token))
    }

    /// How it was lost, if it was. A revoked grant counts as lost at once, although its locks stay closed for [`Guard::remaining`]: that
    /// is the time to stop in.
    pub fn loss(&self) -> Option<Loss> {
        self.core().lease.loss(Some(self.token))
    }

    /// Waits until it is lost.
    pub async fn lost(&self) -> Loss {
        self.core().lease.lost(Some(self.token)).await
    }

    /// Sets the data on one of the locks; `None` removes what is there. `keep`: they stay when this grant ends.
    pub async fn update(&self, name: &str, data: Option<&[u8]>, keep: bool) -> Result<(), Error> {
        let name = LockName::new(name)?.as_str().to_owned();
        let data = data.map(Data::new).transpose()?.map(|data| data.as_bytes().to_vec());
        let (core, request) = (self.core(), self.core().requests.begin());
        let request = UpdateRequest {
            session_id: core.id.to_string(),
            request: Some(request.message()),
            token: self.token,
            name,
            data,
            keep_data: keep,
        };
        let caller = &core.client.caller;
        let call = caller.call(caller.plan(), |node| with!(LocksClient, node, update, request));
        let UpdateResponse {} = core.while_alive(call).await?;
        Ok(())
    }

    /// Gives the locks back. Fails with [`Error::Lost`] or [`crate::proto::v1::Reason::NotHeld`] if they were lost before. If there is
    /// no answer in time, it goes on trying in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let core = self.core().clone();
        let caller = &core.client.caller;
        let outcome = release(&core, Target::Token(self.token), caller.plan()).await;
        self.released = match &outcome {
            Ok(()) | Err(Error::Refused(_) | Error::Lost(_)) => true,
            Err(Error::Unknown { .. } | Error::NoCluster { .. }) => false,
            Err(Error::Invalid(_) | Error::Endpoint(_) | Error::NotAcquired(_)) => false,
        };
        outcome
    }

    fn core(&self) -> &Arc<Core> {
        self.session.core()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !mem::replace(&mut self.released, true) && !self.core().lease.is_ended() {
            release_in_background(self.core(), Target::Token(self.token), None);
        }
        self.core().lease.forget(self.token);
    }
}

async fn release(core: &Core, target: Target, plan: super::call::Plan) -> Result<(), Error> {
    let outstanding = core.requests.begin();
    let request =
        ReleaseRequest { session_id: core.id.to_string(), request: Some(outstanding.message()), target: Some(target) };
    let caller = &core.client.caller;
    core.while_alive(caller.call(plan, |node| with!(LocksClient, node, release, request))).await?;
    Ok(())
}

/// Releases what nobody waits for. It goes on until the cluster has answered or the session is over, and everything with it: what was
/// dropped is never left behind. `acquire` stays outstanding until then.
pub(super) fn release_in_background(core: &Arc<Core>, target: Target, acquire: Option<Outstanding>) {
    let shared = core.clone();
    core.spawn(async move {
        if let Err(error) = release(&shared, target, shared.plan_until_done()).await {
            tracing::debug!(session = %shared.id, ?target, %error, "released in the background what was no longer held");
        }
        drop(acquire);
    });
}
