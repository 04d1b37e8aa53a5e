//! Paths, keys, values.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use crate::{
    tree::{NodeLife, ZnodePath, ZnodeValue, split_numbered},
    wire::{AclEntry, ErrorCode},
};

#[test]
fn a_path_is_checked_as_zookeeper_does() {
    for good in ["/", "/a", "/a/b", "/a b/c-0000000001", "/..a", "/ä/漢字", "/a/…"] {
        assert_eq!(ZnodePath::parse(good).map(|path| path.as_str().to_owned()), Ok(good.to_owned()));
    }
    for bad in [
        "",
        "a",
        "/a/",
        "//",
        "/a//b",
        "/.",
        "/a/..",
        "/a/./b",
        "/a\0b",
        "/a\u{1f}",
        "/\u{7f}",
        "/\u{e000}",
        "/\u{fff0}",
        "/😀",
    ] {
        assert_eq!(ZnodePath::parse(bad), Err(ErrorCode::BadArguments), "{bad:?}");
    }
    // A key has 2 KiB at the most.
    let long = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
    assert_eq!(ZnodePath::parse(&long(2_039)).unwrap().key().len(), 2_048);
    assert_eq!(ZnodePath::parse(&long(2_040)), Err(ErrorCode::BadArguments));
    assert!(split_numbered(&long(2_029)).is_ok());
    assert!(split_numbered(&long(2_030)).is_err());

    assert_eq!(
        split_numbered("/a/").map(|(parent, name)| (parent.as_str().to_owned(), name)),
        Ok(("/a".to_owned(), ""))
    );
    assert_eq!(
        split_numbered("/x-").map(|(parent, name)| (parent.as_str().to_owned(), name)),
        Ok(("/".to_owned(), "x-"))
    );
    for bad in ["", "a", "/a//", "/a/\u{1}"] {
        assert!(split_numbered(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn keys_are_those_that_policies_and_operators_name() {
    let key = |path: &str| ZnodePath::parse(path).unwrap().key();
    assert_eq!(key("/"), b"zookeeper");
    assert_eq!(key("/a"), b"zookeeper\0a");
    assert_eq!(key("/a/b/c"), b"zookeeper/a/b\0c");
    assert_eq!(ZnodePath::from_key(b"zookeeper/secret"), None);
    assert_eq!(ZnodePath::from_key(b"redis/0/k"), None);
}

fn name() -> impl Strategy<Value = String> {
    "[a-c0/ -]{1,6}"
}

proptest! {
    #[test]
    fn no_two_paths_share_a_key_and_children_are_one_range(left in name(), right in name()) {
        let left = format!("/{left}");
        let right = format!("/{right}");
        if let (Ok(left), Ok(right)) = (ZnodePath::parse(&left), ZnodePath::parse(&right)) {
            prop_assert_eq!(left == right, left.key() == right.key());
            prop_assert_eq!(ZnodePath::from_key(&left.key()), Some(left.clone()));
            let (from, to) = left.child_keys();
            let (deeper_from, deeper_to) = left.deeper_keys();
            let key = right.key();
            let is_child = right.parent().as_ref() == Some(&left);
            prop_assert_eq!(is_child, from <= key && key < to);
            let stem = if left.is_root() { "/".to_owned() } else { format!("{}/", left.as_str()) };
            let is_deeper = !is_child && right != left && right.as_str().starts_with(&stem);
            prop_assert_eq!(is_deeper, deeper_from <= key && key < deeper_to, "{:?} {:?}", left, right);
        }
    }

    #[test]
    fn a_value_is_read_as_it_was_written(
        times in any::<(i64, i64, i32, i32)>(),
        data_revision in proptest::option::of(any::<u64>()),
        data in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..50).prop_map(Bytes::from)),
        life in prop_oneof![
            Just(NodeLife::Persistent),
            Just(NodeLife::Container),
            (1..1_i64 << 40).prop_map(|ms| NodeLife::Ttl { ms }),
        ],
        acl in proptest::collection::vec(("[a-z]{1,5}", "[a-z:]{0,9}", 0..32_i32), 0..4),
    ) {
        let (created_ms, modified_ms, version, acl_version) = times;
        let acl = acl.into_iter().map(|(scheme, id, permissions)| AclEntry { permissions, scheme, id }).collect();
        let value = ZnodeValue { life, created_ms, modified_ms, version, acl_version, data_revision, acl, data };
        let bytes = value.encode();
        prop_assert_eq!(ZnodeValue::is_data_written(&bytes), data_revision.is_none());
        let read = ZnodeValue::decode(&bytes);
        // A large node is not copied to be looked at.
        let is_shared = |data: &Bytes| data.is_empty() || bytes.as_ptr_range().contains(&data.as_ptr());
        prop_assert!(read.data.as_ref().is_none_or(is_shared));
        prop_assert_eq!(&read, &value);
        prop_assert_eq!(ZnodeValue::decode_without_acl(&bytes), ZnodeValue { acl: Arc::default(), ..value });
    }

    #[test]
    fn a_value_of_others_is_data(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let entry = Arc::from(&bytes[..]);
        let value = ZnodeValue::decode(&entry);
        prop_assert!(ZnodeValue::try_decode(&entry).is_some() || value.data.as_deref() == Some(&bytes[..]));
    }
}
