//! The collectives of a communicator, typed.

use crate::comm::choose::Question;
use crate::comm::{Chosen, Communicator, typed};
use crate::error::Result;
use crate::exec::{Buffer, Call, CallCount, Message, Nothing, wrong_counts};
use crate::types::{Collective, DataType, Element, ReduceOp};

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
        self.run(&typed::named(self.world()?, "all_reduce", typed::all_reduce(send, recv, op))?)
    }

    /// [`Communicator::all_reduce`] with one buffer for both.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    #[inline]
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(&typed::all_reduce_in_place(buffer, op))
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
        self.run(&typed::broadcast(buffer, root))
    }

    /// The root's `send` comes to every rank's `recv`, the root's too. What others pass as `send` is not looked at.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`]; and where the root's `send` and `recv` differ in length.
    pub fn broadcast_into<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<()> {
        self.run(&typed::named(self.world()?, "broadcast", typed::broadcast_into(self.world()?, (send, recv), root))?)
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
        self.run(&typed::named(self.world()?, "reduce", typed::reduce(self.world()?, (send, recv), op, root))?)
    }

    /// [`Communicator::reduce`] where the root's `buffer` is input and output; other ranks' are only read.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        self.run(&typed::reduce_in_place(buffer, op, root))
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
        self.run(&typed::named(self.world()?, "all_gather", typed::all_gather(self.world()?, send, recv))?)
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
        self.run(&typed::named(self.world()?, "all_gather", typed::all_gather_in_place(self.world()?, buffer))?)
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
        self.run(&typed::named(
            self.world()?,
            "reduce_scatter",
            typed::reduce_scatter(self.world()?, (send, recv), op),
        )?)
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
        self.run(&typed::named(
            self.world()?,
            "reduce_scatter",
            typed::reduce_scatter_in_place(self.world()?, buffer, op),
        )?)
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
        self.run(&typed::named(self.world()?, "all_to_all", typed::all_to_all(self.world()?, send, recv))?)
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
        self.run(&typed::named(self.world()?, "gather", typed::gather(self.world()?, (send, recv), root))?)
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
        self.run(&typed::named(self.world()?, "scatter", typed::scatter(self.world()?, (send, recv), root))?)
    }

    /// Nobody returns before everyone has called.
    ///
    /// # Errors
    /// Those of all calls ([`Communicator`]).
    pub fn barrier(&self) -> Result<()> {
        self.run(&typed::barrier())
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
        self.run(&typed::named(
            self.world()?,
            "all_gather_v",
            typed::all_gather_v(self.world()?, (send, recv), counts),
        )?)
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
        self.run(&typed::named(
            self.world()?,
            "reduce_scatter_v",
            typed::reduce_scatter_v(self.world()?, (send, recv), counts, op),
        )?)
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
        self.exchange(typed::named(
            self.world()?,
            "all_to_all_v",
            typed::all_to_all_v(self.world()?, (send, send_counts), (recv, recv_counts)),
        )?)
    }

    /// [`Communicator::gather`] where ranks pass different numbers of elements. The root passes how many each rank does; what others
    /// pass as `counts` is not looked at.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the root's lengths and counts do not agree; [`crate::error::Kind::Mismatch`] where a
    /// rank passes another number of elements than the root's count says, another type or another root.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let mine = vec![comm.rank(); comm.rank() as usize];
    ///     if comm.rank() == 0 {
    ///         let mut all = [9; 3];
    ///         comm.gather_v(&mine, &mut all, &[0, 1, 2], 0)?;
    ///         assert_eq!(all, [1, 2, 2]);
    ///     } else {
    ///         comm.gather_v(&mine, &mut [], &[], 0)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn gather_v<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize], root: u32) -> Result<()> {
        self.run(&typed::named(self.world()?, "gather_v", typed::gather_v(self.world()?, (send, recv), counts, root))?)
    }

    /// [`Communicator::scatter`] where ranks get different numbers of elements. The root passes how many each rank gets; what others
    /// pass as `counts` is not looked at.
    ///
    /// # Errors
    /// As [`Communicator::gather_v`].
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let mut mine = vec![0; comm.rank() as usize];
    ///     let (all, counts) = if comm.rank() == 1 { (vec![5, 6, 7], vec![0, 1, 2]) } else { (vec![], vec![]) };
    ///     comm.scatter_v(&all, &mut mine, &counts, 1)?;
    ///     assert_eq!(mine, [vec![], vec![5], vec![6, 7]][comm.rank() as usize]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn scatter_v<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize], root: u32) -> Result<()> {
        self.run(&typed::named(
            self.world()?,
            "scatter_v",
            typed::scatter_v(self.world()?, (send, recv), counts, root),
        )?)
    }

    /// Every rank passes `send`, all of one count; rank r gets the reduction of ranks 0 to r in `recv`. Not with `Avg` or `PreMulSum`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(4, |comm| {
    ///     let mut up_to_me = [0];
    ///     comm.scan(&[comm.rank() + 1], &mut up_to_me, ReduceOp::Sum)?;
    ///     assert_eq!(up_to_me[0], [1, 3, 6, 10][comm.rank() as usize]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn scan<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(&typed::named(self.world()?, "scan", typed::scan(send, recv, op))?)
    }

    /// [`Communicator::scan`] with one buffer for both.
    ///
    /// # Errors
    /// As [`Communicator::scan`].
    pub fn scan_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(&typed::scan_in_place(buffer, op))
    }

    /// Every rank passes `send`, all of one count; rank r gets the reduction of the ranks below it in `recv`, and rank 0's `recv` is not
    /// touched: where each rank's part begins in a common whole. Not with `Avg` or `PreMulSum`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let lines = [10usize, 20, 30][comm.rank() as usize];
    ///     let mut first = [0];
    ///     comm.exscan(&[lines], &mut first, ReduceOp::Sum)?;
    ///     assert_eq!(first[0], [0, 10, 30][comm.rank() as usize]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn exscan<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(&typed::named(self.world()?, "exscan", typed::exscan(send, recv, op))?)
    }

    /// [`Communicator::exscan`] with one buffer for both; rank 0's is not touched.
    ///
    /// # Errors
    /// As [`Communicator::exscan`].
    pub fn exscan_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(&typed::exscan_in_place(buffer, op))
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
        self.with_engine(|engine| {
            engine.register(buffer.memory(), &mut Nothing).map_err(|error| error.during("register"))
        })
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
}
