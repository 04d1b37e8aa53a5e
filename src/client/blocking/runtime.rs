//! The runtime behind the façade: one thread, which ends when its last user is gone.
//!
//! Calls are handed over and waited for by a channel. So they work in an asynchronous program too, where a runtime can neither be entered
//! nor dropped; they hold up its thread, as any blocking call does.

use std::{
    io,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    time::sleep,
};

/// How long the thread goes on for what was begun in the background and nobody waits for, such as the end of a session.
const LINGER: Duration = Duration::from_secs(2);

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Runtime {
    handle: Handle,
    /// Its end tells the thread.
    _users: Arc<oneshot::Sender<()>>,
}

impl Runtime {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (users, gone) = oneshot::channel::<()>();
        // The runtime is dropped there: in an asynchronous program, this must not happen in the thread that drops its last user.
        thread::Builder::new().name("lockkeeper".to_owned()).spawn(move || {
            runtime.block_on(async {
                let _ = gone.await;
                sleep(LINGER).await;
            });
        })?;
        Ok(Self { handle, _users: Arc::new(users) })
    }

    /// Does this in the runtime's thread, and waits for it.
    pub(super) fn run<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> T {
        let told = self.begin(call);
        told.recv().expect("the thread goes on while it has a user, and only a mistake in the call can end that")
    }

    /// The same, waiting no longer than `limit`. It goes on all the same.
    pub(super) fn run_for<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.begin(call).recv_timeout(limit).ok()
    }

    fn begin<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> mpsc::Receiver<T> {
        let (tell, told) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Who waits no longer does not hear it.
            let _ = tell.try_send(call.await);
        });
        told
    }

    /// Within the runtime, for what asks for one.
    pub(super) fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        make()
    }
}
