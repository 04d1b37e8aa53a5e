//! This node's condition, in etcd's words.

use tonic::{Request, Response, Status};

use crate::{
    Etcd, EtcdStore,
    proto::etcdserverpb::{
        AlarmRequest, AlarmResponse, StatusRequest, StatusResponse, maintenance_server::Maintenance,
    },
};

/// The version of etcd whose API this is. Clients read it to learn what they may ask for.
pub(crate) const VERSION: &str = "3.4.23";
const NO_LEADER: &str = "etcdserver: no leader";

#[tonic::async_trait]
impl<S: EtcdStore> Maintenance for Etcd<S> {
    /// There are no alarms: a full store answers each write with an error.
    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        self.caller(&request)?;
        Ok(Response::new(AlarmResponse { header: self.header_now(), alarms: Vec::new() }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.caller(&request)?;
        let facts = self.store.facts();
        let leader = self.store.leader();
        let condition = self.store.condition();
        let bytes = i64::try_from(condition.table_bytes).unwrap_or(i64::MAX);
        let errors = if leader.is_none() { vec![NO_LEADER.to_owned()] } else { Vec::new() };

        Ok(Response::new(StatusResponse {
            header: self.header(facts.revision),
            version: VERSION.to_owned(),
            db_size: bytes,
            leader: leader.unwrap_or_default(),
            raft_index: condition.index,
            raft_term: facts.term,
            raft_applied_index: condition.applied,
            errors,
            // A table has no free pages.
            db_size_in_use: bytes,
            is_learner: condition.is_learner,
        }))
    }
}
