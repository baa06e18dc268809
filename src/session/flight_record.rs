//! The record that a process writes when a call of one of its ranks passes its deadline, or when SIGTERM ends it: what
//! stands on its pages, with the latest collectives of each rank. It is what `rsccl status --record` would have written
//! at that moment.

use std::path::Path;

use crate::error::{Error, Result};
use crate::log;
use crate::session::page_view::{DOCUMENT_VERSION, ProcessView, quoted};
use crate::session::settings::Settings;
use crate::sys::rank_page::{LABELS, OwnPages};
use crate::sys::{clock, host, open, termination, thread};
use crate::types::Rank;

/// Has the record written, if the settings want that, when SIGTERM ends the process. What fails is told in the log: the
/// communicator works without.
pub(crate) fn expect_sigterm(settings: &Settings, rank: Rank) {
    let Some(folder) = settings.record_dir.clone().filter(|_| settings.record_at_sigterm) else { return };
    let work = move || write(&folder, "SIGTERM has ended the process", rank);
    match termination::before_sigterm(work) {
        Ok(true) => {}
        Ok(false) => log::warn!(Init @ rank, "RSCCL_RECORD_SIGTERM: the program handles SIGTERM itself"),
        Err(error) => log::warn!(Init @ rank, "RSCCL_RECORD_SIGTERM: {error}"),
    }
}

/// Writes the record of this process, for `reason`. It takes the place of an earlier one. What fails is told in the
/// log: the call has failed already.
pub(super) fn write(folder: &Path, reason: &str, rank: Rank) {
    match write_to(folder, reason) {
        Ok(path) => log::info!(Init @ rank, "wrote what this process was doing to {path}"),
        Err(error) => log::warn!(Init @ rank, "RSCCL_RECORD_DIR: {error}"),
    }
}

fn write_to(folder: &Path, reason: &str) -> Result<String> {
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
    // Ranks that are threads may write at the same time: the last one is whole.
    let beside = folder.join(format!(".rsccl-{safe}-{process}-{}", thread::number()));
    let named = |error| Error::system(format!("writing {}", path.display()), error);
    std::fs::create_dir_all(folder).map_err(named)?;
    open::write(&beside, document).map_err(named)?;
    std::fs::rename(&beside, &path).map_err(named)?;
    Ok(path.display().to_string())
}
