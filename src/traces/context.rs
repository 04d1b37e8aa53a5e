//! Where a request's trace comes from: W3C Trace Context, in the headers of HTTP, which carry the metadata of gRPC.
//!
//! OpenTelemetry's propagator reads and writes it. What it cannot read counts as absent: a request is never refused because
//! of a header.

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator as _},
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap};

const TRACEPARENT: &str = "traceparent";

/// The known trace of a request.
#[derive(Clone, Debug, Default)]
pub enum Origin {
    /// The trace is unknown. The first node may begin a trace.
    #[default]
    Open,
    /// The caller decided against a trace.
    Untraced,
    /// The first node decided to begin a trace.
    New,
    /// The request belongs to its caller's trace.
    Of(Parent),
}

/// A span of another process, or of this one, that has children.
#[derive(Clone, Debug)]
pub struct Parent(Arc<SpanContext>);

impl Parent {
    pub(crate) fn new(context: SpanContext) -> Self {
        Self(Arc::new(context))
    }

    pub(crate) fn context(&self) -> Context {
        Context::new().with_remote_span_context((*self.0).clone())
    }

    /// Writes the parent into the metadata of a request to another process.
    pub fn write(&self, metadata: &mut MetadataMap) {
        TraceContextPropagator::new().inject_context(&self.context(), &mut MetadataWriter(metadata));
    }

    /// The parent as the value of the header `traceparent`.
    pub fn traceparent(&self) -> String {
        let mut metadata = MetadataMap::new();
        self.write(&mut metadata);
        let value = metadata.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    }
}

impl super::Traces {
    /// The origin of a request with these headers.
    pub fn origin(&self, headers: &HeaderMap) -> Origin {
        if !self.is_on() || !headers.contains_key(TRACEPARENT) {
            return Origin::Open;
        }
        let found = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderReader(headers));
        let context = found.span().span_context().clone();
        match (context.is_valid(), context.is_sampled()) {
            (false, _) => Origin::Open,
            (true, false) => Origin::Untraced,
            (true, true) => Origin::Of(Parent::new(context)),
        }
    }
}

struct HeaderReader<'a>(&'a HeaderMap);

impl Extractor for HeaderReader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    /// The propagator asks for headers by name, so it needs no list.
    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

struct MetadataWriter<'a>(&'a mut MetadataMap);

impl Injector for MetadataWriter<'_> {
    fn set(&mut self, key: &str, value: String) {
        // `tracestate` is empty for most callers. An empty header is not sent.
        if let (Ok(key), Ok(value), false) =
            (MetadataKey::<Ascii>::from_bytes(key.as_bytes()), value.parse(), value.is_empty())
        {
            self.0.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use tokio::runtime::Handle;

    use super::*;
    use crate::{ExportSettings, Traces};

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const NOT_SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn traces() -> Traces {
        let (endpoint, attributes) = ("http://127.0.0.1:1".to_owned(), Vec::new());
        let settings = ExportSettings { endpoint, sample_ratio: 1.0, service: "test", attributes };
        Traces::start(settings, &Handle::current(), |_| {}).expect("a valid endpoint")
    }

    fn headers(traceparent: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(TRACEPARENT), traceparent.parse().expect("ASCII"))])
    }

    #[tokio::test]
    async fn a_context_is_read_and_written_as_it_was() {
        let mut from = headers(SAMPLED);
        from.insert("tracestate", "vendor=7".parse().expect("ASCII"));
        let Origin::Of(parent) = traces().origin(&from) else { panic!("it is sampled") };
        assert_eq!(parent.traceparent(), SAMPLED);
        let mut written = MetadataMap::new();
        parent.write(&mut written);
        assert_eq!(written.get("tracestate").expect("it is passed on"), "vendor=7");
        assert!(matches!(traces().origin(&headers(NOT_SAMPLED)), Origin::Untraced));
        assert!(matches!(Traces::default().origin(&from), Origin::Open), "off, no header is read");
    }

    #[tokio::test]
    async fn garbage_counts_as_absent() {
        let traces = traces();
        for garbage in [
            "",
            "garbage",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            &"0".repeat(4096),
        ] {
            assert!(matches!(traces.origin(&headers(garbage)), Origin::Open), "{garbage}");
        }
        assert!(matches!(traces.origin(&HeaderMap::new()), Origin::Open));
    }
}
