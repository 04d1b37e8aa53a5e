//! The program `lockkeeper`: hands over to [`lockkeeper::cli`].

fn main() -> std::process::ExitCode {
    lockkeeper::cli::run()
}
