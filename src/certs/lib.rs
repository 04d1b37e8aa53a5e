//! Makes the certificates of a cluster: an authority of its own, and what it signs for nodes and clients.
//!
//! All of them are files in one directory, in PEM:
//!
//! ```text
//! ca.pem, ca-key.pem              the authority; its key signs further certificates, and belongs on no node
//! node-1.pem, node-1-key.pem      node 1
//! client-ann.pem, client-ann-key.pem
//! client-ann.p12                  the same for a browser, if somebody asked for it ([`pack_for_browser`])
//! cluster                         after a restore: the cluster's id, and below it those of the earlier clusters, a line each
//! ```
//!
//! Keys are ECDSA on P-256, readable by their owner alone. A certificate names its end as a URI (`lockkeeper://CLUSTER/node/ID`,
//! `lockkeeper://CLUSTER/client/NAME`), which is what Lockkeeper goes by; a node's also names its hosts, for clients.
//!
//! The authority is valid for ten years, a certificate for one. A certificate is made anew under the same name; running processes read the
//! changed files by themselves, nodes within seconds and clients before they connect again. It is written beside the old one and renamed,
//! the key first: a process that reads between the two finds that they do not fit, keeps the old ones, and reads again.
//!
//! A cluster that is made from a backup, or from what a lost majority left, has another id. [`Authority::succeed`] makes a directory for
//! it, with the same authority. The certificates of its nodes name the earlier clusters too, as `lockkeeper-earlier://CLUSTER`. By that
//! URI a client whose certificate is of one of them knows that it may go on with these nodes; whether they go on with it is decided by
//! their own configuration. No node relies on the URI, so nodes of the two clusters stay strangers.

mod browser;

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

pub use self::browser::{PASSWORD_CHARS_MIN, pack_for_browser};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use time::{Duration, OffsetDateTime};

mod facts;

pub use facts::CertificateFacts;

/// Days for which an authority is valid.
pub const AUTHORITY_DAYS: u32 = 3_650;
/// Days for which a certificate is valid, unless the caller says otherwise.
pub const CERTIFICATE_DAYS: u32 = 365;
/// Certificates are valid from this long ago: clocks differ.
const CLOCKS_DIFFER: Duration = Duration::hours(1);

/// The label of a certificate in PEM.
const CERTIFICATE_LABEL: &str = "CERTIFICATE";
/// What the labels of private keys in PEM end with: there are several kinds.
const PRIVATE_KEY_LABEL: &str = "PRIVATE KEY";
const AUTHORITY: &str = "ca";
/// The file with the cluster's id, where the authority was made for an earlier one.
const CLUSTER: &str = "cluster";
/// What the URI of an earlier cluster begins with, in the certificate of a node.
pub const EARLIER_SCHEME: &str = "lockkeeper-earlier://";

/// Why no certificate was made.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// A file.
    #[error("cannot {doing} {}: {source}", .file.display())]
    File {
        /// The operation that failed, as a verb.
        doing: &'static str,
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is an authority already. Nothing was changed.
    #[error(
        "{} exists already: to make more certificates by it, use `lockkeeper certs node` and `certs client`; name another \
         --dir for another cluster", .0.display()
    )]
    Exists(PathBuf),
    /// A name cannot be used.
    #[error("{0}")]
    Name(String),
    /// A file of another certificate has the name that is wanted. Nothing was changed.
    #[error(
        "{} holds {has}, and {wants} would replace it: `NAME-key` is the file of NAME's key and of the certificate of a client \
         called `NAME-key`; choose another name, or another directory", .file.display()
    )]
    Taken {
        /// The file.
        file: PathBuf,
        /// What is in the file.
        has: &'static str,
        /// What would be written to the file.
        wants: &'static str,
    },
    /// The authority's files cannot be used, or there is a fault in making a certificate.
    #[error("{}: {source}", .file.display())]
    Authority {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: rcgen::Error,
    },
    /// The file for a browser cannot be made of the certificate and its key.
    #[error("cannot make {}: {source}", .file.display())]
    Browser {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: p12_keystore::error::Error,
    },
}

/// An authority, with the directory of its files.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
    cluster: String,
    /// The clusters before it, the latest first.
    earlier: Vec<String>,
    issuer: Issuer<'static, KeyPair>,
}

/// The two files of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority for a cluster, and the directory if there is none. Fails if it has an authority already.
    pub fn create(directory: &Path, cluster: &str) -> Result<Self, CertsError> {
        check_cluster_id(cluster)?;
        let files = Files::without_authority(directory)?;
        let at_fault = |source| CertsError::Authority { file: files.certificate.clone(), source };

        let mut params = CertificateParams::new(Vec::new()).map_err(at_fault)?;
        // A path length of 0: no certificate that it signs can sign others in turn.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::OrganizationName, cluster);

        let key = KeyPair::generate().map_err(at_fault)?;
        // Part of the key, so that two authorities of one cluster, the old one and the new one, are told apart.
        let part: String = key.public_key_raw().iter().skip(1).take(4).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name.push(DnType::CommonName, format!("Lockkeeper authority of {cluster} ({part})"));

        valid_for(&mut params, AUTHORITY_DAYS);
        let certificate = params.self_signed(&key).map_err(at_fault)?;
        files.write(&certificate.pem(), &key.serialize_pem())?;
        Self::open(directory)
    }

    /// The authority whose files are in this directory.
    pub fn open(directory: &Path) -> Result<Self, CertsError> {
        let files = Files::in_directory(directory, AUTHORITY);
        let read = |file: &Path| fs::read_to_string(file).map_err(failed("read", file));
        let certificate = read(&files.certificate)?;
        let key = read(&files.key)?;

        let wrong = |file: &Path| {
            let file = file.to_owned();
            move |source| CertsError::Authority { file, source }
        };
        let key = KeyPair::from_pem(&key).map_err(wrong(&files.key))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(wrong(&files.certificate))?;

        // After a restore the certificate of the authority still names the earlier cluster: the file beside it counts.
        let (cluster, earlier) = match recorded_clusters(directory)? {
            Some(recorded) => recorded,
            None => {
                let cluster = cluster_of(&certificate).ok_or_else(|| {
                    let file = files.certificate.display();
                    CertsError::Name(format!("{file} names no cluster: it was not made by `lockkeeper certs init`"))
                })?;
                (cluster, Vec::new())
            }
        };
        Ok(Self { directory: directory.to_owned(), cluster, earlier, issuer })
    }

    /// The same authority for the cluster that continues this one, in a directory of its own, which has no authority yet. Nothing in the
    /// directory of this one is changed.
    ///
    /// The new directory has no other certificates yet. Those of its nodes will name this cluster, and the ones before it, as earlier ones.
    pub fn succeed(&self, cluster: &str, directory: &Path) -> Result<Self, CertsError> {
        check_cluster_id(cluster)?;
        if cluster == self.cluster || self.earlier.iter().any(|earlier| earlier == cluster) {
            return Err(CertsError::Name(format!(
                "{cluster} is the id of this authority's cluster, or of one before it: name the new cluster, as \
                 `lockkeeper snapshot restore` or `lockkeeper recover` was told by --cluster-id"
            )));
        }
        let from = Files::in_directory(&self.directory, AUTHORITY);
        let to = Files::without_authority(directory)?;
        let read = |file: &Path| fs::read_to_string(file).map_err(failed("read", file));
        let certificate = read(&from.certificate)?;
        let key = read(&from.key)?;

        // First: without this file, the authority would be taken for one of the cluster that it was made for.
        let clusters = [&[cluster.to_owned(), self.cluster.clone()][..], &self.earlier].concat();
        replace(&directory.join(CLUSTER), format!("{}\n", clusters.join("\n")).as_bytes(), 0o644)?;
        to.write(&certificate, &key)?;
        Self::open(directory)
    }

    /// The nodes that have a certificate in its directory, with the hosts that each names.
    pub fn nodes(&self) -> Result<BTreeMap<u64, Vec<String>>, CertsError> {
        let mut nodes = BTreeMap::new();
        for (name, file) in self.certificates("node-")? {
            let Ok(id) = name.parse() else { continue };
            let pem = fs::read_to_string(&file).map_err(failed("read", &file))?;
            let hosts = hosts_of(&pem);
            let hosts = hosts
                .ok_or_else(|| CertsError::Name(format!("{} does not hold a certificate in PEM", file.display())))?;
            nodes.insert(id, hosts);
        }
        Ok(nodes)
    }

    /// The names of the clients that have a certificate in its directory.
    pub fn clients(&self) -> Result<Vec<String>, CertsError> {
        Ok(self.certificates("client-")?.into_keys().collect())
    }

    /// The certificates in its directory whose files begin like this: what follows in the name, and the file.
    fn certificates(&self, prefix: &str) -> Result<BTreeMap<String, PathBuf>, CertsError> {
        let unreadable = || failed("read", &self.directory);
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.directory).map_err(unreadable())? {
            let path = entry.map_err(unreadable())?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(prefix));
            let Some(name) = name.and_then(|name| name.strip_suffix(".pem")) else { continue };
            // A key lies beside its certificate. A client may be called `a-key` if none is called `a`: then its own key is `a-key-key`.
            if path.with_file_name(format!("{prefix}{name}-key.pem")).exists() {
                found.insert(name.to_owned(), path);
            }
        }
        Ok(found)
    }

    /// The same authority, for certificates of another cluster: one of an organization signs for all of its clusters.
    #[must_use]
    pub fn for_cluster(self, cluster: &str) -> Self {
        Self { cluster: cluster.to_owned(), earlier: Vec::new(), ..self }
    }

    /// Its cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The clusters that its cluster continues, the latest first.
    pub fn earlier(&self) -> &[String] {
        &self.earlier
    }

    /// The directory of its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of its certificate.
    pub fn certificate(&self) -> PathBuf {
        Files::in_directory(&self.directory, AUTHORITY).certificate
    }

    /// Makes the certificate of a node, which clients reach at these hosts: host names and IP addresses. Replaces an earlier one.
    pub fn node(&self, id: u64, hosts: &[String], days: u32) -> Result<Files, CertsError> {
        if id == 0 {
            return Err(CertsError::Name("node ids start at 1".to_owned()));
        }
        // Both ends: nodes connect to each other.
        let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.make(&format!("node-{id}"), &format!("node/{id}"), &self.earlier, hosts, &usages, days)
    }

    /// Makes the certificate of a client: 1 to 64 letters, digits, `-`, `_`, `.` and `@`. Replaces an earlier one. Fails if the directory
    /// has `NAME` and the name is `NAME-key`, or the reverse.
    pub fn client(&self, name: &str, days: u32) -> Result<Files, CertsError> {
        check_client_name(name)?;
        self.make(
            &format!("client-{name}"),
            &format!("client/{name}"),
            &[],
            &[],
            &[ExtendedKeyUsagePurpose::ClientAuth],
            days,
        )
    }

    fn make(
        &self,
        name: &str,
        path: &str,
        earlier: &[String],
        hosts: &[String],
        usages: &[ExtendedKeyUsagePurpose],
        days: u32,
    ) -> Result<Files, CertsError> {
        let files = Files::in_directory(&self.directory, name);
        let at_fault = |source| CertsError::Authority { file: files.certificate.clone(), source };

        let mut params = CertificateParams::new(Vec::new()).map_err(at_fault)?;
        let own = format!("lockkeeper://{}/{path}", self.cluster);
        let earlier = earlier.iter().map(|cluster| format!("{EARLIER_SCHEME}{cluster}"));
        for uri in [own].into_iter().chain(earlier) {
            params.subject_alt_names.push(SanType::URI(uri.as_str().try_into().map_err(at_fault)?));
        }

        for host in hosts {
            let wrong = |_| CertsError::Name(format!("{host:?} is neither a host name nor an IP address"));
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) if is_host_name(host) => SanType::DnsName(host.as_str().try_into().map_err(wrong)?),
                Err(_) => return Err(CertsError::Name(format!("{host:?} is neither a host name nor an IP address"))),
            });
        }

        params.distinguished_name.push(DnType::OrganizationName, self.cluster.as_str());
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, days);

        let key = KeyPair::generate().map_err(at_fault)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(at_fault)?;
        files.write(&certificate.pem(), &key.serialize_pem())?;
        Ok(files)
    }
}

/// Letters, digits, hyphens and dots: what a host may be called, and what a browser would take.
fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        (1..=63).contains(&label.len()) && allowed && !label.starts_with('-') && !label.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(is_label)
}

fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCKS_DIFFER;
    params.not_after = now + Duration::days(days.into());
}

/// Refuses names of clients that cannot be, or that cannot be in one directory: the key of `ann` and the certificate of `ann-key` have the
/// same file. For who makes several at once, before the first one is made.
pub fn check_client_names<S: AsRef<str>>(names: &[S]) -> Result<(), CertsError> {
    for name in names.iter().map(AsRef::as_ref) {
        check_client_name(name)?;

        let owner = name.strip_suffix("-key").filter(|owner| names.iter().any(|other| other.as_ref() == *owner));
        if let Some(owner) = owner {
            let what = format!(
                "clients {owner} and {name} cannot be in one directory: client-{name}.pem is the file of {owner}'s key and of {name}'s \
                 certificate; choose another name, or another directory"
            );
            return Err(CertsError::Name(what));
        }
    }
    Ok(())
}

fn check_client_name(name: &str) -> Result<(), CertsError> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    if (1..=64).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    let what = format!("{name:?} is not a valid client name: use 1 to 64 letters, digits, -, _, . and @");
    Err(CertsError::Name(what))
}

fn check_cluster_id(cluster: &str) -> Result<(), CertsError> {
    let is_allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
    if (1..=64).contains(&cluster.len()) && cluster.bytes().all(is_allowed) {
        Ok(())
    } else {
        Err(CertsError::Name(format!("{cluster:?} is not a valid cluster id: use 1 to 64 of a-z, 0-9 and -")))
    }
}

/// The cluster of a directory and those before it, where a file names them.
fn recorded_clusters(directory: &Path) -> Result<Option<(String, Vec<String>)>, CertsError> {
    let file = directory.join(CLUSTER);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &file)(error)),
    };

    let mut clusters = text.lines().map(str::to_owned);
    let cluster = clusters.next().unwrap_or_default();
    let earlier: Vec<String> = clusters.collect();

    // They go into the names of certificates, and a person may have edited the file.
    for named in [&cluster].into_iter().chain(&earlier) {
        check_cluster_id(named).map_err(|wrong| CertsError::Name(format!("{}: {wrong}", file.display())))?;
    }
    Ok(Some((cluster, earlier)))
}

/// The hosts that a certificate names.
fn hosts_of(pem: &str) -> Option<Vec<String>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let names = certificate.subject_alternative_name().ok()?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    Some(names.iter().filter_map(facts::host).collect())
}

/// The organization that an authority's certificate names.
fn cluster_of(pem: &str) -> Option<String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let organization = certificate.subject().iter_organization().next()?;
    Some(organization.as_str().ok()?.to_owned())
}

impl Files {
    /// The files of a client, in this directory.
    pub fn for_client(directory: &Path, name: &str) -> Self {
        Self::in_directory(directory, &format!("client-{name}"))
    }

    /// The files of a new authority. Makes the directory, and fails if it has an authority already.
    fn without_authority(directory: &Path) -> Result<Self, CertsError> {
        fs::create_dir_all(directory).map_err(failed("create", directory))?;
        let files = Self::in_directory(directory, AUTHORITY);
        if let Some(existing) = [&files.certificate, &files.key].into_iter().find(|file| file.exists()) {
            return Err(CertsError::Exists(existing.clone()));
        }
        Ok(files)
    }

    fn in_directory(directory: &Path, name: &str) -> Self {
        Self { certificate: directory.join(format!("{name}.pem")), key: directory.join(format!("{name}-key.pem")) }
    }

    /// Replaces a certificate by a certificate and a key by a key, and fails before it writes anything if one of the files has the other
    /// kind: the key of `ann` and the certificate of `ann-key` have the same name. The key would be lost, or would be where its owner gives
    /// away what he takes for a certificate.
    fn write(&self, certificate: &str, key: &str) -> Result<(), CertsError> {
        if holds(&self.certificate, PRIVATE_KEY_LABEL)? {
            return Err(CertsError::Taken {
                file: self.certificate.clone(),
                has: "a private key",
                wants: "a certificate",
            });
        }
        if holds(&self.key, CERTIFICATE_LABEL)? {
            return Err(CertsError::Taken { file: self.key.clone(), has: "a certificate", wants: "a private key" });
        }

        replace(&self.key, key.as_bytes(), 0o600)?;
        replace(&self.certificate, certificate.as_bytes(), 0o644)
    }
}

/// Whether the file exists and has a block of PEM whose label ends with this.
fn holds(file: &Path, label: &str) -> Result<bool, CertsError> {
    let content = match fs::read(file) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("read", file)(error)),
    };
    let text = String::from_utf8_lossy(&content);
    let mut labels = text.lines().filter_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
    Ok(labels.any(|found| found.ends_with(label)))
}

/// Writes a file beside the old one and renames it, so that a reader never sees half of it.
fn replace(file: &Path, content: &[u8], mode: u32) -> Result<(), CertsError> {
    let beside = file.with_added_extension("new");
    let written = || {
        let _ = fs::remove_file(&beside);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()
    };
    written().map_err(failed("write", &beside))?;
    fs::rename(&beside, file).map_err(failed("write", file))
}

fn failed(doing: &'static str, file: &Path) -> impl FnOnce(io::Error) -> CertsError + use<> {
    let file = file.to_owned();
    move |source| CertsError::File { doing, file, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_for_their_owner_alone_and_an_authority_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), "shop").expect("it is made");
        let node = authority.node(1, &["10.0.0.1".into(), "a.example".into()], 1).expect("it is made");
        let client = authority.client("ann", 1).expect("it is made");
        for key in [&node.key, &client.key, &directory.path().join("ca-key.pem")] {
            let mode = fs::metadata(key).expect("it is there").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", key.display());
        }
        let again = Authority::create(directory.path(), "shop").expect_err("there is one");
        assert!(matches!(&again, CertsError::Exists(_)), "{again}");
        assert_eq!(Authority::open(directory.path()).expect("it is there").cluster(), "shop");
    }

    #[test]
    fn a_successor_has_the_same_authority_and_names_the_clusters_before_it() {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name);
        let first = Authority::create(&at("certs"), "shop").expect("it is made");
        let hosts = ["10.0.0.1".to_owned(), "a.example".to_owned(), "fe80::1".to_owned()];
        first.node(7, &hosts, 1).expect("it is made");
        for name in ["ann", "b-key"] {
            first.client(name, 1).expect("it is made");
        }
        assert_eq!(first.nodes().expect("it can be read"), BTreeMap::from([(7, hosts.to_vec())]));
        assert_eq!(first.clients().expect("it can be read"), ["ann", "b-key"]);

        let second = first.succeed("shop-2", &at("certs-2")).expect("it is made");
        let third = second.succeed("shop-3", &at("certs-3")).expect("it is made");
        assert_eq!((third.cluster(), third.earlier()), ("shop-3", &["shop-2".to_owned(), "shop".to_owned()][..]));
        let content = |authority: &Authority| fs::read(authority.certificate()).expect("it is there");
        assert_eq!(content(&third), content(&first));
        // Further certificates of its directory are its own.
        let again = Authority::open(&at("certs-2")).expect("it is there");
        assert_eq!((again.cluster(), again.nodes().expect("it can be read").len()), ("shop-2", 0));
        assert_eq!(Authority::open(&at("certs")).expect("it is there").cluster(), "shop");

        for (name, directory) in [("shop-3", "x"), ("shop", "x"), ("Shop", "x")] {
            let refused = third.succeed(name, &at(directory)).expect_err("no name for it");
            assert!(matches!(refused, CertsError::Name(_)), "{refused}");
        }
        let occupied = first.succeed("shop-4", &at("certs-2")).expect_err("it has an authority");
        assert!(matches!(occupied, CertsError::Exists(_)), "{occupied}");
        assert!(!at("x").exists());
    }

    #[test]
    fn a_key_is_never_replaced_by_a_certificate_nor_the_reverse() {
        for (first, second) in [("b", "b-key"), ("b-key", "b")] {
            let directory = tempfile::tempdir().expect("a directory");
            let authority = Authority::create(directory.path(), "shop").expect("it is made");
            let made = authority.client(first, 1).expect("it is made");
            let content = |file: &Path| fs::read_to_string(file).expect("it is there");
            let before = (content(&made.certificate), content(&made.key));

            let refused = authority.client(second, 1).expect_err("the two have a file in common");
            assert!(matches!(&refused, CertsError::Taken { .. }), "{refused}");
            assert!(refused.to_string().contains("client-b-key.pem holds"), "{refused}");
            assert_eq!((content(&made.certificate), content(&made.key)), before, "{second} after {first}");
            assert_eq!(authority.clients().expect("it can be read"), [first], "nothing was made of {second}");

            let refused = check_client_names(&[first, second]).expect_err("both at once");
            assert!(refused.to_string().contains("clients b and b-key"), "{refused}");

            // The same client again, and one whose name only begins alike.
            authority.client(first, 1).expect("a certificate is replaced by a certificate");
            authority.client("b-keys", 1).expect("it is made");
        }
    }

    #[test]
    fn a_certificate_tells_its_names_and_dates() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), "shop").expect("it is made");
        let node = authority.node(1, &["10.0.0.1".into(), "a.example".into()], 7).expect("it is made");
        let facts = CertificateFacts::read_all(&fs::read(&node.certificate).expect("it is there")).expect("it is one");
        let [facts] = &facts[..] else { panic!("one certificate, not {facts:?}") };
        assert_eq!(facts.names, ["lockkeeper://shop/node/1", "10.0.0.1", "a.example"]);
        let days = Duration::seconds(facts.valid_until - facts.valid_from) - CLOCKS_DIFFER;
        assert_eq!((days.whole_days(), facts.is_authority), (7, false));

        let ca =
            CertificateFacts::read_all(&fs::read(authority.certificate()).expect("it is there")).expect("it is one");
        assert!(ca[0].is_authority && ca[0].subject == facts.issuer, "{ca:?}");
        for (wrong, said) in
            [(&b"hello"[..], "has no certificate"), (&fs::read(&node.key).expect("it is there"), "has no certificate")]
        {
            assert_eq!(CertificateFacts::read_all(wrong), Err(said.to_owned()));
        }
    }

    #[test]
    fn names_that_cannot_be_are_named() {
        let directory = tempfile::tempdir().expect("a directory");
        for cluster in ["", "Shop", "a/b"] {
            assert!(matches!(Authority::create(directory.path(), cluster), Err(CertsError::Name(_))), "{cluster:?}");
        }
        let authority = Authority::create(directory.path(), "shop").expect("it is made");
        for client in ["", "a b", "ann/../bob", "\u{e9}"] {
            assert!(matches!(authority.client(client, 1), Err(CertsError::Name(_))), "{client:?}");
        }
        for host in ["", "a b", "10.0.0.1:7101", "-a", "a..b", "http://a"] {
            assert!(matches!(authority.node(1, &[host.to_owned()], 1), Err(CertsError::Name(_))), "{host:?}");
        }
        assert!(matches!(authority.node(0, &[], 1), Err(CertsError::Name(_))));
    }
}
