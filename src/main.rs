//! The program `lockkeeper`: hands over to [`lockkeeper::cli`].

/// Tables, messages and batches are many small allocations that one thread makes and another frees, where the C library's allocator is
/// slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    lockkeeper::cli::run()
}
