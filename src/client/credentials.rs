//! What a client shows with each request, apart from its certificate: a bearer token.

use std::fmt;

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::Error;

/// The channel to a node, which adds the credentials to each request.
pub type Authorized = InterceptedService<Channel, Credentials>;

/// A bearer token, or none. It is shown nowhere.
#[derive(Clone, Default)]
pub struct Credentials {
    authorization: Option<MetadataValue<Ascii>>,
}

impl Credentials {
    /// With this bearer token. Fails with [`Error::BearerToken`], which does not show it.
    pub(crate) fn bearer(token: &str) -> Result<Self, Error> {
        let is_printable = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
        let value = is_printable.then(|| format!("Bearer {token}").parse::<MetadataValue<Ascii>>().ok()).flatten();
        let mut value = value.ok_or(Error::BearerToken)?;
        // Neither logged nor kept in the table of HTTP/2's header compression.
        value.set_sensitive(true);
        Ok(Self { authorization: Some(value) })
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
        Ok(request)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.authorization.is_some() { "Credentials(bearer)" } else { "Credentials(none)" })
    }
}
