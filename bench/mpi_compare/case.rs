//! One collective at one size, as each library calls it, on the same buffers.

use mpi::collective::SystemOperation;
use mpi::topology::{Communicator as _, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives, Destination, Root, Source};
use rsccl::{Communicator, ReduceOp, Result};

use crate::collective::Collective;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    Rsccl,
    Mpi,
}

impl Library {
    pub(crate) const BOTH: [Library; 2] = [Library::Rsccl, Library::Mpi];
}

const ROOT: u32 = 0;

pub(crate) struct Case<'a> {
    collective: Collective,
    comm: &'a Communicator,
    world: &'a SimpleCommunicator,
    send: Vec<f32>,
    recv: Vec<f32>,
}

impl<'a> Case<'a> {
    /// The larger of a rank's two buffers has `bytes`, or a little more, so that every rank has as many elements.
    pub(crate) fn new(
        collective: Collective,
        bytes: usize,
        comm: &'a Communicator,
        world: &'a SimpleCommunicator,
    ) -> Case<'a> {
        let ranks = comm.size() as usize;
        let whole = (bytes / size_of::<f32>()).max(1);
        let share = whole.div_ceil(ranks);
        let (sent, received) = match collective {
            Collective::AllReduce | Collective::Reduce | Collective::SendRecv => (whole, whole),
            // In place on `recv`.
            Collective::Broadcast => (0, whole),
            Collective::AllGather => (share, share * ranks),
            Collective::ReduceScatter => (share * ranks, share),
            Collective::AllToAll => (share * ranks, share * ranks),
        };
        let send = (0..sent).map(|index| value(comm.rank(), index)).collect();
        Case { collective, comm, world, send, recv: vec![0.0; received] }
    }

    /// What the table calls the size.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<f32>() * self.send.len().max(self.recv.len())
    }

    /// Whether a call is a message to and fro, of which half counts.
    pub(crate) fn is_round_trip(&self) -> bool {
        self.collective == Collective::SendRecv
    }

    pub(crate) fn result(&self) -> &[f32] {
        &self.recv
    }

    pub(crate) fn call(&mut self, library: Library) -> Result<()> {
        match library {
            Library::Rsccl => self.call_rsccl(),
            Library::Mpi => {
                self.call_mpi();
                Ok(())
            }
        }
    }

    fn call_rsccl(&mut self) -> Result<()> {
        let (comm, send, recv) = (self.comm, &self.send, &mut self.recv);
        match self.collective {
            Collective::AllReduce => comm.all_reduce(send, recv, ReduceOp::Sum),
            Collective::Broadcast => comm.broadcast(recv, ROOT),
            Collective::Reduce if comm.rank() == ROOT => comm.reduce(send, recv, ReduceOp::Sum, ROOT),
            Collective::Reduce => comm.reduce(send, &mut [], ReduceOp::Sum, ROOT),
            Collective::AllGather => comm.all_gather(send, recv),
            Collective::ReduceScatter => comm.reduce_scatter(send, recv, ReduceOp::Sum),
            Collective::AllToAll => comm.all_to_all(send, recv),
            Collective::SendRecv => match self.partner() {
                Some(peer) if peer > comm.rank() => {
                    comm.send(&self.send, peer).and_then(|()| comm.recv(&mut self.recv, peer))
                }
                Some(peer) => comm.recv(&mut self.recv, peer).and_then(|()| comm.send(&self.send, peer)),
                None => Ok(()),
            },
        }
    }

    fn call_mpi(&mut self) {
        let partner = self.partner().and_then(|peer| i32::try_from(peer).ok());
        let (world, send, recv) = (self.world, &self.send[..], &mut self.recv[..]);
        let (root, sum) = (world.process_at_rank(0), SystemOperation::sum());
        match self.collective {
            Collective::AllReduce => world.all_reduce_into(send, recv, sum),
            Collective::Broadcast => root.broadcast_into(recv),
            Collective::Reduce if world.rank() == 0 => root.reduce_into_root(send, recv, sum),
            Collective::Reduce => root.reduce_into(send, sum),
            Collective::AllGather => world.all_gather_into(send, recv),
            Collective::ReduceScatter => world.reduce_scatter_block_into(send, recv, sum),
            Collective::AllToAll => world.all_to_all_into(send, recv),
            Collective::SendRecv => match partner {
                Some(peer) if peer > world.rank() => {
                    world.process_at_rank(peer).send(send);
                    world.process_at_rank(peer).receive_into(recv);
                }
                Some(peer) => {
                    world.process_at_rank(peer).receive_into(recv);
                    world.process_at_rank(peer).send(send);
                }
                None => {}
            },
        }
    }

    /// With whom this rank exchanges messages; nobody, if it is the odd one out.
    fn partner(&self) -> Option<u32> {
        Some(self.comm.rank() ^ 1).filter(|peer| *peer < self.comm.size())
    }

    /// One call, and a look at every element.
    pub(crate) fn check(&mut self, library: Library) -> Result<()> {
        // What must be overwritten, but for a root's own data.
        self.recv.fill(-1.0);
        if self.collective == Collective::Broadcast && self.comm.rank() == ROOT {
            self.recv.iter_mut().enumerate().for_each(|(index, element)| *element = value(ROOT, index));
        }
        self.call(library)?;
        for (index, got) in self.recv.iter().enumerate() {
            let wanted = self.wanted(index);
            assert!(*got == wanted, "{library:?} {}: element {index} is {got}, not {wanted}", self.collective);
        }
        Ok(())
    }

    fn wanted(&self, index: usize) -> f32 {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let sum = |index| (0..ranks).map(|rank| value(rank, index)).sum();
        let share = self.recv.len() / ranks as usize;
        let from =
            |index: usize| (0..).zip(0..ranks).find(|(place, _)| index < (place + 1) * share).map_or(0, |it| it.1);
        match self.collective {
            Collective::AllReduce => sum(index),
            Collective::Reduce if rank == ROOT => sum(index),
            Collective::Reduce => -1.0,
            Collective::Broadcast => value(ROOT, index),
            Collective::AllGather => value(from(index), index % share),
            Collective::ReduceScatter => sum(rank as usize * self.recv.len() + index),
            Collective::AllToAll => value(from(index), rank as usize * share + index % share),
            Collective::SendRecv => self.partner().map_or(-1.0, |peer| value(peer, index)),
        }
    }
}

/// What `rank` contributes: whole numbers so small that sums are exact in any order.
fn value(rank: u32, index: usize) -> f32 {
    (index % 64) as f32 + 64.0 * rank as f32
}
