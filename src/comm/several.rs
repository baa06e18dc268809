//! Waiting for several requests, of one communicator or of several.

use std::time::Duration;

use crate::comm::request::Pending;
use crate::comm::{CallBuffers, OwnedRequest, PersistentCall, Request};
use crate::error::Result;
use crate::sys::{clock, cpu, futex};

/// What can be waited for together with others: a [`Request`], an [`OwnedRequest`] or a [`PersistentCall`].
pub trait Unfinished: private::HasEnded {}

impl Unfinished for Request<'_> {}
impl<B> Unfinished for OwnedRequest<B> {}
impl<B: CallBuffers> Unfinished for PersistentCall<B> {}

mod private {
    /// What a wait for several requests asks each of them.
    pub trait HasEnded {
        /// Moves it, and says whether it has ended.
        fn has_ended(&self) -> bool;
        /// The program does not go on before it, or another, has ended.
        fn note_wait(&self);
    }
}

impl private::HasEnded for Request<'_> {
    fn has_ended(&self) -> bool {
        self.is_finished()
    }

    fn note_wait(&self) {
        Request::note_wait(self);
    }
}

impl<B> private::HasEnded for OwnedRequest<B> {
    fn has_ended(&self) -> bool {
        self.is_finished()
    }

    fn note_wait(&self) {
        self.pending().note_wait();
    }
}

impl<B: CallBuffers> private::HasEnded for PersistentCall<B> {
    fn has_ended(&self) -> bool {
        self.is_finished()
    }

    fn note_wait(&self) {
        self.pending().into_iter().for_each(Pending::note_wait);
    }
}

/// Waits until one of `requests` has ended, and says which: its `wait` tells how. `None` where there is none. All of
/// them go on meanwhile, also those of several communicators; their time-outs bound the wait.
///
/// # Examples
/// ```
/// use rsccl::comm::wait_any;
///
/// rsccl::local::run(3, |comm| {
///     if comm.rank() != 0 {
///         return comm.send(&[comm.rank()], 0);
///     }
///     let receive = |peer| comm.start([0u32], move |calls, word| calls.recv(word, peer));
///     let (mut requests, mut sum) = (vec![receive(1)?, receive(2)?], 0);
///     // In the order in which they come.
///     while let Some(ended) = wait_any(&requests) {
///         sum += requests.swap_remove(ended).wait()?[0];
///     }
///     assert_eq!(sum, 3);
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn wait_any<R: Unfinished>(requests: &[R]) -> Option<usize> {
    wait_some(requests).first().copied()
}

/// Waits until some of `requests` have ended, and says which; none where there is none.
pub fn wait_some<R: Unfinished>(requests: &[R]) -> Vec<usize> {
    requests.iter().for_each(|request| request.note_wait());
    let began = clock::now();
    loop {
        let ended: Vec<usize> = (0..requests.len()).filter(|place| requests[*place].has_ended()).collect();
        if !ended.is_empty() || requests.is_empty() {
            return ended;
        }
        let waited = clock::now().saturating_duration_since(began);
        if waited < AWAKE { cpu::yield_now() } else { futex::nap((waited / NAP_SHARE).min(LONGEST_NAP)) }
    }
}

/// Whether all of `requests` have ended, well or not. Moves them, and never waits.
pub fn test_all<R: Unfinished>(requests: &[R]) -> bool {
    // All of them are moved, also behind one that has not ended.
    requests.iter().filter(|request| !request.has_ended()).count() == 0
}

/// Waits for all requests of a scope.
///
/// # Errors
/// That of the first, in their order, that has ended badly.
pub fn wait_all<'scope>(requests: impl IntoIterator<Item = Request<'scope>>) -> Result<()> {
    // Each is waited for, whatever came of those before it.
    requests.into_iter().map(Request::wait).fold(Ok(()), Result::and)
}

/// How long a wait for several requests stays awake.
const AWAKE: Duration = Duration::from_micros(200);
/// A wait sleeps for this part of the time that it has lasted.
const NAP_SHARE: u32 = 8;
const LONGEST_NAP: Duration = Duration::from_millis(1);
