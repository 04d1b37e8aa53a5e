//! Which requests of a browser are this page's own.
//!
//! * **Host.** Another site's name may be made to point at this node, and its page would then be of the same origin. So the host of each
//!   request must be an IP address, `localhost`, or a name that this node has by its configuration.
//! * **Site.** A call must have the header [`MARK`] and the content type of JSON. For another site a browser first asks whether it may send
//!   such a request, and nothing here answers that it may. Where the browser says where a request comes from, that is checked too.

use std::{collections::BTreeSet, net::IpAddr};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    response::{IntoResponse, Response},
};

/// The header of each call.
pub(super) const MARK: HeaderName = HeaderName::from_static("x-lockkeeper-console");
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names of this node, in lower case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(BTreeSet<String>);

impl Hosts {
    /// From names, and from addresses of the form host:port.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(|name| without_port(name).to_ascii_lowercase()).collect())
    }

    fn has(&self, host: &str) -> bool {
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
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

/// A request that is not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, format!("{}\n", self.1)).into_response()
    }
}

/// Refuses requests that are not of this page.
pub(super) fn check(request: &Request, hosts: &Hosts) -> Result<(), Refused> {
    let host = one(request.headers(), &header::HOST).unwrap_or_default();
    if !hosts.has(host) {
        let why = format!(
            "the host {host:?} is not this node's: open the page by its IP address, or add the name to http.hosts"
        );
        return Err(Refused(StatusCode::MISDIRECTED_REQUEST, why));
    }
    if request.method() != Method::POST {
        return Ok(());
    }
    let forbidden = |why: &str| Err(Refused(StatusCode::FORBIDDEN, why.to_owned()));
    if one(request.headers(), &MARK).is_none() {
        return forbidden("this is for the console's page alone: the header x-lockkeeper-console is missing");
    }
    if one(request.headers(), &SITE).is_some_and(|site| site != "same-origin" && site != "none") {
        return forbidden("the request comes from another site");
    }
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host));
    if !request.headers().get_all(header::ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_own)) {
        return forbidden("the request comes from another origin");
    }
    match one(request.headers(), &header::CONTENT_TYPE) {
        Some("application/json") => Ok(()),
        _ => Err(Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json".to_owned())),
    }
}

/// The value of a header that is there once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

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
        let checked = check(&request.body(Body::empty()).expect("valid"), &Hosts::default());
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
}
