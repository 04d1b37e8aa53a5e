//! The objects for Kubernetes, and the script that makes those of each node: `cluster-configs/kubernetes`.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use lockkeeper::config::{Config, Overrides};
use tempfile::TempDir;

use super::{PORTS, installation, path, run, skip, text};
use crate::support::program;

/// What a port is called in the objects.
const NAMES: [&str; 7] = ["clients", "peers", "http", "etcd", "dynamodb", "redis", "zookeeper"];

/// The configuration inside the objects.
pub(super) fn configuration() -> String {
    let objects = text("kubernetes/lockkeeper.yaml");
    let block = objects.split("lockkeeper.toml: |\n").nth(1).and_then(|rest| rest.split("\n---").next());
    let lines = block.expect("a configuration").lines();
    lines.map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect()
}

fn host(node: u64) -> String {
    format!("lockkeeper-{node}-0.lockkeeper-nodes.lockkeeper.svc.cluster.local")
}

/// The script, in a place of its own: `kubectl` writes what it is told into the file `told`, and `lockkeeper` is the program, but for what
/// asks a cluster: that is written there too.
struct Operator {
    place: TempDir,
}

impl Operator {
    fn new() -> Self {
        let operator = Self { place: tempfile::tempdir().expect("a directory") };
        fs::create_dir(operator.at("bin")).expect("made");
        operator.stand_in(
            "kubectl",
            "echo \"kubectl $*\" >>told\ncase \"$*\" in\napply*) cat >>applied ;;\n*dry-run*) echo \"# a secret: $*\" ;;\nesac\n",
        );
        let lockkeeper =
            "case \"$1 $2\" in\n'member list') cat members ;;\n'member replace') echo \"lockkeeper $*\" >>told ;;\n";
        operator.stand_in("lockkeeper", &format!("{lockkeeper}*) exec {} \"$@\" ;;\nesac\n", program().display()));
        operator.has_members(&[1, 2, 3]);
        operator
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn stand_in(&self, name: &str, script: &str) {
        let file = self.at("bin").join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}")).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its owner may");
    }

    fn has_members(&self, ids: &[u64]) {
        let member =
            |id: &u64| format!("  {{\n    \"node_id\": {id},\n    \"client_address\": \"{}:7101\",\n  }}", host(*id));
        let members: Vec<_> = ids.iter().map(member).collect();
        fs::write(self.at("members"), format!("[\n{}\n]\n", members.join(",\n"))).expect("written");
    }

    fn node(&self, arguments: &[&str]) -> Result<String, String> {
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut script = Command::new(super::path("kubernetes/node.sh"));
        run(script.args(arguments).current_dir(self.place.path()).env("PATH", path))
    }

    fn told(&self) -> Vec<String> {
        let told = fs::read_to_string(self.at("told")).expect("something was told");
        fs::remove_file(self.at("told")).expect("it is there");
        told.lines().map(str::to_owned).collect()
    }
}

/// The variables of the container in a set.
fn variables(set: &str) -> BTreeMap<String, String> {
    let entries = set.lines().filter_map(|line| line.trim().strip_prefix("- {name: ")?.split_once(", value: "));
    let unquoted = |text: &str| text.trim_end_matches('}').trim_matches('"').to_owned();
    entries.map(|(name, value)| (name.to_owned(), unquoted(value))).collect()
}

#[test]
fn ports_and_probes_agree() {
    let objects = text("kubernetes/lockkeeper.yaml");
    let node = text("kubernetes/node.yaml");
    for (name, port) in NAMES.into_iter().zip(PORTS) {
        let wanted = [
            (&node, format!("{{name: {name}, containerPort: {port}}}")),
            (&objects, format!("{{name: {name}, port: {port}, targetPort: {name}}}")),
            (&objects, format!("{{port: {port}, protocol: TCP}}")),
        ];
        for (file, line) in wanted {
            assert!(file.contains(&line), "{line}");
        }
    }
    for (probe, page) in [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        let wanted = format!("{probe}:\n            httpGet: {{path: {page}, port: http, scheme: HTTPS}}");
        assert!(node.contains(&wanted), "{probe}");
    }

    // The names of the members are those of the pods, in the headless service.
    let config = configuration();
    for node in 1..=3 {
        let host = host(node);
        assert!(config.contains(&format!("\"{host}:7101\"")) && config.contains(&format!("\"{host}:7201\"")), "{host}");
    }
    assert!(
        objects.contains("name: lockkeeper-nodes\n") && node.contains("serviceName: lockkeeper-nodes\n  replicas: 1\n")
    );
}

#[test]
fn each_node_has_a_secret_and_a_volume_of_its_own() {
    let operator = Operator::new();
    for id in 1..=3 {
        let set = operator.node(&["found", &id.to_string()]).expect("a set");
        for wanted in [
            format!("\n  name: lockkeeper-{id}\n"),
            format!("secret: {{secretName: lockkeeper-node-{id}, "),
            format!("matchLabels: {{app.kubernetes.io/name: lockkeeper, lockkeeper-node: \"{id}\"}}"),
        ] {
            assert!(set.contains(&wanted), "{wanted}: {set}");
        }
        assert!(!set.contains("NUMBER"), "{set}");
        let variables = variables(&set);
        assert_eq!(variables["LOCKKEEPER_NODE_ID"], id.to_string());
        assert_eq!(variables["LOCKKEEPER_BOOTSTRAP"], "true");
        assert!(!variables.contains_key("LOCKKEEPER_JOIN"), "{variables:?}");
    }
    for wrong in [&["found", "0"][..], &["found", "a b"], &["replace", "2"], &["replace", "2", "2"], &["scale"], &[]] {
        let refused = operator.node(wrong);
        assert!(refused.as_ref().is_err_and(|said| said.contains("node.sh: ")), "{wrong:?}: {refused:?}");
    }
}

/// The configuration of the cluster, with the variables of a joining node's set.
#[test]
fn a_joining_node_can_use_the_configuration() {
    let operator = Operator::new();
    operator.has_members(&[1, 3]);
    let variables = variables(&operator.node(&["join", "4"]).expect("a set"));
    let file = operator.at("lockkeeper.toml");
    fs::write(&file, configuration()).expect("written");

    let join = Some(variables["LOCKKEEPER_JOIN"].split(',').map(str::to_owned).collect());
    let overrides = Overrides {
        node_id: variables["LOCKKEEPER_NODE_ID"].parse().ok(),
        bootstrap: variables["LOCKKEEPER_BOOTSTRAP"].parse().ok(),
        join,
        client_address: Some(variables["LOCKKEEPER_CLIENT_ADDRESS"].clone()),
        peer_address: Some(variables["LOCKKEEPER_PEER_ADDRESS"].clone()),
        certs: Some(operator.place.path().to_owned()),
        ..Overrides::default()
    };
    let config = Config::load(&file, overrides).expect("it can be used");
    assert!(!config.bootstrap);
    assert_eq!(config.join, [1, 3].map(|id| format!("{}:7101", host(id))));
    assert_eq!(config.client_address, format!("{}:7101", host(4)));
}

#[test]
fn a_lost_volume_takes_one_command() {
    let operator = Operator::new();
    let program = program();
    let hosts: Vec<_> = (1..=3).map(host).collect();
    let mut authority = Command::new(&program);
    authority.args(["certs", "init", "prod", "--nodes", &hosts.join(",")]).current_dir(operator.place.path());
    run(&mut authority).expect("an authority");

    let said = operator.node(&["replace", "2", "4"]).expect("replaced");
    assert!(said.ends_with("node 4 is in the place of node 2\n"), "{said}");
    let told = operator.told();
    let wanted = [
        "kubectl -n lockkeeper create secret generic lockkeeper-node-4",
        "kubectl apply -f -",
        "kubectl apply -f -",
        "lockkeeper member replace 2 --with 4",
        "kubectl -n lockkeeper delete statefulset lockkeeper-2",
        "kubectl -n lockkeeper delete persistentvolumeclaim data-lockkeeper-2-0",
        "kubectl -n lockkeeper delete secret lockkeeper-node-2",
    ];
    // The two sides of a pipe are told at the same time.
    let in_order = |told: &[String]| {
        let mut rest = told.iter();
        wanted[3..].iter().all(|wanted| rest.any(|line| line.starts_with(wanted)))
    };
    assert_eq!(told.len(), wanted.len(), "{told:?}");
    assert!(wanted.iter().all(|wanted| told.iter().any(|line| line.starts_with(wanted))), "{told:?}");
    assert!(in_order(&told), "{told:?}");

    let applied = fs::read_to_string(operator.at("applied")).expect("applied");
    for wanted in ["# a secret:", "--from-file=node-4-key.pem=certs/node-4-key.pem", "\n  name: lockkeeper-4\n"] {
        assert!(applied.contains(wanted), "{wanted}: {applied}");
    }
    assert!(operator.at("certs/node-4-key.pem").is_file() && !applied.contains("node-1"), "{applied}");

    // It was interrupted after the change of the members: the certificate stays, and the rest is done.
    let certificate = fs::read(operator.at("certs/node-4.pem")).expect("it was made");
    operator.has_members(&[1, 3, 4]);
    operator.node(&["replace", "2", "4"]).expect("replaced");
    assert_eq!(fs::read(operator.at("certs/node-4.pem")).expect("it is there"), certificate);
    let told = operator.told();
    assert!(!told.iter().any(|line| line.starts_with("lockkeeper member replace")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("delete statefulset lockkeeper-2")), "{told:?}");
}

/// A Python with this package, in the build directory.
fn python() -> Result<PathBuf, String> {
    const PACKAGES: &str = include_str!("requirements.txt");
    let (directory, _lock) = installation("kubernetes-python");
    let python = directory.join("bin/python");
    let installed = directory.join("installed");
    if fs::read_to_string(&installed).is_ok_and(|packages| packages == PACKAGES) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    let list = directory.join("requirements.txt");
    fs::write(&list, PACKAGES).map_err(|error| error.to_string())?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(&list))?;
    fs::write(&installed, PACKAGES).map_err(|error| error.to_string())?;
    Ok(python)
}

#[test]
#[ignore = "nightly: packages of others"]
fn kubernetes_knows_every_key() {
    const TEST: &str = "kubernetes_knows_every_key";
    let python = match python() {
        Ok(python) => python,
        Err(why) => return skip(TEST, &why),
    };
    let operator = Operator::new();
    let sets = operator.node(&["found", "1"]).expect("a set") + &operator.node(&["join", "4"]).expect("a set");
    let objects = operator.at("objects.yaml");
    fs::write(&objects, text("kubernetes/lockkeeper.yaml") + &sets).expect("written");

    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deployment/schemas.py");
    let said = run(Command::new(python).arg(program).arg(objects).arg(path("docker/compose.yaml")));
    let said = said.unwrap_or_else(|said| panic!("{said}"));
    for kind in ["ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"] {
        assert!(said.contains(&format!("valid: {kind} ")), "{said}");
    }
}
