//! Checks a history: which properties hold, which are violated, and the lines that show each violation.
//!
//! ```
//! use lockkeeper_checker::{Property, Verdict, check, history::History};
//!
//! let lines = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
//! {"time_ns":1,"process":"ann","type":"invoke","f":"open","value":{"session":"a","ttl_ms":10000}}
//! {"time_ns":2,"process":"ann","type":"ok","f":"open"}
//! {"time_ns":3,"process":"bob","type":"invoke","f":"open","value":{"session":"b","ttl_ms":10000}}
//! {"time_ns":4,"process":"bob","type":"ok","f":"open"}
//! {"time_ns":5,"process":"ann","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"a"}}
//! {"time_ns":6,"process":"ann","type":"ok","f":"acquire","value":{"token":1}}
//! {"time_ns":7,"process":"bob","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"b"}}
//! {"time_ns":8,"process":"bob","type":"ok","f":"acquire","value":{"token":2}}
//! {"time_ns":10,"process":"ann","type":"info","f":"renewed","value":{"session":"a","sent_ns":9}}"#;
//! let findings = check(&History::read(lines.as_bytes())?)?;
//!
//! // Ann has not released the lock, and her session is renewed after Bob got it: both have it.
//! let exclusion = findings.iter().find(|finding| finding.property == Property::MutualExclusion).expect("each property is checked");
//! assert!(matches!(exclusion.verdict, Verdict::Violated(_)));
//! # Ok::<_, lockkeeper_checker::history::ReadError>(())
//! ```
//!
//! [`check`] checks each property in its own file:
//!
//! | property | file |
//! |---|---|
//! | no conflicting grants at the same time | `exclusion`, on `grants` and `tenures` |
//! | tokens rise in the order of grants | `order` |
//! | a token has one owner | `tokens` |
//! | fenced resources accept no older grant after a newer one | `fencing` |
//! | no session ends before its holder stops trusting it | `early` |
//! | a dead holder's lock is granted to the next waiter | `expiry`, on `occupancy` |
//! | each wait ends, no lock is free while it has waiters | `waiters`, on `occupancy` |
//! | first come, first served | `queue` |
//! | a retried request has the same answer | `exactly_once` |
//! | acknowledged changes are not lost | `durability` |
//! | a client that lost a grant by force is told by the next renewal | `told` |
//! | no request of one client ends another client's session | `bystander`, on `contact` |
//! | equal tables at equal indexes, one leader per term | `agreement` |
//! | after the faults, the cluster serves | `liveness` |
//! | every node applies each entry, within bounds | `applicable`, `bounded` |
//! | transactions take effect in one order, watches report all changes once | `transactions` |
//! | a sequential order explains all answers | `linearizable`, on `wgl`, `lock_model` and `registers` |
//!
//! What concerns transactions, watches, entries and bounds is checked where a history tells of them. What concerns holders is also checked
//! for each protocol that a history names: see `protocols`.
//!
//! All but the last take one pass over sorted events: a million events take seconds, and memory grows with the history.
//!
//! Only *certain* facts are evidence of a violation: an answer was given, a lease was acknowledged, a bound was
//! promised in the meta. An unknown outcome is never evidence; a doubt counts for the cluster. Each file says what it
//! counts as certain. A property without evidence does not hold: it is [`Verdict::Vacuous`].
//!
//! A history in which the cluster was lost and restored from a backup is checked in parts: see `restored`.
//!
//! Deliberately absent: repairs of a history. A contradictory history is refused when it is read.

pub mod export;
pub mod history;
pub mod report;

mod agreement;
mod applicable;
mod bounded;
mod bystander;
mod calm;
mod contact;
mod durability;
mod early;
mod exactly_once;
mod exclusion;
mod expiry;
mod fencing;
mod grants;
mod linearizable;
mod liveness;
mod lock_model;
mod occupancy;
mod order;
mod protocols;
mod queue;
mod registers;
mod restored;
mod run;
mod show;
mod tenures;
mod tokens;
mod told;
mod transactions;
mod verdict;
mod waiters;
mod wgl;

use self::history::{History, ReadError};
pub use self::verdict::{Finding, Property, Verdict, Violation, Violations};
use self::{grants::Grants, run::Run};

/// Checks all properties of a history, in the order of [`Property::ALL`].
///
/// Fails only on a history that was built in memory and is contradictory: [`History::read`] and [`History::from_events`] refuse
/// those.
///
/// ```
/// use lockkeeper_checker::{Property, Verdict, check, history::History};
///
/// let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
/// {"time_ns":1,"process":"node1","type":"info","f":"table","value":{"node":1,"index":7,"hash":11}}
/// {"time_ns":2,"process":"node2","type":"info","f":"table","value":{"node":2,"index":7,"hash":12}}"#;
/// let findings = check(&History::read(text.as_bytes())?)?;
/// for finding in findings {
///     if finding.property == Property::Agreement {
///         let Verdict::Violated(violations) = finding.verdict else { panic!("the tables differ") };
///         assert_eq!(violations.shown[0].says, "nodes 1 and 2 have different tables at index 7");
///         assert_eq!(violations.shown[0].lines, [2, 3]);
///     } else {
///         // The two tables are also evidence that both nodes apply the log; of the rest there is none.
///         assert!(matches!(finding.verdict, Verdict::Holds | Verdict::Vacuous), "{finding:?}");
///     }
/// }
/// # Ok::<_, lockkeeper_checker::history::ReadError>(())
/// ```
pub fn check(history: &History) -> Result<Vec<Finding>, ReadError> {
    let mut findings = check_parts(history)?;
    for (protocol, of_protocol) in protocols::histories(history) {
        for finding in check_parts(&of_protocol)? {
            // The whole has a verdict without evidence; a protocol without it has none.
            if protocols::concerns_holders(finding.property) && finding.verdict != Verdict::Vacuous {
                let after = findings.iter().rposition(|whole| whole.property == finding.property);
                let finding = Finding { protocol: Some(protocol.clone()), ..finding };
                findings.insert(after.map_or(findings.len(), |place| place + 1), finding);
            }
        }
    }
    Ok(findings)
}

/// Checks all properties of a history of one protocol or of all.
fn check_parts(history: &History) -> Result<Vec<Finding>, ReadError> {
    let parts = restored::parts(history);
    if parts.len() == 1 {
        return check_one(history);
    }

    let findings = check_one(&restored::across(history))?;
    let parts = parts.iter().map(check_one).collect::<Result<Vec<_>, _>>()?;
    let judged = |whole: Finding| {
        let is_of_resources =
            matches!(whole.property, Property::TokenOrder | Property::NoTokenTwice | Property::Fencing);
        let is_of_holders = matches!(whole.property, Property::MutualExclusion | Property::NoEarlyExpiry);
        if is_of_holders {
            return Some(whole);
        }

        let of_all = parts.iter().flatten().filter(|finding| finding.property == whole.property);
        let merged = restored::merged(of_all.cloned().collect());
        // The whole cannot see all that reads show after a loss, and the parts do.
        let is_violated = |finding: &Finding| matches!(finding.verdict, Verdict::Violated(_));
        if is_of_resources && !merged.as_ref().is_some_and(|merged| is_violated(merged) && !is_violated(&whole)) {
            return Some(whole);
        }
        merged
    };
    Ok(findings.into_iter().filter_map(judged).collect())
}

/// Checks all properties of the history of one cluster.
fn check_one(history: &History) -> Result<Vec<Finding>, ReadError> {
    let run = Run::from_history(history)?;
    let grants = Grants::from_run(&run);
    let overlaps = tenures::overlaps(&grants);

    let locks = occupancy::locks(&run);
    let transactions = transactions::examine(&run);
    let mut findings = vec![
        exclusion::check(&run, &grants, &overlaps),
        order::check(&run, &grants),
        tokens::check(&run, &grants),
        fencing::check(&run),
        early::check(&run, &overlaps, &transactions.ended_early),
        expiry::check(&run, &locks),
        waiters::check(&run, &locks),
        queue::check(&run),
        exactly_once::check(&run),
        durability::check(&run, &grants, &overlaps),
        told::check(&run, &grants),
        bystander::check(&run, &grants),
        agreement::check(&run),
        liveness::check(&run),
    ];

    findings.extend(applicable::check(&run));
    findings.extend(bounded::check(&run));
    findings.extend(transactions.serializability);
    findings.extend(transactions.watches);
    findings.push(linearizable::check(&run, &grants));
    Ok(findings)
}
