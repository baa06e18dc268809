//! How many registers a kernel needs: the most values that are alive at once.

use super::instruction::Program;

/// Estimates the registers a thread.
pub(super) fn estimate(program: &mut Program) -> u32 {
    (program.rows / 4).clamp(16, 255).next_multiple_of(8).min(255)
}
