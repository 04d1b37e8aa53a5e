//! The two procedures for a lost cluster, with all that a cluster in use has: TLS, a policy, audit files, and the ports of etcd's and
//! DynamoDB's clients. Each command is the operators' page's own, in its order; only paths and the moment of the first grant are others.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use lockkeeper::{
    certs::Authority,
    client::{Client, Error, Refusal, Session, SessionOptions, Tls, TlsFiles},
    config::{AuditConfig, AuthConfig},
    local::LocalCluster,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;

use super::run;
use crate::{
    pages::commands,
    support::{LONG, client, cluster_with, leader, lockkeeper, output, program, text, until},
};

const PAGE: &str = "cluster-configs/disaster.md";
/// The cluster's id on the page.
const NEW: &str = "locks-2";
/// `local` is the client whose certificate every local cluster has.
const POLICY: &str = r#"
[[rule]]
who = ["local"]
may = ["acquire", "read", "watch", "force-release", "administer"]

[[rule]]
who = ["ann"]
may = ["acquire", "read"]
prefix = "seats/"
"#;

/// The cluster that is lost, and the machine that keeps its authority.
struct Stage {
    cluster: LocalCluster,
    old: String,
    place: TempDir,
}

impl Stage {
    async fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let auth = AuthConfig { policy: place.path().join("policy.toml"), ..AuthConfig::default() };
        fs::write(&auth.policy, POLICY).expect("written");
        let audit = AuditConfig { directory: place.path().join("audit"), ..AuditConfig::default() };
        let cluster = cluster_with(|options| {
            (options.tls, options.etcd, options.dynamodb) = (true, true, true);
            (options.auth, options.audit) = (auth, audit);
        })
        .await;
        let old = cluster.node(1).config().cluster_id.clone();
        // The name of the client on the page.
        let stage = Self { cluster, old, place };
        stage.authority().client("ann", 1).expect("a certificate");
        stage
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn authority(&self) -> Authority {
        Authority::open(&self.cluster.path().join("certs")).expect("it has one")
    }

    /// A client with the certificate of this name in a directory of certificates beside the cluster's.
    fn client(&self, directory: &str, name: &str) -> Client {
        let certs = self.cluster.path().join(directory);
        let own = Some((certs.join(format!("client-{name}.pem")), certs.join(format!("client-{name}-key.pem"))));
        let tls = Tls::load(TlsFiles { ca: certs.join("ca.pem"), own }).expect("files in order");
        let endpoints = self.cluster.endpoints().join(",");
        Client::builder(&endpoints).tls(&tls).call_limit(LONG).build().expect("valid endpoints")
    }

    /// Runs a command of the page where the authority and the data are, with these words in place of those of the page.
    fn run(&self, command: &str, instead: &[(&str, &Path)]) -> String {
        let mut command = command.to_owned();
        for (words, with) in instead {
            assert!(command.contains(words), "the page's command has no {words:?}: {command}");
            command = command.replace(words, with.to_str().expect("UTF-8"));
        }
        let program = program();
        let directories = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{directories}", program.parent().expect("a directory").display());
        let files = self.cluster.client_files().expect("it has TLS");
        let (cert, key) = files.own.expect("a client has one");
        let mut shell = Command::new("sh");
        shell.args(["-euc", &command]).current_dir(self.cluster.path()).env("PATH", path);
        shell.env("LOCKKEEPER_ENDPOINTS", self.cluster.endpoints().join(","));
        shell.env("LOCKKEEPER_CA", files.ca).env("LOCKKEEPER_CERT", cert).env("LOCKKEEPER_KEY", key);
        run(&mut shell).unwrap_or_else(|said| panic!("{command}: {said}"))
    }

    /// What the page has an operator do on each host, after the commands: `printed` by the one for the certificates.
    fn install(&self, directories: &BTreeMap<u64, PathBuf>, printed: &str) {
        let lines = printed.split("\n\n").nth(1).expect("lines for the configuration");
        assert!(lines.starts_with("[earlier_cluster]\n"), "{printed}");
        for (id, directory) in directories {
            let config = self.cluster.node(*id).config().clone();
            let _ = fs::remove_dir_all(&config.data_dir);
            fs::rename(directory, &config.data_dir).expect("on one file system");
            let tls = config.tls.as_ref().expect("it has TLS");
            for file in [&tls.certificate, &tls.key] {
                let name = file.file_name().expect("a name");
                fs::copy(self.cluster.path().join(format!("certs-{NEW}")).join(name), file).expect("copied");
            }
            self.edit(*id, |text| {
                let own = format!("cluster_id = {:?}", config.cluster_id);
                assert!(text.contains(&own), "{text}");
                text.replacen(&own, &format!("cluster_id = {NEW:?}"), 1) + "\n" + lines + "\n"
            });
        }
        fs::rename(self.at("audit"), self.at("audit-before")).expect("on one file system");
    }

    fn edit(&self, id: u64, change: impl FnOnce(String) -> String) {
        let file = self.cluster.node(id).config_file();
        let text = fs::read_to_string(file).expect("readable");
        fs::write(file, change(text)).expect("written");
    }

    async fn status(&self, directory: &str) -> (i32, String, String) {
        let certs = self.cluster.path().join(directory);
        let file = |name: &str| certs.join(name).to_str().expect("UTF-8").to_owned();
        let [ca, cert, key] = ["ca.pem", "client-local.pem", "client-local-key.pem"].map(file);
        let endpoints = self.cluster.endpoints().join(",");
        let arguments = ["status", "--endpoints", &endpoints, "--ca", &ca, "--cert", &cert, "--key", &key];
        text(&output(&mut lockkeeper(&arguments)).await)
    }

    /// Puts a key by etcd's JSON, and makes a table by DynamoDB's API, with the certificates and the secret that clients have.
    fn use_other_ports(&self, certificates: &str) -> Result<(), String> {
        let certs = self.cluster.path().join(certificates);
        let file = |name: &str| certs.join(name).to_str().expect("UTF-8").to_owned();
        let etcd = format!("https://{}/v3/kv/put", self.cluster.etcd_endpoints()[0]);
        let base = ["--silent", "--show-error", "--fail-with-body", "--max-time", "20"];
        let [ca, cert, key] = ["ca.pem", "client-local.pem", "client-local-key.pem"].map(file);
        let shown = ["--cacert", &ca, "--cert", &cert, "--key", &key, "--data", r#"{"key":"Zm9v","value":"YmFy"}"#];
        run(Command::new("curl").args(base).args(shown).arg(etcd))?;

        let (access_key, secret) = self.cluster.dynamodb_key().expect("it has one");
        let user = format!("{access_key}:{secret}");
        let signed = ["--cacert", &ca, "--aws-sigv4", "aws:amz:us-east-1:dynamodb", "--user", &user];
        let list =
            ["-H", "X-Amz-Target: DynamoDB_20120810.ListTables", "-H", "Content-Type: application/x-amz-json-1.0"];
        let endpoint = self.cluster.dynamodb_endpoints()[0].clone() + "/";
        run(Command::new("curl").args(base).args(signed).args(list).args(["--data", "{}"]).arg(endpoint))?;
        Ok(())
    }
}

async fn session(client: &Client) -> Session {
    let options = SessionOptions { ttl: Duration::from_secs(2), label: "exercise".to_owned() };
    client.open(options).await.expect("a session")
}

/// A program of a client goes on with the certificate that it was started with: it loses its session, opens another, and is granted.
async fn goes_on(client: &Client, name: &str, token_before: u64) {
    let again = session(client).await;
    let held = timeout(LONG, again.acquire(name).into_future()).await.expect("in time").expect("granted");
    assert!(held.token().0 > token_before, "{:?}", held.token());
    held.release().await.expect("it was held");
}

/// What holds in the new cluster, for whichever procedure.
async fn serves_old_and_new_certificates(stage: &mut Stage, ann: &Client, lasting: &Client) {
    goes_on(ann, "seats/1", 1).await;
    goes_on(lasting, "jobs/1", 1).await;
    let refused = session(ann).await.acquire("jobs/2").await.map(drop);
    assert!(matches!(&refused, Err(Error::Refused(why)) if why.reason == Refusal::PermissionDenied), "{refused:?}");
    goes_on(&stage.client(&format!("certs-{NEW}"), "ann"), "seats/2", 1).await;

    // Where an operator sees it: by the old certificates and by the new ones.
    for directory in ["certs", "certs-locks-2"] {
        let (code, out, err) = stage.status(directory).await;
        let accepts = format!("accepts clients' certificates of cluster {} for 29 days more", stage.old);
        assert!(code == 0 && out.contains(&accepts), "{code}: {out}{err}");
    }
    let document = stage.run("lockkeeper status -o json", &[]);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let clients = |node: &Value| node["earlier_cluster"]["clients"].as_u64().expect("a number");
    let most = document["nodes"].as_array().expect("nodes").iter().map(clients).max();
    assert!(most >= Some(2), "{document}");
    let logged = stage.cluster.nodes().any(|node| {
        let log = fs::read_to_string(node.log_file()).expect("readable");
        log.contains("a client came with a certificate of the earlier cluster") && log.contains("ann")
    });
    assert!(logged, "no log names ann");

    // A node of the old cluster that still runs, or its key: no node talks to it, whichever way.
    let another = Authority::open(&stage.cluster.path().join("certs")).expect("it is there");
    let files = another.node(9, &["127.0.0.1".to_owned()], 1).expect("a certificate");
    let tls = Tls::load(TlsFiles { ca: another.certificate(), own: Some((files.certificate, files.key)) });
    let endpoints = stage.cluster.endpoints().join(",");
    let as_node = Client::builder(&endpoints).tls(&tls.expect("files in order")).call_limit(Duration::from_secs(3));
    let answer = as_node.build().expect("valid endpoints").get("a").await;
    assert!(matches!(answer, Err(Error::NoCluster { .. })), "{answer:?}");

    // The end of the time: a clear refusal, which says what to do. The new certificates go on.
    let ids: Vec<u64> = stage.cluster.nodes().map(|node| node.id()).collect();
    for id in ids.iter().copied() {
        stage.edit(id, |text| {
            let until = text.lines().find(|line| line.starts_with("until = ")).expect("it has an end").to_owned();
            text.replacen(&until, "until = 2026-01-01", 1)
        });
    }
    stage.cluster.stop().await;
    for id in ids {
        stage.cluster.node_mut(id).spawn().expect("it starts");
    }
    let after = stage.client(&format!("certs-{NEW}"), "local");
    until("the restarted cluster", async || after.get("a").await.ok()).await;
    match stage.client("certs", "ann").get("seats/1").await {
        Err(Error::Refused(refused)) => {
            for says in [&*stage.old, NEW, "2026-01-01", "`lockkeeper certs client ann`"] {
                assert!(refused.message.contains(says), "{refused:?} does not say {says:?}");
            }
        }
        other => panic!("the time is over: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_restored_with_certificates_and_clients_keep_theirs() {
    let mut stage = Stage::new().await;
    let save = commands(PAGE, "Save").remove(0);
    let found = commands(PAGE, "Restore");
    let [restore, certificates] = &found[..] else { panic!("the page has other commands: {found:?}") };
    let ann = stage.client("certs", "ann");
    let lasting = client(&stage.cluster);
    let held = session(&ann).await.acquire("seats/1").await.expect("granted");
    if let Err(why) = stage.use_other_ports("certs") {
        return super::skip("a_backup_is_restored_with_certificates_and_clients_keep_theirs", &why);
    }

    let backup = stage.at("locks.lks");
    stage.run(&save.text, &[("/backup/locks.lks", &backup)]);
    stage.cluster.kill().await;
    let restored = stage.run(&format!("{} --now", restore.text.trim()), &[("/backup/locks.lks", &backup)]);
    assert!(restored.contains(&format!("`lockkeeper certs successor {NEW}`")), "{restored}");
    let printed = stage.run(&certificates.text, &[]);
    let made = (1..=3).map(|id| (id, stage.cluster.path().join(format!("restored/node-{id}")))).collect();
    // Without the certificates a node does not start, and says what makes them.
    stage.install(&made, &printed);
    for id in 1..=3 {
        stage.cluster.node_mut(id).spawn().expect("it starts");
    }
    stage.cluster.ready(LONG).await.expect("it serves, to the client with the old certificate too");

    timeout(LONG, held.lost()).await.expect("it is told");
    stage.use_other_ports("certs").expect("with the old certificate");
    stage.use_other_ports(&format!("certs-{NEW}")).expect("with the new one");
    serves_old_and_new_certificates(&mut stage, &ann, &lasting).await;
    // etcd's clients are told as well.
    let said = stage.use_other_ports("certs").expect_err("the time is over");
    assert!(said.contains("`lockkeeper certs successor locks-2`"), "{said}");
    stage.cluster.stop().await;
    // The new trail, of all nodes.
    let audit = (1..=3).map(|id| stage.at(&format!("audit/node-{id}")));
    let mut verify = lockkeeper(&["audit", "verify"]);
    let (code, out, err) = text(&output(verify.args(audit)).await);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains(&format!("of cluster {NEW}")), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_majority_is_recovered_with_certificates_and_clients_keep_theirs() {
    let mut stage = Stage::new().await;
    let found = commands(PAGE, "A lost majority");
    let [inspect, recover, certificates] = &found[..] else { panic!("the page has other commands: {found:?}") };
    let ann = stage.client("certs", "ann");
    let lasting = client(&stage.cluster);
    let held = session(&ann).await.acquire("seats/1").await.expect("granted");
    let left = leader(&stage.cluster).await;
    stage.cluster.kill().await;

    let data = stage.cluster.node(left).config().data_dir.clone();
    let inspected = stage.run(&inspect.text, &[("/var/lib/lockkeeper", &data)]);
    assert!(inspected.contains(&stage.old), "{inspected}");
    let into = stage.at("recovered");
    let recover = recover.text.replace("/var/lib/lockkeeper-2", into.to_str().expect("UTF-8"));
    let recovered = stage.run(&format!("{} --now", recover.trim()), &[("/var/lib/lockkeeper", &data)]);
    assert!(recovered.contains(&format!("`lockkeeper certs successor {NEW}`")), "{recovered}");
    let printed = stage.run(&certificates.text, &[]);
    for id in (1..=3).filter(|id| *id != left) {
        stage.cluster.forget(id).await;
    }
    stage.install(&BTreeMap::from([(left, into)]), &printed);
    stage.cluster.node_mut(left).spawn().expect("it starts");
    stage.cluster.ready(LONG).await.expect("it serves, to the client with the old certificate too");
    timeout(LONG, held.lost()).await.expect("it is told");
    serves_old_and_new_certificates(&mut stage, &ann, &lasting).await;
}

/// Who forgets the certificates hears of it from the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_the_certificate_of_the_earlier_cluster_does_not_start_and_says_what_to_do() {
    let mut cluster = cluster_with(|options| (options.tls, options.nodes) = (true, Some(1))).await;
    cluster.stop().await;
    let node = cluster.node(1);
    let text_before = fs::read_to_string(node.config_file()).expect("readable");
    let own = node.config().cluster_id.clone();
    fs::write(node.config_file(), text_before.replace(&own, NEW)).expect("written");
    let config = node.config_file().to_str().expect("UTF-8");
    let (code, _, err) = text(&output(&mut lockkeeper(&["serve", "--config", config])).await);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains(&format!("`lockkeeper certs successor {NEW}`")), "{err}");
}
