//! Collectives on devices: which of the ways of launching them a call takes.

use crate::device::records::Reduction;
use crate::engine::device_call::DeviceCall;
use crate::engine::launches::Launched;
use crate::engine::{across, call_log, copy_engines, device_messages};
use crate::error::Result;
use crate::exec::{Begun, composed};
use crate::log;
use crate::plan::Windows;
use crate::reach::side_layout;

/// Runs a collective whose buffers live on a device, in its order.
pub(super) fn run(on: &mut DeviceCall<'_>, begun: &Begun<'_>) -> Result<()> {
    let Begun { call, operation, world, .. } = *begun;
    if call.collective.is_messages() && !call.collective.reduces() {
        let messages = composed::blocks(call, world).into_iter().map(|message| message.in_home(on.side.home)).collect();
        return device_messages::launch_collective(on, messages, operation);
    }
    if log::hears_calls() {
        call_log::of_choice(on.given.session, call, |asked| on.side.chooser.chosen(asked));
    }
    if across::launch(on, begun)? {
        return Ok(());
    }
    let (input, output) = call.buffers.places();
    let bases = [input, output].map(|place| place.addr() as u64);
    let placed = on.side.windows.find(call, world);
    if copy_engines::launch(on, begun, placed.as_ref())? {
        return Ok(());
    }
    let Some((lowered, windows)) = on.program(call, placed.is_some())? else { return Ok(()) };
    let folding = Reduction { data_type: call.data_type, op: call.op, world: world.size };
    let queues = on.open_queues(&lowered.steps.ends, &Launched::Collective(*operation))?;
    let side = &*on.side;
    let mut part = side.part(world.rank, &lowered, (folding, vec![operation.label()]));
    let scratch = if windows == Windows::None && world.size > 1 {
        part.keep.push(side.own_scratch.clone());
        side_layout::address(&side.own_scratch, 0)
    } else {
        side.peers[world.rank.index()].scratch
    };
    part.bases = vec![bases[0], bases[1], scratch];
    if let Some(placed) = placed {
        part.bases.extend(side.windows.bases(&placed, world));
        part.keep.extend(side.windows.kept(&placed));
    }
    part.keep.extend(call.buffers.kept());
    part.queues = queues;
    on.count(&lowered.traffic, call.data_type.size().into());
    on.launch_collective(part, operation)
}
