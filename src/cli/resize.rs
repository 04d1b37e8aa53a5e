//! `resize`: gives a semaphore in use another size.

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure,
    output::{Format, Output, print, print_document},
};
use crate::proto::v1::ResizeResponse;

/// Gives a semaphore another size while it is in use. Larger, it lets in who waits; smaller, it takes nothing from those who hold it, and
/// lets nobody in until enough of them have left.
///
/// From then on this size counts, and acquires that name another one (--permits) are no longer refused: until nobody holds or awaits the
/// semaphore and it carries no data. Until then, have the clients name the new size.
#[derive(Args, Debug)]
pub(super) struct Resize {
    /// The semaphore: a lock that is held or awaited with --permits.
    name: String,
    /// How many may hold it from now on: 1 to 1,000,000.
    permits: u32,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Document {
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
                let ResizeResponse { permits_before, holder_count, queue_length } = resized;
                print_document(&Document { permits: self.permits, permits_before, holder_count, queue_length })?;
            }
        }
        Ok(Exit::Success)
    }
}

fn text(permits: u32, resized: &ResizeResponse) -> String {
    let ResizeResponse { permits_before, holder_count, queue_length } = resized;
    let mut text =
        format!("permits  {permits}, {permits_before} before\nheld     {holder_count}\nwaiting  {queue_length}\n");
    if *holder_count > u64::from(permits) {
        text += &format!("nobody is granted it until fewer than {permits} are held\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_holders_than_permits_are_explained() {
        let resized = ResizeResponse { permits_before: 3, holder_count: 3, queue_length: 1 };
        assert_eq!(text(4, &resized), "permits  4, 3 before\nheld     3\nwaiting  1\n");
        assert!(text(2, &resized).ends_with("waiting  1\nnobody is granted it until fewer than 2 are held\n"));
    }
}
