//! `lockkeeper version` prints the version of this program.

use clap::Args;
use serde::Serialize;

use super::{
    Exit, Failure,
    output::{Format, Output, print, print_document},
};
use crate::{planted::VERSION, server::node::supported_versions};

/// Prints the version of this program, and the cluster versions that it supports. Asks no node: `status` shows theirs.
#[derive(Args, Debug)]
pub(super) struct ProgramVersion {
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct VersionReport {
    version: &'static str,
    cluster_version_min: u32,
    cluster_version_max: u32,
}

impl ProgramVersion {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let supported = supported_versions();
        match self.output.output {
            Format::Text => print(&format!("lockkeeper {VERSION}\nsupports cluster {supported}\n"))?,
            Format::Json => print_document(&VersionReport {
                version: VERSION,
                cluster_version_min: supported.lowest.0,
                cluster_version_max: supported.highest.0,
            })?,
        }
        Ok(Exit::Success)
    }
}
