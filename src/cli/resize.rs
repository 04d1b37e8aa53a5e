//! `lockkeeper resize` gives a semaphore in use another size.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
};
use crate::client::Resized;

/// Changes the size of a semaphore in use. A larger size is granted to waiters at once; a smaller one revokes no grant, and no permit is
/// granted until fewer than the new size are held.
///
/// From then on an acquire that names another size (--permits) is treated as if it named this one, until the semaphore has neither
/// holders, waiters nor data. Change the clients' number before that.
#[derive(Args, Debug)]
pub(super) struct Resize {
    /// The semaphore: a lock that is held or awaited with --permits.
    name: String,
    /// How many may hold it from now on: 1 to 1,000,000.
    permits: u32,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct ResizeReport {
    permits: u32,
    permits_before: u32,
    holder_count: u64,
    queue_length: u64,
}

impl Resize {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let resized = self.cluster.client()?.resize(&self.name, self.permits).await?;
        match self.output.output {
            Format::Text => print(&text(self.permits, &resized))?,
            Format::Json => {
                let Resized { permits_before, holder_count, queue_length } = resized;
                print_document(&ResizeReport { permits: self.permits, permits_before, holder_count, queue_length })?;
            }
        }
        Ok(Exit::Success)
    }
}

fn text(permits: u32, resized: &Resized) -> String {
    let Resized { permits_before, holder_count, queue_length } = resized;
    let mut text =
        format!("permits  {permits}, {permits_before} before\nheld     {holder_count}\nwaiting  {queue_length}\n");
    if *holder_count > u64::from(permits) {
        let until = if permits == 1 { "none is held".to_owned() } else { format!("fewer than {permits} are held") };
        text += &format!("no permit is granted until {until}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_holders_than_permits_are_explained() {
        let resized = Resized { permits_before: 3, holder_count: 3, queue_length: 1 };
        assert_eq!(text(4, &resized), "permits  4, 3 before\nheld     3\nwaiting  1\n");
        assert!(text(2, &resized).ends_with("waiting  1\nno permit is granted until fewer than 2 are held\n"));
        assert!(text(1, &resized).ends_with("no permit is granted until none is held\n"));
    }
}
