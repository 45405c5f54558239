//! The system calls that no safe binding covers: scheduling policy, affinity masks wider than 1024
//! CPUs, and calls that may fail although bindings take them for infallible. Called by `priority` and `cpus`.
#![allow(unsafe_code, reason = "these calls have no safe binding")]

use std::ffi::{c_int, c_long, c_uint};

use rustix::io::Errno;

/// `SCHED_OTHER`.
pub(crate) const POLICY_OTHER: c_int = 0;
/// `SCHED_FIFO`.
pub(crate) const POLICY_FIFO: c_int = 1;
/// `SCHED_RR`.
pub(crate) const POLICY_ROUND_ROBIN: c_int = 2;
/// `SCHED_BATCH`.
pub(crate) const POLICY_BATCH: c_int = 3;
/// `SCHED_IDLE`.
pub(crate) const POLICY_IDLE: c_int = 5;
/// `SCHED_DEADLINE`.
pub(crate) const POLICY_DEADLINE: c_int = 6;
/// `SCHED_RESET_ON_FORK`: threads and processes that this thread starts begin as ordinary ones.
pub(crate) const RESET_ON_FORK: c_int = 0x4000_0000;

/// `RLIMIT_RTTIME`.
const RTTIME: c_long = 15;
/// `RLIM64_INFINITY`.
const UNLIMITED: u64 = u64::MAX;

/// The numbers of `sched_setscheduler`, `sched_getscheduler`, `sched_getparam`, `sched_setaffinity`, `prlimit64` and
/// `getcpu`.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
const NUMBERS: Option<[c_long; 6]> = Some([144, 145, 143, 203, 302, 309]);
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64", target_arch = "loongarch64"))]
const NUMBERS: Option<[c_long; 6]> = Some([119, 120, 121, 122, 261, 168]);
#[cfg(not(any(
    all(target_arch = "x86_64", target_pointer_width = "64"),
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "loongarch64"
)))]
const NUMBERS: Option<[c_long; 6]> = None;

unsafe extern "C" {
    // The C library's own sched_setscheduler answers ENOSYS in musl, so it is not the one to call.
    fn syscall(number: c_long, ...) -> c_long;
}

/// Gives the calling thread `policy` (with flags) at `priority`.
pub(crate) fn set_scheduler(policy: c_int, priority: c_int) -> Result<(), Errno> {
    let [number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
    // The kernel's struct sched_param is this one int.
    let parameter: c_int = priority;
    // SAFETY: the number is this architecture's sched_setscheduler(pid, policy, *const sched_param)
    // (NUMBERS); the kernel reads one int through the pointer, which is to a local that outlives the
    // call, and writes nothing.
    let result =
        unsafe { syscall(number, c_long::from(0_u8), c_long::from(policy), &raw const parameter) };
    checked(result).map(drop)
}

/// The calling thread's policy without its flags.
pub(crate) fn scheduler() -> Result<c_int, Errno> {
    let [_, number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
    // SAFETY: the number is this architecture's sched_getscheduler(pid) (NUMBERS), which takes no
    // pointer.
    let result = unsafe { syscall(number, c_long::from(0_u8)) };
    let policy = c_int::try_from(checked(result)?).map_err(|_| Errno::RANGE)?;
    Ok(policy & !RESET_ON_FORK)
}

/// The calling thread's real-time priority; 0 under an ordinary policy.
pub(crate) fn real_time_priority() -> Result<c_int, Errno> {
    let [_, _, number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
    let mut priority: c_int = 0;
    // SAFETY: the number is this architecture's sched_getparam(pid, *mut sched_param) (NUMBERS); the kernel writes
    // struct sched_param, which is one int, to a local that outlives the call.
    let result = unsafe { syscall(number, c_long::from(0_u8), &raw mut priority) };
    checked(result)?;
    Ok(priority)
}

/// The CPU on which the calling thread runs. A binding that takes the call for infallible would return what was on the
/// stack where a system call filter refuses it.
pub(crate) fn current_cpu() -> Result<usize, Errno> {
    let [.., number] = NUMBERS.ok_or(Errno::NOSYS)?;
    let mut cpu: c_uint = 0;
    let nothing = std::ptr::null_mut::<c_uint>();
    // SAFETY: the number is this architecture's getcpu(*mut cpu, *mut node, *mut cache) (NUMBERS); the kernel writes one
    // unsigned int to a local that outlives the call, and nothing through null pointers.
    let result = unsafe { syscall(number, &raw mut cpu, nothing, nothing) };
    checked(result)?;
    usize::try_from(cpu).map_err(|_| Errno::RANGE)
}

/// Restricts the calling thread to the CPUs whose bits are set, CPU 0 in the lowest bit of the first
/// word. Bits past the kernel's own limit are ignored by it.
pub(crate) fn set_affinity(mask: &[u64]) -> Result<(), Errno> {
    let [_, _, _, number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
    // SAFETY: the number is this architecture's sched_setaffinity(pid, length in bytes, *const mask)
    // (NUMBERS; all of them have 64-bit words); the kernel reads at most size_of_val(mask) bytes
    // through the pointer, which is to a slice borrowed over the call, and writes nothing.
    let result = unsafe { syscall(number, c_long::from(0_u8), size_of_val(mask), mask.as_ptr()) };
    checked(result).map(drop)
}

/// Whether the process has a limit on the time that a real-time thread computes without sleeping. A binding that takes
/// reading it for infallible would return what was on the stack where a system call filter refuses the call.
pub(crate) fn has_real_time_limit() -> Result<bool, Errno> {
    let [_, _, _, _, number, _] = NUMBERS.ok_or(Errno::NOSYS)?;
    let mut limits = [UNLIMITED; 2];
    // SAFETY: the number is this architecture's prlimit64(pid, resource, *const new, *mut old) (NUMBERS); without new
    // limits it changes nothing, and the kernel writes struct rlimit64, two words, to a local that outlives the call.
    let result = unsafe {
        syscall(number, c_long::from(0_u8), RTTIME, std::ptr::null::<u64>(), limits.as_mut_ptr())
    };
    checked(result)?;
    Ok(limits.first() != Some(&UNLIMITED))
}

/// The C library's convention: -1, and the number in errno.
fn checked(result: c_long) -> Result<c_long, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let number = std::io::Error::last_os_error().raw_os_error();
    Err(number.map_or(Errno::NOSYS, Errno::from_raw_os_error))
}
