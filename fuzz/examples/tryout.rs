//! tmp
fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap();
    let t = ferrofs_fuzz::TARGETS.into_iter().find(|t| t.name == name).unwrap();
    for path in args {
        let b = std::fs::read(&path).unwrap();
        let now = std::time::Instant::now();
        let r = std::panic::catch_unwind(|| (t.body)(&b));
        println!("{path}: {} in {:?}", if r.is_ok() { "ok" } else { "PANIC" }, now.elapsed());
    }
}
