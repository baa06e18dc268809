//! The environment that the driver reads, once.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use crate::schedule::Conduct;

/// What the environment says.
///
/// | variable | meaning |
/// |---|---|
/// | `VCUDA_MACHINE` | the machine: a ready one by name, or a path; `1` unless set |
/// | `VCUDA_STATE` | the folder that the machine's processes share; unset: this process is alone |
/// | `VCUDA_SEED` | where random choices come from; 0 unless set |
/// | `VCUDA_STUCK_MS` | the machine counts as stuck when nothing has moved for this long; 10,000 unless set |
/// | `VCUDA_DEBUG` | set: every call is printed |
/// | `CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_MAX_CONNECTIONS`, `CUDA_LAUNCH_BLOCKING`, `CUDA_MODULE_LOADING` | as for CUDA |
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) machine: String,
    pub(super) folder: Option<PathBuf>,
    pub(super) visible: Option<String>,
    /// Launches wait until the kernel is done.
    pub(super) launch_blocking: bool,
    /// Functions are loaded with their module, not at their first launch.
    pub(super) eager_loading: bool,
    seed: u64,
    stuck_after: Duration,
    connections: Option<u32>,
}

/// Threads that run blocks and copies: two make races real, more help little on the machines that run tests.
const WORKERS: usize = 2;

impl Settings {
    pub(super) fn read() -> Result<Settings, String> {
        let text = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let number = |name: &str| match text(name) {
            None => Ok(None),
            Some(value) => {
                value.parse::<u64>().map(Some).map_err(|_| format!("{name} must be a number, not {value:?}"))
            }
        };
        let connections = number("CUDA_DEVICE_MAX_CONNECTIONS")?.filter(|count| (1..=32).contains(count));
        Ok(Settings {
            machine: text("VCUDA_MACHINE").unwrap_or_else(|| "1".to_owned()),
            folder: text("VCUDA_STATE").map(PathBuf::from),
            visible: env::var("CUDA_VISIBLE_DEVICES").ok(),
            launch_blocking: text("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0"),
            eager_loading: text("CUDA_MODULE_LOADING").is_some_and(|value| value == "EAGER"),
            seed: number("VCUDA_SEED")?.unwrap_or(0),
            stuck_after: Duration::from_millis(number("VCUDA_STUCK_MS")?.unwrap_or(10_000).max(10)),
            connections: connections.and_then(|count| u32::try_from(count).ok()),
        })
    }

    pub(super) fn conduct(&self, connections: u32) -> Conduct {
        Conduct {
            connections: self.connections.unwrap_or(connections).max(1) as usize,
            seed: self.seed,
            stuck_after: self.stuck_after,
            workers: WORKERS,
        }
    }
}

/// Whether calls are printed.
pub(super) fn debug() -> bool {
    env::var_os("VCUDA_DEBUG").is_some()
}
