//! System call filters: rules as a program of classic BPF, which the kernel runs before each call, and the installation of
//! the program on all threads. It knows no call by name. Used by [`super::Sandbox::enter`].
#![allow(unsafe_code, reason = "rustix has no safe binding of the system call seccomp")]

use std::ffi::{c_long, c_uint, c_ulong, c_ushort};
use std::io;

use rustix::io::Errno;

use super::FilterState;

/// Installs a filter with these rules on all threads, and those that are started later.
///
/// # Errors
///
/// As `seccomp`, unless the kernel does not offer filters to this process.
pub(super) fn install(rules: &[SyscallRule]) -> io::Result<FilterState> {
    let calls = rules.iter().filter(|rule| rule.action == SeccompAction::Allow).count();
    let program = BpfProgram::new(rules).ok_or(Errno::TOOBIG)?;
    match install_program(&program) {
        Ok(()) => Ok(FilterState::On { calls }),
        Err(error) if is_unsupported(&error) => {
            let reason = format!("the kernel offers no filter to this process ({error})");
            Ok(FilterState::Unavailable { reason })
        }
        Err(error) => Err(error),
    }
}

/// The kernel has no filters (`ENOSYS`, `EINVAL`), or a filter that this process inherited forbids another one (`ENOSYS`,
/// `EPERM`).
fn is_unsupported(error: &io::Error) -> bool {
    let errors = [Errno::NOSYS, Errno::INVAL, Errno::PERM, Errno::ACCESS];
    errors.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The kernel's `struct sock_fprog`.
#[repr(C)]
struct SockFprog {
    length: c_ushort,
    instructions: *const SockFilter,
}

/// Installs `program` on all threads, or on none.
///
/// Kernels before 5.16 disable speculative store bypass for a filtered process, which slows decoders down. `SPEC_ALLOW`
/// keeps it enabled. The flag is as old as that behaviour (4.17), so a second attempt goes without it.
///
/// # Errors
///
/// As `seccomp`; and if a thread already has its own filter, with the ID of that thread.
fn install_program(program: &BpfProgram) -> io::Result<()> {
    let fast = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    match install_with(fast, program) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            install_with(libc::SECCOMP_FILTER_FLAG_TSYNC, program)
        }
        result => result,
    }
}

fn install_with(flags: c_ulong, program: &BpfProgram) -> io::Result<()> {
    let instructions = program.instructions();
    let length = c_ushort::try_from(instructions.len()).map_err(io::Error::other)?;
    let program = SockFprog { length, instructions: instructions.as_ptr() };
    let operation: c_uint = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: seccomp(operation, flags, *const sock_fprog) with this operation reads the sock_fprog and the `length`
    // instructions that it points to, and writes nothing. Both are borrowed until the call returns. `SockFprog` and
    // `SockFilter` are repr(C) with the fields of the kernel's structures.
    let result: c_long =
        unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has its own filter"))),
    }
}

/// What the kernel does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeccompAction {
    /// The call is made.
    Allow,
    /// It fails with `EPERM`.
    Deny,
    /// It fails with `ENOSYS`, as on a kernel that is older than it.
    NoSys,
    /// The process ends by `SIGSYS`.
    KillProcess,
}

impl SeccompAction {
    fn code(self) -> u32 {
        let errno = |number: i32| libc::SECCOMP_RET_ERRNO | number.unsigned_abs();
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Deny => errno(libc::EPERM),
            Self::NoSys => errno(libc::ENOSYS),
            Self::KillProcess => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// A condition on one argument: of the bits in `mask`, exactly those of `value` are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArgumentCondition {
    /// The index of the argument, 0 to 5.
    pub(super) argument: u8,
    pub(super) mask: u64,
    pub(super) value: u64,
}

/// The action for a call: always, or if any of the conditions holds. If none holds, the call is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyscallRule {
    pub(super) call: c_long,
    pub(super) action: SeccompAction,
    /// None means always.
    pub(super) conditions: Vec<ArgumentCondition>,
}

/// The kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SockFilter {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// `A = word at operand of struct seccomp_data`.
const LOAD: u16 = 0x20;
/// `A &= operand`.
const AND: u16 = 0x54;
/// Skips `if_true` instructions if `A == operand`, else `if_false`.
const JUMP_IF_EQUAL: u16 = 0x15;
/// Ends the program with the action `operand`.
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`. All architectures here store the lower half of an argument first.
const CALL: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `AUDIT_ARCH_*`: the ELF machine, 64 bits, little-endian. x32 calls of x86-64 have this one, too, but numbers that no
/// rule has.
#[cfg(target_arch = "x86_64")]
const OWN_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OWN_ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const OWN_ARCHITECTURE: u32 = 0xc000_00f3;

/// The kernel's limit, `BPF_MAXINSNS`.
const INSTRUCTIONS_MAX: usize = 4096;

/// A BPF program that applies rules. A call without a rule is denied. A call with the numbers of another architecture ends
/// the process, since its number means another call.
#[derive(Debug)]
pub(super) struct BpfProgram(Vec<SockFilter>);

impl BpfProgram {
    /// The rules are tested in order, so those of frequent calls should come first: kernels before 5.11 do not cache
    /// results. `None` if the program would be too long, or a rule has too many conditions.
    pub(super) fn new(rules: &[SyscallRule]) -> Option<Self> {
        let mut program = vec![
            load(ARCHITECTURE),
            SockFilter { code: JUMP_IF_EQUAL, if_true: 1, if_false: 0, operand: OWN_ARCHITECTURE },
            action(SeccompAction::KillProcess),
            load(CALL),
        ];
        for rule in rules {
            let body = body(rule)?;
            program.push(skip_unless_equal(u32::try_from(rule.call).ok()?, body.len())?);
            program.extend(body);
        }
        program.push(action(SeccompAction::Deny));
        (program.len() <= INSTRUCTIONS_MAX).then_some(Self(program))
    }

    pub(super) fn instructions(&self) -> &[SockFilter] {
        &self.0
    }
}

/// The instructions after a call's number has matched. They always end with an action.
fn body(rule: &SyscallRule) -> Option<Vec<SockFilter>> {
    let mut body = Vec::new();
    for condition in &rule.conditions {
        body.extend(tested(condition, rule.action)?);
    }
    body.push(action(if rule.conditions.is_empty() { rule.action } else { SeccompAction::Deny }));
    Some(body)
}

/// Ends with the action if the condition holds, and continues after itself if not. A half without a bit of the mask is
/// not tested.
fn tested(condition: &ArgumentCondition, then: SeccompAction) -> Option<Vec<SockFilter>> {
    let place = ARGUMENTS + 8 * u32::from(condition.argument);
    let [[low_mask, high_mask], [low, high]] = [condition.mask, condition.value].map(halves);
    let mut steps = vec![action(then)];
    for (place, mask, value) in [(place, low_mask, low), (place + 4, high_mask, high)] {
        if mask != 0 {
            let masked = SockFilter { code: AND, if_true: 0, if_false: 0, operand: mask };
            let compared = skip_unless_equal(value, steps.len())?;
            steps.splice(0..0, [load(place), masked, compared]);
        }
    }
    Some(steps)
}

/// The lower half, and the upper one.
fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

fn load(place: u32) -> SockFilter {
    SockFilter { code: LOAD, if_true: 0, if_false: 0, operand: place }
}

fn action(action: SeccompAction) -> SockFilter {
    SockFilter { code: RETURN, if_true: 0, if_false: 0, operand: action.code() }
}

/// Continues if equal, otherwise skips this many instructions. `None` if they are too many for a jump.
fn skip_unless_equal(operand: u32, skipped: usize) -> Option<SockFilter> {
    let if_false = u8::try_from(skipped).ok()?;
    Some(SockFilter { code: JUMP_IF_EQUAL, if_true: 0, if_false, operand })
}

#[cfg(test)]
pub(super) mod tests {
    //! Programs are run by a small interpreter and compared with their rules.

    use super::{
        AND, ARCHITECTURE, ARGUMENTS, ArgumentCondition, BpfProgram, CALL, JUMP_IF_EQUAL, LOAD,
        OWN_ARCHITECTURE, RETURN, SeccompAction, SockFilter, SyscallRule,
    };

    /// The result of a program; the arguments are the fields of the kernel's `struct seccomp_data`.
    fn run(program: &BpfProgram, architecture: u32, (call, arguments): (i64, [u64; 6])) -> u32 {
        let (mut next, mut word) = (0, 0);
        loop {
            let SockFilter { code, if_true, if_false, operand } = program.instructions()[next];
            next += 1;
            match code {
                LOAD => word = loaded(operand, architecture, (call, arguments)),
                AND => word &= operand,
                JUMP_IF_EQUAL => {
                    next += usize::from(if word == operand { if_true } else { if_false });
                }
                RETURN => return operand,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn loaded(place: u32, architecture: u32, (call, arguments): (i64, [u64; 6])) -> u32 {
        match place {
            CALL => u32::try_from(call).unwrap(),
            ARCHITECTURE => architecture,
            _ => {
                let place = place.checked_sub(ARGUMENTS).unwrap() as usize;
                assert_eq!(place % 4, 0);
                let [low, high] = super::halves(arguments[place / 8]);
                if place.is_multiple_of(8) { low } else { high }
            }
        }
    }

    /// The action for a call of this architecture.
    pub(in crate::sandbox) fn action_of(
        program: &BpfProgram,
        call: (i64, [u64; 6]),
    ) -> SeccompAction {
        let code = run(program, OWN_ARCHITECTURE, call);
        let answers = [
            SeccompAction::Allow,
            SeccompAction::Deny,
            SeccompAction::NoSys,
            SeccompAction::KillProcess,
        ];
        answers.into_iter().find(|action| action.code() == code).unwrap()
    }

    /// The same, computed from the rules.
    fn expected(rules: &[SyscallRule], (call, arguments): (i64, [u64; 6])) -> SeccompAction {
        let Some(rule) = rules.iter().find(|rule| rule.call == call) else {
            return SeccompAction::Deny;
        };
        let holds = |condition: &ArgumentCondition| {
            arguments[usize::from(condition.argument)] & condition.mask == condition.value
        };
        if rule.conditions.is_empty() || rule.conditions.iter().any(holds) {
            rule.action
        } else {
            SeccompAction::Deny
        }
    }

    #[test]
    fn a_program_acts_as_its_rules_say() {
        const LOW: u64 = 0xffff_ffff;
        let test = |argument, mask, value| ArgumentCondition { argument, mask, value };
        let rule = |call, action, conditions| SyscallRule { call, action, conditions };
        let rules = [
            rule(3, SeccompAction::Allow, vec![]),
            rule(0, SeccompAction::Allow, vec![test(0, LOW, 7)]),
            rule(
                9,
                SeccompAction::Allow,
                vec![test(5, u64::MAX, 0), test(1, 0xff00_0000_0000, 1 << 40)],
            ),
            rule(4, SeccompAction::KillProcess, vec![]),
            rule(5, SeccompAction::NoSys, vec![]),
            rule(
                6,
                SeccompAction::Allow,
                vec![test(2, 0b110, 0b100), test(2, LOW, 1), test(3, LOW, 0)],
            ),
        ];
        let program = BpfProgram::new(&rules).unwrap();
        let words =
            [0, 1, 2, 4, 6, 7, 8, 1 << 32, (1 << 32) | 7, 1 << 40, 3 << 40, 1 << 50, u64::MAX];
        let mut allowed = 0;
        for call in 0..12 {
            for argument in 0..6 {
                for word in words {
                    for rest in [0, 5, u64::MAX] {
                        let mut arguments = [rest; 6];
                        arguments[argument] = word;
                        let action = expected(&rules, (call, arguments));
                        let code = run(&program, OWN_ARCHITECTURE, (call, arguments));
                        assert_eq!(code, action.code(), "call {call}, {arguments:x?}");
                        allowed += usize::from(action == SeccompAction::Allow);
                    }
                }
            }
        }
        assert!(allowed > 100, "{allowed}");
    }

    #[test]
    fn numbers_of_another_architecture_end_the_process() {
        let rules = [SyscallRule { call: 3, action: SeccompAction::Allow, conditions: Vec::new() }];
        let program = BpfProgram::new(&rules).unwrap();
        // 32-bit x86 and ARM.
        for other in [0x4000_0003, 0x4000_0028, 0] {
            assert_eq!(run(&program, other, (3, [0; 6])), libc::SECCOMP_RET_KILL_PROCESS);
        }
        assert_eq!(run(&program, OWN_ARCHITECTURE, (3, [0; 6])), libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn rules_that_exceed_the_limits_of_a_program_are_refused() {
        let rule = |call, count| {
            let test = ArgumentCondition { argument: 0, mask: u64::MAX, value: 1 };
            SyscallRule { call, action: SeccompAction::Allow, conditions: vec![test; count] }
        };
        assert!(BpfProgram::new(&[rule(-1, 0)]).is_none(), "a number that no call has");
        assert!(BpfProgram::new(&[rule(1, 36)]).is_some());
        assert!(BpfProgram::new(&[rule(1, 37)]).is_none(), "too far for a jump");
        let many: Vec<_> = (0..3000).map(|call| rule(call, 0)).collect();
        assert!(BpfProgram::new(&many).is_none(), "too long for the kernel");
    }
}
