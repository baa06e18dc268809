//! The collectives of a communicator, typed.

use crate::comm::choose::Question;
use crate::comm::{Chosen, Communicator};
use crate::error::{Error, Result};
use crate::exec::{Buffer, Buffers, Call, CallCount, Message, Nothing, wrong_counts};
use crate::types::{Collective, DataType, Element, Rank, ReduceOp};

impl Communicator {
    /// Every rank passes `send`, all of one count, and gets the reduction of all in `recv`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the lengths of `send` and `recv` differ or the operator does not fit the type;
    /// [`crate::error::Kind::Mismatch`] where ranks pass different counts, types or operators.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let mine = vec![comm.rank() as f32; 100];
    ///     let mut greatest = vec![0.0; 100];
    ///     comm.all_reduce(&mine, &mut greatest, ReduceOp::Max)?;
    ///     assert_eq!(greatest, [2.0; 100]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    #[inline]
    pub fn all_reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        expect("recv", recv.len(), send.len())?;
        let call = Call { op: Some(op), ..call::<T>(Collective::AllReduce, recv.len(), send, recv) };
        self.run(&call)
    }

    /// [`Communicator::all_reduce`] with one buffer for both.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    #[inline]
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = Call { op: Some(op), ..in_place::<T>(Collective::AllReduce, buffer.len(), buffer) };
        self.run(&call)
    }

    /// The root's `buffer` comes to every rank's `buffer`. All pass the same length.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the root is no rank; [`crate::error::Kind::Mismatch`] where ranks pass different
    /// counts, types or roots.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let mut word = if comm.rank() == 1 { *b"rsccl" } else { [0; 5] };
    ///     comm.broadcast(&mut word, 1)?;
    ///     assert_eq!(&word, b"rsccl");
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<()> {
        let call = Call { root: Some(Rank::new(root)), ..in_place::<T>(Collective::Broadcast, buffer.len(), buffer) };
        self.run(&call)
    }

    /// The root's `send` comes to every rank's `recv`, the root's too. What others pass as `send` is not looked at.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`]; and where the root's `send` and `recv` differ in length.
    pub fn broadcast_into<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<()> {
        if root == self.rank() {
            expect("send", send.len(), recv.len())?;
        }
        let call = Call { root: Some(Rank::new(root)), ..call::<T>(Collective::Broadcast, recv.len(), send, recv) };
        self.run(&call)
    }

    /// Every rank passes `send`, all of one count; the root gets the reduction of all in `recv`. What others pass as `recv` is
    /// not touched and may be empty.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`] and [`Communicator::broadcast`].
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let mut product = [0u32];
    ///     comm.reduce(&[comm.rank() + 2], &mut product, ReduceOp::Prod, 0)?;
    ///     assert_eq!(product[0], if comm.rank() == 0 { 24 } else { 0 });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        if root == self.rank() {
            expect("recv", recv.len(), send.len())?;
        }
        let basic = call::<T>(Collective::Reduce, send.len(), send, recv);
        let call = Call { op: Some(op), root: Some(Rank::new(root)), ..basic };
        self.run(&call)
    }

    /// [`Communicator::reduce`] where the root's `buffer` is input and output; other ranks' are only read.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        let basic = in_place::<T>(Collective::Reduce, buffer.len(), buffer);
        let call = Call { op: Some(op), root: Some(Rank::new(root)), ..basic };
        self.run(&call)
    }

    /// Every rank passes `send`, all of one count, and gets everyone's, in rank order, in `recv`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where `recv` is not as long as all `send` together.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let mut all = [0; 6];
    ///     comm.all_gather(&[comm.rank(), 10 * comm.rank()], &mut all)?;
    ///     assert_eq!(all, [0, 0, 1, 10, 2, 20]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        expect("recv", recv.len(), self.times(send.len())?)?;
        let call = call::<T>(Collective::AllGather, send.len(), send, recv);
        self.run(&call)
    }

    /// [`Communicator::all_gather`] where a rank's input is its block of `buffer`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the length is not a multiple of the number of ranks.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let mut all = [0; 3];
    ///     all[comm.rank() as usize] = 10 + comm.rank();
    ///     comm.all_gather_in_place(&mut all)?;
    ///     assert_eq!(all, [10, 11, 12]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.block(buffer.len())?;
        let start = count * self.world.rank.index();
        let call = describe::<T>(Collective::AllGather, count, Buffers::input_inside(buffer, start, count));
        self.run(&call)
    }

    /// Every rank passes `send`, as many blocks as ranks; rank r gets the reduction of everyone's block r in `recv`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where `send` is not as long as all `recv` together.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(2, |comm| {
    ///     let mut mine = [0];
    ///     comm.reduce_scatter(&[1 + comm.rank(), 5], &mut mine, ReduceOp::Sum)?;
    ///     assert_eq!(mine[0], if comm.rank() == 0 { 3 } else { 10 });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        expect("send", send.len(), self.times(recv.len())?)?;
        let call = Call { op: Some(op), ..call::<T>(Collective::ReduceScatter, recv.len(), send, recv) };
        self.run(&call)
    }

    /// [`Communicator::reduce_scatter`] where a rank's output is its block of `buffer`; what the other blocks hold afterwards is
    /// not specified.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the length is not a multiple of the number of ranks.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(2, |comm| {
    ///     let mut blocks = [1 + comm.rank(), 5];
    ///     comm.reduce_scatter_in_place(&mut blocks, ReduceOp::Sum)?;
    ///     assert_eq!(blocks[comm.rank() as usize], if comm.rank() == 0 { 3 } else { 10 });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let count = self.block(buffer.len())?;
        let start = count * self.world.rank.index();
        let buffers = Buffers::output_inside(buffer, start, count);
        let call = Call { op: Some(op), ..describe::<T>(Collective::ReduceScatter, count, buffers) };
        self.run(&call)
    }

    /// Every rank passes `send`, as many blocks as ranks; rank r gets everyone's block r, in rank order, in `recv`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the lengths differ or are not a multiple of the number of ranks.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(2, |comm| {
    ///     let me = comm.rank();
    ///     let mut recv = [0; 2];
    ///     comm.all_to_all(&[10 * me, 10 * me + 1], &mut recv)?;
    ///     assert_eq!(recv, [me, 10 + me]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        expect("recv", recv.len(), send.len())?;
        let call = call::<T>(Collective::AllToAll, self.block(send.len())?, send, recv);
        self.run(&call)
    }

    /// Every rank passes `send`, all of one count; the root gets everyone's, in rank order, in `recv`. What others pass as `recv` is
    /// not touched and may be empty.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the root's `recv` is not as long as all `send` together.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let mut all = vec![0; if comm.rank() == 2 { 3 } else { 0 }];
    ///     comm.gather(&[comm.rank() + 1], &mut all, 2)?;
    ///     assert!(comm.rank() != 2 || all == [1, 2, 3]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<()> {
        if root == self.rank() {
            expect("recv", recv.len(), self.times(send.len())?)?;
        }
        let call = Call { root: Some(Rank::new(root)), ..call::<T>(Collective::Gather, send.len(), send, recv) };
        self.run(&call)
    }

    /// The root passes `send`, as many blocks as ranks; rank r gets block r in `recv`. What others pass as `send` is not looked at
    /// and may be empty.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the root's `send` is not as long as all `recv` together.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let all = if comm.rank() == 0 { vec![5, 6, 7] } else { vec![] };
    ///     let mut mine = [0];
    ///     comm.scatter(&all, &mut mine, 0)?;
    ///     assert_eq!(mine[0], 5 + comm.rank());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<()> {
        if root == self.rank() {
            expect("send", send.len(), self.times(recv.len())?)?;
        }
        let call = Call { root: Some(Rank::new(root)), ..call::<T>(Collective::Scatter, recv.len(), send, recv) };
        self.run(&call)
    }

    /// Nobody returns before everyone has called.
    ///
    /// # Errors
    /// Those of all calls ([`Communicator`]).
    pub fn barrier(&self) -> Result<()> {
        let call = describe::<u8>(Collective::Barrier, 0, Buffers::none());
        self.run(&call)
    }

    /// [`Communicator::all_gather`] where rank r passes `counts[r]` elements. All ranks pass the same `counts`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where lengths and counts do not agree; [`crate::error::Kind::Mismatch`] where ranks pass
    /// different counts.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let mine = vec![comm.rank(); comm.rank() as usize];
    ///     let mut all = [9; 3];
    ///     comm.all_gather_v(&mine, &mut all, &[0, 1, 2])?;
    ///     assert_eq!(all, [1, 2, 2]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn all_gather_v<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<()> {
        let (mine, total) = self.counts(counts)?;
        expect("send", send.len(), mine)?;
        expect("recv", recv.len(), total)?;
        let call = Call { count: per_rank(counts), ..call::<T>(Collective::AllGatherV, 0, send, recv) };
        self.run(&call)
    }

    /// [`Communicator::reduce_scatter`] where rank r gets `counts[r]` elements. All ranks pass the same `counts`.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`]; and where the operator does not fit the type.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(2, |comm| {
    ///     let counts = [1, 2];
    ///     let mut mine = vec![0; counts[comm.rank() as usize]];
    ///     comm.reduce_scatter_v(&[1, 2, 3], &mut mine, &counts, ReduceOp::Sum)?;
    ///     assert_eq!(mine, if comm.rank() == 0 { vec![2] } else { vec![4, 6] });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let (mine, total) = self.counts(counts)?;
        expect("recv", recv.len(), mine)?;
        expect("send", send.len(), total)?;
        let basic = call::<T>(Collective::ReduceScatterV, 0, send, recv);
        let call = Call { op: Some(op), count: per_rank(counts), ..basic };
        self.run(&call)
    }

    /// [`Communicator::all_to_all`] with a count for each pair: this rank sends `send_counts[r]` elements to rank r, in rank order in
    /// `send`, and receives `recv_counts[r]` from it, in rank order in `recv`. What rank a sends to b is what b receives from a.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where lengths and counts do not agree; [`crate::error::Kind::Mismatch`] where the two
    /// ends of a pair differ.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(2, |comm| {
    ///     // Rank 0 sends one element to itself and two to rank 1; rank 1 sends nothing to rank 0 and one to itself.
    ///     let (send, counts) = if comm.rank() == 0 { (vec![1, 2, 3], [1, 2]) } else { (vec![4], [0, 1]) };
    ///     let (mut recv, from) = if comm.rank() == 0 { (vec![0; 1], [1, 0]) } else { (vec![0; 3], [2, 1]) };
    ///     comm.all_to_all_v(&send, &counts, &mut recv, &from)?;
    ///     assert_eq!(recv, if comm.rank() == 0 { vec![1] } else { vec![2, 3, 4] });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        expect("send", send.len(), self.counts(send_counts)?.1)?;
        expect("recv", recv.len(), self.counts(recv_counts)?.1)?;
        let mut messages = Vec::with_capacity(2 * send_counts.len());
        let (mut send_rest, mut recv_rest) = (send, recv);
        for (rank, (to, from)) in self.world.ranks().zip(send_counts.iter().zip(recv_counts)) {
            let (mine, rest) = send_rest.split_at(*to);
            messages.push(Message::send(mine, rank));
            send_rest = rest;
            let (theirs, rest) = std::mem::take(&mut recv_rest).split_at_mut(*from);
            messages.push(Message::recv(theirs, rank));
            recv_rest = rest;
        }
        self.exchange(messages)
    }

    /// Runs an `all_to_all_v` that is described as its messages: one to and one from each rank.
    pub(super) fn exchange(&self, messages: Vec<Message<'_>>) -> Result<()> {
        self.with_engine(|engine| engine.exchange(messages))
    }

    /// Lets the other ranks work in `buffer` during collectives, so that large ones need no copies ([`Buffer`] has an example).
    /// Collective: all ranks register, in the same order; lengths may differ. A call whose ranks use unregistered buffers works all
    /// the same, through scratch, and so does every call of a communicator over several hosts or of more than 64 ranks, where
    /// registering does nothing. The memory stays mapped until the communicator ends.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] for more than 1,024 registrations.
    pub fn register<T: Element>(&self, buffer: &Buffer<T>) -> Result<()> {
        self.with_engine(|engine| engine.register(buffer.memory()).map_err(|error| error.during("register")))
    }

    /// Runs a collective that is described at run time. The typed calls are thin layers over this.
    ///
    /// # Errors
    /// As the typed call of the same collective.
    ///
    /// # Examples
    /// ```
    /// use rsccl::comm::{Buffers, Call, CallCount};
    /// use rsccl::types::{Collective, DataType, Rank};
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let mut word = if comm.rank() == 1 { *b"rsccl" } else { [0; 5] };
    ///     comm.run(&Call {
    ///         collective: Collective::Broadcast,
    ///         data_type: DataType::U8,
    ///         op: None,
    ///         root: Some(Rank::new(1)),
    ///         count: CallCount::Each(5),
    ///         buffers: Buffers::shared(&mut word),
    ///     })?;
    ///     assert_eq!(&word, b"rsccl");
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    #[inline]
    pub fn run(&self, call: &Call<'_>) -> Result<()> {
        self.with_engine(|engine| engine.collective(call, &mut Nothing))
    }

    /// How [`Communicator::run`] does a call of this kind, in the words of `NCCL_ALGO` and `NCCL_PROTO`: the same on all ranks, and known
    /// without a word to the others. `None` where there is nothing to choose: one rank alone, sends and receives, `all_to_all_v`.
    /// With `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING` the log says it of every call.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the filters leave no way to do it, or there are not as many counts as ranks.
    ///
    /// # Examples
    /// ```
    /// use rsccl::comm::CallCount;
    /// use rsccl::types::{Algorithm, Collective, DataType, Protocol};
    ///
    /// rsccl::local::run(2, |comm| {
    ///     let of = |count| comm.chosen(Collective::AllReduce, DataType::F32, &CallCount::Each(count));
    ///     let (small, large) = (of(2)?.expect("two ranks"), of(1 << 20)?.expect("two ranks"));
    ///     assert_eq!((small.algorithm, small.protocol), (Algorithm::Direct, Protocol::LowLatency));
    ///     assert_eq!((large.algorithm, large.protocol), (Algorithm::Direct, Protocol::Simple));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn chosen(&self, collective: Collective, data_type: DataType, count: &CallCount) -> Result<Option<Chosen>> {
        if let CallCount::PerRank(counts) = count
            && counts.len() != self.size() as usize
        {
            return Err(wrong_counts(counts.len(), self.size()));
        }
        self.with_engine(|engine| engine.chosen(Question { collective, data_type, count }))
    }

    /// `count` for each rank.
    fn times(&self, count: usize) -> Result<usize> {
        let total = count.checked_mul(self.size() as usize);
        total.ok_or_else(|| {
            Error::invalid_argument(format!("{count} elements for each of {} ranks is too large", self.size()))
        })
    }

    /// The count of one of as many blocks as ranks.
    fn block(&self, length: usize) -> Result<usize> {
        let ranks = self.size() as usize;
        if length.is_multiple_of(ranks) {
            return Ok(length / ranks);
        }
        Err(Error::invalid_argument(format!(
            "a buffer of {length} elements is not one block for each of {ranks} ranks"
        )))
    }

    /// My count, and the sum of all.
    pub(super) fn counts(&self, counts: &[usize]) -> Result<(usize, usize)> {
        if counts.len() != self.size() as usize {
            return Err(wrong_counts(counts.len(), self.size()));
        }
        let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        let total = total.ok_or_else(|| Error::invalid_argument("the counts together are too large"))?;
        Ok((counts[self.world.rank.index()], total))
    }
}

/// Refuses a buffer of the wrong length.
pub(super) fn expect(name: &str, length: usize, expected: usize) -> Result<()> {
    if length == expected {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("`{name}` has {length} elements where {expected} are needed")))
}

fn call<'a, T: Element>(collective: Collective, count: usize, send: &'a [T], recv: &'a mut [T]) -> Call<'a> {
    describe::<T>(collective, count, Buffers::apart(send, recv))
}

fn in_place<T: Element>(collective: Collective, count: usize, buffer: &mut [T]) -> Call<'_> {
    describe::<T>(collective, count, Buffers::shared(buffer))
}

fn describe<T: Element>(collective: Collective, count: usize, buffers: Buffers<'_>) -> Call<'_> {
    let count = CallCount::Each(count as u64);
    Call { collective, data_type: T::DATA_TYPE, op: None, root: None, count, buffers }
}

fn per_rank(counts: &[usize]) -> CallCount {
    CallCount::PerRank(counts.iter().map(|count| *count as u64).collect())
}
