//! How a program of rsccl says what others say by Irecv, Isend, Waitall, and by Iallreduce, Wait: each way that the library has is a
//! function, and a line in one of the lists. Whoever adds a way adds no more than that.

use std::cell::RefCell;

use rsccl::comm::PersistentCall;
use rsccl::{Communicator, ReduceOp, Result};

use crate::Case;

/// One call, in one of the ways.
pub(crate) type Act = fn(&Calls<'_>, &mut Case) -> Result<()>;
/// Begins an all-reduce, does the other work, which gets a way to ask whether it has ended, and waits.
pub(crate) type Around = fn(&Calls<'_>, &mut Case, &mut dyn FnMut(&dyn Fn() -> bool)) -> Result<()>;

/// A message to the partner and one from it. The first is the blocking call.
pub(crate) const EXCHANGES: &[(&str, Act)] =
    &[("blocking", exchange), ("group", exchange_in_group), ("scope", exchange_in_scope), ("owned", exchange_owned)];
/// A small all-reduce, begun and waited for.
pub(crate) const REDUCTIONS: &[(&str, Act)] =
    &[("blocking", reduce), ("scope", reduce_in_scope), ("owned", reduce_owned)];
/// A large one beside other work.
pub(crate) const BESIDE: &[(&str, Around)] = &[("scope", around_in_scope), ("owned", around_owned)];
/// The same all-reduce again and again: as plain calls, and prepared once.
pub(crate) const REPEATED: &[(&str, Act)] = &[("blocking", reduce), ("persistent", reduce_prepared)];

/// What the ways call.
pub(crate) struct Calls<'a> {
    comm: &'a Communicator,
    peer: u32,
    /// The call that was prepared last, with its input and output.
    prepared: RefCell<Option<Prepared>>,
}

type Prepared = PersistentCall<(Vec<f32>, Vec<f32>)>;

impl<'a> Calls<'a> {
    pub(crate) fn new(comm: &'a Communicator) -> Calls<'a> {
        Calls { comm, peer: comm.rank() ^ 1, prepared: RefCell::default() }
    }
}

fn exchange(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    calls.comm.send_recv(&case.input[..], calls.peer, &mut case.output[..], calls.peer)
}

fn exchange_in_group(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    rsccl::group(|group| {
        let mut on = group.on(calls.comm);
        on.recv(&mut case.output[..], calls.peer)?;
        on.send(&case.input[..], calls.peer)
    })
}

fn exchange_in_scope(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    calls.comm.scope(|scope| {
        let received = scope.recv(&mut case.output[..], calls.peer)?;
        let sent = scope.send(&case.input[..], calls.peer)?;
        received.wait()?;
        sent.wait()
    })
}

fn exchange_owned(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    let peer = calls.peer;
    let output = std::mem::take(&mut case.output);
    let received = calls.comm.start(output, move |member, output| member.recv(&mut output[..], peer))?;
    let input = std::mem::take(&mut case.input);
    let sent = calls.comm.start(input, move |member, input| member.send(&input[..], peer))?;
    case.output = received.wait()?;
    case.input = sent.wait()?;
    Ok(())
}

fn reduce(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    calls.comm.all_reduce(&case.input[..], &mut case.output[..], ReduceOp::Sum)
}

/// The first round of a case, which is checked, prepares the call, and leaves its output in the case.
fn reduce_prepared(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    let mut kept = calls.prepared.borrow_mut();
    match &mut *kept {
        Some(call) if case.is_prepared => call.run(),
        _ => {
            let buffers = (case.input.to_vec(), case.output.to_vec());
            let mut call =
                calls.comm.prepare(buffers, |calls, (input, output)| calls.all_reduce(input, output, ReduceOp::Sum))?;
            call.run()?;
            case.output.copy_from_slice(call.buffers()?.1);
            (*kept, case.is_prepared) = (Some(call), true);
            Ok(())
        }
    }
}

fn reduce_in_scope(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    around_in_scope(calls, case, &mut |_| ())
}

fn reduce_owned(calls: &Calls<'_>, case: &mut Case) -> Result<()> {
    around_owned(calls, case, &mut |_| ())
}

fn around_in_scope(calls: &Calls<'_>, case: &mut Case, other: &mut dyn FnMut(&dyn Fn() -> bool)) -> Result<()> {
    calls.comm.scope(|scope| {
        let request = scope.all_reduce(&case.input[..], &mut case.output[..], ReduceOp::Sum)?;
        other(&|| request.is_finished());
        request.wait()
    })
}

fn around_owned(calls: &Calls<'_>, case: &mut Case, other: &mut dyn FnMut(&dyn Fn() -> bool)) -> Result<()> {
    let buffers = (std::mem::take(&mut case.input), std::mem::take(&mut case.output));
    let request = calls
        .comm
        .start(buffers, |member, (input, output)| member.all_reduce(&input[..], &mut output[..], ReduceOp::Sum))?;
    other(&|| request.is_finished());
    (case.input, case.output) = request.wait()?;
    Ok(())
}
