//! Tests: no more of an entry is read, copied or paid for than is asked for.

use super::*;
use crate::{
    RedisEntry,
    data::{HashFields, ListItems, Score, SetMembers, SortedMembers, encode_text},
};

const LARGE: usize = 300_000;

fn view() -> UnitView {
    let entry = |value| {
        let entry = RedisEntry { created: 1, modified: 1, deadline_ms: None, token: None, holder: None, value };
        Some(Arc::new(entry))
    };
    let large = entry(encode_text(&vec![b'x'; LARGE]));
    // A list that has no item but a long one.
    let list = entry(Datum::List(Arc::new([vec![b'x'; LARGE]].into())).encode());
    let entries = [("text", large), ("list", list), ("none", None)];
    let loaded = Loaded {
        entries: entries.into_iter().map(|(key, entry)| (store_key(0, key.as_bytes()), entry)).collect(),
        ..Loaded::default()
    };
    let moment = UnitMoment { wall_us: None, seed: 7 };
    UnitView::new(Arc::new(loaded), Arc::new(Cursors::new(7)), moment, 0)
}

#[test]
fn no_more_of_a_string_is_read_than_is_asked_for() {
    let mut view = view();
    assert_eq!(view.text_length(b"text"), Ok(LARGE));
    assert_eq!((view.text_length(b"none"), view.text_length(b"list")), (Ok(0), Err(Stop::wrong_type())));
    let end = |length: usize| length - 3..length;
    assert_eq!(view.text_part(b"text", end), Ok(Some(b"xxx".to_vec())));
    assert_eq!((view.text_part(b"none", end), view.text_part(b"list", end)), (Ok(None), Err(Stop::wrong_type())));
    assert!(view.paid_bytes() < 1_000, "{}", view.paid_bytes());

    // What the unit has written is seen, and the whole is paid for once.
    assert_eq!(view.text(b"text").map(|text| text.map(|text| text.len())), Ok(Some(LARGE)));
    assert!(view.paid_bytes() < LARGE + 1_000, "{}", view.paid_bytes());
    view.put_text(b"text", b"abcd".to_vec(), None).expect("it is loaded");
    assert_eq!(view.text_part(b"text", end), Ok(Some(b"bcd".to_vec())));
    assert_eq!(view.text_length(b"text"), Ok(4));
}

/// A hash of ten thousand fields is not built for one of them.
#[test]
fn no_more_of_a_structure_is_decoded_than_is_asked_for() {
    let mut fields = HashFields::default();
    let mut members = SetMembers::default();
    let mut scores = SortedMembers::default();
    let mut items = ListItems::default();
    for number in 0..10_000_u32 {
        let name = format!("field {number:04}").into_bytes();
        fields.set(&name, b"value".to_vec());
        members.set(&name, ());
        scores.set(&name, Score::new(f64::from(number)).expect("a number"));
        items.push_back(name);
    }
    let data = [
        ("h", fields.into_datum()),
        ("e", members.into_datum()),
        ("z", scores.into_datum()),
        ("l", items.into_datum()),
    ];
    let entry = |value| RedisEntry { created: 1, modified: 1, deadline_ms: None, token: None, holder: None, value };
    let entries = data.map(|(key, datum)| (store_key(0, key.as_bytes()), Some(Arc::new(entry(datum.encode())))));
    let loaded = Arc::new(Loaded { entries: entries.into_iter().collect(), ..Loaded::default() });
    let moment = UnitMoment { wall_us: None, seed: 7 };
    let new_view = || UnitView::new(Arc::clone(&loaded), Arc::new(Cursors::new(7)), moment, 0);
    let is_decoded = |view: &UnitView, key: &str| {
        view.slots.get(&store_key(0, key.as_bytes())).is_some_and(|slot| slot.datum().is_some())
    };

    let ask = |view: &mut UnitView, key: &str, name: &[u8]| match key {
        "h" => view.field(key.as_bytes(), name).map(|value| value.is_some()),
        "e" => view.has_member(key.as_bytes(), name),
        "z" => view.score(key.as_bytes(), name).map(|score| score.is_some()),
        _ => view.item(key.as_bytes(), |count| (count == 10_000).then_some(3)).map(|item| item.is_some()),
    };
    for (key, whole) in [("h", 170_000), ("e", 110_000), ("z", 190_000), ("l", 110_000)] {
        let mut view = new_view();
        assert_eq!(ask(&mut view, key, b"field 0003"), Ok(true));
        assert!(!is_decoded(&view, key), "{key}: none of the others is copied");
        let limit = if key == "l" { whole + 1_000 } else { 1_000 };
        assert!(view.paid_bytes() < limit, "{key}: {} bytes were visited", view.paid_bytes());

        // A script that asks again and again decodes it once, and pays for it once.
        for _ in 0..1_000 {
            assert_eq!(ask(&mut view, key, b"field 9999"), Ok(true));
        }
        assert!(is_decoded(&view, key));
        assert!(view.paid_bytes() < 2 * whole + 40_000, "{key}: {} bytes were visited", view.paid_bytes());
    }

    let mut view = new_view();
    let lengths = [
        view.part_count::<HashFields>(b"h"),
        view.part_count::<SetMembers>(b"e"),
        view.part_count::<SortedMembers>(b"z"),
        view.part_count::<ListItems>(b"l"),
    ];
    assert_eq!(lengths, [10_000; 4].map(Ok));
    assert!(["h", "e", "z", "l"].iter().all(|key| !is_decoded(&view, key)));
    assert_eq!(view.part_count::<ListItems>(b"h"), Err(Stop::wrong_type()));
    assert_eq!(view.field(b"z", b"x"), Err(Stop::wrong_type()));

    // What the unit has written is seen.
    let mut written = view.take::<HashFields>(b"h").expect("it is loaded");
    written.set(b"new", b"one".to_vec());
    view.put_back(b"h", written).expect("it is loaded");
    assert_eq!(view.field(b"h", b"new"), Ok(Some(b"one".to_vec())));
    assert_eq!(view.part_count::<HashFields>(b"h"), Ok(10_001));
}
