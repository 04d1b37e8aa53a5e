//! The identity's file: TOML, readable for people, replaced as a whole.
//!
//! Its last line is a comment with the checksum (CRC-32) of all bytes before it, since format 2. One flipped bit in a remembered start
//! would be a lie about another member: a damaged file must end its own node, and never a healthy one. Format 1 has no checksum; a file of
//! it is read, and becomes one of format 2 with the first write, at the start of the node. A flipped bit cannot make a 1 of the 2.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use super::{IdentityError, IdentityRecord};
use lockkeeper_storage::files::create_directory;

/// The name of the file in the data directory.
pub const FILE_NAME: &str = lockkeeper_storage::IDENTITY_FILE;
/// The name under which a new version is written before it is renamed.
const ASIDE: &str = "identity.toml.new";
/// The version of the format. Fields are added, never changed; a node refuses a later version. Every later one keeps the checksum at the
/// end, so that damage is told from a format that is not known.
pub(super) const FORMAT: u32 = 2;
/// The version without a checksum.
const FORMAT_UNCHECKED: u32 = 1;
/// The begin of the last line.
const CHECKSUM: &str = "# checksum ";

const HEADING: &str =
    "# Identity of a Lockkeeper node. Written by the program: do not edit it, do not copy it to another node.\n\n";

/// The part of the file that all formats have.
#[derive(serde::Deserialize)]
struct IdentityFormat {
    format: u32,
}

/// The content of the file in `directory`; `None` if the directory does not exist or is empty.
pub(super) fn read(directory: &Path) -> Result<Option<IdentityRecord>, IdentityError> {
    let path = directory.join(FILE_NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return if is_empty(directory)? {
                Ok(None)
            } else {
                Err(IdentityError::Foreign { directory: directory.into() })
            };
        }
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let damaged = |reason: String| IdentityError::Damaged { file: path.clone(), reason };
    let text = String::from_utf8(bytes)
        .map_err(|error| damaged(format!("the bytes from {} on are not UTF-8", error.utf8_error().valid_up_to())))?;
    let found = find_checksum(&text);
    if found.is_some_and(|(content, sum)| checksum(content) != sum) {
        return Err(damaged("its checksum does not match".into()));
    }

    // First: a later format may have other fields.
    let IdentityFormat { format } = toml::from_str(&text).map_err(|error| damaged(error.message().into()))?;
    if !(FORMAT_UNCHECKED..=FORMAT).contains(&format) {
        return Err(IdentityError::Format { file: path, found: format, reads: FORMAT });
    }
    if found.is_none() && format != FORMAT_UNCHECKED {
        return Err(damaged("its checksum, the last line, is missing".into()));
    }
    let record: IdentityRecord = toml::from_str(&text).map_err(|error| damaged(error.message().into()))?;
    Ok(Some(IdentityRecord { format: FORMAT, ..record }))
}

/// The bytes that the checksum covers, and the checksum. Returns `None` if the last line has no checksum.
fn find_checksum(text: &str) -> Option<(&str, &str)> {
    let (content, last) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let sum = last.strip_prefix(CHECKSUM)?;
    Some((&text[..=content.len()], sum))
}

/// As it stands in the file.
fn checksum(content: &str) -> String {
    format!("{:08x}", crc32fast::hash(content.as_bytes()))
}

/// Writes the file so that after a crash it is either the old one or the new one.
pub(super) fn write(directory: &Path, record: &IdentityRecord) -> Result<(), IdentityError> {
    if !directory.exists() {
        create_directory(directory).map_err(failed("create", directory))?;
    }
    let aside = directory.join(ASIDE);
    let path = directory.join(FILE_NAME);

    // TOML's integers end at 2^63 - 1: a larger node id is refused here.
    let text = toml::to_string(record).map_err(|error| failed("write", &aside)(io::Error::other(error)))?;
    let content = HEADING.to_owned() + &text;
    let text = format!("{content}{CHECKSUM}{}\n", checksum(&content));

    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(failed("write", &aside))?;

    fs::rename(&aside, &path).map_err(failed("replace", &path))?;
    sync_directory(directory)
}

/// Whether a directory holds no data: an unfinished first version, and a file system's `lost+found`, do not count.
fn is_empty(directory: &Path) -> Result<bool, IdentityError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(failed("read", directory)(error)),
    };
    for entry in entries {
        let name = entry.map_err(failed("read", directory))?.file_name();
        if name != ASIDE && name != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sync_directory(directory: &Path) -> Result<(), IdentityError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed("sync", directory))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    move |source| IdentityError::Io { action, path: path.into(), source }
}
