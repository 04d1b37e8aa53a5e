//! Traces of requests, by OpenTelemetry: how long each part of one request took, across the nodes that it passed.
//!
//! [`Traces`] is on where an endpoint is configured. It makes spans for requests whose caller sends the context of a sampled
//! trace (`traceparent`, W3C Trace Context), and begins new traces for a share of the others. Without an endpoint it is an
//! empty `Option`: there is no exporter and no task, and a request costs one comparison.
//!
//! ```text
//! request ── Origin ──► Span (begin … part, part … end) ──► queue, bounded ──► batches ──► collector, by OTLP over gRPC
//! ```
//!
//! Parts are made after the fact, from moments that the request brought back ([`TraceSpan::part`]). Nothing on the way of a command
//! through Raft carries a context.
//!
//! A collector that is slow or gone costs spans, never requests: a full queue drops spans, an export has a deadline, and so
//! has the flush at the end. Dropped spans are counted.
//!
//! Three things are left out on purpose: TLS to the collector (one runs beside each node, or a proxy does it), metrics and
//! logs by OTLP (they have their own ways out), and global state, because a test has several nodes in one process.

mod context;
mod export;

pub use context::{Origin, Parent};
pub use export::FLUSH_MAX;

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use opentelemetry::{
    KeyValue, Value,
    trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracer, SdkTracerProvider, Span as SdkSpan, SpanExporter as _},
};
use tokio::{runtime::Handle, time::Instant};
use tonic::transport::Endpoint;

use self::export::Exporting;

/// The environment variable that names the collector. Every OpenTelemetry SDK uses it.
pub const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The receiver of spans, and the choice of spans that are sent.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// The address of the collector, `http://host:port`. It must speak OTLP over gRPC.
    pub endpoint: String,
    /// The share (0 to 1) of requests that begin a new trace, among those whose caller did not decide.
    pub sample_ratio: f64,
    /// The name of this program among others, sent as `service.name`.
    pub service: &'static str,
    /// Further attributes of this process, such as its node's id.
    pub attributes: Vec<(&'static str, String)>,
}

/// Why traces cannot be sent. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The endpoint is not an address.
    #[error(
        "{0:?} is not the address of a collector: write http://HOST:PORT, where it takes OTLP over gRPC (usually port 4317)"
    )]
    Endpoint(String),
    /// The exporter did not start.
    #[error("cannot export traces: {0}")]
    Exporter(String),
}

/// Checks the address of a collector.
pub fn check_endpoint(endpoint: &str) -> Result<(), TracesError> {
    parse(endpoint).map(drop)
}

fn parse(endpoint: &str) -> Result<Endpoint, TracesError> {
    let wrong = || TracesError::Endpoint(endpoint.to_owned());
    let parsed = Endpoint::from_shared(endpoint.to_owned()).map_err(|_| wrong())?;
    let has_port = parsed.uri().port_u16().is_some_and(|port| port != 0);
    if parsed.uri().scheme_str() == Some("http") && has_port { Ok(parsed) } else { Err(wrong()) }
}

/// Makes spans, or does nothing. Clones share the same exporter.
#[derive(Clone, Default)]
pub struct Traces {
    /// What makes and sends spans, or `None` if traces are off.
    shared: Option<Arc<SpanMaker>>,
}

struct SpanMaker {
    tracer: SdkTracer,
    sample_ratio: f64,
    exporting: Exporting,
}

impl Traces {
    /// Sends spans from now on. The task that sends them runs on this runtime. `on_dropped` is told the number of spans that
    /// are lost. The collector is not asked yet: it may come later, and go.
    pub fn start(
        settings: ExportSettings,
        runtime: &Handle,
        on_dropped: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Self, TracesError> {
        let ExportSettings { endpoint, sample_ratio, service, attributes } = settings;

        let endpoint = parse(&endpoint)?.connect_timeout(export::EXPORT_MAX);
        let channel = {
            // Connecting lazily starts a task, which needs a runtime.
            let _entered = runtime.enter();
            endpoint.connect_lazy()
        };

        let exporter = SpanExporter::builder().with_tonic().with_channel(channel).build();
        let mut exporter = exporter.map_err(|error| TracesError::Exporter(error.to_string()))?;

        let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
        let resource = Resource::builder_empty().with_service_name(service).with_attributes(attributes).build();
        exporter.set_resource(&resource);

        let (exporting, queue) = Exporting::start(exporter, runtime, on_dropped);
        // Whether a trace is sampled is decided before a span is made, in `decided`.
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource)
            .with_span_processor(queue)
            .build();
        let tracer = provider.tracer("lockkeeper");

        Ok(Self { shared: Some(Arc::new(SpanMaker { tracer, sample_ratio, exporting })) })
    }

    /// Whether spans are made at all.
    pub fn is_on(&self) -> bool {
        self.shared.is_some()
    }

    /// The origin with which a request goes on from the first node that it reaches, if that is another one. The share of new
    /// traces is drawn here. A caller's own decision holds.
    #[expect(
        clippy::disallowed_methods,
        reason = "traces are on in real processes only; nothing else depends on this number"
    )]
    pub fn decided(&self, origin: &Origin) -> Option<Origin> {
        let shared = self.shared.as_ref()?;
        let begins = matches!(origin, Origin::Open) && rand::random::<f64>() < shared.sample_ratio;
        begins.then_some(Origin::New)
    }

    /// Begins the span of a request that this process serves, if the request belongs to a trace. It is shared, so that the future of a
    /// request without one has the space of a pointer for it.
    pub fn serve(&self, name: &'static str, origin: &Origin) -> Option<Arc<TraceSpan>> {
        self.begin(name, SpanKind::Server, origin).map(Arc::new)
    }

    /// Begins the span of a request that this process sends, as the first of a new trace, if the share of new traces says so.
    pub fn send(&self, name: impl Into<Cow<'static, str>>) -> Option<TraceSpan> {
        self.begin(name, SpanKind::Client, &self.decided(&Origin::Open)?)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "spans of different machines are compared by their wall clocks, in real processes only"
    )]
    fn begin(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind, origin: &Origin) -> Option<TraceSpan> {
        let shared = self.shared.as_ref()?;
        let parent = match origin {
            Origin::Open | Origin::Untraced => return None,
            Origin::New => opentelemetry::Context::new(),
            Origin::Of(parent) => parent.context(),
        };

        let began = Instant::now();
        let wall = SystemTime::now();

        let builder = SpanBuilder::from_name(name).with_kind(kind).with_start_time(wall);
        let span = shared.tracer.build_with_context(builder, &parent);
        let context = span.span_context().clone();

        Some(TraceSpan { shared: Arc::clone(shared), span: Mutex::new(span), context, began, wall })
    }

    /// Sends the remaining spans within [`FLUSH_MAX`]. Later ones are dropped.
    pub async fn close(&self) {
        if let Some(shared) = &self.shared {
            shared.exporting.close().await;
        }
    }
}

/// A span that has begun. It ends with [`TraceSpan::end`], or when it is dropped because the request was given up.
pub struct TraceSpan {
    shared: Arc<SpanMaker>,
    span: Mutex<SdkSpan>,
    context: SpanContext,
    // Both are of the same moment. All times of the span are counted from it, so a step of the system's clock does not tear
    // the span apart.
    began: Instant,
    wall: SystemTime,
}

impl TraceSpan {
    /// The parent of the spans that another process makes for this one.
    pub fn as_parent(&self) -> Parent {
        Parent::new(self.context.clone())
    }

    /// Adds an attribute.
    pub fn note(&self, key: &'static str, value: impl Into<Value>) {
        self.span().set_attribute(KeyValue::new(key, value));
    }

    /// Adds a child span for a part of this span that has ended.
    pub fn part(&self, name: &'static str, from: Instant, to: Instant) {
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_start_time(self.time_of(from));
        let mut part = self.shared.tracer.build_with_context(builder, &self.as_parent().context());
        part.end_with_timestamp(self.time_of(to));
    }

    /// Ends the span. An error is given in words of the program.
    pub fn end(&self, error: Option<&'static str>) {
        let mut span = self.span();
        if let Some(error) = error {
            span.set_status(Status::error(error));
        }
        span.end_with_timestamp(self.time_of(Instant::now()));
    }

    fn time_of(&self, moment: Instant) -> SystemTime {
        self.wall + moment.saturating_duration_since(self.began)
    }

    fn span(&self) -> MutexGuard<'_, SdkSpan> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TraceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.context).finish()
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Traces(on)" } else { "Traces(off)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_makes_nothing() {
        // There is no runtime here: an exporter could not even start.
        let traces = Traces::default();
        assert!(!traces.is_on() && traces.decided(&Origin::Open).is_none());
        assert!(traces.serve("acquire_locks", &Origin::New).is_none() && traces.send("acquire_locks").is_none());
    }

    fn on(sample_ratio: f64) -> Traces {
        let (endpoint, attributes) = ("http://127.0.0.1:1".to_owned(), Vec::new());
        let settings = ExportSettings { endpoint, sample_ratio, service: "test", attributes };
        Traces::start(settings, &Handle::current(), |_| {}).expect("a valid endpoint")
    }

    #[tokio::test]
    async fn the_callers_decision_holds_and_the_ratio_is_for_the_others() {
        let all = on(1.0);
        let none = on(0.0);
        assert!(matches!(all.decided(&Origin::Open), Some(Origin::New)) && none.decided(&Origin::Open).is_none());
        assert!(all.decided(&Origin::Untraced).is_none() && all.serve("get_lock", &Origin::Untraced).is_none());
        let span = all.serve("get_lock", &Origin::New).expect("a new trace");
        let parent = Origin::Of(span.as_parent());
        let child = none.serve("get_lock", &parent).expect("the caller decided");
        assert_eq!(child.context.trace_id(), span.context.trace_id());
        assert_ne!(child.context.span_id(), span.context.span_id());
    }

    #[test]
    fn an_endpoint_is_a_url_with_a_port() {
        for right in ["http://127.0.0.1:4317", "http://collector:4317/"] {
            check_endpoint(right).expect(right);
        }
        for wrong in
            ["", "127.0.0.1:4317", "https://collector:4317", "http://collector", "http://collector:0", "no address"]
        {
            let error = check_endpoint(wrong).expect_err(wrong);
            assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
        }
    }
}
