//! The watcher on made-up files, and once on the real ones.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use super::*;
use crate::ErrorKind;
use crate::memory::AllocPolicy;

const MIB: u64 = 1 << 20;

/// Files under one directory, as a system would show them.
struct Fixture {
    directory: tempfile::TempDir,
    budget: Budget,
}

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap(), budget: Budget::new(MIB) };
        files.iter().for_each(|(path, text)| fixture.write(path, text));
        fixture
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn watcher(&self, interval: Duration) -> Pressure {
        let at = |path: &str| self.directory.path().join(path);
        let settings = PressureSettings {
            interval,
            cgroup_root: at("cgroup"),
            cgroup_of_process: at("self"),
            system_pressure: at("pressure"),
            ..PressureSettings::default()
        };
        Pressure::new(&self.budget, settings)
    }

    fn looks(&self) -> bool {
        self.watcher(Duration::ZERO).look()
    }
}

#[test]
fn without_any_file_nothing_is_short() {
    assert!(!Fixture::new(&[]).looks());
}

#[test]
fn usage_near_the_limit_of_version_two_is_short() {
    let group = "cgroup/a/b/";
    let fixture = Fixture::new(&[("self", "0::/a/b\n")]);
    for (current, high, max, expected) in [
        (100 * MIB, "max", "max", false),
        (100 * MIB, "max", "134217728", false),
        (120 * MIB, "max", "134217728", true),
        (100 * MIB, "113246208", "134217728", true),
        (112 * MIB, "max", "134217728", true),
        (112 * MIB - 1, "max", "134217728", false),
    ] {
        fixture.write(&format!("{group}memory.current"), &format!("{current}\n"));
        fixture.write(&format!("{group}memory.high"), &format!("{high}\n"));
        fixture.write(&format!("{group}memory.max"), &format!("{max}\n"));
        assert_eq!(fixture.looks(), expected, "{current} {high} {max}");
    }
}

#[test]
fn the_limit_of_a_group_above_counts_too() {
    let fixture = Fixture::new(&[
        ("self", "0::/a/b\n"),
        ("cgroup/a/b/memory.current", "1000\n"),
        ("cgroup/a/b/memory.max", "max\n"),
        ("cgroup/a/memory.current", "134217000\n"),
        ("cgroup/a/memory.max", "134217728\n"),
    ]);
    assert!(fixture.looks());
}

#[test]
fn version_one_is_read_where_it_accounts_memory() {
    let fixture = Fixture::new(&[
        ("self", "4:cpu,memory:/job\n0::/\n"),
        ("cgroup/memory/job/memory.usage_in_bytes", "134217000\n"),
        ("cgroup/memory/job/memory.limit_in_bytes", "134217728\n"),
    ]);
    assert!(fixture.looks());
    fixture.write("cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    assert!(!fixture.looks());
}

#[test]
fn in_a_container_the_mounted_group_is_the_own() {
    let fixture = Fixture::new(&[
        ("self", "0::/path/of/outside\n"),
        ("cgroup/memory.current", "134217000\n"),
        ("cgroup/memory.max", "134217728\n"),
    ]);
    assert!(fixture.looks());
}

#[test]
fn file_pages_that_nobody_used_lately_are_not_counted() {
    let fixture = Fixture::new(&[
        ("self", "0::/\n"),
        ("cgroup/memory.current", "134217000\n"),
        ("cgroup/memory.max", "134217728\n"),
        ("cgroup/memory.stat", "anon 1000\ninactive_file 100000000\nactive_file 7\n"),
    ]);
    assert!(!fixture.looks());
}

#[test]
fn stalls_above_the_threshold_are_short_and_the_groups_own_go_first() {
    let line = |share: &str| {
        format!("some avg10={share} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00\n")
    };
    let fixture = Fixture::new(&[("self", "0::/a\n"), ("cgroup/a/memory.current", "0\n")]);
    for (share, expected) in [("0.00", false), ("9.99", false), ("10.00", true), ("100.00", true)] {
        fixture.write("pressure", &line(share));
        assert_eq!(fixture.looks(), expected, "{share}");
    }
    fixture.write("cgroup/a/memory.pressure", &line("0.50"));
    assert!(!fixture.looks());
}

#[test]
fn shares_are_read_in_hundredths_of_a_percent() {
    for (text, expected) in [
        ("some avg10=1.23 avg60=0.00", Some(123)),
        ("full avg10=9.00\nsome avg10=0.07 avg60=0.00", Some(7)),
        ("some avg10=12", Some(1200)),
        ("some avg10=12.5", Some(1250)),
        ("some avg10=", None),
        ("some avg10=99999999999.00", None),
        ("some avg60=1.00", None),
        ("", None),
    ] {
        assert_eq!(stalled_share(text), expected, "{text}");
    }
}

#[test]
fn damaged_files_say_nothing() {
    for text in ["", "\n", "-1\n", "99999999999999999999999\n", "many\n", "\u{0}\u{ff}"] {
        let fixture = Fixture::new(&[
            ("self", "0::/\n"),
            ("cgroup/memory.current", text),
            ("cgroup/memory.max", text),
            ("pressure", text),
        ]);
        assert!(!fixture.looks(), "{text:?}");
        fixture.write("self", text);
        assert!(!fixture.looks(), "{text:?}");
    }
}

#[test]
fn within_the_interval_nobody_looks_again() {
    let fixture = Fixture::new(&[("pressure", "some avg10=50.00\n")]);
    let watcher = fixture.watcher(Duration::from_secs(3600));
    assert!(watcher.look());
    fixture.write("pressure", "some avg10=0.00\n");
    assert!(watcher.look(), "remembered");
    assert_eq!(
        fixture.budget.charge(1, AllocPolicy::MayFail).unwrap_err().kind(),
        ErrorKind::NotNow
    );
    drop(fixture.budget.charge(1, AllocPolicy::MustSucceed).unwrap());
    drop(watcher);
    assert!(!fixture.budget.is_pressed(), "nobody looks any more");
    assert!(!fixture.looks());
}

#[test]
fn the_real_files_are_read_without_fuss() {
    let budget = Budget::new(MIB);
    println!("{}", Pressure::new(&budget, PressureSettings::default()).look());
}
