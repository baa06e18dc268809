//! How requests end with their communicator.

use crate::comm::requests::Requests;
use crate::engine::Engine;
use crate::error::Error;

impl Requests {
    /// Lets them end because of `error`, or of the error that was given first, which it returns. `None` while peers are
    /// in the buffers of a collective, or read those of a message: the same thread may be what moves these peers, and
    /// other communicators wait for it. Never waits.
    pub(in crate::comm) fn stop(&mut self, error: Error) -> Option<Error> {
        let is_first = self.end.is_none();
        let error = self.end.get_or_insert(error).duplicate();
        self.announced = None;
        self.return_from_beside();
        let are_out = self.under_way.leave();
        if let Some(running) = &mut self.running {
            let ended = running.resume(Some(error.duplicate()));
            if ended.is_none() && !running.has_ended() {
                return None;
            }
            self.running = None;
            // One that has panicked has taken its engine along.
            self.engine = ended.map(|(mut engine, _)| {
                let _none = engine.exchange_hook(self.waiter.hook.clone());
                engine
            });
        }
        if !are_out && is_first {
            // The others hear of it meanwhile.
            self.session.publish_failure(&error);
        }
        are_out.then_some(error)
    }

    /// Whether the end of the communicator with `error` would wait for news of its cause. Never waits.
    pub(in crate::comm) fn awaits_cause(&self, error: &Error) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.awaits_cause(error))
    }

    /// The engine of requests that were stopped, if it was not lost.
    pub(in crate::comm) fn take_engine(&mut self) -> Option<Box<Engine>> {
        self.return_from_beside();
        self.engine.take()
    }

    /// Tells all requests that `error` has ended the communicator.
    pub(in crate::comm) fn give_up(mut self, error: &Error) {
        let promises = self.under_way.give_up();
        promises.iter().for_each(|told| told.fail(error));
        self.queue.iter().for_each(|queued| queued.promise.set(Err(error.duplicate())));
    }
}
