//! The program of the library `ferrofs_fetch`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ferrofs_fetch::run_program()
}
