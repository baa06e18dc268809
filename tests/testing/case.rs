//! One collective call with inputs that make its result exact, compared bit by bit.

use std::fmt;

use rsccl::comm::{DeviceStream, OwnedElements, Registered, SharedPool, SharedVec};
use rsccl::{Buffer, Communicator, DataType, Error, ReduceOp, Result};

use crate::verify::{Memory, Op, Placement, Program, RankBuffers, Sample, Shape, Tables};
use crate::verify::{perform, perform_on, with_type};

/// The kind of memory that buffers are of.
#[derive(Debug, Clone)]
pub enum Placed {
    /// The host's.
    Slices,
    /// The host's, registered with the communicator.
    Registered(Origin),
    /// A device's; calls are put into this stream.
    Device(DeviceStream),
}

/// Where registered memory comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A buffer of its own for each.
    Buffer,
    /// Vectors of this pool, which is registered.
    Pool(SharedPool),
    /// A vector, registered where it lies.
    Vector,
    /// A boxed slice, registered where it lies.
    Boxed,
}

impl Origin {
    /// Memory for `count` elements, registered with `comm`.
    pub fn allocate<T: Sample>(&self, comm: &Communicator, count: usize) -> Result<Memory<T>> {
        let zero = T::of_bits(0);
        Ok(match self {
            Origin::Buffer => {
                let buffer = Buffer::<T>::new(count)?;
                comm.register(&buffer)?;
                Box::new(buffer)
            }
            Origin::Pool(pool) => Box::new(SharedVec::filled(zero, count, pool)?),
            Origin::Vector => {
                let vector = must_move(Registered::new(vec![zero; count]))?;
                comm.register(&vector)?;
                Box::new(vector)
            }
            Origin::Boxed => {
                let boxed = must_move(Registered::new(vec![zero; count].into_boxed_slice()))?;
                comm.register(&boxed)?;
                Box::new(boxed)
            }
        })
    }
}

/// Refused memory would be tested as ordinary memory is.
fn must_move<C: OwnedElements>(registered: Registered<C>) -> Result<Registered<C>> {
    match registered.refusal() {
        None => Ok(registered),
        Some(why) => Err(Error::internal(format!("not registered where it lies: {why}"))),
    }
}

/// One call.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub program: Program,
    pub data_type: DataType,
    pub op: Option<Op>,
    pub root: u32,
    /// As `Shape::new` counts them.
    pub elements: usize,
    pub placement: Placement,
    /// Elements by which buffers miss their alignment.
    pub skew: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { program, data_type, op, root, elements, placement, skew } = self;
        write!(f, "{} {data_type} {} root {root}, ", program.name(), op.map_or("", Op::name))?;
        write!(f, "{elements} elements {}, skew {skew}", placement.name())
    }
}

impl Case {
    /// Runs the case as one rank. What is wrong, if anything is.
    pub fn run(&self, comm: &Communicator, kind: &Placed, seed: u64) -> Result<Option<String>> {
        with_type!(self.data_type, T => self.run_typed::<T>(comm, kind, seed), else {
            Err(Error::invalid_argument("a type that this test does not know"))
        })
    }

    fn run_typed<T: Sample>(&self, comm: &Communicator, kind: &Placed, seed: u64) -> Result<Option<String>> {
        let shape = Shape::new(self.program, (comm.rank(), comm.size()), self.root, self.elements)?;
        let tables = Tables::<T>::new(seed, comm.size(), self.op, shape.indices());
        let mut buffers = match kind {
            Placed::Registered(origin) => {
                let allocate = |count| origin.allocate(comm, count);
                RankBuffers::<T>::within(&shape, self.placement, self.skew, &allocate)?
            }
            Placed::Slices | Placed::Device(_) => RankBuffers::new(&shape, self.placement, self.skew)?,
        };
        buffers.fill(&shape, &tables)?;
        let op = self.op.map(|op| op.reduce_op(self.data_type, comm.rank()));
        match kind {
            Placed::Slices | Placed::Registered(_) => perform(comm, &shape, op, &mut buffers)?,
            Placed::Device(stream) => {
                self.on_device(comm, (&shape, op), stream, &mut buffers)?;
                if let Some(error) = comm.async_error() {
                    return Err(error);
                }
            }
        }
        Ok(buffers.check(&shape, &tables)?.first)
    }

    /// The same on copies of the buffers in the memory of the stream's device, `skew` elements off their alignment.
    fn on_device<T: Sample>(
        &self,
        comm: &Communicator,
        (shape, op): (&Shape, Option<ReduceOp>),
        stream: &DeviceStream,
        buffers: &mut RankBuffers<T>,
    ) -> Result<()> {
        let (sends, recvs) = (buffers.send.slice().len(), buffers.recv.slice().len());
        let mut send = stream.alloc::<T>(self.skew + sends)?;
        let mut recv = stream.alloc::<T>(self.skew + recvs)?;
        stream.upload(buffers.send.slice(), send.slice_mut(self.skew..))?;
        stream.upload(buffers.recv.slice(), recv.slice_mut(self.skew..))?;
        let target = (self.placement == Placement::OutOfPlace).then(|| recv.slice_mut(self.skew..));
        perform_on(&comm.on(stream), shape, op, (send.slice_mut(self.skew..), target))?;
        stream.download(send.slice(self.skew..), buffers.send.slice_mut())?;
        stream.download(recv.slice(self.skew..), buffers.recv.slice_mut())
    }
}

/// Every program on its types and operators, at each size, in each placement, with the first and the last rank as root.
pub fn every_program(ranks: u32, sizes: &[usize], kinds: &[(DataType, Op)]) -> Vec<Case> {
    let mut cases = Vec::new();
    for program in Program::ALL.iter().copied() {
        let roots = if program.rooted() && ranks > 1 { vec![0, ranks - 1] } else { vec![0] };
        for (data_type, op) in kinds.iter().copied().filter(|(_, op)| !program.reduces() || program.takes(*op)) {
            let op = program.reduces().then_some(op);
            for (elements, root) in sizes.iter().flat_map(|size| roots.iter().map(|root| (*size, *root))) {
                let case = Case { program, data_type, op, root, elements, placement: Placement::OutOfPlace, skew: 0 };
                cases.push(case);
                if Shape::new(program, (0, ranks), root, 0).is_ok_and(|shape| shape.in_place().is_some()) {
                    cases.push(Case { placement: Placement::InPlace, skew: elements % 3, ..case });
                }
            }
        }
    }
    cases
}
