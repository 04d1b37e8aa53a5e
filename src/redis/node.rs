//! What all connections of a node share.

use std::{sync::Arc, time::Duration};

use lockkeeper_accept::ArrivingBytes;
use tokio::{sync::Mutex, time::Instant};

use crate::{Interpreter, key::script_key};
use crate::{
    RedisCaller, RedisOptions, RedisStore, RedisStoreError,
    clients::ClientList,
    key::FLUSHED,
    script::{CachedScript, ScriptCache},
    signals::NodeSignals,
    unit::{Engine, EngineParts},
};

/// Time for which a node may run scripts that another node was told to forget.
const FLUSH_CHECK: Duration = Duration::from_secs(1);
/// Time limit of a look whether they are to be forgotten: it is a part of the time of the command that looks.
const FLUSH_LOOK_TIMEOUT: Duration = Duration::from_millis(400);

/// The state that all connections of a node share.
pub(crate) struct RedisNode<S> {
    /// What runs units, and the store.
    pub(crate) engine: Engine<S>,
    /// The settings of the port.
    pub(crate) options: RedisOptions,
    /// The connections of this node.
    pub(crate) clients: Arc<ClientList>,
    /// The budget of replies that are not written.
    pub(crate) replies: ArrivingBytes,
    /// The scripts that this node remembers.
    pub(crate) scripts: ScriptCache,
    /// When the port was made.
    pub(crate) signals: NodeSignals<S>,
    pub(crate) began: Instant,
    /// The last check whether another node was told to forget the scripts.
    flushed: Mutex<FlushLook>,
}

/// The last check whether scripts must be forgotten.
#[derive(Debug, Default)]
struct FlushLook {
    /// The time of the check, even if the store did not answer.
    at: Option<Instant>,
    /// The revision in the store's answer.
    revision: Option<u64>,
}

impl<S: RedisStore> RedisNode<S> {
    /// Makes the state of a node.
    pub(crate) fn new(store: S, interpreter: Arc<dyn Interpreter>, options: RedisOptions) -> Self {
        let signals = NodeSignals::new(store.clone(), options.seed, options.master_names.clone());
        let replies = ArrivingBytes::new(options.replies_bytes_max);
        let parts = EngineParts {
            store,
            replies: replies.clone(),
            interpreter,
            script_limits: options.script_limits,
            wall_us: Arc::clone(&options.wall_us),
            seed: options.seed,
            scripts_max: options.scripts_max,
            run_apart: Arc::clone(&options.run_apart),
            scripts_in_place: options.scripts_in_place,
        };

        Self {
            engine: Engine::new(parts),
            clients: Arc::new(ClientList::new(options.seed)),
            replies,
            scripts: ScriptCache::new(options.script_cache_bytes_max),
            signals,
            began: Instant::now(),
            flushed: Mutex::default(),
            options,
        }
    }

    /// The keyspace.
    pub(crate) fn store(&self) -> &S {
        &self.engine.store
    }

    /// The script with this SHA-1, which may be written in any case: from this node's memory, or from the store. `None` means that there is
    /// none; then the client sends the script itself.
    pub(crate) async fn find_script(
        &self,
        caller: &RedisCaller,
        sha1: &[u8],
    ) -> Result<Option<Arc<CachedScript>>, RedisStoreError> {
        if let Some(script) = self.find_remembered_script(caller, sha1).await {
            return Ok(Some(script));
        }

        let Some(sha1) = script_name(sha1) else { return Ok(None) };
        let port = RedisCaller { is_port: true, ..caller.clone() };
        let found = self.store().get(&port, vec![script_key(&sha1)]).await?;
        let Some(entry) = found.entries.into_iter().next().flatten() else { return Ok(None) };
        let script = Arc::new(CachedScript::new(&entry.value));
        if script.sha1 != sha1 {
            return Ok(None);
        }
        self.scripts.put(&script);
        Ok(Some(script))
    }

    /// The same from this node's memory alone.
    pub(crate) async fn find_remembered_script(&self, caller: &RedisCaller, sha1: &[u8]) -> Option<Arc<CachedScript>> {
        let sha1 = script_name(sha1)?;
        self.forget_flushed(caller).await;
        self.scripts.get(&sha1)
    }

    /// Whether each of these SHA-1s is that of a script that EVALSHA would find.
    pub(crate) async fn known_scripts(
        &self,
        caller: &RedisCaller,
        sha1s: &[&[u8]],
    ) -> Result<Vec<bool>, RedisStoreError> {
        self.forget_flushed(caller).await;
        let names = sha1s.iter().map(|sha1| String::from_utf8_lossy(sha1).to_ascii_lowercase());
        let names: Vec<_> = names.map(|name| if name.len() == 40 { name } else { String::new() }).collect();
        let mut known: Vec<_> = names.iter().map(|name| self.scripts.get(name).is_some()).collect();

        // Make one read for all scripts that this node does not remember.
        let is_asked = |place: &usize| !known[*place] && !names[*place].is_empty();
        let asked: Vec<usize> = (0..names.len()).filter(is_asked).collect();
        if asked.is_empty() {
            return Ok(known);
        }
        let port = RedisCaller { is_port: true, ..caller.clone() };
        let keys = asked.iter().map(|place| script_key(&names[*place])).collect();
        let found = self.store().get(&port, keys).await?;
        for (place, entry) in asked.into_iter().zip(found.entries) {
            known[place] = entry.is_some();
        }
        Ok(known)
    }

    /// Remembers the text of a script.
    pub(crate) fn remember_script(&self, source: &[u8]) -> Arc<CachedScript> {
        let script = Arc::new(CachedScript::new(source));
        self.scripts.get(&script.sha1).unwrap_or_else(|| {
            self.scripts.put(&script);
            script
        })
    }

    /// Forgets the scripts if another node was told to: it wrote an entry, whose revision is looked at from time to time.
    async fn forget_flushed(&self, caller: &RedisCaller) {
        // Another task checks already.
        let Ok(mut flushed) = self.flushed.try_lock() else { return };
        let now = Instant::now();
        if flushed.at.is_some_and(|looked| now.duration_since(looked) < FLUSH_CHECK) {
            return;
        }

        let deadline = caller.deadline.min(now + FLUSH_LOOK_TIMEOUT);
        let port = RedisCaller { is_port: true, deadline, ..caller.clone() };
        let Ok(found) = self.store().get(&port, vec![FLUSHED.to_vec()]).await else {
            // Without a leader no script takes effect. If each of them looked again, hundreds that have come together would wait one after
            // the other, and none would be told within its time.
            flushed.at = Some(Instant::now());
            return;
        };
        let revision = found.entries.first().and_then(Option::as_ref).map_or(0, |entry| entry.modified);
        if flushed.revision.is_some_and(|before| before != revision) {
            self.scripts.clear();
        }
        *flushed = FlushLook { at: Some(now), revision: Some(revision) };
    }

    /// Notes that this node's own memory was emptied at a revision.
    pub(crate) async fn note_flush(&self, revision: u64) {
        self.scripts.clear();
        *self.flushed.lock().await = FlushLook { at: Some(Instant::now()), revision: Some(revision) };
    }
}

/// A SHA-1 as the memory has it, if it can be one.
fn script_name(sha1: &[u8]) -> Option<String> {
    let sha1 = std::str::from_utf8(sha1).ok()?;
    (sha1.len() == 40).then(|| sha1.to_ascii_lowercase())
}
