//! What a client sends with each request, apart from its certificate: a bearer token, and the trace that its caller is in.

use std::{fmt, path::Path, sync::Arc};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::{
    Error,
    token_file::{FollowedToken, authorization},
};

/// The channel to a node, which adds the credentials to each request.
pub type Authorized = InterceptedService<Channel, Credentials>;

/// The header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// Tells the trace that a caller is in: see [`Builder::traceparent`](super::Builder::traceparent).
pub(crate) type TraceOf = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A bearer token, or none. It is shown nowhere. And the trace that the caller is in.
#[derive(Clone, Default)]
pub struct Credentials {
    bearer: Option<BearerSource>,
    trace_of: Option<TraceOf>,
}

/// Where the bearer token comes from.
#[derive(Clone)]
enum BearerSource {
    /// The header's value.
    Given(MetadataValue<Ascii>),
    File(Arc<FollowedToken>),
}

impl Credentials {
    /// The credentials with this bearer token. Fails with [`Error::BearerToken`], which does not show it.
    pub(crate) fn bearer(token: &str) -> Result<Self, Error> {
        Ok(Self { bearer: Some(BearerSource::Given(authorization(token)?)), trace_of: None })
    }

    /// The credentials with the bearer token that this file has now, and later, once they [follow](Self::follow) it.
    pub(crate) fn in_file(path: &Path) -> Result<Self, Error> {
        FollowedToken::open(path).map(Self::file)
    }

    fn file(file: Arc<FollowedToken>) -> Self {
        Self { bearer: Some(BearerSource::File(file)), trace_of: None }
    }

    /// Follows the file that the token came from, if it came from one. Needs a tokio runtime then.
    pub(crate) fn follow(&self) {
        if let Some(BearerSource::File(file)) = &self.bearer {
            file.follow();
        }
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
        let authorization = self.bearer.as_ref().map(|source| match source {
            BearerSource::Given(authorization) => authorization.clone(),
            BearerSource::File(file) => file.authorization(),
        });
        if let Some(authorization) = authorization {
            request.metadata_mut().insert("authorization", authorization);
        }
        if let Some(traceparent) = self.traceparent() {
            request.metadata_mut().insert(TRACEPARENT, traceparent);
        }
        Ok(request)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.bearer.is_some() { "Credentials(bearer)" } else { "Credentials(none)" })
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    fn shown(credentials: &mut Credentials) -> String {
        let request = credentials.call(Request::new(())).unwrap();
        request.metadata().get("authorization").unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn each_request_shows_the_token_that_its_file_has_by_then() {
        let path = env::temp_dir().join(format!("lockkeeper-{}-shown", std::process::id()));
        fs::write(&path, "first\n").unwrap();
        let file = FollowedToken::open(&path).unwrap();
        let mut credentials = Credentials::file(Arc::clone(&file));
        assert_eq!(shown(&mut credentials), "Bearer first");

        fs::write(&path, "later\n").unwrap();
        let changed = file.refresh(None).unwrap();
        assert_eq!(file.refresh(changed).unwrap(), None);
        assert_eq!(shown(&mut credentials), "Bearer later");
        fs::remove_file(&path).unwrap();
    }
}
