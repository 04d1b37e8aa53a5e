//! The operating system of a simulated process: random numbers from the seed, and the simulation's time.
//!
//! The server and the client take their clocks and random numbers as parameters, and a simulation passes its own. But libraries below them
//! ask the system: tokio draws the first branch of a `select!`, openraft its election timeouts, every `HashMap` its order; hyper writes
//! the date into each answer, h2 forgets old streams by the monotonic clock. So this module defines the two symbols that they all call,
//! `getrandom` and `clock_gettime`: on a thread that [`enter`]ed a simulation they answer from its seed and its time, on all others as the
//! system does. (The standard library finds `getrandom` by a weak symbol, which is meant to be replaced; so do others.) The product
//! does not know of it, and all libraries are built as usual: the simulated code is the code that ships.
//!
//! One source is left: tokio also counts the runtimes of a process. So each seed runs in its own process (see `child`).

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

/// Start of the simulated clocks: monotonic and wall time, seconds. Neither round nor zero: such numbers would hide mistakes.
const MONOTONIC_BASE_S: u64 = 1_000_003;
const WALL_BASE_S: u64 = 1_750_000_007;
/// Step of the history's clock per reading, nanoseconds: no two events have the same time.
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

/// From now on, this thread takes random numbers from this seed and time from [`pass_to`]. Call it on a fresh thread, which has not
/// drawn a random number yet.
pub(crate) fn enter(seed: u64) {
    SIMULATED.set(Some(Simulated { chance: seed, now_ns: 0, looks: 0 }));
}

/// Sets the time since the start of the simulation.
pub(crate) fn pass_to(elapsed: Duration) {
    let now_ns = u64::try_from(elapsed.as_nanos()).expect("no simulation takes centuries");
    SIMULATED.set(SIMULATED.get().map(|simulated| Simulated { now_ns, looks: 0, ..simulated }));
}

/// The time since the start of the simulation. Does not step the history's clock.
pub(crate) fn elapsed() -> Duration {
    Duration::from_nanos(SIMULATED.get().map_or(0, |simulated| simulated.now_ns))
}

/// Wall time of the simulated system.
pub(crate) fn wall_ms() -> u64 {
    WALL_BASE_S * 1000 + u64::try_from(elapsed().as_millis()).expect("no simulation takes centuries")
}

/// The clock of clients and of the history: each reading is [`LOOK_NS`] later than the one before, in the order of the real events.
/// Within a tick of the network it does not advance otherwise.
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

/// SplitMix64 (Steele, Lea and Flood, 2014): good enough to seed other generators.
fn draw(simulated: &mut Simulated) -> u64 {
    simulated.chance = simulated.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = simulated.chance;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Fills a buffer with random bytes. Returns their number, or -1.
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

/// The C library's `timespec`.
#[repr(C)]
struct CTime {
    seconds: i64,
    nanoseconds: i64,
}

/// Reads a clock. Returns 0, or -1.
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
