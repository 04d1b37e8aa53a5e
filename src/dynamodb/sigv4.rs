//! Signatures of requests: AWS Signature Version 4.
//!
//! The access key is the caller's identity. If secrets are configured, the signature must be that key's, over exactly this request.
//! Otherwise the identity is what the client claims. Source: "Create a signed AWS API request" in the IAM user guide.
//!
//! The check has two steps. [`claim`] checks the headers before anything is kept for the client, and [`IdentityClaim::prove`] checks the
//! signature, which covers the body. The signature must cover the headers that decide what the request does: its host, its time and its
//! operation ([`SIGNED`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use hmac::{Hmac, Mac as _};
use http::request::Parts;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::error::{Error, ErrorType, Result};
use lockkeeper_planted::Planted;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The headers that a signature must cover, with their names in messages.
const SIGNED: [(&str, &str); 3] = [("host", "Host"), ("x-amz-date", "X-Amz-Date"), ("x-amz-target", "X-Amz-Target")];
/// Maximum number of headers that a signature covers.
const SIGNED_HEADERS_MAX: usize = 100;
/// The service that a signature is for, and the last part of its scope.
const SERVICE: &str = "dynamodb";
const TERMINATOR: &str = "aws4_request";
/// Maximum difference between the clocks of a client and of this node.
const SKEW_MS_MAX: u64 = 15 * 60 * 1000;

/// The secrets of access keys. Its `Debug` shows none of them.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, String>);

impl Secrets {
    /// Takes pairs of an access key and its secret.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} of them)", self.0.len())
    }
}

/// The parts of an `Authorization` header.
pub(crate) struct Authorization<'a> {
    access_key: &'a str,
    /// The scope, `date/region/service/aws4_request`.
    scope: &'a str,
    signed_headers: Vec<&'a str>,
    signature: &'a str,
}

/// The identity that a request's headers claim.
pub(crate) enum IdentityClaim<'a> {
    /// The claim of a request whose signature is not checked.
    Believed(Option<String>),
    /// The claim of a request whose access key is known, and whose signature covers the necessary headers.
    Signed { authorization: Authorization<'a>, time: &'a str, secret: &'a str },
}

/// Reads the identity that a request claims. With `secrets`, the access key must be one of them, and the time of the signature close to
/// `now_ms`.
pub(crate) fn claim<'a>(parts: &'a Parts, secrets: Option<&'a Secrets>, now_ms: u64) -> Result<IdentityClaim<'a>> {
    let header = parts.headers.get(http::header::AUTHORIZATION);
    let Some(secrets) = secrets else {
        let authorization =
            header.and_then(|header| header.to_str().ok()).and_then(|text| Authorization::read(text).ok());
        return Ok(IdentityClaim::Believed(authorization.map(|authorization| authorization.access_key.to_owned())));
    };

    let missing = || Error::new(ErrorType::MissingAuthenticationToken, "Request is missing Authentication Token");
    let text = header.ok_or_else(missing)?.to_str().map_err(|_| missing())?;
    let authorization = Authorization::read(text)?;

    let time = authorization.check(parts, now_ms)?;
    let Some(secret) = secrets.0.get(authorization.access_key) else {
        return Err(Error::new(
            ErrorType::UnrecognizedClient,
            "The security token included in the request is invalid.",
        ));
    };
    Ok(IdentityClaim::Signed { authorization, time, secret })
}

impl IdentityClaim<'_> {
    /// Returns the access key of a request with this body. Fails if the signature is not the key's.
    pub(crate) fn prove(self, parts: &Parts, body: &[u8]) -> Result<Option<String>> {
        match self {
            Self::Believed(access_key) => Ok(access_key),
            Self::Signed { authorization, time, secret } => {
                authorization.verify(parts, body, time, secret)?;
                Ok(Some(authorization.access_key.to_owned()))
            }
        }
    }
}

fn incomplete(message: impl Into<String>) -> Error {
    Error::new(ErrorType::IncompleteSignature, message)
}

fn mismatch(message: impl Into<String>) -> Error {
    Error::new(ErrorType::InvalidSignature, message)
}

impl<'a> Authorization<'a> {
    fn read(text: &'a str) -> Result<Self> {
        let (algorithm, parameters) = text.trim().split_once(' ').unwrap_or((text, ""));
        if algorithm != ALGORITHM {
            return Err(incomplete(format!("Unsupported AWS 'algorithm': '{algorithm}' (only {ALGORITHM} for now).")));
        }

        let parameter = |name: &str| {
            let mut parameters = parameters.split(',').filter_map(|pair| pair.trim().split_once('='));
            let found = parameters.find(|(key, _)| *key == name).map(|(_, value)| value);
            found.ok_or_else(|| incomplete(format!("Authorization header requires '{name}' parameter.")))
        };

        let credential = parameter("Credential")?.trim_end_matches('/');
        // An access key may contain slashes, but the four elements of the scope do not.
        let scope_at = credential.rmatch_indices('/').nth(3).map(|(at, _)| at);
        let scope_at = scope_at.filter(|at| *at > 0).ok_or_else(|| {
            incomplete(format!(
                "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, got \
                 '{credential}'"
            ))
        })?;

        Ok(Self {
            access_key: &credential[..scope_at],
            scope: &credential[scope_at + 1..],
            signed_headers: parameter("SignedHeaders")?.split(';').collect(),
            signature: parameter("Signature")?,
        })
    }

    /// Checks everything except the signature itself. Returns the time at which it was made.
    fn check<'b>(&self, parts: &'b Parts, now_ms: u64) -> Result<&'b str> {
        let time = parts.headers.get("x-amz-date").and_then(|value| value.to_str().ok()).ok_or_else(|| {
            incomplete("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
        })?;
        let signed_ms = basic_time_ms(time)
            .ok_or_else(|| incomplete(format!("Date must be in ISO-8601 'basic format'. Got '{time}'.")))?;
        if signed_ms.abs_diff(now_ms) > SKEW_MS_MAX {
            return Err(mismatch(format!("Signature expired: {time} is more than 15 min. from this server's clock")));
        }

        // Take each header once: the signed text has all values of it.
        let signed: BTreeSet<&str> = self.signed_headers.iter().copied().collect();
        if signed.len() > SIGNED_HEADERS_MAX || signed.len() < self.signed_headers.len() {
            return Err(incomplete(format!(
                "'SignedHeaders' must name each header once, and no more than {SIGNED_HEADERS_MAX} of them."
            )));
        }
        let is_asked_for = |name| name != "x-amz-target" || !Planted::SignatureWithoutTarget.is_on();
        let mut asked_for = SIGNED.into_iter().filter(|(name, _)| is_asked_for(*name));
        if let Some((_, shown)) = asked_for.find(|(name, _)| !signed.contains(name)) {
            return Err(mismatch(format!("'{shown}' must be a 'SignedHeader' in the AWS Authorization.")));
        }

        let scope: Vec<&str> = self.scope.split('/').collect();
        let [date, _region, service, terminator] = scope[..] else {
            return Err(mismatch("Credential should be scoped to a date, a region, a service and 'aws4_request'."));
        };
        if terminator != TERMINATOR {
            return Err(mismatch(format!(
                "Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{terminator}'."
            )));
        }
        if service != SERVICE {
            return Err(mismatch(format!("Credential should be scoped to correct service: '{SERVICE}'.")));
        }
        if time.split('T').next() != Some(date) {
            return Err(mismatch(format!(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '{date}' != '{time}'."
            )));
        }
        Ok(time)
    }

    fn verify(&self, parts: &Parts, body: &[u8], time: &str, secret: &str) -> Result<()> {
        let key =
            self.scope.split('/').fold(format!("AWS4{secret}").into_bytes(), |key, part| hmac(&key, part.as_bytes()));

        // SDKs sign the path as it is sent, or without its empty segments.
        let path = parts.uri.path();
        let plain = format!("/{}", path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"));
        let plain = if path.ends_with('/') && plain.len() > 1 { plain + "/" } else { plain };

        // Both are compared whole, in constant time: how long a refusal takes tells nothing of the right signature.
        let matches = [path, &plain].map(|path| {
            let request = self.canonical_request(parts, path, body);
            let text = format!("{ALGORITHM}\n{time}\n{}\n{}", self.scope, hex(&Sha256::digest(request)));
            hex(&hmac(&key, text.as_bytes())).as_bytes().ct_eq(self.signature.as_bytes())
        });

        if bool::from(matches[0] | matches[1]) {
            return Ok(());
        }
        Err(mismatch(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access \
             Key and signing method. Consult the service documentation for details.",
        ))
    }

    fn canonical_request(&self, parts: &Parts, path: &str, body: &[u8]) -> String {
        let mut query: Vec<_> =
            parts.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).collect();
        query.sort_unstable();

        let headers = self.signed_headers.iter().map(|name| {
            let values = parts.headers.get_all(*name).iter();
            let values: Vec<_> = values
                .map(|value| String::from_utf8_lossy(value.as_bytes()).split_whitespace().collect::<Vec<_>>().join(" "))
                .collect();
            format!("{name}:{}\n", values.join(","))
        });

        format!(
            "{}\n{path}\n{}\n{}\n{}\n{}",
            parts.method,
            query.join("&"),
            headers.collect::<String>(),
            self.signed_headers.join(";"),
            hex(&Sha256::digest(body))
        )
    }
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is one");
    hmac.update(message);
    hmac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the milliseconds since 1970 of a time like `20130524T000000Z`.
fn basic_time_ms(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range)?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
    };
    if text.len() != 16 || text.as_bytes()[8] != b'T' || text.as_bytes()[15] != b'Z' {
        return None;
    }

    let year = number(0..4)?;
    let month = number(4..6)?;
    let day = number(6..8)?;
    let hour = number(9..11)?;
    let minute = number(11..13)?;
    let second = number(13..15)?;

    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }

    // These are days of the civil calendar, whose year begins in March: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted / 400;
    let of_era = shifted % 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    const NOW_MS: u64 = 1_440_938_160_000;

    fn secrets() -> Secrets {
        Secrets::new([("AKIDEXAMPLE".to_owned(), SECRET.to_owned())])
    }

    /// The request of the published test suite `get-vanilla`, whose signature is known.
    fn vanilla() -> Parts {
        let request =
            Request::get("/").header("host", "example.amazonaws.com").header("x-amz-date", "20150830T123600Z");
        request.body(()).unwrap().into_parts().0
    }

    const TIME: &str = "20150830T123600Z";
    const SIGNATURE: &str = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";

    #[test]
    fn a_published_signature_is_right_and_any_other_is_not() {
        assert_eq!(basic_time_ms(TIME), Some(NOW_MS));
        let verify = |signature: &str, body: &[u8]| {
            let signed_headers = vec!["host", "x-amz-date"];
            let scope = "20150830/us-east-1/service/aws4_request";
            let authorization = Authorization { access_key: "AKIDEXAMPLE", scope, signed_headers, signature };
            authorization.verify(&vanilla(), body, TIME, SECRET).map_err(|error| error.kind)
        };
        assert_eq!(verify(SIGNATURE, b""), Ok(()));
        assert_eq!(verify(&SIGNATURE.replace('5', "6"), b""), Err(ErrorType::InvalidSignature));
        assert_eq!(verify(SIGNATURE, b"x"), Err(ErrorType::InvalidSignature), "another body");
        assert_eq!(verify("", b""), Err(ErrorType::InvalidSignature));
    }

    const SCOPE: &str = "20150830/us-east-1/dynamodb/aws4_request";
    const HEADERS: &str = "content-type;host;x-amz-date;x-amz-target";

    /// A request of DynamoDB's, rightly signed over these headers with this scope.
    fn signed(scope: &str, signed_headers: &str, target: &str) -> Parts {
        let request = |authorization: &str| {
            let request = Request::post("/").header("host", "node").header("x-amz-date", TIME);
            let request = request.header("content-type", "application/x-amz-json-1.0").header("x-amz-target", target);
            request.header("authorization", authorization).body(()).unwrap().into_parts().0
        };
        let unsigned = request("?");
        let signed_headers_list = signed_headers.split(';').collect();
        let authorization =
            Authorization { access_key: "AKIDEXAMPLE", scope, signed_headers: signed_headers_list, signature: "" };
        let canonical = authorization.canonical_request(&unsigned, "/", b"{}");
        let text = format!("{ALGORITHM}\n{TIME}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| hmac(&key, part.as_bytes()));
        let signature = hex(&hmac(&key, text.as_bytes()));
        request(&format!(
            "{ALGORITHM} Credential=AKIDEXAMPLE/{scope}, SignedHeaders={signed_headers}, Signature={signature}"
        ))
    }

    fn identity(parts: &Parts, now_ms: u64) -> Result<Option<String>, (ErrorType, String)> {
        let secrets = secrets();
        let proven = claim(parts, Some(&secrets), now_ms).and_then(|claim| claim.prove(parts, b"{}"));
        proven.map_err(|error| (error.kind, error.message))
    }

    #[test]
    fn a_signature_covers_host_date_and_target_and_its_scope_is_that_of_the_request() {
        let get = "DynamoDB_20120810.GetItem";
        assert_eq!(identity(&signed(SCOPE, HEADERS, get), NOW_MS), Ok(Some("AKIDEXAMPLE".to_owned())));
        let (kind, _) = identity(&signed(SCOPE, HEADERS, get), NOW_MS + SKEW_MS_MAX + 1).unwrap_err();
        assert_eq!(kind, ErrorType::InvalidSignature, "replayed later");
        let repeated = ["host;"; 101].concat() + HEADERS;
        for (scope, headers, problem) in [
            (SCOPE, "host;x-amz-date", "'X-Amz-Target' must be a 'SignedHeader'"),
            (SCOPE, "host;x-amz-target", "'X-Amz-Date' must be a 'SignedHeader'"),
            (SCOPE, "x-amz-date;x-amz-target", "'Host' must be a 'SignedHeader'"),
            (SCOPE, &*repeated, "must name each header once"),
            ("20150830/us-east-1/s3/aws4_request", HEADERS, "scoped to correct service: 'dynamodb'"),
            ("20150829/us-east-1/dynamodb/aws4_request", HEADERS, "Date in Credential scope does not match"),
            ("2015/us-east-1/dynamodb/aws4_request", HEADERS, "Date in Credential scope does not match"),
            ("/us-east-1/dynamodb/aws4_request", HEADERS, "Date in Credential scope does not match"),
            ("20150830/us-east-1/dynamodb/aws3_request", HEADERS, "valid terminator: 'aws4_request'"),
        ] {
            let (_, message) = identity(&signed(scope, headers, get), NOW_MS).expect_err(problem);
            assert!(message.contains(problem), "{scope} {headers}: {message}");
        }
        // The operation of a signed request cannot be changed on its way.
        let mut parts = signed(SCOPE, HEADERS, get);
        parts.headers.insert("x-amz-target", "DynamoDB_20120810.DeleteTable".parse().unwrap());
        assert_eq!(identity(&parts, NOW_MS).map_err(|(kind, _)| kind), Err(ErrorType::InvalidSignature));
    }

    #[test]
    fn without_secrets_the_key_is_only_read() {
        let believed = |parts: &Parts| claim(parts, None, 0).and_then(|claim| claim.prove(parts, b""));
        let parts = signed(SCOPE, HEADERS, "x");
        assert_eq!(believed(&parts), Ok(Some("AKIDEXAMPLE".to_owned())));
        let bare = Request::get("/").body(()).unwrap().into_parts().0;
        assert_eq!(believed(&bare), Ok(None));
        assert_eq!(identity(&bare, NOW_MS).map_err(|(kind, _)| kind), Err(ErrorType::MissingAuthenticationToken));
        let other = Secrets::new([("OTHER".to_owned(), SECRET.to_owned())]);
        let unknown = claim(&parts, Some(&other), NOW_MS).map(drop);
        assert_eq!(unknown.map_err(|error| error.kind), Err(ErrorType::UnrecognizedClient));
    }

    proptest::proptest! {
        #[test]
        fn no_header_panics(text in "(AWS4-HMAC-SHA256 )?(Credential=[a/=, ]*)?.*", time in "[0-9TZ]{16}|.*") {
            let _ = Authorization::read(&text);
            let _ = basic_time_ms(&time);
        }
    }
}
