//! Proof that the scenarios can fail: drivers that are broken on purpose, and expectations that are false.

use std::sync::Arc;

use crate::{
    rust_driver_program,
    scenario::Scenario,
    suite::{Case, Expected},
};

/// A broken driver, a scenario, and a part of what the judge then says.
const BROKEN: &[(&str, &str, &str)] = &[];

/// The same for the planted bugs of the Rust client.
const PLANTED: &[(&str, &str, &str)] = &[];

/// Scenarios that are false of a right client, each with a part of what the judge then says.
const FALSE: &[(&str, &str)] = &[];

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
    for (bug, name, said) in PLANTED {
        let (scenario, driver) = (find(name)?, rust_driver_program(None, Some(bug))?);
        cases.push(Case { name: format!("planted {bug}: {name}"), scenario, driver, expected: Expected::Fails(said) });
    }
    for (text, said) in FALSE {
        let scenario = Arc::new(Scenario::parse("false", text)?);
        let (name, driver) = (format!("false: {}", scenario.title), rust_driver_program(None, None)?);
        cases.push(Case { name, scenario, driver, expected: Expected::Fails(said) });
    }
    Ok(cases)
}
