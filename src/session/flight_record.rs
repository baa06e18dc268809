//! The record that a process writes when a call of one of its ranks passes its deadline: what stands on its pages, with
//! the latest collectives of each rank. It is what `rsccl status --record` would have written at that moment.

use std::path::Path;

use crate::error::{Error, Result};
use crate::log;
use crate::session::page_view::{ProcessView, quoted};
use crate::sys::rank_page::{LABELS, RankPage};
use crate::sys::{clock, host, open, thread};
use crate::types::Rank;

/// Writes the record of this process, of which `page` is one of the pages, for `reason`. It takes the place of an
/// earlier one. What fails is told in the log: the call has failed already.
pub(super) fn write(folder: &Path, page: &RankPage, reason: &Error, rank: Rank) {
    match write_to(folder, page, reason) {
        Ok(path) => log::info!(Init @ rank, "wrote what this process was doing to {path}"),
        Err(error) => log::warn!(Init @ rank, "RSCCL_RECORD_DIR: {error}"),
    }
}

fn write_to(folder: &Path, page: &RankPage, reason: &Error) -> Result<String> {
    let word = |index: usize| page.process_word(index);
    let view = ProcessView::read(&word, clock::monotonic_nanoseconds())
        .map_err(|_| Error::invalid_usage("this process has no pages to record"))?;
    let (host, process) = (host::hostname()?, host::process_id());
    let document = format!(
        "{{\"rsccl_status\":1,\"host\":{},\"reason\":{},\"processes\":[{}]}}\n",
        quoted(&host),
        quoted(&reason.to_string()),
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
