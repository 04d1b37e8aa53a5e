//! The program `lockkeeper`.

fn main() -> std::process::ExitCode {
    lockkeeper::cli::run()
}
