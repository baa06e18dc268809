//! Calls on their way from C++: from numbers and pointers to what the engine takes.

use super::bridge::{CallCode, OpCode, ScalarCode, TypeCode, What};
use super::{Comm, stream};
use crate::comm::{Buffers, Call, CallCount, Communicator, DeviceStream, Message, Steps};
use crate::error::{Error, Result};
use crate::exec::{check_to_self, wrong_counts};
use crate::types::{Collective, Counted, DataType, NO_RANK, Rank, ReduceOp, Scalar, World};

/// What a call comes to.
pub(super) enum Work {
    Collective(Call<'static>),
    Message(Message<'static>),
    /// Side by side.
    Messages(Vec<Message<'static>>),
    Exchange(Vec<Message<'static>>),
}

/// The work that `what` describes.
///
/// # Safety
/// The memory that it calls for lies at `send` and `recv`, is good for reading and writing, and nobody else touches it
/// for as long as the work is in use. `'static` is that promise, not a fact.
#[inline]
pub(super) unsafe fn work(
    comm: &Communicator,
    what: &What,
    (send, recv): (*const u8, *mut u8),
    (send_counts, recv_counts): (&[usize], &[usize]),
) -> Result<Work> {
    let world = comm.world()?;
    let placed = |error: Error| error.during(name_of(what.kind)).at(world.rank);
    let data_type = data_type(what.data_type).map_err(placed)?;
    if what.kind == CallCode::SendRecv.repr {
        // SAFETY: the caller's promise.
        let pair = unsafe { pair(world, (what, data_type), (send, recv), (send_counts, recv_counts)) };
        return pair.map(Work::Messages).map_err(placed);
    }
    let kind = Collective::from_code(what.kind).ok_or_else(|| no_call(what.kind)).map_err(placed)?;
    match kind {
        Collective::Send | Collective::Recv if is_nobody(what.other) => Ok(Work::Messages(Vec::new())),
        Collective::Send => {
            let peer = other("peer", what.other, world).map_err(placed)?;
            aligned(send, data_type).map_err(placed)?;
            // SAFETY: the caller's promise.
            Ok(Work::Message(unsafe { Message::send_raw(send, (what.count, data_type), peer) }))
        }
        Collective::Recv => {
            let peer = other("peer", what.other, world).map_err(placed)?;
            aligned(recv, data_type).map_err(placed)?;
            // SAFETY: the caller's promise.
            Ok(Work::Message(unsafe { Message::recv_raw(recv, (what.count, data_type), peer) }))
        }
        Collective::AllToAllV => {
            // SAFETY: the caller's promise.
            let messages = unsafe { exchange(world, data_type, (send, recv), (send_counts, recv_counts)) };
            messages.map(Work::Exchange).map_err(placed)
        }
        _ => {
            // SAFETY: the caller's promise.
            unsafe { collective((kind, data_type), what, (send, recv), send_counts, world) }
                .map(Work::Collective)
                .map_err(placed)
        }
    }
}

/// The name of a call, for its errors.
#[cold]
pub(super) fn name_of(kind: u8) -> &'static str {
    match Collective::from_code(kind) {
        _ if kind == CallCode::SendRecv.repr => "send_recv",
        Some(collective) => collective.name(),
        None => "a call",
    }
}

/// # Safety
/// As [`work`].
#[inline]
unsafe fn collective(
    (collective, data_type): (Collective, DataType),
    what: &What,
    (send, recv): (*const u8, *mut u8),
    counts: &[usize],
    world: World,
) -> Result<Call<'static>> {
    let op = if collective.reduces() { Some(operator(what)?) } else { None };
    let root = if collective.rooted() { Some(other("root", what.other, world)?) } else { None };
    let count = match collective.definition().counted {
        Counted::AtRoot if root != Some(world.rank) => CallCount::Each(what.count),
        Counted::PerRank | Counted::AtRoot => {
            if counts.len() != world.size as usize {
                return Err(wrong_counts(counts.len(), world.size));
            }
            CallCount::PerRank(counts.iter().map(|count| *count as u64).collect())
        }
        Counted::Once | Counted::PerPair => CallCount::Each(what.count),
    };
    let mut call = Call { collective, data_type, op, root, count, buffers: Buffers::none() };
    let (input, output) = call.lengths(world)?;
    aligned(send, data_type)?;
    aligned(recv, data_type)?;
    let size = data_type.size() as usize;
    // SAFETY: the caller's promise: so much lies there. A length that does not fit the address space was refused just
    // now.
    call.buffers = unsafe { Buffers::from_raw((send, input.index() * size), (recv, output.index() * size)) };
    Ok(call)
}

/// The messages of a `send_recv`.
///
/// # Safety
/// As [`work`].
unsafe fn pair(
    world: World,
    (what, data_type): (&What, DataType),
    (send, recv): (*const u8, *mut u8),
    (to, from): (&[usize], &[usize]),
) -> Result<Vec<Message<'static>>> {
    let ([to], [from]) = (to, from) else { return Err(Error::internal("a send_recv without its two counts")) };
    let mut messages = Vec::with_capacity(2);
    if !is_nobody(what.other) {
        let target = other("peer", what.other, world)?;
        aligned(send, data_type)?;
        // SAFETY: the caller's promise.
        messages.push(unsafe { Message::send_raw(send, (*to as u64, data_type), target) });
    }
    if !is_nobody(what.source) {
        let source = other("peer", what.source, world)?;
        aligned(recv, data_type)?;
        // SAFETY: the caller's promise.
        messages.push(unsafe { Message::recv_raw(recv, (*from as u64, data_type), source) });
    }
    Ok(messages)
}

/// The messages of an `all_to_all_v`: one to and one from each rank.
///
/// # Safety
/// As [`work`].
unsafe fn exchange(
    world: World,
    data_type: DataType,
    (send, recv): (*const u8, *mut u8),
    (to, from): (&[usize], &[usize]),
) -> Result<Vec<Message<'static>>> {
    for counts in [to, from] {
        if counts.len() != world.size as usize {
            return Err(wrong_counts(counts.len(), world.size));
        }
        let elements = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        let bytes = elements.and_then(|elements| elements.checked_mul(data_type.size() as usize));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(Error::invalid_argument("the counts together are too large"));
        }
    }
    aligned(send, data_type)?;
    aligned(recv, data_type)?;
    let null = |place: *const u8, counts: &[usize]| place.is_null() && counts.iter().any(|count| *count > 0);
    if null(send, to) || null(recv, from) {
        return Err(Error::invalid_argument("a buffer of all_to_all_v is null, and its counts are not all 0"));
    }
    let size = data_type.size() as usize;
    let end = |start: usize, counts: &[usize]| start.saturating_add(counts.iter().sum::<usize>() * size);
    let (send_end, recv_end) = (end(send.addr(), to), end(recv.addr(), from));
    // Two ranges with nothing in them touch nothing.
    if send.addr().max(recv.addr()) < send_end.min(recv_end) {
        let message = "input and output of all_to_all_v overlap: it has no in-place form, keep them apart";
        return Err(Error::invalid_argument(message));
    }
    let (mut send, mut recv) = (send, recv);
    let mut messages = Vec::with_capacity(2 * to.len());
    for (rank, (to, from)) in world.ranks().zip(to.iter().zip(from)) {
        // SAFETY: the caller's promise; the parts of `send` lie one behind the other.
        messages.push(unsafe { Message::send_raw(send, (*to as u64, data_type), rank) });
        // SAFETY: the caller's promise; the parts of `recv` lie one behind the other.
        messages.push(unsafe { Message::recv_raw(recv, (*from as u64, data_type), rank) });
        (send, recv) = (send.wrapping_add(to * size), recv.wrapping_add(from * size));
    }
    Ok(messages)
}

/// A barrier.
pub(super) fn barrier() -> Call<'static> {
    let (collective, count) = (Collective::Barrier, CallCount::Each(0));
    Call { collective, data_type: DataType::U8, op: None, root: None, count, buffers: Buffers::none() }
}

/// The type with this number.
pub(super) fn data_type(code: i32) -> Result<DataType> {
    let known = u8::try_from(code).ok().and_then(DataType::from_code);
    known.ok_or_else(|| {
        Error::invalid_argument(format!("unknown data type code {code} (0 to {})", DataType::ALL.len() - 1))
    })
}

fn operator(what: &What) -> Result<ReduceOp> {
    let wrong =
        || Error::invalid_argument(format!("unknown operator code {} (0 to {})", what.op, ReduceOp::PLAIN.len()));
    let code = u8::try_from(what.op).map_err(|_| wrong())?;
    if what.op != OpCode::PreMulSum.repr {
        return ReduceOp::PLAIN.get(usize::from(code)).copied().ok_or_else(wrong);
    }
    let scalar = match (ScalarCode { repr: what.scalar }) {
        ScalarCode::Integer => Scalar::Signed(what.integer),
        ScalarCode::Natural => Scalar::Unsigned(what.integer.cast_unsigned()),
        ScalarCode::Real => Scalar::Float(what.real),
        _ => return Err(Error::invalid_argument("premul_sum has no scalar")),
    };
    Ok(ReduceOp::PreMulSum(scalar))
}

/// Whether a peer is `rsccl::no_rank`, which has the bits of [`NO_RANK`].
#[inline]
fn is_nobody(peer: i32) -> bool {
    peer.cast_unsigned() == NO_RANK
}

/// Root or peer.
#[inline]
fn other(name: &str, number: i32, world: World) -> Result<Rank> {
    match u32::try_from(number) {
        Ok(rank) if rank < world.size => Ok(Rank::new(rank)),
        _ => {
            Err(Error::invalid_argument(format!("{name} {number} is out of range: the world has {} ranks", world.size)))
        }
    }
}

/// Refuses what no array of the type can lie at.
#[inline]
fn aligned(place: *const u8, data_type: DataType) -> Result<()> {
    if place.addr().is_multiple_of(data_type.size() as usize) { Ok(()) } else { Err(misaligned(place, data_type)) }
}

#[cold]
fn misaligned(place: *const u8, data_type: DataType) -> Error {
    Error::invalid_argument(format!(
        "a buffer at {place:p} cannot hold {data_type}: its address must be a multiple of {}",
        data_type.size()
    ))
}

/// A number that is not below 0.
pub(super) fn unsigned(name: &str, number: i64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::invalid_argument(format!("{name} must be at least 0, got {number}")))
}

#[cold]
fn no_call(code: u8) -> Error {
    Error::internal(format!("unknown call code {code}"))
}

/// The calls of a group.
#[derive(Default)]
pub(super) struct Batch(Vec<Part>);

/// What a group has for one communicator.
struct Part {
    comm: *const Comm,
    /// The handle that the program gave, and the stream.
    stream: Option<(usize, DeviceStream)>,
    messages: Vec<Message<'static>>,
    steps: Steps<'static>,
}

impl Batch {
    /// Adds a call, once what one rank can see of it was checked.
    ///
    /// # Safety
    /// As [`work`]; and `comm`, and the stream if there is one, live until the batch has run or is gone.
    pub(super) unsafe fn add(
        &mut self,
        comm: *const Comm,
        what: &What,
        memory: (*const u8, *mut u8),
        counts: (&[usize], &[usize]),
    ) -> Result<()> {
        // SAFETY: it lives, by the caller's promise.
        let Comm(ours) = unsafe { &*comm };
        let ours = ours.as_ref().ok_or_else(no_communicator)?;
        let world = ours.world()?;
        // SAFETY: the caller's promise.
        let work = unsafe { work(ours, what, memory, counts) }?;
        let at = |error: Error| error.at(world.rank);
        let place = match self.0.iter().position(|part| part.comm == comm) {
            Some(place) => place,
            None => {
                // SAFETY: the caller's promise.
                let stream = what.on_stream.then(|| unsafe { stream::of_call(what.stream) }).transpose().map_err(at)?;
                let stream = stream.map(|stream| (what.stream, stream));
                self.0.push(Part { comm, stream, messages: Vec::new(), steps: Steps::default() });
                self.0.len() - 1
            }
        };
        let part = &mut self.0[place];
        let work = match &part.stream {
            None if !what.on_stream => work,
            Some((handle, stream)) if what.on_stream && *handle == what.stream => {
                stream::on_gpu(work, stream).map_err(at)?
            }
            None | Some(_) => {
                let message = "all calls of one communicator in a group are on one stream, or all on the host";
                return Err(at(Error::invalid_usage(message)));
            }
        };
        match work {
            Work::Collective(call) => {
                call.check(world).map_err(|error| error.at(world.rank))?;
                part.steps.add(call);
            }
            Work::Message(message) => {
                message.check(world).map_err(|error| error.at(world.rank))?;
                part.messages.push(message);
            }
            Work::Messages(messages) => {
                let checked = messages.iter().try_for_each(|message| message.check(world));
                checked.map_err(|error| error.at(world.rank))?;
                part.messages.extend(messages);
            }
            Work::Exchange(messages) => {
                let checked = messages.iter().try_for_each(|message| message.check(world));
                checked.and_then(|()| check_to_self(world.rank, &messages)).map_err(|error| error.at(world.rank))?;
                part.steps.add_exchange(messages);
            }
        }
        Ok(())
    }

    /// Runs everything.
    ///
    /// # Safety
    /// The promises of [`Batch::add`] hold.
    pub(super) unsafe fn run(self) -> Result<()> {
        let mut parts = Vec::with_capacity(self.0.len());
        for part in self.0 {
            // SAFETY: it lives, by the caller's promise.
            let Comm(comm) = unsafe { &*part.comm };
            parts.push((comm.as_ref().ok_or_else(no_communicator)?, part.stream, (part.messages, part.steps)));
        }
        let streams: Vec<Option<DeviceStream>> =
            parts.iter_mut().map(|(_, stream, _)| stream.take().map(|(_, stream)| stream)).collect();
        crate::comm::group(|group| {
            for ((comm, _, (messages, steps)), stream) in parts.into_iter().zip(&streams) {
                let mut member = group.calls_on(comm, stream.as_ref());
                messages.into_iter().try_for_each(|message| member.add_message(message))?;
                member.add_steps(steps);
            }
            Ok(())
        })
    }
}

#[cold]
fn no_communicator() -> Error {
    Error::invalid_usage("there is no communicator: it was never made")
}

/// The numbers of C++ are ours: the bridge's, which the C++ side compares with its own, are compared here.
const _: () = {
    macro_rules! same {
        ($code:ident: $($bridge:ident = $ours:expr),+ $(,)?) => { $(assert!($code::$bridge.repr as i64 == $ours as i64);)+ };
    }
    same!(TypeCode: I8 = DataType::I8.code(), U8 = DataType::U8.code(), I32 = DataType::I32.code(), U32 = DataType::U32.code(),
        I64 = DataType::I64.code(), U64 = DataType::U64.code(), F16 = DataType::F16.code(), F32 = DataType::F32.code(),
        F64 = DataType::F64.code(), BF16 = DataType::BF16.code(), F8E4M3 = DataType::F8E4M3.code(), F8E5M2 = DataType::F8E5M2.code());
    same!(OpCode: Sum = ReduceOp::Sum.code(), Prod = ReduceOp::Prod.code(), Min = ReduceOp::Min.code(), Max = ReduceOp::Max.code(),
        Avg = ReduceOp::Avg.code(), BitAnd = ReduceOp::BitAnd.code(), BitOr = ReduceOp::BitOr.code(),
        BitXor = ReduceOp::BitXor.code(), PreMulSum = ReduceOp::PreMulSum(Scalar::Signed(0)).code());
    assert!(DataType::ALL.len() == 12 && ReduceOp::PLAIN.len() == 8);
};
