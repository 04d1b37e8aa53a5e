//! Identities of callers, and their rights: tokens, the policy, and the limits of identities.
//!
//! A node knows a caller by its bearer token or its certificate, and asks the policy before it executes a request. Both come from files,
//! which are read again every [`REREAD`]. A change counts once the file reads the same twice, [`SETTLING`] apart. One that cannot be used
//! is logged with its line, and what was in force stays in force. A node with a bad file does not start: a node that serves everybody
//! because of a typing error would be worse.
//!
//! * [`guard`] says what each request needs, in one table.
//! * [`calls`] counts calls per second.
//! * [`connections`] counts open connections.
//! * `file` reads a file again.
//! * [`earlier`] serves clients of the cluster that this one was restored from.
//!
//! What lasts (a pipeline, keep-alive, watch, backup, an acquire that waits) has the identity of the request that began it, and ends when
//! its token is withdrawn: within [`REREAD`] and [`SETTLING`] at the node that the client is connected to. So it does when its certificate
//! expires, or no authority of this node has signed it any more ([`lockkeeper_transport::tls`]); there its connection ends, too. Each
//! request of a pipeline and each renewal is decided anew. A watch and a wait end once the policy of the leader no longer allows them, a
//! backup with the policy of the node that sends it.

mod calls;
mod connections;
pub(crate) mod earlier;
mod file;
pub(crate) mod guard;

use std::{
    future::pending,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, header::AUTHORIZATION};
use tokio::sync::watch;

use lockkeeper_config::AuthConfig;
use lockkeeper_environment::Blocking;
use lockkeeper_machine::Identity;
use lockkeeper_planted::Planted;
use lockkeeper_policy::{IdentityLimits, Policy, RequestSubject, Right, TokenHash, Tokens};
use lockkeeper_transport::{
    LogThrottle, Remote,
    tls::{ShownCertificate, Subject, WithdrawnCertificate},
};

use self::{
    calls::Calls,
    connections::{Connections, OpenConnection},
    earlier::EarlierClients,
    file::{AccessFile, Reread},
};
use super::{
    api::{Caller, Error},
    http_port::HttpConnection,
};

/// Interval at which the files are read again. They are small, and comparing their text finds each change, even one within the resolution
/// of a file's time.
const REREAD: Duration = Duration::from_secs(1);
/// A changed file is read once more after this time, and is used if it has not changed further: what is copied over it comes in parts.
const SETTLING: Duration = Duration::from_millis(200);
/// Calls for health and reflection per second that an identity has at least, whatever its limit: those who look whether a node serves must
/// not take it for one that does not because of a limit of their own.
const PROBES_PER_SECOND_MIN: u32 = 10;
/// The first part of that header's value.
const BEARER: &str = "Bearer ";

/// The identities and rights that a node knows.
#[derive(Debug)]
pub(crate) struct Access {
    /// Whether callers without an identity are served: as far as the policy allows, if there is one.
    anonymous: bool,
    tokens: AccessFile<Tokens>,
    policy: AccessFile<Policy>,
    earlier: Option<EarlierClients>,
    calls: Mutex<Calls>,
    /// Calls for health and reflection.
    probes: Mutex<Calls>,
    connections: Mutex<Connections>,
    /// Number of requests that were refused for want of an identity or a right.
    denied: AtomicU64,
    /// Number of requests that were refused by a limit of their identity.
    limited: AtomicU64,
    /// Limits the log lines about both, because a client can cause any number of refusals.
    denials: LogThrottle,
    limits_reached: LogThrottle,
    /// Tells streams that tokens or the policy have changed.
    changes: watch::Sender<()>,
}

impl Access {
    /// Reads the files. Fails with a message for the person who starts the node. With TLS, callers without an identity are served only as
    /// far as a policy allows them.
    pub(crate) fn open(config: &AuthConfig, has_tls: bool) -> Result<Self, String> {
        let AuthConfig { tokens, policy, anonymous } = config;
        let anonymous = *anonymous && (!has_tls || !policy.as_os_str().is_empty());

        let policy = AccessFile::open("auth.policy", policy)?;
        let tokens = AccessFile::open("auth.tokens", tokens)?;

        Ok(Self {
            anonymous,
            tokens,
            policy,
            earlier: None,
            calls: Mutex::default(),
            probes: Mutex::default(),
            connections: Mutex::default(),
            denied: AtomicU64::default(),
            limited: AtomicU64::default(),
            denials: LogThrottle::default(),
            limits_reached: LogThrottle::default(),
            changes: watch::Sender::default(),
        })
    }

    /// The same, for a cluster that goes on with the clients of another one for a time.
    pub(crate) fn with_earlier(self, earlier: Option<EarlierClients>) -> Self {
        Self { earlier, ..self }
    }

    /// The cluster whose clients are served for a time.
    pub(crate) fn earlier(&self) -> Option<&EarlierClients> {
        self.earlier.as_ref()
    }

    /// The identity of a client's certificate, and whether it is one of the earlier cluster. No identity: there is no certificate, or it is
    /// a node's. Fails if the certificate counts no more.
    pub(crate) fn certificate_identity(
        &self,
        certificate: Option<&ShownCertificate>,
    ) -> Result<(Option<Identity>, bool), Error> {
        let Some(certificate) = certificate else { return Ok((None, false)) };
        let Subject::Client { cluster, name } = certificate.subject() else { return Ok((None, false)) };
        self.check_certificate(certificate)?;

        let invalid = |why| Error::unauthenticated(format!("the name in the certificate cannot be an identity: {why}"));
        let identity = Identity::new(name).map_err(invalid)?;

        let earlier = self.earlier.as_ref().filter(|earlier| earlier.id() == cluster);
        if let Some(earlier) = earlier
            && let Err(error) = earlier.admit(&identity)
        {
            self.denied.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        Ok((Some(identity), earlier.is_some()))
    }

    fn check_certificate(&self, certificate: &ShownCertificate) -> Result<(), Error> {
        certificate.check().map_err(|withdrawn| self.withdrawn_certificate(&withdrawn))
    }

    /// Counts a refusal of a certificate that counts no more. A good one of the same client is let in, so the client is to come again.
    fn withdrawn_certificate(&self, withdrawn: &WithdrawnCertificate) -> Error {
        self.denied.fetch_add(1, Ordering::Relaxed);
        Error::certificate_withdrawn(withdrawn)
    }

    /// Reads the files again and again. Returns at once if none are configured.
    pub(crate) async fn watch_files(self: Arc<Self>, blocking: Blocking) {
        let mut pause = REREAD;
        while self.tokens.is_configured() || self.policy.is_configured() {
            tokio::time::sleep(pause).await;
            let this = Arc::clone(&self);

            // A panic in this task would be a bug in parsing. The next turn tries again, with the text as it is then.
            let read = move || {
                let tokens = if Planted::TokensReadOnce.is_on() { Reread::Same } else { this.tokens.refresh() };
                let policy = if Planted::PolicyReadOnce.is_on() { Reread::Same } else { this.policy.refresh() };
                if [tokens, policy].contains(&Reread::Changed) {
                    this.changes.send_replace(());
                }
                Ok([tokens, policy].contains(&Reread::Unsettled))
            };
            let is_unsettled = blocking.run(read).await.unwrap_or(false);
            pause = if is_unsettled { SETTLING } else { REREAD };
        }
    }

    /// Returns the identity that a bearer token shows, and the token's hash, if the request has a token. The message of a refusal does not
    /// repeat the token.
    pub(crate) fn bearer(&self, headers: &HeaderMap) -> Result<Option<(Identity, TokenHash)>, Error> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let token =
            value.to_str().ok().and_then(|value| value.strip_prefix(BEARER)).filter(|_| values.next().is_none());

        // A value of another form counts as the empty token, which no identity has.
        match self.token(token.unwrap_or_default()) {
            Err(_) if Planted::UnknownTokenIsAnonymous.is_on() => Ok(None),
            identity => identity.map(Some),
        }
    }

    /// Returns the identity that a token shows, and the token's hash. The message of a refusal does not repeat the token.
    pub(crate) fn token(&self, token: &str) -> Result<(Identity, TokenHash), Error> {
        let token = TokenHash::from_token(token);
        match self.known_identity(&token) {
            Some(identity) => Ok((identity, token)),
            None => {
                self.denied.fetch_add(1, Ordering::Relaxed);
                Err(Error::unauthenticated(
                    "the bearer token is not one of this node's: check that it is whole, and in the node's auth.tokens",
                ))
            }
        }
    }

    /// Whether there are tokens by which callers can show who they are.
    pub(crate) fn has_tokens(&self) -> bool {
        self.tokens.is_configured()
    }

    fn known_identity(&self, token: &TokenHash) -> Option<Identity> {
        self.tokens.get()?.identity(token).cloned()
    }

    /// Returns once the token of a call that lasts is not its caller's own any more, or its certificate counts no more, by itself or as one
    /// of the earlier cluster. Never returns for other callers.
    pub(crate) async fn withdrawn(self: Arc<Self>, caller: Caller) -> Error {
        let Some(token) = caller.token else { return self.certificate_over(&caller).await };
        let mut changes = self.changes.subscribe();
        while self.known_identity(&token) == caller.identity {
            if changes.changed().await.is_err() {
                return pending().await;
            }
        }

        self.denied.fetch_add(1, Ordering::Relaxed);
        Error::unauthenticated(
            "the bearer token of this call was withdrawn while it lasted: call again with another one",
        )
    }

    async fn certificate_over(&self, caller: &Caller) -> Error {
        let end_of_earlier = async {
            match self.earlier.as_ref().filter(|_| caller.is_of_earlier) {
                Some(earlier) => earlier.over(caller.identity.as_ref()).await,
                None => pending().await,
            }
        };
        let withdrawal = async {
            match &caller.certificate {
                Some(certificate) => certificate.withdrawn().await,
                None => pending().await,
            }
        };
        tokio::select! {
            error = end_of_earlier => error,
            withdrawn = withdrawal => self.withdrawn_certificate(&withdrawn),
        }
    }

    /// Refuses an anonymous caller if the node serves none.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<(), Error> {
        if caller.identity.is_some() || caller.is_peer || self.anonymous {
            return Ok(());
        }

        self.denied.fetch_add(1, Ordering::Relaxed);
        Err(Error::unauthenticated("this node serves no anonymous callers: send a token, or use a client certificate"))
    }

    /// Refuses a call beyond the identity's calls per second, at the node that takes the call, and one on a stream that was opened with a
    /// certificate which counts no more. What gives something up is let through: nobody would do it instead.
    pub(crate) fn count_call(&self, caller: &Caller) -> Result<(), Error> {
        if caller.is_withdrawal {
            return Ok(());
        }
        if let Some(earlier) = self.earlier.as_ref().filter(|_| caller.is_of_earlier) {
            earlier.check(caller.identity.as_ref())?;
        }
        if let Some(certificate) = &caller.certificate {
            self.check_certificate(certificate)?;
        }
        let Some((who, per_second)) =
            caller.identity.as_ref().and_then(|who| Some((who, self.limits(who).calls_per_second?)))
        else {
            return Ok(());
        };

        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.take(who, per_second, tokio::time::Instant::now()) {
            Ok(())
        } else {
            Err(self.over_limit(who, "calls-per-second", per_second.into(), true))
        }
    }

    /// Refuses a call that needs no identity, for health or reflection, beyond the calls per second of the identity that it shows all the
    /// same. These calls count by themselves, so that no probe takes a call from what else the identity does, nor the other way round, and
    /// each identity has [`PROBES_PER_SECOND_MIN`] of them. None is refused for a token that is not known here.
    ///
    /// Callers without an identity have no limit, as for their other calls: a limit for each host would let those behind one address, such
    /// as a load balancer's, take the probes of the others.
    pub(crate) fn count_probe(&self, headers: &HeaderMap, certificate: Option<&ShownCertificate>) -> Result<(), Error> {
        // Most clusters have no limit: their probes cost nothing.
        let Some(policy) = self.policy.get() else { return Ok(()) };
        let Some(who) = self.probing_identity(headers, certificate) else { return Ok(()) };
        let Some(per_second) = policy.limits(&who).calls_per_second else { return Ok(()) };

        let per_second = per_second.max(PROBES_PER_SECOND_MIN);
        let mut probes = self.probes.lock().unwrap_or_else(PoisonError::into_inner);
        if probes.take(&who, per_second, tokio::time::Instant::now()) {
            Ok(())
        } else {
            Err(self.over_limit(&who, "calls-per-second", per_second.into(), true))
        }
    }

    /// The identity that a probe shows, by a token that is known here or else its certificate. Counts no refusal.
    fn probing_identity(&self, headers: &HeaderMap, certificate: Option<&ShownCertificate>) -> Option<Identity> {
        match headers.get(AUTHORIZATION) {
            Some(value) => {
                let token = value.to_str().ok().and_then(|value| value.strip_prefix(BEARER))?;
                self.known_identity(&TokenHash::from_token(token))
            }
            None => self.certificate_identity(certificate).ok()?.0,
        }
    }

    /// Refuses a call on a connection beyond the identity's connections, and has that connection closed after the answer.
    pub(crate) fn count_connection(&self, who: &Identity, remote: &Remote) -> Result<(), Error> {
        let counted = self.count_open(who, OpenConnection::Calls(remote.clone()));
        if counted.is_err() {
            remote.finish();
        }
        counted
    }

    /// Refuses a connection beyond the identity's connections, of a port that is not one of calls. It is counted for as long as `open` has
    /// an owner.
    pub(crate) fn count_other_connection(&self, who: &Identity, open: Weak<()>) -> Result<(), Error> {
        self.count_open(who, OpenConnection::Other(open))
    }

    /// The same for a port of HTTP. Has that connection closed after the answer.
    pub(crate) fn count_http_connection(&self, who: &Identity, connection: &HttpConnection) -> Result<(), Error> {
        let counted = self.count_other_connection(who, connection.observe());
        if counted.is_err() {
            connection.finish();
        }
        counted
    }

    fn count_open(&self, who: &Identity, connection: OpenConnection) -> Result<(), Error> {
        let Some(most) = self.limits(who).connections else { return Ok(()) };
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.take(who, connection, most) {
            return Ok(());
        }
        Err(self.over_limit(who, "connections", most, true))
    }

    /// The limits of an identity.
    pub(crate) fn limits(&self, who: &Identity) -> IdentityLimits {
        self.policy.get().map_or_else(IdentityLimits::default, |policy| policy.limits(who))
    }

    /// Refuses a request that no rule of the policy allows. A peer's own requests are not checked, because it is authenticated as a member.
    pub(crate) fn check(&self, caller: &Caller, right: Right, what: RequestSubject<'_>) -> Result<(), Error> {
        if caller.is_peer {
            return Ok(());
        }
        let Some(policy) = self.policy.get() else { return Ok(()) };

        match policy.decide(caller.identity.as_ref(), right, what) {
            Ok(_) => Ok(()),
            Err(denied) => {
                if let Some(count) = self.count_denied() {
                    tracing::info!(count, from = %caller.shown(), %right, %what, "requests were refused by the policy");
                }
                Err(Error::permission_denied(&denied))
            }
        }
    }

    /// Whether the policy of this node lets the caller do this. It decides what people are offered, not what is executed.
    pub(crate) fn allows(&self, caller: &Caller, right: Right, what: RequestSubject<'_>) -> bool {
        self.policy.get().is_none_or(|policy| policy.decide(caller.identity.as_ref(), right, what).is_ok())
    }

    /// Returns once the rules of the policy no longer allow this. It is for what was allowed when it began, and lasts.
    pub(crate) async fn denied(&self, caller: &Caller, right: Right, what: RequestSubject<'_>) -> Error {
        self.denied_by(|| self.check(caller, right, what)).await
    }

    /// The same for a check of several rights.
    pub(crate) async fn denied_by(&self, check: impl Fn() -> Result<(), Error>) -> Error {
        let mut changes = self.changes.subscribe();
        loop {
            if let Err(error) = check() {
                return error;
            }
            if changes.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// Whether a policy lets the caller administer the cluster. It may then close the sessions of others, and sees all of them.
    pub(crate) fn administers(&self, caller: &Caller) -> bool {
        let may_administer = |policy: Arc<Policy>| {
            policy.decide(caller.identity.as_ref(), Right::Administer, RequestSubject::Cluster).is_ok()
        };
        caller.is_peer || self.policy.get().is_some_and(may_administer)
    }

    /// Whether a session is the caller's own: opened by its identity, or without one where such callers are served.
    pub(crate) fn owns(&self, caller: &Caller, owner: Option<&Identity>) -> bool {
        match owner {
            Some(_) => owner == caller.identity.as_ref() || Planted::SessionOfAnybody.is_on(),
            None => self.serves_anonymous(),
        }
    }

    /// Whether this node has a policy. Without one, everybody sees all sessions.
    pub(crate) fn has_policy(&self) -> bool {
        self.policy.is_configured()
    }

    /// Whether callers without an identity are served.
    pub(crate) fn serves_anonymous(&self) -> bool {
        self.anonymous
    }

    /// Counts a refusal for want of a right. Returns the number of refusals since the last line of the log, if it is time for another line.
    pub(crate) fn count_denied(&self) -> Option<u64> {
        self.denied.fetch_add(1, Ordering::Relaxed);
        self.denials.count()
    }

    /// Counts a refusal by a limit of an identity, and returns its error.
    pub(crate) fn over_limit(&self, who: &Identity, limit: &'static str, value: u64, is_passing: bool) -> Error {
        let refused = self.limited.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(count) = self.limits_reached.count() {
            tracing::warn!(count, identity = %who, limit, value, "requests were refused: an identity has reached its limit");
        }
        Error::over_limit(who, limit, value, refused, is_passing)
    }

    /// Number of requests refused since the start: for want of an identity or a right, and by a limit of an identity.
    pub(crate) fn refused(&self) -> (u64, u64) {
        (self.denied.load(Ordering::Relaxed), self.limited.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::FutureExt as _;
    use tempfile::TempDir;

    use super::*;
    use crate::api::FailureReason;
    use lockkeeper_policy::BearerToken;

    const POLICY: &str =
        "[[rule]]\nwho = [\"ann\"]\nmay = [\"acquire\"]\nprefix = \"seats/\"\n\n[limits.ann]\ncalls-per-second = 1\n";

    /// With this policy, in the file `policy.toml` of the directory.
    fn access() -> (Access, TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        let policy = directory.path().join("policy.toml");
        fs::write(&policy, POLICY).expect("written");
        let config = AuthConfig { policy, ..AuthConfig::default() };
        (Access::open(&config, false).expect("in order"), directory)
    }

    fn ann() -> Caller {
        Caller { identity: Identity::new("ann").ok(), ..Caller::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_gives_something_up_is_let_through_whatever_its_caller_has_called_before() {
        let (access, _directory) = access();
        while access.count_call(&ann()).is_ok() {}
        let withdrawal = Caller { is_withdrawal: true, ..ann() };
        assert_eq!(access.count_call(&withdrawal), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn probes_have_a_limit_of_their_own_which_is_never_too_low_for_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let tokens = directory.path().join("tokens.toml");
        let policy = directory.path().join("policy.toml");
        let policy_text = format!("{POLICY}\n[limits.bob]\ncalls-per-second = 30\n");
        let token = |byte| BearerToken::from_random([byte; 32]);
        let named = |byte, name| token(byte).entry(&Identity::new(name).expect("valid"));
        fs::write(&tokens, named(1, "ann") + &named(2, "bob") + &named(3, "eve")).expect("written");
        fs::write(&policy, policy_text).expect("written");
        let config = AuthConfig { tokens, policy, ..AuthConfig::default() };
        let access = Access::open(&config, false).expect("in order");

        while access.count_call(&ann()).is_ok() {}
        let probes = |byte| {
            let value = format!("Bearer {}", token(byte).reveal()).parse().expect("text");
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
            (0..1_000).take_while(|_| access.count_probe(&headers, None).is_ok()).count()
        };
        assert_eq!(probes(1), 20, "the burst of two seconds, whatever else it has called");
        assert_eq!((probes(1), probes(2)), (0, 60));
        assert_eq!((probes(3), probes(4)), (1_000, 1_000), "one without a limit, and an unknown one");
        assert!((0..1_000).all(|_| access.count_probe(&HeaderMap::new(), None).is_ok()), "nobody knows who it is");

        let refused = access.refused();
        assert_eq!(refused.0, 0, "a probe with an unknown token is answered");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(probes(1), 20);
        assert_eq!(access.count_call(&ann()), Ok(()), "a probe takes no call");
    }

    #[tokio::test]
    async fn a_check_of_several_rights_is_made_again_when_the_policy_changes() {
        let (access, directory) = access();
        let ann = ann();
        let check = || {
            let mut names = ["seats/1", "seats/2"].into_iter().map(RequestSubject::Name);
            names.try_for_each(|name| access.check(&ann, Right::Acquire, name))
        };
        let mut denied = Box::pin(access.denied_by(check));
        assert!((&mut denied).now_or_never().is_none());

        fs::write(directory.path().join("policy.toml"), POLICY.replace("seats/", "seats/1")).expect("written");
        assert_eq!([access.policy.refresh(), access.policy.refresh()], [Reread::Unsettled, Reread::Changed]);
        access.changes.send_replace(());
        let error = denied.now_or_never().expect("the second name is not allowed any more");
        assert_eq!(error.reason, FailureReason::PermissionDenied);
    }
}
