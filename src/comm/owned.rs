//! Requests that own their buffers, so that a program can store them: in a struct, in a `Vec`, across iterations of a
//! loop.
//!
//! The buffers move to a place of their own, to which the calls of the request point. That place is freed when both the
//! request and its operation have let go of it, and the request gives the buffers back only after the
//! operation has ended. So a request that is dropped, or forgotten, is safe: its operation goes on in memory that
//! nobody else has.

use std::fmt;
use std::pin::Pin;
use std::ptr::null_mut;
use std::task::{Context, Poll};

use crate::comm::Communicator;
use crate::comm::group::{Calls, Member, check_messages};
use crate::comm::job::Job;
use crate::comm::outcome::{Kept, Promise};
use crate::comm::request::Pending;
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicPtr, Ordering};

/// An operation under way, and its buffers. [`OwnedRequest::wait`] gives them back. Made by [`Communicator::start`].
///
/// Dropping it neither stops the operation nor waits for it: the buffers are freed when the operation has ended.
#[must_use = "wait() gives the buffers back"]
pub struct OwnedRequest<B> {
    place: Arc<OwnedPlace<B>>,
    pending: Pending,
}

impl Communicator {
    /// Begins the calls that `body` adds, on `buffers` that the request owns until they have ended.
    ///
    /// `body` has a [`Member`], as in a [group](crate::group()): one call, or several that run as one. Messages run
    /// side by side with those of other requests; collectives run one after the other, in the order in which they were
    /// started, as all ranks must start them. Blocking calls may stand between a request's start and its wait. Where
    /// `body` returns an error nothing runs, and the buffers are dropped.
    ///
    /// # Errors
    /// That of `body`, and where a send to this rank itself has no recv; every other error of the calls comes with
    /// [`OwnedRequest::wait`].
    ///
    /// # Examples
    /// ```
    /// use rsccl::comm::OwnedRequest;
    /// use rsccl::{Communicator, ReduceOp};
    ///
    /// /// Gradients are summed while the next ones are computed.
    /// struct Trainer {
    ///     ranks: Communicator,
    ///     under_way: Vec<OwnedRequest<Vec<f32>>>,
    /// }
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let mut trainer = Trainer { ranks: comm, under_way: Vec::new() };
    ///     for layer in 0..4 {
    ///         let gradients = vec![layer as f32; 1000];
    ///         let sum = trainer.ranks.start(gradients, |calls, gradients| {
    ///             calls.all_reduce_in_place(gradients, ReduceOp::Sum)
    ///         })?;
    ///         trainer.under_way.push(sum);
    ///     }
    ///     for (layer, sum) in trainer.under_way.drain(..).enumerate() {
    ///         assert_eq!(sum.wait()?[999], 3.0 * layer as f32);
    ///     }
    ///     // Input and output apart: the request owns both.
    ///     let buffers = (vec![trainer.ranks.rank()], vec![0; 3]);
    ///     let gathered = trainer.ranks.start(buffers, |calls, (mine, all)| calls.all_gather(mine, all))?;
    ///     assert_eq!(gathered.wait()?.1, [0, 1, 2]);
    ///     trainer.ranks.finalize()
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn start<B: Send + 'static>(
        &self,
        buffers: B,
        body: impl for<'a> FnOnce(&mut Member<'_, 'a>, &'a mut B) -> Result<()>,
    ) -> Result<OwnedRequest<B>> {
        let world = self.world()?;
        let place = Arc::new(OwnedPlace::new(buffers));
        let mut calls = Calls::default();
        // SAFETY: lent once. The reference goes to `body` alone, which must work with any lifetime of it, so that it
        // can put it nowhere but into `calls`. They are dropped here, or go to the requests together with a
        // promise that keeps the place; once that promise has given its word, nobody follows the pointers of the calls
        // any more.
        let lent = unsafe { place.lend() };
        body(&mut Member::new(Ok(world), &mut calls), lent)?;
        check_messages(&calls.messages, world)?;
        let promise = Promise::keeping(Box::new(Arc::clone(&place)));
        Ok(OwnedRequest { place, pending: self.begin_job(job_of(calls), promise)? })
    }
}

/// The request that runs `calls`, which have been checked.
pub(super) fn job_of(calls: Calls<'static>) -> Job<'static> {
    let Calls { mut messages, steps } = match calls.into_collective() {
        Ok(call) => return Job::Collective(call),
        Err(calls) => calls,
    };
    match (steps.is_empty(), messages.len()) {
        (true, 1) => messages.pop().map_or_else(|| Job::Messages(Vec::new()), Job::Message),
        (true, _) => Job::Messages(messages),
        (false, _) => Job::Group(messages, steps),
    }
}

impl<B> OwnedRequest<B> {
    pub(super) fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Waits until the operation has ended, and gives its buffers back; the communicator's time-out bounds the wait.
    ///
    /// # Errors
    /// The operation's; its buffers are dropped then. A program that needs its input after an error keeps a clone of an
    /// `Arc` of it.
    pub fn wait(self) -> Result<B> {
        self.pending.wait()?;
        // SAFETY: the operation has ended.
        let buffers = unsafe { self.place.take() };
        buffers.map(|buffers| *buffers).ok_or_else(|| Error::internal("a request has lost its buffers"))
    }

    /// Whether the operation has ended, well or not. Moves it, and never waits.
    pub fn is_finished(&self) -> bool {
        self.pending.is_finished()
    }
}

/// A request as the future of its buffers. A task that drops it, or is dropped, leaves the operation alone, as dropping
/// the request does.
impl<B> IntoFuture for OwnedRequest<B> {
    type Output = Result<B>;
    type IntoFuture = OwnedFuture<B>;

    fn into_future(self) -> OwnedFuture<B> {
        OwnedFuture(Some(self))
    }
}

/// The buffers of an [`OwnedRequest`], once its operation has ended. The first poll that finds it under way hands it to
/// a thread of the library, which moves it and wakes the task.
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited"]
pub struct OwnedFuture<B>(Option<OwnedRequest<B>>);

impl<B> Future for OwnedFuture<B> {
    type Output = Result<B>;

    /// # Panics
    /// After it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        let request = self.0.take().expect("a future is not polled after it was ready");
        if request.pending.poll_end(context.waker()) {
            return Poll::Ready(request.wait());
        }
        self.0 = Some(request);
        Poll::Pending
    }
}

impl<B> fmt::Debug for OwnedRequest<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRequest").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}

/// Where the buffers of a request are. Null once they were taken.
pub(super) struct OwnedPlace<B>(AtomicPtr<B>);

impl<B> OwnedPlace<B> {
    /// A place for `buffers`.
    pub(super) fn new(buffers: B) -> OwnedPlace<B> {
        OwnedPlace(AtomicPtr::new(Box::into_raw(Box::new(buffers))))
    }

    /// The buffers, for calls that point to them.
    ///
    /// # Safety
    /// One such reference is in use at a time. Neither the reference nor what was made of it is used after the place
    /// was dropped, or [`OwnedPlace::take`] was called.
    pub(super) unsafe fn lend<'long>(&self) -> &'long mut B {
        // Relaxed: the thread that calls this has made the place, or has got it from that one.
        let place = self.0.load(Ordering::Relaxed);
        // SAFETY: it came from a box, which nobody has taken, and by the caller's promise nobody else has a reference
        // to it.
        unsafe { &mut *place }
    }

    /// Takes the buffers out.
    ///
    /// # Safety
    /// What was lent is used no more, and the caller knows it from who has used it.
    pub(super) unsafe fn take(&self) -> Option<Box<B>> {
        // Relaxed: the caller knows of the end by a lock or by the last reference, and sees by it what was written
        // before.
        let place = self.0.swap(null_mut(), Ordering::Relaxed);
        if place.is_null() {
            return None;
        }
        // SAFETY: it came from a box, and whoever swaps it out is the only one to have it.
        Some(unsafe { Box::from_raw(place) })
    }
}

impl<B> Drop for OwnedPlace<B> {
    fn drop(&mut self) {
        // SAFETY: the last that had the place is gone, so nobody works at the request any more.
        drop(unsafe { self.take() });
    }
}

impl<B> fmt::Debug for OwnedPlace<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnedPlace")
    }
}

impl<B: Send> Kept for Arc<OwnedPlace<B>> {}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::comm::{local, test_all, wait_any, wait_some};
    use crate::config::Config;
    use crate::error::Kind;
    use crate::types::ReduceOp;

    /// A buffer that tells when it is freed.
    struct Told {
        words: Vec<u32>,
        freed: Sender<u32>,
    }

    impl Drop for Told {
        fn drop(&mut self) {
            // The test may have ended by an assertion.
            let _unheard = self.freed.send(self.words[0]);
        }
    }

    #[test]
    fn messages_of_requests_run_side_by_side() {
        local::run(2, |comm| {
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            let ranks = comm;
            // Far more than the slots hold: each send ends only while its peer's recv runs, which both ranks start
            // behind their sends.
            let sent = ranks.start(vec![me; 1 << 20], |calls, buffer| calls.send(buffer, peer))?;
            let received = ranks.start(vec![9; 1 << 20], |calls, buffer| calls.recv(buffer, peer))?;
            assert_eq!(received.wait()?, vec![peer; 1 << 20]);
            assert_eq!(sent.wait()?, vec![me; 1 << 20]);
            ranks.finalize()
        })
        .unwrap();
    }

    #[test]
    fn several_calls_of_a_request_run_as_a_group() {
        local::run(3, |comm| {
            let (me, size) = (comm.rank(), comm.size());
            let ranks = comm;
            let buffers = ([me], [9], [me; 3], [0; 3]);
            let both = ranks.start(buffers, |calls, (mine, own, parts, swapped)| {
                calls.send(mine, me)?;
                calls.all_to_all(parts, swapped)?;
                calls.recv(own, me)
            })?;
            let (_, own, _, swapped) = both.wait()?;
            assert_eq!((own, swapped), ([me], [0, 1, 2]));
            assert_eq!(size, 3);
            ranks.finalize()
        })
        .unwrap();
    }

    /// Runs a future on this thread, which sleeps until it is woken.
    fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
        struct Thread(std::thread::Thread);
        impl std::task::Wake for Thread {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Arc::new(Thread(std::thread::current())).into();
        loop {
            match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// Each rank's task sleeps, so that only the watcher can move what it waits for; one is dropped after a look.
    #[test]
    fn a_task_is_woken_when_its_request_has_ended() {
        let config = Config::default().with_timeout(std::time::Duration::from_secs(30));
        local::run_with(2, &config, |comm| {
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            for count in [1, 300_000] {
                let received = comm.start(vec![9; count], |calls, buffer| calls.recv(buffer, peer))?;
                let sum =
                    comm.start(vec![1; count], |calls, buffer| calls.all_reduce_in_place(buffer, ReduceOp::Sum))?;
                let mut dropped = comm.start(vec![me; count], |calls, buffer| calls.send(buffer, peer))?.into_future();
                let waker = std::task::Waker::noop();
                let _looked = Pin::new(&mut dropped).poll(&mut Context::from_waker(waker));
                drop(dropped);
                assert_eq!(block_on(sum.into_future())?, vec![2; count]);
                assert_eq!(block_on(received.into_future())?, vec![peer; count]);
            }
            comm.finalize()
        })
        .unwrap();
    }

    /// The one that comes first is found first, whatever its place; of two communicators too.
    #[test]
    fn whichever_request_ends_first_is_found() {
        local::run(2, |comm| {
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            let beside = comm.by_color(0, 0)?;
            let receive =
                |comm: &Communicator| comm.start([9], move |calls, word: &mut [u32; 1]| calls.recv(word, peer));
            let mut requests = vec![receive(&comm)?, receive(&comm)?, receive(&beside)?];
            assert!(!test_all(&requests) && wait_some::<OwnedRequest<[u32; 1]>>(&[]).is_empty());
            beside.send(&[me], peer)?;
            assert_eq!(wait_any(&requests), Some(2));
            // The other rank goes on, and sends more, once this one has found it.
            beside.barrier()?;
            assert_eq!(requests.pop().map(OwnedRequest::wait).transpose()?, Some([peer]));
            comm.send(&[me], peer)?;
            assert_eq!(wait_some(&requests), [0]);
            beside.barrier()?;
            comm.send(&[me], peer)?;
            while !test_all(&requests) {
                std::thread::yield_now();
            }
            assert_eq!(wait_some(&requests), [0, 1]);
            requests.into_iter().try_for_each(|request| request.wait().map(drop))?;
            beside.finalize()?;
            comm.finalize()
        })
        .unwrap();
    }

    /// Dropped while the operation runs, the buffers live on until it has ended.
    #[test]
    fn a_request_that_is_dropped_or_forgotten_leaves_its_operation_alone() {
        local::run(2, |comm| {
            let me = comm.rank();
            let ranks = comm;
            let (freed, heard) = channel();
            let told = |word| Told { words: vec![word; 1000], freed: freed.clone() };
            drop(ranks.start(told(me), |calls, told| calls.all_reduce_in_place(&mut told.words, ReduceOp::Sum))?);
            let forgotten =
                ranks.start(told(10), |calls, told| calls.all_reduce_in_place(&mut told.words, ReduceOp::Sum))?;
            std::mem::forget(forgotten);
            let last =
                ranks.start(told(20), |calls, told| calls.all_reduce_in_place(&mut told.words, ReduceOp::Sum))?;
            let last = last.wait()?;
            assert_eq!(last.words, [40; 1000], "collectives run in their order, so those before have ended");
            ranks.finalize()?;
            assert_eq!(
                heard.try_iter().collect::<Vec<_>>(),
                [1],
                "the sum of the dropped one; the forgotten one is never freed"
            );
            drop(last);
            assert_eq!(heard.try_iter().collect::<Vec<_>>(), [40]);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn buffers_are_freed_where_nothing_is_started_and_where_the_communicator_fails() {
        let config = Config::default();
        local::run_with(2, &config, |comm| {
            let me = comm.rank();
            let ranks = comm;
            let (freed, heard) = channel();
            let told = |word| Told { words: vec![word; 4], freed: freed.clone() };
            let refused = ranks.start(told(1), |calls, told| calls.broadcast(&mut told.words, 7)).unwrap_err();
            assert_eq!((refused.kind(), refused.rank()), (Kind::InvalidArgument, Some(me)));
            let refused = ranks.start(told(2), |calls, told| calls.send(&told.words, me)).unwrap_err();
            assert_eq!(refused.kind(), Kind::InvalidUsage, "{refused}");
            assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1, 2]);
            // The ranks disagree about the count.
            let count = 3 + me as usize;
            let failed = ranks
                .start(told(3), |calls, told| calls.all_reduce_in_place(&mut told.words[..count], ReduceOp::Sum))?;
            assert_eq!(failed.wait().map(drop).unwrap_err().kind(), Kind::Mismatch);
            // A request of a communicator that has failed is refused, or ends with its error.
            let after = ranks.start(told(4), |calls, told| calls.broadcast(&mut told.words, 0));
            assert!(after.and_then(|request| request.wait().map(drop)).is_err());
            drop(ranks);
            let mut freed: Vec<u32> = heard.try_iter().collect();
            freed.sort_unstable();
            assert_eq!(freed.len(), 2, "{freed:?}");
            Ok(())
        })
        .unwrap();
    }
}
