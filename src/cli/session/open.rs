//! `session open`.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, time::Duration};

use clap::Args;

use super::super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, deliver, deliver_document},
    views,
};
use crate::client::SessionOptions;

/// Opens a session and prints its id. It expires after its TTL unless it is renewed: see `session keep`.
#[derive(Args, Debug)]
pub(super) struct SessionOpen {
    /// How long it lives without a renewal
    #[arg(long, value_parser = super::super::arguments::duration, default_value = "10s", value_name = "TIME")]
    ttl: Duration,
    /// Label of the session, for people [default: host, id and name of the process that runs this command]
    #[arg(long)]
    label: Option<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

impl SessionOpen {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let label = self.label.unwrap_or_else(label_of_parent);
        let options = SessionOptions { ttl: self.ttl, label };
        let (session, renewal) = self.cluster.client()?.open_detached(options).await?;

        let delivered = match self.output.output {
            Format::Text => deliver(&format!("{}\n", session.id())),
            Format::Json => deliver_document(&views::RenewalJson::new(&session, renewal)),
        };
        if let Err(error) = delivered {
            // The id was not printed, so nobody can use the session. Best effort: it expires in any case.
            let _ = session.close().await;
            let message = format_args!("the id could not be printed, so the session was closed: {error}");
            return Err(Failure::new(Exit::Error, message));
        }
        Ok(Exit::Success)
    }
}

/// The label names the parent process, which uses the session; this process exits at once.
fn label_of_parent() -> String {
    let Some(parent) = rustix::process::getppid() else { return SessionOptions::default().label };
    let name = std::fs::read(format!("/proc/{parent}/comm")).unwrap_or_default();
    SessionOptions::label_of_process(
        parent.as_raw_nonzero().get().cast_unsigned(),
        OsStr::from_bytes(name.trim_ascii_end()),
    )
}
