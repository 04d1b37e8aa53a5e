//! The vocabulary of transactions over registers, and of watches.
//!
//! Keys and values are text, and keys are ordered as their bytes are. A store whose keys are arbitrary bytes writes them in a form that
//! keeps their order, such as hexadecimal digits.

use serde::{Deserialize, Serialize};

use super::Session;

/// Steps that take effect at one moment. They depend on conditions, if there are any.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Transaction {
    /// The conditions. If all of them hold, the steps of `then` run, else those of `otherwise`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compares: Vec<TxnCompare>,
    /// The steps, if all conditions hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<TxnStep>,
    /// The steps, if a condition does not hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub otherwise: Vec<TxnStep>,
    /// The revision whose state is read. Without one, the state is that of the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// Whether the client accepts the state of an earlier moment.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// One step of a transaction. It sees what the steps before it wrote.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TxnStep {
    /// Reads a register.
    Get {
        /// The register.
        key: String,
    },
    /// Reads the registers of a range.
    Range(TxnRange),
    /// Writes a register.
    Put(TxnPut),
    /// Deletes a register.
    Delete {
        /// The register.
        key: String,
    },
    /// Deletes the registers of a range.
    DeleteRange(TxnRange),
}

/// A range of registers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TxnRange {
    /// The first key, included. Without one, the range starts with the first of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The end, excluded. Without one, the range ends with the last of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// A write of a register.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TxnPut {
    /// The register.
    pub key: String,
    /// Its new value.
    pub value: String,
    /// The session with which the value ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Session>,
    /// Whether the register keeps the session that it had.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keeps_lease: bool,
    /// Whether the register keeps its value when the session ends. That is then a change of its revision alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outlives_lease: bool,
    /// The lock that the register stands for while the session lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims: Option<String>,
}

/// A condition on a register, or on each register of a range.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TxnCompare {
    /// The register, or the first key of the range.
    pub key: String,
    /// The end of the range, excluded. A range without registers is compared as an absent register.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<String>,
    /// The property of the register.
    pub target: CompareTarget,
    /// How the property must relate to the operand.
    #[serde(default)]
    pub is: CompareRelation,
    /// The operand of the revisions and of the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The operand of the value and of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A property of a register. An absent register has the numbers 0 and no lease; a compare of its value never holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareTarget {
    /// The revision at which it came into being.
    Created,
    /// The revision of its last change.
    Modified,
    /// The number of its writes since it came into being.
    Version,
    /// Its value.
    Value,
    /// Its session.
    Lease,
}

/// How a property must relate to an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareRelation {
    /// The property equals the operand.
    #[default]
    Equal,
    /// The property differs from the operand.
    NotEqual,
    /// The property is less than the operand.
    Less,
    /// The property is greater than the operand.
    Greater,
}

/// The answer to a transaction that took effect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TxnAnswer {
    /// The revision of its writes. If it wrote nothing, it is the revision of the state that it read. A store without revisions has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Whether all conditions held.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub succeeded: bool,
    /// One result for each step of the branch that ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<StepResult>,
}

impl Default for TxnAnswer {
    /// An answer without a revision, of a transaction whose conditions held and that had no steps.
    fn default() -> Self {
        Self { revision: None, succeeded: true, results: Vec::new() }
    }
}

/// The result of a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepResult {
    /// The register that a get read, if it is present.
    Got(Option<SeenRegister>),
    /// The registers that were read in a range.
    Ranged(SeenRange),
    /// A put took effect.
    Put {},
    /// The number of registers that a delete deleted.
    Deleted {
        /// Their number, if the store says it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
    },
}

/// A register as a read showed it. A field that the store does not show is absent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenRegister {
    /// The value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The revision at which the register came into being.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    /// The revision of the last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<u64>,
    /// The number of writes since it came into being.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The session with which the value ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Session>,
}

/// The registers of a range, as a read showed them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenRange {
    /// The registers with their keys, in any order.
    pub registers: Vec<(String, SeenRegister)>,
    /// The number of registers in the range, if the store says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Whether a limit left out the greatest keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Whether other registers may be left out too, for example by a filter, or by a limit on an order that is not that of keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// A change of a register, as a watch reported it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchedChange {
    /// The register.
    pub key: String,
    /// The register after the change. It is absent if the register was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<SeenRegister>,
}

impl Transaction {
    /// The steps of the branch that ran.
    pub fn branch(&self, succeeded: bool) -> &[TxnStep] {
        if succeeded { &self.then } else { &self.otherwise }
    }

    /// Checks what no valid transaction has. Fails with a message for people.
    pub(super) fn validate(&self) -> Result<(), String> {
        for TxnCompare { key, target, number, text, .. } in &self.compares {
            let is_fit = match target {
                CompareTarget::Created | CompareTarget::Modified | CompareTarget::Version => {
                    number.is_some() && text.is_none()
                }
                CompareTarget::Value => text.is_some() && number.is_none(),
                CompareTarget::Lease => number.is_none(),
            };
            if !is_fit {
                return Err(format!(
                    "the compare of {key:?} needs a number for a revision or a version, and a text for a value or a lease"
                ));
            }
        }

        let has_writes = [&self.then, &self.otherwise].into_iter().flatten().any(TxnStep::is_write);
        if has_writes && (self.at.is_some() || self.stale) {
            return Err("a transaction that writes cannot read the state of an earlier moment".to_owned());
        }
        Ok(())
    }

    /// Checks that an answer fits the transaction. Fails with a message for people.
    pub(super) fn validate_answer(&self, answer: &TxnAnswer) -> Result<(), String> {
        let steps = self.branch(answer.succeeded);
        let results = &answer.results;
        if results.len() != steps.len() {
            let steps = steps.len();
            let results = results.len();
            return Err(format!(
                "the branch of the transaction that ran has {steps} steps, its answer {results} results"
            ));
        }

        match steps.iter().zip(results).position(|(step, result)| !step.fits(result)) {
            Some(place) => Err(format!("result {} is of another kind than the step", place + 1)),
            None => Ok(()),
        }
    }
}

impl TxnStep {
    /// Whether the step writes or deletes.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Put(_) | Self::Delete { .. } | Self::DeleteRange(_))
    }

    fn fits(&self, result: &StepResult) -> bool {
        matches!(
            (self, result),
            (Self::Get { .. }, StepResult::Got(_))
                | (Self::Range(_), StepResult::Ranged(_))
                | (Self::Put(_), StepResult::Put {})
                | (Self::Delete { .. } | Self::DeleteRange(_), StepResult::Deleted { .. })
        )
    }
}

impl TxnRange {
    /// Whether the range has this key.
    pub fn contains(&self, key: &str) -> bool {
        self.from.as_deref().is_none_or(|from| from <= key) && self.to.as_deref().is_none_or(|to| key < to)
    }
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_yes(yes: &bool) -> bool {
    *yes
}

#[cfg(test)]
mod tests {
    use crate::history::{History, Writer};

    const META: &str = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}"#;

    /// The error about a history of these lines, without their times and processes.
    fn refused(lines: &[&str]) -> String {
        let lines = lines.iter().map(|line| format!("\n{{\"time_ns\":1,\"process\":\"ann\",{line}}}"));
        let text = format!("{META}{}", lines.collect::<String>());
        History::read(text.as_bytes()).expect_err("it is malformed").to_string()
    }

    #[test]
    fn transactions_and_watches_read_back_as_they_were_written() {
        let text = format!(
            r#"{META}
{{"time_ns":1,"process":"ann","type":"info","f":"speaks","value":{{"process":"ann","protocol":"etcd"}}}}
{{"time_ns":2,"process":"ann","type":"invoke","f":"txn","value":{{"compares":[{{"key":"a","up_to":"c","target":"lease","is":"less","text":"s1"}}],"then":[{{"put":{{"key":"a","value":"1","lease":"s1","claims":"jobs"}}}},{{"delete_range":{{"from":"b"}}}}],"otherwise":[{{"get":{{"key":"a"}}}},{{"range":{{"to":"z"}}}}]}}}}
{{"time_ns":3,"process":"ann","type":"ok","f":"txn","value":{{"revision":7,"succeeded":false,"results":[{{"got":null}},{{"ranged":{{"registers":[["b",{{"value":"2","version":1}}]],"more":true}}}}]}}}}
{{"time_ns":4,"process":"bob","type":"info","f":"watching","value":{{"watch":"w","range":{{}},"after":7}}}}
{{"time_ns":5,"process":"bob","type":"info","f":"watched","value":{{"watch":"w","revision":8,"changes":[{{"key":"b"}}]}}}}
{{"time_ns":6,"process":"bob","type":"info","f":"watch_progress","value":{{"watch":"w","revision":9}}}}
{{"time_ns":7,"process":"bob","type":"info","f":"watch_ended","value":{{"watch":"w","why":"closed"}}}}
{{"time_ns":8,"process":"node1","type":"info","f":"refused_entry","value":{{"node":1,"index":5,"why":"unknown"}}}}
{{"time_ns":9,"process":"node1","type":"info","f":"longest_turn","value":{{"node":1,"runtime":"raft","us":5}}}}
{{"time_ns":9,"process":"node1","type":"info","f":"longest_apply","value":{{"node":1,"us":6}}}}
"#
        );
        let history = History::read(text.as_bytes()).unwrap();
        let mut writer = Writer::new(Vec::new());
        history.events.iter().for_each(|(_, event)| writer.write(event).unwrap());
        let again = History::read(&*writer.into_inner()).unwrap();
        assert_eq!(history.events, again.events);
        assert_eq!(history.events.len(), 11);
    }

    #[test]
    fn a_malformed_transaction_is_refused_with_its_line_and_the_reason() {
        let begin = r#""type":"invoke","f":"txn","value":{"then":[{"get":{"key":"a"}}]}"#;
        let cases: [(&[&str], &str); 8] = [
            (
                &[r#""type":"invoke","f":"txn","value":{"compares":[{"key":"a","target":"modified","text":"x"}]}"#],
                "line 2: the compare of \"a\" needs a number",
            ),
            (
                &[r#""type":"invoke","f":"txn","value":{"at":3,"then":[{"delete":{"key":"a"}}]}"#],
                "line 2: a transaction that writes cannot read the state of an earlier moment",
            ),
            (
                &[r#""type":"invoke","f":"txn","value":{"then":[{"increment":{"key":"a"}}]}"#],
                "line 2: in value: unknown variant `increment`",
            ),
            (&[begin, r#""type":"ok","f":"txn","value":{"revision":7}"#], "has 1 steps, its answer 0 results"),
            (&[begin, r#""type":"ok","f":"txn","value":{"results":[{"put":{}}]}"#], "result 1 is of another kind"),
            (
                &[begin, r#""type":"ok","f":"txn","value":{"revision":18446744073709551616,"results":[{"got":null}]}"#],
                "line 3: in value: invalid type: floating point",
            ),
            (
                &[begin, r#""type":"ok","f":"txn","value":{"revision":-1,"results":[{"got":null}]}"#],
                "line 3: in value: invalid value: integer `-1`",
            ),
            (
                &[r#""type":"info","f":"watched","value":{"watch":"w","revision":1}"#],
                "line 2: in the fact \"watched\": missing field `changes`",
            ),
        ];
        for (lines, reason) in cases {
            let error = refused(lines);
            assert!(error.contains(reason), "{error}");
        }
    }
}
