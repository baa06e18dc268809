//! One collective call, type-erased and checked.

#![warn(clippy::wildcard_enum_match_arm)]

use crate::device::Kernel;
use crate::error::{Error, Result};
use crate::exec::{Buffers, DeviceStream, Operation};
use crate::sync::ring::Label;
use crate::types::{
    CallBlocks, CarriedBy, Collective, Counted, Counts, DataType, Elements, Folded, InPlace, Rank, ReduceOp, RootSide,
    World,
};

/// A collective call as every path below takes it.
#[derive(Debug)]
pub struct Call<'a> {
    /// Which collective; not `Send` or `Recv`.
    pub collective: Collective,
    /// The elements' type.
    pub data_type: DataType,
    /// The operator, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// The root, where the collective has one.
    pub root: Option<Rank>,
    /// The count.
    pub count: CallCount,
    /// This rank's memory.
    pub buffers: Buffers<'a>,
}

/// In which order a call runs with what its rank does besides.
#[derive(Debug, Clone, Copy)]
pub enum Order<'a> {
    /// The caller's: it has run when it returns.
    Caller,
    /// A stream's: it runs when what the stream held before is done, and may run still when it returns.
    Stream(&'a DeviceStream),
}

impl<'a> Order<'a> {
    /// The stream, where it is one's.
    pub(crate) fn stream(self) -> Option<&'a DeviceStream> {
        match self {
            Order::Caller => None,
            Order::Stream(stream) => Some(stream),
        }
    }

    /// Whether both are the caller's, or of one stream.
    pub(crate) fn is(self, other: Order<'_>) -> bool {
        match (self, other) {
            (Order::Caller, Order::Caller) => true,
            (Order::Stream(one), Order::Stream(other)) => one.is(other),
            (Order::Caller, Order::Stream(_)) | (Order::Stream(_), Order::Caller) => false,
        }
    }
}

/// The count of a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallCount {
    /// As `plan::Count::Each`.
    Each(u64),
    /// As `plan::Count::PerRank`.
    PerRank(Vec<u64>),
}

/// A collective that has begun: checked, numbered, and its arithmetic resolved.
#[derive(Debug, Clone, Copy)]
pub struct Begun<'a> {
    /// The call.
    pub call: &'a Call<'a>,
    /// What all ranks must agree on.
    pub operation: &'a Operation,
    /// [`Operation::label`].
    pub label: Label,
    /// Copies or reduces elements of the call's type.
    pub kernel: &'a Kernel,
    /// Who I am.
    pub world: World,
    /// How much memory it works in.
    pub extent: &'a CallExtent,
}

/// How much of a rank's memory a call works in: found once, with its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallExtent {
    /// Elements of the input: [`Call::lengths`].
    pub input: Elements,
    /// Elements of the output.
    pub output: Elements,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Bytes of the longer one of input and output.
    pub longest_bytes: u64,
}

impl CallExtent {
    /// Of these lengths.
    pub fn of(data_type: DataType, (input, output): (Elements, Elements)) -> CallExtent {
        let element_bytes = data_type.size();
        let longest_bytes = input.0.max(output.0).wrapping_mul(u64::from(element_bytes));
        CallExtent { input, output, element_bytes: element_bytes as usize, longest_bytes }
    }
}

impl CallCount {
    /// The count of `rank`; 0 where it has none.
    pub fn of(&self, rank: Rank) -> u64 {
        self.counts().of(rank)
    }

    /// The counts, as definitions of collectives take them.
    #[inline(always)]
    pub(crate) fn counts(&self) -> Counts<'_> {
        match self {
            CallCount::Each(count) => Counts::Each(*count),
            CallCount::PerRank(counts) => Counts::PerRank(counts),
        }
    }

    /// The number that travels in labels: the count, or a hash of all counts.
    pub(crate) fn label(&self) -> u64 {
        match self {
            CallCount::Each(count) => *count,
            CallCount::PerRank(counts) => {
                let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
                let hash = blake3::hash(&bytes);
                u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place]))
            }
        }
    }
}

/// The error for a vector form with another number of counts than ranks.
pub fn wrong_counts(given: usize, ranks: u32) -> Error {
    Error::invalid_argument(format!("{given} counts for {ranks} ranks: give one for each"))
}

impl Call<'_> {
    /// The part of the count that is the same on all ranks, for labels; 0 if only the root has the counts.
    #[inline]
    pub(crate) fn count_label(&self) -> u64 {
        if self.collective.definition().counted == Counted::AtRoot { 0 } else { self.count.label() }
    }

    /// [`Buffers::exposed`].
    pub(crate) fn exposed(self) -> Self {
        Call { buffers: self.buffers.exposed(), ..self }
    }

    /// The same call once more.
    ///
    /// # Safety
    /// As [`Buffers::again`].
    pub(crate) unsafe fn again<'b>(&self) -> Call<'b> {
        let &Call { collective, data_type, op, root, ref count, ref buffers } = self;
        // SAFETY: the caller's promise.
        let buffers = unsafe { buffers.again() };
        Call { collective, data_type, op, root, count: count.clone(), buffers }
    }

    /// What each rank has for each.
    #[inline(always)]
    pub(crate) fn blocks(&self, world: World) -> CallBlocks<'_> {
        CallBlocks::new(self.collective, self.root, self.count.counts(), world.size)
    }

    /// The bytes of its count: about what a rank has to move.
    pub(crate) fn bytes(&self) -> usize {
        let count = usize::try_from(self.count_label()).unwrap_or(usize::MAX);
        count.saturating_mul(self.data_type.size() as usize)
    }

    /// Elements of this rank's input and output.
    ///
    /// # Errors
    /// Where a size does not fit the address space.
    pub(crate) fn lengths(&self, world: World) -> Result<(Elements, Elements)> {
        let too_large = || {
            let (mine, ranks) = (self.count.of(world.rank), world.size);
            Error::invalid_argument(format!("a count of {mine} for each of {ranks} ranks is too large"))
        };
        let (input, output) = self.blocks(world).lengths(world.rank).ok_or_else(too_large)?;
        let size = u64::from(self.data_type.size());
        let fits = |count: u64| count.checked_mul(size).is_some_and(|bytes| bytes <= MAX_BYTES);
        if fits(input) && fits(output) { Ok((Elements(input), Elements(output))) } else { Err(too_large()) }
    }

    /// Checks what one rank alone can see, before anything is sent: what the collective takes, root, operator, null and
    /// overlapping buffers. Returns [`Call::lengths`].
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`], saying what to correct.
    pub(crate) fn check(&self, world: World) -> Result<(Elements, Elements)> {
        self.check_all(world).map_err(|error| error.during(self.collective.name()))
    }

    fn check_all(&self, world: World) -> Result<(Elements, Elements)> {
        self.check_kind(world)?;
        if let Some(root) = self.root
            && root.get() >= world.size
        {
            return Err(Error::invalid_argument(format!(
                "root {root} is out of range: the world has {} ranks",
                world.size
            )));
        }
        if let CallCount::PerRank(counts) = &self.count
            && counts.len() != world.size as usize
        {
            return Err(wrong_counts(counts.len(), world.size));
        }
        if let Some(op) = self.op
            && op.bitwise()
            && self.data_type.is_float()
        {
            return Err(Error::invalid_argument(format!("{op} works on integers, not on {}", self.data_type)));
        }
        if let (Some(op @ (ReduceOp::Avg | ReduceOp::PreMulSum(_))), Collective::Scan | Collective::Exscan) =
            (self.op, self.collective)
        {
            return Err(Error::invalid_argument(format!("{} takes no {op}: choose another operator", self.collective)));
        }
        if let Some(op @ ReduceOp::PreMulSum(scalar)) = self.op
            && !scalar.is_value_of(self.data_type)
        {
            let message = format!("the scalar {scalar} of {op} is not a value of {}", self.data_type);
            return Err(Error::invalid_argument(message));
        }
        self.buffers.check_homes()?;
        let (input, output) = self.lengths(world)?;
        self.check_buffer("input", (self.buffers.input.address.is_null(), self.buffers.input.bytes), input)?;
        self.check_buffer("output", (self.buffers.output.address.is_null(), self.buffers.output.bytes), output)?;
        self.check_overlap(world, (input, output))?;
        Ok((input, output))
    }

    /// Refuses a call that lacks what its collective takes, or has what it does not take: lengths, paths and plans
    /// would each make something else of it.
    fn check_kind(&self, world: World) -> Result<()> {
        let collective = self.collective;
        let definition = collective.definition();
        let at_root = definition.counted == Counted::AtRoot;
        let vector = definition.counted == Counted::PerRank || at_root && self.root == Some(world.rank);
        let wrong = match (definition.carried, &self.count) {
            (CarriedBy::UserMessages, _) => "is made of messages: describe those",
            (_, CallCount::PerRank(_)) if at_root && !vector => {
                "takes a count for each rank at its root, elsewhere its own"
            }
            (_, CallCount::PerRank(_)) if !vector => "takes one count for all ranks, not one for each",
            (_, CallCount::Each(_)) if vector => "takes a count for each rank, not one for all",
            _ if (definition.folded != Folded::No) != self.op.is_some() => {
                if self.op.is_none() {
                    "needs an operator, and has none"
                } else {
                    "takes no operator"
                }
            }
            _ if (definition.root != RootSide::Neither) != self.root.is_some() => {
                if self.root.is_none() {
                    "needs a root, and has none"
                } else {
                    "takes no root"
                }
            }
            _ => return Ok(()),
        };
        Err(Error::invalid_argument(format!("{collective} {wrong}")))
    }

    fn check_buffer(&self, name: &str, (null, bytes): (bool, usize), needed: Elements) -> Result<()> {
        let size = self.data_type.size() as usize;
        if needed.0 > 0 && null {
            return Err(Error::invalid_argument(format!("the {name} buffer is null, and its count is not 0")));
        }
        // Fits: `lengths` has seen to it.
        if bytes < needed.index() * size {
            let message = format!(
                "the {name} buffer of {} has {} elements where {needed} are needed",
                self.collective,
                bytes / size
            );
            return Err(Error::invalid_argument(message));
        }
        Ok(())
    }

    /// Whether input and output are the one buffer that the collective's in-place form means.
    pub(crate) fn in_place(&self, world: World) -> bool {
        let block = || {
            let start = usize::try_from(self.count.counts().before(world.rank)).unwrap_or(usize::MAX);
            start.saturating_mul(self.data_type.size() as usize)
        };
        let (input, output) = self.buffers.places();
        match self.collective.definition().in_place() {
            Some(InPlace::Same) => input == output,
            Some(InPlace::InputInOutput) => !output.is_null() && input == output.wrapping_add(block()),
            Some(InPlace::OutputInInput) => !input.is_null() && output == input.wrapping_add(block()),
            None => false,
        }
    }

    fn check_overlap(&self, world: World, (input, output): (Elements, Elements)) -> Result<()> {
        let (input_place, output_place) = self.buffers.places();
        if self.in_place(world) || input_place.is_null() || output_place.is_null() {
            return Ok(());
        }
        let size = self.data_type.size() as usize;
        let (input_start, output_start) = (input_place.addr(), output_place.addr());
        let input_end = input_start.saturating_add(input.index() * size);
        let output_end = output_start.saturating_add(output.index() * size);
        if input_start < output_end && output_start < input_end && input.0 > 0 && output.0 > 0 {
            let message = format!(
                "input and output of {} overlap without being the same buffer: keep them apart or use the in-place form",
                self.collective
            );
            return Err(Error::invalid_argument(message));
        }
        Ok(())
    }
}

/// The most bytes that one rank's buffer may have: what a pointer can span.
const MAX_BYTES: u64 = i64::MAX.cast_unsigned();
