//! Judges a history: which properties hold, which are broken, and by which lines.
//!
//! [`check`] looks at each property in a file of its own:
//!
//! | property | file |
//! |---|---|
//! | no two hold what only one may | `exclusion`, on `grants` and `tenures` |
//! | tokens rise with the order of grants | `order` |
//! | a token has one owner | `tokens` |
//! | fenced resources see no older grant after a newer one | `fencing` |
//! | no session ends before its holder stops trusting it | `early` |
//! | a dead holder's lock passes on | `expiry`, on `occupancy` |
//! | every wait ends, no lock is free while somebody waits | `waiters`, on `occupancy` |
//! | first come, first served | `queue` |
//! | the same request has the same answer | `exactly_once` |
//! | what was acknowledged is there | `durability` |
//! | who lost a grant by force hears of it with the next renewal | `told` |
//! | equal tables at equal indexes, one leader a term | `agreement` |
//! | after the faults, the cluster serves | `liveness` |
//! | there is an order of single steps that explains all | `linearizable`, on `wgl` and `lock_model` |
//!
//! All but the last take one pass over sorted events: a million of them are a matter of seconds, and memory grows with the history.
//!
//! What convicts is only what is *certain*: an answer was given, a lease was acknowledged, a bound was promised in the meta. An unknown
//! outcome never convicts; a doubt is decided for the cluster. So each file says what it counts as certain. And where there was nothing
//! to look at, a property does not hold: it is [`Verdict::Vacuous`].
//!
//! What is deliberately absent: any repair of a history. One that contradicts itself is refused when it is read.

mod agreement;
mod calm;
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
mod queue;
mod run;
mod show;
mod tenures;
mod tokens;
mod told;
mod verdict;
mod waiters;
mod wgl;

pub use self::verdict::{Finding, Property, Verdict, Violation, Violations};
use self::{grants::Grants, run::Run};
use super::history::{History, ReadError};

/// Judges a history by all properties, in the order of [`Property::ALL`].
///
/// Fails only on a history that was put together by hand and contradicts itself: [`History::read`] and [`History::of`] refuse those.
///
/// ```
/// use lockkeeper::chaos::{checker::{Property, Verdict, check}, history::History};
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
///         assert_eq!(finding.verdict, Verdict::Vacuous);
///     }
/// }
/// # Ok::<_, lockkeeper::chaos::history::ReadError>(())
/// ```
pub fn check(history: &History) -> Result<Vec<Finding>, ReadError> {
    let run = Run::of(history)?;
    let grants = Grants::of(&run);
    let overlaps = tenures::overlaps(&grants);
    let locks = occupancy::locks(&run);
    Ok(vec![
        exclusion::judge(&grants, &overlaps),
        order::judge(&run, &grants),
        tokens::judge(&run, &grants),
        fencing::judge(&run),
        early::judge(&run, &overlaps),
        expiry::judge(&run, &locks),
        waiters::judge(&run, &locks),
        queue::judge(&run),
        exactly_once::judge(&run),
        durability::judge(&run, &grants, &overlaps),
        told::judge(&run, &grants),
        agreement::judge(&run),
        liveness::judge(&run),
        linearizable::judge(&run, &grants),
    ])
}
