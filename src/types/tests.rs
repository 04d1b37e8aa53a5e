//! Constructors refuse values outside their limits.

use super::*;
use crate::limits::*;

fn message<T>(result: Result<T, Invalid>) -> String {
    result.err().map(|invalid| invalid.to_string()).unwrap_or_default()
}

#[test]
fn a_name_is_1_to_512_bytes_without_nul() {
    assert!(LockName::new("a").is_ok());
    assert!(LockName::new(&"é".repeat(NAME_BYTES_MAX / 2)).is_ok());
    assert_eq!(message(LockName::new("")), "the lock's name is empty: give it 1 to 512 bytes");
    assert_eq!(message(LockName::new(&"x".repeat(513))), "the lock's name has 513 bytes: the limit is 512");
    assert_eq!(message(LockName::new("a\0b")), r#"the lock's name "a\0b" has a NUL in it: leave it out"#);
}

#[test]
fn texts_and_data_have_their_limits() {
    assert!(Label::new("").is_ok() && Label::new(&"x".repeat(LABEL_BYTES_MAX)).is_ok());
    assert!(Label::new(&"x".repeat(LABEL_BYTES_MAX + 1)).is_err());
    assert!(Reason::new(&"x".repeat(REASON_BYTES_MAX)).is_ok());
    assert!(Reason::new("").is_err() && Reason::new(&"x".repeat(REASON_BYTES_MAX + 1)).is_err());
    assert!(Data::new(&[]).is_ok() && Data::new(&[0; DATA_BYTES_MAX]).is_ok());
    assert!(Data::new(&[0; DATA_BYTES_MAX + 1]).is_err());
}

#[test]
fn numbers_have_their_limits() {
    assert!(Ttl::from_millis(TTL_MS_MIN).is_ok() && Ttl::from_millis(TTL_MS_MAX).is_ok());
    assert_eq!(message(Ttl::from_millis(99)), "the TTL in milliseconds is 99: give it 100 to 86400000");
    assert!(Ttl::from_millis(0).is_err() && Ttl::from_millis(TTL_MS_MAX + 1).is_err());
    assert!(Permits::new(1).is_ok() && Permits::new(PERMITS_MAX).is_ok());
    assert!(Permits::new(0).is_err() && Permits::new(PERMITS_MAX + 1).is_err());
    assert_eq!(Wait::from_millis(0), Ok(Wait::Never));
    assert!(Wait::from_millis(WAIT_MS_MAX).is_ok() && Wait::from_millis(WAIT_MS_MAX + 1).is_err());
}

#[test]
fn an_acquire_is_1_to_64_locks_in_order_none_twice() {
    let want = |name: &str| {
        let name = LockName::new(name).unwrap();
        Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false }
    };
    let many = |count: usize| (0..count).map(|number| want(&number.to_string())).collect();
    let acquire = Acquire::new(vec![want("b"), want("a")], Wait::Never, 0).unwrap();
    assert_eq!(acquire.wants(), [want("a"), want("b")]);
    assert!(Acquire::new(many(WANTS_MAX), Wait::Never, LOCK_DELAY_MS_MAX).is_ok());
    assert!(Acquire::new(vec![], Wait::Never, 0).is_err());
    assert!(Acquire::new(many(WANTS_MAX + 1), Wait::Never, 0).is_err());
    assert!(Acquire::new(many(1), Wait::Never, LOCK_DELAY_MS_MAX + 1).is_err());
    assert!(Acquire::new(many(1), Wait::Millis(0), 0).is_err());
    assert!(Acquire::new(many(1), Wait::Millis(WAIT_MS_MAX + 1), 0).is_err());
    assert_eq!(
        message(Acquire::new(vec![want("a"), want("b"), want("a")], Wait::Never, 0)),
        r#"the lock "a" is named twice in one acquire: name it once"#
    );
}

#[test]
fn a_session_id_is_32_hexadecimal_digits() {
    let id = SessionId(0xabc);
    assert_eq!(id.to_string(), "00000000000000000000000000000abc");
    assert_eq!(id.to_string().parse(), Ok(id));
    for bad in ["", "abc", "+0000000000000000000000000000abc", "00000000000000000000000000000abg"] {
        assert!(bad.parse::<SessionId>().is_err(), "{bad:?} was taken");
    }
}

#[test]
fn an_identity_is_1_to_64_plain_characters() {
    for good in ["a", "shop-1", "ann@example.com", "spiffe:/cluster/web", "9", &"x".repeat(IDENTITY_BYTES_MAX)] {
        assert_eq!(Identity::new(good).map(|identity| identity.to_string()), Ok(good.to_owned()));
    }
    for bad in ["", "*", "shop-*", "-rf", ".", "two words", "a\nb", "a,b", "a\"b", "é", "a\0", &"x".repeat(65)] {
        assert!(Identity::new(bad).is_err(), "{bad:?} was taken");
    }
    let bad = "the identity \"a b\" contains ' ': use ASCII letters, digits and the characters . _ - @ : /";
    assert_eq!(message(Identity::new("a b")), bad);
    let reserved = "the identity \"anonymous\" is reserved for callers without one: choose another";
    assert_eq!(message(Identity::new("anonymous")), reserved);
}
