//! The gateway as a client of HTTP/1.1 sees it: JSON in, and JSON out, one line for each message of a stream.

use std::io;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// An answer whose head was read. The request is over when it is dropped.
pub(crate) struct Answer {
    stream: BufReader<TcpStream>,
    status: u16,
    /// Of the body. `None`: it comes in chunks.
    length: Option<usize>,
    /// What was read of the body, and is in no line yet.
    read: Vec<u8>,
}

impl Answer {
    /// Sends a message to a path below `/v3/`.
    pub(crate) async fn of(address: &str, path: &str, message: &impl Serialize) -> io::Result<Self> {
        let body = serde_json::to_string(message)?;
        let head = format!("POST /v3/{path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut stream = BufReader::new(TcpStream::connect(address).await?);
        stream.write_all((head + &body).as_bytes()).await?;
        let mut answer = Self { stream, status: 0, length: None, read: Vec::new() };
        let first = answer.header().await?;
        answer.status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        loop {
            let header = answer.header().await?.to_ascii_lowercase();
            if header.is_empty() {
                return Ok(answer);
            }
            if let Some(length) = header.strip_prefix("content-length: ") {
                answer.length = Some(length.parse().map_err(|_| io::ErrorKind::InvalidData)?);
            }
        }
    }

    async fn header(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Reads a part of the body; `false`: it is over.
    async fn more(&mut self) -> io::Result<bool> {
        let length = match self.length.replace(0) {
            Some(length) => length,
            None => {
                self.length = None;
                let size = self.header().await?;
                usize::from_str_radix(&size, 16).map_err(|_| io::ErrorKind::InvalidData)?
            }
        };
        let before = self.read.len();
        self.read.resize(before + length, 0);
        self.stream.read_exact(&mut self.read[before..]).await?;
        if self.length.is_none() {
            self.header().await?;
        }
        Ok(length > 0)
    }

    /// The only message of the answer; the text of its error.
    pub(crate) async fn message<T: DeserializeOwned>(mut self) -> Result<T, String> {
        let read = async {
            while self.more().await? {}
            Ok::<Value, io::Error>(serde_json::from_slice(&self.read)?)
        };
        let value = read.await.map_err(|error| error.to_string())?;
        if self.status != 200 {
            return Err(value["message"].as_str().unwrap_or_default().to_owned());
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    /// The next message of a stream; the text of its error, or that it ended.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        let end = loop {
            match self.read.iter().position(|byte| *byte == b'\n') {
                Some(end) => break end + 1,
                None => {
                    let is_more = self.more().await.map_err(|error| error.to_string())?;
                    is_more.then_some(()).ok_or("the stream ended")?;
                }
            }
        };
        let line: Vec<u8> = self.read.drain(..end).collect();
        let mut line: Value = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
        if line["error"] != json!(null) {
            return Err(line["error"]["message"].as_str().unwrap_or_default().to_owned());
        }
        serde_json::from_value(line["result"].take()).map_err(|error| error.to_string())
    }
}
