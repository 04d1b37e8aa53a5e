//! What a client shows with each request: its bearer token.

use std::fmt;

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::Error;
use lockkeeper_types::Invalid;

/// A connection to a node that sends the client's credentials.
pub(crate) type Wire = InterceptedService<Channel, Credentials>;

/// A bearer token, or none. Its `Debug` does not show it.
#[derive(Clone, Default)]
pub struct Credentials(Option<MetadataValue<Ascii>>);

impl Credentials {
    /// Fails on a token that no header can carry. The message does not repeat it.
    pub(crate) fn bearer(token: &str) -> Result<Self, Error> {
        let bad =
            || Error::Invalid(Invalid::new("the token is not one line of printable ASCII: take it as it was printed"));
        let printable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let mut value = MetadataValue::try_from(format!("Bearer {token}")).map_err(|_| bad())?;
        // Kept out of the compression tables and the logs of HTTP/2.
        value.set_sensitive(true);
        if printable { Ok(Self(Some(value))) } else { Err(bad()) }
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Credentials(a token)" } else { "Credentials(none)" })
    }
}
