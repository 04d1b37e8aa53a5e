//! Notices of lost sessions and grants, for the keep-alive streams of their holders.
//!
//! A listener that does not keep up is told that it missed something, instead of being waited for.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use lockkeeper_machine::{Revocation, SessionEnd, SessionId};

/// Notices that a keep-alive stream may lag behind before it is closed.
pub(super) const NOTICES_KEPT: usize = 64;

/// An event that the holder of a session must be told at once.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The session.
    pub session: SessionId,
    /// The loss.
    pub what: SessionLoss,
}

/// A loss of a session.
#[derive(Clone, Debug)]
pub enum SessionLoss {
    /// The session ended.
    Ended(SessionEnd),
    /// An operator revoked a grant.
    Revoked(Revocation),
}

/// Sends a keep-alive stream the losses of its sessions. One for all of them.
#[derive(Clone, Debug)]
pub struct Listener {
    notices: mpsc::Sender<Notice>,
    lags: CancellationToken,
}

/// The receiving end of a [`Listener`].
#[derive(Debug)]
pub struct Notices {
    notices: mpsc::Receiver<Notice>,
    lags: CancellationToken,
}

impl Notices {
    /// A pair for [`Table::listen`](crate::Table::listen).
    pub fn new() -> (Listener, Self) {
        let (sender, receiver) = mpsc::channel(NOTICES_KEPT);
        let lags = CancellationToken::new();
        (Listener { notices: sender, lags: lags.clone() }, Self { notices: receiver, lags })
    }

    /// The next notice. `None` once one was missed: the caller must read the present state again. Cancel safe.
    pub async fn next(&mut self) -> Option<Notice> {
        tokio::select! {
            biased;
            () = self.lags.cancelled() => None,
            notice = self.notices.recv() => notice,
        }
    }
}

impl Listener {
    /// Sends a notice. Returns `false` if the listener is gone, or does not keep up.
    pub(super) fn send(&self, notice: Notice) -> bool {
        let sent = self.notices.try_send(notice).is_ok();
        if !sent {
            self.lags.cancel();
        }
        sent
    }

    pub(super) fn is_gone(&self) -> bool {
        self.notices.is_closed()
    }
}
