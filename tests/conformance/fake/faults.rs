//! The rules that spoil calls, and what is held back.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::{sync::watch, time::sleep};

use super::{
    arrivals::Method,
    statements::{Effect, Fault, Hold},
};

/// The rules of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Mutex<Vec<Fault>>,
    /// Counts how often what is held back was let go.
    told: watch::Sender<u64>,
}

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        self.rules().push(fault);
    }

    pub(crate) fn tell(&self) {
        self.told.send_modify(|told| *told += 1);
    }

    pub(crate) fn heal(&self) {
        self.rules().clear();
        self.tell();
    }

    /// The effect on a call that arrives now, if a rule fits. Counts it.
    pub(crate) fn effect(&self, method: Method, node: usize) -> Option<Effect> {
        let mut rules = self.rules();
        let fits =
            |rule: &&mut Fault| rule.method == method && rule.times > 0 && rule.node.is_none_or(|fits| fits == node);
        let rule = rules.iter_mut().find(fits)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        Some(rule.effect.clone())
    }

    /// What is held back is let go after its time, or by the next `tell`.
    pub(crate) fn hold(&self, hold: Hold) -> impl Future<Output = ()> + Send + use<> {
        let mut told = self.told.subscribe();
        async move {
            match hold {
                Hold::Time(time) => sleep(time).await,
                // An error means that the cluster is gone.
                Hold::UntilTold => drop(told.changed().await),
            }
        }
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
