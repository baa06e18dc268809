//! Which interfaces of this host carry data, as each rank tells the others.

use std::net::IpAddr;
use std::path::Path;

use crate::bootstrap::{Options, interface};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;
use crate::sync::primitive::{Arc, OnceLock};
use crate::sys::interfaces::{self, Interface};
use crate::topo::rails::{DataNic, MOST_NICS};
use crate::types::Rank;

/// By what the interfaces are found. A communicator finds them once; its children have what it has found.
#[derive(Debug, Clone)]
pub(crate) struct DataInterfaces {
    options: Options,
    /// The interfaces that `RSCCL_RAILS` gives a number.
    numbers: Vec<(String, u32)>,
    found: Arc<OnceLock<Vec<DataNic>>>,
}

impl DataInterfaces {
    /// Reads `config`, which has been resolved; `options` are what the bootstrap has of it.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] that names the variable.
    pub(crate) fn read(config: &Config, options: Options) -> Result<DataInterfaces> {
        let numbers = config.rails.as_deref().map(numbers).transpose()?.unwrap_or_default();
        Ok(DataInterfaces { options, numbers, found: Arc::default() })
    }

    /// The interfaces that carry data of a rank which has met the others on the one with the address `control`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if the system does not tell its interfaces.
    pub(crate) fn nics(&self, control: IpAddr, me: Rank) -> Result<Vec<DataNic>> {
        if control.is_loopback() {
            return Ok(Vec::new());
        }
        if let Some(found) = self.found.get() {
            return Ok(found.clone());
        }
        let all = interfaces::list()?;
        let found = self.of(&all, control, Path::new("/"));
        let shown: Vec<String> = (0..)
            .zip(&found)
            .map(|(place, nic): (usize, &DataNic)| format!("[{place}]{}:{}", nic.name, nic.address))
            .collect();
        log::detail!(Init @ me, "NET/Socket : Using {}", shown.join(" "));
        for Interface { name, address, .. } in interface::without_carrier(&all, &self.options) {
            log::warn!(Init @ me, "NET/Socket : {name} ({address}) is left out: it is down, or has no carrier");
        }
        Ok(self.found.get_or_init(|| found).clone())
    }

    /// Those of a rank on this machine that meets others on the interface that is chosen first.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where no interface is usable.
    pub(crate) fn here(&self) -> Result<Vec<DataNic>> {
        let all = interfaces::list()?;
        let first = interface::choose(&all, &self.options.interfaces, self.options.family, None)?.swap_remove(0);
        Ok(self.of(&all, first.address, Path::new("/")))
    }

    fn of(&self, all: &[Interface], control: IpAddr, root: &Path) -> Vec<DataNic> {
        let nic = |Interface { name, address, netmask, .. }: Interface| {
            let device = interfaces::device(root, &name);
            let rail = self.numbers.iter().find(|(numbered, _)| *numbered == name).map(|(_, number)| *number);
            DataNic { name, address, subnet_bits: bits(netmask), rate_mbit: device.rate_mbit, node: device.node, rail }
        };
        interface::for_data(all, &self.options, control).into_iter().take(MOST_NICS).map(nic).collect()
    }
}

/// How many bits of an address a netmask leaves to the subnet.
fn bits(netmask: IpAddr) -> u8 {
    let bits = match netmask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    u8::try_from(bits).expect("at most 128")
}

/// The numbers of interfaces, written as `eth0=0,eth1=1`.
fn numbers(text: &str) -> Result<Vec<(String, u32)>> {
    let wrong = |why: &str| {
        Error::invalid_argument(format!(
            "the networks of interfaces (RSCCL_RAILS, Config::with_rails) are written as eth0=0,eth1=1, got {text:?}: \
             {why}"
        ))
    };
    let mut numbers: Vec<(String, u32)> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, number) = part.split_once('=').ok_or_else(|| wrong(&format!("{part:?} has no number")))?;
        let number = number.trim().parse().ok().filter(|number| *number <= MOST_RAIL);
        let number = number.ok_or_else(|| wrong(&format!("numbers are 0 to {MOST_RAIL}")))?;
        let name = name.trim();
        if name.is_empty() || numbers.iter().any(|(known, _)| known == name) {
            return Err(wrong(&format!("{name:?} is no name, or stands there twice")));
        }
        numbers.push((name.to_owned(), number));
    }
    Ok(numbers)
}

/// The largest number of a rail: far more than a host has NICs.
const MOST_RAIL: u32 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, host: u8, running: bool) -> Interface {
        let (address, netmask) = ([10, host, 0, 1].into(), [255, 255, 0, 0].into());
        Interface { name: name.to_owned(), address, netmask, scope: 0, running }
    }

    #[test]
    fn interfaces_are_told_with_subnet_rate_node_and_number() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/class/net/eth1");
        std::fs::create_dir_all(device.join("device")).unwrap();
        std::fs::write(device.join("speed"), "100000\n").unwrap();
        std::fs::write(device.join("device/numa_node"), "1\n").unwrap();
        let config = Config::default().with_rails("eth1=7, eth9=3");
        let options = Options { interfaces: "eth".parse().unwrap(), ..Options::default() };
        let settings = DataInterfaces::read(&config, options).unwrap();
        let all = [interface("eth0", 1, true), interface("eth1", 2, true), interface("eth2", 3, false)];
        let found = settings.of(&all, [10, 1, 0, 1].into(), root.path());
        let nic = |name: &str, host: u8| DataNic {
            name: name.to_owned(),
            address: [10, host, 0, 1].into(),
            subnet_bits: 16,
            rate_mbit: None,
            node: None,
            rail: None,
        };
        let wide = DataNic { rate_mbit: Some(100_000), node: Some(1), rail: Some(7), ..nic("eth1", 2) };
        assert_eq!(found, [nic("eth0", 1), wide]);
        let dead: Vec<_> = interface::without_carrier(&all, &settings.options).map(|dead| &*dead.name).collect();
        assert_eq!(dead, ["eth2"]);
    }

    #[test]
    fn numbers_that_are_wrong_are_refused_by_name() {
        for text in ["eth0", "eth0=x", "eth0=-1", "eth0=70000", "=1", "eth0=1,eth0=2"] {
            let error = DataInterfaces::read(&Config::default().with_rails(text), Options::default()).unwrap_err();
            assert!(error.message().contains("RSCCL_RAILS"), "{text}: {error}");
        }
        assert_eq!(numbers(" eth0=0 ,,ib1=12,").unwrap(), [("eth0".to_owned(), 0), ("ib1".to_owned(), 12)]);
    }
}
