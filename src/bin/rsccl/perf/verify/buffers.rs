//! The buffers of one rank, between guards.

use std::ops::DerefMut;

use rsccl::{Error, Result};

use super::program::{Program, Shape, Source};
use super::sample::Sample;
use super::tables::Tables;

/// Whether input and output are one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    OutOfPlace,
    InPlace,
}

impl Placement {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Placement::OutOfPlace => "out of place",
            Placement::InPlace => "in place",
        }
    }
}

/// Where the elements of a buffer lie.
pub type Memory<T> = Box<dyn DerefMut<Target = [T]>>;

/// The buffers of one rank for one shape.
pub struct RankBuffers<T> {
    /// The input; in place, input and output.
    pub send: Guarded<T>,
    /// The output; empty in place.
    pub recv: Guarded<T>,
    placement: Placement,
}

/// A buffer with elements before and behind it that nobody may touch.
pub struct Guarded<T> {
    memory: Memory<T>,
    start: usize,
    length: usize,
}

/// What a check found.
#[derive(Debug, Default)]
pub struct Wrong {
    /// Elements that differ from what they must be.
    pub elements: usize,
    /// The first of them: where, what was expected, what was found.
    pub first: Option<String>,
}

impl<T: Sample> RankBuffers<T> {
    /// RankBuffers for `shape`, `skew` elements off their alignment of [`ALIGNMENT`] bytes.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::InvalidUsage`] where memory does not suffice or the collective has no in-place form.
    pub fn new(shape: &Shape, placement: Placement, skew: usize) -> Result<RankBuffers<T>> {
        RankBuffers::within(shape, placement, skew, &heap)
    }

    /// [`RankBuffers::new`] in memory of `allocate`, which is called twice on every rank, with the number of elements.
    ///
    /// # Errors
    /// As [`RankBuffers::new`], and those of `allocate`.
    pub fn within(
        shape: &Shape,
        placement: Placement,
        skew: usize,
        allocate: &dyn Fn(usize) -> Result<Memory<T>>,
    ) -> Result<RankBuffers<T>> {
        let (send, recv) = match placement {
            Placement::OutOfPlace => (shape.input(), shape.output()),
            Placement::InPlace => {
                let (input, output) = in_place(shape)?;
                ((input + shape.input()).max(output + shape.output()), 0)
            }
        };
        let [send, recv] = [send, recv].map(|length| Guarded::new(length, skew, allocate));
        Ok(RankBuffers { send: send?, recv: recv?, placement })
    }

    /// Writes the input, and what is not the result to where the result will be.
    ///
    /// # Errors
    /// As [`RankBuffers::new`].
    pub fn fill(&mut self, shape: &Shape, tables: &Tables<T>) -> Result<()> {
        self.send.reset();
        self.recv.reset();
        let own = Source::Of(shape.rank);
        let (input, output) = self.places(shape)?;
        for segment in shape.segments() {
            let target = &mut output.slice_mut(self)[segment.at..][..segment.length];
            tables.fill_with_others(segment.source, segment.index, target);
        }
        // Last, because in place the input is part of the output.
        tables.fill(own, 0, &mut self.send.slice_mut()[input..][..shape.input()]);
        Ok(())
    }

    /// Checks the output, an input that must not have changed, and the guards around both.
    ///
    /// # Errors
    /// As [`RankBuffers::new`].
    pub fn check(&self, shape: &Shape, tables: &Tables<T>) -> Result<Wrong> {
        let mut wrong = Wrong::default();
        let (input, output) = self.places(shape)?;
        let found = output.slice(self);
        let mut untouched = 0;
        for segment in shape.segments() {
            let part = &found[segment.at..][..segment.length];
            let (count, first) = tables.compare(segment.source, segment.index, part);
            let tell = |place: usize| {
                let expected = tables.at(segment.source, segment.index + place);
                describe(shape, segment.at + place, (expected, part[place]))
            };
            wrong.add(count, first.map(tell));
            untouched = segment.at + segment.length;
        }
        let keeps_input = self.placement == Placement::OutOfPlace || keeps_input_in_place(shape);
        if keeps_input {
            let part = &self.send.slice()[input..][..shape.input()];
            let (count, first) = tables.compare(Source::Of(shape.rank), 0, part);
            let tell = |place: usize| format!("rank {}: the input changed at index {place}", shape.rank);
            wrong.add(count, first.map(tell));
        }
        let mut outside = self.send.touched_guards() + self.recv.touched_guards();
        if self.placement == Placement::OutOfPlace {
            outside += found[untouched..].iter().filter(|element| element.bits() != guard::<T>().bits()).count();
        }
        wrong.add(
            outside,
            (outside > 0).then(|| format!("rank {}: {outside} elements beside the output changed", shape.rank)),
        );
        Ok(wrong)
    }

    /// Whether input and output are one buffer.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Where the input begins in `send`, and where the output is.
    fn places(&self, shape: &Shape) -> Result<(usize, Output)> {
        match self.placement {
            Placement::OutOfPlace => Ok((0, Output::Recv)),
            Placement::InPlace => {
                let (input, output) = in_place(shape)?;
                Ok((input, Output::Send { at: output }))
            }
        }
    }
}

/// Which buffer the output is, and from where.
#[derive(Debug, Clone, Copy)]
enum Output {
    Recv,
    Send { at: usize },
}

impl Output {
    fn slice<T: Sample>(self, buffers: &RankBuffers<T>) -> &[T] {
        match self {
            Output::Recv => buffers.recv.slice(),
            Output::Send { at } => &buffers.send.slice()[at..],
        }
    }

    fn slice_mut<T: Sample>(self, buffers: &mut RankBuffers<T>) -> &mut [T] {
        match self {
            Output::Recv => buffers.recv.slice_mut(),
            Output::Send { at } => &mut buffers.send.slice_mut()[at..],
        }
    }
}

impl<T: Sample> Guarded<T> {
    fn new(length: usize, skew: usize, allocate: &dyn Fn(usize) -> Result<Memory<T>>) -> Result<Guarded<T>> {
        let size = size_of::<T>();
        let guard_elements = GUARD_BYTES / size;
        let mut memory = allocate(length + 2 * guard_elements + ALIGNMENT / size + skew)?;
        memory.fill(guard());
        // The offset may be "impossible" in theory; then the buffer is as the allocator aligned it.
        let offset = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT / size);
        Ok(Guarded { memory, start: offset + guard_elements + skew, length })
    }

    /// The buffer.
    pub fn slice(&self) -> &[T] {
        &self.memory[self.start..][..self.length]
    }

    /// The buffer, to write.
    pub fn slice_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..][..self.length]
    }

    fn reset(&mut self) {
        self.memory.fill(guard());
    }

    fn touched_guards(&self) -> usize {
        let (before, rest) = self.memory.split_at(self.start);
        let touched = |element: &&T| element.bits() != guard::<T>().bits();
        before.iter().chain(&rest[self.length..]).filter(touched).count()
    }
}

impl Wrong {
    /// Adds `elements` more, of which `first` is the first.
    fn add(&mut self, elements: usize, first: Option<String>) {
        self.elements += elements;
        self.first = self.first.take().or(first);
    }
}

fn in_place(shape: &Shape) -> Result<(usize, usize)> {
    shape.in_place().ok_or_else(|| Error::invalid_usage(format!("{} has no in-place form", shape.program.name())))
}

/// Whether the in-place form leaves this rank's buffer as it was.
fn keeps_input_in_place(shape: &Shape) -> bool {
    let only_read = match shape.program {
        Program::Reduce | Program::Gather | Program::GatherV => !shape.at_root(),
        Program::Exscan => shape.rank == 0,
        _ => false,
    };
    only_read || matches!(shape.program, Program::Broadcast | Program::Scatter | Program::ScatterV) && shape.at_root()
}

fn describe<T: Sample>(shape: &Shape, index: usize, (expected, found): (T, T)) -> String {
    format!(
        "rank {} of {}: {} element {index}: expected {expected:?} ({:#x}), got {found:?} ({:#x})",
        shape.rank,
        shape.world(),
        shape.program.name(),
        expected.bits(),
        found.bits()
    )
}

/// Memory of this process's own.
fn heap<T: Sample>(room: usize) -> Result<Memory<T>> {
    let mut memory: Vec<T> = Vec::new();
    memory.try_reserve_exact(room).map_err(|error| {
        Error::invalid_usage(format!(
            "no memory for a buffer of {room} elements of {} bytes: {error}; choose a smaller -e",
            size_of::<T>()
        ))
    })?;
    memory.resize(room, guard());
    Ok(Box::new(memory))
}

/// What guards hold.
fn guard<T: Sample>() -> T {
    T::of_bits(GUARD_BITS)
}

/// The alignment of a buffer without skew: a cache line.
const ALIGNMENT: usize = 64;
/// Bytes before and behind a buffer that nobody may touch.
const GUARD_BYTES: usize = 256;
const GUARD_BITS: u64 = 0xa5b6_c7d8_e9fa_0b1c;
const _: () = assert!(GUARD_BYTES.is_multiple_of(ALIGNMENT));
