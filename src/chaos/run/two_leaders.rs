//! Two nodes that act as leader at the same time: the new leader, and a deposed one that does not know of it.
//!
//! A lock is acquired at the new leader and read at the old one while old answers to it are still arriving. The checker
//! judges the answers.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::{Code, Status, transport::Channel};

use lockkeeper_client::{Error, Session};
use lockkeeper_machine::{DATA_BYTES_MAX, Data, LockName, Mode, WANTS_MAX, Want};
use lockkeeper_proto::v1::{
    self, AcquireRequest, acquire_response::Outcome, cluster_client::ClusterClient, locks_client::LocksClient,
};

use super::super::parties::operator::{LASTING_TTL, RunOperator};
use crate::{
    history::{Acquire, Answer, Call},
    workload::{ATTEMPT_LIMIT, outcomes},
};

/// Time limit for a node to answer from local state.
const AT_ONCE: Duration = Duration::from_millis(60);

/// A lock that is acquired at one leader and read at the other, and the session of the acquire.
#[derive(Debug)]
pub struct TwoLeaders {
    session: Session,
    lock: String,
}

impl RunOperator {
    /// Opens the session while there is one leader. Returns `None` if there is none.
    pub async fn before_two_leaders(&self, lock: &str) -> Option<TwoLeaders> {
        let session = self.open_for(LASTING_TTL, Instant::now()).await?;
        Some(TwoLeaders { session, lock: lock.to_owned() })
    }

    /// Sends the leader the largest possible request, for which its followers have a longer timeout. Its locks are used
    /// by no other client and are not in the history.
    pub async fn send_much(&self, leaders: &TwoLeaders) -> Result<(), Error> {
        let want = |number| {
            let name = LockName::new(&format!("{}/much/{number}", leaders.lock))?;
            let data = Some(Data::new(&[7; DATA_BYTES_MAX])?);
            Ok::<_, Error>(Want { name, mode: Mode::Exclusive, data, keep_data: false, must_exist: false })
        };
        let wants = (0..WANTS_MAX).map(want).collect::<Result<_, _>>()?;
        leaders.session.acquire_wants(wants).no_wait().await.map(drop)
    }

    /// Whether this node reports at once that it is a serving leader.
    pub async fn leads(&self, node: u64) -> bool {
        let mut node = ClusterClient::new(self.nodes.channel(node));
        let status = timeout(AT_ONCE, node.status(v1::StatusRequest::default())).await;
        let serves = |status: v1::StatusResponse| status.role() == v1::Role::Leader && status.serving;
        status.is_ok_and(|status| status.is_ok_and(|status| serves(status.into_inner())))
    }

    /// Tries to acquire the lock at this node.
    pub async fn acquire_at(&self, leaders: &TwoLeaders, node: u64) {
        let session = leaders.session.id().to_string();
        let call = Call::Acquire(Acquire { session: session.clone(), ..Acquire::default() });

        let message = AcquireRequest {
            session_id: session,
            locks: vec![v1::Want { name: leaders.lock.clone(), ..v1::Want::default() }],
            ..AcquireRequest::default()
        };

        let begun = self.recorder.begin(std::slice::from_ref(&leaders.lock), call);
        let answer = in_time(self.at(node).acquire(message)).await;

        match answer.map(|answer| answer.into_inner().outcome) {
            Ok(Some(Outcome::Granted(grant))) => {
                begun.ok(Answer::Acquire { token: grant.token, place_lost: false });
            }
            Ok(Some(Outcome::Busy(_) | Outcome::TimedOut(_))) => begun.failed("busy"),
            Ok(None) => begun.unknown("the answer has no outcome"),
            Err(status) => outcomes::end_call(begun, &status),
        }
    }

    /// Reads the lock at this node, linearizably.
    pub async fn read_at(&self, leaders: &TwoLeaders, node: u64) {
        let message = v1::GetRequest { name: leaders.lock.clone(), ..v1::GetRequest::default() };
        let begun = self.recorder.begin(std::slice::from_ref(&leaders.lock), Call::Get {});
        match in_time(self.at(node).get(message)).await {
            Ok(answer) => begun.ok(Answer::Get(outcomes::view_of_node(&answer.into_inner()))),
            Err(status) => outcomes::end_call(begun, &status),
        }
    }

    /// Ends the test when there is one leader again.
    pub async fn after_two_leaders(&self, leaders: TwoLeaders) {
        self.look(&leaders.lock).await;
        self.close(leaders.session).await;
    }

    fn at(&self, node: u64) -> LocksClient<Channel> {
        LocksClient::new(self.nodes.channel(node))
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::new(Code::DeadlineExceeded, "no answer in time");
    timeout(ATTEMPT_LIMIT, call).await.unwrap_or_else(|_| Err(late()))
}
