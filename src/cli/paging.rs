//! Calls that are answered in pages.

use super::Failure;
use crate::client::Error;

/// Calls until the last page: first with an empty token, then with the token that the page before ended with, which `take` returns. Ends
/// with the first error, that of a call or of `take`.
pub(super) async fn each_page<P>(
    call: impl AsyncFn(&str) -> Result<P, Error>,
    mut take: impl FnMut(P) -> Result<Option<String>, Failure>,
) -> Result<(), Failure> {
    let mut token = String::new();
    loop {
        let page = call(&token).await?;
        match take(page)? {
            Some(next) => token = next,
            None => return Ok(()),
        }
    }
}
