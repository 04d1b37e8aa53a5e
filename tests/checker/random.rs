//! Random histories: correct ones violate nothing, and wrong ones violate a property.

use std::collections::BTreeMap;

use lockkeeper::chaos::{
    checker::{Finding, Property, Verdict, check},
    history::{Event, History},
};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};

use super::{mutations, reference};

fn findings(events: Vec<Event>) -> Vec<Finding> {
    check(&History::from_events(events).expect("a history")).expect("it was read")
}

fn convicted(findings: &[Finding]) -> Vec<Property> {
    let violated = findings.iter().filter(|finding| matches!(finding.verdict, Verdict::Violated(_)));
    violated.map(|finding| finding.property).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 25, ..ProptestConfig::default() })]

    #[test]
    fn correct_histories_violate_nothing(seed: u64) {
        for finding in findings(reference::history(seed)) {
            let open = matches!(finding.verdict, Verdict::Violated(_) | Verdict::Undecided(_));
            prop_assert!(!open, "{finding:?}");
        }
    }
}

/// The verdicts above are not for lack of evidence.
#[test]
fn random_histories_have_evidence_for_all_properties() {
    let mut held: BTreeMap<Property, u32> = BTreeMap::new();
    for seed in 0..20 {
        for finding in findings(reference::history(seed)) {
            if finding.verdict == Verdict::Holds {
                *held.entry(finding.property).or_default() += 1;
            }
        }
    }
    // The random clients have locks alone, and no clock measures them: the checker's own tests have random transactions and watches.
    let of_registers = [Property::Serializability, Property::Watches, Property::Bounded];
    let expected = Property::ALL.into_iter().filter(|property| !of_registers.contains(property));
    let idle: Vec<_> = expected.filter(|property| !held.contains_key(property)).collect();
    assert!(idle.is_empty(), "{idle:?} of {held:?}");
}

/// At least three quarters are found. Some mutations leave no trace: tokens of concurrent acquires can be swapped, a holder whose release
/// was in flight may be missing in a read, and a wait may have been its client's last operation.
#[test]
fn wrong_histories_violate_a_property() {
    let mut missed = Vec::new();
    for (name, mutate) in mutations::ALL {
        let mut done = 0;
        let mut caught = 0;
        let mut by: BTreeMap<Property, u32> = BTreeMap::new();
        for seed in 0..25 {
            let mut events = reference::history(seed);
            let mut random = StdRng::seed_from_u64(seed);
            if (0..20).all(|_| mutate(&mut events, &mut random).is_none()) {
                continue;
            }
            done += 1;
            let convicted = convicted(&findings(events));
            caught += u32::from(!convicted.is_empty());
            convicted.into_iter().for_each(|property| *by.entry(property).or_default() += 1);
        }
        println!("{name}: {caught} of {done} by {by:?}");
        if done < 10 || caught * 4 < done * 3 {
            missed.push(format!("{name}: {caught} of {done}"));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
