//! The scripts that a node remembers: by their SHA-1, up to a number of bytes, those that were used last.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::shape::ScriptShape;
use crate::{sha1, view::Stop};

/// Maximum number of bytes of a script's text. The compiler of Lua takes the square of some of them, such as of 10,000 times `a or`, and
/// cannot be interrupted.
pub(crate) const SOURCE_BYTES_MAX: usize = 64 << 10;
/// Bytes that a script takes beyond its own.
const SCRIPT_COST: usize = 256;

/// A script that is remembered.
#[derive(Debug)]
pub(crate) struct CachedScript {
    /// Its text, byte for byte.
    pub(crate) source: Arc<[u8]>,
    /// Its name for clients: 40 lower-case hexadecimal digits.
    pub(crate) sha1: String,
    /// The shape of the script, if it needs no interpreter.
    pub(crate) shape: Option<ScriptShape>,
}

impl CachedScript {
    /// Fails on a text that is too long.
    pub(crate) fn check_length(source: &[u8]) -> Result<(), Stop> {
        if source.len() <= SOURCE_BYTES_MAX {
            return Ok(());
        }
        Err(Stop::Refused(format!(
            "ERR the script has {} bytes, and the limit is {SOURCE_BYTES_MAX}: make several scripts of it",
            source.len()
        )))
    }

    /// Hashes a script and looks for its shape. That is done once for each.
    pub(crate) fn new(source: &[u8]) -> Self {
        Self { source: source.into(), sha1: sha1::hexadecimal(source), shape: ScriptShape::recognize(source) }
    }

    /// Number of bytes that it takes.
    fn cost(&self) -> usize {
        self.source.len() + SCRIPT_COST
    }
}

/// The scripts of a node.
#[derive(Debug)]
pub(crate) struct ScriptCache {
    /// The limit of all scripts together.
    bytes_max: usize,
    /// The scripts.
    kept: Mutex<KeptScripts>,
}

#[derive(Debug, Default)]
struct KeptScripts {
    /// The scripts by their SHA-1s, each with the number of its last use.
    by_sha1: BTreeMap<String, (u64, Arc<CachedScript>)>,
    /// Their names in the order of their last uses.
    by_use: BTreeMap<u64, String>,
    /// Number of uses of all scripts.
    uses: u64,
    /// Number of bytes that they take.
    bytes: usize,
}

impl ScriptCache {
    /// Makes an empty memory with a limit.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, kept: Mutex::default() }
    }

    /// The script with this SHA-1 in lower case.
    pub(crate) fn get(&self, sha1: &str) -> Option<Arc<CachedScript>> {
        let mut kept = self.kept();
        let (_, script) = kept.by_sha1.get(sha1)?;
        let script = Arc::clone(script);
        kept.touch(&script);
        Some(script)
    }

    /// Remembers a script. Others that were not used for longer are forgotten if there are too many.
    pub(crate) fn put(&self, script: &Arc<CachedScript>) {
        let mut kept = self.kept();
        kept.touch(script);
        while kept.bytes > self.bytes_max
            && let Some((_, oldest)) = kept.by_use.pop_first()
            && let Some((_, forgotten)) = kept.by_sha1.remove(&oldest)
        {
            kept.bytes -= forgotten.cost();
        }
    }

    /// Forgets all scripts.
    pub(crate) fn clear(&self) {
        *self.kept() = KeptScripts::default();
    }

    /// The scripts. No code panics while it holds the lock.
    fn kept(&self) -> MutexGuard<'_, KeptScripts> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptScripts {
    /// Makes a script the one that was used last.
    fn touch(&mut self, script: &Arc<CachedScript>) {
        self.uses += 1;
        let uses = self.uses;
        let before = self.by_sha1.insert(script.sha1.clone(), (uses, Arc::clone(script)));
        match before {
            Some((last_use, _)) => {
                self.by_use.remove(&last_use);
            }
            None => self.bytes += script.cost(),
        }
        self.by_use.insert(uses, script.sha1.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_that_was_not_used_for_longest_is_forgotten() {
        let cache = ScriptCache::new(2 * (SCRIPT_COST + 8));
        let [first, second, third] = ["return 1", "return 2", "return 3"].map(|source| {
            let script = Arc::new(CachedScript::new(source.as_bytes()));
            cache.put(&script);
            cache.get("none");
            if source == "return 2" {
                assert!(cache.get("e0e1f9fabfc9d4800c877a703b823ac0578ff8db").is_some(), "the first");
            }
            script.sha1.clone()
        });

        assert!(cache.get(&first).is_some() && cache.get(&third).is_some());
        assert!(cache.get(&second).is_none());
        cache.clear();
        assert!(cache.get(&first).is_none());
        assert_eq!(cache.kept().bytes, 0);
    }
}
