//! A proxy between two nodes. Its port can be closed while its open connections go on, and single connections can be broken.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_util::task::AbortOnDropHandle;

pub(crate) struct Door {
    address: SocketAddr,
    listening: Option<AbortOnDropHandle<()>>,
    passages: Arc<Mutex<Vec<Passage>>>,
}

/// A connection through the proxy.
struct Passage {
    carried: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Door {
    pub(crate) async fn to(target: &str) -> Self {
        let target: SocketAddr = target.parse().expect("an address");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let passages = Arc::<Mutex<Vec<Passage>>>::default();
        let listening = tokio::spawn(listen(listener, target, Arc::clone(&passages)));
        Self { address, listening: Some(AbortOnDropHandle::new(listening)), passages }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Makes the port refuse new connections. Open connections go on.
    pub(crate) async fn shut(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            let _ = listening.await;
        }
    }

    /// Breaks the connection that has carried the most.
    pub(crate) fn break_the_busiest(&self) {
        let mut passages = self.passages.lock().expect("no thread panics while it holds this");
        passages.retain(|passage| !passage.task.is_finished());
        let busiest = (0..passages.len()).max_by_key(|place| passages[*place].carried.load(Ordering::Relaxed));
        // `None` if the last connection broke and no other was opened yet.
        drop(busiest.map(|busiest| passages.remove(busiest)));
    }
}

async fn listen(listener: TcpListener, target: SocketAddr, passages: Arc<Mutex<Vec<Passage>>>) {
    while let Ok((near, _)) = listener.accept().await {
        let carried = Arc::<AtomicU64>::default();
        let task = tokio::spawn(carry(near, target, Arc::clone(&carried))).abort_handle();
        passages.lock().expect("no thread panics while it holds this").push(Passage { carried, task });
    }
}

async fn carry(near: TcpStream, target: SocketAddr, carried: Arc<AtomicU64>) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) = (near.into_split(), far.into_split());
    let forth = async {
        let mut bytes = [0; 16 * 1024];
        loop {
            let count = near_read.read(&mut bytes).await?;
            if count == 0 {
                return Ok::<(), std::io::Error>(());
            }
            carried.fetch_add(count as u64, Ordering::Relaxed);
            far_write.write_all(&bytes[..count]).await?;
        }
    };
    tokio::select! {
        _ = forth => {}
        _ = copy(&mut far_read, &mut near_write) => {}
    }
}
