//! The cluster versions that the program of this process supports.

use lockkeeper_machine::{Version, Versions};
use lockkeeper_planted::{PRETENDED_VERSION, pretended_version};

/// The cluster versions that this program supports: [`Versions::OWN`], unless a development build pretends to be an earlier one.
///
/// # Panics
///
/// If it is to pretend a version that it does not support.
pub fn supported_versions() -> Versions {
    pretended_version().map_or(Versions::OWN, |highest| versions_up_to(Version(highest)))
}

/// The versions of an earlier program whose highest is this one.
fn versions_up_to(highest: Version) -> Versions {
    let own = Versions::OWN;
    assert!(own.include(highest), "{PRETENDED_VERSION} is {highest}; this program supports {own}: choose one of these");
    Versions { highest, ..own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_program_supports_fewer_versions() {
        let Versions { lowest, highest } = Versions::OWN;
        let before = Version(highest.0 - 1);
        assert_eq!(versions_up_to(before), Versions { lowest, highest: before });
        assert_eq!(versions_up_to(highest), Versions::OWN);
    }

    #[test]
    #[should_panic(expected = "choose one of these")]
    fn nobody_pretends_to_be_a_later_program() {
        versions_up_to(Versions::NEXT.highest);
    }
}
