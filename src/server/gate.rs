//! Which requests of a browser are this node's own: the gate of the console and of etcd's JSON.
//!
//! * **Host.** Another site's name may be made to point at this node, and its page would then be of the same origin. So the host of each
//!   request must be an IP address, `localhost`, or a name that this node has by its configuration.
//! * **Site.** A browser names the origin of a request that may change something: it must be this node's. Content types that a form of
//!   another site can send without asking, `text/plain` and `multipart/form-data`, are refused.
//! * **Console.** A call must have the header [`MARK`] and the content type of JSON. For another site a browser first asks whether it may
//!   send that, and nothing here answers that it may.
//!
//! curl sends `application/x-www-form-urlencoded` unless it is told otherwise, so etcd's JSON accepts it: the origin tells curl from a
//! form.
//! gRPC over HTTP/2 does not pass here: no browser speaks it, and a page that sets its content type must ask before.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll},
};

use axum::response::{IntoResponse, Response};
use futures::future::{Either, Ready, ready};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version, header};
use tonic::{Code, body::Body};
use tower::Service;

/// The header of each call.
const MARK: HeaderName = HeaderName::from_static("x-lockkeeper-console");
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The content types that a form can send, and no client of etcd's JSON does.
const FORM_TYPES: [&[u8]; 2] = [b"text/plain", b"multipart/form-data"];
/// The first bytes of the content type of a gRPC call.
const GRPC: &[u8] = b"application/grpc";

/// The names of this node, in lower case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(BTreeSet<String>);

impl Hosts {
    /// Takes names, and addresses of the form host:port.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(|name| without_port(name).to_ascii_lowercase()).collect())
    }

    fn has(&self, host: &str) -> bool {
        // A host may be named in capitals, and with the dot of the root.
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        // An attacker can point a name at this node, but not an address.
        bare.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.0.contains(&name) && !name.is_empty()
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The answer to a request that another site's page may have sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ForeignRequest(StatusCode, String);

impl IntoResponse for ForeignRequest {
    fn into_response(self) -> Response {
        (self.0, format!("{}\n", self.1)).into_response()
    }
}

impl ForeignRequest {
    /// Writes it as an error of etcd's JSON.
    fn as_etcd_says_it(&self) -> http::Response<Body> {
        let Self(status, why) = self;
        let text = serde_json::json!({ "error": why, "message": why, "code": i32::from(Code::PermissionDenied) });

        let mut response = http::Response::new(Body::new(text.to_string()));
        *response.status_mut() = *status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// Refuses requests that do not come from the console's page.
pub(crate) fn check_page<B>(request: &Request<B>, hosts: &Hosts) -> Result<(), ForeignRequest> {
    let host = own_host(request, hosts)?;
    if request.method() != Method::POST {
        return Ok(());
    }

    if one(request.headers(), &MARK).is_none() {
        return Err(forbidden("this is for the console's page alone: the header x-lockkeeper-console is missing"));
    }

    check_origin(request.headers(), host)?;
    match one(request.headers(), &header::CONTENT_TYPE) {
        Some("application/json") => Ok(()),
        _ => Err(ForeignRequest(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the content type must be application/json".to_owned(),
        )),
    }
}

/// Refuses requests that a page of another site can have sent.
pub(crate) fn check_call<B>(request: &Request<B>, hosts: &Hosts) -> Result<(), ForeignRequest> {
    let host = own_host(request, hosts)?;
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return Ok(());
    }

    check_origin(request.headers(), host)?;
    let kind = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if FORM_TYPES.iter().any(|form| kind.len() >= form.len() && kind[..form.len()].eq_ignore_ascii_case(form)) {
        let why = "the content type is one of a form: send application/json".to_owned();
        return Err(ForeignRequest(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    Ok(())
}

/// Returns the host that the request names, if it is this node's.
fn own_host<'a, B>(request: &'a Request<B>, hosts: &Hosts) -> Result<&'a str, ForeignRequest> {
    let named = request.uri().authority().map(http::uri::Authority::as_str);
    let host = named.or_else(|| one(request.headers(), &header::HOST)).unwrap_or_default();
    if hosts.has(host) {
        return Ok(host);
    }

    let why = format!("the host {host:?} is not this node's: use its IP address, or add the name to http.hosts");
    Err(ForeignRequest(StatusCode::MISDIRECTED_REQUEST, why))
}

/// Refuses a request that the browser marks as sent by another site.
fn check_origin(headers: &HeaderMap, host: &str) -> Result<(), ForeignRequest> {
    let is_own_site = |site: &HeaderValue| site == "same-origin" || site == "none";
    if !headers.get_all(SITE).iter().all(is_own_site) {
        return Err(forbidden("the request comes from another site"));
    }

    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, named)| named.eq_ignore_ascii_case(host));
    if !headers.get_all(header::ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_own)) {
        return Err(forbidden("the request comes from another origin"));
    }
    Ok(())
}

fn forbidden(why: &str) -> ForeignRequest {
    ForeignRequest(StatusCode::FORBIDDEN, why.to_owned())
}

/// A service of etcd's API that refuses requests which a page of another site can have sent.
#[derive(Clone, Debug)]
pub(crate) struct Gated<S> {
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) service: S,
}

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<http::Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let kind = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let is_grpc = request.version() == Version::HTTP_2 && kind.starts_with(GRPC);
        let checked = if is_grpc { Ok(()) } else { check_call(&request, &self.hosts) };
        match checked {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(refused) => Either::Right(ready(Ok(refused.as_etcd_says_it()))),
        }
    }
}

/// Returns the value of a header that occurs once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_name_of_this_node() {
        let hosts = Hosts::new(["Node1.example:7101", "console.example", "", "[::1]:7101"]);
        for own in
            ["127.0.0.1:7301", "127.0.0.1", "[::1]:80", "[::1]", "localhost:1", "node1.EXAMPLE:9", "console.example."]
        {
            assert!(hosts.has(own), "{own}");
        }
        for other in [
            "",
            ":80",
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "node1.example.evil",
            "localhost.evil",
        ] {
            assert!(!hosts.has(other), "{other}");
        }
    }

    fn post(headers: &[(&str, &str)]) -> StatusCode {
        let own = [("host", "127.0.0.1:7301"), ("x-lockkeeper-console", "1"), ("content-type", "application/json")];
        let mut request = Request::builder().method("POST").uri("/console/api/lock");
        for (name, value) in own.iter().filter(|(name, _)| !headers.iter().any(|(other, _)| name == other)) {
            request = request.header(*name, *value);
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let checked = check_page(&request.body(()).expect("valid"), &Hosts::default());
        checked.map_or_else(|refused| refused.0, |()| StatusCode::OK)
    }

    #[test]
    fn a_call_is_of_this_page() {
        assert_eq!(post(&[]), StatusCode::OK);
        assert_eq!(post(&[("origin", "http://127.0.0.1:7301"), ("sec-fetch-site", "same-origin")]), StatusCode::OK);
        assert_eq!(post(&[("host", "evil.example")]), StatusCode::MISDIRECTED_REQUEST);
        assert_eq!(post(&[("x-lockkeeper-console", "")]), StatusCode::FORBIDDEN);
        for origin in ["http://evil.example", "http://127.0.0.1:7302", "null"] {
            assert_eq!(post(&[("origin", origin)]), StatusCode::FORBIDDEN, "{origin}");
        }
        assert_eq!(post(&[("sec-fetch-site", "cross-site")]), StatusCode::FORBIDDEN);
        assert_eq!(post(&[("sec-fetch-site", "same-site")]), StatusCode::FORBIDDEN);
        // What a form of another site can send.
        for kind in ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            assert_eq!(post(&[("content-type", kind)]), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}");
        }
    }

    fn call(method: &str, headers: &[(&str, &str)]) -> StatusCode {
        let mut request = Request::builder().method(method).uri("/v3/kv/put");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:2379");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let hosts = Hosts::new(["etcd.example:2379"]);
        let checked = check_call(&request.body(()).expect("valid"), &hosts);
        checked.map_or_else(|refused| refused.0, |()| StatusCode::OK)
    }

    #[test]
    fn a_call_of_etcds_json_is_of_no_other_site() {
        for headers in [
            &[][..],
            &[("content-type", "application/json")],
            // What curl says by itself.
            &[("content-type", "application/x-www-form-urlencoded")],
            &[("host", "etcd.example:2379")],
            &[("origin", "http://127.0.0.1:2379"), ("sec-fetch-site", "same-origin")],
        ] {
            assert_eq!(call("POST", headers), StatusCode::OK, "{headers:?}");
        }
        for headers in [
            &[("origin", "http://evil.example"), ("content-type", "application/x-www-form-urlencoded")][..],
            &[("origin", "null")],
            &[("sec-fetch-site", "cross-site")],
        ] {
            assert_eq!(call("POST", headers), StatusCode::FORBIDDEN, "{headers:?}");
            assert_eq!(call("OPTIONS", headers), StatusCode::FORBIDDEN, "{headers:?}");
        }
        for kind in ["text/plain", "Text/Plain;charset=UTF-8", "multipart/form-data; boundary=x"] {
            assert_eq!(call("POST", &[("content-type", kind)]), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}");
        }
        for method in ["POST", "GET"] {
            assert_eq!(call(method, &[("host", "evil.example:2379")]), StatusCode::MISDIRECTED_REQUEST);
        }
    }
}
