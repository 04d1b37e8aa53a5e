//! Events, small: what a page of a hundred thousand of them can carry.
//!
//! Most lines of a history are of a few shapes. A packed event is an array: its line, the number of its shape, and what fills the
//! shape's holes, from left to right. A shape is the line's JSON with holes: 0 for a number or a truth value, 1 for a text. Texts are
//! kept once and named by their numbers. Nothing is lost but the order of fields.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use crate::chaos::history::History;

/// Texts, each kept once.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Texts {
    texts: Vec<String>,
    #[serde(skip)]
    places: HashMap<String, usize>,
}

impl Texts {
    /// The number of a text.
    pub(super) fn number(&mut self, text: &str) -> usize {
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        self.places.insert(text.to_owned(), self.texts.len());
        self.texts.push(text.to_owned());
        self.texts.len() - 1
    }
}

/// All events of a history.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Packed {
    shapes: Vec<Value>,
    /// Each: line, shape, and what fills the holes.
    events: Vec<Vec<Value>>,
    #[serde(skip)]
    known: HashMap<String, usize>,
}

/// The largest number that JavaScript keeps exactly.
const EXACT_MAX: u64 = (1 << 53) - 1;

impl Packed {
    pub(super) fn of(history: &History, texts: &mut Texts) -> Self {
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

/// Moves the values of a shape's holes to the row.
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
