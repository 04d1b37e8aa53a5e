//! Connections of the runner and its clients to the nodes: in plain text, or by TLS.

use std::{ffi::OsString, io, time::Duration};

use tonic::transport::{Channel, Endpoint};

use lockkeeper_client::{Builder, Client, Tls, TlsFiles};
use lockkeeper_transport::{TcpConnector, channel_of, tls::TlsConnector};

/// Connects to the nodes of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Dial {
    /// The certificates. Without them, connections are in plain text.
    tls: Option<(TlsFiles, Tls)>,
}

impl Dial {
    /// Connects with these certificates or, without any, in plain text.
    pub fn new(files: Option<TlsFiles>) -> io::Result<Self> {
        let Some(files) = files else { return Ok(Self::default()) };
        let tls = Tls::load(files.clone()).map_err(io::Error::other)?;
        Ok(Self { tls: Some((files, tls)) })
    }

    /// Makes a builder of the client library for these nodes.
    pub(super) fn client(&self, endpoints: &str) -> Builder {
        let builder = Client::builder(endpoints);
        match &self.tls {
            Some((_, tls)) => builder.tls(tls),
            None => builder,
        }
    }

    /// Makes a channel to the node at this address, host:port, without the library. It connects on first use.
    pub(super) fn channel(&self, address: &str, limit: Duration) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address of ours makes a URL");
        let endpoint = endpoint.connect_timeout(limit).tcp_nodelay(true);
        match &self.tls {
            Some((_, tls)) => channel_of(endpoint, TlsConnector::for_client(TcpConnector, tls.clone()), address),
            None => endpoint.connect_lazy(),
        }
    }

    /// The arguments that tell `chaos client` the same.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let Some((TlsFiles { ca, own }, _)) = &self.tls else { return Vec::new() };
        let own = own.iter().flat_map(|(certificate, key)| [("--cert", certificate), ("--key", key)]);
        [("--ca", ca)].into_iter().chain(own).flat_map(|(flag, file)| [flag.into(), file.into()]).collect()
    }
}
