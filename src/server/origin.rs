//! From where a call comes: the address of the client, also where a follower passed the call on to the leader.
//!
//! On the clients' port it is the other end of the connection: [`marked`] notes it with the request. A follower says it in the metadata of
//! what it passes on ([`pass_on`]), and on the peers' port [`from_peer`] takes it from there. Metadata that a client sends are never looked
//! at: on the clients' port nothing reads them, and what is passed on is a request of its own, with this word of the follower only.

use std::fmt;

use tonic::{Request, Status};

use crate::{machine::Address, transport::Remote};

/// The key of the metadata between nodes.
const KEY: &str = "lockkeeper-client-address";

/// In the extensions of a request.
#[derive(Clone, Copy, Debug)]
struct Origin(Address);

/// The request of a client, with the address of its connection.
pub(super) fn marked<T>(mut request: Request<T>) -> Request<T> {
    if let Some(address) = request.extensions().get::<Remote>().map(|remote| remote.address.into()) {
        request.extensions_mut().insert(Origin(address));
    }
    request
}

/// Tells the leader from where a request came that is passed on to it.
pub(super) fn pass_on<T>(from: Option<Address>, onward: &mut Request<T>) {
    if let Some(said) = from.and_then(|address| address.to_string().parse().ok()) {
        onward.metadata_mut().insert(KEY, said);
    }
}

/// The type of [`from_peer`].
pub(super) type FromPeer = fn(Request<()>) -> Result<Request<()>, Status>;

/// An interceptor for the peers' port: what a follower says.
pub(super) fn from_peer(mut request: Request<()>) -> Result<Request<()>, Status> {
    let said = request.metadata().get(KEY).and_then(|said| said.to_str().ok()?.parse().ok());
    if let Some(address) = said {
        request.extensions_mut().insert(Origin(address));
    }
    Ok(request)
}

/// From where a request comes, if that is known.
pub(super) fn of<T>(request: &Request<T>) -> Option<Address> {
    request.extensions().get::<Origin>().map(|Origin(address)| *address)
}

/// As the log of the node shows it.
pub(super) fn show(address: Option<Address>) -> impl fmt::Display {
    address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_peer_is_believed() {
        let address = || "10.0.0.7:5123".parse::<Address>().expect("an address");
        let mut passed_on = Request::new(());
        pass_on(Some(address()), &mut passed_on);
        assert_eq!(of(&marked(passed_on)), None, "a client says so");
        let mut passed_on = Request::new(());
        pass_on(Some(address()), &mut passed_on);
        assert_eq!(of(&from_peer(passed_on).expect("it lets all pass")), Some(address()));
        let mut nonsense = Request::new(());
        nonsense.metadata_mut().insert(KEY, "nowhere".parse().expect("a value"));
        assert_eq!(of(&from_peer(nonsense).expect("it lets all pass")), None);
    }
}
