//! What commands show to a cluster, and whom they trust: from flags, from the environment, or from a profile, in this order.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Deserialize;

use super::{
    CONNECTION,
    exit::{Exit, Failure},
};
use crate::client::{Builder, Tls, TlsFiles};

/// A bearer token. Not an argument: other users of the machine see those.
const TOKEN: &str = "LOCKKEEPER_BEARER_TOKEN";
const PROFILE: &str = "LOCKKEEPER_PROFILE";

/// Certificates and a bearer token.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct CredentialOptions {
    /// The authorities to trust: connect by TLS [env: LOCKKEEPER_CA]
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_CA", hide_env = true, help_heading = CONNECTION)]
    ca: Option<PathBuf>,
    /// The certificate to show; needs --key [env: LOCKKEEPER_CERT]
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_CERT", hide_env = true, help_heading = CONNECTION)]
    cert: Option<PathBuf>,
    /// The private key of --cert [env: LOCKKEEPER_KEY]
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_KEY", hide_env = true, help_heading = CONNECTION)]
    key: Option<PathBuf>,
    /// A file with a bearer token to show; LOCKKEEPER_BEARER_TOKEN may have the token itself [env: LOCKKEEPER_BEARER_TOKEN_FILE]
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKKEEPER_BEARER_TOKEN_FILE",
        hide_env = true,
        help_heading = CONNECTION
    )]
    bearer_token_file: Option<PathBuf>,
}

/// A file with what would otherwise be said at each command: `~/.config/lockkeeper/profile.toml`. Relative paths in it are relative to
/// its directory.
#[derive(Default, Deserialize, Debug)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Profile {
    /// As `--endpoints`.
    pub(super) endpoints: Option<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    bearer_token_file: Option<PathBuf>,
    /// Where it was read.
    #[serde(skip)]
    pub(super) file: PathBuf,
}

impl Profile {
    /// The profile that `LOCKKEEPER_PROFILE` names, or else the one in the user's configuration directory, if there is one.
    pub(super) fn read() -> Result<Self, Failure> {
        let named = env::var_os(PROFILE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let usual = || {
            let below_home = || Some(Path::new(&env::var_os("HOME")?).join(".config"));
            let folder = env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
            Some(folder.or_else(below_home)?.join("lockkeeper/profile.toml"))
        };

        let is_named = named.is_some();
        let Some(file) = named.or_else(usual) else { return Ok(Self::default()) };
        let wrong = |what: &dyn std::fmt::Display| {
            Failure::new(Exit::Usage, format_args!("the profile {} cannot be used: {what}", file.display()))
        };

        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => return Ok(Self::default()),
            Err(error) => return Err(wrong(&error)),
        };

        let mut profile: Self = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        for path in
            [&mut profile.ca, &mut profile.cert, &mut profile.key, &mut profile.bearer_token_file].into_iter().flatten()
        {
            *path = folder.join(&*path);
        }
        Ok(Self { file, ..profile })
    }
}

impl CredentialOptions {
    /// Completes what was not said from the profile. What belongs together comes from one place.
    pub(super) fn or(self, profile: &Profile) -> Self {
        let Self { ca, cert, key, bearer_token_file } = self;
        let (cert, key) =
            if cert.is_some() || key.is_some() { (cert, key) } else { (profile.cert.clone(), profile.key.clone()) };
        let has_token = bearer_token_file.is_some() || env::var_os(TOKEN).is_some();
        let bearer_token_file = if has_token { bearer_token_file } else { profile.bearer_token_file.clone() };
        Self { ca: ca.or_else(|| profile.ca.clone()), cert, key, bearer_token_file }
    }

    /// The files with certificates that are named.
    pub(crate) fn certificates(&self) -> Vec<&Path> {
        [&self.ca, &self.cert].into_iter().flatten().map(PathBuf::as_path).collect()
    }

    /// The certificates; nothing for connections in plain text.
    pub(crate) fn tls(&self) -> Result<Option<Tls>, Failure> {
        let usage = |what: &str| Failure::new(Exit::Usage, what);
        let own = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return Err(usage("--cert (LOCKKEEPER_CERT) needs its --key (LOCKKEEPER_KEY)")),
            (None, Some(_)) => return Err(usage("--key (LOCKKEEPER_KEY) needs its --cert (LOCKKEEPER_CERT)")),
        };

        let Some(ca) = self.ca.clone() else {
            return match own {
                Some(_) => {
                    Err(usage("--cert needs --ca (LOCKKEEPER_CA): without it there is no TLS to show a certificate in"))
                }
                None => Ok(None),
            };
        };

        let tls = Tls::load(TlsFiles { ca, own });
        tls.map(Some).map_err(|error| Failure::new(Exit::Usage, error))
    }

    /// The bearer token that the environment has itself.
    fn token() -> Result<Option<String>, Failure> {
        env::var_os(TOKEN)
            .map(|token| token.into_string())
            .transpose()
            .map_err(|_| Failure::new(Exit::Usage, format_args!("{TOKEN} is not valid UTF-8: correct it")))
    }

    /// The builder, with these credentials.
    pub(crate) fn apply(&self, builder: Builder) -> Result<Builder, Failure> {
        let builder = match self.tls()? {
            Some(tls) => builder.tls(&tls),
            None => builder,
        };

        // Commands such as `lock` and `watch` outlive a token: its file is followed.
        if let Some(file) = &self.bearer_token_file {
            return Ok(builder.token_file(file));
        }
        Ok(match Self::token()? {
            Some(token) => builder.token(&token),
            None => builder,
        })
    }
}
