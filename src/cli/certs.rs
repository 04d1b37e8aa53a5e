//! `lockkeeper certs` makes an authority for a cluster, and certificates signed by it.
//!
//! Exit codes: 2 if a name or a path is wrong, or the authority exists already; then nothing was changed.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, BufRead as _, Read as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use rand::TryRngCore as _;

use super::{Exit, Failure, complain, output::print};
use crate::certs::{Authority, CERTIFICATE_DAYS, CertsError, Files, check_client_names, pack_for_browser};

/// The number of days for which the advice lets nodes accept client certificates of the cluster before the restore.
const CLIENTS_KEPT_DAYS: i64 = 30;

/// The maximum number of bytes that are read from stdin for a password.
const PASSWORD_FILE_BYTES_MAX: u64 = 4096;

/// Makes certificates for a cluster and its clients.
#[derive(Args, Debug)]
pub(super) struct Certs {
    #[command(subcommand)]
    what: CertsAction,
}

#[derive(Subcommand, Debug)]
enum CertsAction {
    /// Makes an authority, and certificates for the nodes and clients of a new cluster
    ///
    /// Copy to each node its own two files and ca.pem, and to each client the same of its own. Keep ca-key.pem apart: whoever
    /// has it can make certificates for anyone.
    #[command(after_help = "Example: lockkeeper certs init shop --nodes 10.0.0.1,10.0.0.2,10.0.0.3 --clients ann,ops")]
    Init {
        /// The cluster's id, as in its configuration
        #[arg(value_name = "CLUSTER_ID")]
        cluster: String,
        /// Where clients reach the nodes: the host of node 1, of node 2, and so on
        #[arg(long, value_name = "HOST,…", value_delimiter = ',', required = true)]
        nodes: Vec<String>,
        /// Names of clients
        #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
        clients: Vec<String>,
        #[command(flatten)]
        common: CertsOptions,
    },
    /// Makes the certificate of a node, or makes it anew; a running node reads the new files by itself
    Node {
        /// Its id in the cluster
        #[arg(value_name = "NODE_ID")]
        id: u64,
        /// Where clients reach it: host names and IP addresses
        #[arg(long, value_name = "HOST,…", value_delimiter = ',', required = true)]
        hosts: Vec<String>,
        #[command(flatten)]
        common: CertsOptions,
    },
    /// Makes the certificate of a client, or makes it anew
    Client {
        /// By this name the cluster knows it
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        common: CertsOptions,
    },
    /// Packs a client's certificate and key for a browser: client-NAME.p12, to open the console with
    ///
    /// Import the file in the browser with the password that is printed, once, and ca.pem as an authority that identifies websites. The
    /// authority's key is not needed: whoever has the two files of the client can do this. The password protects the file on its way; the
    /// client's other files in --dir have none.
    #[command(after_help = "Example: lockkeeper certs browser ann")]
    Browser {
        /// The client's name, as it was given to `certs client`
        #[arg(value_name = "NAME")]
        name: String,
        /// Take the password from the first line of this file, or from stdin for `-`, instead of a new one that is printed. There is no
        /// option with the password itself, since other users of the machine see the command lines of processes
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        /// The directory of the files
        #[arg(long, value_name = "DIR", default_value = "certs")]
        dir: PathBuf,
    },
    /// Makes the certificates of a cluster that was restored under another id, by the same authority, in a directory of its own
    ///
    /// For `snapshot restore` and `recover`. Nodes and clients that have a certificate in --dir get one for the new cluster in --into, the
    /// nodes for the same hosts. Clients need theirs only when the nodes accept the old ones no longer: see what is printed. Nothing in
    /// --dir is changed.
    #[command(after_help = "Example: lockkeeper certs successor shop-2")]
    Successor {
        /// The new cluster's id, as it was given to `snapshot restore` or `recover`
        #[arg(value_name = "CLUSTER_ID")]
        cluster: String,
        /// Where clients reach the nodes of the new cluster: the host of node 1, of node 2, and so on [default: as before]
        #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
        nodes: Vec<String>,
        /// The directory to make [default: that of --dir with -CLUSTER_ID]
        #[arg(long, value_name = "DIR")]
        into: Option<PathBuf>,
        #[command(flatten)]
        common: CertsOptions,
    },
}

#[derive(Args, Debug)]
struct CertsOptions {
    /// The directory of the files
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,
    /// For how many days the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = CERTIFICATE_DAYS, value_parser = clap::value_parser!(u32).range(1..=825))]
    days: u32,
}

impl Certs {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut made = String::new();
        match self.what {
            CertsAction::Init { cluster, nodes, clients, common: CertsOptions { dir, days } } => {
                check_client_names(&clients)?;
                let authority = Authority::create(&dir, &cluster)?;
                // Writing to a string does not fail.
                let _ = writeln!(made, "authority  {}", authority.certificate().display());
                for (id, host) in (1..).zip(&nodes) {
                    say(&mut made, &format!("node {id}"), &authority.node(id, std::slice::from_ref(host), days)?);
                }
                for name in &clients {
                    say(&mut made, &format!("client {name}"), &authority.client(name, days)?);
                }
            }
            CertsAction::Node { id, hosts, common: CertsOptions { dir, days } } => {
                say(&mut made, &format!("node {id}"), &Authority::open(&dir)?.node(id, &hosts, days)?);
            }
            CertsAction::Client { name, common: CertsOptions { dir, days } } => {
                say(&mut made, &format!("client {name}"), &Authority::open(&dir)?.client(&name, days)?);
            }
            CertsAction::Browser { name, password_file, dir } => made += &pack(&name, password_file.as_deref(), &dir)?,
            CertsAction::Successor { cluster, nodes, into, common } => {
                made += &succeed(&cluster, nodes, into, &common)?;
            }
        }

        print(&made)?;
        Ok(Exit::Success)
    }
}

/// Makes the certificates of a restored cluster. Returns what to tell.
fn succeed(cluster: &str, nodes: Vec<String>, into: Option<PathBuf>, common: &CertsOptions) -> Result<String, Failure> {
    let CertsOptions { dir, days } = common;
    let before = Authority::open(dir)?;
    let nodes = if nodes.is_empty() { before.nodes()? } else { hosts_by_id(nodes) };
    if nodes.is_empty() {
        let what = format_args!("{} has no certificate of a node: name the hosts with --nodes", dir.display());
        return Err(Failure::new(Exit::Usage, what));
    }

    let (clients, left_out) = clients_together(before.clients()?);
    let authority = before.succeed(cluster, &into.unwrap_or_else(|| beside(dir, cluster)))?;
    let mut made = format!("authority  {}\n", authority.certificate().display());
    for (id, hosts) in &nodes {
        say(&mut made, &format!("node {id}"), &authority.node(*id, hosts, *days)?);
    }
    for name in &clients {
        say(&mut made, &format!("client {name}"), &authority.client(name, *days)?);
    }
    made += &next(&before, &authority);

    for (name, why) in &left_out {
        let Files { certificate, key } = Files::for_client(dir, name);
        complain(&format!(
            "client {name} is left out, and stays as it is in {} and {}: {why}",
            certificate.display(),
            key.display()
        ));
    }
    Ok(made)
}

/// Divides clients into those that can be in one directory, and the others, with why each of them cannot. The names are in order, and the
/// earlier ones come first.
///
/// A directory may be older than the rules for its names, and after the loss of a cluster it is the one that there is.
fn clients_together(names: Vec<String>) -> (Vec<String>, Vec<(String, CertsError)>) {
    let mut together = Vec::new();
    let mut left_out = Vec::new();
    for name in names {
        together.push(name);
        if let Err(why) = check_client_names(&together) {
            left_out.extend(together.pop().map(|name| (name, why)));
        }
    }
    (together, left_out)
}

/// Packs a client's files for a browser. Returns what to tell.
fn pack(name: &str, password_file: Option<&Path>, dir: &Path) -> Result<String, Failure> {
    let password = match password_file {
        Some(file) => password_of(file)?,
        None => new_password()?,
    };
    let packed = pack_for_browser(dir, name, &password)?;

    let mut told = format!("browser {name}  {}\n", packed.display());
    if password_file.is_none() {
        let _ = writeln!(told, "password  {password}");
    }
    Ok(told)
}

/// The first line of the file, or of stdin.
fn password_of(file: &Path) -> Result<String, Failure> {
    let text = if file == Path::new("-") {
        let mut line = String::new();
        io::stdin().lock().take(PASSWORD_FILE_BYTES_MAX).read_line(&mut line).map(|_| line)
    } else {
        fs::read_to_string(file)
    };
    let text = text.map_err(|error| {
        Failure::new(Exit::Usage, format_args!("cannot read the password from {}: {error}", file.display()))
    })?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A password of 100 random bits, in characters that nobody mistakes for others, in groups that can be typed.
fn new_password() -> Result<String, Failure> {
    const CHARS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 20];
    // A secret comes from the system itself; no simulation makes one.
    let filled = rand::rngs::OsRng.try_fill_bytes(&mut bytes);
    filled.map_err(|error| Failure::new(Exit::Error, format_args!("the system has no random numbers: {error}")))?;

    let chars: Vec<u8> = bytes.iter().map(|byte| CHARS[usize::from(byte % 32)]).collect();
    let groups: Vec<_> = chars.chunks(5).map(String::from_utf8_lossy).collect();
    Ok(groups.join("-"))
}

fn hosts_by_id(hosts: Vec<String>) -> BTreeMap<u64, Vec<String>> {
    (1..).zip(hosts.into_iter().map(|host| vec![host])).collect()
}

/// The directory's name with the cluster's id.
fn beside(dir: &Path, cluster: &str) -> PathBuf {
    let name = dir.file_name().unwrap_or_else(|| "certs".as_ref()).to_string_lossy();
    dir.with_file_name(format!("{name}-{cluster}"))
}

/// The next steps with the certificates of a restored cluster.
fn next(before: &Authority, authority: &Authority) -> String {
    let old = before.cluster();
    let new = authority.cluster();
    #[expect(clippy::disallowed_methods, reason = "certificates are valid by the calendar")]
    let until = Timestamp::now() + SignedDuration::from_hours(24 * CLIENTS_KEPT_DAYS);
    let until = until.strftime("%Y-%m-%dT%H:00:00Z");
    format!(
        "next: give each node its two files above, under the names in its configuration (ca.pem stays), and the cluster_id {new:?}. Clients \
         go on with their certificates of {old}, until the date, if the configuration of each node ends with these lines:\n\n\
         [earlier_cluster]\ncluster_id = {old:?}\nuntil = {until}\n\n\
         Give them their files above before that date; make further ones here with --dir {}\n",
        authority.directory().display()
    )
}

fn say(made: &mut String, whose: &str, files: &Files) {
    // Writing to a string does not fail.
    let _ = writeln!(made, "{whose}  {}  {}", files.certificate.display(), files.key.display());
}

impl From<CertsError> for Failure {
    fn from(error: CertsError) -> Self {
        let exit = match &error {
            CertsError::File { source, .. } => Exit::for_path(source),
            CertsError::Exists(_)
            | CertsError::Name(_)
            | CertsError::Taken { .. }
            | CertsError::Authority { .. }
            | CertsError::Browser { .. } => Exit::Usage,
        };
        Self::new(exit, error)
    }
}
