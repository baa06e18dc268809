//! The key-value space of a process manager that speaks PMIx (`mpirun` of Open MPI, `srun --mpi=pmix`), by which ranks
//! of several hosts exchange the unique id.
//!
//! One thread of the process makes all calls of PMIx, since a call may last for ever: a fence waits without end for a
//! rank that has left before it. A caller waits for that thread under its own deadline, and leaves it alone when that
//! passes. Rank 0 puts the id, commits and enters a fence; the others enter it and ask for the id until it is there:
//! a fence also succeeds when a rank has died.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::bootstrap::UniqueId;
use crate::bootstrap::pmi::{decode, encode, from_hex, to_hex};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::Arc;
use crate::sync::primitive::{Mutex, statics};
use crate::sync::{Deadline, Wait};
use crate::sys::fork::PerProcess;
use crate::sys::pmix::{PmixClient, PmixLibrary, PmixStatus, c_text};
use crate::sys::{clock, given, poller, thread};
use crate::types::{Rank, World};

/// Why PMIx cannot be used here; `None` if its library is there.
pub(crate) fn why_not() -> Option<String> {
    PmixLibrary::load().err()
}

/// Gives the id that rank 0 has `made`, or the reason why it has none, to all ranks of `world`. All ranks call this,
/// with one key for each communicator; the others pass `None`.
///
/// # Errors
/// The one of `made`, on all ranks; [`Kind::InvalidUsage`] if PMIx numbers the ranks otherwise, or this process was
/// forked by one that uses PMIx; [`Kind::Timeout`] at the deadline of `wait`; [`Kind::System`] if PMIx fails;
/// [`Kind::Mismatch`] if rank 0 was told of another world.
pub(crate) fn share_id(key: &str, (world, made): (World, Option<Result<UniqueId>>), wait: &Wait) -> Result<UniqueId> {
    let mine = made.as_ref().map(|made| to_hex(&encode(world.size, made)));
    let given = exchange(key, (world, mine), wait)?;
    if let Some(made) = made {
        return made;
    }
    decode(&given, world.size).map_err(|error| error.about(Rank::new(0)))
}

fn exchange(key: &str, (world, mine): (World, Option<String>), wait: &Wait) -> Result<Vec<u8>> {
    let inherited =
        |parents: Option<&statics::Mutex<Link>>| statics::Mutex::new(parents.map_or(Link::None, |_| Link::Parents));
    let (answers, answer) = channel();
    let doing = {
        let mut link = LINK.get_or_inherit(inherited).lock();
        if matches!(*link, Link::None) {
            *link = Link::Thread(Clerk::start()?);
        }
        let Link::Thread(clerk) = &*link else {
            return Err(Error::invalid_usage(
                "this process was forked by a rank that is a client of its process manager (PMIx); set RSCCL_STORE, or \
                 MASTER_ADDR and MASTER_PORT",
            ));
        };
        let order = Order::Exchange { key: key.to_owned(), world, mine, wait: Bounds::of(wait), answers };
        if clerk.orders.send(order).is_err() {
            return Err(Error::internal("the thread that speaks PMIx has ended"));
        }
        Arc::clone(&clerk.doing)
    };
    await_answer(&answer, &doing, wait)
}

fn await_answer(answer: &Receiver<Result<Vec<u8>>>, doing: &Mutex<&'static str>, wait: &Wait) -> Result<Vec<u8>> {
    loop {
        match answer.recv_timeout(wait.slice(LOOK)) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::internal("the thread that speaks PMIx has panicked"));
            }
            Err(RecvTimeoutError::Timeout) => wait.check(|| {
                let doing = *doing.lock();
                format!("waited for the process manager (PMIx), which is asked to {doing}; {REMEDY}")
            })?,
        }
    }
}

/// What this process has of PMIx.
#[derive(Debug)]
enum Link {
    None,
    Thread(Clerk),
    /// The process was forked by one that is a client.
    Parents,
}

/// The thread that makes the calls.
#[derive(Debug)]
struct Clerk {
    orders: Sender<Order>,
    /// What it asks PMIx for now.
    doing: Arc<Mutex<&'static str>>,
}

/// What the thread is asked to do.
enum Order {
    Exchange {
        key: String,
        world: World,
        mine: Option<String>,
        wait: Bounds,
        answers: Sender<Result<Vec<u8>>>,
    },
    /// The process ends.
    Finalize(Sender<()>),
}

/// What ends the thread's part of an exchange. The hooks of a wait stay on the caller's thread.
struct Bounds {
    deadline: Deadline,
    abort: crate::sync::AbortFlag,
}

impl Bounds {
    fn of(wait: &Wait) -> Bounds {
        Bounds { deadline: wait.deadline, abort: wait.abort.clone() }
    }

    fn are_over(&self) -> bool {
        self.deadline.passed(clock::now()) || self.abort.check().is_err()
    }
}

impl Clerk {
    fn start() -> Result<Clerk> {
        let (orders, taken) = channel();
        let doing = Arc::new(Mutex::new(IDLE));
        let told = Arc::clone(&doing);
        drop(thread::spawn("rsccl pmix", move || serve(&taken, &told))?);
        // Where there is no room for it, the process manager may say that the rank has left too early.
        let _room = given::at_exit(finalize);
        Ok(Clerk { orders, doing })
    }
}

/// The body of the thread.
fn serve(orders: &Receiver<Order>, doing: &Mutex<&'static str>) {
    let mut client: Option<std::result::Result<PmixClient, String>> = None;
    let mut tries = BTreeMap::new();
    for order in orders {
        match order {
            // It came while a call lasted, and its caller has given up: its fence would pair with one that counts.
            Order::Exchange { wait, answers, .. } if wait.are_over() => {
                drop(answers.send(Err(Error::timeout("the process manager (PMIx) was asked too late"))));
            }
            Order::Exchange { key, world, mine, wait, answers } => {
                let key = key_of_try(&mut tries, key);
                *doing.lock() = "begin (PMIx_Init)";
                let opened = client.get_or_insert_with(|| open().inspect(announce));
                let outcome = match opened {
                    Ok(client) => give_and_take(client, (&key, mine.as_deref()), world, (&wait, doing)),
                    // A library that has failed to begin does not survive a second try.
                    Err(why) => Err(Error::new(Kind::System, why.clone())),
                };
                *doing.lock() = IDLE;
                // The caller may have given up.
                drop(answers.send(outcome));
            }
            Order::Finalize(done) => {
                if let Some(Ok(client)) = client.take() {
                    // Nobody is left to tell.
                    let _failed = client.finalize();
                }
                // The end of the process may wait no longer.
                let _late = done.send(());
                return;
            }
        }
    }
}

/// The key of this try: a value that is put under a key for a second time may be read as it was. All ranks count alike,
/// since each try has a fence.
fn key_of_try(tries: &mut BTreeMap<String, u64>, key: String) -> String {
    let count = tries.entry(key.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { key } else { format!("{key}/{count}") }
}

fn open() -> std::result::Result<PmixClient, String> {
    PmixLibrary::load()?.init().map_err(|status| format!("the process manager (PMIx) refused this process: {status}"))
}

fn announce(client: &PmixClient) {
    log::info!(Bootstrap, "PMIx: rank {} of {}", client.rank(), client.job());
}

fn give_and_take(
    client: &PmixClient,
    (key, mine): (&str, Option<&str>),
    world: World,
    (bounds, doing): (&Bounds, &Mutex<&'static str>),
) -> Result<Vec<u8>> {
    let size = ask(doing, "tell the job's size", || client.job_size())?;
    let (rank, me) = (client.rank(), world.rank.get());
    if rank != me || size.is_some_and(|size| size != world.size) {
        let (job, size) = (client.job(), size.map_or_else(|| "?".to_owned(), |size| size.to_string()));
        return Err(Error::invalid_usage(format!(
            "the process manager (PMIx) knows this process as rank {rank} of {size} of {job}, the launcher's variables \
             as rank {me} of {}: set RSCCL_STORE, or MASTER_ADDR and MASTER_PORT",
            world.size
        )));
    }
    let key = c_text(key).ok_or_else(|| Error::internal("a key of PMIx holds a zero byte"))?;
    if let Some(mine) = mine {
        let text = c_text(mine).ok_or_else(|| Error::internal("a value of PMIx holds a zero byte"))?;
        ask(doing, "take the id", || client.put(&key, &text))?;
    }
    ask(doing, "take what this rank has", || client.commit())?;
    ask(doing, "wait for all ranks (PMIx_Fence)", || client.fence())?;
    loop {
        if let Some(text) = ask(doing, "give the id of rank 0 (PMIx_Get)", || client.get(0, &key))? {
            let wrong = || Error::remote(Rank::new(0), "rank 0 has given the process manager (PMIx) no id");
            return from_hex(&text).ok_or_else(wrong);
        }
        if bounds.are_over() {
            return Err(Error::timeout(format!("the process manager (PMIx) has no id of rank 0; {REMEDY}")));
        }
        poller::pause(RETRY_PAUSE);
    }
}

/// Makes a call of PMIx, by which the process manager is to do `what`.
fn ask<T>(
    doing: &Mutex<&'static str>,
    what: &'static str,
    call: impl FnOnce() -> std::result::Result<T, PmixStatus>,
) -> Result<T> {
    *doing.lock() = what;
    call().map_err(|status| {
        Error::new(Kind::System, format!("the process manager (PMIx) did not {what}: {status}; {REMEDY}"))
    })
}

/// Leaves the process manager, unless the thread is in the middle of a call.
extern "C" fn finalize() {
    let Some(link) = LINK.get() else { return };
    let Some(link) = link.try_lock() else { return };
    if let Link::Thread(clerk) = &*link {
        let (done, ended) = channel();
        if *clerk.doing.lock() != IDLE {
            return;
        }
        if clerk.orders.send(Order::Finalize(done)).is_ok() {
            // Else the process manager says that the rank has left too early.
            let _late = ended.recv_timeout(FINALIZE_LIMIT);
        }
    }
}

/// A forked child has none: its parent goes on with it.
static LINK: PerProcess<statics::Mutex<Link>> = PerProcess::new();

/// What helps where PMIx does not.
const REMEDY: &str = "ranks that cannot use it may have met elsewhere, and ranks that try again must all do so: set \
    RSCCL_STORE, or MASTER_ADDR and MASTER_PORT";
/// What the thread does between two exchanges.
const IDLE: &str = "do nothing";
/// The pause between two looks at the deadline and the abort flag.
const LOOK: Duration = Duration::from_millis(20);
/// The pause between two questions for a value.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long the end of the process waits for the process manager.
const FINALIZE_LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::AbortFlag;

    #[test]
    fn whoever_waits_behind_a_call_that_never_ends_has_its_own_deadline() {
        let (_answers, answer) = channel();
        let doing = Mutex::new("wait for all ranks (PMIx_Fence)");
        let wait = Wait::new(Duration::from_millis(50), &AbortFlag::new());
        let error = await_answer(&answer, &doing, &wait).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
        assert!(error.to_string().contains("is asked to wait for all ranks (PMIx_Fence)"), "{error}");
    }

    #[test]
    fn an_order_whose_caller_has_given_up_is_not_carried_out() {
        let ((orders, taken), (answers, answer)) = (channel(), channel());
        let (world, wait) = (World { rank: Rank::new(0), size: 2 }, Wait::new(Duration::ZERO, &AbortFlag::new()));
        let order = Order::Exchange { key: String::new(), world, mine: None, wait: Bounds::of(&wait), answers };
        orders.send(order).unwrap();
        drop(orders);
        // PMIx would have begun, or failed as the system.
        serve(&taken, &Mutex::new(IDLE));
        assert_eq!(answer.recv().unwrap().unwrap_err().kind(), Kind::Timeout);
    }

    #[test]
    fn no_key_is_put_twice() {
        let mut tries = BTreeMap::new();
        let keys = ["id/0", "id/0", "id/1", "id/0"].map(|key| key_of_try(&mut tries, key.to_owned()));
        assert_eq!(keys, ["id/0", "id/0/2", "id/1", "id/0/3"]);
    }
}
