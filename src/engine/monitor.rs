//! What looks after launches for which no call waits: deadlines, deaths, mismatches.
//!
//! A duty of the service thread does it for all communicators, from the first launch on a stream on until the last
//! communicator ends that has had one. It never waits for a launch, only looks at it, so that a launch that does not end
//! holds up no other communicator; and it asks the driver nothing that blocks.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::device::{DeviceIdentity, Event, StatusPage};
use crate::engine::launches::{self, Launched, ToldEnd};
use crate::error::{Error, Result};
use crate::reach::proxy::Attention;
use crate::session::Session;
use crate::session::failure_watch::{FailureWatch, PausedWatch};
use crate::sync::primitive::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, fence};
use crate::sync::service_thread::{self, Served, ServiceDuty, ServiceSeat};
use crate::sync::{Chime, Deadline, Ending, Waiting, Watch};
use crate::sys::fork::PerProcess;
use crate::sys::{clock, gpus};

/// Watches the launches of one communicator, one after the other, as a call watches that waits. What ends one ends
/// the communicator: the next call, and `async_error`, say why. Dropping it waits until all launches have ended.
#[derive(Debug)]
pub(super) struct Monitor {
    shared: Arc<Watched>,
    service: Arc<Service>,
}

#[derive(Debug)]
struct Watched {
    session: Arc<Session>,
    status: Arc<StatusPage>,
    state: Mutex<State>,
    /// Its launches have ended, and the thread has dropped what it had of it.
    ending: Arc<Ending>,
}

#[derive(Debug, Default)]
struct State {
    launches: VecDeque<Launch>,
    /// Nothing more is added.
    ends: bool,
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

/// What looks after all monitors of this process, while there are any.
static SERVICE: PerProcess<Mutex<Option<Running>>> = PerProcess::new();

#[derive(Debug)]
struct Running {
    service: Arc<Service>,
    seat: ServiceSeat,
    monitors: usize,
}

/// What the thread is told by.
#[derive(Debug)]
struct Service {
    told: Mutex<Told>,
    chime: Arc<Chime>,
    /// Nothing is looked at until something is added, which then wakes the thread.
    is_idle: AtomicBool,
}

/// What the thread has of it.
#[derive(Debug)]
struct Rounds {
    service: Arc<Service>,
    all: Vec<(Arc<Watched>, Looks)>,
    /// When the next look is due; `None` while nothing is looked at.
    due: Option<Instant>,
    /// Near which the thread is to run, once.
    near: Option<DeviceIdentity>,
}

#[derive(Debug, Default)]
struct Told {
    /// Monitors that the thread does not know yet.
    joining: Vec<Arc<Watched>>,
    /// A monitor ends, and is waited for.
    is_urgent: bool,
    ends: bool,
    /// The thread looks at nothing any more.
    is_lost: bool,
}

/// What the thread knows of a communicator between two looks.
#[derive(Debug, Default)]
struct Looks {
    /// The watch of the oldest launch, once it has begun.
    watch: Option<PausedWatch>,
    /// How long the reason of an abort is waited for.
    patience: Option<Deadline>,
    /// The oldest launch has failed, and was told to end.
    told: Option<ToldEnd>,
    /// A launch did not end when it was told to: no more is expected of the others.
    has_given_up: bool,
}

/// What a look at a communicator has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Launches,
    /// It is to be looked at no more.
    End,
}

impl Monitor {
    /// A monitor, and the thread where there is none: on processors near the `device` of the first, for it asks the
    /// driver and the device's status page.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where no thread can be started.
    pub(super) fn start(session: Arc<Session>, status: Arc<StatusPage>, device: DeviceIdentity) -> Result<Monitor> {
        let mut running = SERVICE.get_or_init(Mutex::default).lock();
        let _lost = running.take_if(|running| running.service.told.lock().is_lost);
        let running = match &mut *running {
            Some(running) => running,
            none => none.insert(Running::start(device)?),
        };
        running.monitors += 1;
        let (state, ending) = (Mutex::default(), Arc::new(Ending::new()));
        let shared = Arc::new(Watched { session, status, state, ending });
        let service = Arc::clone(&running.service);
        service.told.lock().joining.push(Arc::clone(&shared));
        service.wake();
        Ok(Monitor { shared, service })
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
        drop(state);
        self.service.note_work();
        Ok(())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.state().ends = true;
        self.service.told.lock().is_urgent = true;
        self.service.wake();
        self.shared.ending.await_told();
        self.service.leave();
    }
}

impl Running {
    fn start(device: DeviceIdentity) -> Result<Running> {
        let mut made = None;
        let seat = service_thread::enter(|chime| {
            let (told, chime, is_idle) = (Mutex::default(), Arc::clone(chime), AtomicBool::new(false));
            let service = made.insert(Arc::new(Service { told, chime, is_idle }));
            Box::new(Rounds { service: Arc::clone(service), all: Vec::new(), due: None, near: Some(device) })
        })?;
        let service = made.expect("the duty was made");
        Ok(Running { service, seat, monitors: 0 })
    }
}

impl Service {
    /// The thread looks at what it is told.
    fn wake(&self) {
        // Relaxed: published by the chime.
        self.is_idle.store(false, Ordering::Relaxed);
        self.chime.ring();
    }

    /// A launch was added.
    fn note_work(&self) {
        // Partner of the fence in `rest`: the thread sees the launch, or this one that the thread is idle.
        fence(Ordering::SeqCst);
        if self.is_idle.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// A monitor has gone. The last one ends the duty.
    fn leave(self: &Arc<Service>) {
        let Some(running) = SERVICE.get() else { return };
        let mut running = running.lock();
        let is_last = running.as_mut().filter(|running| Arc::ptr_eq(&running.service, self)).is_some_and(|running| {
            running.monitors -= 1;
            running.monitors == 0
        });
        let last = running.take_if(|_| is_last);
        drop(running);
        if let Some(Running { service, seat, .. }) = last {
            service.told.lock().ends = true;
            service.wake();
            drop(seat);
        }
    }
}

impl Drop for Rounds {
    /// Where a defect of ours ends it before its monitors have ended, nobody waits for it.
    fn drop(&mut self) {
        let mut told = self.service.told.lock();
        told.is_lost = true;
        let joining = std::mem::take(&mut told.joining);
        drop(told);
        for watched in self.all.drain(..).map(|(watched, _)| watched).chain(joining) {
            watched.leave_launches();
            watched.ending.tell();
        }
    }
}

impl ServiceDuty for Rounds {
    fn serve(&mut self, _: bool) -> Served {
        if let Some(device) = self.near.take() {
            gpus::settle_near(device.0);
        }
        let mut told = self.service.told.lock();
        let joining = std::mem::take(&mut told.joining);
        let is_urgent = std::mem::take(&mut told.is_urgent) || !joining.is_empty() || told.ends;
        let ends = told.ends;
        drop(told);
        self.all.extend(joining.into_iter().map(|watched| (watched, Looks::default())));
        if !is_urgent && !self.is_due() {
            return Served::Until(self.due);
        }
        let has_launches = self.look();
        if ends && self.all.is_empty() {
            return Served::Over;
        }
        self.rest(has_launches);
        Served::Until(self.due)
    }
}

impl Rounds {
    /// Whether it is time for a look. A launch after a pause is given time to end, and the program time for more of
    /// them, before anyone looks: waking this thread costs the call that does it more than all else that it does.
    fn is_due(&mut self) -> bool {
        let now = clock::now();
        if self.due.is_none() && !self.service.is_idle.load(Ordering::Relaxed) {
            self.due = Some(now + LOOK_EVERY);
        }
        self.due.is_some_and(|due| now >= due)
    }

    /// Looks at all. Whether there are launches.
    fn look(&mut self) -> bool {
        let (mut has_launches, mut over) = (false, Vec::new());
        self.all.retain_mut(|(watched, looks)| {
            let found = catch_unwind(AssertUnwindSafe(|| watched.look(looks))).unwrap_or_else(|panic| {
                watched.session.abort.raise(Error::of_panic("the monitor", &*panic));
                Found::End
            });
            has_launches |= found == Found::Launches;
            if found == Found::End {
                watched.leave_launches();
                over.push(Arc::clone(&watched.ending));
            }
            found != Found::End
        });
        // This thread has dropped what it had of them: whoever has waited is the last to have the session.
        over.iter().for_each(|ending| ending.tell());
        has_launches
    }

    /// When to look next.
    fn rest(&mut self, has_launches: bool) {
        self.due = Some(clock::now() + LOOK_EVERY);
        if !has_launches {
            self.service.is_idle.store(true, Ordering::Relaxed);
            // Partner of the fence in `note_work`.
            fence(Ordering::SeqCst);
            match self.all.iter().any(|(watched, _)| watched.has_work()) {
                true => self.service.is_idle.store(false, Ordering::Relaxed),
                false => self.due = None,
            }
        }
    }
}

impl Watched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn has_work(&self) -> bool {
        let state = self.state();
        state.ends || !state.launches.is_empty()
    }

    /// Looks at the launches that are the oldest, as far as they have ended, and at the next one. Never waits.
    fn look(&self, looks: &mut Looks) -> Found {
        loop {
            let state = self.state();
            let Some(Launch { launched, event, .. }) = state.launches.front() else {
                return if state.ends { Found::End } else { Found::Nothing };
            };
            let (launched, event) = (launched.clone(), Arc::clone(event));
            drop(state);
            if !self.has_ended(looks, &launched, &*event) {
                return Found::Launches;
            }
            *looks = Looks { has_given_up: looks.has_given_up, ..Looks::default() };
            // Dropped without the lock.
            let _over = self.state().launches.pop_front();
        }
    }

    /// Nobody looks at it any more.
    fn leave_launches(&self) {
        let left = std::mem::take(&mut self.state().launches);
        // Without the lock.
        drop(left);
    }

    /// Whether the oldest launch has ended, well or not.
    fn has_ended(&self, looks: &mut Looks, launched: &Launched, event: &dyn Event) -> bool {
        if looks.told.is_none() {
            match self.watch(looks, launched, event) {
                Ok(has_ended) => return has_ended,
                Err(error) => {
                    let error = error.during(launched.name()).at(self.session.world.rank);
                    self.session.publish_failure(&error);
                    // Shown to the device too, whose launches end then.
                    self.session.abort.raise(error);
                    looks.told = Some(ToldEnd::by(self.session.settings.timeout.deadline()));
                }
            }
        }
        let Some(told) = looks.told.as_ref().filter(|_| !looks.has_given_up) else { return true };
        match told.has_come((event, Some(&self.status))) {
            Ok(has_come) => has_come,
            Err(_) => {
                // The communicator has its error; a device that does not end its launches, or has failed, ends none of
                // the others.
                looks.has_given_up = true;
                true
            }
        }
    }

    /// Whether the launch has ended well; one look at whether it still can.
    fn watch(&self, looks: &mut Looks, launched: &Launched, event: &dyn Event) -> Result<bool> {
        let open = || launched.messages();
        // Where it is not paused again it ends here, and tells so.
        let mut watch = FailureWatch::resumed(&self.session, launched.waiting_for(&open), looks.watch.take());
        let is_done = event.is_done()?;
        if is_done && launches::is_well(&self.status, &self.session)? {
            return Ok(true);
        }
        watch.look(&launches::its_launch)?;
        if is_done {
            launches::check_patience(&mut looks.patience)?;
        }
        looks.watch = Some(watch.paused());
        Ok(false)
    }
}

/// Launches that one communicator may have under way on streams: more than hide the host's work, far fewer than fill
/// a device's queues.
const MOST_LAUNCHES: usize = 1024;
/// How often launches are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::config::Config;
    use crate::session::settings::Settings;
    use crate::sync::AbortFlag;

    #[derive(Debug, Default)]
    struct Done(AtomicBool);

    impl Event for Done {
        fn is_done(&self) -> Result<bool> {
            Ok(self.0.load(Ordering::Acquire))
        }
    }

    /// Rank 0 of a world of two, and the other one.
    fn monitors() -> (Monitor, Session, Arc<Session>) {
        let config = Config::default().with_timeout(Duration::from_secs(600));
        let settings = Settings::read(&config).unwrap();
        let session = |rank| Session::new(Box::new(rank), settings.clone(), AbortFlag::new());
        let [mine, theirs] = LocalBootstrap::world(2).unwrap().try_into().unwrap();
        let (mine, theirs) = (Arc::new(session(mine)), session(theirs));
        let status = Arc::new(StatusPage::new().unwrap());
        (Monitor::start(Arc::clone(&mine), status, DeviceIdentity([0; 16])).unwrap(), theirs, mine)
    }

    fn launch(monitor: &Monitor) -> Arc<Done> {
        let event = Arc::<Done>::default();
        let added = (Launched::Messages(Vec::new()), Arc::clone(&event) as Arc<dyn Event>);
        monitor.add(added, None, &mut |_| panic!("there is room")).unwrap();
        event
    }

    /// Regression: the thread dropped the session after the end of the communicator. This is a sample: the old order was
    /// wrong for a moment.
    #[test]
    fn a_communicator_that_has_ended_is_not_the_thread_s_any_more() {
        for _ in 0..100 {
            let (monitor, _theirs, session) = monitors();
            launch(&monitor).0.store(true, Ordering::Release);
            drop(monitor);
            assert_eq!(Arc::strong_count(&session), 1);
        }
    }

    fn becomes(is_so: impl Fn() -> bool) -> bool {
        let deadline = Deadline::after(Duration::from_secs(60));
        while !is_so() && !deadline.passed(clock::now()) {
            std::thread::yield_now();
        }
        is_so()
    }

    #[test]
    fn one_thread_looks_at_all_communicators_and_a_launch_that_lasts_holds_up_none() {
        let ((first, _one, _), (second, _two, session)) = (monitors(), monitors());
        assert!(Arc::ptr_eq(&first.service, &second.service));
        let lasts = launch(&first);
        for _ in 0..3 {
            let ends = launch(&second);
            ends.0.store(true, Ordering::Release);
            assert!(becomes(|| second.shared.state().launches.is_empty()), "nobody looks at it");
        }
        // It waits for its own launches, and not for the other's.
        drop(second);
        assert!(!session.abort.is_raised() && !first.shared.state().launches.is_empty());
        lasts.0.store(true, Ordering::Release);
        drop(first);
    }

    #[test]
    fn a_communicator_that_fails_is_told_and_the_others_go_on() {
        let ((fails, theirs, session), (goes_on, _other, other)) = (monitors(), monitors());
        let (stuck, ends) = (launch(&fails), launch(&goes_on));
        theirs.publish_failure(&Error::aborted("on purpose"));
        assert!(becomes(|| session.abort.is_raised()), "nobody hears of it");
        assert!(session.abort.check().unwrap_err().message().contains("on purpose"));
        // It is told again and again until it ends.
        assert!(becomes(|| fails.shared.status.is_aborted()));
        assert!(!other.abort.is_raised());
        for event in [ends, stuck] {
            event.0.store(true, Ordering::Release);
        }
        drop((fails, goes_on));
        assert!(!other.abort.is_raised());
    }
}
