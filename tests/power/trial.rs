//! Opens the real store on given files and judges its contents.

use std::path::Path;

use super::{
    disk::{Image, write_image},
    driver::LOG,
    history::{History, Id, State},
    support::{self, temporary},
};

/// The result of opening a store.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It opened with a state that fits.
    Whole(State),
    /// It did not open, and its error names a remedy.
    Refused(String),
    /// It opened without acknowledged data, or its error names no remedy.
    Lost(String),
}

/// Opens the store on these files, in a temporary directory. Its state must fit the history.
pub(crate) fn open_image(image: &Image, history: &History) -> Outcome {
    let directory = temporary();
    write_image(image, directory.path());
    open(directory.path(), history.snapshot, |state| history.judge(state))
}

/// Opens the store in a driver's directory.
pub(crate) fn open(root: &Path, snapshot: Option<Id>, judge: impl Fn(&State) -> Result<(), String>) -> Outcome {
    let log = root.join(LOG);
    let mut store = match support::open(&log, snapshot) {
        Ok(store) => store,
        Err(error) => {
            let error = error.to_string().replace(&log.display().to_string(), "LOG");
            return if error.contains("replace this node") {
                Outcome::Refused(error)
            } else {
                Outcome::Lost(format!("the error names no remedy: {error}"))
            };
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let judged = runtime.block_on(async {
        let state = support::state(&mut store).await;
        store.close().await.map_err(|error| error.to_string())?;
        let state = state?;
        judge(&state)?;
        Ok(state)
    });
    judged.map_or_else(Outcome::Lost, Outcome::Whole)
}
