//! A collector of traces: keeps the spans that it is sent, or accepts connections and never answers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

/// A span that was received.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    /// In hexadecimal digits, as the others.
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty: it has none.
    pub(crate) parent: String,
    /// Nanoseconds since 1970.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// `service.name` and `service.instance.id` of the process.
    pub(crate) service: String,
    pub(crate) node: String,
    attributes: HashMap<String, String>,
}

impl Seen {
    pub(crate) fn attribute(&self, key: &str) -> Option<String> {
        self.attributes.get(key).cloned()
    }
}

pub(crate) struct Collector {
    pub(crate) endpoint: String,
    spans: Arc<Mutex<Vec<Seen>>>,
    server: JoinHandle<()>,
}

struct Keeper(Arc<Mutex<Vec<Seen>>>);

impl Collector {
    pub(crate) async fn start() -> Self {
        let (listener, endpoint) = listen().await;
        let spans = Arc::<Mutex<Vec<Seen>>>::default();
        let service = TraceServiceServer::new(Keeper(Arc::clone(&spans)));
        let serving = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { serving.await.expect("it serves") });
        Self { endpoint, spans, server }
    }

    pub(crate) async fn silent() -> Self {
        let (listener, endpoint) = listen().await;
        let server = tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                open.push(listener.accept().await.expect("a connection"));
            }
        });
        Self { endpoint, spans: Arc::default(), server }
    }

    /// An endpoint at which nobody listens.
    pub(crate) async fn gone() -> String {
        listen().await.1
    }

    pub(crate) fn spans(&self) -> Vec<Seen> {
        self.spans.lock().expect("no panic").clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
    (listener, endpoint)
}

#[tonic::async_trait]
impl TraceService for Keeper {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for process in request.into_inner().resource_spans {
            let of_process = texts(process.resource.unwrap_or_default().attributes);
            let of_process = |key: &str| of_process.get(key).cloned().unwrap_or_default();
            let spans = process.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let spans = spans.map(|span| Seen {
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                from: span.start_time_unix_nano,
                to: span.end_time_unix_nano,
                service: of_process("service.name"),
                node: of_process("service.instance.id"),
                attributes: texts(span.attributes),
            });
            self.0.lock().expect("no panic").extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn texts(attributes: Vec<KeyValue>) -> HashMap<String, String> {
    let text = |attribute: KeyValue| match attribute.value?.value? {
        Value::StringValue(text) => Some((attribute.key, text)),
        Value::IntValue(number) => Some((attribute.key, number.to_string())),
        other @ (Value::BoolValue(_)
        | Value::DoubleValue(_)
        | Value::ArrayValue(_)
        | Value::KvlistValue(_)
        | Value::BytesValue(_)
        | Value::StringValueStrindex(_)) => panic!("{}: {other:?}", attribute.key),
    };
    attributes.into_iter().filter_map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The answer to a GET by HTTP/1.1, with its headers.
pub(crate) async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}
