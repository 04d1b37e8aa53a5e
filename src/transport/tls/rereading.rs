//! The files are read again while the process runs, since certificates are renewed.
//!
//! A node looks for changed files all the time ([`Tls::follow_files`]). A client looks before it opens a connection: nodes end its
//! connections when its certificate expires, and the next one needs the renewed certificate. While a client keeps its connection it needs
//! none, so it has no task for this.
//!
//! What is copied over a file comes in parts. A part may be in order and say less: of two authorities the first one alone, by which all
//! that the other one has signed would be withdrawn, with the connections that are open. So changed files count once they read the same
//! twice, [`SETTLING`] apart or more.

use std::{
    sync::{PoisonError, TryLockError},
    time::Duration,
};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep, timeout},
};

use super::{
    Tls,
    files::{TlsContents, TlsError},
};

/// How often a node looks for changed files, and the shortest time between two looks of a client.
const POLL: Duration = Duration::from_secs(2);
/// Changed files are read once more after this time.
const SETTLING: Duration = Duration::from_millis(200);
/// Longest time for which a connection waits for the files: what is in use may still be good while their disk does not answer.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// What has come of reading the files again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FilesReread {
    /// They say what is in use.
    Same,
    /// They say something else than when they were read last, so they may not be whole, and are to be read again soon.
    Unsettled,
    /// They say something else than before, and that is in use now.
    Changed,
}

/// What is remembered from one look at the files to the next.
#[derive(Default, Debug)]
pub(super) struct FileLooks {
    /// What was read last, if it is not in use.
    unsettled: Option<TlsContents>,
    /// Why what was read last is not used. The log says it once, since the files are looked at again and again.
    refused: String,
}

impl Tls {
    /// Reads the files again whenever they have changed. Does not return.
    #[cfg(feature = "serve")]
    pub async fn follow_files(self) {
        let mut pause = POLL;
        loop {
            sleep(pause).await;
            let Ok(is_unsettled) = self.look_on_thread().await else { return };
            pause = if is_unsettled { SETTLING } else { POLL };
        }
    }

    /// Reads the files again for a client that is about to open a connection, unless it has done so a moment ago.
    pub(super) async fn look_before_connecting(&self) {
        if !self.begins_look() {
            return;
        }
        let look = async {
            while let Ok(true) = self.look_on_thread().await {
                sleep(SETTLING).await;
            }
        };
        // If that takes longer, the connection is opened with what is in use.
        let _ = timeout(LOOK_TIMEOUT, look).await;
    }

    /// Whether the last look of a client was long ago, so that this one begins another.
    fn begins_look(&self) -> bool {
        let mut looked = self.shared.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = looked.elapsed() >= POLL;
        if is_due {
            *looked = Instant::now();
        }
        is_due
    }

    fn look_on_thread(&self) -> JoinHandle<bool> {
        let tls = self.clone();
        spawn_blocking(move || tls.look())
    }

    /// Reads the files again, and tells the log what has come of it. Returns whether they are to be read again soon. Blocks.
    fn look(&self) -> bool {
        // One look that waits for a disk is enough: each of them takes a thread.
        let mut looks = match self.shared.looks.try_lock() {
            Ok(looks) => looks,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };

        match self.refresh(&mut looks) {
            Ok(FilesReread::Unsettled) => return true,
            Ok(FilesReread::Same) => looks.refused.clear(),
            Ok(FilesReread::Changed) => {
                looks.refused.clear();
                let days_left = self.seconds_left().unwrap_or_default() / 86_400;
                tracing::info!(days_left, "the certificates were read again: new connections use them");
            }
            Err(error) => {
                let why = error.to_string();
                if why != looks.refused {
                    tracing::error!("the changed certificates are not used, the old ones are: {why}");
                    looks.refused = why;
                }
            }
        }
        false
    }

    /// Reads the files again, and uses what they say if that has changed and they say the same as the last time. After an error, what was
    /// in use stays in use. Blocks.
    pub(super) fn refresh(&self, looks: &mut FileLooks) -> Result<FilesReread, TlsError> {
        let contents = self.shared.files.read()?;
        if contents == self.current().contents {
            looks.unsettled = None;
            return Ok(FilesReread::Same);
        }
        if looks.unsettled.as_ref() != Some(&contents) {
            looks.unsettled = Some(contents);
            return Ok(FilesReread::Unsettled);
        }

        // What cannot be used stays noted, or each later look would take it for a change that has to settle.
        self.put_in_use(contents)?;
        looks.unsettled = None;
        Ok(FilesReread::Changed)
    }
}
