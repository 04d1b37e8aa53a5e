//! The members, with where clients of this API reach them: some clients go on to those addresses.

use tonic::{Request, Response, Status};

use crate::{
    Etcd, EtcdStore,
    proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse, cluster_server::Cluster},
};

#[tonic::async_trait]
impl<S: EtcdStore> Cluster for Etcd<S> {
    async fn member_list(&self, request: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        let caller = self.caller(&request)?;
        let members = self.store.members(&caller).await?.into_iter().map(|member| Member {
            id: member.id,
            // Members have ids here, and no names.
            name: format!("node-{}", member.id),
            peer_ur_ls: vec![member.peer_url],
            client_ur_ls: member.client_url.into_iter().collect(),
            is_learner: member.is_learner,
        });
        Ok(Response::new(MemberListResponse { header: self.header_now(), members: members.collect() }))
    }
}
