//! Real clusters: three server processes, real disks and sockets, real `kill -9`.
//!
//! What is shown here: nothing that was acknowledged is lost, no token is given out twice, and the service comes back by itself,
//! whichever nodes are killed (`kills`) or paused (`pauses`) at whatever moment, while a leader that lives is not taken for one that
//! was killed (`vacancies`); a client that dies without a word loses its lock after its TTL, and the first in the queue has it
//! (`expiry`), while one that is cut off knows before (`holders`), one whose grant is forced hears of it (`forced`), and no command
//! outlives its lock (`wrapper`); leaders follow each other in order, and observers see it (`elections`); places in the queue are
//! kept (`waits`); a node that was away for long comes back by a snapshot (`snapshots`); what the services answer (`services`,
//! `watches`), also to nonsense (`bad_input`) and late (`deadlines`); what a node refuses to start with (`refusals`,
//! `copies`); what the
//! program prints and ends with (`program`), also as the parts of a shell script (`shell`).
//!
//! Each test has a cluster of its own, on free ports, in a temporary directory. None sleeps for luck: they wait for conditions.

mod bad_input;
mod cable;
mod copies;
mod crowded;
mod deadlines;
mod door;
mod elections;
mod expiry;
mod forced;
mod holders;
mod kills;
mod load;
mod overload;
mod pauses;
mod program;
mod refusals;
mod services;
mod shell;
mod snapshots;
mod support;
mod vacancies;
mod waits;
mod watches;
mod wrapper;
