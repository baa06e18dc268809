//! The thread that looks after launches for which no call waits: deadlines, deaths, mismatches.

use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::device::{DeviceIdentity, Event, StatusPage};
use crate::engine::launches::{self, Launched};
use crate::error::Result;
use crate::reach::proxy::Attention;
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::sync::primitive::{Arc, Condvar, Mutex, MutexGuard};
use crate::sync::{Waiting, Watch};
use crate::sys::{futex, gpus, thread};

/// Watches the launches of one communicator, one after the other, as a call watches that waits. What ends one ends
/// the communicator: the next call, and `async_error`, say why. Dropping it waits until all launches have ended.
#[derive(Debug)]
pub(super) struct Monitor {
    shared: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    session: Arc<Session>,
    status: Arc<StatusPage>,
    state: Mutex<State>,
    /// Something was added while the thread slept for want of launches, or the end was asked for.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    launches: VecDeque<Launch>,
    /// The thread sleeps until something is added.
    is_idle: bool,
    ends: bool,
    /// A launch did not end when it was told to: no more is expected of the others.
    has_given_up: bool,
}

/// A launch under way.
#[derive(Debug)]
struct Launch {
    launched: Launched,
    /// Done when the launch has ended.
    event: Arc<dyn Event>,
    /// Kept until then.
    _attention: Option<Attention>,
}

impl Monitor {
    /// A thread that waits for launches, on processors near `device`: it asks the driver and the device's status page.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where no thread can be started.
    pub(super) fn start(session: Arc<Session>, status: Arc<StatusPage>, device: DeviceIdentity) -> Result<Monitor> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Watched { session, status, state, changed });
        let watched = Arc::clone(&shared);
        let thread = thread::spawn("rsccl monitor", move || {
            gpus::settle_near(device.0);
            watched.run();
        })?;
        Ok(Monitor { shared, thread: Some(thread) })
    }

    /// Watches a launch, which has ended when `event` is done, and keeps `attention` until then. Where [`MOST_LAUNCHES`]
    /// are watched, it waits for the oldest, which ends well or at its deadline.
    ///
    /// # Errors
    /// Those of `turn`, which is one turn of the wait for room; the launch is not watched then.
    pub(super) fn add(
        &self,
        (launched, event): (Launched, Arc<dyn Event>),
        attention: Option<Attention>,
        turn: &mut dyn FnMut(&dyn Waiting) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.shared.state();
        while state.launches.len() >= MOST_LAUNCHES {
            // Not under the lock: the program's hook may take its time, and may make calls on the device.
            drop(state);
            turn(&|| format!("the oldest of {MOST_LAUNCHES} calls on streams to end"))?;
            state = self.shared.state();
        }
        state.launches.push_back(Launch { launched, event, _attention: attention });
        if std::mem::take(&mut state.is_idle) {
            self.shared.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.state().ends = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A monitor that panicked watches nothing any more; there is nobody to tell here.
            let _ended = thread.join();
        }
    }
}

impl Watched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The oldest launch; `None` when there will be none any more. A launch after a pause is given time to end, and the
    /// program time for more of them, before anyone looks: waking this thread costs the call that does it more than all
    /// else that it does.
    fn next(&self) -> Option<(Launched, Arc<dyn Event>)> {
        let mut state = self.state();
        if state.launches.is_empty() && !state.ends {
            state.is_idle = true;
            while state.is_idle && !state.ends {
                state = self.changed.wait(state);
            }
            if !state.ends {
                // `add` wakes a thread that is idle only, so that nothing but the end cuts this rest short.
                state = self.changed.wait_timeout(state, LOOK_EVERY);
            }
        }
        state.launches.front().map(|first| (first.launched.clone(), Arc::clone(&first.event)))
    }

    fn run(&self) {
        while let Some((launched, event)) = self.next() {
            if let Err(error) = self.watch(&launched, &*event) {
                let error = error.during(launched.name()).at(self.session.world.rank);
                self.session.publish_failure(&error);
                // Shown to the device too, whose launches end then.
                self.session.abort.raise(error);
                self.await_end(&*event);
            }
            self.state().launches.pop_front();
        }
    }

    fn watch(&self, launched: &Launched, event: &dyn Event) -> Result<()> {
        let open = || launched.messages();
        let mut watch = FailureWatch::new(&self.session, launched.waiting_for(&open));
        let mut turn = || {
            watch.look(&launches::its_launch)?;
            futex::nap(LOOK_EVERY);
            Ok(())
        };
        while !event.is_done()? {
            turn()?;
        }
        launches::fault(&self.status, &self.session, &mut turn)
    }

    /// Waits for a launch that has been told to end, and gives up after the first wait that fails.
    fn await_end(&self, event: &dyn Event) {
        let has_given_up = self.state().has_given_up;
        // This thread has no turn of the communicator: the calls that wait have it.
        let nothing = &mut || Ok(());
        let deadline = self.session.settings.timeout.deadline();
        if !has_given_up && launches::await_end((event, Some(&self.status)), deadline, nothing).is_err() {
            // The communicator has its error; a device that does not end its launches, or has failed, ends none of
            // the others.
            self.state().has_given_up = true;
        }
    }
}

/// Launches that one communicator may have under way on streams: more than hide the host's work, far fewer than fill
/// a device's queues.
const MOST_LAUNCHES: usize = 1024;
/// How often a launch is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
