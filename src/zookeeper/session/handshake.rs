//! The first frame: a new session, or one that goes on.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tokio::time::{Duration, Instant};

use super::ClientSession;
use crate::{
    AttachOutcome, SessionStart, ZookeeperCaller, ZookeeperStore, ZookeeperStoreError,
    node::ZookeeperNode,
    tree::ClientIdentities,
    watches::{EventOutbox, WatchingClient},
    wire::{ConnectAnswer, ConnectRequest},
    writes::ensure_root,
};

/// What a connect leads to.
pub(crate) enum Greeting<S> {
    /// An open session, and the answer to its client.
    Session(Box<ClientSession<S>>, ConnectAnswer),
    /// The session is over or belongs to another client. The answer says so.
    Over,
}

/// Opens a session, or takes one over. Fails if the client must go elsewhere.
pub(crate) async fn greet<S: ZookeeperStore>(
    node: &Arc<ZookeeperNode<S>>,
    address: SocketAddr,
    identity: Option<String>,
    request: &ConnectRequest,
) -> Result<Greeting<S>, ZookeeperStoreError> {
    let deadline = Instant::now() + node.options.request_timeout;
    let caller = ZookeeperCaller { identity: identity.clone(), address, deadline, is_port: false };
    let open = Arc::new(());
    if let Some(identity) = &identity {
        node.store.admit(identity, Arc::downgrade(&open))?;
    }
    node.hub.live().await;
    ensure_root(&node.store, &caller).await?;

    let key = node.password_key().await?;
    let start = if request.session == 0 {
        open_session(node, &caller, request).await?
    } else {
        // A wrong password ends nothing: the session's own client goes on.
        let session = u64::try_from(request.session).unwrap_or_default();
        if session == 0 || !key.fits(session, &request.password) {
            return Ok(Greeting::Over);
        }
        match node.store.attach(&caller, session).await? {
            AttachOutcome::Attached(start) => start,
            AttachOutcome::Over { .. } => return Ok(Greeting::Over),
        }
    };

    // Both calls go through the log, so this node has applied every state that a client has seen. A higher revision comes from another
    // cluster.
    if u64::try_from(request.last_seen).is_ok_and(|last_seen| last_seen > start.revision) {
        let why = format!(
            "the client has seen revision {}, and this cluster is at {}: it comes from another cluster; start it again",
            request.last_seen, start.revision
        );
        // Such a client comes again and again, and knows of no session that it was given.
        if request.session == 0 {
            let _ = node.store.close(&caller, start.attached).await;
        }
        return Err(ZookeeperStoreError::NotExecuted(why));
    }

    let outbox = EventOutbox::new(address, node.options.connection_events_bytes_max, &node.events);
    let outbox = Arc::new(outbox);
    // The connect and its answer.
    outbox.received.store(1, Relaxed);
    outbox.sent.store(1, Relaxed);

    let ended = |_| ZookeeperStoreError::NotExecuted("this node has lost the feed of its changes".to_owned());
    let identities = Arc::new(ClientIdentities::new(address.ip(), identity.clone()));
    let client = WatchingClient { identities: Arc::clone(&identities), caller };
    let id = node.hub.register(start.attached, &outbox, client).map_err(ended)?;

    let answer = ConnectAnswer {
        timeout_ms: i32::try_from(start.ttl_ms).unwrap_or(i32::MAX),
        session: i64::try_from(start.attached.session).unwrap_or_default(),
        password: key.password(start.attached.session),
    };
    let session = ClientSession {
        node: Arc::clone(node),
        attached: start.attached,
        id,
        outbox,
        address,
        identities,
        identity,
        last_told: start.revision,
        has_opened: request.session == 0,
        ttl: Duration::from_millis(start.ttl_ms),
        request_timeout: node.options.request_timeout.min(Duration::from_millis(start.ttl_ms)),
        open,
        proof: None,
        is_closed: false,
    };
    Ok(Greeting::Session(Box::new(session), answer))
}

async fn open_session<S: ZookeeperStore>(
    node: &ZookeeperNode<S>,
    caller: &ZookeeperCaller,
    request: &ConnectRequest,
) -> Result<SessionStart, ZookeeperStoreError> {
    // 63 bits, and not zero, which asks for a new session. That two sessions get the same is not to be expected.
    let session = ((node.options.random)() >> 1).max(1);
    node.store.open(caller, session, node.options.granted_ms(request.timeout_ms)).await
}
