//! The connections of this node, for CLIENT LIST and CLIENT KILL, and as holders of locks.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::libraries::{LibraryCounts, LibraryUse, ToldLibrary};

/// Bytes of its name, of its library, and of that one's version that the label of a client shows. A label has at most 256 bytes in the
/// cluster, and its end tells one request from another.
const SHOWN_BYTES_MAX: [usize; 3] = [96, 40, 16];

/// The connections of a node.
#[derive(Debug, Default)]
pub(crate) struct ClientList {
    /// Ids ascend from a number by chance, so that no two nodes, and no two starts of one, give the same.
    last_id: AtomicU64,
    /// The counts of their commands, by the libraries of the clients.
    libraries: LibraryCounts,
    /// The open connections, by their ids.
    known: Mutex<BTreeMap<u64, Arc<ListedClient>>>,
}

/// A connection, as others see it.
#[derive(Debug)]
pub(crate) struct ListedClient {
    /// Its id, as CLIENT ID says it.
    pub(crate) id: u64,
    /// The client's end of it.
    pub(crate) address: SocketAddr,
    /// When it was accepted.
    pub(crate) since: Instant,
    /// Ends the connection.
    pub(crate) kill: CancellationToken,
    /// The library of its client, for metrics.
    told_library: ToldLibrary,
    /// Number of requests that have asked for a [label](Self::label).
    requests: AtomicU64,
    /// What changes while it is open.
    told: Mutex<ClientFacts>,
}

/// The facts that a client has sent about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientFacts {
    /// CLIENT SETNAME.
    pub(crate) name: String,
    /// CLIENT SETINFO LIB-NAME.
    pub(crate) library: String,
    /// CLIENT SETINFO LIB-VER.
    pub(crate) library_version: String,
    /// Whom it has proven to be.
    pub(crate) identity: Option<String>,
    /// The database that its last command found selected.
    pub(crate) database: u8,
    /// Its last command. Empty before the first one.
    pub(crate) last_command: &'static str,
    /// Number of channels that it has subscribed to.
    pub(crate) channels: usize,
    /// The same of patterns.
    pub(crate) patterns: usize,
}

/// What CLIENT LIST and CLIENT KILL take for a type of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientType {
    /// It sends commands.
    Normal,
    /// It has subscribed to something.
    Subscriber,
    /// A server that replicates this one, or the other way round. There are none.
    Server,
}

impl ClientType {
    /// The type with this name, in any case.
    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        match name.to_ascii_lowercase().as_slice() {
            b"normal" => Some(Self::Normal),
            b"pubsub" => Some(Self::Subscriber),
            b"master" | b"replica" | b"slave" => Some(Self::Server),
            _ => None,
        }
    }
}

impl ClientFacts {
    /// Whether the connection is for messages, as others see it.
    pub(crate) fn client_type(&self) -> ClientType {
        if self.channels + self.patterns > 0 { ClientType::Subscriber } else { ClientType::Normal }
    }

    /// Whom it has proven to be, in the words of CLIENT.
    pub(crate) fn user(&self) -> &str {
        self.identity.as_deref().unwrap_or("default")
    }
}

/// Removes a connection from the list on drop.
#[derive(Debug)]
pub(crate) struct ClientGuard {
    /// The list that it leaves.
    clients: Arc<ClientList>,
    /// The connection.
    pub(crate) client: Arc<ListedClient>,
}

impl ClientList {
    /// Makes an empty list. The seed decides about the first id.
    pub(crate) fn new(seed: u64) -> Self {
        // Clients read ids as doubles: 40 bits leave room for all that come.
        Self { last_id: AtomicU64::new(seed >> 24), libraries: LibraryCounts::default(), known: Mutex::default() }
    }

    /// Adds a connection.
    pub(crate) fn enter(self: &Arc<Self>, address: SocketAddr, identity: Option<String>) -> ClientGuard {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let told = ClientFacts { identity, ..ClientFacts::default() };

        let kill = CancellationToken::new();
        let requests = AtomicU64::new(0);
        let told = Mutex::new(told);
        let told_library = self.libraries.enter();

        let client = Arc::new(ListedClient { id, address, since: Instant::now(), kill, told_library, requests, told });
        self.known().insert(id, Arc::clone(&client));
        ClientGuard { clients: Arc::clone(self), client }
    }

    /// All connections, the oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<ListedClient>> {
        self.known().values().cloned().collect()
    }

    /// Number of connections.
    pub(crate) fn count(&self) -> usize {
        self.known().len()
    }

    /// What clients have done, by their libraries.
    pub(crate) fn libraries(&self) -> Vec<LibraryUse> {
        self.libraries.used()
    }

    /// A client has said the name of its library.
    pub(crate) fn tell_library(&self, client: &ListedClient, library: String) {
        self.libraries.tell(&client.told_library, &library);
        client.tell(|told| told.library = library);
    }

    /// Counts commands of a client.
    pub(crate) fn note_commands(&self, client: &ListedClient, count: usize) {
        self.libraries.note_commands(&client.told_library, count);
    }

    /// Counts an error that a client was told.
    pub(crate) fn note_error(&self, client: &ListedClient) {
        self.libraries.note_error(&client.told_library);
    }

    /// The connections. No code panics while it holds the lock.
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ListedClient>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListedClient {
    /// The known facts about the client.
    pub(crate) fn told(&self) -> ClientFacts {
        self.lock_told().clone()
    }

    /// Whom it has proven to be.
    pub(crate) fn identity(&self) -> Option<String> {
        self.lock_told().identity.clone()
    }

    /// Whether it has proven to be this one, or nothing if there is none.
    pub(crate) fn is_identified_as(&self, identity: Option<&str>) -> bool {
        self.lock_told().identity.as_deref() == identity
    }

    /// Notes something of it.
    pub(crate) fn tell(&self, tell: impl FnOnce(&mut ClientFacts)) {
        tell(&mut self.lock_told());
    }

    /// The text that is shown as the holder of the locks that its next request takes: its name, its library, its address, and a mark of
    /// the request. No two requests have the same text, on whatever connection, node or start of a node.
    pub(crate) fn label(&self) -> String {
        let request = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let ClientFacts { name, library, library_version, .. } = self.told();
        let shown = [name, library, library_version];
        let [name, library, version] = std::array::from_fn(|part| shortened(&shown[part], SHOWN_BYTES_MAX[part]));

        let version = if version.is_empty() { String::new() } else { format!(" {version}") };
        let library = if library.is_empty() { String::new() } else { format!("{library}{version}") };
        let address = format!("{} #{:x}.{request:x}", self.address, self.id);
        let parts = [name, &library, &address];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Its line in CLIENT LIST.
    pub(crate) fn line(&self, version: i64) -> String {
        let told = self.told();
        let user = told.user();
        let flags = match told.client_type() {
            ClientType::Subscriber => "P",
            ClientType::Normal | ClientType::Server => "N",
        };
        let ClientFacts { name, library, library_version, database, last_command, channels, patterns, .. } = &told;
        let Self { id, address, .. } = self;
        let age = self.since.elapsed().as_secs();
        format!(
            "id={id} addr={address} laddr= fd=0 name={name} age={age} idle=0 flags={flags} db={database} sub={channels} psub={patterns} \
             ssub=0 multi=-1 cmd={last_command} user={user} redir=-1 resp={version} lib-name={library} lib-ver={library_version}\n"
        )
    }

    /// The facts. No code panics while it holds the lock.
    fn lock_told(&self) -> MutexGuard<'_, ClientFacts> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first bytes of a text.
fn shortened(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.clients.libraries.leave(&self.client.told_library);
        self.clients.known().remove(&self.client.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a client says of itself, its address and the mark of its request are not cut off: by that mark a node knows its own lock
    /// again after it has lost the answer.
    #[test]
    fn a_label_ends_with_the_mark_of_its_request() {
        let clients = Arc::new(ClientList::new(u64::MAX));
        let address = "[2001:db8:1111:2222:3333:4444:5555:6666%4294967295]:65535".parse().expect("an address");
        let guard = clients.enter(address, None);
        guard.client.requests.store(u64::MAX - 2, Ordering::Relaxed);
        guard.client.tell(|told| {
            told.name = "n".repeat(256);
            told.library_version = "v".repeat(256);
        });
        clients.tell_library(&guard.client, "l".repeat(256));

        let labels = [guard.client.label(), guard.client.label()];
        for label in &labels {
            assert!(label.len() <= 256, "{} bytes: {label}", label.len());
            assert!(
                label.starts_with("nn") && label.contains(", ll") && label.contains(&address.to_string()),
                "{label}"
            );
        }
        assert_ne!(labels[0], labels[1]);
    }
}
