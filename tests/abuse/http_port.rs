//! The HTTP port: clients that do not read, and half requests. Probes, metrics and the console must be answered meanwhile.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    arrivals::say,
    sized,
    stage::{Descriptors, Stage, address},
};
use crate::support::{LONG, leader};

/// More connections than the port has slots.
const SMALL_CROWD: usize = 600;
const FULL_CROWD: usize = 3_000;
/// Requests on each connection: their answers are more than both sockets take.
const PIPELINED: usize = 400;

async fn port(stage: &Stage) -> SocketAddr {
    let leader = leader(&stage.cluster).await;
    let url = stage.cluster.node(leader).http_endpoint().expect("it is on");
    address(url.split_once("//").expect("a URL").1)
}

/// The whole answer to a GET.
async fn get(port: SocketAddr, path: &str) -> String {
    let asked = async {
        let mut stream = TcpStream::connect(port).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: {port}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it is open");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it is answered");
        answer
    };
    timeout(LONG, asked).await.unwrap_or_else(|_| panic!("{path} is not answered"))
}

async fn all_is_answered(port: SocketAddr) {
    for path in ["/livez", "/readyz", "/metrics", "/"] {
        let answer = get(port, path).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    }
}

async fn crowd_that_says(words: &str, what: &str) {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| options.http = true).await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        let _crowd = say(port, sized(SMALL_CROWD, FULL_CROWD), words.as_bytes()).await;
        for _ in 0..3 {
            all_is_answered(port).await;
        }
    };
    stage.survives(what, abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_metrics_keep_no_probe_out() {
    let request = "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    crowd_that_says(&request.repeat(PIPELINED), "unread metrics").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_requests_keep_no_probe_out() {
    crowd_that_says("GET /livez HTTP/1.1\r\nhost:", "half requests at the HTTP port").await;
}
