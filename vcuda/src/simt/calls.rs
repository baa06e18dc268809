//! Calls of functions that have frames: those that call themselves, and those that are called by their address.
//!
//! A thread's local memory holds what the kernel declares, then its frames, up to the context's limit of the stack. Each
//! lane has its own calls, and lanes that call different functions part.

use super::FaultKind;
use super::access::{Core, POISON};
use super::execute::After;
use super::translate::{Checked, Trouble};
use super::warp::{LANES, Warp};
use crate::ptx::instruction::{Callee, Op, Place, Routine, RowIndex};

/// A call of a lane that has not returned.
#[derive(Debug)]
pub(super) struct Frame {
    /// The number of the function.
    routine: usize,
    /// Position of the call.
    call: u32,
    /// Where the caller's own places lie, and where the function's frame begins.
    callers_base: u32,
    base: u32,
    /// What the function's rows and predicates held before, and which of it was defined.
    rows: Vec<u64>,
    defined: Vec<u8>,
    flags: Vec<(bool, bool)>,
}

impl Warp {
    /// A call; lanes go on in the function that they call.
    pub(super) fn call(&mut self, core: &mut Core, op: &Op, mask: u32, active: u32) -> Checked<After> {
        let Op::Call { callee, frame, returns, parameters } = op else { return Ok(After::Next) };
        if active == 0 {
            return Ok(After::Next);
        }
        let function = std::sync::Arc::clone(&core.grid.function);
        let routines = &function.program.routines;
        let position = self.groups[self.current].position;
        self.ensure_local(core);
        let mut left = active;
        while left != 0 {
            core.at.1 = left;
            let (number, lanes) = self.called(routines, *callee, left)?;
            let routine = &routines[number];
            let sizes = |places: &[Place]| places.iter().map(|place| place.bytes).collect::<Vec<_>>();
            if sizes(&routine.parameters) != sizes(parameters) || sizes(&routine.returns) != sizes(returns) {
                let what = format!("a call by address of `{}`, which takes or gives other sizes", routine.name);
                return Err(Trouble::new(FaultKind::InvalidCounter, None, what));
            }
            for lane in (0..LANES).filter(|lane| lanes >> lane & 1 == 1) {
                core.at.1 = 1 << lane;
                self.enter(core, (number, routine), (position, *frame, parameters), lane)?;
            }
            left &= !lanes;
            if !self.split(lanes, routine.entry) {
                return Ok(After::Choose);
            }
        }
        debug_assert_ne!(mask, active, "a group whose lanes all left was handled above");
        self.groups[self.current].position = position + 1;
        Ok(After::Choose)
    }

    /// The function that the first of `lanes` calls, and all lanes that call it.
    fn called(&self, routines: &[Routine], callee: Callee, lanes: u32) -> Checked<(usize, u32)> {
        let row = match callee {
            Callee::Routine(number) => return Ok((number as usize, lanes)),
            Callee::Address(row) => row,
        };
        let address = self.row(row)[lanes.trailing_zeros() as usize];
        let Some(number) = routines.iter().position(|routine| routine.address == address) else {
            let what = "a call of an address at which no function begins";
            return Err(Trouble::new(FaultKind::InvalidCounter, Some(address), what));
        };
        let same = (0..LANES).filter(|lane| lanes >> lane & 1 == 1 && self.row(row)[*lane] == address);
        Ok((number, same.fold(0, |bits, lane| bits | 1 << lane)))
    }

    /// Makes a lane's frame, with the parameters in it.
    fn enter(
        &mut self,
        core: &Core,
        (number, routine): (usize, &Routine),
        (call, frame, parameters): (u32, Option<RowIndex>, &[Place]),
        lane: usize,
    ) -> Checked<()> {
        let callers_base = frame.map_or(0, |row| u32::try_from(self.row(row)[lane]).unwrap_or(0));
        let base = self.stacks[lane].last().map_or(core.grid.first_frame(), |last| {
            last.base + core.grid.function.program.routines[last.routine].frame_bytes
        });
        if base + routine.frame_bytes > core.grid.local_bytes() {
            let (depth, limit) = (self.stacks[lane].len(), core.grid.config.stack_bytes);
            let what = format!(
                "the stack is full: `{}` needs {} bytes below {depth} calls, and the context's limit is {limit} bytes",
                routine.name, routine.frame_bytes
            );
            return Err(Trouble::new(FaultKind::StackError, None, what));
        }
        let start = core.local_offset(lane);
        let frames = start + base as usize..start + (base + routine.frame_bytes) as usize;
        self.local[frames.clone()].fill(POISON);
        if let Some(defined) = self.local_defined.get_mut(frames) {
            defined.fill(false);
        }
        for (formal, actual) in routine.parameters.iter().zip(parameters) {
            self.move_local(start, (base + formal.offset, callers_base + actual.offset), formal.bytes);
        }
        let mut saved = Frame {
            routine: number,
            call,
            callers_base,
            base,
            rows: Vec::new(),
            defined: Vec::new(),
            flags: Vec::new(),
        };
        for row in &routine.rows {
            saved.rows.push(self.rows[*row as usize][lane]);
            if let Some(defined) = self.defined.get_mut(*row as usize) {
                saved.defined.push(std::mem::take(&mut defined[lane]));
            }
        }
        for flag in routine.flags.clone() {
            let known = self.flags_defined.get_mut(flag as usize);
            let was_known = known.is_some_and(|known| {
                let was_known = *known >> lane & 1 == 1;
                *known &= !(1 << lane);
                was_known
            });
            saved.flags.push((self.flags[flag as usize] >> lane & 1 == 1, was_known));
        }
        self.rows[routine.frame as usize][lane] = u64::from(base);
        if let Some(defined) = self.defined.get_mut(routine.frame as usize) {
            defined[lane] = u8::MAX;
        }
        self.stacks[lane].push(saved);
        Ok(())
    }

    /// Lanes come to the end of a function with a frame; they go on behind their calls.
    pub(super) fn return_from(&mut self, core: &Core, mask: u32, active: u32) -> Checked<After> {
        if active == 0 {
            return Ok(After::Next);
        }
        let function = std::sync::Arc::clone(&core.grid.function);
        let position = self.groups[self.current].position;
        let mut left = active;
        while left != 0 {
            let call = self.stacks[left.trailing_zeros() as usize].last().map(|frame| frame.call);
            let Some(call) = call else {
                return Err(Trouble::new(FaultKind::InvalidCounter, None, "a return without a call"));
            };
            let Op::Call { returns, .. } = &function.program.code[call as usize].op else {
                return Err(Trouble::new(FaultKind::InvalidCounter, None, "a return to what is no call"));
            };
            let same = |lane: &usize| {
                left >> lane & 1 == 1 && self.stacks[*lane].last().is_some_and(|frame| frame.call == call)
            };
            let lanes = (0..LANES).filter(same).fold(0, |bits: u32, lane| bits | 1 << lane);
            for lane in (0..LANES).filter(|lane| lanes >> lane & 1 == 1) {
                if let Some(frame) = self.stacks[lane].pop() {
                    self.leave(core, &function.program.routines[frame.routine], &frame, returns, lane);
                }
            }
            left &= !lanes;
            if !self.split(lanes, call + 1) {
                return Ok(After::Choose);
            }
        }
        debug_assert_ne!(mask, active, "a group whose lanes all left was handled above");
        self.groups[self.current].position = position + 1;
        Ok(After::Choose)
    }

    fn leave(&mut self, core: &Core, routine: &Routine, frame: &Frame, returns: &[Place], lane: usize) {
        let start = core.local_offset(lane);
        for (formal, actual) in routine.returns.iter().zip(returns) {
            self.move_local(start, (frame.callers_base + actual.offset, frame.base + formal.offset), formal.bytes);
        }
        for (index, row) in routine.rows.iter().enumerate() {
            self.rows[*row as usize][lane] = frame.rows[index];
            if let (Some(defined), Some(saved)) = (self.defined.get_mut(*row as usize), frame.defined.get(index)) {
                defined[lane] = *saved;
            }
        }
        for (flag, (set, known)) in routine.flags.clone().zip(&frame.flags) {
            let put = |bits: &mut u32, on: bool| *bits = (*bits & !(1 << lane)) | u32::from(on) << lane;
            put(&mut self.flags[flag as usize], *set);
            if let Some(defined) = self.flags_defined.get_mut(flag as usize) {
                put(defined, *known);
            }
        }
    }

    /// Moves bytes of a lane's local memory, which begins at `start`, with what is known of them.
    fn move_local(&mut self, start: usize, (to, from): (u32, u32), bytes: u32) {
        let (to, from) = (start + to as usize, start + from as usize);
        self.local.copy_within(from..from + bytes as usize, to);
        if !self.local_defined.is_empty() {
            self.local_defined.copy_within(from..from + bytes as usize, to);
        }
    }
}
