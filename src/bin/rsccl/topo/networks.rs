//! The networks of this machine as text and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use rsccl::internals::session::settings;
use rsccl::internals::transport::{KnownNetwork, KnownNic};
use rsccl::{Config, Result};
use serde_json::{Value, json};

/// All of them; `None` of a machine that a file describes, for which nobody can ask libraries.
#[derive(Debug, Default)]
pub(crate) struct Networks(Option<Vec<KnownNetwork>>);

impl Networks {
    /// Those of this machine.
    ///
    /// # Errors
    /// Of the settings.
    pub(crate) fn here(config: &Config) -> Result<Networks> {
        settings::networks_here(config, Path::new("/")).map(|all| Networks(Some(all)))
    }

    /// A line for each NIC, and for each reason why there is no other.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for KnownNetwork { name, nics, noes } in self.0.iter().flatten() {
            for KnownNic { device, by, rate_mbit, node } in nics {
                let rate = rate_mbit.map_or_else(|| "rate unknown".to_owned(), |rate| format!("{rate} Mbit/s"));
                let node = node.map_or_else(|| "NUMA node unknown".to_owned(), |node| format!("NUMA node {node}"));
                let _ = writeln!(text, "network {name}: {device}, {by}, {rate}, {node}"); // a String takes all
            }
            let before = if nics.is_empty() { "none, " } else { "not " };
            for no in noes {
                let _ = writeln!(text, "network {name}: {before}{no}"); // as above
            }
        }
        text
    }

    /// An object for each network; null of a machine that a file describes.
    pub(crate) fn json(&self) -> Value {
        let nic = |nic: &KnownNic| {
            let (device, by, rate, node) = (&nic.device, &nic.by, nic.rate_mbit, nic.node);
            json!({ "device": device, "by": by, "rate_mbit": rate, "numa_node": node })
        };
        let network = |KnownNetwork { name, nics, noes }: &KnownNetwork| {
            let nics: Vec<Value> = nics.iter().map(nic).collect();
            json!({ "name": name, "nics": nics, "noes": noes })
        };
        self.0.as_ref().map_or(Value::Null, |all| all.iter().map(network).collect())
    }
}
