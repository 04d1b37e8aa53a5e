//! The steps of the driver, as messages.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::values::Bindings;
use crate::scenario::{DriverCommand, parsed, time};

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The message of a step. `id` is its name in the scenario, `numbers` tells the numbers of earlier ones.
pub(crate) fn message(
    number: u64,
    id: &str,
    command: &DriverCommand,
    numbers: impl Fn(&str) -> Option<u64>,
    bindings: &Bindings,
) -> Result<Value, String> {
    let DriverCommand { verb, words, named } = command;
    let word = |place: usize| words.get(place).map(String::as_str).unwrap_or_default();
    let flag = |name: &str| named.contains_key(name);

    let mut message = match verb.as_str() {
        "acquire" => {
            let names: Vec<&str> = word(0).split(',').collect();
            json!({ "lock": id, "names": names, "mode": mode(named)?, "wait_ms": wait_ms(named)? })
        }
        "campaign" => json!({ "lock": id, "name": word(0), "value": word(1), "wait_ms": wait_ms(named)? }),
        "cancel" => json!({ "of": numbers(word(0)).ok_or_else(|| format!("there is no step {}", word(0)))? }),
        "release" | "resign" | "remaining" => json!({ "lock": word(0) }),
        "ensure" => json!({ "lock": word(0), "min_left_ms": millis(time(word(1))?) }),
        "update" => {
            let data = if word(2) == "none" { Value::Null } else { json!(word(2)) };
            json!({ "lock": word(0), "name": word(1), "data": data, "keep_data": flag("keep") })
        }
        "proclaim" => json!({ "lock": word(0), "value": word(1) }),
        "get" | "leader" => json!({ "name": word(0) }),
        "observe" => json!({ "as": id, "name": word(0) }),
        "watch" => json!({ "as": id, "prefix": word(0) }),
        "force-release" => {
            let token = named.get("token").map(|lock| bindings.token(lock).ok_or(format!("{lock} has no token")));
            let reason = named.get("reason").ok_or("there is no reason=")?;
            json!({ "name": word(0), "token": token.transpose()?, "reason": reason })
        }
        _ => json!({}),
    };
    if verb == "acquire" {
        add_options(&mut message, named)?;
    }
    message["step"] = json!(number);
    message["do"] = json!(verb);
    Ok(message)
}

fn mode(named: &BTreeMap<String, String>) -> Result<&'static str, String> {
    match (named.contains_key("shared"), named.contains_key("permits")) {
        (true, true) => Err("it is shared, or has permits".to_owned()),
        (true, false) => Ok("shared"),
        (false, true) => Ok("permits"),
        (false, false) => Ok("exclusive"),
    }
}

fn wait_ms(named: &BTreeMap<String, String>) -> Result<Value, String> {
    Ok(match named.get("wait").map(String::as_str) {
        None | Some("forever") => Value::Null,
        Some("no") => json!(0),
        Some(wait) => json!(millis(time(wait)?)),
    })
}

fn add_options(message: &mut Value, named: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in named {
        match name.as_str() {
            "permits" => message["permits"] = json!(parsed::<u32>(value)?),
            "data" => message["data"] = json!(value),
            "keep" => message["keep_data"] = json!(true),
            "delay" => message["lock_delay_ms"] = json!(millis(time(value)?)),
            "must-exist" => message["must_exist"] = json!(true),
            "shared" | "wait" => {}
            other => return Err(format!("an acquire has no option {other:?}")),
        }
    }
    Ok(())
}
