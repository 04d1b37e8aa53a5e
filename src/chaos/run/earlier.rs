//! The program of an earlier version, which some nodes of a run have by turns.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::time::timeout;

use lockkeeper_local::NodeProgram;

use super::RunError;
use crate::nemesis::turns::EarlierProgram;

/// Time limit of the question to a program.
const BOUND: Duration = Duration::from_secs(20);

/// What a program says of itself.
#[derive(serde::Deserialize)]
struct SupportedVersions {
    cluster_version_max: u32,
}

/// Asks both programs which cluster versions they support. Fails if the earlier one does not run, or is later than the newest.
pub(super) async fn ask(newest: &NodeProgram, earlier: &NodeProgram) -> Result<EarlierProgram, RunError> {
    let highest = highest_version(newest).await?;
    let version_max = highest_version(earlier).await?;
    check_not_later(version_max, highest).map_err(|why| refused(&earlier.path, why))?;
    Ok(EarlierProgram { program: earlier.clone(), version_max })
}

async fn highest_version(program: &NodeProgram) -> Result<u32, RunError> {
    let mut command = program.command();
    command.args(["version", "-o", "json"]).stdin(Stdio::null()).kill_on_drop(true);

    let output = timeout(BOUND, command.output()).await;
    let output = output.map_err(|_| refused(&program.path, "`version -o json` did not end in time".to_owned()))?;
    let output = output.map_err(|error| refused(&program.path, error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(refused(&program.path, format!("`version -o json` ended with {}: {}", output.status, said.trim())));
    }

    let supported: Result<SupportedVersions, _> = serde_json::from_slice(&output.stdout);
    let supported = supported.map_err(|error| {
        refused(&program.path, format!("its `version -o json` cannot be read ({error}); name a program `lockkeeper`"))
    });
    Ok(supported?.cluster_version_max)
}

/// Fails if a program is a later one, by the highest cluster versions. Two builds of one version can take turns, too.
fn check_not_later(earlier: u32, newest: u32) -> Result<(), String> {
    if earlier <= newest {
        return Ok(());
    }
    Err(format!(
        "it supports cluster version {earlier}, and this program only {newest}; run the later program, and name the earlier one"
    ))
}

fn refused(program: &Path, why: String) -> RunError {
    RunError::Earlier { program: program.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_program_is_not_an_earlier_one() {
        assert_eq!(check_not_later(5, 6), Ok(()));
        assert_eq!(check_not_later(6, 6), Ok(()));
        assert!(check_not_later(7, 6).unwrap_err().contains("supports cluster version 7"));
    }
}
