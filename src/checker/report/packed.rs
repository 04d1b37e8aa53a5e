//! A compact encoding of events, for pages with a hundred thousand of them.
//!
//! Most lines of a history have one of a few shapes. A packed event is an array: its line, the number of its shape, and the values of the
//! shape's holes from left to right. A shape is the line's JSON with holes: 0 for a number or a boolean, 1 for a text. Texts are interned
//! and referred to by number. Only the order of fields is lost.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use crate::history::History;

/// Interned texts.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Texts {
    texts: Vec<String>,
    #[serde(skip)]
    places: HashMap<String, usize>,
}

impl Texts {
    /// Returns the number of a text, and interns the text if it is new.
    pub(super) fn number(&mut self, text: &str) -> usize {
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        self.places.insert(text.to_owned(), self.texts.len());
        self.texts.push(text.to_owned());
        self.texts.len() - 1
    }
}

/// All events of a history, packed.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PackedEvents {
    shapes: Vec<Value>,
    /// For each event: its line, its shape, and the values of the holes.
    events: Vec<Vec<Value>>,
    #[serde(skip)]
    known: HashMap<String, usize>,
}

/// The largest integer that JavaScript represents exactly.
const EXACT_MAX: u64 = (1 << 53) - 1;

impl PackedEvents {
    pub(super) fn from_history(history: &History, texts: &mut Texts) -> Self {
        let mut packed = Self::default();
        for (line, _) in &history.events {
            let event = history.line(*line).and_then(|text| serde_json::from_str::<Value>(&text).ok());
            if let Some(mut event) = event {
                packed.push(*line, &mut event, texts);
            }
        }
        packed
    }

    fn push(&mut self, line: usize, event: &mut Value, texts: &mut Texts) {
        let mut row = vec![line.into(), 0.into()];
        empty(event, &mut row, texts);
        let shape = self.known.entry(event.to_string()).or_insert_with(|| {
            self.shapes.push(event.clone());
            self.shapes.len() - 1
        });
        row[1] = (*shape).into();
        self.events.push(row);
    }
}

/// Moves the values of a shape's holes into the row.
fn empty(value: &mut Value, row: &mut Vec<Value>, texts: &mut Texts) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|field| empty(field, row, texts)),
        Value::Array(parts) => parts.iter_mut().for_each(|part| empty(part, row, texts)),
        Value::String(text) => {
            row.push(texts.number(text).into());
            *value = 1.into();
        }
        Value::Number(number) if number.as_u64().is_some_and(|number| number > EXACT_MAX) => {
            row.push(texts.number(&number.to_string()).into());
            *value = 1.into();
        }
        Value::Number(_) | Value::Bool(_) | Value::Null => {
            row.push(value.take());
            *value = 0.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decoder of the page.
    fn fill(shape: &Value, row: &mut impl Iterator<Item = Value>, texts: &Texts) -> Value {
        match shape {
            Value::Object(fields) => fields
                .iter()
                .map(|(name, field)| (name.clone(), fill(field, row, texts)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Value::Array(parts) => parts.iter().map(|part| fill(part, row, texts)).collect::<Vec<_>>().into(),
            hole @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                let value = row.next().expect("each hole is filled");
                match (hole.as_u64(), value.as_u64()) {
                    (Some(1), Some(text)) => texts.texts[usize::try_from(text).expect("a place")].clone().into(),
                    _ => value,
                }
            }
        }
    }

    #[test]
    fn what_is_packed_is_what_was_there() {
        let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1,"seed":18446744073709551615}}
{"time_ns":1,"process":"ann","type":"invoke","f":"acquire","op":1,"lock":["a","b"],"value":{"session":"s","mode":["shared",{"permits":3}],"wait":"forever"}}
{"time_ns":2,"process":"ann","type":"ok","f":"acquire","op":1,"value":{"token":1,"place_lost":true}}
{"time_ns":3,"process":"bob","type":"invoke","f":"acquire","op":1,"lock":["c","b"],"value":{"session":"t","mode":["shared",{"permits":4}],"wait":"forever"}}
{"time_ns":4,"process":"node1","type":"info","f":"table","value":{"node":1,"index":7,"hash":9007199254740993}}"#;
        let history = History::read(text.as_bytes()).expect("it is a history");
        let mut texts = Texts::default();
        let packed = PackedEvents::from_history(&history, &mut texts);
        // Two events have the same shape.
        assert_eq!((packed.events.len(), packed.shapes.len()), (5, 4));
        for row in &packed.events {
            let line = row[0].as_u64().and_then(|line| usize::try_from(line).ok()).expect("a line");
            let shape = row[1].as_u64().and_then(|shape| usize::try_from(shape).ok()).expect("a shape");
            let mut holes = row[2..].iter().cloned();
            let event = fill(&packed.shapes[shape], &mut holes, &texts);
            assert_eq!(holes.next(), None);
            let there = history.line(line).expect("it has this line");
            // Numbers that JavaScript would round are texts.
            let exact = there
                .replace("18446744073709551615", "\"18446744073709551615\"")
                .replace("9007199254740993", "\"9007199254740993\"");
            assert_eq!(event, serde_json::from_str::<Value>(&exact).expect("it is JSON"));
        }
        let mut once = texts.texts.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), texts.texts.len());
    }
}
