//! Traces of commands, where the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`).
//!
//! A command is one span, the first of a trace, and the requests that it makes are its children. That of `lock` ends once the lock is held.
//! The share of commands that are traced is `OTEL_TRACES_SAMPLER_ARG`; without it, all are. At its end a command waits for the collector,
//! for [`lockkeeper_traces::FLUSH_MAX`] at the most.

use std::env;

use tokio::{runtime::Handle, task_local};

use super::{Exit, Failure, complain};
use lockkeeper_traces::{ENDPOINT_VARIABLE, ExportSettings, TraceSpan, Traces};

const RATIO_VARIABLE: &str = "OTEL_TRACES_SAMPLER_ARG";

task_local! {
    /// The span of the command, in the task of the command. Renewals and other background tasks are not part of the span.
    static COMMAND: TraceSpan;
}

/// The collector that the environment names.
pub(super) fn endpoint() -> Option<String> {
    env::var(ENDPOINT_VARIABLE).ok().filter(|endpoint| !endpoint.is_empty())
}

/// The trace that the calling task is in, for the client.
pub(super) fn traceparent() -> Option<String> {
    COMMAND.try_with(|span| span.as_parent().traceparent()).ok()
}

/// Ends the span of the command before the command itself ends.
pub(super) fn end() {
    // An error means that there is no span.
    let _ = COMMAND.try_with(|span| span.end(None));
}

/// Runs a command, in a span if it is to be traced.
pub(super) async fn around(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let traces = start();
    let name = env::args().nth(1).unwrap_or_default();
    let Some(span) = traces.send(format!("lockkeeper {name}")) else { return command.await };

    let outcome = COMMAND
        .scope(span, async {
            let outcome = command.await;
            let failure = outcome.as_ref().err().map(|_| "the command failed");
            let _ = COMMAND.try_with(|span| span.end(failure));
            outcome
        })
        .await;

    traces.close().await;
    outcome
}

/// Traces, if they have an endpoint. One that cannot be used does not keep the command from running.
fn start() -> Traces {
    let Some(endpoint) = endpoint() else { return Traces::default() };
    let sample_ratio = env::var(RATIO_VARIABLE).ok().and_then(|ratio| ratio.parse().ok()).unwrap_or(1.0);
    let settings = ExportSettings { endpoint, sample_ratio, service: "lockkeeper-cli", attributes: Vec::new() };
    Traces::start(settings, &Handle::current(), |_| {}).unwrap_or_else(|error| {
        complain(&format!("{ENDPOINT_VARIABLE}: {error}; goes on without traces"));
        Traces::default()
    })
}
