//! The record that a process writes when a call of one of its ranks passes its deadline, or when SIGTERM ends it: what
//! stands on its pages, with the latest collectives of each rank. It is what `rsccl status --record` would have written
//! at that moment.
//!
//! A disk may be full or slow, and a folder on a network not answer. So the progress thread, which has other
//! communicators to move, writes nothing itself: a thread does that is there while there is something to write. The end
//! of the communicator waits for it, [`SETTLES_WITHIN`] at most, since the process may end behind that.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::log;
use crate::session::page_view::{DOCUMENT_VERSION, ProcessView, quoted};
use crate::session::settings::Settings;
use crate::sync::primitive::{Condvar, Mutex};
use crate::sync::progress_thread;
use crate::sys::fork::PerProcess;
use crate::sys::rank_page::{LABELS, OwnPages};
use crate::sys::{clock, host, open, termination, thread};
use crate::types::Rank;

/// Has the record written, if the settings want that, when SIGTERM ends the process. What fails is told in the log: the
/// communicator works without.
pub(crate) fn expect_sigterm(settings: &Settings, rank: Rank) {
    let Some(folder) = settings.record_dir.clone().filter(|_| settings.record_at_sigterm) else { return };
    let work =
        move || tell(Record::now(&folder, "SIGTERM has ended the process").and_then(|record| record.write()), rank);
    match termination::before_sigterm(work) {
        Ok(true) => {}
        Ok(false) => log::warn!(Init @ rank, "RSCCL_RECORD_SIGTERM: the program handles SIGTERM itself"),
        Err(error) => log::warn!(Init @ rank, "RSCCL_RECORD_SIGTERM: {error}"),
    }
}

/// Writes the record of this process, for `reason`. It takes the place of an earlier one. What fails is told in the
/// log: the call has failed already. On the progress thread it is left to another thread.
pub(super) fn write(folder: &Path, reason: &str, rank: Rank) {
    let record = match Record::now(folder, reason) {
        Ok(record) => record,
        Err(error) => return tell(Err(error), rank),
    };
    if progress_thread::is_here() { leave(record, rank) } else { tell(record.write(), rank) }
}

/// Waits until what the progress thread has left is written, unless that takes long.
pub(super) fn settle() {
    let Some(writer) = WRITER.get().filter(|_| !progress_thread::is_here()) else { return };
    let mut state = writer.state.lock();
    // However many communicators end: all wait for the same one.
    while let Some(left) = state.due.and_then(|due| due.checked_duration_since(clock::now())) {
        state = writer.changed.wait_timeout(state, left);
    }
}

/// What is to be written, and where.
#[derive(Debug)]
struct Record {
    path: PathBuf,
    beside: String,
    document: String,
}

/// The thread that writes what the progress thread leaves to it, while there is something.
#[derive(Debug, Default)]
struct RecordWriter {
    state: Mutex<RecordsLeft>,
    /// Nothing is left.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RecordsLeft {
    /// The latest one, which takes the place of those before it.
    next: Option<(Record, Rank)>,
    is_running: bool,
    /// Until when the ends of communicators wait for what is written now.
    due: Option<Instant>,
}

static WRITER: PerProcess<RecordWriter> = PerProcess::new();

/// How long the end of a communicator waits for its record.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

impl Record {
    /// What this process does now.
    fn now(folder: &Path, reason: &str) -> Result<Record> {
        let pages = OwnPages::find();
        let word = |index: usize| pages.as_ref().map_or(0, |pages| pages.word(index));
        let view = ProcessView::read(&word, clock::monotonic_nanoseconds())
            .map_err(|_| Error::invalid_usage("this process has no pages to record"))?;
        let (host, process) = (host::hostname()?, host::process_id());
        let document = format!(
            "{{\"rsccl_status\":{DOCUMENT_VERSION},\"host\":{},\"reason\":{},\"processes\":[{}]}}\n",
            quoted(&host),
            quoted(reason),
            view.as_json(LABELS)
        );
        let safe: String = host.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
        let path = folder.join(format!("rsccl-{safe}-{process}.json"));
        Ok(Record { path, beside: format!(".rsccl-{safe}-{process}"), document })
    }

    fn write(&self) -> Result<String> {
        let Record { path, document, .. } = self;
        let folder = path.parent().unwrap_or(path);
        // Ranks that are threads may write at the same time: the last one is whole.
        let beside = folder.join(format!("{}-{}", self.beside, thread::number()));
        let named = |error| Error::system(format!("writing {}", path.display()), error);
        std::fs::create_dir_all(folder).map_err(named)?;
        open::write(&beside, document).map_err(named)?;
        std::fs::rename(&beside, path).map_err(named)?;
        Ok(path.display().to_string())
    }
}

fn tell(written: Result<String>, rank: Rank) {
    match written {
        Ok(path) => log::info!(Init @ rank, "wrote what this process was doing to {path}"),
        // On standard error: who has asked for records looks for them after the end, when it is too late.
        Err(error) => {
            let why = format!("RSCCL_RECORD_DIR: what rank {rank} was doing is not recorded: {error}");
            log::tell(&why);
        }
    }
}

/// Leaves a record to the writer.
fn leave(record: Record, rank: Rank) {
    let writer = WRITER.get_or_init(RecordWriter::default);
    let mut state = writer.state.lock();
    state.next = Some((record, rank));
    state.due = Some(clock::now() + SETTLES_WITHIN);
    if std::mem::replace(&mut state.is_running, true) {
        return;
    }
    drop(state);
    // Nobody waits for its end, but for what it writes.
    if let Err(error) = thread::spawn("rsccl record", move || writer.run()) {
        let mut state = writer.state.lock();
        *state = RecordsLeft::default();
        drop(state);
        log::warn!(Init @ rank, "RSCCL_RECORD_DIR: {error}");
    }
}

impl RecordWriter {
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            let Some((record, rank)) = state.next.take() else {
                (state.is_running, state.due) = (false, None);
                return self.changed.notify_all();
            };
            drop(state);
            tell(record.write(), rank);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[cfg(not(miri))]
mod tests {
    use std::fs::OpenOptions;
    use std::process::Command;
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::config::Config;
    use crate::session::Session;
    use crate::session::page::OwnPage;
    use crate::sync::progress_thread::{AfterRound, ProgressDuty};
    use crate::sync::{AbortFlag, Deadline, RestEnds};
    use crate::types::World;

    const LIMIT: Duration = Duration::from_secs(60);
    /// More than threads begin meanwhile.
    const PLACES: u64 = 500;

    /// Fails its communicator, and tells when that has returned.
    #[derive(Debug)]
    struct Fails(Option<Session>, Sender<Session>);

    impl ProgressDuty for Fails {
        fn round(&mut self, _: u64) -> AfterRound {
            if let Some(session) = self.0.take() {
                session.fail(Error::timeout("enough"), &|_| None);
                // The test may have ended by an assertion.
                let _unheard = self.1.send(session);
            }
            AfterRound::Over
        }

        fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool {
            sleep(&ends)
        }
    }

    /// Regression: a call that the progress thread had moved to its deadline held up the requests of all communicators
    /// until the disk had taken the record. Here each file that it may open is a pipe that nobody reads.
    #[test]
    fn a_disk_that_takes_nothing_does_not_hold_up_the_progress_thread() {
        let folder = std::env::temp_dir().join(format!("rsccl-record-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let safe: String = host::hostname()
            .unwrap()
            .chars()
            .map(|letter| if letter.is_alphanumeric() { letter } else { '-' })
            .collect();
        let name = format!("rsccl-{safe}-{}", std::process::id());
        let places = thread::number()..thread::number() + PLACES;
        let pipes: Vec<PathBuf> = places.map(|number| folder.join(format!(".{name}-{number}"))).collect();
        assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
        let config = Config::default().with_record_dir(&folder);
        let settings = Settings::read(&config).unwrap();
        let bootstrap = LocalBootstrap::world(1).unwrap().pop().unwrap();
        let page = OwnPage::of_beginning(World { rank: Rank::new(0), size: 1 }, ("init", 1, 0), "");
        let session = Session::on(page, Box::new(bootstrap), settings, AbortFlag::new());
        let (told, heard) = channel();
        let seat = progress_thread::enter(|_| Box::new(Fails(Some(session), told))).unwrap();
        let session = heard.recv_timeout(LIMIT).expect("the thread waits for the disk");
        drop(seat);
        assert!(WRITER.get().unwrap().state.lock().is_running, "nobody has read");
        // Opened for both ways, so that opening does not wait for a writer either.
        let readers: Vec<_> =
            pipes.iter().map(|pipe| OpenOptions::new().read(true).write(true).open(pipe).unwrap()).collect();
        let deadline = Deadline::after(LIMIT);
        while WRITER.get().unwrap().state.lock().is_running && !deadline.is_over() {
            std::thread::yield_now();
        }
        settle();
        drop((session, readers));
        assert!(folder.join(format!("{name}.json")).exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
