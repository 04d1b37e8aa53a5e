//! Writes to the protected resources, and records the writes.

use super::{
    locks::Lock,
    resource::{RegisterAccess, RegisterPlace, WriteAnswer},
};
use crate::{
    history::{Answer, Call, Mode},
    record::Recorder,
};

/// A writer with a recorder.
#[derive(Debug)]
pub(crate) struct Writes {
    place: RegisterPlace,
    recorder: Recorder,
    access: Option<RegisterAccess>,
}

impl Writes {
    /// Makes a writer to the registers at this place.
    pub(crate) fn new(place: &RegisterPlace, recorder: Recorder) -> Self {
        Self { place: place.clone(), recorder, access: None }
    }

    /// Writes to the unfenced and to the fenced register of each lock. Permits have no order, so they have no fenced write.
    pub(crate) async fn write_all(&mut self, locks: &[Lock], token: u64) {
        for lock in locks {
            for fenced in [false, true] {
                if !(fenced && matches!(lock.mode, Mode::Permits(_))) {
                    self.write(lock, token, fenced).await;
                }
            }
        }
    }

    async fn write(&mut self, lock: &Lock, token: u64, fenced: bool) {
        let access = match self.access.take() {
            Some(access) => Ok(access),
            None => RegisterAccess::open(&self.place).await,
        };
        let Ok(mut access) = access else { return };

        let call = Call::Write { token, mode: lock.mode, fenced };
        let begun = self.recorder.begin(std::slice::from_ref(&lock.name), call);
        match access.write(&lock.name, token, lock.mode, fenced).await {
            Ok(WriteAnswer::Accepted(seq)) => begun.ok(Answer::Write { seq: Some(seq) }),
            Ok(WriteAnswer::Refused) => begun.failed("refused_token"),
            Err(error) => return begun.unknown(error.to_string()),
        }
        self.access = Some(access);
    }
}
