//! Calls that are described at run time, how they are run, and the buffers that are registered for them.

use crate::comm::{Chosen, Communicator};
use crate::engine::choose::Question;
use crate::error::Result;
use crate::exec::{Call, CallCount, NoBackground, Registrable, wrong_counts};
use crate::types::{Collective, DataType};

impl Communicator {
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
        self.with_engine(|engine| engine.collective(call, &mut NoBackground))
    }

    /// How [`Communicator::run`] does a call of this kind, in the words of `NCCL_ALGO` and `NCCL_PROTO`: the same on
    /// all ranks, and known without a word to the others. `None` where there is nothing to choose: one rank alone,
    /// sends and receives, `all_to_all_v`. A communicator that has run a call on the memory of a device says how it
    /// runs such a call there. With `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING` the log says it of every call.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the filters leave no way to do it, or there are not as many counts
    /// as ranks.
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

    /// Lets the other ranks work in `buffer` during collectives, so that large ones need no copies: a
    /// [`Buffer`](crate::Buffer), a [`SharedPool`](crate::comm::SharedPool), or memory that was
    /// [`Registered`](crate::comm::Registered) where it lies. All have an example. Collective: all ranks register, in
    /// the same order; lengths may differ. A call whose ranks use unregistered buffers works all the same, through
    /// scratch, and so does every call of a communicator over several hosts or of more than 64 ranks, where registering
    /// does nothing. A message of 8 KiB and more out of such memory is copied once, by its receiver, if that one comes
    /// soon or the message is longer than a connection has room for; else twice.
    ///
    /// The memory stays mapped, here and by the other ranks, until [`Communicator::deregister`], or the end of the
    /// communicator. Buffers that all ranks have dropped are given back when they next register or deregister one.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] for more than 1,024 registrations at a time.
    pub fn register(&self, buffer: &impl Registrable) -> Result<()> {
        let known = buffer.known()?;
        self.with_engine(|engine| engine.register(&known, &mut NoBackground).map_err(|error| error.during("register")))
    }

    /// Takes `buffer` back: from now on no call works in it in place, and no rank keeps it mapped. Collective: all
    /// ranks call it, each with its buffer of the same [`Communicator::register`]. Until all have, the memory stays
    /// mapped. A buffer that was not registered changes nothing. What the buffer holds stays.
    ///
    /// # Errors
    /// Those of a collective call.
    pub fn deregister(&self, buffer: &impl Registrable) -> Result<()> {
        let known = buffer.known()?;
        self.with_engine(|engine| {
            engine.deregister(&known, &mut NoBackground).map_err(|error| error.during("deregister"))
        })
    }
}
