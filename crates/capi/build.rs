//! Gives the shared library its soname, and keeps it loaded once it is: its threads live until the
//! process ends.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // As cargo-c numbers versions below 1: each 0.N is an interface of its own.
    let version = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}"));
    if let (Ok(major), Ok(minor)) = (version("MAJOR"), version("MINOR")) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libferrofs.so.{major}.{minor}");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
