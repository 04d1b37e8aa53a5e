//! Apache ZooKeeper itself, as Debian's package has it: what the protocol's tests compare with.

use std::{fs, net::TcpListener, path::Path, process::Stdio, time::Duration};

use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::connection::JuteWire;

/// A bound on failures.
const LONG: Duration = crate::support::LONG;
const JARS: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-nop.jar"];

/// A ZooKeeper of one server. It is killed when it is dropped.
pub(crate) struct Oracle {
    pub(crate) address: String,
    server: Child,
    _data: TempDir,
}

impl Oracle {
    /// Starts one, and waits until it answers; why there is none.
    pub(crate) async fn start() -> Result<Self, String> {
        if let Some(missing) = JARS.iter().find(|jar| !Path::new(jar).exists()) {
            return Err(format!("{missing} is missing: apt-get install libzookeeper-java libslf4j-java"));
        }
        let data = tempfile::tempdir().map_err(|error| error.to_string())?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        drop(listener);

        // Sessions as long as a slow machine needs: a walk must not lose one.
        let config = format!(
            "tickTime=2000\nmaxSessionTimeout=600000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\n",
            data.path().display(),
            address.port()
        );
        let file = data.path().join("zoo.cfg");
        fs::write(&file, config).map_err(|error| error.to_string())?;
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &JARS.join(":")]);
        java.args(["org.apache.zookeeper.server.ZooKeeperServerMain", &file.display().to_string()]);
        java.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let server = java.spawn().map_err(|error| format!("java: {error}"))?;

        let address = address.to_string();
        let deadline = Instant::now() + LONG;
        while !answers(&address).await {
            if Instant::now() > deadline {
                return Err(format!("ZooKeeper at {address} did not answer for {LONG:?}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(Self { address, server, _data: data })
    }

    pub(crate) async fn stop(mut self) {
        let _ = self.server.kill().await;
    }
}

async fn answers(address: &str) -> bool {
    let Ok(mut wire) = JuteWire::open(address).await else { return false };
    if wire.send_bytes(b"srvr").await.is_err() {
        return false;
    }
    // It says `imok` before it serves, and a connection of its first moments may never be answered.
    let answer = timeout(Duration::from_secs(1), wire.receive_text()).await;
    answer.is_ok_and(|text| text.contains("Mode: standalone"))
}
