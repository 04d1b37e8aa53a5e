//! The steps about locks and leaderships.

use std::{sync::Arc, time::Duration};

use lockkeeper_client::{Acquire, Election, Error, Guard, Leadership, Loss, NewData, Session};
use serde_json::{Value, json};

use super::{
    Program,
    broken::Broken,
    duration,
    errors::{loss_event, loss_name},
    text,
};

/// What an acquire or a campaign got.
#[derive(Clone)]
pub(super) enum Held {
    Locks(Arc<Guard>),
    Leads(Arc<Leadership>),
}

impl Held {
    fn guard(&self) -> &Guard {
        match self {
            Self::Locks(guard) => guard,
            Self::Leads(leadership) => leadership.guard(),
        }
    }
}

/// Whole milliseconds: less than one is none.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Program {
    pub(super) async fn acquire(self: &Arc<Self>, step: &Value) -> Result<Value, Error> {
        let number = step["step"].as_u64().unwrap_or_default();
        let cancel = self.cancels().get(&number).cloned().unwrap_or_default();
        let acquiring = Arc::clone(self).get_held(step.clone());
        let held = if self.broken == Some(Broken::LeaksCancelled) {
            // The acquire goes on when its caller is gone.
            let acquiring = tokio::spawn(acquiring);
            tokio::select! {
                held = acquiring => held.unwrap_or_else(|error| Err(Error::Unknown { why: error.to_string() })),
                () = cancel.cancelled() => return Ok(json!({ "outcome": "cancelled" })),
            }
        } else {
            tokio::select! {
                held = acquiring => held,
                () = cancel.cancelled() => {
                    self.cancels().remove(&number);
                    return Ok(json!({ "outcome": "cancelled" }));
                }
            }
        };
        self.cancels().remove(&number);
        let held = held?;
        let guard = held.guard();
        let outcome = json!({ "outcome": "granted", "token": guard.token().0, "place_lost": guard.place_lost() });
        Ok(outcome)
    }

    /// Acquires, and remembers what was granted.
    async fn get_held(self: Arc<Self>, step: Value) -> Result<Held, Error> {
        let session = self.session().await?;
        let held = if step["do"] == "campaign" {
            let election = self.client.election(&text(&step, "name"))?;
            Held::Leads(Arc::new(campaign(&election, &session, &step).await?))
        } else {
            Held::Locks(Arc::new(self.options(&session, &step)?.await?))
        };
        let lock = text(&step, "lock");
        self.held().insert(lock.clone(), held.clone());
        self.tell_loss(lock, held.clone());
        Ok(held)
    }

    /// The acquire that a step asks for.
    fn options(&self, session: &Session, step: &Value) -> Result<Acquire, Error> {
        let names: Vec<&str> = step["names"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut acquire = session.acquire_all(names).lock_delay(duration(step, "lock_delay_ms"));
        acquire = match step["mode"].as_str().unwrap_or_default() {
            "shared" => acquire.shared(),
            "permits" => acquire
                .permits(step["permits"].as_u64().and_then(|permits| u32::try_from(permits).ok()).unwrap_or_default()),
            _ => acquire,
        };
        if let Some(data) = step["data"].as_str() {
            acquire = acquire.data(data.as_bytes());
        }
        if step["keep_data"] == true {
            acquire = acquire.keep_data();
        }
        if step["must_exist"] == true {
            acquire = acquire.must_exist();
        }
        if self.broken == Some(Broken::AlwaysWaits) {
            return Ok(acquire.wait_forever());
        }
        Ok(match step["wait_ms"].as_u64() {
            None => acquire.wait_forever(),
            Some(0) => acquire.no_wait(),
            Some(ms) => acquire.wait_at_most(Duration::from_millis(ms)),
        })
    }

    fn tell_loss(&self, lock: String, held: Held) {
        let broken = self.broken;
        tokio::spawn(async move {
            let loss = held.guard().lost().await;
            let event = match broken {
                Some(Broken::NeverTells) => return,
                Some(Broken::WrongReason) if loss != Loss::Released => loss_event(&lock, &Loss::Expired),
                Some(Broken::TellsReleases) => loss_event(&lock, &Loss::Closed),
                _ if loss == Loss::Released => return,
                _ => loss_event(&lock, &loss),
            };
            if broken == Some(Broken::TellsLate) {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            println!("{event}");
            if broken == Some(Broken::TellsTwice) {
                println!("{event}");
            }
        });
    }

    fn find(&self, step: &Value) -> Result<Held, Error> {
        let lock = text(step, "lock");
        let found = self.held().get(&lock).cloned();
        found.ok_or(Error::Unknown { why: format!("the driver has no lock {lock:?}") })
    }

    pub(super) async fn release(&self, step: &Value) -> Result<Value, Error> {
        let held = self.find(step)?;
        if self.broken != Some(Broken::KeepsReleased) {
            held.guard().release().await?;
        }
        Ok(json!({ "outcome": "released" }))
    }

    pub(super) fn remaining(&self, step: &Value) -> Result<Value, Error> {
        let held = self.find(step)?;
        let guard = held.guard();
        if self.broken == Some(Broken::TrustsForEver) {
            return Ok(json!({ "outcome": "remaining", "remaining_ms": millis(self.options.ttl), "lost": null }));
        }
        let lost = guard.loss().map(|loss| loss_name(&loss));
        Ok(json!({ "outcome": "remaining", "remaining_ms": millis(guard.remaining()), "lost": lost }))
    }

    pub(super) async fn ensure(&self, step: &Value) -> Result<Value, Error> {
        let held = self.find(step)?;
        let left = held.guard().ensure(duration(step, "min_left_ms")).await?;
        Ok(json!({ "outcome": "ensured", "remaining_ms": millis(left) }))
    }

    pub(super) async fn update(&self, step: &Value) -> Result<Value, Error> {
        let held = self.find(step)?;
        if let Held::Leads(leadership) = &held {
            leadership.proclaim(text(step, "value")).await?;
            return Ok(json!({ "outcome": "proclaimed" }));
        }
        let data = step["data"].as_str().map(str::as_bytes);
        let data = match (data, step["keep_data"].as_bool().unwrap_or_default()) {
            (None, _) => NewData::None,
            (Some(data), false) => NewData::Held(data),
            (Some(data), true) => NewData::Kept(data),
        };
        held.guard().update(&text(step, "name"), data).await?;
        Ok(json!({ "outcome": "updated" }))
    }
}

async fn campaign(election: &Election, session: &Session, step: &Value) -> Result<Leadership, Error> {
    let campaign = election.campaign(session, text(step, "value"));
    match step["wait_ms"].as_u64() {
        None => campaign.wait_forever().await,
        Some(0) => campaign.no_wait().await,
        Some(ms) => campaign.wait_at_most(Duration::from_millis(ms)).await,
    }
}
