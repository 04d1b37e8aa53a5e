//! A connection's conversation: requests in, replies out, in their order.
//!
//! The session knows what lasts from one request to the next: the selected database, the version of the protocol, who the client is, a
//! transaction that is being queued, watched keys. Bytes and sockets are those of `connection`.
//!
//! Requests that have arrived together share what the log costs. Those of plain locks are under way at the same time (`pipeline`). Others
//! that only touch keys run as one unit, so a pipeline of hundreds of commands is a few entries of the log. Redis promises less: commands
//! of a pipeline may have those of others between them.

mod answer;
mod channels;
mod clients;
mod hello;
mod info;
mod pipeline;
mod scripts;
mod sentinel;
mod transaction;
mod waiting;

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    ClientConnection, RedisCaller, RedisIdentity, RedisReply, RedisStore, RedisStoreError,
    clients::{ClientGuard, ListedClient},
    commands::{self, Arguments, CommandRunner, CommandSpec, Flag},
    fast::RepeatedClaim,
    node::RedisNode,
    resp::{Protocol, RequestWords, write_reply},
    unit::{CommandUnit, UnitCall, UnitOutcome},
    view::Stop,
};
pub(crate) use answer::Closes;
use answer::{failure_reply, reply_to_one};
use channels::Subscriptions;
use pipeline::bytes_of;
use transaction::{QueuedTransaction, WatchedKeys};

/// Number of requests of a pipeline that run as one unit, and their bytes.
const TOGETHER_MAX: usize = 100;
/// Their bytes.
const TOGETHER_BYTES_MAX: usize = 256 << 10;
/// Pause before a lock is asked for again whose answer was lost.
const REPEAT_PAUSE: Duration = Duration::from_millis(50);

/// The conversation with one client.
pub(crate) struct RedisSession<S> {
    /// What all connections share.
    node: Arc<RedisNode<S>>,
    /// Its place in the list of connections.
    guard: ClientGuard,
    /// The client's end of the connection.
    address: SocketAddr,
    /// The version that replies are written in.
    protocol: Protocol,
    /// The selected database.
    database: u8,
    /// Whom the client has proven to be.
    identity: Option<String>,
    /// Whom its certificate proves it to be.
    certified: Option<String>,
    /// The connection, as the store counts it.
    connection: ClientConnection,
    /// Closes the connection when the certificate counts no more with which it was opened, whoever its client says to be since.
    certificate: Option<AbortOnDropHandle<()>>,
    /// Closes the connection when the password counts no more with which the client has proven who it is.
    password: Option<AbortOnDropHandle<()>>,
    /// The transaction that is being queued.
    transaction: Option<QueuedTransaction>,
    /// The keys that its next transaction depends on.
    watched: WatchedKeys,
    /// Number of the next requests that run each by itself: together they were too much for one unit.
    apart: usize,
    subscriptions: Option<Subscriptions>,
}

/// What a session does with a request.
enum RequestPlan {
    /// It is answered at once.
    Answer(RedisReply),
    /// It is a command of the keyspace, which may run together with others.
    Data(&'static CommandSpec),
    /// It is answered by itself.
    Alone(&'static CommandSpec),
    /// It is queued.
    Queue(&'static CommandSpec),
}

impl<S: RedisStore> RedisSession<S> {
    /// Begins the conversation with a client. `identity` is what its certificate proves.
    pub(crate) fn new(node: Arc<RedisNode<S>>, address: SocketAddr, identity: Option<RedisIdentity>) -> Self {
        let guard = node.clients.enter(address, identity.as_ref().map(|proven| proven.name.clone()));
        let mut session = Self {
            node,
            guard,
            address,
            protocol: Protocol::default(),
            database: 0,
            identity: None,
            certified: None,
            connection: ClientConnection::default(),
            certificate: None,
            password: None,
            transaction: None,
            watched: WatchedKeys::default(),
            apart: 0,
            subscriptions: None,
        };
        if let Some(proven) = identity {
            session.certified = Some(proven.name.clone());
            session.certificate = Some(session.note_proof(proven));
        }
        session
    }

    /// The client is this one, until the proof counts no more, for which the returned task waits. A command that waits ends then, too:
    /// whoever has lost its proof must not go on to take items, or to hear of messages.
    fn note_proof(&mut self, RedisIdentity { name, withdrawn }: RedisIdentity) -> AbortOnDropHandle<()> {
        let client = Arc::clone(self.client());
        client.tell(|told| told.identity = Some(name.clone()));
        self.identity = Some(name);

        let watched = async move {
            withdrawn.await;
            client.kill.cancel();
        };
        AbortOnDropHandle::new(tokio::spawn(watched))
    }

    /// The connection, as others see it.
    pub(crate) fn client(&self) -> &Arc<ListedClient> {
        &self.guard.client
    }

    /// Whether the client has proven who it is, or does not have to.
    pub(crate) fn is_known(&self) -> bool {
        self.identity.is_some() || !self.node.store().needs_identity()
    }

    /// Number of bytes of the requests that are queued.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, QueuedTransaction::bytes)
    }

    /// Number of bytes that the client has had this node keep until it says otherwise: queued requests, watched keys, subscriptions.
    pub(crate) fn held_bytes(&self) -> usize {
        self.queued_bytes() + self.watched.bytes() + self.subscribed_bytes()
    }

    /// Serves the first of the requests, or as many of the first ones as can run together, and writes their replies. Fails if the
    /// connection has to be closed; what was written then is sent before.
    pub(crate) async fn serve_next(
        &mut self,
        requests: &mut VecDeque<RequestWords>,
        out: &mut Vec<u8>,
    ) -> Result<(), Closes> {
        // Looking for scripts takes a part of the time of the commands that name them.
        let caller = self.caller();
        let fast = self.take_fast(requests, &caller).await;
        if !fast.is_empty() {
            self.apart = self.apart.saturating_sub(fast.len());
            return self.run_fast(fast, caller, out).await;
        }

        let Some(request) = requests.pop_front() else { return Ok(()) };
        let is_apart = self.apart > 0;
        self.apart = self.apart.saturating_sub(1);
        self.node.clients.note_commands(self.client(), 1);
        let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();

        match self.plan(&arguments) {
            RequestPlan::Answer(reply) => self.write(&reply, out),
            RequestPlan::Queue(command) => {
                let reply = self.queue(command, &arguments);
                self.write(&reply, out);
            }
            RequestPlan::Alone(command) => {
                self.note_command(command);
                if command.name.ends_with("subscribe") {
                    return self.serve_subscription(command.name, &arguments, out).await;
                }
                let reply = self.run_alone(command, &arguments, &caller, out).await?;
                self.write(&reply, out);
            }
            RequestPlan::Data(command) => {
                self.note_command(command);
                let mut together = vec![request];
                if !is_apart {
                    self.take_together(requests, &mut together);
                }
                self.run_together(together, requests, out).await?;
            }
        }
        Ok(())
    }

    /// Notes what the client does, for CLIENT LIST.
    fn note_command(&self, command: &'static CommandSpec) {
        let database = self.database;
        self.client().tell(|told| {
            told.last_command = command.name;
            told.database = database;
        });
    }

    /// Decides what to do with a request. An error while a transaction is queued is the end of that transaction.
    fn plan(&mut self, arguments: &Arguments<'_>) -> RequestPlan {
        let checked = commands::find_checked(arguments);
        let command = match checked {
            Ok(command) => command,
            Err(stop) => return RequestPlan::Answer(self.refuse_queued(stop)),
        };
        if !self.is_known() && !command.has(Flag::NoAuth) {
            return RequestPlan::Answer(self.refuse_queued(Stop::refused("NOAUTH Authentication required.")));
        }

        if self.is_subscriber_only()
            && let Some(reply) = self.answer_as_subscriber(command, arguments)
        {
            return RequestPlan::Answer(reply);
        }

        // After the rights: a command that may not run is refused when it is queued, and spoils the transaction, as in Redis.
        let is_queueing = self.transaction.is_some();
        match command.run {
            CommandRunner::Connection => RequestPlan::Alone(command),
            CommandRunner::Data(_) | CommandRunner::Local | CommandRunner::Script if is_queueing => {
                RequestPlan::Queue(command)
            }
            CommandRunner::Data(_) if is_together(command) => RequestPlan::Data(command),
            CommandRunner::Data(_) | CommandRunner::Local | CommandRunner::Script => RequestPlan::Alone(command),
        }
    }

    /// Takes the requests that follow and can run together with the first ones.
    fn take_together(&mut self, requests: &mut VecDeque<RequestWords>, together: &mut Vec<RequestWords>) {
        let mut left = TOGETHER_BYTES_MAX.saturating_sub(bytes_of(&together[0]));

        while let Some(next) = requests.front()
            && together.len() < TOGETHER_MAX
        {
            let arguments: Vec<&[u8]> = next.iter().map(Vec::as_slice).collect();
            let known = commands::find_checked(&arguments).ok();
            let joins =
                // A malformed command does not join: it gets its error in its own place, and the commands before it get their replies.
                known.is_some_and(|command| matches!(command.run, CommandRunner::Data(_)) && is_together(command));
            let bytes = bytes_of(next);
            if !joins || bytes > left {
                return;
            }
            left -= bytes;
            together.extend(requests.pop_front());
        }
    }

    /// Runs commands of the keyspace as one unit, and writes their replies. Those that are too much together are put back among the
    /// requests, and run one by one: the connection looks after each whether there is room for the reply of the next.
    async fn run_together(
        &mut self,
        together: Vec<RequestWords>,
        requests: &mut VecDeque<RequestWords>,
        out: &mut Vec<u8>,
    ) -> Result<(), Closes> {
        let count = together.len();
        let is_one = count == 1;
        let calls = together.iter().cloned().map(UnitCall::Command).collect();
        let outcome = self.run_unit(self.unit(calls)).await;

        match outcome {
            UnitOutcome::Done { replies, database } => {
                self.database = database;
                self.node.clients.note_commands(self.client(), count - 1);
                replies.iter().for_each(|reply| self.write(reply, out));
            }
            UnitOutcome::Failed(failure) if is_one => {
                let reply = failure_reply(failure)?;
                self.write(&reply, out);
            }
            UnitOutcome::Refused(text) if is_one => self.write(&RedisReply::error(text), out),
            // Nothing happened: one command was too much, or all of them together were. Running each by itself shows which.
            UnitOutcome::Refused(_) | UnitOutcome::Failed(_) | UnitOutcome::Abandoned => {
                if let UnitOutcome::Failed(failure) = outcome {
                    failure_reply(failure)?;
                }
                let mut rest = together.into_iter();
                let first = rest.next().map(UnitCall::Command);
                self.apart = count - 1;
                rest.rev().for_each(|request| requests.push_front(request));

                let outcome = self.run_unit(self.unit(first.into_iter().collect())).await;
                let reply = self.take_reply(outcome)?;
                self.write(&reply, out);
            }
        }
        Ok(())
    }

    /// Runs a command that is not a plain one of the keyspace.
    async fn run_alone(
        &mut self,
        command: &'static CommandSpec,
        arguments: &Arguments<'_>,
        caller: &RedisCaller,
        out: &mut Vec<u8>,
    ) -> Result<RedisReply, Closes> {
        let result = match command.run {
            CommandRunner::Connection => self.run_connection(command.name, arguments, out).await?,
            CommandRunner::Local => self.run_local(command.name, arguments).await?,
            CommandRunner::Script => return self.run_script(command, arguments, caller).await,
            CommandRunner::Data(_) if command.name.starts_with("flush") => self.flush(command.name, arguments).await?,
            CommandRunner::Data(_) if command.may_wait() => return self.wait_for_item(command, arguments).await,
            CommandRunner::Data(_) if command.name == "publish" => return self.publish(arguments).await,
            CommandRunner::Data(_) => {
                let call = UnitCall::Command(arguments.iter().map(|argument| argument.to_vec()).collect());
                let outcome = self.run_unit(self.unit(vec![call])).await;
                return self.take_reply(outcome);
            }
        };

        Ok(reply_to_one(result))
    }

    /// Runs a command that only a connection has.
    async fn run_connection(
        &mut self,
        name: &str,
        arguments: &Arguments<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Result<RedisReply, Stop>, Closes> {
        Ok(match name {
            "quit" => {
                self.write(&RedisReply::ok(), out);
                return Err(Closes);
            }

            "reset" => Ok(self.reset()),
            "multi" => self.begin_transaction(),
            "discard" => self.discard(),
            "exec" => return self.execute().await.map(Ok),
            "watch" => return self.watch(arguments).await,
            _ => Err(Stop::Refused(format!("ERR {name} is not served"))),
        })
    }

    /// Runs a command that this node answers, also within a transaction.
    async fn run_local(&mut self, name: &str, arguments: &Arguments<'_>) -> Result<Result<RedisReply, Stop>, Closes> {
        Ok(match name {
            "auth" => self.authenticate(arguments),
            "hello" => self.hello(arguments),
            "unwatch" => {
                self.watched.clear();
                Ok(RedisReply::ok())
            }

            "client" => self.client_command(arguments),
            "cluster" => info::cluster(arguments),
            "command" => info::command(arguments),
            "config" => info::config(arguments),
            "info" => return self.info(arguments).await.map(Ok),
            "pubsub" => return self.pubsub(arguments).await,
            "role" => Ok(info::role()),
            "script" => return self.script_command(arguments).await,
            "sentinel" => self.sentinel(arguments),
            _ => Err(Stop::Refused(format!("ERR {name} is not served"))),
        })
    }

    /// Serves RESET: the connection is as new, also for a program that gives it to another user. What a password has proven counts no more.
    fn reset(&mut self) -> RedisReply {
        self.transaction = None;
        self.watched.clear();
        self.drop_subscriptions();
        self.database = 0;
        self.protocol = Protocol::default();

        self.password = None;
        self.identity.clone_from(&self.certified);
        if self.certified.is_none() {
            // From now on it is not counted for those whom it has proven to be.
            self.connection = ClientConnection::default();
        }
        let identity = self.identity.clone();
        self.client().tell(|told| {
            told.name.clear();
            told.identity = identity;
            told.database = 0;
        });
        RedisReply::Status(b"RESET".to_vec())
    }

    /// Writes a reply in the version of this connection.
    fn write(&self, reply: &RedisReply, out: &mut Vec<u8>) {
        // Clients send the hash of a script first, and learn by this error that they have to send the script.
        if let RedisReply::Error(text) = reply
            && !text.starts_with(b"NOSCRIPT")
        {
            self.node.clients.note_error(self.client());
        }
        write_reply(reply, self.protocol, out);
    }

    /// The caller of a command that begins now.
    fn caller(&self) -> RedisCaller {
        let deadline = Instant::now() + self.node.options.command_timeout;
        RedisCaller { identity: self.identity.clone(), address: self.address, deadline, is_port: false }
    }

    /// A unit of some calls that the client did not send as a transaction.
    fn unit(&self, calls: Vec<UnitCall>) -> CommandUnit {
        CommandUnit {
            database: self.database,
            holder: self.client().label(),
            watched: Vec::new(),
            is_transaction: false,
            calls,
        }
    }

    /// Runs a unit within the time of a command.
    async fn run_unit(&self, unit: CommandUnit) -> UnitOutcome {
        self.node.engine.run(&self.caller(), unit).await
    }

    /// Learns what became of a lock whose answer was lost, by asking for it again until the time of the command is over: then it stays
    /// unknown. A client that sends it again by itself would be refused by its own lock, which nobody would release before its end.
    async fn repeat(&self, caller: &RedisCaller, repeated: RepeatedClaim) -> Option<bool> {
        while Instant::now() + REPEAT_PAUSE < caller.deadline {
            match self.node.store().commit(caller, repeated.txn.clone()).await {
                Ok(outcome) => return Some(repeated.is_held(&outcome)),
                Err(RedisStoreError::Unknown(_) | RedisStoreError::Unavailable(_) | RedisStoreError::Overloaded(_)) => {
                    sleep(REPEAT_PAUSE).await;
                }
                // These failures do not tell the outcome of the first attempt.
                Err(RedisStoreError::Denied(_) | RedisStoreError::TooLarge(_) | RedisStoreError::Full(_)) => {
                    return None;
                }
            }
        }
        None
    }

    /// The reply to the one call of a unit.
    fn take_reply(&mut self, outcome: UnitOutcome) -> Result<RedisReply, Closes> {
        match outcome {
            UnitOutcome::Done { replies, database } => {
                self.database = database;
                Ok(replies.into_iter().next().unwrap_or(RedisReply::Nil))
            }
            UnitOutcome::Abandoned => Ok(RedisReply::NilArray),
            UnitOutcome::Refused(text) => Ok(RedisReply::error(text)),
            UnitOutcome::Failed(failure) => failure_reply(failure),
        }
    }

    /// Empties databases. What is too much for one transaction is removed in several.
    async fn flush(&mut self, name: &str, arguments: &Arguments<'_>) -> Result<Result<RedisReply, Stop>, Closes> {
        if let Err(stop) = commands::check_flush(arguments) {
            return Ok(Err(stop));
        }

        let databases = if name == "flushall" { 0..crate::key::DATABASES } else { self.database..self.database + 1 };
        let mut has_begun = false;

        for database in databases {
            match self.node.engine.flush(|| self.caller(), database, &mut has_begun).await {
                Ok(()) => {}
                // The error must not say that nothing was done.
                Err(failure) if has_begun && !matches!(failure, RedisStoreError::Unknown(_)) => {
                    let name = name.to_ascii_uppercase();
                    let text =
                        format!("ERR {name} did not end, and a part of the keys is gone: {failure}; send it again");
                    return Ok(Err(Stop::Refused(text)));
                }
                Err(failure) => return failure_reply(failure).map(Ok),
            }
        }
        Ok(Ok(RedisReply::ok()))
    }
}

/// Whether a command can run together with others of a pipeline: not one that reads ranges, or that may be too large for one transaction.
fn is_together(command: &CommandSpec) -> bool {
    !command.has(Flag::Blocking)
        && !matches!(command.name, "keys" | "publish" | "scan" | "dbsize" | "randomkey" | "flushdb" | "flushall")
}
