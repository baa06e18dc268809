//! Requests in memory of which the caller promises that it outlives them: those of the C++ classes.

#[cfg(any(feature = "cpp", all(test, not(loom))))]
use crate::comm::group::{Steps, check_message, check_messages};
use crate::comm::job::Job;
#[cfg(any(feature = "cpp", all(test, not(loom))))]
use crate::comm::outcome::IfLeft;
use crate::comm::outcome::{Beginner, Outcome, Promise, Promised};
use crate::comm::request::Pending;
#[cfg(any(feature = "cpp", all(test, not(loom))))]
use crate::comm::{Call, Message};
use crate::comm::{Communicator, Home};
use crate::error::Result;
use crate::sync::primitive::Arc;

impl Communicator {
    /// Begins a request on memory that outlives it.
    pub(super) fn begin_job(&self, job: Job<'static>, promise: (Promise, Arc<Outcome>)) -> Result<Pending> {
        let (promise, outcome) = promise;
        self.begin_by(job, &mut Promised::new(promise, &outcome))?;
        Ok(Pending::new(Arc::clone(&self.shared), Some(outcome)))
    }

    fn begin_by(&self, job: Job<'static>, beginner: &mut dyn Beginner) -> Result<()> {
        self.be_ready()?;
        self.shared.begin(job, beginner)
    }

    /// Makes a communicator that threads were making one for requests, if they are through.
    ///
    /// # Errors
    /// Where it is not ready for calls.
    pub(super) fn be_ready(&self) -> Result<()> {
        self.check_process()?;
        let mut home = self.take_turn()?;
        if let Home::Starting(_) | Home::Away(_) = &*home {
            self.settle_start(&mut home);
        }
        match &*home {
            Home::Ready(_) | Home::Busy(_) if self.shared.status.abort.is_raised() => Err(self.fail(&mut home, None)),
            Home::Ready(_) | Home::Busy(_) => Ok(()),
            _ => Err(self.refused(&home)),
        }
    }
}

#[cfg(any(feature = "cpp", all(test, not(loom))))]
impl Communicator {
    fn begin_unowned(&self, job: Job<'static>) -> Result<Pending> {
        let mut beginner = IfLeft::default();
        self.begin_by(job, &mut beginner)?;
        Ok(Pending::new(Arc::clone(&self.shared), beginner.0))
    }

    /// Begins a collective. Collectives run one after the other, in the order in which they were begun, as all ranks
    /// must begin them.
    ///
    /// # Errors
    /// As the call's, where one rank alone can see it; the rest comes with [`Pending::wait`].
    pub(crate) fn begin(&self, call: Call<'static>) -> Result<Pending> {
        call.check(self.world()?).map_err(|error| self.at(error))?;
        self.begin_unowned(Job::Collective(call))
    }

    /// Begins one send or recv; not to or from the own rank.
    ///
    /// # Errors
    /// As [`Communicator::begin`].
    pub(crate) fn begin_message(&self, message: Message<'static>) -> Result<Pending> {
        check_message(&message, self.world()?)?;
        self.begin_unowned(Job::Message(message))
    }

    /// Begins messages that run side by side; those to and from the own rank go in pairs.
    ///
    /// # Errors
    /// As [`Communicator::begin`].
    pub(crate) fn begin_messages(&self, messages: Vec<Message<'static>>) -> Result<Pending> {
        check_messages(&messages, self.world()?)?;
        self.begin_unowned(Job::Messages(messages))
    }

    /// Begins an `all_to_all_v`, described as its messages: one to and one from each rank, in rank order.
    ///
    /// # Errors
    /// As [`Communicator::begin`].
    pub(crate) fn begin_exchange(&self, messages: Vec<Message<'static>>) -> Result<Pending> {
        check_messages(&messages, self.world()?)?;
        let mut steps = Steps::default();
        steps.add_exchange(messages);
        self.begin_unowned(Job::Group(Vec::new(), steps))
    }

    /// Begins what a group holds: messages, which may go to the own rank in pairs, and collectives, of which those that
    /// follow each other travel as one where the group's would.
    ///
    /// # Errors
    /// As [`Communicator::begin`].
    #[cfg(all(test, not(loom)))]
    pub(crate) fn begin_all(&self, messages: Vec<Message<'static>>, calls: Vec<Call<'static>>) -> Result<Pending> {
        let mut steps = Steps::default();
        for call in calls {
            call.check(self.world()?).map_err(|error| self.at(error))?;
            steps.add(call);
        }
        check_messages(&messages, self.world()?)?;
        self.begin_unowned(Job::Group(messages, steps))
    }
}
