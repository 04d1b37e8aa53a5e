//! The files of the page. They are part of the program, so nothing is read from a disk or a network.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::LazyLock,
};

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

const SCRIPT: &str = "text/javascript; charset=utf-8";

struct Asset {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! assets {
    ($($name:literal: $content_type:expr),* $(,)?) => {
        [$(Asset { name: $name, content_type: $content_type, text: include_str!(concat!("assets/", $name)) }),*]
    };
}

/// All files. The page comes first.
static ASSETS: [Asset; 12] = assets! {
    "index.html": "text/html; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "main.js": SCRIPT,
    "net.js": SCRIPT,
    "dom.js": SCRIPT,
    "past.js": SCRIPT,
    "graphs.js": SCRIPT,
    "acts.js": SCRIPT,
    "locks.js": SCRIPT,
    "lock.js": SCRIPT,
    "sessions.js": SCRIPT,
    "feed.js": SCRIPT,
};

/// The hash of each file. A browser keeps a file for as long as its hash is the same.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ASSETS.iter().map(tag).collect());

fn tag(asset: &Asset) -> HeaderValue {
    // Its keys are fixed, so all nodes of one version give the same tag.
    let mut hasher = DefaultHasher::new();
    asset.text.hash(&mut hasher);
    HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish())).expect("digits and quotes are allowed")
}

/// The page.
pub(super) fn page(headers: &HeaderMap) -> Response {
    serve(0, headers)
}

/// A file of the page.
pub(super) fn file(name: &str, headers: &HeaderMap) -> Response {
    match ASSETS.iter().position(|asset| asset.name == name) {
        Some(at) => serve(at, headers),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn serve(at: usize, headers: &HeaderMap) -> Response {
    let asset = &ASSETS[at];
    let tag = &TAGS[at];
    let own = [
        (header::ETAG, tag.clone()),
        // Nodes may run different versions, so the browser asks each time whether the file has changed.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];

    if headers.get_all(header::IF_NONE_MATCH).iter().any(|known| known == tag) {
        return (StatusCode::NOT_MODIFIED, own).into_response();
    }

    let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type))];
    (own, content_type, asset.text).into_response()
}
