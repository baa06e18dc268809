//! Every line of `src` that sleeps, with the reason why it is no turn of a call's wait. A wait of a call drives what its
//! rank owes to others (links, news, background work, the program's hook); a line that sleeps by itself may forget that.

use std::collections::BTreeMap;

use super::text::line_of;

/// What puts a thread to sleep.
const SLEEPS: &[&str] = &[
    "futex::nap(",
    "futex::wait(",
    "FUTEX_WAIT,",
    ".park(",
    "poller::pause(",
    "poller::wait_any(",
    "poller::wait_few(",
    "poller::ready(",
    ".sleep_beside(",
    "oller.wait(",
    "libc::poll(",
    "libc::ppoll(",
    "libc::epoll_wait(",
    "process::wait_ready(",
    ".wait_timeout(",
    "changed.wait(",
    "opened.wait(",
    "has_room.wait(",
    "world.wait(",
    ".await_told(",
    ".recv_timeout(",
    ".recv()",
    "thread::park",
    "thread::sleep(",
    "child.wait(",
];

/// It is the turn of a wait: it looks after links, news, background work and hook, then rests.
const TURN: &str = "a turn";
/// The system call behind the sleeps of others.
const SYSTEM: &str = "how threads sleep";
/// Before the communicator is there: no call waits, and the bootstrap's `Wait` has deadline, abort flag and hook.
const SET_UP: &str = "of a set-up, under its own `Wait`";
/// A thread of ours that carries no call.
const SERVICE: &str = "a thread of its own, which serves and calls nothing";
/// The caller waits for a thread of ours, which takes the turns.
const DRIVEN: &str = "another thread has the engine, and takes the turns";
/// Short and bounded, and nobody depends on this rank meanwhile beyond the bound.
const BRIEF: &str = "bounded by milliseconds or a named patience";

/// Path below `src`, what sleeps there, how often, why it is no turn (or that it is one).
const SLEEPERS: &[(&str, &str, usize, &str)] = &[
    ("bootstrap/acceptor.rs", "oller.wait(", 1, SERVICE),
    ("bootstrap/door/keeper.rs", "oller.wait(", 1, "takes no time: it asks which connections have bytes"),
    ("bootstrap/leash.rs", ".recv_timeout(", 1, BRIEF),
    ("bootstrap/lobby.rs", "oller.wait(", 1, SERVICE),
    ("bootstrap/lobby.rs", "poller::pause(", 5, SET_UP),
    ("bootstrap/lobby.rs", "poller::wait_any(", 1, SET_UP),
    ("bootstrap/local.rs", ".wait_timeout(", 1, "of the bootstrap's calls between threads, under their `Wait`"),
    ("bootstrap/lookup.rs", ".recv_timeout(", 1, BRIEF),
    ("bootstrap/lookup.rs", "poller::pause(", 1, SET_UP),
    (
        "bootstrap/net/control/watching.rs",
        ".sleep_beside(",
        1,
        "of the bootstrap's calls, which move control messages, under their `Wait`",
    ),
    ("bootstrap/net/control/watching.rs", "oller.wait(", 1, "takes no time: it asks which connections have bytes"),
    ("bootstrap/net/control/watching.rs", "poller::wait_any(", 1, "the same sleep, where no descriptor is left"),
    (
        "bootstrap/net/control/watching.rs",
        "poller::wait_few(",
        1,
        "takes no time: it asks which connections have bytes",
    ),
    ("bootstrap/net/join.rs", ".sleep_beside(", 1, SET_UP),
    ("bootstrap/net/join.rs", "oller.wait(", 2, SET_UP),
    ("bootstrap/net/join.rs", "poller::wait_any(", 1, SET_UP),
    ("bootstrap/net/shared.rs", "futex::nap(", 1, "gives a lock to a thread that waits for it"),
    ("bootstrap/pmi.rs", "poller::pause(", 1, SET_UP),
    ("bootstrap/pmix.rs", ".recv_timeout(", 2, SET_UP),
    ("bootstrap/pmix.rs", "poller::pause(", 1, "a thread of its own, which nothing waits for without a deadline"),
    ("bootstrap/probe.rs", "oller.wait(", 2, SET_UP),
    ("bootstrap/reach.rs", "poller::pause(", 2, SET_UP),
    ("bootstrap/serving.rs", "poller::pause(", 1, SET_UP),
    ("bootstrap/store/agent.rs", "poller::pause(", 1, "of a store, under the program's `Wait`"),
    ("bootstrap/store/agent.rs", "poller::wait_any(", 2, "of a store, under the program's `Wait`"),
    ("bootstrap/store/file.rs", "poller::pause(", 1, "of a store, under the program's `Wait`"),
    ("bootstrap/store/hash.rs", ".wait_timeout(", 1, "of a store, under the program's `Wait`"),
    ("bootstrap/store/port_search.rs", "poller::pause(", 1, SET_UP),
    ("bootstrap/store/share.rs", "poller::pause(", 2, "of a store, under the program's `Wait`"),
    ("bootstrap/store/tcp.rs", "oller.wait(", 1, "of a store, under the program's `Wait`"),
    (
        "comm/background_split.rs",
        ".recv()",
        2,
        "another thread has the engine, and takes the turns; that thread, before it has it",
    ),
    (
        "comm/engine_home/driving.rs",
        "futex::nap(",
        3,
        "another thread has the engine, and takes the turns; or peers are on their way out of its buffers",
    ),
    ("comm/meeting.rs", "poller::pause(", 3, SET_UP),
    ("comm/requests.rs", ".park(", 1, TURN),
    ("comm/requests.rs", "futex::nap(", 1, TURN),
    ("comm/several.rs", "futex::nap(", 1, TURN),
    ("comm/stand_in.rs", ".recv_timeout(", 1, SERVICE),
    ("comm/status.rs", "world.wait(", 1, DRIVEN),
    (
        "device/cuda/driver/gate.rs",
        "opened.wait(",
        1,
        "the driver frees memory: no launch may begin, and it waits for no rank",
    ),
    ("device/cuda/memory/legacy.rs", "futex::nap(", 1, BRIEF),
    ("engine/given.rs", "futex::nap(", 1, TURN),
    ("engine/monitor.rs", ".await_told(", 1, "the end of a communicator: its launches end well or at their deadlines"),
    ("engine/launches.rs", "futex::nap(", 1, "a call that has failed waits for its launch: one turn of it before each"),
    (
        "exec/device_buffer.rs",
        "futex::nap(",
        1,
        "waits for devices, of no one call: calls the hooks of all that use the stream",
    ),
    ("exec/drive.rs", ".park(", 3, TURN),
    ("exec/drive.rs", "futex::nap(", 1, TURN),
    (
        "exec/evict.rs",
        "futex::nap(",
        2,
        "after an error: waits until peers are out of this rank's buffers, or shuts them out",
    ),
    (
        "log/spans.rs",
        "futex::wait(",
        2,
        "the writer of a trace; a rank that leaves waits for it, for two seconds at most",
    ),
    ("exec/stream_callers.rs", "futex::nap(", 1, BRIEF),
    ("exec/turn.rs", "futex::nap(", 1, TURN),
    ("mpi/ending.rs", "futex::nap(", 2, "the process ends: what it has printed is to be forwarded"),
    ("over_mpi/waiting.rs", "futex::nap(", 1, "a wait for MPI, which tests under a deadline"),
    ("reach/proxy.rs", ".await_told(", 1, "the communicator ends: the thread hands over what launches have sent"),
    ("session.rs", "futex::nap(", 1, BRIEF),
    ("session/flight_record.rs", ".wait_timeout(", 1, BRIEF),
    ("session/ras.rs", "poller::pause(", 1, SERVICE),
    ("session/ras.rs", "poller::wait_any(", 2, SERVICE),
    ("sync/chime.rs", "poller::ready(", 2, SYSTEM),
    ("sync/rest.rs", ".sleep_beside(", 1, SERVICE),
    ("sync/service_thread.rs", ".recv_timeout(", 1, BRIEF),
    ("sync/service_thread.rs", "futex::nap(", 1, SERVICE),
    (
        "sync/ending.rs",
        "changed.wait(",
        1,
        "for a thread that has something; who may wait for how long, its callers say",
    ),
    ("sync/flag.rs", "futex::wait(", 1, SYSTEM),
    ("sync/lock.rs", ".wait_timeout(", 1, SYSTEM),
    ("sync/seen.rs", ".wait_timeout(", 1, SYSTEM),
    ("sys/kept_thread.rs", ".recv()", 2, "a thread of its own that has no work; its caller, for that of a group"),
    ("sys/futex.rs", "FUTEX_WAIT,", 1, SYSTEM),
    ("sys/futex_model.rs", "changed.wait(", 1, SYSTEM),
    ("sys/poller.rs", "futex::nap(", 1, "in the place of a sleep that the system refuses"),
    ("sys/poller.rs", "libc::epoll_wait(", 1, SYSTEM),
    ("sys/poller.rs", "libc::poll(", 1, SYSTEM),
    ("sys/poller.rs", "libc::ppoll(", 1, SYSTEM),
    ("sys/process.rs", "child.wait(", 1, "of the command's children, which have ended"),
    ("sys/process.rs", "libc::poll(", 1, SYSTEM),
    ("sys/thread.rs", ".recv()", 1, "until all threads of a group are made"),
    ("transport/fabric.rs", "futex::nap(", 1, TURN),
    ("transport/pumps.rs", "futex::nap(", 1, "the rest of a turn of `exec::drive`, or of a parting of milliseconds"),
    ("transport/pumps.rs", "oller.wait(", 1, "takes no time: it asks which sockets have bytes"),
    ("transport/pumps.rs", "poller::wait_any(", 2, "the rest of a turn of `exec::drive`"),
    ("transport/pumps.rs", "poller::wait_few(", 1, "the rest of a turn of `exec::drive`, or takes no time"),
];

/// Finds lines that sleep and are on no list, and entries of the list that have become wrong.
pub(crate) fn check<'a>(files: impl Iterator<Item = (&'a str, &'a str)>, findings: &mut Vec<String>) {
    let mut listed: BTreeMap<(&str, &str), usize> =
        SLEEPERS.iter().map(|(path, what, count, _)| ((*path, *what), *count)).collect();
    for (path, code) in files {
        for what in SLEEPS {
            let lines: Vec<usize> = code.match_indices(what).map(|(offset, _)| line_of(code, offset)).collect();
            let known = path.strip_prefix("src/").and_then(|path| listed.remove(&(path, *what))).unwrap_or(0);
            if lines.len() > known {
                findings.push(format!(
                    "{path}:{lines:?}: {} lines sleep by `{what}`, {known} are known: let them take turns (`exec::drive`), \
                     or say in tests/tidy/sleepers.rs why they need not",
                    lines.len()
                ));
            } else if lines.len() < known {
                findings
                    .push(format!("{path}:1: `{what}` stands there {} times, not {known}: tell SLEEPERS", lines.len()));
            }
        }
    }
    findings.extend(listed.keys().map(|(path, what)| format!("src/{path}:1: no `{what}` is left: tell SLEEPERS")));
}
