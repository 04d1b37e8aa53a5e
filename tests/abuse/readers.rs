//! Clients that send requests and do not read the answers.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use http::Request;
use lockkeeper::{
    client::{NewData, Session},
    proto::v1::{
        GetRequest, KeepAliveRequest, ListRequest, PipelineRequest, WatchRequest, pipeline_request::What as Asked,
    },
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    frames::framed,
    sized,
    stage::{Descriptors, Stage},
};
use crate::support::{LONG, long_session};

/// The client reads nothing for this time: longer than the server's write deadline of 10 s.
const IDLE: Duration = Duration::from_secs(12);
/// Locks to read, with 16 KiB of data each.
const LOCKS: usize = 320;
const DATA: [u8; 16 * 1024] = [7; 16 * 1024];

const WATCH: &str = "/lockkeeper.v1.Locks/Watch";
const LIST: &str = "/lockkeeper.v1.Locks/List";
const PIPELINE: &str = "/lockkeeper.v1.Locks/Pipeline";

/// The window of HTTP/2 for each stream, unless another one is agreed on.
const WINDOW: u32 = 65_535;

/// A connection with this flow control window for each stream and a large one for the connection.
pub(super) async fn connect(stage: &Stage, window: u32) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(stage.leader().await).await.expect("it serves");
    let mut settings = h2::client::Builder::new();
    settings.initial_window_size(window).initial_connection_window_size(1 << 30);
    let (client, connection) = settings.handshake(stream).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    client
}

/// A call whose answer was not read yet.
pub(super) struct Unread {
    path: &'static str,
    answer: h2::RecvStream,
    /// Keeps the stream of requests open.
    requests: h2::SendStream<Bytes>,
}

impl Unread {
    async fn ask(
        client: &h2::client::SendRequest<Bytes>,
        path: &'static str,
        messages: impl IntoIterator<Item = Bytes>,
        more: bool,
    ) -> Self {
        let request = Request::post(format!("http://node{path}")).header("te", "trailers");
        let request = request.header("content-type", "application/grpc").body(()).expect("a request");
        let mut client = timeout(LONG, client.clone().ready()).await.expect("in time").expect("it is open");
        let (answer, mut requests) = client.send_request(request, false).expect("a stream");
        for message in messages {
            requests.send_data(message, !more).expect("it is open");
        }
        let answer = timeout(LONG, answer).await.expect("in time").expect("the connection stays").into_body();
        Self { path, answer, requests }
    }

    /// A pipeline with so many requests for a lock, in frames as large as may be: HTTP/2 ends a connection with too many small ones that
    /// wait.
    pub(super) async fn gets(client: &h2::client::SendRequest<Bytes>, name: &str, requests: u64) -> Self {
        let all: Vec<_> = (1..=requests).flat_map(|number| get(number, name.to_owned())).collect();
        Self::ask(client, PIPELINE, [Bytes::from(all)], true).await
    }

    /// Reads the answer to its end: the status code and the message.
    async fn read(mut self) -> (String, String) {
        while let Some(data) = timeout(LONG, self.answer.data()).await.expect("in time") {
            let data = data.expect("the connection stays");
            self.answer.flow_control().release_capacity(data.len()).expect("it came");
        }
        let trailers = timeout(LONG, self.answer.trailers()).await.expect("in time").expect("the connection stays");
        let trailers = trailers.unwrap_or_default();
        let text = |name| trailers.get(name).map(|value| value.to_str().unwrap_or_default().replace("%20", " "));
        (
            text("grpc-status").unwrap_or_default(),
            format!("{}: {}", self.path, text("grpc-message").unwrap_or_default()),
        )
    }
}

/// A request of a pipeline for a lock.
fn get(number: u64, name: String) -> Bytes {
    let get = GetRequest { name, ..GetRequest::default() };
    framed(&PipelineRequest { number, what: Some(Asked::Get(get)) })
}

/// A pipeline whose client sends each request when it has read the answer to the one before.
pub(super) async fn read_one_by_one(stage: &Stage, requests: u64) {
    let client = connect(stage, WINDOW).await;
    let mut stream = Unread::ask(&client, PIPELINE, [], true).await;
    for number in 1..=requests {
        stream.requests.send_data(get(number, "none".to_owned()), false).expect("it is open");
        let data = timeout(LONG, stream.answer.data()).await.expect("in time").expect("an answer").expect("no error");
        stream.answer.flow_control().release_capacity(data.len()).expect("it came");
    }
}

async fn fill(session: &Session) {
    let names: Vec<_> = (0..LOCKS).map(|number| format!("unread/{number}")).collect();
    let grants = join_all(names.iter().map(|name| session.acquire(name).into_future())).await;
    let updates = names.iter().zip(grants).map(async |(name, held)| {
        let held = held.expect("free");
        held.update(name, NewData::Kept(&DATA)).await.expect("it is held");
        held.release().await.expect("it was held");
    });
    join_all(updates).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_answers_are_not_read_are_ended() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let session = long_session(&stage.client).await;
    fill(&session).await;
    stage.remember_memory();
    stage.survives("unread answers", async |stage: &Stage| read_nothing(stage, &session).await).await;
}

async fn read_nothing(stage: &Stage, session: &Session) {
    let (watches, lists) = (sized(100, 1_000), sized(100, 2_000));
    let client = connect(stage, WINDOW).await;
    let watch = framed(&WatchRequest::default());
    let mut unread = Vec::new();
    for _ in 0..watches {
        unread.push(Unread::ask(&client, WATCH, [watch.clone()], false).await);
    }
    let list = framed(&ListRequest { prefix: "unread/".to_owned(), ..ListRequest::default() });
    let client = connect(stage, WINDOW).await;
    for _ in 0..lists {
        unread.push(Unread::ask(&client, LIST, [list.clone()], false).await);
    }
    let client = connect(stage, WINDOW).await;
    let gets = (1..=2_000).map(|number| get(number, format!("unread/{}", number % LOCKS as u64)));
    unread.push(Unread::ask(&client, PIPELINE, gets, true).await);
    let renewals =
        (1..=20_000).map(|sequence| framed(&KeepAliveRequest { session_id: session.id().to_string(), sequence }));
    unread.push(Unread::ask(&client, "/lockkeeper.v1.Sessions/KeepAlive", renewals, true).await);

    sleep(IDLE).await;
    let mut ends = BTreeMap::<_, usize>::new();
    for answer in unread {
        let path = answer.path;
        let (code, message) = answer.read().await;
        assert!(code == "0" || message.contains("read answers"), "{code} {message}");
        *ends.entry((path, code)).or_default() += 1;
    }
    println!("answers that were not read: {ends:?}");
    let ended = |path| ends.get(&(path, "8".to_owned())).copied().unwrap_or(0);
    assert_eq!(ended(WATCH), watches);
    assert!(ended(LIST) > 0);
    assert_eq!(ended(PIPELINE), 1);
}
