//! An accepted connection: limits the bytes read in a turn, and notes when HTTP/2's preface is complete.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, ReadBuf};

use super::tls::{ShownCertificate, Subject};
use lockkeeper_accept::{ReadState, Slot};

/// Bytes of HTTP/2's connection preface, which is constant.
const PREFACE_BYTES: usize = 24;
/// Bytes of a frame's header; the first three are the length.
const FRAME_HEADER_BYTES: usize = 9;

/// An accepted connection.
pub struct Connection<S> {
    stream: S,
    remote: SocketAddr,
    certificate: Option<ShownCertificate>,
    /// Dropped with the connection: see [`Remote`].
    token: Arc<ConnectionToken>,
    preface: Preface,
    read_state: Arc<ReadState>,
}

/// The progress of the preface. HTTP/2 checks its content.
#[derive(Debug, Default)]
struct Preface {
    seen: usize,
    settings_length: usize,
}

impl Preface {
    fn is_over(&self) -> bool {
        self.seen >= PREFACE_BYTES + FRAME_HEADER_BYTES + self.settings_length
    }

    fn take(&mut self, bytes: &[u8]) {
        const LENGTH: std::ops::Range<usize> = PREFACE_BYTES..PREFACE_BYTES + 3;
        for byte in bytes {
            if self.is_over() {
                return;
            }
            if LENGTH.contains(&self.seen) {
                self.settings_length = self.settings_length << 8 | usize::from(*byte);
            }
            self.seen += 1;
        }
    }
}

/// What a connection and its [`Remote`]s share.
#[derive(Debug, Default)]
struct ConnectionToken {
    must_finish: AtomicBool,
    /// Gives the connection's task its orders, once it has one.
    slot: OnceLock<Weak<Slot>>,
}

/// The origin of a connection, and whether it is still open: in the extensions of each request.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The address of the other end.
    pub address: SocketAddr,
    /// The certificate of the other end, if it showed one.
    pub certificate: Option<ShownCertificate>,
    connection: Weak<ConnectionToken>,
}

/// Tells a connection from others for as long as a [`Remote`] of it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(usize);

impl Remote {
    /// The connection's id.
    pub fn id(&self) -> ConnectionId {
        ConnectionId(self.connection.as_ptr().addr())
    }

    /// Has the connection closed after the answer to a call that calls this before it answers: GOAWAY, and its open calls may end.
    pub fn finish(&self) {
        if let Some(token) = self.connection.upgrade() {
            token.must_finish.store(true, Relaxed);
        }
    }

    /// Closes the connection at once, with its open calls and all that waits for its client.
    pub fn close(&self) {
        let token = self.connection.upgrade();
        if let Some(slot) = token.and_then(|token| token.slot.get()?.upgrade()) {
            slot.close();
        }
    }

    pub(super) fn must_finish(&self) -> bool {
        self.connection.upgrade().is_some_and(|token| token.must_finish.load(Relaxed))
    }

    /// The id of the node that the certificate of the other end names.
    pub fn node(&self) -> Option<u64> {
        match self.certificate.as_ref()?.subject() {
            Subject::Node { id, .. } => Some(*id),
            Subject::Client { .. } => None,
        }
    }

    /// Whether the connection is still open.
    pub fn is_connected(&self) -> bool {
        self.connection.strong_count() > 0
    }

    /// Whether both are the same connection.
    pub fn is_same(&self, other: &Self) -> bool {
        self.connection.ptr_eq(&other.connection)
    }
}

impl<S> Connection<S> {
    pub(super) fn new(stream: S, remote: SocketAddr, read_state: Arc<ReadState>) -> Self {
        Self { stream, remote, certificate: None, token: Arc::default(), preface: Preface::default(), read_state }
    }

    /// The same, with the certificate of the other end.
    pub(super) fn with_certificate(self, certificate: Option<ShownCertificate>) -> Self {
        Self { certificate, ..self }
    }

    /// Lets its [`Remote`]s close it by its slot.
    pub(super) fn takes(&self, slot: &Arc<Slot>) {
        // A connection has one slot.
        let _ = self.token.slot.set(Arc::downgrade(slot));
    }

    /// The origin of the connection.
    pub fn remote(&self) -> Remote {
        Remote { address: self.remote, certificate: self.certificate.clone(), connection: Arc::downgrade(&self.token) }
    }
}

impl<S> Connection<S> {
    /// It speaks HTTP/1, which has no preface.
    pub(super) fn skip_preface(&mut self) {
        self.preface.seen = usize::MAX;
        self.read_state.note_handshake(true);
    }

    /// A connection without a listener, for tests of other crates.
    #[doc(hidden)]
    pub fn for_test(stream: S) -> Self {
        Self::new(stream, ([127, 0, 0, 1], 1).into(), Arc::new(ReadState::new(usize::MAX)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read_state.left() == 0 {
            // There may be more to read, so the reader is woken again; but after all other tasks that are ready.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }

        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        let bytes = &buffer.filled()[before..];
        this.read_state.read(bytes.len());

        if !this.preface.is_over() {
            this.preface.take(bytes);
            this.read_state.note_handshake(this.preface.is_over());
        }

        read
    }
}

crate::pass_writes!(Connection, stream);

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn connection(turn_bytes: usize) -> (DuplexStream, Connection<DuplexStream>, Arc<ReadState>) {
        let (near, far) = duplex(1024);
        let read_state = Arc::new(ReadState::new(turn_bytes));
        (near, Connection::new(far, ([127, 0, 0, 1], 1).into(), Arc::clone(&read_state)), read_state)
    }

    #[tokio::test]
    async fn the_handshake_is_complete_with_the_last_byte_of_settings() {
        let mut words = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // One setting of six bytes.
        words.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100]);
        let (mut near, mut connection, read_state) = connection(usize::MAX);
        for byte in words {
            assert!(!read_state.is_handshake_complete());
            near.write_u8(byte).await.expect("there is room");
            connection.read_u8().await.expect("it came");
        }
        assert!(read_state.is_handshake_complete());
    }

    #[tokio::test]
    async fn a_turn_ends_and_the_next_one_continues() {
        let (mut near, mut connection, read_state) = connection(4);
        near.write_all(&[7; 6]).await.expect("there is room");
        let mut four = [0; 4];
        connection.read_exact(&mut four).await.expect("they came");
        assert!(poll!(Box::pin(connection.read_u8())).is_pending(), "the turn is over");
        read_state.begin_turn();
        assert_eq!(connection.read_u8().await.expect("it came"), 7);
    }

    #[tokio::test]
    async fn a_remote_tells_whether_its_connection_is_open() {
        let ((_near, first, _), (_far, second, _)) = (connection(1), connection(1));
        let one = first.remote();
        let other = second.remote();
        assert!(one.is_same(&first.remote()) && !one.is_same(&other));
        drop(first);
        assert!(!one.is_connected() && other.is_connected());
    }
}
