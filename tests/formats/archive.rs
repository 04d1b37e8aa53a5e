//! Files as text: hexadecimal lines of 32 bytes with their offset; lines of zeros are left out.
//!
//! sled fills its file with zeros in advance, so this is far smaller than the file, and a diff of it can be read.

use std::{fmt::Write as _, fs, path::Path};

const BYTES_IN_LINE: usize = 32;
const SUFFIX: &str = "hex";

/// The bytes of a hexadecimal text.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal digits")).collect()
}

/// Bytes as a hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

/// Writes each file below `from` as a text file below `to`.
pub(crate) fn pack(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("created");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("listed").path();
        let name = path.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
        if path.is_dir() {
            pack(&path, &to.join(name));
            continue;
        }
        let content = fs::read(&path).expect("readable");
        let mut text = format!("size {}\n", content.len());
        for (line, part) in content.chunks(BYTES_IN_LINE).enumerate() {
            if part.iter().any(|byte| *byte != 0) {
                writeln!(text, "{:x} {}", line * BYTES_IN_LINE, hex(part)).expect("writing to a string");
            }
        }
        fs::write(to.join(format!("{name}.{SUFFIX}")), text).expect("written");
    }
}

/// The reverse of [`pack`].
pub(crate) fn unpack(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("created");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("listed").path();
        let name = path.file_name().expect("a name").to_str().expect("UTF-8");
        if path.is_dir() {
            unpack(&path, &to.join(name));
            continue;
        }
        let name = name.strip_suffix(SUFFIX).and_then(|name| name.strip_suffix('.')).expect("a packed file");
        let text = fs::read_to_string(&path).expect("readable");
        let mut lines = text.lines();
        let size = lines.next().and_then(|line| line.strip_prefix("size ")).expect("its size first");
        let mut content = vec![0; size.parse().expect("a number")];
        for line in lines {
            let (offset, part) = line.split_once(' ').expect("an offset and bytes");
            let offset = usize::from_str_radix(offset, 16).expect("hexadecimal");
            let part = bytes(part);
            content[offset..offset + part.len()].copy_from_slice(&part);
        }
        fs::write(to.join(name), content).expect("written");
    }
}
