//! The clients with identities at the ports of others' protocols.

use lockkeeper_etcd::proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    kv_client::KvClient,
    request_op,
};
use lockkeeper_policy::Right;
use rand::{Rng as _, seq::IndexedRandom as _};
use serde_json::json;
use tokio::time::timeout;
use tonic::Request;

use super::{Callers, Edition, LIMIT, Outcome, Rule, Who, outcome, timed};
use crate::{
    clients,
    dynamodb::{self, AccessKey},
    jute::{JuteAnswer, JuteRequest},
    protocols::ContendedProtocol,
    redis::{Connection, Reply},
    znode_session::{SessionKey, ZnodeSession},
};

/// The keys of each port are under a prefix.
const REDIS: &str = "redis/0/";
const ETCD: &str = "etcd/";
const ZOOKEEPER: &str = "zookeeper";
/// It writes one key, and reads another.
const SCRIPT: &str = "redis.call('set', KEYS[1], ARGV[1], 'PX', 1500) return redis.call('get', KEYS[2])";
/// A node that goes with its session.
const EPHEMERAL: i32 = 1;
const NO_NODE: i32 = -101;
const NO_AUTH: i32 = -102;
/// The tables of DynamoDB's port with rules.
const DYNAMODB_TABLES: [&str; 2] = ["rights-ann", "rights-ben"];
/// Of this number of requests at DynamoDB's port, one makes the tables before.
const REQUESTS_PER_TABLES: u32 = 8;
/// Of this number of sessions at ZooKeeper's port, one makes the nodes above those that are asked for.
const SESSIONS_PER_PARENTS: u32 = 8;

/// Commands of Redis'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RedisUse {
    Set,
    Get,
    Script,
    Keys,
}

/// Calls of etcd's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EtcdUse {
    Put,
    Get,
    List,
    Delete,
    /// From one key to another: their beginnings may have rules, and what lies between them none.
    Range,
    /// It looks at one key, and then puts it or reads another.
    Txn,
}

/// Requests of DynamoDB's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DynamoUse {
    Get,
    Put,
    Delete,
    /// It reads a whole table.
    Scan,
    /// It puts an item of one table if one of another is not there.
    Transact,
    /// Tables are the contenders' alone.
    CreateTable,
}

/// Requests of ZooKeeper's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ZnodeUse {
    Get,
    Create,
    Set,
    Delete,
}

impl Callers {
    /// Sends a command of Redis', on a connection of its own.
    pub(super) async fn use_redis(&mut self, who: Who, what: RedisUse) {
        let seat = self.draws.random.random_range(1..=self.seats);
        let Ok(Ok(mut connection)) = timeout(LIMIT, Connection::open(seat)).await else { return };
        let auth = connection.ask(&["AUTH", who.name(), who.token().reveal()]).await;
        let is_known = replied(auth.as_ref());
        self.judge.judge(who, "to authenticate itself to Redis' port", |edition| edition.knows(who), is_known);
        if is_known != Outcome::Served {
            return;
        }

        let key = self.name();
        let other = self.name();
        let beginning = if self.draws.percent(80) { self.name() } else { String::new() };
        let pattern = format!("{beginning}*");
        let command: &[&str] = match what {
            RedisUse::Set => &["SET", &key, who.name(), "NX", "PX", "1500"],
            RedisUse::Get => &["GET", &key],
            RedisUse::Script => &["EVAL", SCRIPT, "2", &key, &other, who.name()],
            RedisUse::Keys => &["KEYS", &pattern],
        };
        let is_allowed = |edition: Edition| {
            let reads = |key: &str| edition.lets(who, Right::Read, &format!("{REDIS}{key}"));
            let may = |key: &str| edition.lets(who, Right::Acquire, &format!("{REDIS}{key}")) && reads(key);
            match what {
                RedisUse::Set | RedisUse::Get => may(&key),
                RedisUse::Script => may(&key) && may(&other),
                // It concerns all keys that begin as the pattern does.
                RedisUse::Keys => reads(&beginning),
            }
        };
        let outcome = replied(connection.ask(command).await.as_ref());
        self.judge.count(&format!("redis {outcome}"));
        self.judge.judge(who, &format!("{command:?} at Redis' port"), is_allowed, outcome);
    }

    /// Calls etcd's API, with a token in the header of its clients.
    pub(super) async fn use_etcd(&mut self, who: Who, what: EtcdUse) {
        let seat = self.draws.random.random_range(1..=self.seats);
        let mut kv = KvClient::new(clients::channel(&ContendedProtocol::Etcd.seat_address(seat)));
        let name = self.name();
        let other = self.name();
        let key = name.clone().into_bytes();
        let range = |key: &str| RangeRequest { key: key.as_bytes().to_vec(), ..RangeRequest::default() };
        let put = PutRequest { key: key.clone(), value: who.name().into(), ..PutRequest::default() };

        let outcome = match what {
            EtcdUse::Put => outcome(&timed(kv.put(with_etcd_token(who, put))).await),
            EtcdUse::Get => outcome(&timed(kv.range(with_etcd_token(who, range(&name)))).await),
            EtcdUse::List | EtcdUse::Range => {
                let range_end = if what == EtcdUse::List { after_all(&name) } else { after_all(&other) };
                let request = RangeRequest { range_end: range_end.into_bytes(), ..range(&name) };
                outcome(&timed(kv.range(with_etcd_token(who, request))).await)
            }
            EtcdUse::Delete => {
                let request = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
                outcome(&timed(kv.delete_range(with_etcd_token(who, request))).await)
            }
            EtcdUse::Txn => {
                let compare = Compare {
                    result: CompareResult::Equal.into(),
                    target: CompareTarget::Create.into(),
                    key,
                    range_end: Vec::new(),
                    target_union: Some(TargetUnion::CreateRevision(0)),
                };
                let success = vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }];
                let failure = vec![RequestOp { request: Some(request_op::Request::RequestRange(range(&other))) }];
                let request = TxnRequest { compare: vec![compare], success, failure };
                outcome(&timed(kv.txn(with_etcd_token(who, request))).await)
            }
        };
        let is_allowed = |edition: Edition| {
            let may = |right, name: &str| edition.lets(who, right, &format!("{ETCD}{name}"));
            match what {
                EtcdUse::Put | EtcdUse::Delete => may(Right::Acquire, &name),
                EtcdUse::Get | EtcdUse::List => may(Right::Read, &name),
                EtcdUse::Range => {
                    let to = after_all(&format!("{ETCD}{other}"));
                    let covers = |(reader, rights, prefix): &Rule| {
                        let has_right = *reader == who && rights.contains(&Right::Read);
                        has_right && format!("{ETCD}{name}").starts_with(prefix) && to <= after_all(prefix)
                    };
                    edition.knows(who) && edition.rules().iter().any(covers)
                }
                EtcdUse::Txn => may(Right::Read, &name) && may(Right::Acquire, &name) && may(Right::Read, &other),
            }
        };
        self.judge.count(&format!("etcd {outcome}"));
        self.judge.judge(who, &format!("{what:?} of {name} and {other} at etcd's port"), is_allowed, outcome);
    }

    /// Sends a request of ZooKeeper's, in a session of its own.
    pub(super) async fn use_znode(&mut self, who: Who, what: ZnodeUse) {
        let address = ContendedProtocol::Zookeeper.seat_address(self.draws.random.random_range(1..=self.seats));
        let opened = ZnodeSession::connect(&address, SessionKey::fresh(0), &self.contention).await;
        let Some(Some(mut session)) = opened else { return };
        if self.draws.random.random_ratio(1, SESSIONS_PER_PARENTS) {
            for parent in ["/rights", "/rights/ann", "/rights/ben"] {
                // It is there already, or the next one that comes here makes it.
                let _ = timeout(LIMIT, session.call(&JuteRequest::create(parent, b"", 0))).await;
            }
        }
        let credentials = format!("{}:{}", who.name(), who.token().reveal()).into_bytes();
        let proof = JuteRequest::Auth { scheme: "digest".to_owned(), credentials };
        let Ok(Some(Ok(JuteAnswer::Nothing))) = timeout(LIMIT, session.call(&proof)).await else { return };

        let name = self.name();
        let path = format!("/{}", name.trim_end_matches('/'));
        let request = match what {
            ZnodeUse::Get => JuteRequest::GetData { path: path.clone(), watch: false },
            ZnodeUse::Create => JuteRequest::create(&path, who.name().as_bytes(), EPHEMERAL),
            ZnodeUse::Set => JuteRequest::SetData { path: path.clone(), data: None, version: -1 },
            ZnodeUse::Delete => JuteRequest::Delete { path: path.clone(), version: -1 },
        };
        let answer = timeout(LIMIT, session.call(&request)).await.unwrap_or(None);
        let outcome = match answer {
            Some(Ok(_)) => Outcome::Served,
            Some(Err(NO_AUTH)) => Outcome::Refused,
            // Who may not read a node must not learn whether it is there.
            Some(Err(NO_NODE)) if what == ZnodeUse::Get => Outcome::Served,
            Some(Err(_)) | None => Outcome::Failed,
        };

        let (parent, _) = path.rsplit_once('/').expect("it begins with one");
        let is_allowed = |edition: Edition| {
            let may = |right, path: &str| edition.lets(who, right, &format!("{ZOOKEEPER}{path}"));
            // To this port, a user with an unknown token is one for access lists alone, and its client has no identity.
            let reads = may(Right::Read, &path);
            !edition.knows(who)
                || match what {
                    ZnodeUse::Get => reads,
                    ZnodeUse::Set => reads && may(Right::Acquire, &path),
                    ZnodeUse::Create | ZnodeUse::Delete => {
                        reads && may(Right::Acquire, &path) && may(Right::Read, parent)
                    }
                }
        };
        self.judge.count(&format!("zookeeper {outcome}"));
        self.judge.judge(who, &format!("{what:?} of {path} at ZooKeeper's port"), is_allowed, outcome);
    }
}

impl Callers {
    /// Sends a request of DynamoDB's, signed by an access key.
    pub(super) async fn use_dynamo(&mut self, who: Who, what: DynamoUse) {
        let seat = self.draws.random.random_range(1..=self.seats);
        if self.draws.random.random_ratio(1, REQUESTS_PER_TABLES) {
            for name in DYNAMODB_TABLES {
                // It is there already, or the next one that comes here makes it.
                let id = self.request_id();
                let table = dynamodb::table(name);
                let made = dynamodb::exchange(seat, dynamodb::CONTENDER, "CreateTable", &table, &id);
                let _ = timeout(LIMIT, made).await;
            }
        }

        let table = *DYNAMODB_TABLES.choose(&mut self.draws.random).expect("it is not empty");
        let other = *DYNAMODB_TABLES.choose(&mut self.draws.random).expect("it is not empty");
        let item = format!("item-{}", self.draws.random.random_range(0..3));
        let key = json!({"key": {"S": item}});
        let (operation, body) = match what {
            DynamoUse::Get => {
                ("GetItem", json!({"TableName": table, "Key": key, "ConsistentRead": self.draws.percent(50)}))
            }
            DynamoUse::Put => ("PutItem", json!({"TableName": table, "Item": key})),
            DynamoUse::Delete => ("DeleteItem", json!({"TableName": table, "Key": key, "ReturnValues": "ALL_OLD"})),
            DynamoUse::Scan => ("Scan", json!({"TableName": table, "ConsistentRead": self.draws.percent(50)})),
            DynamoUse::Transact => {
                let put = json!({"Put": {"TableName": table, "Item": key}});
                let condition = "attribute_not_exists(absent)";
                let absent = json!({"key": {"S": "absent"}});
                let check = json!({"TableName": other, "Key": absent, "ConditionExpression": condition});
                ("TransactWriteItems", json!({"TransactItems": [put, {"ConditionCheck": check}]}))
            }
            DynamoUse::CreateTable => ("CreateTable", dynamodb::table("rights-other")),
        };

        // Some sign with a secret that is not the access key's.
        let is_forged = who == Who::Forger && self.draws.percent(50);
        let id = if is_forged { Who::Ann.name() } else { who.name() };
        let secret = who.secret();
        let request_id = self.request_id();
        let access_key = AccessKey { id, secret: &secret };
        let answer = timeout(LIMIT, dynamodb::exchange(seat, access_key, operation, &body, &request_id)).await;
        let answer = answer.ok().and_then(Result::ok);
        // To learn that there is nothing to delete takes no more than the right to read.
        let had_item = answer.as_ref().is_some_and(|(_, answer)| answer["Attributes"].is_object());
        let outcome = match answer {
            None => Outcome::Failed,
            Some((200, _)) => Outcome::Served,
            Some((_, answer)) => answered(dynamodb::kind(&answer)),
        };

        let is_allowed = |edition: Edition| {
            let may = |right, table: &str| edition.lets(who, right, &format!("dynamodb/item/{table}/"));
            let reads = may(Right::Read, table);
            match what {
                DynamoUse::Get | DynamoUse::Scan => reads,
                DynamoUse::Put => reads && may(Right::Acquire, table),
                DynamoUse::Delete => reads && (may(Right::Acquire, table) || outcome == Outcome::Served && !had_item),
                DynamoUse::Transact => reads && may(Right::Acquire, table) && may(Right::Read, other),
                DynamoUse::CreateTable => false,
            }
        };
        self.judge.count(&format!("dynamodb {outcome}"));
        self.judge.judge(who, &format!("{what:?} of {table} and {other} at DynamoDB's port"), is_allowed, outcome);
    }

    /// By which an SDK would send a request again.
    fn request_id(&mut self) -> String {
        format!("{:032x}", self.draws.random.random::<u128>())
    }
}

/// The first name after all that begin with this one.
fn after_all(name: &str) -> String {
    let (last, start) = name.as_bytes().split_last().expect("no name is empty");
    String::from_utf8([start, &[last + 1]].concat()).expect("it is ASCII")
}

fn with_etcd_token<T>(who: Who, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("token", who.token().reveal().parse().expect("it is text"));
    request
}

/// The outcome by the type of an error of DynamoDB's port.
fn answered(kind: &str) -> Outcome {
    let ends = |words: &[&str]| words.iter().any(|word| kind.ends_with(word));
    if ends(&["AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"]) {
        Outcome::Refused
    } else if ends(&["ConditionalCheckFailedException", "TransactionCanceledException"]) {
        Outcome::Served
    } else {
        Outcome::Failed
    }
}

/// The outcome by a reply of Redis' port.
fn replied(reply: Option<&Reply>) -> Outcome {
    match reply {
        None => Outcome::Failed,
        Some(Reply::Refusal(why)) => {
            let is_about_rights = ["NOPERM", "NOAUTH", "WRONGPASS"].iter().any(|word| why.starts_with(word));
            if is_about_rights { Outcome::Refused } else { Outcome::Failed }
        }
        Some(_) => Outcome::Served,
    }
}
