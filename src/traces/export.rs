//! From the requests to the collector: a bounded queue, and a task that sends batches of it.
//!
//! This replaces the SDK's batch processor, which has a thread of its own, blocks it at the end, and does not tell how many
//! spans it dropped.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanExporter, SpanProcessor},
};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long [`Traces::close`](crate::Traces::close) may take.
pub const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The deadline of one export.
pub(crate) const EXPORT_MAX: Duration = Duration::from_secs(5);
/// The number of spans that may wait for an export. Further ones are dropped.
const QUEUE: usize = 4096;
/// The maximum number of spans in one export.
const BATCH: usize = 512;
/// How long a span waits for others of its batch.
const DELAY: Duration = Duration::from_millis(500);

type OnDropped = Arc<dyn Fn(u64) + Send + Sync>;

/// The task that sends spans.
pub(crate) struct Exporting {
    closing: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The queue of spans before the task.
pub(crate) struct Queue {
    spans: mpsc::Sender<SpanData>,
    on_dropped: OnDropped,
}

impl Exporting {
    pub(crate) fn start(
        exporter: impl SpanExporter + 'static,
        runtime: &Handle,
        on_dropped: impl Fn(u64) + Send + Sync + 'static,
    ) -> (Self, Queue) {
        let (spans, queued) = mpsc::channel(QUEUE);
        let on_dropped: OnDropped = Arc::new(on_dropped);
        let closing = CancellationToken::new();
        let sender = BatchSender { exporter, on_dropped: Arc::clone(&on_dropped), is_failing: AtomicBool::new(false) };
        let task = runtime.spawn(sender.run(queued, closing.clone()));
        (Self { closing, task: Mutex::new(Some(task)) }, Queue { spans, on_dropped })
    }

    pub(crate) async fn close(&self) {
        self.closing.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut task) = task
            && timeout(FLUSH_MAX, &mut task).await.is_err()
        {
            task.abort();
            tracing::warn!("the last spans were not sent: the collector of traces does not answer");
        }
    }
}

struct BatchSender<E> {
    exporter: E,
    on_dropped: OnDropped,
    /// Whether the last export failed. Only the first failure and the next success are logged, not one line for each batch.
    is_failing: AtomicBool,
}

impl<E: SpanExporter> BatchSender<E> {
    /// Sends batches. Returns when it was told to close and the queue is empty.
    async fn run(self, mut queued: mpsc::Receiver<SpanData>, closing: CancellationToken) {
        loop {
            let first = tokio::select! {
                biased;
                first = queued.recv() => first,
                () = closing.cancelled(), if !queued.is_closed() => {
                    queued.close();
                    continue;
                }
            };

            let Some(first) = first else { return };
            let mut batch = vec![first];

            let fill = async {
                let mut room = BATCH - batch.len();
                // 0 means that the queue is closed and empty.
                while room > 0 && queued.recv_many(&mut batch, room).await > 0 {
                    room = BATCH - batch.len();
                }
            };

            tokio::select! {
                biased;
                () = fill => {}
                () = closing.cancelled() => {}
                () = sleep(DELAY) => {}
            }

            self.send(batch).await;
        }
    }

    async fn send(&self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        let failure = match timeout(EXPORT_MAX, self.exporter.export(batch)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", EXPORT_MAX.as_secs())),
        };

        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        if let Some(error) = failure {
            (self.on_dropped)(count);
            if !was_failing {
                tracing::warn!(%error, "traces cannot be sent, and are dropped until they can");
            }
        } else if was_failing {
            tracing::info!("traces are sent again");
        }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            (self.on_dropped)(1);
        }
    }

    /// Does nothing, because [`Exporting::close`] flushes.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _limit: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("spans", &self.spans).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use opentelemetry::trace::{Tracer as _, TracerProvider as _};
    use opentelemetry_sdk::{error::OTelSdkError, trace::SdkTracerProvider};
    use tokio::{sync::Semaphore, time::Instant};

    use super::*;

    /// A collector that answers to as many exports as it has permits, and keeps the sizes of their batches.
    #[derive(Clone, Debug)]
    struct Collector {
        answers: Arc<Semaphore>,
        fails: bool,
        batches: Arc<Mutex<Vec<usize>>>,
    }

    impl SpanExporter for Collector {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.answers.acquire().await.expect("never closed").forget();
            if self.fails {
                return Err(OTelSdkError::InternalFailure("it refuses".to_owned()));
            }
            self.batches.lock().expect("no panic").push(batch.len());
            Ok(())
        }
    }

    fn start(answers: usize, fails: bool) -> (SdkTracerProvider, Exporting, Collector, Arc<AtomicU64>) {
        let collector = Collector { answers: Arc::new(Semaphore::new(answers)), fails, batches: Arc::default() };
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        let on_dropped = move |count| _ = counted.fetch_add(count, Ordering::Relaxed);
        let (exporting, queue) = Exporting::start(collector.clone(), &Handle::current(), on_dropped);
        (SdkTracerProvider::builder().with_span_processor(queue).build(), exporting, collector, dropped)
    }

    fn spans(provider: &SdkTracerProvider, count: usize) {
        let tracer = provider.tracer("test");
        (0..count).for_each(|_| drop(tracer.start("span")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_sends_everything_that_is_queued_in_batches() {
        let (provider, exporting, collector, dropped) = start(100, false);
        spans(&provider, BATCH + 3);
        exporting.close().await;
        assert_eq!(*collector.batches.lock().expect("no panic"), [BATCH, 3]);
        spans(&provider, 2);
        assert_eq!(dropped.load(Ordering::Relaxed), 2, "there is no one to send them");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_and_a_failed_export_are_counted() {
        let (provider, exporting, _collector, dropped) = start(100, true);
        spans(&provider, QUEUE + 5);
        assert_eq!(dropped.load(Ordering::Relaxed), 5);
        exporting.close().await;
        assert_eq!(dropped.load(Ordering::Relaxed), (QUEUE + 5) as u64);
    }

    /// Time is simulated: it passes only while all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn a_collector_that_never_answers_holds_neither_the_queue_nor_the_end() {
        let (provider, exporting, collector, dropped) = start(0, false);
        spans(&provider, 1);
        let began = Instant::now();
        while dropped.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(100)).await;
        }
        assert!(began.elapsed() <= DELAY + EXPORT_MAX + Duration::from_millis(200), "{:?}", began.elapsed());
        spans(&provider, 1);
        let began = Instant::now();
        exporting.close().await;
        assert_eq!(began.elapsed(), FLUSH_MAX);
        assert!(collector.batches.lock().expect("no panic").is_empty());
    }
}
