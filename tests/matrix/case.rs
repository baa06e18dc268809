//! One collective call with inputs that make its result exact, compared bit by bit.

use std::fmt;

use rsccl::{Communicator, DataType, Error, Result};

use crate::verify::{Op, Placement, Program, RankBuffers, Sample, Shape, Tables, perform, with_type};

/// One call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) program: Program,
    pub(crate) data_type: DataType,
    pub(crate) op: Option<Op>,
    pub(crate) root: u32,
    /// As `Shape::new` counts them.
    pub(crate) elements: usize,
    pub(crate) placement: Placement,
    /// Elements by which buffers miss their alignment.
    pub(crate) skew: usize,
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
    pub(crate) fn run(&self, comm: &Communicator, seed: u64) -> Result<Option<String>> {
        with_type!(self.data_type, T => self.run_typed::<T>(comm, seed), else {
            Err(Error::invalid_argument("a type that this test does not know"))
        })
    }

    fn run_typed<T: Sample>(&self, comm: &Communicator, seed: u64) -> Result<Option<String>> {
        let shape = Shape::new(self.program, (comm.rank(), comm.size()), self.root, self.elements)?;
        let tables = Tables::<T>::new(seed, comm.size(), self.op, shape.indices());
        let mut buffers = RankBuffers::<T>::new(&shape, self.placement, self.skew)?;
        buffers.fill(&shape, &tables)?;
        let op = self.op.map(|op| op.reduce_op(self.data_type, comm.rank()));
        perform(comm, &shape, op, &mut buffers)?;
        Ok(buffers.check(&shape, &tables)?.first)
    }
}
