//! The names and dates in certificates.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

use super::{
    super::{credentials::CredentialOptions, show},
    Remark,
};
use crate::certs::CertificateFacts;

/// Seconds of a day.
const DAY: i64 = 86_400;
/// The number of seconds before the end of a certificate from which on the end is reported.
const ENDS_SOON: i64 = 30 * DAY;

/// The files that the command uses, and those of a directory. `now` is in seconds since 1970.
pub(super) fn examine(credentials: &CredentialOptions, directory: Option<&Path>, now: i64) -> Vec<Remark> {
    let named: Vec<PathBuf> = credentials.certificates().into_iter().map(Path::to_owned).collect();
    let mut files = named.clone();
    let mut remarks = Vec::new();
    if let Some(directory) = directory {
        match listed(directory) {
            Ok(listed) => files.extend(listed.into_iter().filter(|file| !named.contains(file))),
            Err(error) => remarks.push(Remark::problem(format!("cannot read {}: {error}", directory.display()))),
        }
    }

    remarks.extend(files.iter().flat_map(|file| in_file(file, now)));
    // This also checks whether the key fits and can be read.
    if let Err(failure) = credentials.tls() {
        remarks.push(Remark::problem(failure.message));
    }
    if remarks.is_empty() {
        remarks.push(Remark::note("none is named: connections are in plain text, which is for one machine alone"));
    }
    remarks
}

/// The certificates among the files of a directory, without keys.
fn listed(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pem"));
    files.retain(|file| !file.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("-key")));
    files.sort();
    Ok(files)
}

fn in_file(file: &Path, now: i64) -> Vec<Remark> {
    let shown = file.display();
    let facts = fs::read(file).map_err(|error| format!("cannot be read: {error}"));
    match facts.and_then(|pem| CertificateFacts::read_all(&pem)) {
        Ok(facts) => facts.iter().map(|facts| judged(&shown.to_string(), facts, now)).collect(),
        Err(what) => vec![Remark::problem(format!("{shown} {what}"))],
    }
}

fn judged(file: &str, facts: &CertificateFacts, now: i64) -> Remark {
    let whom = if facts.is_authority { "authority" } else { "certificate" };
    let names = if facts.names.is_empty() { facts.subject.clone() } else { facts.names.join(", ") };
    let from = day(facts.valid_from);
    let until = day(facts.valid_until);
    let text = format!("{file}: {whom} for {}, valid {from} to {until}", show::text(&names));

    let left = facts.valid_until - now;
    if now < facts.valid_from {
        Remark::problem(format!("{text}: it is not valid yet, or the clock of this machine is wrong"))
    } else if left < 0 {
        Remark::problem(format!("{text}: it has expired: make another with `lockkeeper certs`"))
    } else if left < ENDS_SOON {
        Remark::note(format!("{text}: it expires in {}", show::count(left / DAY, "day", "days")))
    } else {
        Remark::ok(text)
    }
}

fn day(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use super::{super::Urgency, *};

    fn urgency(valid_from: i64, valid_until: i64) -> (Urgency, String) {
        let facts = CertificateFacts {
            subject: "O=shop".to_owned(),
            issuer: "O=shop".to_owned(),
            names: vec!["lockkeeper://shop/node/1".to_owned(), "10.0.0.1".to_owned()],
            valid_from,
            valid_until,
            is_authority: false,
        };
        let Remark { urgency, text } = judged("node-1.pem", &facts, 100 * DAY);
        (urgency, text)
    }

    #[test]
    fn dates_are_judged_by_the_calendar() {
        let (good, text) = urgency(0, 200 * DAY);
        assert_eq!(good, Urgency::Ok);
        let expected = "node-1.pem: certificate for lockkeeper://shop/node/1, 10.0.0.1, valid 1970-01-01 to 1970-07-20";
        assert_eq!(text, expected);
        let (soon, text) = urgency(0, 101 * DAY);
        assert!(soon == Urgency::Note && text.ends_with("it expires in 1 day"), "{text}");
        let (over, text) = urgency(0, 99 * DAY);
        assert!(over == Urgency::Problem && text.contains("it has expired"), "{text}");
        let (early, text) = urgency(101 * DAY, 200 * DAY);
        assert!(early == Urgency::Problem && text.contains("not valid yet"), "{text}");
    }
}
