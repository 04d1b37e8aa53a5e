//! The call that closes a session, at nodes of this version and of the one before.

use tonic::{Code, Response, Status};

use super::nodes::Node;
use lockkeeper_proto::v1::{CloseSessionRequest, CloseSessionResponse, sessions_client::SessionsClient};

/// Closes a session. A node of the version before knows the call by its former name alone, and says that it does not know the new one:
/// then nothing has happened.
pub(crate) fn close_session(
    node: &Node,
    request: &CloseSessionRequest,
) -> impl Future<Output = Result<Response<CloseSessionResponse>, Status>> + use<> {
    let mut service = SessionsClient::new(node.channel.clone());
    let request = request.clone();

    async move {
        match service.close_session(request.clone()).await {
            Err(status) if status.code() == Code::Unimplemented => {
                #[expect(deprecated, reason = "the former name, for a node of the version before")]
                let former = service.close(request);
                former.await
            }
            answer => answer,
        }
    }
}
