//! Attribute values: their ten types, their JSON, and their sizes.
//!
//! JSON is read straight into an [`AttributeValue`], without a generic tree: a body of 16 MiB of tiny values would become a gigabyte of
//! maps.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Formatter},
    io,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap as _,
};

use crate::Number;

/// An item, or a map inside one.
pub type Item = BTreeMap<String, AttributeValue>;

/// The first character of a message of the JSON reader that is about a value, not about the JSON. The message becomes DynamoDB's
/// `ValidationException`.
pub(crate) const INVALID_VALUE: &str = "\u{1}";
/// Maximum depth of lists and maps.
pub(crate) const DEPTH_MAX: usize = 32;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "DynamoDB's own names, but for the case of the letters")]
pub enum AttributeValue {
    S(String),
    N(Number),
    B(Vec<u8>),
    Bool(bool),
    Null,
    Ss(BTreeSet<String>),
    Ns(BTreeSet<Number>),
    Bs(BTreeSet<Vec<u8>>),
    L(Vec<AttributeValue>),
    M(Item),
}

impl AttributeValue {
    /// The type's name in JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::S(_) => "S",
            Self::N(_) => "N",
            Self::B(_) => "B",
            Self::Bool(_) => "BOOL",
            Self::Null => "NULL",
            Self::Ss(_) => "SS",
            Self::Ns(_) => "NS",
            Self::Bs(_) => "BS",
            Self::L(_) => "L",
            Self::M(_) => "M",
        }
    }

    /// The type's name in some messages.
    pub(crate) fn long_kind(&self) -> &'static str {
        match self {
            Self::S(_) => "STRING",
            Self::N(_) => "NUMBER",
            Self::B(_) => "BINARY",
            Self::Bool(_) => "BOOLEAN",
            Self::Null => "NULL",
            Self::Ss(_) => "STRING_SET",
            Self::Ns(_) => "NUMBER_SET",
            Self::Bs(_) => "BINARY_SET",
            Self::L(_) => "LIST",
            Self::M(_) => "MAP",
        }
    }

    /// The size in bytes, as DynamoDB counts them.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::S(text) => text.len(),
            Self::N(number) => number.size(),
            Self::B(bytes) => bytes.len(),
            Self::Bool(_) | Self::Null => 1,
            Self::Ss(set) => set.iter().map(String::len).sum(),
            Self::Ns(set) => set.iter().map(|number| number.size()).sum(),
            Self::Bs(set) => set.iter().map(Vec::len).sum(),
            Self::L(list) => 3 + list.iter().map(|value| 1 + value.size()).sum::<usize>(),
            Self::M(map) => 3 + map.len() + item_size(map),
        }
    }

    /// The text of a string.
    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Self::S(text) = self { Some(text) } else { None }
    }

    /// The number of a number value.
    pub(crate) fn as_number(&self) -> Option<Number> {
        if let Self::N(number) = self { Some(*number) } else { None }
    }

    fn depth(&self) -> usize {
        match self {
            Self::L(list) => 1 + list.iter().map(Self::depth).max().unwrap_or(0),
            Self::M(map) => 1 + map.values().map(Self::depth).max().unwrap_or(0),
            Self::S(_) | Self::N(_) | Self::B(_) | Self::Bool(_) | Self::Null => 0,
            Self::Ss(_) | Self::Ns(_) | Self::Bs(_) => 0,
        }
    }

    /// Whether lists and maps are nested deeper than DynamoDB allows.
    pub(crate) fn is_too_deep(&self) -> bool {
        self.depth() > DEPTH_MAX
    }
}

/// The size of names and values in bytes, as DynamoDB counts them.
pub(crate) fn item_size(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + value.size()).sum()
}

/// The size of an item's JSON in bytes. A number of three bytes may have 130 digits there.
pub(crate) fn json_bytes(item: &Item) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, item).expect("texts and numbers are JSON");
    count.0
}

impl Serialize for AttributeValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        let kind = self.kind();

        match self {
            Self::S(text) => map.serialize_entry(kind, text)?,
            Self::N(number) => map.serialize_entry(kind, &number.to_string())?,
            Self::B(bytes) => map.serialize_entry(kind, &STANDARD.encode(bytes))?,
            Self::Bool(value) => map.serialize_entry(kind, value)?,
            Self::Null => map.serialize_entry(kind, &true)?,
            Self::Ss(set) => map.serialize_entry(kind, set)?,
            Self::Ns(set) => map.serialize_entry(kind, &set.iter().map(Number::to_string).collect::<Vec<_>>())?,
            Self::Bs(set) => map.serialize_entry(kind, &set.iter().map(|b| STANDARD.encode(b)).collect::<Vec<_>>())?,
            Self::L(list) => map.serialize_entry(kind, list)?,
            Self::M(item) => map.serialize_entry(kind, item)?,
        }

        map.end()
    }
}

impl<'de> Deserialize<'de> for AttributeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OneValue)
    }
}

/// Reads a value like `{"S": "…"}`.
struct OneValue;

impl<'de> Visitor<'de> for OneValue {
    type Value = AttributeValue;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an attribute value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<AttributeValue, M::Error> {
        let mut value = None;
        while let Some(kind) = map.next_key::<String>()? {
            let Some(next) = read(&kind, &mut map)? else { continue };
            if value.replace(next).is_some() {
                return Err(invalid(
                    "Supplied AttributeValue has more than one datatypes set, must contain exactly one of the supported \
                     datatypes",
                ));
            }
        }

        value.ok_or_else(|| {
            invalid("Supplied AttributeValue is empty, must contain exactly one of the supported datatypes")
        })
    }
}

fn invalid<E: serde::de::Error>(message: impl std::fmt::Display) -> E {
    E::custom(format_args!("{INVALID_VALUE}{message}"))
}

const PARAMETERS: &str = "One or more parameter values were invalid: ";

/// Reads the value of one type. Returns `None` for an unknown type or `null`, which DynamoDB ignores.
fn read<'de, M: MapAccess<'de>>(kind: &str, map: &mut M) -> Result<Option<AttributeValue>, M::Error> {
    Ok(Some(match kind {
        "S" => return Ok(map.next_value::<Option<_>>()?.map(AttributeValue::S)),
        "N" => {
            return map.next_value::<Option<String>>()?.map(|text| Ok(AttributeValue::N(number(&text)?))).transpose();
        }
        "B" => return map.next_value::<Option<String>>()?.map(|text| Ok(AttributeValue::B(blob(&text)?))).transpose(),
        "BOOL" => return Ok(map.next_value::<Option<_>>()?.map(AttributeValue::Bool)),
        "NULL" => match map.next_value::<Option<bool>>()? {
            None => return Ok(None),
            Some(true) => AttributeValue::Null,
            Some(false) => {
                return Err(invalid(format_args!(
                    "{PARAMETERS}Null attribute value types must have the value of true"
                )));
            }
        },
        "SS" => {
            let Some(list) = map.next_value::<Option<Vec<String>>>()? else { return Ok(None) };
            let printed = || format!("{PARAMETERS}Input collection [{}] contains duplicates.", list.join(", "));
            AttributeValue::Ss(set(list.iter().cloned().map(Ok), "An string set  may not be empty", printed)?)
        }
        "NS" => {
            let Some(list) = map.next_value::<Option<Vec<String>>>()? else { return Ok(None) };
            let duplicates = || "Input collection contains duplicates".to_owned();
            AttributeValue::Ns(set(
                list.iter().map(|text| number(text)),
                "An number set  may not be empty",
                duplicates,
            )?)
        }
        "BS" => {
            let Some(list) = map.next_value::<Option<Vec<String>>>()? else { return Ok(None) };
            let printed =
                || format!("{PARAMETERS}Input collection [{}]of type BS contains duplicates.", list.join(", "));
            AttributeValue::Bs(set(list.iter().map(|text| blob(text)), "Binary sets should not be empty", printed)?)
        }
        "L" => return Ok(map.next_value::<Option<_>>()?.map(AttributeValue::L)),
        "M" => return Ok(map.next_value::<Option<_>>()?.map(AttributeValue::M)),
        _ => {
            map.next_value::<IgnoredAny>()?;
            return Ok(None);
        }
    }))
}

fn set<T: Ord, E: serde::de::Error>(
    elements: impl Iterator<Item = Result<T, E>>,
    empty: &str,
    duplicates: impl Fn() -> String,
) -> Result<BTreeSet<T>, E> {
    let mut set = BTreeSet::new();
    for element in elements {
        if !set.insert(element?) {
            return Err(invalid(duplicates()));
        }
    }

    if set.is_empty() { Err(invalid(format_args!("{PARAMETERS}{empty}"))) } else { Ok(set) }
}

fn number<E: serde::de::Error>(text: &str) -> Result<Number, E> {
    text.parse().map_err(invalid)
}

fn blob<E: serde::de::Error>(text: &str) -> Result<Vec<u8>, E> {
    STANDARD.decode(text).map_err(|_| E::custom("only base-64-encoded strings are convertible to bytes"))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn read(json: &str) -> Result<AttributeValue, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn all_types_are_read_and_written() {
        for json in [
            r#"{"S":"a\"ü"}"#,
            r#"{"N":"-12.5"}"#,
            r#"{"B":"AAEC"}"#,
            r#"{"BOOL":false}"#,
            r#"{"NULL":true}"#,
            r#"{"SS":["a","b"]}"#,
            r#"{"NS":["1","10"]}"#,
            r#"{"BS":["AA=="]}"#,
            r#"{"L":[{"S":""},{"L":[]}]}"#,
            r#"{"M":{"k":{"M":{}}}}"#,
        ] {
            let value = read(json).unwrap();
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
        }
    }

    #[test]
    fn bad_values_have_the_known_texts() {
        for (json, text) in [
            ("{}", "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"),
            (r#"{"X":"a"}"#, "Supplied AttributeValue is empty"),
            (r#"{"S":"a","N":"1"}"#, "Supplied AttributeValue has more than one datatypes set"),
            (r#"{"NULL":false}"#, "Null attribute value types must have the value of true"),
            (r#"{"SS":[]}"#, "One or more parameter values were invalid: An string set  may not be empty"),
            (r#"{"SS":["b","a","b"]}"#, "Input collection [b, a, b] contains duplicates."),
            (r#"{"NS":["1","1.0"]}"#, "Input collection contains duplicates"),
            (r#"{"N":"x"}"#, "The parameter cannot be converted to a numeric value: x"),
            (r#"{"L":[{"M":{"k":{"N":"1e999"}}}]}"#, "Number overflow."),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.starts_with(INVALID_VALUE) && error.contains(text), "{json}: {error}");
        }
        for json in [r#"{"S":1}"#, r#"{"N":1}"#, r#"{"B":"?"}"#, r#"{"BOOL":"x"}"#, r#"{"L":{}}"#, "[]", "5", "{"] {
            assert!(!read(json).unwrap_err().starts_with(INVALID_VALUE), "{json}");
        }
    }

    /// Any value, four levels deep at most.
    pub(crate) fn any_value() -> impl Strategy<Value = AttributeValue> {
        let number = || (any::<bool>(), any::<u64>(), -20_i16..20);
        let number = move || number().prop_filter_map("in range", |(s, c, e)| Number::from_parts(s, c.into(), e));
        let text = || "[a-c\u{0}ü]{0,3}";
        let bytes = || collection::vec(any::<u8>(), 0..4);
        let leaf = prop_oneof![
            text().prop_map(AttributeValue::S),
            number().prop_map(AttributeValue::N),
            bytes().prop_map(AttributeValue::B),
            any::<bool>().prop_map(AttributeValue::Bool),
            Just(AttributeValue::Null),
            collection::btree_set(text(), 1..4).prop_map(AttributeValue::Ss),
            collection::btree_set(number(), 1..4).prop_map(AttributeValue::Ns),
            collection::btree_set(bytes(), 1..4).prop_map(AttributeValue::Bs),
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                collection::vec(inner.clone(), 0..4).prop_map(AttributeValue::L),
                collection::btree_map(text(), inner, 0..4).prop_map(AttributeValue::M),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_is_read_as_it_was_written(value in any_value()) {
            let json = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(read(&json), Ok(value));
        }
    }
}
