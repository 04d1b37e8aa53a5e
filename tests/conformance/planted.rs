//! Proof that the scenarios can fail: drivers that are broken on purpose, and expectations that are false.

use std::sync::Arc;

use crate::{
    rust_driver_program,
    scenario::Scenario,
    suite::{Case, Expected},
};

/// A broken driver, a scenario, and a part of what the judge then says.
const BROKEN: &[(&str, &str, &str)] = &[
    ("opens-early", "session_opened_late", "C1"),
    ("session-each", "session_shared", "session is"),
    ("trusts-for-ever", "out_of_contact", "A1"),
    ("trusts-for-ever", "revoked", "A1"),
    ("never-tells", "revoked", "it is not told"),
    ("tells-late", "out_of_contact", "it is not told"),
    ("tells-twice", "lost_expired", "A4"),
    ("wrong-reason", "lost_closed", "reason is"),
    ("tells-releases", "release_twice", "it was told"),
    ("leaks-cancelled", "cancelled_wait", "request release 1"),
    ("keeps-released", "lost_answer", "it is held"),
    ("leaves-at-end", "lost_answer", "A5"),
    ("always-waits", "no_wait", "no outcome"),
    ("repeats-forced", "forced_release_once", "the outcome is"),
    ("naive", "deadline_of_open", "A1"),
    ("naive", "lost_answer", "the outcome is"),
    ("naive", "broken_connection", "the outcome is"),
    ("naive", "no_leader_for_a_while", "the outcome is"),
    ("naive", "release_repeated", "no outcome"),
    ("naive", "session_opened_late", "A2"),
];

/// The same for the planted bugs of the Rust client.
const PLANTED: &[(&str, &str, &str)] = &[
    ("deadline-from-receipt", "deadline_of_open", "A1"),
    ("deadline-from-receipt", "deadline_of_renewal", "A1"),
    ("deadline-from-receipt", "deadline_of_renew_call", "remaining_ms is"),
    ("deadline-from-receipt", "open_slow", "renew"),
    ("trusted-while-releasing", "release_counts_at_once", "remaining_ms is"),
    ("trusted-while-closing", "closing_counts_at_once", "remaining_ms is"),
];

/// What is false of a right client, statement by statement, each with a part of what the judge then says. Each comes after an acquire that
/// was granted, as `a`.
const FALSE: &[(&str, &str)] = &[
    ("b = acquire two\nb: not-acquired", "the outcome is"),
    ("free one", "it is held by"),
    ("held one rival", "it is held by"),
    ("held two a", "it is held by"),
    ("queued one 1", "0 wait"),
    ("sessions 2", "there are 1"),
    ("arrived acquire 2", "1 have arrived"),
    ("arrived-only acquire 0", "1 have arrived"),
    ("arrived-most acquire 0", "1 have arrived"),
    ("request acquire 1 wait=no", "wait is"),
    ("request acquire 1 id!=1", "id is"),
    ("request acquire 1 id=x\nr = release a\nr: released\nrequest release 1 id=x", "id is"),
    ("request acquire 1 wait_ms>=1", "wait_ms is"),
    ("request acquire 2", "1 have arrived"),
    ("quiet keepalive 1500ms", "arrived meanwhile"),
    ("a told lost", "it is not told"),
    ("arrived keepalive 1\ncluster expires\na told lost reason=closed", "reason is"),
    ("arrived keepalive 1\ncluster expires\na told lost\na not told", "it was told"),
    ("pass-lease a", "still alive"),
    ("o = observe one\no: observing\no told leader epoch=none", "epoch is"),
    ("o = observe one\no: observing\no told state", "the next event is"),
    ("o = observe one\no: observing\no finally told leader epoch=none", "it was told"),
    ("o = observe one\no: observing\no finally told leader epoch=a\no never told leader epoch=a", "it was told"),
    ("w = watch o\nw: watching\nw told state names=other", "names is"),
    ("q = remaining a\nq: remaining lost=expired", "lost is"),
    ("q = remaining a\nq: remaining remaining_ms>=100000", "remaining_ms is"),
    ("b = acquire two\nb: granted token=a", "token is"),
    ("rival release one", "the rival does not hold"),
];

/// All cases that must fail.
pub(crate) fn cases(scenarios: &[Arc<Scenario>]) -> Result<Vec<Case>, String> {
    let find = |name: &str| {
        let found = scenarios.iter().find(|scenario| scenario.name == name);
        found.cloned().ok_or_else(|| format!("there is no scenario {name}"))
    };
    let mut cases = Vec::new();
    for (mode, name, said) in BROKEN {
        let (scenario, driver) = (find(name)?, rust_driver_program(Some(mode), None)?);
        cases.push(Case { name: format!("broken {mode}: {name}"), scenario, driver, expected: Expected::Fails(said) });
    }
    // A build without planted bugs has none to find.
    let planted = if lockkeeper_planted::CAN_HAVE_BUGS { PLANTED } else { &[] };
    for (bug, name, said) in planted {
        let (scenario, driver) = (find(name)?, rust_driver_program(None, Some(bug))?);
        cases.push(Case { name: format!("planted {bug}: {name}"), scenario, driver, expected: Expected::Fails(said) });
    }
    for (text, said) in FALSE {
        let whole = format!("# C1. It is false.\nclient ttl=3s\na = acquire one\na: granted\n{text}");
        let scenario = Arc::new(Scenario::parse("false", &whole)?);
        let driver = rust_driver_program(None, None)?;
        let name = format!("false: {}", text.replace('\n', "; "));
        cases.push(Case { name, scenario, driver, expected: Expected::Fails(said) });
    }
    Ok(cases)
}
