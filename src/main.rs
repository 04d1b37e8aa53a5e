//! The program `lockkeeper`: hands over to [`lockkeeper::cli`].

/// Tables, messages and batches are many small pieces, which one thread makes and another lets go: what the C library's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    lockkeeper::cli::run()
}
