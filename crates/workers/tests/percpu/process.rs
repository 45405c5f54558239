//! This process as /proc shows it: its threads, their names, CPUs and scheduling.

use std::fs;

use ferrofs_workers::cpus::CpuSet;
use rustix::process::{Pid, getpid};

/// A thread of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) id: i32,
    pub(crate) name: String,
}

impl Thread {
    fn text(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/self/task/{}/{file}", self.id)).unwrap()
    }

    /// The list of CPUs on which it may run.
    pub(crate) fn allowed(&self) -> String {
        let status = self.text("status");
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    }

    /// Its policy, real-time priority and nice value.
    pub(crate) fn scheduling(&self) -> (i64, i64, i64) {
        let stat = self.text("stat");
        // The name is in parentheses and may hold anything; the fields after it are numbered from 3.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |number: usize| fields[number - 3].parse::<i64>().unwrap();
        (field(41), field(40), field(19))
    }
}

/// The threads whose name begins with `prefix`, by number.
pub(crate) fn threads_named(prefix: &str) -> Vec<Thread> {
    let entries = fs::read_dir("/proc/self/task").unwrap();
    let mut threads: Vec<Thread> = entries
        .filter_map(|entry| {
            let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(format!("/proc/self/task/{id}/comm")).ok()?;
            Some(Thread { id, name: name.trim_end().to_owned() })
        })
        .filter(|thread| thread.name.starts_with(prefix))
        .collect();
    threads.sort_by_key(|thread| thread.id);
    threads
}

fn set_mask_of(thread: Option<Pid>, cpus: &CpuSet) {
    let mut mask = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| mask.set(cpu));
    rustix::thread::sched_setaffinity(thread, &mask).unwrap();
}

/// Sets the mask of the process, which is that of its first thread.
pub(crate) fn set_mask(cpus: &CpuSet) {
    set_mask_of(Some(getpid()), cpus);
}

/// Sets the mask of the calling thread.
pub(crate) fn set_mask_of_this_thread(cpus: &CpuSet) {
    set_mask_of(None, cpus);
}

/// Sets the mask of every thread, as `taskset -a` does.
pub(crate) fn set_mask_of_all(cpus: &CpuSet) {
    for thread in threads_named("") {
        set_mask_of(Pid::from_raw(thread.id), cpus);
    }
}
