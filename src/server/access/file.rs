//! A file of tokens or rules, which is read again while its node runs.
//!
//! Whoever copies a file over another one (`cp`) empties it first, and writes it in parts. A reader in between sees a text that is often in
//! order and says less: without a token, every stream of its identity would end. So a changed text counts once the file reads the same
//! twice, and one that would take everything away must say so ([`Tokens::parse_next`], [`Policy::parse`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use lockkeeper_planted::Planted;
use lockkeeper_policy::{Policy, PolicyFileError, Tokens};

/// What a file can say.
pub(super) trait AccessText: Default {
    /// Reads the text with which the node starts.
    fn parse(text: &str) -> Result<Self, PolicyFileError>;

    /// Reads the text that follows this one, which is in force.
    fn parse_next(&self, text: &str) -> Result<Self, PolicyFileError>;
}

impl AccessText for Tokens {
    fn parse(text: &str) -> Result<Self, PolicyFileError> {
        Self::parse(text)
    }

    fn parse_next(&self, text: &str) -> Result<Self, PolicyFileError> {
        self.parse_next(text)
    }
}

impl AccessText for Policy {
    fn parse(text: &str) -> Result<Self, PolicyFileError> {
        Self::parse(text)
    }

    fn parse_next(&self, text: &str) -> Result<Self, PolicyFileError> {
        Self::parse(text)
    }
}

/// A file and what it says.
#[derive(Debug)]
pub(super) struct AccessFile<T> {
    /// The path of the file, if one is configured.
    file: Option<PathBuf>,
    key: &'static str,
    current: RwLock<Arc<T>>,
    read: Mutex<ReadTexts>,
}

/// What was read of a file, or why it could not be.
type FileText = Result<String, io::ErrorKind>;

#[derive(Debug)]
struct ReadTexts {
    /// The text that was judged last, good or bad: each bad text is logged once.
    judged: FileText,
    /// The text that was read last, if it is another one: it may not be whole.
    unsettled: Option<FileText>,
}

/// What has come of reading a file again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reread {
    /// What was in force stays in force.
    Same,
    /// The same; but the text has changed since it was read last, so it is to be read again soon.
    Unsettled,
    /// Something else is in force.
    Changed,
}

impl<T: AccessText> AccessFile<T> {
    /// An empty path means that no file is configured. Fails with the key, the file, the line and the problem.
    pub(super) fn open(key: &'static str, file: &Path) -> Result<Self, String> {
        if file.as_os_str().is_empty() {
            let read = ReadTexts { judged: Ok(String::new()), unsettled: None };
            return Ok(Self { file: None, key, current: RwLock::default(), read: Mutex::new(read) });
        }

        let shown = file.display();
        let text = fs::read_to_string(file)
            .map_err(|error| format!("{key}: cannot read {shown}: {error}: name a file that this user can read"))?;
        let current = T::parse(&text).map_err(|error| format!("{key}: {shown}, {error}"))?;

        let current = RwLock::new(Arc::new(current));
        let read = Mutex::new(ReadTexts { judged: Ok(text), unsettled: None });
        Ok(Self { file: Some(file.to_owned()), key, current, read })
    }

    /// Whether there is a file.
    pub(super) fn is_configured(&self) -> bool {
        self.file.is_some()
    }

    /// What is in force, if there is a file.
    pub(super) fn get(&self) -> Option<Arc<T>> {
        self.file.as_ref()?;
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Reads the file again. A text that is not usable changes nothing.
    pub(super) fn refresh(&self) -> Reread {
        let Some(file) = &self.file else { return Reread::Same };
        let text = fs::read_to_string(file).map_err(|error| error.kind());

        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.judged == text {
            read.unsettled = None;
            return Reread::Same;
        }
        if read.unsettled.as_ref() != Some(&text) && !Planted::HalfCopiedFileCounts.is_on() {
            read.unsettled = Some(text);
            return Reread::Unsettled;
        }

        let outcome = self.judge(file, &text);
        *read = ReadTexts { judged: text, unsettled: None };
        outcome
    }

    fn judge(&self, file: &Path, text: &FileText) -> Reread {
        let key = self.key;
        let shown = file.display();
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(key, file = %shown, %error, "cannot be read again; what was read before stays in force");
                return Reread::Same;
            }
        };

        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        match current.parse_next(text) {
            Ok(next) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
                tracing::info!(key, file = %shown, "has changed and is in force");
                Reread::Changed
            }
            Err(PolicyFileError { line, problem }) => {
                tracing::error!(key, file = %shown, line, problem, "is refused; what was read before stays in force");
                Reread::Same
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_machine::Identity;
    use lockkeeper_policy::{BearerToken, TokenHash};

    use super::*;

    /// A file of tokens, of which `knows` tells which of two are in force.
    struct TokenFile {
        path: PathBuf,
        file: AccessFile<Tokens>,
        _directory: tempfile::TempDir,
    }

    fn entry(byte: u8) -> String {
        BearerToken::from_random([byte; 32]).entry(&Identity::new("ann").expect("valid"))
    }

    impl TokenFile {
        fn new(text: &str) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("tokens.toml");
            fs::write(&path, text).expect("written");
            let file = AccessFile::open("auth.tokens", &path).expect("in order");
            Self { path, file, _directory: directory }
        }

        fn write(&self, text: &str) -> [Reread; 2] {
            fs::write(&self.path, text).expect("written");
            [self.file.refresh(), self.file.refresh()]
        }

        fn knows(&self) -> [bool; 2] {
            let tokens = self.file.get().expect("it is configured");
            [1, 2].map(|byte| {
                let token = BearerToken::from_random([byte; 32]);
                tokens.identity(&TokenHash::from_token(token.reveal())).is_some()
            })
        }
    }

    #[test]
    fn a_file_counts_once_it_reads_the_same_twice() {
        let both = entry(1) + &entry(2);
        let tokens = TokenFile::new(&both);
        assert_eq!(tokens.file.refresh(), Reread::Same);

        // As `cp` writes it: emptied, then the first part, which is a good file by itself, then the rest.
        for part in ["", &entry(1)] {
            fs::write(&tokens.path, part).expect("written");
            assert_eq!(tokens.file.refresh(), Reread::Unsettled);
            assert_eq!(tokens.knows(), [true, true]);
        }
        assert_eq!(tokens.write(&both), [Reread::Same, Reread::Same]);

        assert_eq!(tokens.write(&entry(1)), [Reread::Unsettled, Reread::Changed]);
        assert_eq!(tokens.knows(), [true, false]);
    }

    #[test]
    fn a_file_that_stays_empty_withdraws_nothing_and_one_that_says_so_does() {
        let tokens = TokenFile::new(&entry(1));
        assert_eq!(tokens.write(""), [Reread::Unsettled, Reread::Same]);
        assert_eq!(tokens.knows(), [true, false]);
        fs::remove_file(&tokens.path).expect("it is there");
        assert_eq!([tokens.file.refresh(), tokens.file.refresh()], [Reread::Unsettled, Reread::Same]);
        assert_eq!(tokens.knows(), [true, false]);

        assert_eq!(tokens.write("token = []\n"), [Reread::Unsettled, Reread::Changed]);
        assert_eq!(tokens.knows(), [false, false]);
        assert_eq!(tokens.write(&entry(2)), [Reread::Unsettled, Reread::Changed]);
        assert_eq!(tokens.knows(), [false, true]);
    }
}
