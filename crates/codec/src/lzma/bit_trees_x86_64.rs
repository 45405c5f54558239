//! Groups of bits for 64-bit x86 processors, in assembly.
//!
//! The speed depends on how long a bit waits for the one before it. The chain is: shift the range,
//! multiply by the probability, subtract, and select the range by the carry. Everything else is
//! kept off that chain: both probabilities that may be next are loaded before the bit is known, and
//! the same carry selects one. Compilers make branches of it, or longer chains.
//!
//! Reading a byte of input is a branch. Doing that without a branch, too, makes each bit wait for
//! one step more, which costs about what the mispredictions do (measured on Zen 5).
#![allow(unsafe_code, reason = "assembly that reads input and probabilities")]

use std::arch::asm;

use super::range_decoder::{BitTrees, Literal, RangeDecoder};

/// For 64-bit x86 processors.
pub(super) struct X86_64;

/// Takes in a byte if the range is below `RANGE_MIN`.
macro_rules! normalize {
    () => {
        "cmp {range:e}, 0x1000000
         jae 2f
         shl {code:e}, 8
         mov {code:l}, byte ptr [{next}]
         shl {range:e}, 8
         inc {next}
         2:
        "
    };
}

/// Divides the range by the chance in `$chance` and chooses its half.
///
/// From here on the carry flag is set for a zero and clear for a one. Spoils t0 and t1.
macro_rules! divide {
    ($chance:literal) => {
        concat!(
            normalize!(),
            "mov {t0:e}, {range:e}
             shr {t0:e}, 11
             imul {t0:e}, {",
            $chance,
            ":e}
             mov {t1:e}, {code:e}
             sub {range:e}, {t0:e}
             sub {code:e}, {t0:e}
             cmovb {range:e}, {t0:e}
             cmovb {code:e}, {t1:e}
            "
        )
    };
}

/// Moves the chance in `$chance` towards the bit in the carry flag, and `symbol`, which was
/// doubled, on to the node of that bit. Spoils t1 and the flags.
///
/// A chance c becomes c - (c >> 5) or c - ((c - 2017) >> 5); the latter is c + ((2048 - c) >> 5).
macro_rules! learn {
    ($chance:literal) => {
        concat!(
            "lea {t1:e}, [{",
            $chance,
            ":r} - 2017]
             cmovae {t1:e}, {",
            $chance,
            ":e}
             sbb {symbol:e}, -1
             sar {t1:e}, 5
             sub {",
            $chance,
            ":e}, {t1:e}
            "
        )
    };
}

/// The first bit of a tree: `$chance` is its probability, `$next` will be that of the second.
macro_rules! first {
    ($chance:literal, $next:literal) => {
        concat!(
            "movzx {",
            $chance,
            ":e}, word ptr [{tree} + 2]
             movzx {",
            $next,
            ":e}, word ptr [{tree} + 4]
            ",
            divide!($chance),
            "movzx {t0:e}, word ptr [{tree} + 6]
             cmovae {",
            $next,
            ":e}, {t0:e}
             mov {symbol:e}, 2
            ",
            learn!($chance),
            "mov word ptr [{tree} + 2], {",
            $chance,
            ":x}
            "
        )
    };
}

/// A bit in the middle of a tree.
macro_rules! middle {
    ($chance:literal, $next:literal) => {
        concat!(
            "movzx {",
            $next,
            ":e}, word ptr [{tree} + {symbol:r} * 4]
            ",
            divide!($chance),
            "movzx {t0:e}, word ptr [{tree} + {symbol:r} * 4 + 2]
             cmovae {",
            $next,
            ":e}, {t0:e}
             lea {t0:e}, [{symbol:r} + {symbol:r}]
             mov {symbol:e}, {t0:e}
            ",
            learn!($chance),
            "mov word ptr [{tree} + {t0:r}], {",
            $chance,
            ":x}
            "
        )
    };
}

/// The last bit of a tree.
macro_rules! last {
    ($chance:literal) => {
        concat!(
            divide!($chance),
            "lea {t0:e}, [{symbol:r} + {symbol:r}]
             mov {symbol:e}, {t0:e}
            ",
            learn!($chance),
            "mov word ptr [{tree} + {t0:r}], {",
            $chance,
            ":x}
            "
        )
    };
}

/// A tree of bits, each given as one of the three above.
macro_rules! tree {
    ($range:ident, $tree:ident, $symbol:ident, $($bit:expr),+ $(; $early:ident)?) => {
        asm!(
            $($bit),+,
            range = inout(reg) $range.range,
            code = inout(reg) $range.code,
            next = inout(reg) $range.next,
            tree = in(reg) $tree,
            symbol = out(reg) $symbol,
            even = out(reg) _,
            odd = out(reg) _,
            t0 = out(reg) _,
            t1 = out(reg) _,
            $(early = out(reg) $early,)?
            options(nostack),
        )
    };
}

/// A bit of a literal behind a match, but for the last.
///
/// `agreeing` and bit 8 of `hint` are as in the portable code. The two probabilities that may be
/// next are those for `agreeing` after a zero and after a one.
macro_rules! matched {
    () => {
        concat!(
            "mov {one:e}, {hint:e}
             and {one:e}, {agreeing:e}
             lea {at:e}, [{symbol:r} + {agreeing:r}]
             add {at:e}, {one:e}
             xor {agreeing:e}, {one:e}
             add {hint:e}, {hint:e}
             add {symbol:e}, {symbol:e}
             mov {t0:e}, {hint:e}
             and {t0:e}, {one:e}
             add {t0:e}, {one:e}
             add {t0:e}, {symbol:e}
             movzx {next_one:e}, word ptr [{trees} + {t0:r} * 2 + 2]
             mov {t0:e}, {hint:e}
             and {t0:e}, {agreeing:e}
             lea {t1:e}, [{symbol:r} + {agreeing:r}]
             add {t0:e}, {t1:e}
             movzx {next_zero:e}, word ptr [{trees} + {t0:r} * 2]
            ",
            divide!("chance"),
            "cmovae {next_zero:e}, {next_one:e}
             cmovae {agreeing:e}, {one:e}
            ",
            learn!("chance"),
            "mov word ptr [{trees} + {at:r} * 2], {chance:x}
             mov {chance:e}, {next_zero:e}
            "
        )
    };
}

/// The last bit of a literal behind a match; leaves the early byte in `hint`.
macro_rules! matched_last {
    () => {
        concat!(
            "and {hint:e}, {agreeing:e}
             lea {at:e}, [{symbol:r} + {agreeing:r}]
             add {at:e}, {hint:e}
             add {symbol:e}, {symbol:e}
             movzx {hint:e}, {symbol:l}
            ",
            divide!("chance"),
            learn!("chance"),
            "mov word ptr [{trees} + {at:r} * 2], {chance:x}
            "
        )
    };
}

/// A bit of a reverse tree; `value` is what a one adds to `number`.
macro_rules! reverse {
    () => {
        concat!(
            "movzx {next_zero:e}, word ptr [{tree} + {symbol:r} * 4]
             movzx {next_one:e}, word ptr [{tree} + {symbol:r} * 4 + 2]
            ",
            divide!("chance"),
            "cmovae {next_zero:e}, {next_one:e}
             lea {t0:e}, [{symbol:r} + {symbol:r}]
             lea {next_one:e}, [{number:r} + {value:r}]
             cmovae {number:e}, {next_one:e}
             mov {symbol:e}, {t0:e}
            ",
            learn!("chance"),
            "mov word ptr [{tree} + {t0:r}], {chance:x}
             mov {chance:e}, {next_zero:e}
             add {value:e}, {value:e}
            "
        )
    };
}

impl BitTrees for X86_64 {
    #[inline(always)]
    unsafe fn tree<const BITS: u32>(range: &mut RangeDecoder, tree: *mut u16) -> u32 {
        const { assert!(BITS == 3 || BITS == 6 || BITS == 8) };
        let symbol: u32;
        // SAFETY: the assembly reads one byte a bit at most, and only when it takes it in; it reads
        // and writes the tree at 1 to (1 << BITS) - 1, as the symbol has at most BITS bits where it
        // is an index, or a doubled one where BITS - 1 bits are decoded at most.
        unsafe {
            match BITS {
                3 => tree!(
                    range,
                    tree,
                    symbol,
                    first!("even", "odd"),
                    middle!("odd", "even"),
                    last!("even")
                ),
                6 => tree!(
                    range,
                    tree,
                    symbol,
                    first!("even", "odd"),
                    middle!("odd", "even"),
                    middle!("even", "odd"),
                    middle!("odd", "even"),
                    middle!("even", "odd"),
                    last!("odd")
                ),
                _ => tree!(
                    range,
                    tree,
                    symbol,
                    first!("even", "odd"),
                    middle!("odd", "even"),
                    middle!("even", "odd"),
                    middle!("odd", "even"),
                    middle!("even", "odd"),
                    middle!("odd", "even"),
                    middle!("even", "odd"),
                    last!("odd")
                ),
            }
        }
        symbol
    }

    #[inline(always)]
    unsafe fn literal(range: &mut RangeDecoder, tree: *mut u16) -> Literal {
        let (symbol, early): (u32, u32);
        // SAFETY: as in `tree`.
        unsafe {
            tree!(
                range, tree, symbol,
                first!("even", "odd"), middle!("odd", "even"), middle!("even", "odd"),
                middle!("odd", "even"), middle!("even", "odd"), middle!("odd", "even"),
                middle!("even", "odd"),
                "lea {early:e}, [{symbol:r} + {symbol:r}]",
                last!("odd");
                early
            );
        }
        Literal { symbol, early: early & 0xFF }
    }

    #[inline(always)]
    unsafe fn matched(range: &mut RangeDecoder, trees: *mut u16, suggested: u8) -> Literal {
        let hint = usize::from(suggested) << 1;
        let (symbol, early): (u32, u32);
        // SAFETY: one byte a bit at most. `agreeing` and what is made of it by `and` are 0 or
        // 0x100, and the symbol is below 0x100 where it is an index, so all indexes are below
        // 0x300.
        unsafe {
            let chance = u32::from(*trees.add(0x101 + (hint & 0x100)));
            asm!(
                matched!(), matched!(), matched!(), matched!(),
                matched!(), matched!(), matched!(), matched_last!(),
                range = inout(reg) range.range,
                code = inout(reg) range.code,
                next = inout(reg) range.next,
                trees = in(reg) trees,
                symbol = inout(reg) 1_u32 => symbol,
                chance = inout(reg) chance => _,
                agreeing = inout(reg) 0x100_u32 => _,
                hint = inout(reg) u32::from(suggested) << 1 => early,
                one = out(reg) _,
                at = out(reg) _,
                next_zero = out(reg) _,
                next_one = out(reg) _,
                t0 = out(reg) _,
                t1 = out(reg) _,
                options(nostack),
            );
        }
        Literal { symbol, early }
    }

    #[inline(always)]
    unsafe fn reverse(range: &mut RangeDecoder, tree: *mut u16, bits: u32) -> u32 {
        let (mut symbol, mut value, mut number) = (1_usize, 1_u32, 0_u32);
        // SAFETY: one byte a bit at most. The symbol has at most `bits` bits before a turn, so what
        // is written is in the tree, and what is read is in twice its length.
        unsafe {
            let mut chance = u32::from(*tree.add(1));
            for _ in 0..bits {
                asm!(
                    reverse!(),
                    range = inout(reg) range.range,
                    code = inout(reg) range.code,
                    next = inout(reg) range.next,
                    tree = in(reg) tree,
                    symbol = inout(reg) symbol,
                    chance = inout(reg) chance,
                    value = inout(reg) value,
                    number = inout(reg) number,
                    next_zero = out(reg) _,
                    next_one = out(reg) _,
                    t0 = out(reg) _,
                    t1 = out(reg) _,
                    options(nostack),
                );
            }
        }
        number
    }

    #[inline(always)]
    unsafe fn reverse_4(range: &mut RangeDecoder, tree: *mut u16) -> u32 {
        let number: u32;
        // SAFETY: as in `reverse`.
        unsafe {
            let chance = u32::from(*tree.add(1));
            asm!(
                reverse!(), reverse!(), reverse!(), reverse!(),
                range = inout(reg) range.range,
                code = inout(reg) range.code,
                next = inout(reg) range.next,
                tree = in(reg) tree,
                symbol = inout(reg) 1_usize => _,
                chance = inout(reg) chance => _,
                value = inout(reg) 1_u32 => _,
                number = inout(reg) 0_u32 => number,
                next_zero = out(reg) _,
                next_one = out(reg) _,
                t0 = out(reg) _,
                t1 = out(reg) _,
                options(nostack),
            );
        }
        number
    }

    #[inline(always)]
    unsafe fn direct_bits(range: &mut RangeDecoder, mut number: u32, count: u32) -> u32 {
        // SAFETY: one byte a turn at most, and `count` turns, as `count` is not zero.
        unsafe {
            asm!(
                "3:",
                normalize!(),
                "shr {range:e}, 1",
                "mov {t0:e}, {code:e}",
                "sub {code:e}, {range:e}",
                "cmovb {code:e}, {t0:e}",
                "lea {number:e}, [{number:r} + {number:r} + 1]",
                "sbb {number:e}, 0",
                "dec {count:e}",
                "jne 3b",
                range = inout(reg) range.range,
                code = inout(reg) range.code,
                next = inout(reg) range.next,
                number = inout(reg) number,
                count = inout(reg) count => _,
                t0 = out(reg) _,
                options(nostack),
            );
        }
        number
    }
}
