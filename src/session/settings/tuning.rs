//! The file of measured costs that a rank reads, and that all ranks must have alike.

use std::path::{Path, PathBuf};

use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::sync::Wait;
use crate::sys::text_file;
use crate::transport::PeerInfo;
use crate::tune::{Calibration, Costs};
use crate::types::Rank;

/// Measured costs, and whose they are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tuning {
    path: PathBuf,
    calibration: Calibration,
}

impl Tuning {
    /// Reads the file that `config`, which has been resolved, names.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the file cannot be read, and those of [`Calibration::parse`].
    pub(crate) fn read(config: &Config) -> Result<Option<Tuning>> {
        let read = |path: &PathBuf| {
            let text = text_file::read(path, "the tuning file", "RSCCL_TUNE_FILE")?;
            let calibration = Calibration::parse(&path.display().to_string(), &text)?;
            Ok(Tuning { path: path.clone(), calibration })
        };
        config.tune_file.as_ref().map(read).transpose()
    }

    /// What things cost.
    pub(crate) fn costs(of: Option<&Tuning>) -> Costs {
        of.map(|tuning| tuning.calibration.costs).unwrap_or_default()
    }

    /// What tells the constants from others; 0 where there is no file.
    pub(crate) fn hash(of: Option<&Tuning>) -> u64 {
        of.map_or(0, |tuning| tuning.calibration.hash)
    }

    /// Holds all ranks to the same constants. All ranks call it, with what all have told: either all get `Ok`, or all
    /// exchange their files' names and fail.
    ///
    /// # Errors
    /// [`crate::error::Kind::Mismatch`] that names this rank, one that differs, and both files.
    pub(crate) fn agree(
        of: Option<&Tuning>,
        peers: &[PeerInfo],
        (bootstrap, wait): (&dyn Bootstrap, &Wait),
    ) -> Result<()> {
        let me = bootstrap.world().rank;
        if peers.iter().all(|peer| peer.tuning == peers[0].tuning) {
            return Ok(());
        }
        let name = of.map(|tuning| shown(&tuning.path)).unwrap_or_default();
        let names = bootstrap.all_gather(name.as_bytes(), wait)?;
        // Nobody leaves before all have the names, or some would report a death instead.
        bootstrap.barrier(wait)?;
        let mine = &peers[me.index()];
        let Some(other) = peers.iter().find(|peer| peer.tuning != mine.tuning) else {
            return Err(Error::internal("ranks of which some differ, and none from this one"));
        };
        let has = |rank: Rank, hash: u64| match names.get(rank.index()) {
            Some(name) if hash != 0 => {
                let name = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME_BYTES)]).into_owned();
                format!("rank {rank} has the tuning file {name:?} with the hash {hash:016x}")
            }
            _ => format!("rank {rank} has no tuning file"),
        };
        let message = format!(
            "{}, and {}: RSCCL_TUNE_FILE must name a file with the same constants on all ranks",
            has(me, mine.tuning),
            has(other.rank, other.tuning)
        );
        Err(Error::mismatch(message).about(other.rank))
    }
}

fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    crate::wire::cut(&text, MAX_NAME_BYTES).to_owned()
}

/// The longest path of Linux.
const MAX_NAME_BYTES: usize = 4096;
