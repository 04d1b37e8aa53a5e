//! How the runner and its clients reach the nodes: in plain text, or by TLS.

use std::{ffi::OsString, io, time::Duration};

use tonic::transport::{Channel, Endpoint};

use crate::client::{Builder, Client, Tls, TlsFiles};
use lockkeeper_transport::{TcpConnector, channel_of, tls::TlsConnector};

/// The way to the nodes of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Dial {
    /// `None`: plain text.
    tls: Option<(TlsFiles, Tls)>,
}

impl Dial {
    /// With these certificates. `None`: in plain text.
    pub fn new(files: Option<TlsFiles>) -> io::Result<Self> {
        let Some(files) = files else { return Ok(Self::default()) };
        let tls = Tls::load(files.clone()).map_err(io::Error::other)?;
        Ok(Self { tls: Some((files, tls)) })
    }

    /// The client library for these nodes.
    pub(super) fn client(&self, endpoints: &str) -> Builder {
        let builder = Client::builder(endpoints);
        match &self.tls {
            Some((_, tls)) => builder.tls(tls),
            None => builder,
        }
    }

    /// A channel to the node at this address, host:port, without the library; it connects on first use.
    pub(super) fn channel(&self, address: &str, limit: Duration) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address of ours makes a URL");
        let endpoint = endpoint.connect_timeout(limit).tcp_nodelay(true);
        match &self.tls {
            Some((_, tls)) => channel_of(endpoint, TlsConnector::for_client(TcpConnector, tls.clone()), address),
            None => endpoint.connect_lazy(),
        }
    }

    /// What tells `chaos client` the same.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let Some((TlsFiles { ca, own }, _)) = &self.tls else { return Vec::new() };
        let own = own.iter().flat_map(|(certificate, key)| [("--cert", certificate), ("--key", key)]);
        [("--ca", ca)].into_iter().chain(own).flat_map(|(flag, file)| [flag.into(), file.into()]).collect()
    }
}
