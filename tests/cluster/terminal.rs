//! A shell script in a terminal. `script` (util-linux) provides the terminal, and keys arrive through a pipe.

use std::process::{ExitStatus, Stdio};

use lockkeeper::local::LocalCluster;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::support::{LONG, program};

pub(crate) struct Terminal {
    screen: String,
    output: ChildStdout,
    keyboard: ChildStdin,
    child: Child,
}

impl Terminal {
    /// Runs this shell script, which finds the program as `$LOCKKEEPER`, in a terminal. `None`, with a message, if a tool is missing here.
    pub(crate) async fn open(cluster: &LocalCluster, script: &str) -> Option<Self> {
        for needed in [&["script", "--version"][..], &["bash", "--version"], &["env", "--default-signal", "true"]] {
            if !Command::new(needed[0]).args(&needed[1..]).output().await.is_ok_and(|output| output.status.success()) {
                crate::skipped::skipped(format_args!("this does not work here: {}", needed.join(" ")));
                return None;
            }
        }
        // Tests in the background may ignore SIGINT, and child processes would inherit that.
        let mut command = Command::new("env");
        command.args(["--default-signal", "script", "--quiet", "--return", "--command", script, "/dev/null"]);
        command.env("SHELL", "/bin/bash").env("TERM", "xterm").env("LOCKKEEPER", program());
        command.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("`env` ran before");
        let output = child.stdout.take().expect("a pipe");
        let keyboard = child.stdin.take().expect("a pipe");
        Some(Self { screen: String::new(), output, keyboard, child })
    }

    pub(crate) async fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).await.expect("it reads");
    }

    /// Waits until this text is on the screen, and discards the output up to its end. Returns what is discarded.
    pub(crate) async fn shows(&mut self, text: &str) -> String {
        let shown = timeout(LONG, self.read_until(text)).await;
        assert_eq!(shown, Ok(true), "waited for {text:?} in vain: {:?}", self.screen);
        let end = self.screen.find(text).expect("it is there") + text.len();
        self.screen.drain(..end).collect()
    }

    async fn read_until(&mut self, text: &str) -> bool {
        let mut bytes = [0; 1_024];
        while !self.screen.contains(text) {
            match self.output.read(&mut bytes).await.expect("a pipe") {
                0 => return false,
                read => self.screen += &String::from_utf8_lossy(&bytes[..read]),
            }
        }
        true
    }

    pub(crate) async fn ends_with(mut self, code: i32) {
        assert_eq!(self.ends().await.code(), Some(code), "{:?}", self.screen);
    }

    pub(crate) async fn ends(&mut self) -> ExitStatus {
        timeout(LONG, self.child.wait()).await.expect("it ends").expect("its status")
    }
}
