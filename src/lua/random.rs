//! The generator of `math.random`: the sequence of `lrand48`, as in Redis. There it goes on from script to script. Here it begins anew with
//! each run, since a run that meets a conflict is run again, and must then do the same.

/// The state of the generator.
#[derive(Clone, Copy)]
pub(crate) struct Lrand48(u64);

impl Lrand48 {
    /// The least number that it never returns.
    pub(crate) const MAX: u32 = i32::MAX as u32;

    /// The state before a script sets a seed.
    pub(crate) fn new() -> Self {
        Self(0x1234_abcd_330e)
    }

    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "the seed is the bits of the number")]
    pub(crate) fn from_seed(seed: i64) -> Self {
        Self((u64::from(seed as u32) << 16) | 0x330e)
    }

    /// A number from 0 to 2^31 - 1.
    #[expect(clippy::cast_possible_truncation, reason = "31 of 48 bits are taken")]
    pub(crate) fn draw(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & 0xffff_ffff_ffff;
        (self.0 >> 17) as u32
    }
}
