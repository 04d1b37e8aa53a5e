//! What a simulated process hears from its operating system: chance that comes from the seed, and the simulation's time.
//!
//! The server and the client take their clocks and their chance as parameters, and a simulation gives them its own. But below them are
//! libraries that ask the system: tokio draws which branch of a `select!` to look at first, openraft its election timeouts, every
//! `HashMap` its order; hyper writes the date into each answer, h2 forgets old streams by the monotonic clock. So this module defines
//! the two symbols by which all of them ask, `getrandom` and `clock_gettime`: on a thread that [`enter`]ed a simulation they answer from
//! its seed and its time, on all others as the system does. (The standard library finds `getrandom` by a weak symbol, made to be
//! replaced; so do others.) Nothing in the product knows of it, and no library is built in another way: what is simulated is what runs.
//!
//! One thing is left: tokio also counts the runtimes of a process. So each seed runs in a process of its own (see `batch`).

#![expect(unsafe_code, reason = "defines two C symbols; see the module's documentation")]

use std::{
    cell::Cell,
    ffi::{c_int, c_uint, c_void},
    time::Duration,
};

use lockkeeper::client::{Clock, Moment};
use rustix::{
    rand::{GetRandomFlags, getrandom as system_random},
    time::{ClockId, Timespec, clock_gettime as system_time},
};

/// What simulated clocks say at the beginning: monotonic and wall time, seconds. No round number, and not zero: both would hide mistakes.
const MONOTONIC_BASE_S: u64 = 1_000_003;
const WALL_BASE_S: u64 = 1_750_000_007;
/// Between two looks at the history's clock, nanoseconds: so that no two events have the same time.
const LOOK_NS: u64 = 1;

/// A thread's simulation.
#[derive(Clone, Copy)]
struct Simulated {
    chance: u64,
    now_ns: u64,
    looks: u64,
}

thread_local! {
    static SIMULATED: Cell<Option<Simulated>> = const { Cell::new(None) };
}

/// From now on, this thread has its chance from this seed and its time from [`pass_to`]. To be called on a fresh thread, which has not
/// asked for anything yet.
pub(crate) fn enter(seed: u64) {
    SIMULATED.set(Some(Simulated { chance: seed, now_ns: 0, looks: 0 }));
}

/// It is so much later now than at the beginning.
pub(crate) fn pass_to(elapsed: Duration) {
    let now_ns = u64::try_from(elapsed.as_nanos()).expect("no simulation takes centuries");
    SIMULATED.set(SIMULATED.get().map(|simulated| Simulated { now_ns, looks: 0, ..simulated }));
}

/// How long the simulation has lasted, without a look at its clock.
pub(crate) fn elapsed() -> Duration {
    Duration::from_nanos(SIMULATED.get().map_or(0, |simulated| simulated.now_ns))
}

/// Wall time, as the simulated system has it.
pub(crate) fn wall_ms() -> u64 {
    WALL_BASE_S * 1000 + u64::try_from(elapsed().as_millis()).expect("no simulation takes centuries")
}

/// The clock of clients and of the history: each look at it is a little later than the one before, in the order in which everything
/// really happens. Within a tick of the network it does not pass otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedClock;

impl Clock for SimulatedClock {
    fn now(&self) -> Moment {
        let mut simulated = SIMULATED.get().expect("only a simulated process has this clock");
        simulated.looks += LOOK_NS;
        SIMULATED.set(Some(simulated));
        Moment(Duration::from_nanos(simulated.now_ns + simulated.looks))
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): enough to seed what is drawn from it.
fn draw(simulated: &mut Simulated) -> u64 {
    simulated.chance = simulated.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = simulated.chance;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Fills a buffer with random bytes; how many, or -1.
//
// SAFETY: the name and the signature are the C library's own; it does what that function does.
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    if buffer.is_null() {
        return -1;
    }
    // SAFETY: the caller gives a buffer of this length to be written, as that function demands.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    let Some(mut simulated) = SIMULATED.get() else {
        return system_random(bytes, GetRandomFlags::empty()).map_or(-1, usize::cast_signed);
    };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&draw(&mut simulated).to_le_bytes()[..chunk.len()]);
    }
    SIMULATED.set(Some(simulated));
    length.cast_signed()
}

/// What the C library calls a time.
#[repr(C)]
struct CTime {
    seconds: i64,
    nanoseconds: i64,
}

/// What time it is on a clock; 0, or -1.
//
// SAFETY: the name and, on systems of 64 bits, the signature are the C library's own; it does what that function does.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: c_int, time: *mut CTime) -> c_int {
    let Some(read) = read_clock(clock) else { return -1 };
    // SAFETY: the caller gives room for a time, as that function demands.
    match unsafe { time.as_mut() } {
        Some(time) => *time = CTime { seconds: read.tv_sec, nanoseconds: read.tv_nsec },
        None => return -1,
    }
    0
}

fn read_clock(clock: c_int) -> Option<Timespec> {
    let known = [
        ClockId::Realtime,
        ClockId::Monotonic,
        ClockId::MonotonicRaw,
        ClockId::RealtimeCoarse,
        ClockId::MonotonicCoarse,
        ClockId::Boottime,
        ClockId::ProcessCPUTime,
        ClockId::ThreadCPUTime,
    ];
    let known = known.into_iter().find(|known| *known as c_int == clock)?;
    let Some(simulated) = SIMULATED.get() else { return Some(system_time(known)) };
    let is_wall = matches!(known, ClockId::Realtime | ClockId::RealtimeCoarse);
    let base_s = if is_wall { WALL_BASE_S } else { MONOTONIC_BASE_S };
    let seconds = base_s + simulated.now_ns / 1_000_000_000;
    let nanoseconds = simulated.now_ns % 1_000_000_000;
    Some(Timespec { tv_sec: seconds.cast_signed(), tv_nsec: nanoseconds.cast_signed() })
}
