//! Who asks: a name and a password for a token, as etcd's clients do it.
//!
//! The name is an identity, and the password a token of this identity; the answer is that token. So there is nothing to keep, and any node
//! knows it. Users, roles and their rights are the node's configuration: the calls that change them are not served.

use tonic::{Request, Response, Status};

use crate::{
    Etcd, EtcdStore, EtcdStoreError,
    error::Error,
    proto::etcdserverpb::{
        AuthStatusRequest, AuthStatusResponse, AuthenticateRequest, AuthenticateResponse, auth_server::Auth,
    },
};

#[tonic::async_trait]
impl<S: EtcdStore> Auth for Etcd<S> {
    async fn auth_status(&self, _request: Request<AuthStatusRequest>) -> Result<Response<AuthStatusResponse>, Status> {
        let enabled = self.store.needs_identity();
        Ok(Response::new(AuthStatusResponse { header: self.header_now(), enabled, auth_revision: 1 }))
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let AuthenticateRequest { name, password } = request.into_inner();
        let token = match self.store.authenticate(&name, &password) {
            Err(EtcdStoreError::Anonymous) => Err(Error::AuthNotEnabled),
            Ok(None) => Err(Error::AuthFailed),
            Ok(Some(token)) => Ok(token),
            Err(error) => Err(error.into()),
        }?;
        Ok(Response::new(AuthenticateResponse { header: self.header_now(), token }))
    }
}
