//! The calls as JSON over HTTP, as clients that speak no gRPC send them.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, to_bytes};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::{Method, Request as HttpRequest, Response as HttpResponse};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Service as _;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
/// "jobs/a", its value "one", and the end of all that begin with "jobs/".
const KEY: &str = "am9icy9h";
const ONE: &str = "b25l";
const END: &str = "am9iczA=";

async fn send(api: &Api, method: Method, path: &str, body: Body) -> HttpResponse<Body> {
    let request = HttpRequest::builder().method(method).uri(path).body(tonic::body::Body::new(body)).unwrap();
    let answer = timeout(PATIENCE, api.routes().call(request)).await.expect("in time").expect("an answer");
    answer.map(Body::new)
}

async fn whole(answer: HttpResponse<Body>) -> (u16, Value) {
    assert_eq!(answer.headers()["content-type"], "application/json");
    let status = answer.status().as_u16();
    let bytes = timeout(PATIENCE, to_bytes(answer.into_body(), 1 << 20)).await.expect("in time").expect("a body");
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{status}: {bytes:?}")))
}

async fn post(api: &Api, path: &str, body: impl ToString) -> (u16, Value) {
    whole(send(api, Method::POST, path, Body::from(body.to_string())).await).await
}

async fn ok(api: &Api, path: &str, body: Value) -> Value {
    let (status, answer) = post(api, path, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn get(api: &Api, path: &str) -> (u16, Value) {
    whole(send(api, Method::GET, path, Body::empty()).await).await
}

/// The lines of an answer that does not end.
struct Lines {
    body: BodyDataStream,
    buffer: BytesMut,
}

impl Lines {
    async fn of(api: &Api, path: &str, body: Body) -> Self {
        let answer = send(api, Method::POST, path, body).await;
        assert_eq!(answer.status(), 200);
        Self { body: answer.into_body().into_data_stream(), buffer: BytesMut::new() }
    }

    /// The next line; `None`: it ends.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Some(serde_json::from_slice(&self.buffer.split_to(end + 1)).unwrap());
            }
            let more = timeout(PATIENCE, self.body.next()).await.expect("in time")?;
            self.buffer.extend_from_slice(&more.expect("no error"));
        }
    }
}

fn one_message(body: &Value) -> Body {
    Body::from(body.to_string())
}

#[tokio::test]
async fn calls_take_numbers_and_texts_and_leave_out_what_is_default() {
    let api = Api::new();
    let granted = ok(&api, "/v3/lease/grant", json!({ "TTL": 60, "ID": "77" })).await;
    assert_eq!((&granted["ID"], &granted["TTL"]), (&json!("77"), &json!("60")));
    assert_eq!(granted["header"]["cluster_id"], json!("7"));
    ok(&api, "/v3beta/kv/put", json!({ "key": KEY, "value": ONE, "lease": 77, "ignored": [1] })).await;
    let read = json!({ "key": KEY, "range_end": END, "sort_order": 2, "sort_target": "CREATE", "serializable": true });
    let read = ok(&api, "/v3alpha/kv/range", read).await;
    let expected = json!({
        "key": KEY, "value": ONE, "lease": "77", "version": "1", "create_revision": "2", "mod_revision": "2",
    });
    assert_eq!(read, json!({ "header": read["header"], "kvs": [expected], "count": "1" }));
    let compare = json!([{ "key": KEY, "target": "VALUE", "result": "EQUAL", "value": ONE }]);
    let delete = json!([{ "request_delete_range": { "key": KEY } }]);
    let txn = json!({ "compare": compare, "success": delete, "failure": [{ "request_range": { "key": KEY } }] });
    let done = ok(&api, "/v3/kv/txn", txn.clone()).await;
    assert_eq!((&done["succeeded"], done["header"]["revision"].clone()), (&json!(true), json!("3")));
    assert_eq!(done["responses"][0]["response_delete_range"]["deleted"], json!("1"));
    let again = ok(&api, "/v3/kv/txn", txn).await;
    assert_eq!((again.get("succeeded"), again["header"]["revision"].clone()), (None, json!("3")));
    for path in ["/v3/lease/timetolive", "/v3/kv/lease/timetolive"] {
        assert_eq!(ok(&api, path, json!({ "ID": 77, "keys": true })).await["grantedTTL"], json!("60"));
    }
    ok(&api, "/v3/kv/lease/revoke", json!({ "ID": "77" })).await;
    assert_eq!(ok(&api, "/v3/maintenance/status", json!({})).await["version"], json!("3.4.23"));
    let members = ok(&api, "/v3/cluster/member/list", json!({})).await;
    assert_eq!(members["members"][0]["clientURLs"], json!(["http://127.0.0.1:2379"]));
    // Nothing at all is an empty message.
    assert_eq!(post(&api, "/v3/lease/leases", "").await.0, 200);
}

#[tokio::test]
async fn errors_have_a_message_a_code_and_a_status() {
    let api = Api::new();
    let error = async |path: &str, body: &str| {
        let (status, answer) = post(&api, path, body).await;
        assert_eq!(answer["error"], answer["message"]);
        (status, answer["code"].as_i64().unwrap(), answer["message"].as_str().unwrap().to_owned())
    };
    let expected = (400, 3, "etcdserver: key is not provided".to_owned());
    assert_eq!(error("/v3/kv/put", "{}").await, expected);
    let lost = (404, 5, "etcdserver: requested lease not found".to_owned());
    assert_eq!(error("/v3/kv/lease/revoke", "{\"ID\":5}").await, lost);
    assert_eq!(error("/v3/kv/put", "{\"key\":\"YQ==\",\"lease\":5}").await, lost);
    let future = error("/v3/kv/range", "{\"key\":\"YQ==\",\"revision\":99}").await;
    assert_eq!((future.0, future.1), (400, 11));
    for garbage in ["\"x\"", "x", "{", "{\"key\":7}", "[]", "{\"limit\":\"many\"}", "{} {}"] {
        let (status, code, message) = error("/v3/kv/range", garbage).await;
        assert_eq!((status, code), (400, 3), "{garbage}");
        assert!(message.starts_with("the body is not the JSON of this call: "), "{message}");
    }
    for garbage in ["\"x\"", "x", "{", "{\"create_request\":7}", "[]", ""] {
        assert_eq!(error("/v3/watch", garbage).await.0, 400, "{garbage}");
    }
    let large = format!("{{\"key\":\"YQ==\",\"value\":\"{}\"}}", "AAAA".repeat((2 << 20) / 3));
    assert_eq!(error("/v3/kv/put", &large).await, (400, 3, "etcdserver: request is too large".to_owned()));
    let large = format!("{{\"key\":\"{}\"}}", "A".repeat(4 << 20));
    assert_eq!(error("/v3/kv/put", &large).await.0, 400);
    assert_eq!(error("/v3/watch", &large).await.0, 400);
    assert_eq!(error("/v3/nope", "{}").await, (404, 5, "Not Found".to_owned()));
    assert_eq!(get(&api, "/v3/kv/range").await.0, 405);
    ok(&api, "/v3/lease/grant", json!({ "TTL": 60, "ID": 77 })).await;
    assert_eq!(error("/v3/lease/grant", "{\"TTL\":60,\"ID\":77}").await.0, 412);
    api.store.be_leaderless(true);
    let no_leader = error("/v3/kv/put", "{\"key\":\"YQ==\"}").await;
    assert_eq!(no_leader, (503, 14, "etcdserver: no leader".to_owned()));
}

#[tokio::test]
async fn the_version_and_the_health_are_shown() {
    let api = Api::new();
    let version = json!({ "etcdserver": "3.4.23", "etcdcluster": "3.4.0" });
    assert_eq!(get(&api, "/version").await, (200, version));
    assert_eq!(get(&api, "/health").await, (200, json!({ "health": "true" })));
    let (status, metrics) = get(&api, "/metrics").await;
    assert_eq!(status, 404);
    assert!(metrics["message"].as_str().is_some_and(|text| text.contains("http.listen")), "{metrics}");
    api.store.be_leaderless(true);
    assert_eq!(get(&api, "/health").await.0, 503);
}

#[tokio::test]
async fn a_watch_goes_on_after_the_body_and_in_it() {
    let api = Api::new();
    let create = json!({ "create_request": { "key": KEY, "range_end": END, "filters": [] } });
    let mut ended = Lines::of(&api, "/v3/watch", one_message(&create)).await;
    let (more, parts) = mpsc::channel::<Result<Bytes, std::io::Error>>(8);
    // A message in parts, and then another one.
    let text = create.to_string();
    let (one, two) = text.split_at(text.len() / 2);
    for part in [one, two, "\n"] {
        more.send(Ok(Bytes::from(part.to_owned()))).await.unwrap();
    }
    let mut open = Lines::of(&api, "/v3/watch", Body::from_stream(ReceiverStream::new(parts))).await;
    for lines in [&mut ended, &mut open] {
        assert_eq!(lines.next().await.unwrap()["result"]["created"], json!(true));
    }
    ok(&api, "/v3/kv/put", json!({ "key": KEY, "value": ONE })).await;
    ok(&api, "/v3/kv/deleterange", json!({ "key": KEY })).await;
    for lines in [&mut ended, &mut open] {
        let put = lines.next().await.unwrap();
        let kv = json!({
            "key": KEY, "value": ONE, "version": "1", "create_revision": "2", "mod_revision": "2",
        });
        assert_eq!(put["result"]["events"], json!([{ "kv": kv }]));
        let deleted = json!([{ "type": "DELETE", "kv": { "key": KEY, "mod_revision": "3" } }]);
        assert_eq!(lines.next().await.unwrap()["result"]["events"], deleted);
    }
    more.send(Ok(Bytes::from_static(b"{\"cancel_request\":{}}"))).await.unwrap();
    assert_eq!(open.next().await.unwrap()["result"]["canceled"], json!(true));
    more.send(Ok(Bytes::from_static(b"{\"create_request\":7}"))).await.unwrap();
    let error = open.next().await.unwrap();
    assert_eq!((&error["error"]["grpc_code"], &error["error"]["http_code"]), (&json!(3), &json!(400)));
    assert_eq!(open.next().await, None);
}

#[tokio::test]
async fn a_stream_that_ends_at_once_is_empty() {
    let answer = send(&Api::new(), Method::POST, "/v3/watch", Body::from("{}{\"cancel_request\":{}}")).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(to_bytes(answer.into_body(), 1 << 20).await.expect("a body"), "");
}

#[tokio::test(start_paused = true)]
async fn leases_are_kept_alive() {
    let api = Api::new();
    ok(&api, "/v3/lease/grant", json!({ "TTL": 60, "ID": 77 })).await;
    let body = Body::from(json!({ "ID": 77 }).to_string() + &json!({ "ID": "5" }).to_string());
    let mut kept = Lines::of(&api, "/v3/lease/keepalive", body).await;
    let result = kept.next().await.unwrap()["result"].clone();
    assert_eq!((&result["ID"], &result["TTL"]), (&json!("77"), &json!("60")));
    let gone = kept.next().await.unwrap()["result"].clone();
    assert_eq!((&gone["ID"], gone.get("TTL")), (&json!("5"), None));
    assert_eq!(kept.next().await, None, "it ends with its body");
    // With the status 200, clients that read no further would take the lease for lost.
    api.store.be_leaderless(true);
    let (status, answer) = post(&api, "/v3/lease/keepalive", json!({ "ID": 77 })).await;
    let error = json!({
        "grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader", "http_status": "Service Unavailable",
    });
    assert_eq!((status, answer), (503, json!({ "error": error })));
}

#[tokio::test]
async fn locks_and_elections_are_served() {
    let api = Api::new();
    for id in [17, 18] {
        ok(&api, "/v3/lease/grant", json!({ "TTL": 60, "ID": id })).await;
    }
    let lock = |lease: i64| json!({ "name": "am9icw==", "lease": lease });
    let held = ok(&api, "/v3/lock/lock", lock(17)).await;
    assert_eq!(held["key"], json!("am9icy8xMQ=="));
    // A request that breaks off leaves the queue.
    let abandoned = timeout(Duration::from_millis(50), post(&api, "/v3/lock/lock", lock(18))).await;
    assert!(abandoned.is_err());
    ok(&api, "/v3/lock/unlock", json!({ "key": held["key"] })).await;
    let name = json!({ "name": "am9icw==" });
    let observing = Body::from_stream(stream::iter([Ok::<_, std::io::Error>(name.to_string())]));
    let campaign = json!({ "name": "am9icw==", "lease": "17", "value": ONE });
    // The answer begins with the first leader.
    let (mut observed, elected) =
        tokio::join!(Lines::of(&api, "/v3/election/observe", observing), ok(&api, "/v3/election/campaign", campaign));
    assert_eq!(ok(&api, "/v3/election/leader", name).await["kv"]["value"], json!(ONE));
    assert_eq!(observed.next().await.unwrap()["result"]["kv"]["lease"], json!("17"));
    let proclaim = json!({ "leader": elected["leader"], "value": "dHdv" });
    ok(&api, "/v3/election/proclaim", proclaim).await;
    assert_eq!(observed.next().await.unwrap()["result"]["kv"]["value"], json!("dHdv"));
    ok(&api, "/v3/election/resign", json!({ "leader": elected["leader"] })).await;
}

#[test]
fn calls_that_change_something_are_told_from_others() {
    for path in ["/v3/kv/put", "/v3alpha/kv/txn", "/v3beta/lock/lock", "/v3lockpb.Lock/Lock"] {
        assert!(crate::changes_something(path), "{path}");
    }
    for path in ["/v3/kv/range", "/v4/kv/put", "/v3/watch", "/etcdserverpb.KV/Range"] {
        assert!(!crate::changes_something(path), "{path}");
    }
}

#[tokio::test]
async fn who_asks_is_known_before_the_body_is_read() {
    let api = Api::new();
    let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    let request = HttpRequest::post("/v3/kv/put").header("token", "unknown").body(tonic::body::Body::new(never));
    let answered = api.routes().call(request.unwrap());
    let answer = timeout(PATIENCE, answered).await.expect("in time").expect("an answer").map(Body::new);
    assert_eq!(whole(answer).await.0, 401);
    // Who shows who he is has no token yet, and little to say.
    let long = json!({ "name": "x".repeat(100_000), "password": "y" });
    assert_eq!(post(&api, "/v3/auth/authenticate", long).await.0, 400);
}

#[tokio::test]
async fn a_body_that_is_refused_on_its_way_is_answered_with_the_reason() {
    let api = Api::new();
    for (path, begins) in [("/v3/kv/put", r#"{"key":"YQ==","#), ("/v3/watch", r#"{"create_request":"#)] {
        let parts = [Ok(Bytes::from(begins)), Err(tonic::Status::resource_exhausted("too many bytes"))];
        let (status, answer) =
            whole(send(&api, Method::POST, path, Body::from_stream(stream::iter(parts))).await).await;
        assert_eq!(status, 429, "{path}: {answer}");
        assert_eq!(answer["message"], "too many bytes", "{path}");
    }
}
