//! The ferrofs command.
fn main() {}
