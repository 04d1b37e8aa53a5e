//! Drivers that are broken on purpose: mistakes that a client could have.

/// How the driver is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// A client as one writes it in an hour: no request ids, no renewals, a deadline from the receipt.
    Naive,
    /// Opens its session before anything is acquired.
    OpensEarly,
    /// Opens a session for each acquire.
    SessionEach,
    /// A lock counts as held until it is released.
    TrustsForEver,
    /// Tells no loss.
    NeverTells,
    /// Tells each loss five seconds late.
    TellsLate,
    /// Tells each loss twice.
    TellsTwice,
    /// Tells each loss by the same reason.
    WrongReason,
    /// Tells a loss of what the program itself released.
    TellsReleases,
    /// An acquire that is cancelled goes on.
    LeaksCancelled,
    /// A release is not sent.
    KeepsReleased,
    /// Its session is still open when it ends.
    LeavesAtEnd,
    /// Waits, also where it was asked not to.
    AlwaysWaits,
    /// Repeats a forced release whose outcome is not known.
    RepeatsForced,
}

const MODES: &[(&str, Broken)] = &[
    ("naive", Broken::Naive),
    ("opens-early", Broken::OpensEarly),
    ("session-each", Broken::SessionEach),
    ("trusts-for-ever", Broken::TrustsForEver),
    ("never-tells", Broken::NeverTells),
    ("tells-late", Broken::TellsLate),
    ("tells-twice", Broken::TellsTwice),
    ("wrong-reason", Broken::WrongReason),
    ("tells-releases", Broken::TellsReleases),
    ("leaks-cancelled", Broken::LeaksCancelled),
    ("keeps-released", Broken::KeepsReleased),
    ("leaves-at-end", Broken::LeavesAtEnd),
    ("always-waits", Broken::AlwaysWaits),
    ("repeats-forced", Broken::RepeatsForced),
];

impl Broken {
    /// The mode with this name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let known = MODES.iter().find(|(known, _)| *known == name);
        known.map(|(_, mode)| *mode).ok_or_else(|| format!("the driver has no mode {name:?}"))
    }
}
