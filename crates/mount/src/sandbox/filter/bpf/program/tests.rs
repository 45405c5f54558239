//! Programs are run by a small interpreter, and compared with what their rules say word by word.

use super::{
    AND, ARCHITECTURE, ARGUMENTS, ArgumentCondition, BpfProgram, CALL, JUMP_IF_EQUAL, LOAD,
    OWN_ARCHITECTURE, RETURN, SeccompAction, SockFilter, SyscallRule,
};

/// What a program answers; the kernel's `struct seccomp_data` by fields.
fn run(program: &BpfProgram, architecture: u32, (call, arguments): (i64, [u64; 6])) -> u32 {
    let (mut next, mut word) = (0, 0);
    loop {
        let SockFilter { code, if_true, if_false, operand } = program.instructions()[next];
        next += 1;
        match code {
            LOAD => word = loaded(operand, architecture, (call, arguments)),
            AND => word &= operand,
            JUMP_IF_EQUAL => next += usize::from(if word == operand { if_true } else { if_false }),
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

/// What is answered to a call of this architecture.
pub(in super::super) fn answer_of(program: &BpfProgram, call: (i64, [u64; 6])) -> SeccompAction {
    let code = run(program, OWN_ARCHITECTURE, call);
    let answers = [
        SeccompAction::Allow,
        SeccompAction::Deny,
        SeccompAction::NoSys,
        SeccompAction::KillProcess,
    ];
    answers.into_iter().find(|action| action.code() == code).unwrap()
}

/// The same, without a program.
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
fn a_program_answers_as_its_rules_say() {
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
    let words = [0, 1, 2, 4, 6, 7, 8, 1 << 32, (1 << 32) | 7, 1 << 40, 3 << 40, 1 << 50, u64::MAX];
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
fn rules_that_no_program_can_say_are_told_apart() {
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
