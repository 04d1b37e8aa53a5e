//! Unmodified clients from PyPI, and moto as an oracle: the scripts in `tests/dynamodb`.
//!
//! The packages, in versions that do not change, are installed once into the build directory. Where that is not possible the tests are
//! skipped and say so.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{net::TcpListener, process::Command, sync::Mutex, time::timeout};
use tokio_util::sync::CancellationToken;

use super::memory::Memory;
use crate::{Options, serve};

/// A bound on failures, for an installation and for a script.
const PATIENCE: Duration = Duration::from_secs(300);
static INSTALLATION: Mutex<()> = Mutex::const_new(());

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/dynamodb")
}

async fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await.map_err(|_| format!("{arguments:?}: no end"))?;
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(text) } else { Err(text) }
}

/// A Python that has the packages.
async fn python() -> Result<PathBuf, String> {
    let _one_at_a_time = INSTALLATION.lock().await;
    let requirements = scripts().join("requirements.txt");
    let wanted = fs::read_to_string(&requirements).map_err(|error| error.to_string())?;
    let build = env::current_exe().map_err(|error| error.to_string())?;
    let directory = build.with_file_name("dynamodb-python");
    let (python, installed) = (directory.join("bin/python"), directory.join("installed.txt"));
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let (directory, requirements) = (directory.display().to_string(), requirements.display().to_string());
    run(Path::new("python3"), &["-m", "venv", "--clear", &directory]).await?;
    run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", &requirements]).await?;
    fs::write(installed, wanted).map_err(|error| error.to_string())?;
    Ok(python)
}

/// Runs a script on an endpoint of its own.
async fn script(name: &str, arguments: &[&str]) {
    let python = match python().await {
        Ok(python) => python,
        Err(problem) => {
            eprintln!("!!! SKIPPED {name}: the Python packages cannot be installed: {problem}");
            return;
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let stopping = CancellationToken::new();
    let served = tokio::spawn(serve(listener, Memory::default(), Options::new(|| 0, 1), stopping.clone()));
    let path = scripts().join(name).display().to_string();
    let ended = run(&python, &[&[&*path, &*endpoint], arguments].concat()).await;
    stopping.cancel();
    served.await.unwrap();
    match ended {
        Ok(output) => println!("{output}"),
        Err(output) => panic!("{name}:\n{output}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_walk_has_the_answers_of_moto() {
    script("walk.py", &["3000", "1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_dynamodb_lock_works_unmodified() {
    script("lock_client.py", &["10"]).await;
}
