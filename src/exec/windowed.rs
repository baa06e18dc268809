//! Programs that work in windows: memory of all ranks that each process knows by an address of its own.
//!
//! Between ranks of one process a lane learns where its peers' buffers are when it enters. An address means nothing in
//! another process. There a rank works out, from where its own buffers lie in windows, where those of its peers lie,
//! and gives these addresses to the launch, as buffers of its own: behind [`records::FIRST_MESSAGE`] two for each rank.

use crate::device::records::{self, OperandRecord, Records};
use crate::exec::lower::LoweredSteps;
use crate::sync::primitive::Arc;

/// The same steps with all peers' inputs and outputs among the launch's buffers. Their scratch stays where it was.
pub fn in_windows(steps: &LoweredSteps) -> LoweredSteps {
    let mut records = Records::clone(&steps.records);
    for operand in &mut records.operands {
        let buffer = operand.buffer;
        if operand.kind == records::PEER && (buffer == records::INPUT || buffer == records::OUTPUT) {
            let base = records::FIRST_MESSAGE.saturating_add(operand.base.saturating_mul(2)).saturating_add(buffer);
            *operand = OperandRecord { kind: records::OWN, base, ..*operand };
        }
    }
    LoweredSteps { records: Arc::new(records), ends: Arc::clone(&steps.ends) }
}

// The input comes first among the two of a rank.
const _: () = assert!(records::INPUT == 0 && records::OUTPUT == 1);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::exec::Program;
    use crate::plan::{Count, Layout, Limits, Plan, Spec, Windows};
    use crate::types::{Algorithm, Collective, Elements, Protocol, Rank, World};

    /// No operand of a large all-reduce names scratch, and each names the rank that it named before.
    #[test]
    fn peers_become_buffers_of_the_launch_and_nothing_goes_through_scratch() {
        let layout = Arc::new(Layout::of_hosts(&[(0..4).map(Rank::new).collect()]).unwrap());
        let spec = Spec {
            collective: Collective::AllReduce,
            world: World { rank: Rank::new(1), size: 4 },
            root: Rank::new(0),
            count: Count::Each(Elements(1 << 20)),
            in_place: false,
            algorithm: Algorithm::Direct,
            protocol: Protocol::Simple,
            windows: Windows::Symmetric,
            layout,
            limits: Limits { slot: Elements(1 << 15), slots: 8, scratch: Elements(1 << 20), channels: 2 },
        };
        let program = Program::new(Plan::build(&spec).unwrap());
        let (before, after) = (program.lowered().steps.records, program.in_windows().steps.records);
        let (before, after) = (&before.operands, &after.operands);
        let mut peers = 0;
        for (before, after) in before.iter().zip(after) {
            assert_eq!((before.buffer, before.index), (after.buffer, after.index));
            assert_eq!(after.kind, records::OWN, "no slot, no scratch of a peer");
            match before.kind {
                records::PEER => {
                    peers += 1;
                    assert_eq!(after.base, records::FIRST_MESSAGE + 2 * before.base + before.buffer);
                }
                _ => assert!(after.base == before.base && after.base != records::SCRATCH),
            }
        }
        assert!(peers > 6 && before.len() == after.len());
    }
}
