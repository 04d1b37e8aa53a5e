//! The requests of `lockkeeper.v1.Sessions`.

use tonic::{Response, Status, transport::Channel};

use super::{Encode, Form, Forward, MESSAGE_BYTES_MAX, ReplyMessage, convert::*, replies::*, views::*};
use crate::api::{Error, requests::*};
use lockkeeper_machine::{Label, Ttl};
use lockkeeper_proto::v1::{self, keep_alive_response, sessions_client::SessionsClient};

impl Encode for OpenSession {
    type Message = v1::OpenSessionRequest;

    fn encode(self) -> Self::Message {
        let session_id = self.session.map_or_else(String::new, |session| session.to_string());
        v1::OpenSessionRequest { session_id, ttl_ms: self.ttl.as_millis(), label: self.label.as_str().to_owned() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let session = match message.session_id.as_str() {
            "" => None,
            chosen => Some(session_id(chosen)?),
        };

        let ttl = Ttl::from_millis(message.ttl_ms).map_err(Error::invalid_value("ttl_ms"))?;
        let label = Label::new(&message.label).map_err(Error::invalid_value("label"))?;
        Ok(Self { session, ttl, label })
    }
}

impl Encode for SessionOpened {
    type Message = v1::OpenSessionResponse;

    fn encode(self) -> Self::Message {
        v1::OpenSessionResponse { session_id: self.session.to_string(), ttl_ms: self.ttl.as_millis() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { session: session_id(&message.session_id)?, ttl: ttl(message.ttl_ms)? })
    }
}

impl Forward for OpenSession {
    forwarded_by!(SessionsClient, open);
}

impl Encode for RenewSession {
    type Message = v1::RenewSessionRequest;

    fn encode(self) -> Self::Message {
        v1::RenewSessionRequest { session_id: self.session.to_string() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { session: session_id(&message.session_id)? })
    }
}

impl Encode for SessionRenewed {
    type Message = v1::RenewSessionResponse;

    fn encode(self) -> Self::Message {
        v1::RenewSessionResponse {
            ttl_ms: self.ttl.as_millis(),
            revoked: self.revoked.into_iter().map(show_revocation).collect(),
            more_revoked: self.more_revoked,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let revoked = message.revoked.into_iter().map(revocation).collect::<Result<_, _>>()?;
        Ok(Self { ttl: ttl(message.ttl_ms)?, revoked, more_revoked: message.more_revoked })
    }
}

impl Forward for RenewSession {
    forwarded_by!(SessionsClient, renew);
}

impl Encode for CloseSession {
    type Message = v1::CloseSessionRequest;

    fn encode(self) -> Self::Message {
        let reason = self.reason.map_or_else(String::new, |reason| reason.as_str().to_owned());
        v1::CloseSessionRequest { session_id: self.session.to_string(), reason }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { session: session_id(&message.session_id)?, reason: reason_unless_empty(&message.reason)? })
    }
}

impl Encode for SessionClosed {
    type Message = v1::CloseSessionResponse;

    fn encode(self) -> Self::Message {
        v1::CloseSessionResponse {}
    }

    fn decode(v1::CloseSessionResponse {}: Self::Message) -> Result<Self, Error> {
        Ok(Self)
    }
}

#[expect(
    deprecated,
    reason = "a leader of the version before knows the former name alone; the next version calls by the new one"
)]
impl Forward for CloseSession {
    forwarded_by!(SessionsClient, close);
}

impl Encode for ListSessions {
    type Message = v1::ListSessionsRequest;

    fn encode(self) -> Self::Message {
        v1::ListSessionsRequest {
            page_size: show_page_size(self.page_size),
            page_token: self.after.map_or_else(String::new, |session| session.to_string()),
            stale: self.stale,
            last_session_id: self.last.map_or_else(String::new, |session| session.to_string()),
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let after = match message.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| not_a_page_token())?),
        };
        let last = match message.last_session_id.as_str() {
            "" => None,
            last => Some(last.parse().map_err(Error::invalid_value("last_session_id"))?),
        };
        Ok(Self { after, last, page_size: message.page_size as usize, stale: message.stale })
    }
}

impl Encode for ListedSessions {
    type Message = v1::ListSessionsResponse;

    fn encode(self) -> Self::Message {
        v1::ListSessionsResponse {
            sessions: self.sessions.into_iter().map(show_session).collect(),
            next_page_token: self.more_after.map_or_else(String::new, |session| session.to_string()),
            index: self.index,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let sessions = message.sessions.into_iter().map(session).collect::<Result<_, _>>()?;
        let more_after = match message.next_page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| not_a_page_token())?),
        };
        Ok(Self { sessions, more_after, index: message.index })
    }
}

impl Forward for ListSessions {
    fn is_stale(request: &Form<Self>) -> bool {
        match request {
            Form::Typed(request) => request.stale,
            Form::Message(message) => message.stale,
        }
    }

    forwarded_by!(SessionsClient, list);
}

impl Encode for KeepAlive {
    type Message = v1::KeepAliveRequest;

    fn encode(self) -> Self::Message {
        v1::KeepAliveRequest { session_id: self.session.to_string(), sequence: self.sequence }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { session: session_id(&message.session_id)?, sequence: message.sequence })
    }
}

impl Encode for KeepAliveEvent {
    type Message = v1::KeepAliveResponse;

    fn encode(self) -> Self::Message {
        use keep_alive_response::{Renewed, What};
        let what = match self.kind {
            KeepAliveEventKind::Renewed { sequence, ttl, members } => {
                What::Renewed(Renewed { sequence, ttl_ms: ttl.as_millis(), members })
            }
            KeepAliveEventKind::Ended(end) => What::Ended(show_end(end)),
            KeepAliveEventKind::Revoked(revocation) => What::Revoked(show_revocation(revocation)),
        };
        v1::KeepAliveResponse { session_id: self.session.to_string(), what: Some(what) }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        use keep_alive_response::{Renewed, What};
        let kind = match message.what {
            Some(What::Renewed(Renewed { sequence, ttl_ms, members })) => {
                KeepAliveEventKind::Renewed { sequence, ttl: ttl(ttl_ms)?, members }
            }
            Some(What::Ended(ended)) => KeepAliveEventKind::Ended(session_end(&ended)),
            Some(What::Revoked(revoked)) => KeepAliveEventKind::Revoked(revocation(revoked)?),
            None => return Err(not_set("what")),
        };
        Ok(Self { session: session_id(&message.session_id)?, kind })
    }
}
