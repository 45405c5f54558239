//! Rules about system calls as a program of classic BPF, which the kernel runs before each call. It
//! makes no system call and knows no call by name. Made by [`super::install`].

use std::ffi::c_long;

/// What the kernel does about a call.
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

/// What must hold of one argument: of its bits in `mask`, exactly those of `value` are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArgumentCondition {
    /// 0 to 5.
    pub(super) argument: u8,
    pub(super) mask: u64,
    pub(super) value: u64,
}

/// What is answered to a call: always, or if any of the conditions holds; if none does, it is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyscallRule {
    pub(super) call: c_long,
    pub(super) action: SeccompAction,
    /// Empty: always.
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
/// Answers operand.
const RETURN: u16 = 0x06;

/// Fields of `struct seccomp_data`. All architectures here put the lower half of an argument first.
const CALL: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `AUDIT_ARCH_*`: the ELF machine, 64 bits, little-endian. x86-64's x32 calls have this one, too, but
/// numbers that no rule has.
#[cfg(target_arch = "x86_64")]
const OWN_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OWN_ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const OWN_ARCHITECTURE: u32 = 0xc000_00f3;

/// The kernel's limit, `BPF_MAXINSNS`.
const INSTRUCTIONS_MAX: usize = 4096;

/// A program that answers as its rules say; a call without a rule is refused, and one by another
/// architecture's numbers ends the process, since its numbers mean other calls.
#[derive(Debug)]
pub(super) struct BpfProgram(Vec<SockFilter>);

impl BpfProgram {
    /// The rules are tried in their order, so those of frequent calls come first: kernels before 5.11 do
    /// not remember answers. `None` if the rules cannot be said in a program.
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

/// What follows once the call's number has matched: it always answers.
fn body(rule: &SyscallRule) -> Option<Vec<SockFilter>> {
    let mut body = Vec::new();
    for condition in &rule.conditions {
        body.extend(tested(condition, rule.action)?);
    }
    body.push(action(if rule.conditions.is_empty() { rule.action } else { SeccompAction::Deny }));
    Some(body)
}

/// Answers if the condition holds, and goes on behind itself if not. A half that no bit of the mask lies in
/// is not looked at.
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

/// Goes on if equal; otherwise skips so many instructions. `None` if those are too many for a jump.
fn skip_unless_equal(operand: u32, skipped: usize) -> Option<SockFilter> {
    let if_false = u8::try_from(skipped).ok()?;
    Some(SockFilter { code: JUMP_IF_EQUAL, if_true: 0, if_false, operand })
}

#[cfg(test)]
pub(super) mod tests;
