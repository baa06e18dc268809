//! The switches of the network above hosts, as a file or Slurm tells them: what ranks would make of it.

use std::fmt::Write as _;

use rsccl::internals::reach::this_host::{SwitchesTold, switches_of};
use rsccl::{Config, Result};
use serde_json::{Value, json};

/// What is known.
#[derive(Debug)]
pub(crate) struct Above {
    told: SwitchesTold,
}

impl Above {
    /// Reads the file of the configuration, or what Slurm says.
    pub(crate) fn read(config: &Config) -> Result<Above> {
        Ok(Above { told: switches_of(config)? })
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = &String> {
        self.told.file.iter().flat_map(|(_, file)| &file.notes)
    }

    /// The groups, each with its hosts, and where this host stands; nothing where nobody tells.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        if let Some((name, file)) = &self.told.file {
            let _ = writeln!(text, "switches of {name} ({}, {} hosts):", file.form, file.hosts());
            for (depth, group, hosts) in file.tree() {
                let colon = if hosts.is_empty() { "" } else { ": " };
                let _ = writeln!(text, "{:width$}{group}{colon}{hosts}", "", width = 2 * (depth + 1));
            }
        }
        let host = &self.told.host;
        let _ = match (&self.told.file, &self.told.above[..]) {
            (None, []) => Ok(()),
            (Some(_), []) => writeln!(text, "  this host, {host}, is below none of them"),
            (_, own) => {
                let by = if self.told.file.is_some() { "  " } else { "switches of SLURM_TOPOLOGY_ADDR: " };
                writeln!(text, "{by}this host, {host}, is below {}", own.join(", "))
            }
        };
        text
    }

    /// The same for programs; null where nobody tells.
    pub(crate) fn json(&self) -> Value {
        let Some((name, file)) = &self.told.file else {
            return if self.told.above.is_empty() {
                Value::Null
            } else {
                json!({ "host": self.told.host, "above": self.told.above })
            };
        };
        let group =
            |(depth, group, hosts): (usize, &str, String)| json!({ "depth": depth, "name": group, "hosts": hosts });
        let groups: Vec<Value> = file.tree().into_iter().map(group).collect();
        json!({ "file": name, "form": file.form, "groups": groups, "host": self.told.host, "above": self.told.above })
    }
}
