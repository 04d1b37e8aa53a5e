//! All scenarios, side by side, and the table of what they said.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use tokio::time::Instant;

use crate::{
    Arguments,
    judge::{DriverProgram, Judged, PATIENCE, Verdict, judge},
    planted, rust_driver_program,
    scenario::Scenario,
    serve,
};

/// Scenarios side by side, unless told otherwise. They wait most of the time.
const JOBS: usize = 24;

/// The same for a driver whose processes may be heavy.
const JOBS_OF_OTHERS: usize = 8;

/// How long what must come may take where it will not, since the driver is broken.
const PATIENCE_WITH_MISTAKES: Duration = Duration::from_secs(6);

/// One line of the table: a scenario with a driver.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) driver: DriverProgram,
    pub(crate) expected: Expected,
}

/// How a case must end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    Holds,
    /// Fails, with this in what it says.
    Fails(&'static str),
}

pub(crate) fn main(arguments: Arguments) -> Result<ExitCode, String> {
    let scenarios = read_all(&arguments.scenarios)?;
    check_rules(&arguments.scenarios, &scenarios)?;
    if arguments.is_list {
        scenarios.iter().for_each(|scenario| println!("{:<36} {}", scenario.name, scenario.title));
        list_rules(&scenarios);
        return Ok(ExitCode::SUCCESS);
    }

    let mut cases = Vec::new();
    for scenario in &scenarios {
        let driver = match &arguments.driver {
            Some(command) => DriverProgram {
                program: "sh".to_owned(),
                arguments: vec!["-c".to_owned(), format!("exec {command}")],
                environment: Vec::new(),
            },
            None => rust_driver_program(None, None)?,
        };
        let (name, scenario) = (scenario.name.clone(), Arc::clone(scenario));
        cases.push(Case { name, scenario, driver, expected: Expected::Holds });
    }
    if arguments.driver.is_none() {
        cases.extend(planted::cases(&scenarios)?);
    }
    if !arguments.filters.is_empty() {
        cases.retain(|case| arguments.filters.iter().any(|filter| case.name.contains(filter)));
    }
    cases.retain(|case| !arguments.skipped.iter().any(|skipped| case.name.contains(skipped)));
    if arguments.is_ignored {
        cases.clear();
    }

    let jobs = arguments.jobs.unwrap_or(if arguments.driver.is_some() { JOBS_OF_OTHERS } else { JOBS });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let is_served = arguments.driver.is_none() && arguments.filters.is_empty() && !arguments.is_ignored;
    if is_served {
        runtime.block_on(serve::check()).map_err(|why| format!("--serve: {why}"))?;
        println!("a fake cluster without a scenario serves");
    }
    Ok(runtime.block_on(run(cases, jobs, arguments.is_verbose)))
}

/// The scenarios of a directory, by their names.
fn read_all(directory: &Path) -> Result<Vec<Arc<Scenario>>, String> {
    let shown = directory.display();
    let entries = std::fs::read_dir(directory).map_err(|error| format!("{shown}: {error}"))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    if paths.is_empty() {
        return Err(format!("{shown} has no scenario"));
    }
    paths.iter().map(|path| Scenario::read(path).map(Arc::new)).collect()
}

/// Fails if a rule of the contract has no scenario, or a scenario names a rule that is not there. The contract lies two directories above
/// the scenarios; where it does not, they are a copy, and are not checked.
fn check_rules(directory: &Path, scenarios: &[Arc<Scenario>]) -> Result<(), String> {
    let Ok(contract) = std::fs::read_to_string(directory.join("../../CONTRACT.md")) else { return Ok(()) };
    let rules = contract.lines().filter_map(|line| line.strip_prefix("* **")?.split(' ').next());
    let rules: BTreeSet<&str> = rules.collect();
    let judged: BTreeSet<&str> = scenarios.iter().flat_map(|scenario| scenario.rules()).collect();
    let differences: Vec<_> = rules.symmetric_difference(&judged).collect();
    if rules.is_empty() || !differences.is_empty() {
        return Err(format!("rules without a scenario, or scenarios without a rule: {differences:?}"));
    }
    Ok(())
}

/// Which scenarios are about which rule.
fn list_rules(scenarios: &[Arc<Scenario>]) {
    let mut by_rule: BTreeMap<u8, Vec<&str>> = BTreeMap::new();
    for scenario in scenarios {
        for rule in scenario.rules() {
            let number = rule.trim_start_matches('C').parse().unwrap_or_default();
            by_rule.entry(number).or_default().push(&scenario.name);
        }
    }
    println!();
    for (rule, names) in by_rule {
        println!("C{rule:<3} {}", names.join(", "));
    }
}

/// Plays all cases; says how each ended.
async fn run(cases: Vec<Case>, jobs: usize, is_verbose: bool) -> ExitCode {
    let began = Instant::now();
    let count = cases.len();
    println!("\nrunning {count} tests");
    let played = stream::iter(cases).map(|case| async move {
        let patience = if case.expected == Expected::Holds { PATIENCE } else { PATIENCE_WITH_MISTAKES };
        let judged = judge(&case.scenario, &case.driver, patience).await;
        (case, judged)
    });
    let mut played = std::pin::pin!(played.buffer_unordered(jobs));

    let mut passed = 0;
    let mut skipped = Vec::new();
    let mut failed = Vec::new();
    while let Some((case, judged)) = played.next().await {
        let took = judged.took.as_secs_f64();
        let wrong = what_is_wrong(&case, &judged);
        match (&judged.verdict, wrong) {
            (Verdict::Skipped(step), _) => {
                println!("test {} ... SKIPPED: the driver cannot {step}", case.name);
                skipped.push(case.name);
            }
            (_, None) => {
                println!("test {} ... ok ({took:.1} s)", case.name);
                passed += 1;
                if is_verbose {
                    judged.course.iter().for_each(|line| println!("    {line}"));
                }
            }
            (_, Some(why)) => {
                println!("test {} ... FAILED ({took:.1} s): {why}", case.name);
                println!("    {}", case.scenario.title);
                judged.course.iter().for_each(|line| println!("    {line}"));
                failed.push(case.name);
            }
        }
    }
    for name in &failed {
        println!("failed: {name}");
    }
    let result = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {} failed; {} ignored; finished in {:.2}s\n",
        failed.len(),
        skipped.len(),
        began.elapsed().as_secs_f64()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why a case did not end as it must.
fn what_is_wrong(case: &Case, judged: &Judged) -> Option<String> {
    match (&case.expected, &judged.verdict) {
        (Expected::Holds, Verdict::Fails(why)) => Some(why.clone()),
        (Expected::Holds, Verdict::Holds | Verdict::Skipped(_)) => None,
        (Expected::Fails(_), Verdict::Holds | Verdict::Skipped(_)) => Some("it holds with a broken driver".to_owned()),
        (Expected::Fails(said), Verdict::Fails(why)) if why.contains(said) => None,
        (Expected::Fails(said), Verdict::Fails(why)) => Some(format!("it fails, but says nothing of {said:?}: {why}")),
    }
}
