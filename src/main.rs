//! The program `lockkeeper`.

fn main() {}
