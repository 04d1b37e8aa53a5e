//! What a client sends with each request, apart from its certificate: a bearer token, and the trace that its caller is in.

use std::{fmt, sync::Arc};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::Error;

/// The channel to a node, which adds the credentials to each request.
pub type Authorized = InterceptedService<Channel, Credentials>;

/// The header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// Tells the trace that a caller is in: see [`Builder::traceparent`](super::Builder::traceparent).
pub(crate) type TraceOf = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A bearer token, or none. It is shown nowhere. And the trace that the caller is in.
#[derive(Clone, Default)]
pub struct Credentials {
    authorization: Option<MetadataValue<Ascii>>,
    trace_of: Option<TraceOf>,
}

impl Credentials {
    /// The credentials with this bearer token. Fails with [`Error::BearerToken`], which does not show it.
    pub(crate) fn bearer(token: &str) -> Result<Self, Error> {
        let is_printable = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
        let value = is_printable.then(|| format!("Bearer {token}").parse::<MetadataValue<Ascii>>().ok()).flatten();
        let mut value = value.ok_or(Error::BearerToken)?;
        // The token is neither logged nor kept in the table of HTTP/2's header compression.
        value.set_sensitive(true);
        Ok(Self { authorization: Some(value), trace_of: None })
    }

    pub(crate) fn with_trace_of(self, trace_of: Option<TraceOf>) -> Self {
        Self { trace_of, ..self }
    }

    /// The trace of the calling task. A trace that cannot be a header counts as no trace.
    pub(crate) fn traceparent(&self) -> Option<MetadataValue<Ascii>> {
        self.trace_of.as_ref()?()?.parse().ok()
    }

    pub(crate) fn on(&self, channel: Channel) -> Authorized {
        InterceptedService::new(channel, self.clone())
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        if let Some(traceparent) = self.traceparent() {
            request.metadata_mut().insert(TRACEPARENT, traceparent);
        }
        Ok(request)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.authorization.is_some() { "Credentials(bearer)" } else { "Credentials(none)" })
    }
}
