//! Searches bytes in bytes.

/// Whether bytes contain others. The time is linear, whatever the bytes are. Source: Knuth, Morris and Pratt, "Fast pattern matching in
/// strings".
pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    if part.is_empty() {
        return true;
    }
    if part.len() > bytes.len() {
        return false;
    }

    // For each prefix of `part`, this has the length of the longest shorter prefix that it ends with.
    let mut borders = vec![0; part.len()];
    let mut matched = 0;
    for at in 1..part.len() {
        matched = extended(part, &borders, matched, part[at]);
        borders[at] = matched;
    }

    matched = 0;
    for byte in bytes {
        matched = extended(part, &borders, matched, *byte);
        if matched == part.len() {
            return true;
        }
    }
    false
}

/// Returns how much of `part` the bytes up to this one end with, if up to the one before it was `matched`, which is less than all of
/// `part`.
fn extended(part: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    while matched > 0 && part[matched] != byte {
        matched = borders[matched - 1];
    }
    matched + usize::from(part[matched] == byte)
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_comparing_at_each_place_finds(
            bytes in collection::vec(0_u8..3, 0..40), part in collection::vec(0_u8..3, 0..6),
        ) {
            let naive = part.is_empty() || bytes.windows(part.len()).any(|window| window == part);
            prop_assert_eq!(contains(&bytes, &part), naive);
        }
    }
}
