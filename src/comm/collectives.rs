//! The collectives and messages of a communicator, typed: the one list from which [`Communicator`], [`Scope`],
//! [`Member`] and those on streams have their methods.
//!
//! The list is a macro and no public trait, so that programs call the methods without an import. What becomes of a call
//! differs by type, and is said by [`Submit`].

use crate::comm::Communicator;
use crate::comm::group::{Member, StreamMember};
use crate::comm::on_stream::OnStream;
use crate::comm::request::Request;
use crate::comm::scope::Scope;
use crate::comm::typed::{self, Typed};
use crate::engine::Engine;
use crate::error::Result;
use crate::exec::{Call, DeviceSlice, DeviceSliceMut, Message};
use crate::types::{Collective, Element, NO_RANK, Rank, ReduceOp, World};

/// Takes described calls. A communicator runs them at once, a scope begins them, and a group keeps them until it runs.
pub(super) trait Submit<'a>: Sized {
    /// What the caller of a collective gets.
    type Output;

    /// This rank and the number of ranks.
    fn world(&self) -> Result<World>;

    /// Takes a collective.
    fn submit(self, call: Call<'a>) -> Result<Self::Output>;

    /// Takes one send or recv.
    fn submit_message(self, message: Message<'a>) -> Result<Self::Output>;

    /// Takes messages that run side by side.
    fn submit_messages(self, messages: Vec<Message<'a>>) -> Result<Self::Output>;

    /// Takes the messages of a `send_recv`.
    fn submit_send_recv(self, (sent, received): (Option<Message<'a>>, Option<Message<'a>>)) -> Result<Self::Output> {
        self.submit_messages(sent.into_iter().chain(received).collect())
    }

    /// Takes an `all_to_all_v`, described as one message to and one from each rank.
    fn submit_exchange(self, messages: Vec<Message<'a>>) -> Result<Self::Output>;

    /// What `describe` makes of the call `name`; its error names the call and this rank.
    #[inline]
    fn describe<D>(&self, name: &'static str, describe: impl FnOnce(World) -> Result<D>) -> Result<D> {
        let world = self.world()?;
        describe(world).map_err(|error| error.during(name).at(world.rank))
    }

    /// Takes the collective that `with` makes of `call` and its buffers.
    #[inline]
    fn submit_typed(self, call: Typed, with: impl FnOnce(Typed, World) -> Result<Call<'a>>) -> Result<Self::Output> {
        let call = self.describe(call.name(), |world| with(call, world))?;
        self.submit(call)
    }
}

/// Gives a type the methods of the list. `$a` is how long buffers are lent to a call: a lifetime of the type, or one
/// that each method takes (`$call`). `$memory` is where they lie: `host`, in slices, or `device`.
/// The type of what a call reads.
macro_rules! slice {
    (host $a:lifetime $element:ident) => { &$a [$element] };
    (device $a:lifetime $element:ident) => { DeviceSlice<$a, $element> };
}

/// The type of what a call writes.
macro_rules! slice_mut {
    (host $a:lifetime $element:ident) => { &$a mut [$element] };
    (device $a:lifetime $element:ident) => { DeviceSliceMut<$a, $element> };
}

macro_rules! collectives {
    ($memory:ident [$($of:lifetime)?] $kind:ty, [$($call:lifetime)?], $a:lifetime, [$($mutable:tt)?] -> $output:ty) => {
        impl<$($of)?> $kind {
            /// Every rank passes `send`, all of one count, and gets the reduction of all in `recv`.
            ///
            /// # Errors
            /// [`crate::error::Kind::InvalidArgument`] where the lengths of `send` and `recv` differ or the operator
            /// does not fit the type; [`crate::error::Kind::Mismatch`] where ranks pass different counts, types or
            /// operators.
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
            pub fn all_reduce<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                let call = Typed::of(Collective::AllReduce).reducing_by(op);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// [`Self::all_reduce`] with one buffer for both.
            ///
            /// # Errors
            /// As [`Self::all_reduce`].
            #[inline]
            pub fn all_reduce_in_place<$($call,)? T: Element>(
                & $($mutable)? self,
                buffer: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                self.submit(Typed::of(Collective::AllReduce).reducing_by(op).of_one(buffer))
            }

            /// The root's `buffer` comes to every rank's `buffer`. All pass the same length.
            ///
            /// # Errors
            /// [`crate::error::Kind::InvalidArgument`] where the root is no rank; [`crate::error::Kind::Mismatch`]
            /// where ranks pass different counts, types or roots.
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
            pub fn broadcast<$($call,)? T: Element>(
                & $($mutable)? self,
                buffer: slice_mut!($memory $a T),
                root: u32,
            ) -> Result<$output> {
                self.submit(Typed::of(Collective::Broadcast).rooted_at(root).of_one(buffer))
            }

            /// The root's `send` comes to every rank's `recv`, the root's too. What others pass as `send` is not looked
            /// at.
            ///
            /// # Errors
            /// As [`Self::broadcast`]; and where the root's `send` and `recv` differ in length.
            pub fn broadcast_into<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                root: u32,
            ) -> Result<$output> {
                let call = Typed::of(Collective::Broadcast).rooted_at(root);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// Every rank passes `send`, all of one count; the root gets the reduction of all in `recv`. What others
            /// pass as `recv` is not touched and may be empty.
            ///
            /// # Errors
            /// As [`Self::all_reduce`] and [`Self::broadcast`].
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
            pub fn reduce<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                op: ReduceOp,
                root: u32,
            ) -> Result<$output> {
                let call = Typed::of(Collective::Reduce).reducing_by(op).rooted_at(root);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// [`Self::reduce`] where the root's `buffer` is input and output; other ranks' are only read.
            ///
            /// # Errors
            /// As [`Self::reduce`].
            pub fn reduce_in_place<$($call,)? T: Element>(
                & $($mutable)? self,
                buffer: slice_mut!($memory $a T),
                op: ReduceOp,
                root: u32,
            ) -> Result<$output> {
                self.submit(Typed::of(Collective::Reduce).reducing_by(op).rooted_at(root).of_one(buffer))
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
            pub fn all_gather<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
            ) -> Result<$output> {
                let call = Typed::of(Collective::AllGather);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// [`Self::all_gather`] where a rank's input is its block of `buffer`.
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
            pub fn all_gather_in_place<$($call,)? T: Element>(
                & $($mutable)? self,
                buffer: slice_mut!($memory $a T),
            ) -> Result<$output> {
                let call = Typed::of(Collective::AllGather);
                self.submit_typed(call, |call, world| call.within(world, buffer))
            }

            /// Every rank passes `send`, as many blocks as ranks; rank r gets the reduction of everyone's block r in
            /// `recv`.
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
            pub fn reduce_scatter<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                let call = Typed::of(Collective::ReduceScatter).reducing_by(op);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// [`Self::reduce_scatter`] where a rank's output is its block of `buffer`; what the other blocks hold
            /// afterwards is not specified.
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
            pub fn reduce_scatter_in_place<$($call,)? T: Element>(
                & $($mutable)? self,
                buffer: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                let call = Typed::of(Collective::ReduceScatter).reducing_by(op);
                self.submit_typed(call, |call, world| call.within(world, buffer))
            }

            /// Every rank passes `send`, as many blocks as ranks; rank r gets everyone's block r, in rank order, in
            /// `recv`.
            ///
            /// # Errors
            /// [`crate::error::Kind::InvalidArgument`] where the lengths differ or are not a multiple of the number of
            /// ranks.
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
            pub fn all_to_all<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
            ) -> Result<$output> {
                let call = Typed::of(Collective::AllToAll);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// Every rank passes `send`, all of one count; the root gets everyone's, in rank order, in `recv`. What
            /// others pass as `recv` is not touched and may be empty.
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
            pub fn gather<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                root: u32,
            ) -> Result<$output> {
                let call = Typed::of(Collective::Gather).rooted_at(root);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// The root passes `send`, as many blocks as ranks; rank r gets block r in `recv`. What others pass as
            /// `send` is not looked at and may be empty.
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
            pub fn scatter<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                root: u32,
            ) -> Result<$output> {
                let call = Typed::of(Collective::Scatter).rooted_at(root);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// Nobody returns before everyone has called.
            ///
            /// # Errors
            /// Those of all calls ([`Communicator`]).
            pub fn barrier(& $($mutable)? self) -> Result<$output> {
                self.submit(Typed::of(Collective::Barrier).of_none())
            }

            /// [`Self::all_gather`] where rank r passes `counts[r]` elements. All ranks pass the same `counts`.
            ///
            /// # Errors
            /// [`crate::error::Kind::InvalidArgument`] where lengths and counts do not agree;
            /// [`crate::error::Kind::Mismatch`] where ranks pass different counts.
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
            pub fn all_gather_v<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                counts: &[usize],
            ) -> Result<$output> {
                let call = Typed::of(Collective::AllGatherV);
                self.submit_typed(call, |call, world| call.of_counts(world, send, recv, counts))
            }

            /// [`Self::reduce_scatter`] where rank r gets `counts[r]` elements. All ranks pass the same `counts`.
            ///
            /// # Errors
            /// As [`Self::all_gather_v`]; and where the operator does not fit the type.
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
            pub fn reduce_scatter_v<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                counts: &[usize],
                op: ReduceOp,
            ) -> Result<$output> {
                let call = Typed::of(Collective::ReduceScatterV).reducing_by(op);
                self.submit_typed(call, |call, world| call.of_counts(world, send, recv, counts))
            }

            /// [`Self::all_to_all`] with a count for each pair, `counts = (send_counts, recv_counts)`: this rank sends
            /// `send_counts[r]` elements to rank r, in rank order in `send`, and receives `recv_counts[r]` from it, in
            /// rank order in `recv`. What rank a sends to b is what b receives from a.
            ///
            /// # Errors
            /// [`crate::error::Kind::InvalidArgument`] where lengths and counts do not agree;
            /// [`crate::error::Kind::Mismatch`] where the two ends of a pair differ.
            ///
            /// # Examples
            /// ```
            /// rsccl::local::run(2, |comm| {
            ///     // Rank 0 sends one element to itself and two to rank 1; rank 1 sends nothing to rank 0 and one to itself.
            ///     let (send, counts) = if comm.rank() == 0 { (vec![1, 2, 3], [1, 2]) } else { (vec![4], [0, 1]) };
            ///     let (mut recv, from) = if comm.rank() == 0 { (vec![0; 1], [1, 0]) } else { (vec![0; 3], [2, 1]) };
            ///     comm.all_to_all_v(&send, &mut recv, (&counts, &from))?;
            ///     assert_eq!(recv, if comm.rank() == 0 { vec![1] } else { vec![2, 3, 4] });
            ///     Ok(())
            /// })?;
            /// # Ok::<(), rsccl::Error>(())
            /// ```
            pub fn all_to_all_v<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                counts: (&[usize], &[usize]),
            ) -> Result<$output> {
                let messages =
                    self.describe("all_to_all_v", |world| typed::all_to_all_v(world, send, recv, counts))?;
                self.submit_exchange(messages)
            }

            /// [`Self::gather`] where ranks pass different numbers of elements. The root passes how many each rank
            /// does; what others pass as `counts` is not looked at.
            ///
            /// # Errors
            /// [`crate::error::Kind::InvalidArgument`] where the root's lengths and counts do not agree;
            /// [`crate::error::Kind::Mismatch`] where a rank passes another number of elements than the root's count
            /// says, another type or another root.
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
            pub fn gather_v<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                counts: &[usize],
                root: u32,
            ) -> Result<$output> {
                let call = Typed::of(Collective::GatherV).rooted_at(root);
                self.submit_typed(call, |call, world| call.of_counts(world, send, recv, counts))
            }

            /// [`Self::scatter`] where ranks get different numbers of elements. The root passes how many each rank
            /// gets; what others pass as `counts` is not looked at.
            ///
            /// # Errors
            /// As [`Self::gather_v`].
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
            pub fn scatter_v<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                counts: &[usize],
                root: u32,
            ) -> Result<$output> {
                let call = Typed::of(Collective::ScatterV).rooted_at(root);
                self.submit_typed(call, |call, world| call.of_counts(world, send, recv, counts))
            }

            /// Every rank passes `send`, all of one count; rank r gets the reduction of ranks 0 to r in `recv`. Not
            /// with `Avg` or `PreMulSum`.
            ///
            /// # Errors
            /// As [`Self::all_reduce`].
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
            pub fn scan<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                let call = Typed::of(Collective::Scan).reducing_by(op);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// [`Self::scan`] with one buffer for both.
            ///
            /// # Errors
            /// As [`Self::scan`].
            pub fn scan_in_place<$($call,)? T: Element>(
                & $($mutable)? self,
                buffer: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                self.submit(Typed::of(Collective::Scan).reducing_by(op).of_one(buffer))
            }

            /// Every rank passes `send`, all of one count; rank r gets the reduction of the ranks below it in `recv`,
            /// and rank 0's `recv` is not touched: where each rank's part begins in a common whole. Not with `Avg` or
            /// `PreMulSum`.
            ///
            /// # Errors
            /// As [`Self::all_reduce`].
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
            pub fn exscan<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                recv: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                let call = Typed::of(Collective::Exscan).reducing_by(op);
                self.submit_typed(call, |call, world| call.of_two(world, send, recv))
            }

            /// [`Self::exscan`] with one buffer for both; rank 0's is not touched.
            ///
            /// # Errors
            /// As [`Self::exscan`].
            pub fn exscan_in_place<$($call,)? T: Element>(
                & $($mutable)? self,
                buffer: slice_mut!($memory $a T),
                op: ReduceOp,
            ) -> Result<$output> {
                self.submit(Typed::of(Collective::Exscan).reducing_by(op).of_one(buffer))
            }

            /// Sends `buffer` to rank `peer`, which calls [`Self::recv`] with a buffer of the same type and count. To
            /// [`NO_RANK`](crate::types::NO_RANK) nothing goes, and the call does not wait.
            ///
            /// Returns when the buffer may be changed. That does not wait for the peer's `recv` while the connection to
            /// it has room: for eight messages that wait to be received, and 1 MiB of them together
            /// ([`Config::buffer_bytes`](crate::Config::buffer_bytes), `NCCL_BUFFSIZE`). Over sockets it has 4 MiB while
            /// the peer waits in a `send` or `recv` of its own, and otherwise what the two systems' socket buffers take
            /// (`net.ipv4.tcp_wmem`, `net.ipv4.tcp_rmem`), or a NIC of its messages up to 32 KiB, 512 KiB together. A
            /// message that finds no room waits for `recv`: to exchange large ones, put send and recv into a
            /// [group](crate::group()). The first send to a peer also waits until the peer is in some call of this
            /// communicator that waits.
            ///
            /// # Errors
            /// [`crate::error::Kind::InvalidArgument`] for a peer that is no rank, [`crate::error::Kind::InvalidUsage`]
            /// for the own rank outside a group, [`crate::error::Kind::Mismatch`] where type or count differ.
            ///
            /// # Examples
            /// ```
            /// rsccl::local::run(2, |comm| {
            ///     let mut word = [0u64];
            ///     match comm.rank() {
            ///         0 => comm.send(&[7u64], 1)?,
            ///         _ => comm.recv(&mut word, 0)?,
            ///     }
            ///     assert_eq!(word[0], if comm.rank() == 1 { 7 } else { 0 });
            ///     Ok(())
            /// })?;
            /// # Ok::<(), rsccl::Error>(())
            /// ```
            pub fn send<$($call,)? T: Element>(& $($mutable)? self, buffer: slice!($memory $a T), peer: u32) -> Result<$output> {
                if peer == NO_RANK {
                    return self.submit_messages(Vec::new());
                }
                self.submit_message(Message::sending(buffer, Rank::new(peer)))
            }

            /// Receives into `buffer` from rank `peer`, which calls [`Self::send`] with a buffer of the same type and
            /// count. From [`NO_RANK`](crate::types::NO_RANK) nothing comes, and `buffer` stays as it is.
            ///
            /// # Errors
            /// As [`Self::send`].
            pub fn recv<$($call,)? T: Element>(& $($mutable)? self, buffer: slice_mut!($memory $a T), peer: u32) -> Result<$output> {
                if peer == NO_RANK {
                    return self.submit_messages(Vec::new());
                }
                self.submit_message(Message::receiving(buffer, Rank::new(peer)))
            }

            /// Sends `send` to rank `target` and receives into `recv` from rank `source`, side by side: ranks that all
            /// send to their neighbour get there. Either may be the own rank, if both are, and either
            /// [`NO_RANK`](crate::types::NO_RANK), for a rank that has a neighbour on one side alone.
            ///
            /// # Errors
            /// As [`Self::send`].
            ///
            /// # Examples
            /// ```
            /// rsccl::local::run(3, |comm| {
            ///     let ring = |distance: u32| (comm.rank() + distance) % comm.size();
            ///     let mut left = [0; 2];
            ///     comm.send_recv(&[comm.rank(); 2], ring(1), &mut left, ring(2))?;
            ///     assert_eq!(left, [ring(2); 2]);
            ///     Ok(())
            /// })?;
            /// # Ok::<(), rsccl::Error>(())
            /// ```
            pub fn send_recv<$($call,)? T: Element>(
                & $($mutable)? self,
                send: slice!($memory $a T),
                target: u32,
                recv: slice_mut!($memory $a T),
                source: u32,
            ) -> Result<$output> {
                self.submit_send_recv(Message::pair((send, target), (recv, source)))
            }
        }
    };
}

collectives!(host [] Communicator, ['call], 'call, [] -> ());
collectives!(device ['comm] OnStream<'comm>, ['call], 'call, [] -> ());
collectives!(host ['scope] Scope<'scope, '_>, [], 'scope, [] -> Request<'scope>);
collectives!(host ['group] Member<'_, 'group>, [], 'group, [mut] -> ());
collectives!(device ['group] StreamMember<'_, 'group>, [], 'group, [mut] -> ());

impl<'a> Submit<'a> for &Communicator {
    type Output = ();

    #[inline]
    fn world(&self) -> Result<World> {
        Communicator::world(self)
    }

    #[inline]
    fn submit(self, call: Call<'a>) -> Result<()> {
        self.run(&call)
    }

    /// Runs the call where its description lies: it is a hundred bytes, and moving them as soon as they are written
    /// costs as much as the rest of the description.
    #[inline]
    fn submit_typed(self, call: Typed, with: impl FnOnce(Typed, World) -> Result<Call<'a>>) -> Result<()> {
        let (name, world) = (call.name(), Communicator::world(self)?);
        match with(call, world) {
            Ok(ref call) => self.run(call),
            Err(error) => Err(error.during(name).at(world.rank)),
        }
    }

    #[inline]
    fn submit_message(self, message: Message<'a>) -> Result<()> {
        self.message(message)
    }

    fn submit_messages(self, messages: Vec<Message<'a>>) -> Result<()> {
        self.messages(messages)
    }

    #[inline]
    fn submit_send_recv(self, messages: (Option<Message<'a>>, Option<Message<'a>>)) -> Result<()> {
        match messages {
            (Some(sent), Some(received)) => self.send_and_receive(sent, received),
            (sent, received) => self.messages(sent.into_iter().chain(received).collect()),
        }
    }

    fn submit_exchange(self, messages: Vec<Message<'a>>) -> Result<()> {
        self.exchange(messages)
    }
}

/// Messages that are described at run time.
impl Communicator {
    /// Runs a message. Messages between two ranks keep their order: beside requests this one goes behind theirs, as a
    /// request that is waited for.
    #[inline]
    pub(crate) fn message(&self, mut message: Message<'_>) -> Result<()> {
        let beside = |message: &mut Message<'_>| {
            let message = message.reborrow();
            self.scope(|scope| scope.submit_messages(vec![message])?.wait())
        };
        self.with_engine_or(&mut message, Engine::message, beside)
    }

    /// Runs messages side by side; beside requests as [`Communicator::message`] does.
    pub(crate) fn messages(&self, messages: Vec<Message<'_>>) -> Result<()> {
        let beside = |messages: Vec<Message<'_>>| match messages.is_empty() {
            // To and from nobody: what is under way is not waited for.
            true => Ok(()),
            false => self.scope(|scope| scope.submit_messages(messages)?.wait()),
        };
        self.with_engine_or(messages, Engine::messages, beside)
    }

    /// Runs a send and a receive side by side; beside requests as [`Communicator::message`] does.
    #[inline]
    fn send_and_receive(&self, sent: Message<'_>, received: Message<'_>) -> Result<()> {
        let beside = |both: [Message<'_>; 2]| self.scope(|scope| scope.submit_messages(both.into())?.wait());
        self.with_engine_or([sent, received], Engine::send_and_receive, beside)
    }

    /// Runs an `all_to_all_v` that is described as its messages: one to and one from each rank.
    pub(crate) fn exchange(&self, messages: Vec<Message<'_>>) -> Result<()> {
        let beside = |messages| self.scope(|scope| scope.submit_exchange(messages)?.wait());
        self.with_engine_or(messages, Engine::exchange, beside)
    }
}
