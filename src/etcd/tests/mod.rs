//! The services, over a store in memory, as clients reach them.

mod elections;
mod gateway;
mod interleaved;
mod keys;
mod leases;
mod locks;
mod memory;
mod methods;
mod pressure;
mod transactions;
mod watches;

use tonic::Status;

use crate::{
    EtcdFacts, EtcdFound, EtcdMember, EtcdPage, EtcdSession, EtcdStore, EtcdStoreError, KeptAlive, NodeCondition,
    WatchedEvents,
    proto::{
        etcdserverpb::{
            Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
            compare::{CompareResult, CompareTarget, TargetUnion},
            kv_client::KvClient,
            lease_client::LeaseClient,
            request_op::Request,
            watch_client::WatchClient,
        },
        v3electionpb::election_client::ElectionClient,
        v3lockpb::lock_client::LockClient,
    },
    services,
};
pub(crate) use memory::Memory;

/// The services that are tested.
type Routes = crate::EtcdServices<Memory>;

/// The services over a new store.
pub(crate) struct Api {
    pub(crate) store: Memory,
    routes: Routes,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self::over(Memory::default())
    }

    pub(crate) fn over(store: Memory) -> Self {
        Self { routes: services(store.clone()), store }
    }

    pub(crate) fn kv(&self) -> KvClient<Routes> {
        KvClient::new(self.routes.clone())
    }

    pub(crate) fn watch(&self) -> WatchClient<Routes> {
        WatchClient::new(self.routes.clone())
    }

    /// All services, for requests of HTTP.
    pub(crate) fn routes(&self) -> Routes {
        self.routes.clone()
    }

    pub(crate) fn lock(&self) -> LockClient<Routes> {
        LockClient::new(self.routes.clone())
    }

    pub(crate) fn election(&self) -> ElectionClient<Routes> {
        ElectionClient::new(self.routes.clone())
    }

    pub(crate) fn lease(&self) -> LeaseClient<Routes> {
        LeaseClient::new(self.routes.clone())
    }
}

/// The code and the text of an error.
pub(crate) fn shown(status: &Status) -> String {
    format!("{} {}", status.code() as i32, status.message())
}

/// A put of a short text.
pub(crate) fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }
}

/// A read of all keys that begin so.
pub(crate) fn prefix(prefix: &str) -> RangeRequest {
    RangeRequest { key: prefix.into(), range_end: after(prefix), ..RangeRequest::default() }
}

pub(crate) fn delete(prefix: &str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: prefix.into(), range_end: after(prefix), ..DeleteRangeRequest::default() }
}

pub(crate) fn after(prefix: &str) -> Vec<u8> {
    let (last, start) = prefix.as_bytes().split_last().expect("not empty");
    [start, &[last + 1]].concat()
}

/// An operation of a transaction.
pub(crate) fn operation(request: impl Into<Request>) -> RequestOp {
    RequestOp { request: Some(request.into()) }
}

macro_rules! operations {
    ($($request:ty => $kind:ident;)*) => {
        $(impl From<$request> for Request {
            fn from(request: $request) -> Self {
                Self::$kind(request)
            }
        })*
    };
}

operations! {
    RangeRequest => RequestRange;
    PutRequest => RequestPut;
    DeleteRangeRequest => RequestDeleteRange;
    TxnRequest => RequestTxn;
}

pub(crate) fn compare(key: &str, result: CompareResult, union: TargetUnion) -> Compare {
    let target = match union {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    let (result, target, target_union) = (result.into(), target.into(), Some(union));
    Compare { key: key.into(), result, target, target_union, ..Compare::default() }
}

/// The compare of "there is no such key".
pub(crate) fn absent(key: &str) -> Compare {
    compare(key, CompareResult::Equal, TargetUnion::CreateRevision(0))
}

/// The keys of an answer, as texts.
pub(crate) fn keys(answer: &RangeResponse) -> Vec<String> {
    answer.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
}
