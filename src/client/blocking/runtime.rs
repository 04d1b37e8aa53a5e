//! The runtime of the blocking client: one thread, which ends after its last user.
//!
//! Calls are sent to the thread, and their results come back through a channel. So they work in an asynchronous program
//! too, where a runtime can neither be entered nor dropped; there they block the thread, as any blocking call does.

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

/// How long the thread outlives its last user, for background work such as the close of a session.
const LINGER: Duration = Duration::from_secs(2);

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct BlockingRuntime {
    handle: Handle,
    /// Its drop ends the thread.
    _users: Arc<oneshot::Sender<()>>,
}

impl BlockingRuntime {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (users, gone) = oneshot::channel::<()>();
        // The runtime is dropped on its own thread: tokio forbids the drop on a thread of an asynchronous program.
        thread::Builder::new().name("lockkeeper".to_owned()).spawn(move || {
            runtime.block_on(async {
                let _ = gone.await;
                sleep(LINGER).await;
            });
        })?;
        Ok(Self { handle, _users: Arc::new(users) })
    }

    /// Runs the call on the runtime's thread and waits for it.
    pub(super) fn run<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> T {
        let told = self.begin(call);
        told.recv().expect("the thread goes on while it has a user, and only a mistake in the call can end that")
    }

    /// As [`BlockingRuntime::run`], but waits for at most `limit`. The call goes on after that.
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
            // An error here means that the caller stopped waiting.
            let _ = tell.try_send(call.await);
        });
        told
    }

    /// Runs `make` in the context of the runtime.
    pub(super) fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        make()
    }
}
