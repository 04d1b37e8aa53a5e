//! The files under `cluster-configs/` by which the program is deployed and watched: as far as they can be checked without the systems that
//! use them. A tool that is missing here, and cannot be installed into the build directory, skips its test, and says so.

mod disaster;
mod kubernetes;
mod logs;
mod read_pages;

use std::{
    collections::BTreeSet,
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lockkeeper::config::{Config, Overrides};
use serde_json::Value;

/// The highest exposure, of 10, that `systemd-analyze security` may find, times 10. It finds 1.4.
const EXPOSURE_MAX: &str = "20";
/// Clients, peers, HTTP, clients of etcd, of DynamoDB, of Redis and of ZooKeeper.
const PORTS: [&str; 7] = ["7101", "7201", "7301", "2379", "8000", "6379", "2181"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster-configs").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn skip(test: &str, why: &str) {
    crate::skipped::skipped(format_args!("{test}: {}", why.trim()));
}

fn shown(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// Runs it to its end; its output as an error if it cannot be started or fails.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() { Ok(shown(&output)) } else { Err(format!("{command:?}: {}", shown(&output))) }
}

/// A directory in the build directory, and its lock: other runs of the tests wait for it.
fn installation(name: &str) -> (PathBuf, File) {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).expect("created");
    let lock = File::create(directory.with_extension("lock")).expect("created");
    lock.lock().expect("locked");
    (directory, lock)
}

/// The names of metrics in a text: whatever begins as one and is not part of a longer word or of a path.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_/.".contains(c)));
    let names = words.filter(|word| word.starts_with("lockkeeper_") || word.starts_with("process_"));
    names.map(str::to_owned).collect()
}

/// The metrics of the operators' page on monitoring; tests/cluster/probes.rs checks that a node has just these.
fn metrics() -> BTreeSet<String> {
    let page = text("monitoring.md");
    let rows = page.lines().filter(|line| line.starts_with("| `lockkeeper_") || line.starts_with("| `process_"));
    rows.flat_map(|row| metrics_in(row.split('|').nth(1).unwrap_or_default())).collect()
}

/// A histogram has three series.
fn family(series: &str) -> &str {
    ["_bucket", "_count", "_sum"].iter().find_map(|end| series.strip_suffix(end)).unwrap_or(series)
}

/// The anchors of a Markdown page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings =
        page.lines().filter_map(|line| line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim()));
    let kept = |c: char| c.is_alphanumeric() || c == '-';
    headings.map(|heading| heading.to_lowercase().replace(' ', "-").chars().filter(|c| kept(*c)).collect()).collect()
}

#[test]
fn board_and_rules_name_metrics_that_there_are() {
    let known = metrics();
    assert!(known.len() > 40, "{known:?}");
    for name in ["monitoring/lockkeeper.json", "monitoring/alerts.yaml", "monitoring/alerts.test.yaml"] {
        let named = metrics_in(&text(name));
        assert!(named.len() > 15, "{name}: {named:?}");
        let unknown: Vec<_> = named.iter().filter(|series| !known.contains(family(series))).collect();
        assert!(unknown.is_empty(), "{name}: no such metrics: {unknown:?}");
    }
    // What a node measures is on the board.
    let board = metrics_in(&text("monitoring/lockkeeper.json"));
    let board: BTreeSet<_> = board.iter().map(|series| family(series)).collect();
    let missing: Vec<_> = ["lockkeeper_tokens_total", "lockkeeper_disk_size_bytes", "lockkeeper_log_last_index"]
        .into_iter()
        .chain(known.iter().map(String::as_str))
        .filter(|name| name.starts_with("lockkeeper_stage") || name.starts_with("lockkeeper_member"))
        .filter(|name| !board.contains(name))
        .collect();
    assert!(missing.is_empty(), "not on the board: {missing:?}");
}

#[test]
fn the_board_can_be_loaded() {
    let board: Value = serde_json::from_str(&text("monitoring/lockkeeper.json")).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is another panel's");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        assert!(place("x") + place("w") <= 24, "{title}: too wide");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} lies over another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|said| !said.is_empty()), "{title}: no description");
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            assert!(expression.contains("job=~\"$job\""), "{title} shows all clusters at once: {expression}");
        }
    }
}

#[test]
fn every_alert_leads_to_a_section_and_has_cases() {
    let rules = text("monitoring/alerts.yaml");
    let cases = text("monitoring/alerts.test.yaml");
    let mut alerts = 0;
    for rule in rules.split("- alert: ").skip(1) {
        let alert = rule.lines().next().expect("a name");
        let annotation = |name: &str| rule.lines().find_map(|line| line.trim().strip_prefix(name));

        let runbook = annotation("runbook_url: cluster-configs/").unwrap_or_else(|| panic!("{alert} names no section"));
        let (page, section) = runbook.split_once('#').unwrap_or_else(|| panic!("{alert} names no section of a page"));
        assert!(anchors(&text(page)).contains(section), "{alert}: {page} has no section {section}");
        let description = annotation("description: '").unwrap_or_else(|| panic!("{alert} has no description"));
        assert!(description.len() > 40, "{alert}: {description}");

        assert!(
            cases.contains(&format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels")),
            "{alert} never fires"
        );
        assert!(cases.contains(&format!("alertname: {alert}}}\n")), "{alert} is never quiet");
        alerts += 1;
    }
    assert!(alerts >= 20, "{alerts}");
}

/// `promtool`: from this system, or from Debian's package, unpacked into the build directory.
fn promtool() -> Result<PathBuf, String> {
    if run(Command::new("promtool").arg("--version")).is_ok() {
        return Ok("promtool".into());
    }
    let (directory, _lock) = installation("prometheus");
    let program = directory.join("usr/bin/promtool");
    if !program.exists() {
        run(Command::new("apt-get").args(["download", "prometheus"]).current_dir(&directory))?;
        let files = fs::read_dir(&directory).map_err(|error| error.to_string())?;
        let packages = files.filter_map(|file| Some(file.ok()?.path()));
        let package = packages.into_iter().find(|file| file.extension().is_some_and(|extension| extension == "deb"));
        run(Command::new("dpkg-deb").arg("-x").arg(package.ok_or("no package")?).arg(&directory))?;
    }
    Ok(program)
}

#[test]
#[ignore = "nightly: packages of others"]
fn prometheus_accepts_the_rules_and_their_cases() {
    let promtool = match promtool() {
        Ok(promtool) => promtool,
        Err(why) => return skip("prometheus_accepts_the_rules_and_their_cases", &why),
    };
    let checks = [
        &["check", "config", "prometheus.yaml"][..],
        &["check", "rules", "--lint-fatal", "alerts.yaml"],
        &["test", "rules", "alerts.test.yaml"],
    ];
    for check in checks {
        let said = run(Command::new(&promtool).args(check).current_dir(path("monitoring")));
        assert!(said.as_ref().is_ok_and(|said| said.contains("SUCCESS")), "{said:?}");
    }
}

#[test]
fn systemd_accepts_the_unit() {
    const TEST: &str = "systemd_accepts_the_unit";
    if let Err(why) = run(Command::new("systemd-analyze").arg("--version")) {
        return skip(TEST, &why);
    }
    // The program and the page need not be installed here.
    let place = tempfile::tempdir().expect("a directory");
    let unit = place.path().join("lockkeeper.service");
    let installed = text("systemd/lockkeeper.service");
    assert!(
        installed.contains("ExecStart=/usr/bin/lockkeeper serve --config /etc/lockkeeper/lockkeeper.toml\n"),
        "{installed}"
    );
    fs::write(&unit, installed.replace("=/usr/bin/lockkeeper ", &format!("={} ", env!("CARGO_BIN_EXE_lockkeeper"))))
        .expect("written");
    let said = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
    // It also reads the units of this system; what it says of them is theirs.
    let of_ours = said.clone().unwrap_or_else(|said| said);
    assert!(!of_ours.lines().any(|line| line.contains("lockkeeper.service")), "{said:?}");
    let security = ["security", "--offline=true", "--threshold", EXPOSURE_MAX];
    match run(Command::new("systemd-analyze").args(security).arg(&unit)) {
        Err(old) if old.contains("unrecognized option") => skip(TEST, &old),
        Err(exposed) => panic!("{exposed}"),
        Ok(said) => assert!(said.contains("exposure level"), "{said}"),
    }
}

/// Where the package's configuration has a setting to be chosen, without the `#`.
fn chosen(configuration: &str) -> String {
    let line = |line: &str| {
        let rest = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
        format!("{}\n", rest.unwrap_or(line))
    };
    configuration.lines().map(line).collect()
}

#[test]
fn configurations_can_be_used_by_each_node() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("lockkeeper.toml");
    let configurations = [
        ("systemd", chosen(&text("systemd/lockkeeper.toml"))),
        ("docker", text("docker/lockkeeper.toml")),
        ("kubernetes", kubernetes::configuration()),
    ];
    for (name, configuration) in configurations {
        fs::write(&file, configuration).expect("written");
        for node_id in 1..=3 {
            let is_systemd = name == "systemd";
            let certs = (!is_systemd).then(|| place.path().to_owned());
            // On Kubernetes the founders are told so by their sets.
            let bootstrap = (name == "kubernetes").then_some(true);
            let overrides = Overrides { node_id: Some(node_id), certs, bootstrap, ..Overrides::default() };

            let config =
                Config::load(&file, overrides).unwrap_or_else(|error| panic!("{name}, node {node_id}: {error}"));
            assert_eq!(config.warnings(), Vec::<String>::new(), "{name}");
            assert!(config.tls.is_some() && config.bootstrap, "{name}");
            assert_eq!(config.members.len(), 3, "{name}");
            let listens = [&config.client_listen, &config.peer_listen, &config.http.listen];
            for (listen, port) in listens.into_iter().zip(PORTS) {
                assert!(listen.ends_with(&format!(":{port}")), "{name}: {listen}");
            }
            if is_systemd {
                let Config { etcd, dynamodb, redis, zookeeper, .. } = &config;
                let listens = [&etcd.listen, &dynamodb.listen, &redis.listen, &zookeeper.listen];
                assert_eq!(listens, ["0.0.0.0:2379", "0.0.0.0:8000", "0.0.0.0:6379", "0.0.0.0:2181"]);
            }
        }
    }
}

/// Three hosts on which somebody installs the package and starts the unit, without a look at the configuration.
#[test]
fn the_package_founds_no_cluster_by_accident() {
    let variables = text("systemd/lockkeeper.env");
    let set: Vec<_> = variables.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(set, [""; 0], "the package sets a variable");

    let as_installed = Config::load(&path("systemd/lockkeeper.toml"), Overrides::default());
    let refused = as_installed.expect_err("it names no cluster").to_string();
    for key in ["cluster_id: is missing", "node_id: is missing", "members: is missing"] {
        assert!(refused.contains(key), "{refused}");
    }
    assert!(text("systemd/lockkeeper.toml").parse::<toml::Table>().expect("TOML").get("bootstrap").is_none());
}

/// A code after which each further start ends in the same way is no reason for a supervisor to try. The codes are those of the program.
#[test]
fn systemd_starts_no_node_again_that_can_never_start() {
    let unit = text("systemd/lockkeeper.service");
    let prevented = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).expect("a list");
    assert_eq!(prevented, "2 23 24 25");
    assert!(unit.contains("\nRestart=on-failure\n"), "{unit}");
}

#[test]
fn ports_and_paths_agree() {
    let image = text("docker/Dockerfile");
    assert!(image.contains(&format!("\nEXPOSE {}\n", PORTS.join(" "))), "{image}");

    let compose = text("docker/compose.yaml");
    for node in 1..=3 {
        assert!(
            compose.contains(&format!("\n  node{node}:\n"))
                && compose.contains(&format!("LOCKKEEPER_NODE_ID: \"{node}\""))
        );
        assert!(compose.contains(&format!("data{node}:/var/lib/lockkeeper")), "node {node}");
    }
    // Peers find each other on the network of the composition.
    for port in PORTS.into_iter().filter(|port| *port != "7201") {
        assert_eq!(compose.matches(&format!(":{port}\"")).count(), 3, "compose publishes {port} for each node");
    }

    let node = text("kubernetes/node.yaml");
    for file in [&image, &compose, &node] {
        assert!(file.contains("/etc/lockkeeper/lockkeeper.toml") && file.contains("/var/lib/lockkeeper"), "{file}");
        assert!(file.contains("NOT RUN by the tests"), "{file}");
    }
    let unit = text("systemd/lockkeeper.service");
    for port in PORTS {
        assert!(unit.contains(port), "the unit does not name port {port}");
    }

    let manifest: toml::Table = include_str!("../../Cargo.toml").parse().expect("TOML");
    let version = manifest["workspace"]["package"]["rust-version"].as_str().expect("a version");
    assert!(
        image.contains(&format!("/rust:{version}-")),
        "the image is built by another compiler than Cargo.toml asks for"
    );
}

#[test]
#[ignore = "nightly: root"]
fn the_package_installs_and_purges() {
    const TEST: &str = "the_package_installs_and_purges";
    if let Err(why) = run(Command::new("dpkg-deb").arg("--version")) {
        return skip(TEST, &why);
    }
    let place = tempfile::tempdir().expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(root.join("scripts/deb.sh"));
    script.arg(place.path()).env("LOCKKEEPER_BIN", env!("CARGO_BIN_EXE_lockkeeper")).env("LOCKKEEPER_DEB_LEVEL", "1");
    let said = script.output().expect("the script runs");
    assert!(said.status.success(), "{}", shown(&said));
    let package = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    assert!(package.is_file(), "{}", shown(&said));

    // With more than one user id, or a namespace has no user `lockkeeper`: as root.
    let scratch = tempfile::tempdir().expect("a directory");
    let mut install = Command::new("unshare");
    install.args(["--mount", "sh"]).arg(root.join("tests/deployment/package.sh")).arg(scratch.path()).arg(&package);
    let said = match install.output() {
        Ok(said) => said,
        Err(error) => return skip(TEST, &format!("unshare: {error}")),
    };
    let shown = shown(&said);
    if said.status.code() == Some(77) || shown.starts_with("unshare:") {
        return skip(TEST, &shown);
    }
    assert!(said.status.success() && shown.contains("\npurged\n"), "{shown}");
}
