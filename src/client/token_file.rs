//! A bearer token in a file, which is replaced while the client runs: Kubernetes writes a new token into the same file before the one of
//! before ends.
//!
//! The file is read again every [`REREAD`], whether there are calls or not: so the first call after a long pause has the present token.
//! A task does it, which ends with its client. It reads on a thread for blocking work, so a file system that hangs holds up no call.
//!
//! A change counts once the file reads the same twice, [`SETTLING`] apart: what is copied over a file comes in parts. A file that is
//! missing, empty or without a token leaves the last good token in use.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::sleep};
use tonic::metadata::{Ascii, MetadataValue};

use super::Error;

/// Interval at which the file is read again.
const REREAD: Duration = Duration::from_secs(1);
/// A changed file is read once more after this time.
const SETTLING: Duration = Duration::from_millis(200);
/// Longest file that is read, bytes. No node takes a header of this size.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A file with a bearer token, and the token that it had last.
pub(crate) struct FollowedToken {
    path: PathBuf,
    authorization: RwLock<MetadataValue<Ascii>>,
    /// Whether it can be read again. What comes through a pipe comes once.
    is_regular: bool,
}

impl FollowedToken {
    /// Reads the file. Fails with [`Error::TokenFile`] and [`Error::BearerToken`], which do not show the token.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>, Error> {
        let unreadable =
            |error: io::Error| Error::TokenFile { file: path.display().to_string(), why: error.to_string() };
        let file = File::open(path).map_err(unreadable)?;
        let is_regular = file.metadata().map_err(unreadable)?.is_file();
        let authorization = authorization(text(file).map_err(unreadable)?.trim())?;
        Ok(Arc::new(Self { path: path.to_owned(), authorization: RwLock::new(authorization), is_regular }))
    }

    /// The header's value with the last good token.
    pub(crate) fn authorization(&self) -> MetadataValue<Ascii> {
        self.authorization.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Follows the file in the background, for as long as somebody uses it. Needs a tokio runtime.
    pub(crate) fn follow(self: &Arc<Self>) {
        if !self.is_regular {
            return;
        }

        let followed = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut changed = None;
            let mut is_unusable = false;
            loop {
                sleep(if changed.is_some() { SETTLING } else { REREAD }).await;
                let Some(file) = followed.upgrade() else { return };

                let before = changed.take();
                let read = spawn_blocking(move || {
                    let read = file.refresh(before);
                    read.map_err(|why| (file.path.display().to_string(), why))
                });
                match read.await {
                    Ok(Ok(read)) => {
                        changed = read;
                        is_unusable = false;
                    }
                    Ok(Err((file, why))) if !is_unusable => {
                        tracing::warn!(file, %why, "the token file cannot be used; its last token stays in use");
                        is_unusable = true;
                    }
                    // It is known already, or the runtime ends.
                    Ok(Err(_)) | Err(_) => {}
                }
            }
        });
    }

    /// Reads the file once more. `before` is what it had the time before, if that was a change. Returns what has changed and must be read
    /// once more, before it is used.
    pub(crate) fn refresh(&self, before: Option<MetadataValue<Ascii>>) -> Result<Option<MetadataValue<Ascii>>, Error> {
        let unreadable =
            |error: io::Error| Error::TokenFile { file: self.path.display().to_string(), why: error.to_string() };
        // A pipe in its place could not be opened without a writer.
        if !fs::metadata(&self.path).map_err(unreadable)?.is_file() {
            return Err(unreadable(io::Error::other("it is not a regular file any more")));
        }
        let read = File::open(&self.path).and_then(text).map_err(unreadable)?;
        let read = authorization(read.trim())?;

        if read == self.authorization() {
            return Ok(None);
        }
        if before.as_ref() != Some(&read) {
            return Ok(Some(read));
        }
        *self.authorization.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(None)
    }
}

/// The header's value with a bearer token. Fails with [`Error::BearerToken`], which does not show it.
pub(crate) fn authorization(token: &str) -> Result<MetadataValue<Ascii>, Error> {
    let is_printable = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    let value = is_printable.then(|| format!("Bearer {token}").parse::<MetadataValue<Ascii>>().ok()).flatten();
    let mut value = value.ok_or(Error::BearerToken)?;
    // The token is neither logged nor kept in the table of HTTP/2's header compression.
    value.set_sensitive(true);
    Ok(value)
}

fn text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of its own, which is removed again.
    struct OwnFile(PathBuf);

    impl OwnFile {
        fn new(test: &str, token: &str) -> Self {
            let file = Self(std::env::temp_dir().join(format!("lockkeeper-{}-{test}", std::process::id())));
            file.write(token);
            file
        }

        fn write(&self, token: &str) {
            fs::write(&self.0, token).unwrap();
        }
    }

    impl Drop for OwnFile {
        fn drop(&mut self) {
            // A test may have removed it.
            let _ = fs::remove_file(&self.0);
        }
    }

    /// Reads the file until nothing has changed since the time before.
    fn settle(file: &FollowedToken) {
        let changed = file.refresh(None).unwrap();
        assert_eq!(file.refresh(changed).unwrap(), None);
    }

    #[test]
    fn a_token_that_is_replaced_in_its_file_is_shown_from_then_on() {
        let own = OwnFile::new("replaced", "first\n");
        let file = FollowedToken::open(&own.0).unwrap();
        assert_eq!(file.authorization(), "Bearer first");

        // The next one has the same length, and is a file of its own that takes the place of the first.
        own.write("later\n");
        settle(&file);
        assert_eq!(file.authorization(), "Bearer later");
        let next = OwnFile::new("next", "third");
        fs::rename(&next.0, &own.0).unwrap();
        settle(&file);
        assert_eq!(file.authorization(), "Bearer third");
    }

    #[test]
    fn the_last_good_token_stays_while_its_file_has_none() {
        let own = OwnFile::new("gone", "first");
        let file = FollowedToken::open(&own.0).unwrap();

        for unusable in ["", "  \n", "two words"] {
            own.write(unusable);
            assert!(matches!(file.refresh(None), Err(Error::BearerToken)));
        }
        fs::remove_file(&own.0).unwrap();
        assert!(matches!(file.refresh(None), Err(Error::TokenFile { .. })));
        assert_eq!(file.authorization(), "Bearer first");

        own.write("later");
        settle(&file);
        assert_eq!(file.authorization(), "Bearer later");
    }

    #[test]
    fn a_token_that_is_written_in_parts_counts_once_it_is_whole() {
        let own = OwnFile::new("parts", "first");
        let file = FollowedToken::open(&own.0).unwrap();
        own.write("lat");
        let part = file.refresh(None).unwrap();
        own.write("later");
        let whole = file.refresh(part).unwrap();
        assert!(whole.is_some() && file.authorization() == "Bearer first");
        assert_eq!(file.refresh(whole).unwrap(), None);
        assert_eq!(file.authorization(), "Bearer later");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_follows_its_file_without_calls_and_stops_with_its_last_user() {
        let own = OwnFile::new("followed", "first");
        let file = FollowedToken::open(&own.0).unwrap();
        file.follow();
        own.write("later");
        while file.authorization() != "Bearer later" {
            sleep(SETTLING).await;
        }

        // The task holds none of it while it pauses.
        let gone = Arc::downgrade(&file);
        drop(file);
        while gone.strong_count() > 0 {
            sleep(SETTLING).await;
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let missing = std::env::temp_dir().join("lockkeeper-no-token-here");
        let error = FollowedToken::open(&missing).err().unwrap();
        assert!(error.to_string().contains("lockkeeper-no-token-here"), "{error}");
    }
}
