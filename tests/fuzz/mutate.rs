//! Mutations of inputs, from a seed: the same seed gives the same mutations.

use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

/// Lengths and numbers at the borders of their types.
const NUMBERS: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_fffe,
    0xffff_ffff_ffff_ffff,
];

/// Words of texts.
const WORDS: [&str; 21] = [
    "0",
    "-1",
    "+7",
    "1e9",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "true",
    "\"",
    "'",
    "\\",
    "\n",
    "[",
    "]",
    "{",
    "}",
    "é",
    "\0",
    "99999999999999999999",
    "[[rule]]\n",
    "\u{202e}",
];

/// Maximum bytes of a mutated input.
const BYTES_MAX: usize = 64 << 10;

/// One to eight changes of one of the inputs, with parts of the others.
pub(crate) fn mutated(inputs: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = inputs.choose(random).cloned().unwrap_or_default();
    for _ in 0..1 << random.random_range(0..4) {
        change(&mut bytes, inputs, random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut StdRng) {
    let at = random.random_range(0..=bytes.len());
    let length_max = (bytes.len() - at).min(1 << random.random_range(0..10));
    let length = random.random_range(0..=length_max);
    match random.random_range(0..10) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
        1 if at < bytes.len() => bytes[at] = random.random(),
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..at + length)),
        // The same part again: a repeated field, a block twice.
        4 => {
            let part = bytes[at..at + length].to_vec();
            let to = random.random_range(0..=bytes.len());
            bytes.splice(to..to, part);
        }
        // A part of another input.
        5 => {
            let other = inputs.choose(random).map(Vec::as_slice).unwrap_or_default();
            let from = random.random_range(0..=other.len());
            let to = random.random_range(from..=other.len());
            bytes.splice(at..at + length, other[from..to].iter().copied());
        }
        // A number, as fixed bytes of either order over what is there.
        6 => {
            let number = number(random);
            let width = [1, 2, 4, 8][random.random_range(0..4)].min(bytes.len() - at);
            let encoded = if random.random() { number.to_be_bytes() } else { number.to_le_bytes() };
            let from = if random.random() { 0 } else { 8 - width };
            bytes[at..at + width].copy_from_slice(&encoded[from..from + width]);
        }
        // A number, as a variable length integer.
        7 => drop(bytes.splice(at..at + length.min(1), variable(number(random)))),
        8 => {
            let word = WORDS.choose(random).copied().unwrap_or_default();
            bytes.splice(at..at + length.min(3), word.bytes());
        }
        // A field of Protobuf: a key, and a length that claims more than there is.
        _ => {
            let key = random.random_range(1..20_u8) << 3 | random.random_range(0..6);
            let field: Vec<u8> = std::iter::once(key).chain(variable(number(random))).collect();
            bytes.splice(at..at, field);
        }
    }
}

fn number(random: &mut StdRng) -> u64 {
    match random.random_range(0..3) {
        0 => random.random_range(0..300),
        _ => NUMBERS.choose(random).copied().unwrap_or_default(),
    }
}

fn variable(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
