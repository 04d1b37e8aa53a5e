//! The services, over a store in memory, as clients reach them.

mod leases;
mod memory;

use tonic::{Status, service::Routes};

use crate::{
    proto::etcdserverpb::{lease_client::LeaseClient},
    routes,
};
pub(crate) use memory::Memory;

/// The services over a new store.
pub(crate) struct Api {
    pub(crate) store: Memory,
    routes: Routes,
}

impl Api {
    pub(crate) fn new() -> Self {
        let store = Memory::default();
        Self { routes: routes(store.clone()).prepare(), store }
    }

    pub(crate) fn lease(&self) -> LeaseClient<Routes> {
        LeaseClient::new(self.routes.clone())
    }
}

/// The code and the text of an error.
pub(crate) fn shown(status: &Status) -> String {
    format!("{} {}", status.code() as i32, status.message())
}
