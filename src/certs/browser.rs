//! A client's certificate as one file for a browser: PKCS#12, which browsers and the keychains of systems import.
//!
//! The file has the client's certificate and key, encrypted by AES-256 under a key that PBKDF2 derives from the password. Its files in PEM
//! stay as they are. The certificate of the authority is not in it: some systems would then offer to trust that authority for every site,
//! so its own file is imported apart, by somebody who means it.
//!
//! The password protects the file on its way to the browser, by mail or on a stick. It is printable ASCII, because programs disagree about
//! how other characters are encoded in it.
//!
//! Deliberately absent: the older algorithms (RC2, Triple DES, SHA-1), which only systems without updates need.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use p12_keystore::{
    Certificate, EncryptionAlgorithm, KeyStore, KeyStoreEntry, MacAlgorithm, PrivateKey, PrivateKeyChain,
};
use rcgen::KeyPair;

use crate::{CertsError, Files, check_client_name, failed, replace};

/// Minimum number of characters of a password.
pub const PASSWORD_CHARS_MIN: usize = 12;
/// Maximum number of characters of a password.
const PASSWORD_CHARS_MAX: usize = 128;
/// Rounds of the derivation of the keys. It delays an import by a fraction of a second, and each guess of a password as much.
const ROUNDS: u32 = 200_000;

/// Writes `client-NAME.p12` beside the two files of this client, from these, readable by its owner alone. Replaces an earlier one.
///
/// Fails if the client has no certificate in this directory, if its key belongs to another certificate, or if the password has less than
/// [`PASSWORD_CHARS_MIN`] characters or others than printable ASCII. Then nothing is written. Takes some tenths of a second.
pub fn pack_for_browser(directory: &Path, name: &str, password: &str) -> Result<PathBuf, CertsError> {
    check_client_name(name)?;
    check_password(password)?;
    let files = Files::for_client(directory, name);
    let file = directory.join(format!("client-{name}.p12"));

    let at_fault = |source| CertsError::Browser { file: file.clone(), source };
    let (certificate, key) = read_pair(&files, name)?;
    let certificate = Certificate::from_der(&certificate).map_err(at_fault)?;
    let key = PrivateKey::from_der(&key).map_err(at_fault)?;

    // The name under which the browser lists it.
    let alias = format!("{name} of Lockkeeper");
    let mut store = KeyStore::new();
    store.add_entry(&alias, KeyStoreEntry::PrivateKeyChain(PrivateKeyChain::new(name, key, [certificate])));
    let packed = store
        .writer(password)
        .encryption_algorithm(EncryptionAlgorithm::PbeWithHmacSha256AndAes256)
        .encryption_iterations(ROUNDS)
        .mac_algorithm(MacAlgorithm::HmacSha256)
        .mac_iterations(ROUNDS)
        .write();
    replace(&file, &packed.map_err(at_fault)?, 0o600)?;
    Ok(file)
}

/// The certificate and the key of a client, in DER.
fn read_pair(files: &Files, name: &str) -> Result<(Vec<u8>, Vec<u8>), CertsError> {
    let read = |file: &Path| match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CertsError::Name(format!(
            "there is no {}: make the certificate first, by `lockkeeper certs client {name}`",
            file.display()
        ))),
        read => read.map_err(failed("read", file)),
    };
    let pem = read(&files.certificate)?;
    let key = read(&files.key)?;

    let unreadable = |file: &Path| CertsError::Name(format!("{} has no certificate or key in PEM", file.display()));
    let (_, parsed) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| unreadable(&files.certificate))?;
    let certificate = parsed.parse_x509().map_err(|_| unreadable(&files.certificate))?;
    let key = KeyPair::from_pem(&key).map_err(|_| unreadable(&files.key))?;

    // The certificate may have been made anew, with only one of the two files copied.
    if certificate.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
        let why =
            format!("{} is the key of another certificate than {}", files.key.display(), files.certificate.display());
        return Err(CertsError::Name(format!(
            "{why}: copy both again, or make them by `lockkeeper certs client {name}`"
        )));
    }
    Ok((parsed.contents, key.serialize_der()))
}

fn check_password(password: &str) -> Result<(), CertsError> {
    let is_printable = password.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_printable && (PASSWORD_CHARS_MIN..=PASSWORD_CHARS_MAX).contains(&password.len()) {
        return Ok(());
    }
    // Leave the password out: other people may see this message.
    Err(CertsError::Name(format!(
        "the password must have {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} letters, digits, spaces and signs of ASCII"
    )))
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        os::unix::fs::PermissionsExt as _,
        process::{Command, Stdio},
    };

    use p12_keystore::Pkcs12ImportPolicy;

    use super::*;
    use crate::Authority;

    const PASSWORD: &str = "correct horse 'battery\" $taple";

    /// What openssl says to the file; the password goes to its stdin. `None` if there is no openssl.
    fn openssl(file: &Path, password: &str) -> Option<Result<String, String>> {
        let mut command = Command::new("openssl");
        command.args(["pkcs12", "-info", "-nodes", "-passin", "stdin", "-in"]).arg(file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().ok()?;
        let mut stdin = running.stdin.take().expect("it is piped");
        // It may end before it has read all.
        let _ = stdin.write_all(format!("{password}\n").as_bytes());
        drop(stdin);
        let output = running.wait_with_output().expect("it ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(if output.status.success() {
            Ok(text(&output.stdout) + &text(&output.stderr))
        } else {
            Err(text(&output.stderr))
        })
    }

    #[test]
    fn the_file_has_the_clients_own_pair_and_opens_by_its_password_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), "shop").expect("it is made");
        let pair = authority.client("a.b@ops", 1).expect("it is made");
        let file = pack_for_browser(directory.path(), "a.b@ops", PASSWORD).expect("it is packed");
        assert_eq!(file, directory.path().join("client-a.b@ops.p12"));
        assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);

        let bytes = fs::read(&file).expect("it is there");
        let opened = KeyStore::from_pkcs12(&bytes, PASSWORD, Pkcs12ImportPolicy::Strict).expect("its password");
        let (_, chain) = opened.private_key_chain().expect("a key");
        let (certificate, key) = read_pair(&pair, "a.b@ops").expect("they are there");
        assert_eq!(
            (chain.certs().len(), chain.certs()[0].as_der(), chain.key().as_der()),
            (1, &certificate[..], &key[..])
        );
        assert!(KeyStore::from_pkcs12(&bytes, "correct horse battery", Pkcs12ImportPolicy::Strict).is_err());

        let Some(shown) = openssl(&file, PASSWORD) else {
            eprintln!("skipped: there is no openssl");
            return;
        };
        let shown = shown.expect("openssl reads it");
        for part in
            ["BEGIN PRIVATE KEY", "PBES2, PBKDF2, AES-256-CBC", "MAC: sha256, Iteration 200000", "CN = client-a.b@ops"]
        {
            assert!(shown.replace("CN=", "CN = ").contains(part), "{part}: {shown}");
        }
        assert_eq!(shown.matches("BEGIN CERTIFICATE").count(), 1, "the authority is not in it: {shown}");
        let refused = openssl(&file, "correct horse battery").expect("it is there").expect_err("another password");
        assert!(refused.contains("invalid password"), "{refused}");
    }

    #[test]
    fn a_pair_that_does_not_fit_and_a_weak_password_are_refused_and_nothing_is_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), "shop").expect("it is made");
        let ann = authority.client("ann", 1).expect("it is made");
        let bob = authority.client("bob", 1).expect("it is made");
        for (name, password, says) in [
            ("cid", PASSWORD, "`lockkeeper certs client cid`"),
            ("../ann", PASSWORD, "is not a valid client name"),
            ("ann", "short", "12 to 128"),
            ("ann", "correct h\u{f6}rse battery", "ASCII"),
            ("ann", "correct horse\nbattery", "ASCII"),
        ] {
            let refused = pack_for_browser(directory.path(), name, password).expect_err(says).to_string();
            assert!(refused.contains(says) && !refused.contains(password), "{refused}");
        }
        fs::copy(bob.key, &ann.key).expect("copied");
        let refused = pack_for_browser(directory.path(), "ann", PASSWORD).expect_err("another key").to_string();
        assert!(refused.contains("the key of another certificate"), "{refused}");
        assert!(!directory.path().join("client-ann.p12").exists());
    }
}
