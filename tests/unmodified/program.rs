//! A client's program: what it says, and when it goes on.

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};

use super::packages::PATIENCE;

/// A program that runs. It is killed when it is dropped, if its command says so.
pub(crate) struct Program {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    errors: JoinHandle<String>,
    said: Vec<String>,
}

impl Program {
    pub(crate) fn start(name: &str, mut program: Command, arguments: &[&str]) -> Self {
        program.args(arguments).stdin(std::process::Stdio::piped());
        let mut child = program.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let errors = tokio::spawn(read(child.stderr.take().expect("it is piped")));
        Self { name: name.to_owned(), child, input, output, errors, said: Vec::new() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The next line that it says. `None`: it says no more, or nothing in time.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let line = timeout(PATIENCE, self.output.next_line()).await.ok()?.expect("text");
        self.said.extend(line.clone());
        line
    }

    /// Reads what it says, up to this line or to its end.
    pub(crate) async fn until(&mut self, wanted: Option<&str>) {
        let reading = async {
            while let Some(line) = self.output.next_line().await.expect("text") {
                if wanted == Some(&*line) {
                    return true;
                }
                self.said.push(line);
            }
            false
        };
        let found = timeout(PATIENCE, reading).await.unwrap_or(false);
        if found != wanted.is_some() {
            self.kill();
            self.end().await;
        }
    }

    /// Its next line is this one.
    pub(crate) async fn says(&mut self, wanted: &str) {
        let line = self.line().await;
        if line.as_deref() != Some(wanted) {
            self.kill();
            let errors = (&mut self.errors).await.unwrap_or_default();
            panic!("{} is to say {wanted:?}, not {line:?}; before: {:?}\n{errors}", self.name, self.said);
        }
    }

    /// Gives it a line: lets it go on. That it has ended shows in what it says.
    pub(crate) async fn tell(&mut self) {
        let input = self.input.as_mut().expect("its input is open");
        let _ = input.write_all(b"\n").await;
    }

    /// Ends its input.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    /// Kills it: it is gone without a word.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.start_kill();
    }

    /// Waits for its end, which must be a good one. What it said.
    pub(crate) async fn end(&mut self) -> String {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let errors = (&mut self.errors).await.unwrap_or_default();
        let said: String = self.said.iter().map(|line| format!("  {line}\n")).collect();
        assert!(matches!(ended, Ok(Ok(status)) if status.success()), "{}: {ended:?}\n{said}{errors}", self.name);
        let troubles = errors.lines().count();
        format!("{}\n{said}  ({troubles} lines of errors that it dealt with)\n", self.name)
    }
}

async fn read(mut errors: ChildStderr) -> String {
    let mut bytes = Vec::new();
    let _ = errors.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
