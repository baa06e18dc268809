//! Gives rows to values: two registers that never hold a value at the same time share one.
//!
//! Compilers give every value of a kernel a register of its own, thousands in all, of which a few dozen are alive at once.
//! A warp's rows are to fit a processor's cache, so each register gets a row for the positions from its first to its last:
//! where it is written or read, and where some path carries its value. A register that may be read before it is written
//! keeps a row to itself, so that the checks for values never set see it.
//!
//! Lanes have their own values, and each follows its own path through the instructions: what holds for the path of one
//! thread holds for a warp's lanes, whichever run together.

use super::instruction::{BarrierReduce, Callee, Flag, Instruction, Op, Program, RowIndex, Vote};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What an instruction does with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

/// Lets registers share rows. A kernel with calls, whose functions save rows by their numbers, stays as it is.
pub(super) fn share_rows(program: &mut Program) {
    if program.routines.is_empty() {
        let lifetimes = lifetimes(program);
        let (rows, count) = assign(&lifetimes);
        program.rows = count;
        for instruction in &mut program.code {
            for_each_row(&mut instruction.op, |row, _| *row = rows[*row as usize]);
        }
        for (row, _) in &mut program.constants {
            *row = rows[*row as usize];
        }
    }
}

/// The positions from which to which a register needs its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// No instruction names it.
    Unused,
    Between(u32, u32),
    Always,
}

impl Lifetime {
    fn reach(&mut self, position: u32) {
        *self = match *self {
            Self::Unused => Self::Between(position, position),
            Self::Between(first, last) => Self::Between(first.min(position), last.max(position)),
            Self::Always => Self::Always,
        }
    }
}

/// Each register's row, and how many rows there are.
fn assign(lifetimes: &[Lifetime]) -> (Vec<RowIndex>, u32) {
    let mut rows = vec![0; lifetimes.len()];
    let mut count = 0;
    let mut next = || {
        count += 1;
        count - 1
    };
    let mut bounded = Vec::new();
    for (register, lifetime) in lifetimes.iter().enumerate() {
        match *lifetime {
            Lifetime::Unused => {}
            Lifetime::Between(first, last) => bounded.push((first, last, register)),
            Lifetime::Always => rows[register] = next(),
        }
    }
    bounded.sort_unstable();
    let (mut taken, mut free) = (BinaryHeap::new(), Vec::new());
    for (first, last, register) in bounded {
        // A row is free behind the last instruction of its register, not within it: an operation may write one part of its
        // result before it has read all of its sources.
        while let Some(Reverse((end, row))) = taken.peek().copied()
            && end < first
        {
            taken.pop();
            free.push(row);
        }
        let row = free.pop().unwrap_or_else(&mut next);
        taken.push(Reverse((last, row)));
        rows[register] = row;
    }
    (rows, count)
}

/// Instructions that run one after the other.
struct Block {
    first: usize,
    end: usize,
    next: Vec<usize>,
}

fn lifetimes(program: &mut Program) -> Vec<Lifetime> {
    let mut lifetimes = vec![Lifetime::Unused; program.rows as usize];
    for (row, _) in &program.constants {
        lifetimes[*row as usize] = Lifetime::Always;
    }
    let blocks = blocks(&program.code);
    // First what most registers need: they live inside one block.
    let crossing = crossing(program, &blocks, &mut lifetimes);
    let (entering, leaving) = flow(&blocks, &crossing);
    for (number, block) in blocks.iter().enumerate() {
        for (set, position) in [(&entering[number], block.first), (&leaving[number], block.end - 1)] {
            for index in members(set) {
                lifetimes[crossing.registers[index]].reach(position_of(position));
            }
        }
    }
    if let Some(entry) = entering.first() {
        for index in members(entry) {
            lifetimes[crossing.registers[index]] = Lifetime::Always;
        }
    }
    lifetimes
}

/// The text has at most 2^20 instructions.
fn position_of(index: usize) -> u32 {
    u32::try_from(index).expect("a kernel's instructions are counted by 32 bits")
}

fn blocks(code: &[Instruction]) -> Vec<Block> {
    let mut begins = vec![false; code.len() + 1];
    let mut targets_of = Vec::new();
    begins[0] = true;
    for (position, Instruction { guard, op, .. }) in code.iter().enumerate() {
        let (targets, ends): (&[u32], _) = match op {
            Op::Jump { target } => (std::slice::from_ref(target), true),
            Op::JumpTable { targets, .. } => (targets, true),
            Op::Exit | Op::Return => (&[], true),
            _ => (&[], false),
        };
        if ends {
            targets.iter().for_each(|target| begins[*target as usize] = true);
            begins[position + 1] = true;
            // Lanes whose guard does not hold go on.
            targets_of.push((position, targets, *guard != Flag::TRUE));
        }
    }
    let firsts: Vec<usize> = (0..code.len()).filter(|position| begins[*position]).collect();
    let number_of = |position: usize| firsts.binary_search(&position).ok();
    let mut last = targets_of.into_iter().peekable();
    let mut blocks = Vec::with_capacity(firsts.len());
    for (number, first) in firsts.iter().copied().enumerate() {
        let end = firsts.get(number + 1).copied().unwrap_or(code.len());
        let mut next = Vec::new();
        let goes_on = match last.next_if(|(position, ..)| *position == end - 1) {
            Some((_, targets, goes_on)) => {
                next.extend(targets.iter().filter_map(|target| number_of(*target as usize)));
                goes_on
            }
            None => true,
        };
        if goes_on {
            next.extend(number_of(end));
        }
        blocks.push(Block { first, end, next });
    }
    blocks
}

/// Registers whose values go from one block to another.
struct Crossing {
    registers: Vec<usize>,
    /// Of each block, which of them it reads before it writes them, and which it writes.
    read: Vec<Vec<u64>>,
    written: Vec<Vec<u64>>,
}

/// Finds the registers that some block reads before it has surely written them, and notes where each register is named.
fn crossing(program: &mut Program, blocks: &[Block], lifetimes: &mut [Lifetime]) -> Crossing {
    const NONE: usize = usize::MAX;
    let mut written_in = vec![NONE; lifetimes.len()];
    let mut index_of = vec![NONE; lifetimes.len()];
    let (mut registers, mut reads) = (Vec::new(), Vec::new());
    for (number, block) in blocks.iter().enumerate() {
        for position in block.first..block.end {
            let Instruction { guard, op, .. } = &mut program.code[position];
            // What some lanes do not write keeps its value in them.
            let surely = *guard == Flag::TRUE;
            let mut write = Vec::new();
            for_each_row(op, |row, what| {
                let register = *row as usize;
                lifetimes[register].reach(position_of(position));
                if what == Use::Write && surely {
                    write.push(register);
                } else if written_in[register] != number && lifetimes[register] != Lifetime::Always {
                    if index_of[register] == NONE {
                        index_of[register] = registers.len();
                        registers.push(register);
                    }
                    reads.push((number, index_of[register]));
                }
            });
            write.into_iter().for_each(|register| written_in[register] = number);
        }
    }
    let words = registers.len().div_ceil(64);
    let empty = || vec![vec![0; words]; blocks.len()];
    let mut found = Crossing { registers, read: empty(), written: empty() };
    for (number, index) in reads {
        put(&mut found.read[number], index);
    }
    for (number, block) in blocks.iter().enumerate() {
        for Instruction { guard, op, .. } in &mut program.code[block.first..block.end] {
            for_each_row(op, |row, what| {
                let index = index_of[*row as usize];
                if what == Use::Write && *guard == Flag::TRUE && index != NONE {
                    put(&mut found.written[number], index);
                }
            });
        }
    }
    found
}

/// Of each block, the crossing registers whose values are needed where it begins, and where it ends.
fn flow(blocks: &[Block], crossing: &Crossing) -> (Vec<Vec<u64>>, Vec<Vec<u64>>) {
    let mut entering = crossing.read.clone();
    let mut leaving = vec![vec![0; crossing.registers.len().div_ceil(64)]; blocks.len()];
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for (number, block) in blocks.iter().enumerate().rev() {
            for next in &block.next {
                for (word, needed) in leaving[number].iter_mut().zip(&entering[*next]) {
                    *word |= needed;
                }
            }
            let needs = leaving[number].iter().zip(&crossing.written[number]);
            for (word, (needed, written)) in entering[number].iter_mut().zip(needs) {
                let with = *word | (needed & !written);
                changed |= with != *word;
                *word = with;
            }
        }
    }
    (entering, leaving)
}

fn put(set: &mut [u64], index: usize) {
    set[index / 64] |= 1 << (index % 64);
}

fn members(set: &[u64]) -> impl Iterator<Item = usize> {
    let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
    set.iter().enumerate().flat_map(move |(number, word)| bits(*word).map(move |bit| 64 * number + bit))
}

/// Visits every row that an operation names.
fn for_each_row(op: &mut Op, mut visit: impl FnMut(&mut RowIndex, Use)) {
    let mut reads: [Option<&mut RowIndex>; 4] = [const { None }; 4];
    let mut writes = None;
    match op {
        Op::Unary { d, a, .. } | Op::Convert { d, a, .. } | Op::Extend { d, a, .. } | Op::Move { d, a } => {
            (reads[0], writes) = (Some(a), Some(d));
        }
        Op::Binary { d, a, b, .. }
        | Op::Carry { d, a, b, .. }
        | Op::Set { d, a, b, .. }
        | Op::Select { d, a, b, .. }
        | Op::Match { d, a, mask: b, .. }
        | Op::Reduce { d, a, mask: b, .. } => {
            [reads[0], reads[1]] = [Some(a), Some(b)];
            writes = Some(d);
        }
        Op::Ternary { d, abc, .. } | Op::Logic3 { d, abc, .. } => {
            reads[..3].iter_mut().zip(abc).for_each(|(place, row)| *place = Some(row));
            writes = Some(d);
        }
        Op::Insert { d, value, into, position, length, .. } => {
            reads = [Some(value), Some(into), Some(position), Some(length)];
            writes = Some(d);
        }
        Op::Shuffle { d, a, b, c, mask, .. } => {
            reads = [Some(a), Some(b), Some(c), Some(mask)];
            writes = Some(d);
        }
        Op::Pack { d, parts, .. } => {
            parts.iter_mut().for_each(|part| visit(part, Use::Read));
            writes = Some(d);
        }
        Op::Unpack { parts, a, .. } => {
            visit(a, Use::Read);
            parts.iter_mut().flatten().for_each(|part| visit(part, Use::Write));
        }
        Op::Special { d, .. } | Op::ActiveMask { d } => writes = Some(d),
        Op::Compare { a, b, .. } | Op::ComparePair { a, b, .. } => [reads[0], reads[1]] = [Some(a), Some(b)],
        Op::JumpTable { index: a, .. } | Op::IsSpace { a, .. } | Op::WarpBarrier { mask: a } => reads[0] = Some(a),
        Op::AssertFail { frame, .. } => reads[0] = frame.as_mut(),
        Op::Call { callee, frame, .. } => {
            reads[0] = frame.as_mut();
            if let Callee::Address(row) = callee {
                reads[1] = Some(row);
            }
        }
        Op::Load { to, address, .. } => {
            visit(&mut address.base, Use::Read);
            to.iter_mut().flatten().for_each(|row| visit(row, Use::Write));
        }
        Op::Store { from, address, .. } => {
            visit(&mut address.base, Use::Read);
            from.iter_mut().for_each(|row| visit(row, Use::Read));
        }
        Op::Atomic { d, address, b, c, .. } => {
            reads = [Some(&mut address.base), Some(b), Some(c), None];
            writes = d.as_mut();
        }
        Op::Barrier { id, count, reduce, .. } => {
            [reads[0], reads[1]] = [Some(id), count.as_mut()];
            if let Some((BarrierReduce::Count(d), _)) = reduce {
                writes = Some(d);
            }
        }
        Op::Vote { vote, mask, .. } => {
            reads[0] = Some(mask);
            if let Vote::Ballot(d) = vote {
                writes = Some(d);
            }
        }
        Op::Elect { d, mask, .. } => {
            reads[0] = Some(mask);
            writes = d.as_mut();
        }
        Op::Predicate { .. }
        | Op::Jump { .. }
        | Op::Exit
        | Op::Trap
        | Op::Return
        | Op::Fence { .. }
        | Op::Pause
        | Op::Nothing => {}
    }
    reads.into_iter().flatten().for_each(|row| visit(row, Use::Read));
    if let Some(row) = writes {
        visit(row, Use::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{lower, syntax};
    use super::*;

    /// A kernel's program before registers share rows, and after.
    fn both(text: &str) -> Vec<(Program, Program)> {
        let file = syntax::parse(text).expect("PTX");
        let kernels = file.functions.iter().filter(|routine| routine.is_kernel);
        kernels
            .map(|routine| {
                let before = lower::kernel(&file, routine).expect("a kernel").program;
                let mut after = before.clone();
                share_rows(&mut after);
                (before, after)
            })
            .collect()
    }

    fn body(instructions: &str) -> (Program, Program) {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.entry k()\n{{\n.reg .b32 %r<99>;\n.reg .pred %p<9>;\n{instructions}\nret;\n}}\n"
        );
        both(&text).remove(0)
    }

    /// What a row holds: nothing yet, the value of one register, or not the same on all paths.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Holds {
        Unknown,
        Register(RowIndex),
        Either,
    }

    /// Follows what each row holds along all paths: whoever reads a register must find its own value in its row.
    fn check(before: &mut Program, after: &mut Program) {
        let named = |op: &mut Op| {
            let mut found = Vec::new();
            for_each_row(op, |row, what| found.push((*row, what)));
            found
        };
        let mut steps = Vec::new();
        for (old, new) in before.code.iter_mut().zip(&mut after.code) {
            let (old_rows, new_rows) = (named(&mut old.op), named(&mut new.op));
            let pairs: Vec<_> =
                old_rows.iter().zip(&new_rows).map(|((old, what), (new, _))| (*old, *new, *what)).collect();
            steps.push((old.guard == Flag::TRUE, pairs));
        }
        // A row that one register has to itself holds it from the beginning: nothing else can be found there.
        let mut alone = vec![Holds::Unknown; after.rows as usize];
        for (register, row, _) in steps.iter().flat_map(|(_, pairs)| pairs) {
            let holds = &mut alone[*row as usize];
            *holds = match *holds {
                Holds::Unknown => Holds::Register(*register),
                Holds::Register(other) if other == *register => *holds,
                _ => Holds::Either,
            };
        }
        let blocks = blocks(&before.code);
        let mut at_start: Vec<Option<Vec<Holds>>> = vec![None; blocks.len()];
        at_start[0] = Some(alone);
        let mut to_do = vec![0];
        while let Some(number) = to_do.pop() {
            let mut rows = at_start[number].clone().expect("reached");
            for (position, (surely, pairs)) in
                steps.iter().enumerate().take(blocks[number].end).skip(blocks[number].first)
            {
                for (register, row, _) in pairs.iter().filter(|(_, _, what)| *what == Use::Read || !surely) {
                    let holds = rows[*row as usize];
                    assert_eq!(holds, Holds::Register(*register), "row {row} at instruction {position}");
                }
                for (register, row, _) in pairs.iter().filter(|(_, _, what)| *what == Use::Write) {
                    rows[*row as usize] = Holds::Register(*register);
                }
            }
            for next in &blocks[number].next {
                let met = match &at_start[*next] {
                    None => rows.clone(),
                    Some(old) => {
                        let meet = |(old, new): (&Holds, &Holds)| if old == new { *old } else { Holds::Either };
                        old.iter().zip(&rows).map(meet).collect()
                    }
                };
                if at_start[*next].as_ref() != Some(&met) {
                    at_start[*next] = Some(met);
                    to_do.push(*next);
                }
            }
        }
    }

    #[test]
    fn every_read_of_real_kernels_finds_its_own_register() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/compiled");
        let mut kernels = 0;
        for name in ["program_f32", "program_f8e4m3", "program_bits", "fold_f16", "fold_u8", "meet", "copy"] {
            let packed =
                std::fs::read(folder.join(format!("{name}.ptx.z"))).expect("the compiled kernels are in the tree");
            let text = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("zlib");
            for (mut before, mut after) in both(std::str::from_utf8(&text).expect("text")) {
                check(&mut before, &mut after);
                let constants = u32::try_from(after.constants.len()).expect("few");
                let (was, is) = (before.rows - constants, after.rows - constants);
                assert!(is < 24 || is < was / 2, "{name}: {was} registers, {is} rows");
                kernels += 1;
            }
        }
        assert!(kernels > 10, "{kernels} kernels");
    }

    #[test]
    fn values_that_follow_each_other_share_rows() {
        let chain: String =
            (1..90).map(|number| format!("add.u32 %r{}, %r{number}, %r{number};\n", number + 1)).collect();
        let (before, after) = body(&format!("mov.u32 %r1, 1;\n{chain}"));
        assert_eq!((before.rows, after.rows), (91, 3), "a constant, and two rows in turn");
    }

    /// Its last position is before another register's first, but the next turn reads it again.
    #[test]
    fn what_a_loop_reads_again_keeps_its_row() {
        let (mut before, mut after) = body(
            "mov.u32 %r1, 7;\nmov.u32 %r2, 0;\nL:\nadd.u32 %r3, %r2, %r1;\nadd.u32 %r4, %r3, %r3;\nadd.u32 %r2, %r4, %r4;\n\
             setp.lt.u32 %p1, %r2, 100;\n@%p1 bra L;",
        );
        check(&mut before, &mut after);
        let mut written_in_loop = Vec::new();
        let mut again = None;
        for instruction in &mut after.code[2..5] {
            let mut rows = Vec::new();
            for_each_row(&mut instruction.op, |row, what| rows.push((*row, what)));
            again = again.or(Some(rows[1].0));
            written_in_loop.extend(rows.iter().filter(|(_, what)| *what == Use::Write).map(|(row, _)| *row));
        }
        assert!(!written_in_loop.contains(&again.expect("the sum's second source")), "{written_in_loop:?}");
    }

    /// The checks are to see that it may never have been set, whatever was in a row before.
    #[test]
    fn what_may_be_read_unset_has_a_row_of_its_own() {
        let (mut before, mut after) = body(
            "mov.u32 %r1, 7;\nadd.u32 %r2, %r1, %r1;\nsetp.lt.u32 %p1, %r2, 100;\n@%p1 mov.u32 %r3, 5;\nadd.u32 %r4, %r3, %r3;",
        );
        check(&mut before, &mut after);
        let row_of = |program: &mut Program, at: usize| {
            let mut written = None;
            for_each_row(&mut program.code[at].op, |row, what| {
                written = (what == Use::Write).then_some(*row).or(written)
            });
            written.expect("it writes a row")
        };
        let rows = [0, 1, 3, 4].map(|at| row_of(&mut after, at));
        assert!([rows[0], rows[1], rows[3]].iter().all(|other| *other != rows[2]), "{rows:?}");
    }
}
