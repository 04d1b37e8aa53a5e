use proptest::prelude::*;

use super::*;

fn part() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![proptest::collection::vec(any::<u8>(), 0..6), proptest::collection::vec(any::<u8>(), 120..140)]
}

fn datum() -> impl Strategy<Value = Datum> {
    let hash = proptest::collection::vec((part(), part()), 0..20).prop_map(|pairs| {
        let mut fields = HashFields::default();
        for (field, value) in &pairs {
            fields.set(field, value.clone());
        }
        fields.into_datum()
    });
    let set = proptest::collection::vec(part(), 0..20).prop_map(|names| {
        let mut members = SetMembers::default();
        for name in &names {
            members.set(name, ());
        }
        members.into_datum()
    });
    let sorted = proptest::collection::vec((part(), any::<f64>()), 0..20).prop_map(|pairs| {
        let mut members = SortedMembers::default();
        for (member, score) in &pairs {
            if let Some(score) = Score::new(*score) {
                members.set(member, score);
            }
        }
        members.into_datum()
    });
    let list = proptest::collection::vec(part(), 0..20).prop_map(|items| ListItems::from(items).into_datum());
    prop_oneof![part().prop_map(Datum::Text), list, hash, set, sorted]
}

proptest! {
    #[test]
    fn a_value_is_read_as_it_was_written(datum in datum()) {
        let bytes = datum.encode();
        prop_assert_eq!(DatumKind::from_entry(&bytes), Some(datum.kind()));
        prop_assert_eq!(Datum::decode(&bytes), Some(datum));
    }

    /// Whatever is asked of the bytes is what the decoded value says.
    #[test]
    fn a_part_is_found_where_it_lies(datum in datum(), other in part(), place in 0..30_usize) {
        let entry = datum.encode();
        let at = |found: PartFound| found.place.map(|place| entry[place].to_vec());
        let named = |name: &[u8]| at(find_named(&entry, name).expect("it was encoded"));
        let count = count_parts(&entry);
        match &datum {
            Datum::Text(_) => {}
            Datum::List(items) => {
                prop_assert_eq!(count, Some(items.len()));
                prop_assert_eq!(at(find_item(&entry, place).expect("it was encoded")), items.get(place).cloned());
            }
            Datum::Hash(fields) => {
                prop_assert_eq!(count, Some(fields.len()));
                for field in fields.in_order().map(|(field, _)| field).chain([&other]) {
                    prop_assert_eq!(named(field), fields.get(field).cloned());
                }
            }
            Datum::Set(members) => {
                prop_assert_eq!(count, Some(members.len()));
                for member in members.in_order().map(|(member, ())| member).chain([&other]) {
                    prop_assert_eq!(named(member), members.contains(member).then(|| member.clone()));
                }
            }
            Datum::Sorted(members) => {
                prop_assert_eq!(count, Some(members.len()));
                for member in members.in_order().map(|(member, _)| member).chain([&other]) {
                    prop_assert_eq!(named(member).and_then(|score| score_in(&score)), members.score(member));
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_looked_through_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
        kind in 0..5_usize,
        name in part(),
        place in 0..9_usize,
    ) {
        let bytes = [&[[TEXT, LIST, HASH, SET, SORTED][kind]], &bytes[..]].concat();
        let is_readable = Datum::decode(&bytes).is_some();
        for found in [find_named(&bytes, &name), find_item(&bytes, place)].into_iter().flatten() {
            prop_assert!(found.passed <= bytes.len());
            prop_assert!(found.place.is_none_or(|place| bytes.get(place).is_some()));
        }
        prop_assert!(kind == 0 || !is_readable || count_parts(&bytes).is_some());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60), kind in 0..5_usize) {
        let bytes = [&[[TEXT, LIST, HASH, SET, SORTED][kind]], &bytes[..]].concat();
        if let Some(datum) = Datum::decode(&bytes) {
            prop_assert_eq!(Datum::decode(&datum.encode()), Some(datum));
        }
    }
}

#[test]
fn fields_keep_their_order() {
    let mut fields = OrderedFields::default();
    for field in ["b", "a", "c"] {
        assert!(fields.set(field.as_bytes(), field.to_owned()));
    }
    assert!(!fields.set(b"b", "again".to_owned()));
    assert!(fields.remove(b"a") && !fields.remove(b"a"));
    assert!(fields.set(b"a", "last".to_owned()));
    let order: Vec<_> = fields.in_order().map(|(_, value)| value.as_str()).collect();
    assert_eq!(order, ["again", "c", "last"]);
}

#[test]
fn members_are_ordered_by_score_and_then_by_name() {
    let score = |number| Score::new(number).expect("a number");
    let mut members = SortedMembers::default();
    for (member, number) in [("c", 1.0), ("b", 1.0), ("a", 2.0), ("d", f64::NEG_INFINITY)] {
        members.set(member.as_bytes(), score(number));
    }
    assert!(!members.set(b"a", score(0.0)));
    let order: Vec<_> = members.in_order().map(|(member, _)| String::from_utf8_lossy(member).into_owned()).collect();
    assert_eq!(order, ["d", "a", "b", "c"]);
    assert_eq!(members.rank(b"c"), Some(3));
    assert_eq!(members.rank(b"x"), None);
    assert_eq!(Score::new(f64::NAN), None);
}
