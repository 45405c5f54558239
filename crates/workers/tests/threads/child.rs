//! The roles, and how they are started. The role's name travels in the environment.
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use std::process::Command;
use std::time::{Duration, Instant};

use ferrofs_workers::cpus::{AvailableCpus, CpuSet, is_bound_to};
use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};
use rustix::process::{Resource, Rlimit, getpid, setrlimit};
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};

const ROLE: &str = "FERROFS_WORKERS_TEST_ROLE";
const ANSWER: &str = "answer: ";
const NOBODY: u32 = 65_534;

/// What a child process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Ordinary,
    OrdinaryMayBeNice,
    OrdinaryMayBeRealTime,
    LimitedTime,
    LimitedTimeComputes,
    ShrinkingMask,
}

const ROLES: [Role; 6] = [
    Role::Ordinary,
    Role::OrdinaryMayBeNice,
    Role::OrdinaryMayBeRealTime,
    Role::LimitedTime,
    Role::LimitedTimeComputes,
    Role::ShrinkingMask,
];

/// Starts this binary in a role and gives its answer.
pub(crate) fn run_role(role: Role) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child::plays_its_role", "--nocapture"])
        .env(ROLE, format!("{role:?}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{role:?}: {} {text}", output.status);
    // libtest may have begun the line.
    let answer = text.lines().find_map(|line| line.split_once(ANSWER));
    answer.unwrap_or_else(|| panic!("{role:?} did not answer: {text}")).1.to_owned()
}

/// In the process that the tests themselves run in this does nothing.
#[test]
fn plays_its_role() {
    let Ok(name) = std::env::var(ROLE) else { return };
    let role = ROLES.into_iter().find(|role| format!("{role:?}") == name).unwrap();
    match play(role) {
        Ok(answer) => println!("{ANSWER}{answer}"),
        Err(reason) => println!("{ANSWER}skipped: {reason}"),
    }
}

fn play(role: Role) -> Result<String, String> {
    match role {
        Role::Ordinary => ordinary(Limits { nice: 0, real_time: 0 }),
        Role::OrdinaryMayBeNice => ordinary(Limits { nice: 39, real_time: 0 }),
        Role::OrdinaryMayBeRealTime => ordinary(Limits { nice: 0, real_time: 1 }),
        Role::LimitedTime => limited_time(),
        Role::LimitedTimeComputes => limited_time_computes(),
        Role::ShrinkingMask => shrinking_mask(),
    }
}

/// `nice` is 20 less the lowest nice value, as in RLIMIT_NICE.
#[derive(Clone, Copy)]
struct Limits {
    nice: u64,
    real_time: u64,
}

fn ordinary(limits: Limits) -> Result<String, String> {
    limit(Resource::Nice, limits.nice)?;
    limit(Resource::Rtprio, limits.real_time)?;
    give_up_privileges()?;
    start_in_the_middle()?;
    Ok(climb())
}

fn limited_time() -> Result<String, String> {
    limit(Resource::Rttime, 200_000)?;
    needs_sys_nice()?;
    start_in_the_middle()?;
    Ok(climb())
}

/// Were the first level granted, SIGXCPU would end this process after 50 ms.
fn limited_time_computes() -> Result<String, String> {
    limit(Resource::Rttime, 50_000)?;
    assert_ne!(priority::apply(PriorityRequest::Raised), PriorityLevel::RealTime);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        std::hint::spin_loop();
    }
    Ok("alive".to_owned())
}

fn shrinking_mask() -> Result<String, String> {
    let process = Some(getpid());
    let whole = sched_getaffinity(process).map_err(|errno| errno.to_string())?;
    let before = AvailableCpus::read();
    let Some(first) = before.cpus().iter().next().filter(|_| before.cpus().len() > 1) else {
        return Err("one CPU cannot shrink".to_owned());
    };
    // Of the first thread alone, and from another one, as a tool from outside does it.
    let mut narrow = Mask::new();
    narrow.set(first);
    sched_setaffinity(process, &narrow).map_err(|errno| errno.to_string())?;
    let during = AvailableCpus::read();
    assert_eq!(during.cpus(), &CpuSet::from_iter([first]));
    assert_eq!(during.parallelism(), 1);
    assert!(!is_bound_to(first), "this thread is not the first one");
    sched_setaffinity(process, &whole).map_err(|errno| errno.to_string())?;
    assert_eq!(AvailableCpus::read(), before);
    Ok("shrunk and restored".to_owned())
}

/// Raises its priority, and reports the priority level and what /proc shows of this thread.
fn climb() -> String {
    let priority_level = priority::apply(PriorityRequest::Raised);
    assert_eq!(priority::of_current_thread(), priority_level);
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let field = |number: usize| fields[number - 3];
    format!("{priority_level}, policy {}, priority {}, nice {}", field(41), field(40), field(19))
}

fn limit(resource: Resource, most: u64) -> Result<(), String> {
    let limits = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(resource, limits).map_err(|errno| format!("limit of {resource:?}: {errno}"))
}

/// The tests may have been started with some other nice value; down to 0 is for the privileged.
fn start_in_the_middle() -> Result<(), String> {
    match rustix::process::getpriority_process(Some(rustix::thread::gettid())) {
        Ok(0) => Ok(()),
        other => Err(format!("the tests run at nice {other:?}")),
    }
}

/// Makes this thread, and no other, one of an ordinary user.
fn give_up_privileges() -> Result<(), String> {
    use rustix::process::{Gid, Uid, getuid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

    if getuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[])
            .and_then(|()| set_thread_res_gid(group, group, group))
            .and_then(|()| set_thread_res_uid(user, user, user))
            .map_err(|errno| format!("becoming an ordinary user: {errno}"))?;
    }
    match has_sys_nice() {
        false => Ok(()),
        true => Err("this user has CAP_SYS_NICE".to_owned()),
    }
}

fn needs_sys_nice() -> Result<(), String> {
    match has_sys_nice() {
        true => Ok(()),
        false => Err("this user has no CAP_SYS_NICE".to_owned()),
    }
}

fn has_sys_nice() -> bool {
    const CAP_SYS_NICE: u32 = 23;
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let held = u64::from_str_radix(line.trim(), 16).unwrap();
    held >> CAP_SYS_NICE & 1 == 1
}
