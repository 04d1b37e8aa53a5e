//! Files and arguments that operators write, names, and certificates.

use std::fmt::{Debug, Display};

use lockkeeper::{
    cli::fuzzing::VALUES,
    config::{Config, Overrides},
    machine::{Address, Identity, SessionId},
    raft::identity::{AcknowledgedEntry, ClusterId, Incarnation, Start},
    transport::tls::Subject,
};
use lockkeeper_checker::history::History;
use lockkeeper_dynamodb::Number;
use lockkeeper_policy::{BearerToken, Policy, RequestSubject, Right, TokenHash, Tokens};
use rustls::pki_types::CertificateDer;

use super::{says, with_file};

/// Texts, as inputs.
fn texts<const N: usize>(texts: [&str; N]) -> Vec<Vec<u8>> {
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub(super) fn tokens_seeds() -> Vec<Vec<u8>> {
    let identity = Identity::new("shop-1").expect("valid");
    let entry = |byte| BearerToken::from_random([byte; 32]).entry(&identity);
    let both = format!("# all\n{}{}", entry(1), entry(2));
    texts([&entry(1), &both, "", "[[token]]\nidentity = \"a\"\nsha256 = \"12\"\n"])
}

pub(super) fn tokens(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Tokens::parse(text) {
        Ok(tokens) => assert_eq!(tokens.identity(&TokenHash::from_token("lkp_guess")), None),
        Err(error) => {
            says(&error);
            assert!((1..=1 + text.matches('\n').count()).contains(&error.line), "line {}: {error}", error.line);
            // What was there instead of a hash may be the token.
            let shows = text.split('"').filter(|part| part.len() >= 40 && error.problem.contains(part)).count();
            assert!(shows == 0 || error.problem.contains("identity"), "{error}");
        }
    }
}

pub(super) fn policy_seeds() -> Vec<Vec<u8>> {
    texts([
        "[[rule]]\nwho = [\"shop-*\"]\nmay = [\"acquire\"]\nprefix = \"seats/\"\n",
        "[[rule]]\nwho = [\"*\", \"anonymous\", \"ops\"]\nmay = [\"read\", \"watch\", \"force-release\", \"administer\"]\n",
        "[limits.default]\nsessions = 5\nlocks = 100\nbytes = 1000\nwaiters = 3\ncalls_per_second = 7\nconnections = 2\n",
        "[limits.shop-1]\nsessions = 5\n[[rule]]\nwho = [\"a\"]\nmay = []\n",
    ])
}

pub(super) fn policy(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Policy::parse(text) {
        Ok(policy) => {
            let shop = Identity::new("shop-1").expect("valid");
            for who in [None, Some(&shop)] {
                let under = policy.decide(who, Right::Acquire, RequestSubject::Under("seats/")).is_ok();
                match policy.decide(who, Right::Acquire, RequestSubject::Name("seats/12")) {
                    Ok(_) => {}
                    Err(denied) => {
                        says(&denied);
                        assert!(!under, "what is allowed under a prefix is allowed for each of its names");
                    }
                }
            }
        }
        Err(error) => {
            says(&error);
            assert!((1..=1 + text.matches('\n').count()).contains(&error.line), "line {}: {error}", error.line);
        }
    }
}

pub(super) fn config_seeds() -> Vec<Vec<u8>> {
    texts([
        "cluster_id = \"blue\"\nnode_id = 1\ndata_dir = \"d\"\nbootstrap = true\n\n[[members]]\nnode_id = 1\n\
         client_address = \"127.0.0.1:7101\"\npeer_address = \"127.0.0.1:7201\"\n",
        "node_id = 4\ndata_dir = \"d\"\njoin = [\"http://127.0.0.1:7101/\"]\nclient_listen = \"127.0.0.1:7104\"\n\
         peer_listen = \"127.0.0.1:7204\"\nlog = \"info,openraft=warn\"\ninsecure = true\n",
        "cluster_id = 5\nwhat = true\n[raft]\nheartbeat_ms = 75\nelection_timeout_ms_min = 300\n\
         election_timeout_ms_max = \"600\"\n[limits]\ntable_bytes = -1\n[[members]]\nnode_id = 0\n",
        "[tls]\nca = \"ca.pem\"\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n[auth]\npolicy = \"p.toml\"\ntokens = \"t.toml\"\n\
         [disk]\nreserve_bytes = 0\n[audit]\ndirectory = \"a\"\nfile_bytes = 1\nfiles_kept = 1\n[dynamodb]\nlisten = \"x\"\n",
    ])
}

pub(super) fn config(bytes: &[u8]) {
    with_file(bytes, |path| match Config::load(path, Overrides::default()) {
        Ok(config) => {
            assert!(config.this_member().is_some());
            config.warnings().iter().for_each(says);
        }
        Err(error) => {
            assert!(!error.problems.is_empty(), "refused without a problem");
            error.problems.iter().for_each(says);
            says(&error);
        }
    });
}

/// A text is refused, or is what its value shows.
fn reads<T>(text: &str, is_canonical: bool)
where
    T: std::str::FromStr<Err: Display> + Display + Debug + PartialEq,
{
    match text.parse::<T>() {
        Ok(value) => {
            let shown = value.to_string();
            assert_eq!(shown.parse::<T>().ok().as_ref(), Some(&value), "{text:?} is shown as {shown:?}");
            assert!(!is_canonical || shown == text, "{text:?} and {shown:?} are read as the same value");
        }
        Err(error) => says(&error),
    }
}

pub(super) fn value_seeds() -> Vec<Vec<u8>> {
    texts([
        "127.0.0.1:7101",
        "[2001:db8::7]:65535",
        "[::ffff:10.0.0.7]:1",
        "fedcba98765432100123456789abcdef",
        "0123456789abcdef",
        "7.5.39",
        "18446744073709551615.0.1",
        "shop-1",
        "lockkeeper://shop-1/node/3",
        "lockkeeper://c/client/ann@host.example",
        "\"fedcba98765432100123456789abcdef\"",
    ])
}

/// Names and numbers that peers, certificates, messages and audit files have as texts. Those with one form only have no other.
pub(super) fn value(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    reads::<Address>(text, false);
    reads::<Identity>(text, true);
    // Hexadecimal digits of either case.
    reads::<SessionId>(text, false);
    reads::<Start>(text, false);
    reads::<Incarnation>(text, false);
    reads::<lockkeeper_audit::Hash>(text, false);
    reads::<AcknowledgedEntry>(text, true);
    reads::<ClusterId>(text, true);
    reads::<Subject>(text, true);
    reads::<Right>(text, true);
    if let Ok(session) = serde_json::from_slice::<lockkeeper_audit::Session>(bytes) {
        assert_eq!(format!("\"{session}\""), text.trim(), "an audit file has one form of each session");
    }
}

pub(super) fn argument_seeds() -> Vec<Vec<u8>> {
    texts([
        "1h30m",
        "500ms",
        "10",
        "99999999999999999999y",
        "0",
        "18446744073709551616",
        "10.0.0.0/8",
        "2001:db8::/32",
        "[2001:db8::7]:5123",
        "1=10.0.0.1:7201,10.0.0.1:7101",
        "blue-1",
        "max",
        "1e9",
        "pause,kill-all,network",
    ])
}

pub(super) fn argument(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    for read in VALUES {
        let _ = read(text).map_err(|error| says(&error));
    }
}

pub(super) fn history_seeds() -> Vec<Vec<u8>> {
    let meta =
        r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1,"handover_bound_ms":500}}"#;
    let story = concat!(
        r#"{"time_ns":5,"process":"ann","type":"invoke","f":"open","value":{"session":"s1","ttl_ms":1000}}"#,
        "\n",
        r#"{"time_ns":9,"process":"ann","type":"ok","f":"open"}"#,
        "\n",
        r#"{"time_ns":11,"process":"ann","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"s1","request":1}}"#,
        "\n",
        r#"{"time_ns":15,"process":"ann","type":"ok","f":"acquire","value":{"token":1}}"#,
        "\n",
        r#"{"time_ns":16,"process":"ann","type":"invoke","f":"release","lock":"jobs","value":{"session":"s1","token":1}}"#,
        "\n",
    );
    texts([&format!("{meta}\n{story}"), meta, "# nothing\n"])
}

pub(super) fn history(bytes: &[u8]) {
    match History::read(bytes) {
        Ok(history) => {
            let lines: Option<Vec<String>> = history.events.iter().map(|(line, _)| history.line(*line)).collect();
            let text = lines.expect("every event that was read can be written").join("\n");
            let again = History::read(text.as_bytes()).expect("what a writer formats is read");
            let events = |history: &History| history.events.iter().map(|(_, event)| event.clone()).collect::<Vec<_>>();
            assert_eq!(events(&again), events(&history));
        }
        Err(error) => says(&error),
    }
}

pub(super) fn certificate_seeds() -> Vec<Vec<u8>> {
    // The corpus has those of a cluster, without their keys: to make them takes random numbers.
    Vec::new()
}

pub(super) fn certificate(bytes: &[u8]) {
    match Subject::from_certificate(&CertificateDer::from(bytes)) {
        Ok(subject) => assert_eq!(subject.to_string().parse().as_ref(), Ok(&subject)),
        Err(error) => says(&error),
    }
}

/// A number of DynamoDB's has one form; its text is read as the same number.
pub(super) fn number(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    reads::<Number>(text, false);
}
