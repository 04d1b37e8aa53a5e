//! Each problem of a configuration, and its message.

use super::*;

const GOOD: &str = r#"
cluster_id = "test"
node_id = 1
data_dir = "data"

[[members]]
node_id = 1
client_address = "127.0.0.1:7101"
peer_address = "127.0.0.1:7201"

[[members]]
node_id = 2
client_address = "127.0.0.1:7102"
peer_address = "127.0.0.1:7202"

[[members]]
node_id = 3
client_address = "127.0.0.1:7103"
peer_address = "127.0.0.1:7203"
"#;

fn load(text: &str, overrides: Overrides) -> Result<Config, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.toml");
    fs::write(&file, text).unwrap();
    Config::load(&file, overrides)
}

fn good() -> Config {
    load(GOOD, Overrides::default()).unwrap()
}

/// The problems of the good configuration after these replacements.
fn problems(replacements: &[(&str, &str)]) -> Vec<String> {
    let text = replacements.iter().fold(GOOD.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in {text}");
        text.replacen(from, to, 1)
    });
    load(&text, Overrides::default()).unwrap_err().problems
}

/// The problems of the good configuration with this first line.
fn problems_with(line: &str) -> Vec<String> {
    problems(&[("\n", &format!("{line}\n"))])
}

/// The problems of the good configuration with these keys of `[raft]`.
fn problems_with_raft(keys: &str) -> Vec<String> {
    load(&format!("{GOOD}\n[raft]\n{keys}\n"), Overrides::default()).unwrap_err().problems
}

#[test]
fn what_a_file_leaves_out_is_by_default() {
    let config = good();
    assert_eq!((config.client_listen.as_str(), config.peer_listen.as_str()), ("127.0.0.1:7101", "127.0.0.1:7201"));
    assert_eq!(config.raft, RaftConfig::default());
    assert_eq!((config.log.as_str(), config.bootstrap), ("info,openraft=error", false));
    assert_eq!(config.warnings(), Vec::<String>::new());
}

#[test]
fn limits_of_bytes_leave_room_for_one_acquire_and_for_one_session() {
    let loaded = |keys: &str| load(&format!("{GOOD}\n[limits]\n{keys}\n"), Overrides::default());
    let limits = loaded("table_bytes = 2097152\nsession_bytes = 2097152").unwrap().limits;
    assert_eq!(limits, LimitsConfig { table_bytes: 2_097_152, session_bytes: 2_097_152 });
    assert_eq!(good().limits, LimitsConfig { table_bytes: 1 << 30, session_bytes: 1 << 26 });
    assert_eq!(
        loaded("session_bytes = 2097151").unwrap_err().problems,
        ["limits.session_bytes: 2097151 is below 2097152, which one acquire may take: raise it"]
    );
    assert_eq!(
        loaded("table_bytes = 4194304").unwrap_err().problems,
        ["limits.session_bytes: 67108864 is above limits.table_bytes (4194304): lower it, or raise that"]
    );
}

#[test]
fn what_is_written_is_read_again() {
    let text = toml::to_string(&good()).unwrap();
    assert_eq!(load(&text, Overrides::default()).unwrap(), good());
}

#[test]
fn overrides_win() {
    let overrides = Overrides {
        cluster_id: Some("other".into()),
        node_id: Some(2),
        data_dir: Some("elsewhere".into()),
        client_listen: None,
        peer_listen: Some("0.0.0.0:7202".into()),
        bootstrap: Some(true),
        insecure: Some(true),
        log: Some("debug".into()),
        ..Overrides::default()
    };
    let config = load(GOOD, overrides).unwrap();
    let expected = Config {
        cluster_id: "other".into(),
        node_id: 2,
        data_dir: "elsewhere".into(),
        // One file serves all nodes: the node id selects the addresses.
        client_listen: "127.0.0.1:7102".into(),
        peer_listen: "0.0.0.0:7202".into(),
        bootstrap: true,
        insecure: true,
        log: "debug".into(),
        ..good()
    };
    assert_eq!(config, expected);
}

#[test]
fn the_environment_names_a_collector_only_where_the_file_has_none() {
    let overrides = || Overrides { traces_endpoint: Some("http://there:4317".into()), ..Overrides::default() };
    assert_eq!(load(GOOD, overrides()).unwrap().traces.endpoint, "http://there:4317");
    let own = format!("traces.endpoint = \"http://here:4317\"\n{GOOD}");
    assert_eq!(load(&own, overrides()).unwrap().traces.endpoint, "http://here:4317");
    for wrong in ["traces.endpoint = \"there:4317\"", "traces.sample_ratio = 1.5", "traces.sample_ratio = nan"] {
        let problems = load(&format!("{wrong}\n{GOOD}"), Overrides::default()).unwrap_err().problems;
        assert!(problems.len() == 1 && problems[0].starts_with("traces."), "{problems:?}");
    }
}

#[test]
fn an_override_may_mend_the_file() {
    let without_id = GOOD.replacen("node_id = 1\n", "", 1);
    assert_eq!(load(&without_id, Overrides { node_id: Some(3), ..Overrides::default() }).unwrap().node_id, 3);
}

#[test]
fn a_problem_says_that_it_is_not_the_files() {
    let error = load(GOOD, Overrides { node_id: Some(9), ..Overrides::default() }).unwrap_err();
    assert_eq!(
        error.problems,
        ["node_id (as set by a flag or the environment): 9 is not among the members (1, 2, 3): \
          correct it, or add a [[members]] for this node"]
    );
}

#[test]
fn an_error_names_the_file_and_lists_all_problems() {
    let error =
        load("log = \"info\"\n[raft]\nheartbeat_ms = 0\nsnapshot_entries = 0\n", Overrides::default()).unwrap_err();
    let expected = format!(
        "the configuration {} cannot be used\n\
         - cluster_id: is missing or empty: name the cluster, the same on all its nodes\n\
         - node_id: is missing or 0: give this node the id that its member has\n\
         - data_dir: is missing or empty: name a directory that only this node uses\n\
         - members: is missing: add a [[members]] for each node, this one too\n\
         - raft.heartbeat_ms: is 0: give it 1 or more, 75 if in doubt\n\
         - raft.snapshot_entries: is 0: give it 1 or more, 10000 if in doubt",
        error.file.display()
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_file_that_cannot_be_read() {
    let error = Config::load(Path::new("/nowhere/node.toml"), Overrides::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the configuration /nowhere/node.toml cannot be used\n\
         - cannot read it: No such file or directory (os error 2): name a file that this user can read"
    );
}

#[test]
fn all_unknown_keys_and_wrong_types_with_their_lines() {
    let text = GOOD.replace("data_dir = \"data\"", "data_dir = 5\nnode = 4").replacen(
        "peer_address = \"127.0.0.1:7202\"",
        "peer = \"127.0.0.1:7202\"",
        1,
    );
    let text = format!("{text}\n[raft]\nheartbeat = 75\n");
    let problems = load(&text, Overrides::default()).unwrap_err().problems;
    let has = |place: &str, what: &str| {
        assert!(problems.iter().any(|p| p.contains(place) && p.contains(what)), "{place}: {what}: {problems:#?}");
    };
    has("at line 4, column 12", "invalid type: integer `5`, expected path string");
    has("at line 5, column 1", "unknown field `node`, expected one of `cluster_id`");
    has("at line 15, column 1", "unknown field `peer`, expected one of `node_id`");
    has("at line 23, column 1", "unknown field `heartbeat`, expected one of `heartbeat_ms`");
    // Without its unknown key, the member lacks the intended key.
    has("at line 12, column 1", "missing field `peer_address`");
    assert_eq!(problems.len(), 5, "{problems:#?}");
}

#[test]
fn all_mistakes_of_syntax_with_their_lines() {
    let problems = problems(&[("node_id = 1", "node_id = "), ("data_dir = \"data\"", "data_dir = \"data")]);
    assert!(problems.iter().any(|p| p.contains("at line 3")), "{problems:#?}");
    assert!(problems.iter().any(|p| p.contains("at line 4")), "{problems:#?}");
}

#[test]
fn a_cluster_id_that_is_none() {
    for bad in ["Test", "a_b", "ä", &"a".repeat(65)] {
        let expected = format!("cluster_id: {bad:?} is not 1 to 64 of a-z, 0-9 and -: choose another");
        assert_eq!(problems(&[("\"test\"", &format!("{bad:?}"))]), [expected]);
    }
}

#[test]
fn this_node_is_not_among_the_members() {
    assert_eq!(
        problems(&[("node_id = 1", "node_id = 4")]),
        ["node_id: 4 is not among the members (1, 2, 3): correct it, or add a [[members]] for this node"]
    );
}

#[test]
fn members_with_the_same_or_no_id() {
    assert_eq!(
        problems(&[("node_id = 3", "node_id = 2")]),
        ["members[2].node_id: 2 is members[1].node_id already: give each node its own"]
    );
    assert_eq!(problems(&[("node_id = 3", "node_id = 0")]), ["members[2].node_id: is 0: ids start at 1"]);
}

#[test]
fn members_with_the_same_address() {
    assert_eq!(
        problems(&[("127.0.0.1:7203", "127.0.0.1:7101")]),
        ["members[2].peer_address: \"127.0.0.1:7101\" is members[0].client_address already: \
          give each its own host or port"]
    );
}

#[test]
fn addresses_at_which_nobody_is() {
    let third = |address: &str| {
        let [problem] = problems(&[("127.0.0.1:7103", address)]).try_into().unwrap();
        problem.strip_prefix(&format!("members[2].client_address: {address:?} ")).unwrap().to_owned()
    };
    assert_eq!(third("localhost"), "is not host:port: there is no colon: add the port");
    assert_eq!(third("localhost:"), "is not host:port: the port is not a number up to 65535: correct it");
    assert_eq!(third("localhost:65536"), "is not host:port: the port is not a number up to 65535: correct it");
    assert_eq!(third(":7103"), "is not host:port: there is no host: add it, 0.0.0.0 to listen on all");
    assert_eq!(third("::1:7103"), "is not host:port: an IPv6 address needs brackets: write, say, [::1]:7101");
    assert_eq!(third("http://a:7103"), "is not host:port: it is a URL: leave out the scheme and the path");
    assert_eq!(third("localhost:0"), "has port 0, at which nobody can be reached: name the port");
    assert_eq!(
        third("0.0.0.0:7103"),
        "can be listened on, but not be reached: name the host, and set *_listen to this"
    );
}

#[test]
fn listeners_that_cannot_be() {
    assert_eq!(
        problems_with("client_listen = \"7101\""),
        ["client_listen: \"7101\" is not host:port: there is no colon: add the port"]
    );
    assert_eq!(
        problems_with("peer_listen = \"127.0.0.1:7101\""),
        ["peer_listen: \"127.0.0.1:7101\" is client_listen already: listen for peers on another port"]
    );
}

#[test]
fn timing_that_cannot_work() {
    assert_eq!(
        problems_with_raft("heartbeat_ms = 101"),
        [
            "raft.heartbeat_ms: 101 is more than a third of raft.election_timeout_ms_min (300), so that two late heartbeats \
          cost an election: lower it, or raise that"
        ]
    );
    assert_eq!(
        problems_with_raft("election_timeout_ms_min = 600"),
        [
            "raft.election_timeout_ms_min: 600 is not below raft.election_timeout_ms_max (600), so that all nodes would stand \
          for election at once: raise the latter, best to the double"
        ]
    );
    assert_eq!(
        problems_with_raft("election_timeout_ms_max = 60001"),
        [
            "raft.election_timeout_ms_max: 60001 exceeds 60000, and the cluster would stop for so long after each loss of the leader: lower it"
        ]
    );
    assert!(load(&format!("{GOOD}\n[raft]\nheartbeat_ms = 100\n"), Overrides::default()).is_ok());
}

#[test]
fn a_log_filter_that_is_none() {
    let [problem] = problems_with("log = \"a=b=c\"").try_into().unwrap();
    assert!(problem.starts_with("log: \"a=b=c\" is not a filter: "), "{problem}");
    assert!(problem.ends_with(": write, say, \"info\""), "{problem}");
}

#[test]
fn an_even_number_of_members_is_allowed_with_a_warning() {
    let mut config = good();
    config.members.pop();
    assert_eq!(config.warnings(), ["members: 2 nodes outlive the loss of 0, as 1 would: an odd number costs less"]);
}

#[test]
fn listening_elsewhere_than_the_members_say_is_allowed_with_a_warning() {
    let tls = Some(TlsConfig { ca: "ca.pem".into(), certificate: "node.pem".into(), key: "node-key.pem".into() });
    let listening = |listen: &str| Config { client_listen: listen.into(), tls: tls.clone(), ..good() }.warnings();
    assert_eq!(
        listening("127.0.0.1:8101"),
        ["client_listen: listens on 127.0.0.1:8101, while the members say 127.0.0.1:7101: fine behind NAT only"]
    );
    assert_eq!(listening("10.0.0.1:7101").len(), 1);
    assert!(listening("0.0.0.0:7101").is_empty());
    assert!(listening("[::]:7101").is_empty());
}

#[test]
fn a_directory_of_certificates_has_the_nodes_own() {
    let overrides = Overrides { certs: Some("certs".into()), node_id: Some(2), ..Overrides::default() };
    let tls = load(GOOD, overrides).unwrap().tls.unwrap();
    let files = [&tls.ca, &tls.certificate, &tls.key].map(|file| file.display().to_string());
    assert_eq!(files, ["certs/ca.pem", "certs/node-2.pem", "certs/node-2-key.pem"]);
}

#[test]
fn without_tls_a_node_stays_on_its_machine() {
    let text = |listen: &str| GOOD.replacen("node_id = 1\n", &format!("node_id = 1\npeer_listen = {listen:?}\n"), 1);
    for listen in ["127.0.0.1:0", "127.8.0.1:7201", "[::1]:7201", "localhost:7201"] {
        assert!(load(&text(listen), Overrides::default()).is_ok(), "{listen}");
    }
    for listen in ["0.0.0.0:7201", "[::]:7201", "10.0.0.1:7201", "localhost.example:7201", "127.0.0.1.example:7201"] {
        let error = load(&text(listen), Overrides::default()).unwrap_err();
        assert!(error.problems[0].starts_with("peer_listen: other machines can reach"), "{error}");
        let config = load(&text(listen), Overrides { insecure: Some(true), ..Overrides::default() }).unwrap();
        assert!(config.warnings()[0].starts_with("insecure: there is no TLS"), "{:?}", config.warnings());
    }
    let tls = "\n[tls]\nca = \"ca.pem\"\ncertificate = \"node.pem\"\nkey = \"node-key.pem\"\n";
    let config = load(&(text("0.0.0.0:7201") + tls), Overrides::default()).unwrap();
    assert_eq!(config.warnings().iter().filter(|warning| warning.starts_with("insecure")).count(), 0);
}

#[test]
fn an_earlier_cluster_is_another_one_and_has_an_end() {
    let tls = "\n[tls]\nca = \"ca.pem\"\ncertificate = \"node.pem\"\nkey = \"node-key.pem\"\n";
    let with = |keys: &str| load(&format!("{GOOD}{tls}\n[earlier_cluster]\n{keys}\n"), Overrides::default());
    let until = |until: &str| with(&format!("cluster_id = \"before\"\nuntil = {until}"));
    // As `date --date 2024-02-29T12:30:15Z +%s` says.
    let ms = |text: &str| until(text).unwrap().earlier_cluster.unwrap().until_ms();
    assert_eq!(ms("2024-02-29T12:30:15Z"), Some(1_709_209_815_000));
    assert_eq!(ms("2024-02-29T12:30:15+01:00"), Some(1_709_206_215_000));
    assert_eq!(ms("2000-03-01"), Some(951_868_800_000));
    assert_eq!(ms("1999-12-31T23:59:59.9Z"), Some(946_684_799_000));

    let warning = "earlier_cluster: is over since 2024-02-29: clients with certificates of cluster before are refused; \
                   take it out of the configuration";
    assert_eq!(until("2024-02-29").unwrap().warnings(), [warning]);
    for (config, says) in [
        (
            until("2024-02-29T12:00:00"),
            "earlier_cluster.until: 2024-02-29T12:00:00 has no date, or a time without an offset: give a date",
        ),
        (until("12:00:00"), "earlier_cluster.until: 12:00:00 has no date"),
        (
            until("2999-01-01"),
            "earlier_cluster.until: 2999-01-01 is more than 366 days from now: choose an earlier end",
        ),
        (until("\"tomorrow\""), "invalid type"),
        (with("cluster_id = \"before\""), "missing field `until`"),
        (with("cluster_id = \"test\"\nuntil = 2024-02-29"), "earlier_cluster.cluster_id: \"test\" is this cluster"),
        (with("cluster_id = \"B/c\"\nuntil = 2024-02-29"), "\"B/c\" is not 1 to 64 of a-z, 0-9 and -"),
    ] {
        let problems = config.unwrap_err().problems;
        assert!(problems[0].contains(says), "{says}: {problems:?}");
    }
    let plain = format!("{GOOD}\n[earlier_cluster]\ncluster_id = \"before\"\nuntil = 2024-02-29\n");
    let problems = load(&plain, Overrides::default()).unwrap_err().problems;
    assert_eq!(
        problems,
        ["earlier_cluster: there is no [tls], so no certificate is asked for: leave it out, or configure [tls]"]
    );
}
