//! The port of verbs that this host offers.

use std::ffi::CStr;
use std::net::IpAddr;
use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::Arc;
use crate::sys::fabric_devices;
use crate::transport::net::request_nic::{
    DeviceMemoryAccess, FoundNic, MessageMatching, MessageOrder, NicDescription, NicLibrary, NicList, NicPromises,
    NicSearch, RegistrationNeed, RequestNic,
};
use crate::transport::verbs::device::{PortFacts, VerbsDevice, facts_of};
use crate::transport::verbs::library::VerbsLibrary;
use crate::transport::verbs::nic::VerbsNic;
use crate::transport::verbs::ports::{self, VerbsPort};
use crate::transport::verbs::settings::VerbsSettings;

/// Its line in the table of libraries.
pub(in crate::transport) const LIBRARY: NicLibrary =
    NicLibrary { name: NAME, hardware: None, find, list, looks_first: true };

/// A port that is up.
#[derive(Debug)]
pub(super) struct VerbsFound {
    library: VerbsLibrary,
    port: VerbsPort,
    settings: VerbsSettings,
    interface: IpAddr,
    description: NicDescription,
    promises: NicPromises,
    noes: Vec<String>,
}

/// Finds the best port.
fn find(search: &NicSearch<'_>) -> Result<Arc<dyn FoundNic>> {
    let found = find_in((Path::new("/"), SONAME), search)?;
    for no in &found.noes {
        log::detail!(Net @ search.me, "NET/IB : not {no}");
    }
    Ok(Arc::new(found))
}

/// All ports that will do.
fn list(search: &NicSearch<'_>) -> Result<NicList> {
    let (library, ports::VerbsChoice { ports, mut noes }) = ports_of((Path::new("/"), SONAME), search.verbs)?;
    let mut nics = Vec::new();
    for port in ports {
        match facts_of(library, (&port.device, port.number), search.verbs) {
            Ok(facts) => nics.push(describe(&port, &facts)),
            Err(why) => noes.push(format!("{}:{}: {why}", port.device, port.number)),
        }
    }
    if nics.is_empty() { Err(none_will_do(&noes)) } else { Ok(NicList { nics, noes }) }
}

/// The library, which is loaded where files show ports that may do, and these.
fn ports_of((root, name): (&Path, &CStr), settings: &VerbsSettings) -> Result<(VerbsLibrary, ports::VerbsChoice)> {
    let system = |why: String| Error::new(Kind::System, why);
    if settings.is_disabled {
        return Err(system("NCCL_IB_DISABLE=1 leaves no device".to_owned()));
    }
    let choice = ports::choose(root, &fabric_devices::list(root), settings);
    if choice.ports.is_empty() {
        let none = ["this host has no RDMA device".to_owned()];
        return Err(none_will_do(if choice.noes.is_empty() { &none } else { &choice.noes }));
    }
    let library = VerbsLibrary::load(name).map_err(|why| {
        system(format!(
            "libibverbs cannot be loaded: {why}; install it (Debian: libibverbs1 and ibverbs-providers), or leave \
             NCCL_NET out"
        ))
    })?;
    Ok((library, choice))
}

fn none_will_do(noes: &[String]) -> Error {
    Error::new(Kind::System, format!("no port of InfiniBand or RoCE will do: {}", noes.join("; ")))
}

/// The best port of a host, by the library of this name. `root` is `/`, or a folder that replaces it in tests.
///
/// # Errors
/// [`Kind::System`] where there is no port that will do, or no library.
pub(super) fn find_in((root, name): (&Path, &CStr), search: &NicSearch<'_>) -> Result<VerbsFound> {
    let settings = search.verbs;
    let (library, ports::VerbsChoice { ports, mut noes }) = ports_of((root, name), settings)?;
    let mut chosen: Option<(VerbsPort, PortFacts)> = None;
    for port in ports {
        let name = format!("{}:{}", port.device, port.number);
        match &chosen {
            Some((best, _)) => noes.push(format!("{name}: {}:{} comes first", best.device, best.number)),
            None => match facts_of(library, (&port.device, port.number), settings) {
                Ok(facts) => chosen = Some((port, facts)),
                Err(why) => noes.push(format!("{name}: {why}")),
            },
        }
    }
    let Some((port, facts)) = chosen else { return Err(none_will_do(&noes)) };
    let (description, promises) = (describe(&port, &facts), promises(&facts));
    let (settings, interface) = (settings.clone(), search.interface);
    Ok(VerbsFound { library, port, settings, interface, description, promises, noes })
}

impl FoundNic for VerbsFound {
    fn description(&self) -> &NicDescription {
        &self.description
    }

    fn promises(&self) -> &NicPromises {
        &self.promises
    }

    fn noes(&self) -> &[String] {
        &self.noes
    }

    fn open(&self) -> Result<Box<dyn RequestNic>> {
        let requests = u32::try_from(self.promises.most_sends + self.promises.most_receives).unwrap_or(u32::MAX);
        let port = (&*self.port.device, self.port.number);
        let device = VerbsDevice::open(self.library, port, &self.settings, requests)?;
        Ok(Box::new(VerbsNic::new(device, self.settings.clone(), self.interface, requests)))
    }
}

/// What other ranks and users are told of a port.
fn describe(port: &VerbsPort, facts: &PortFacts) -> NicDescription {
    let PortFacts { is_ethernet, gid, lid, .. } = facts;
    let (provider, protocol) = if *is_ethernet {
        (format!("RoCE, {}", gid.shown()), format!("1, {}", gid.protocol()))
    } else {
        // Ports of two subnets reach each other by routers only, whose LIDs nobody knows here.
        let subnet = gid.gid.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
        (format!("InfiniBand, LID {lid}"), format!("1, InfiniBand, subnet {subnet}"))
    };
    NicDescription {
        network: NAME.to_owned(),
        device: format!("{}:{}", port.device, port.number),
        provider,
        protocol,
        rate_mbit: port.rate_mbit.or(facts.rate_mbit),
        node: port.node,
    }
}

fn promises(facts: &PortFacts) -> NicPromises {
    let requests = (facts.most_completions / 2).min(MOST_REQUESTS) as usize;
    NicPromises {
        order: MessageOrder::Any,
        remote_word_bytes: 0,
        device_memory: DeviceMemoryAccess::None,
        most_message_bytes: facts.most_message_bytes,
        inject_bytes: 0,
        most_sends: requests,
        most_receives: requests,
        registration: RegistrationNeed::All,
        matching: MessageMatching::InOrder,
    }
}

const NAME: &str = "IB";
const SONAME: &CStr = c"libibverbs.so.1";
/// Requests of each way that an endpoint has under way, and so completions that its queue has room for.
const MOST_REQUESTS: u32 = 2048;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::transport::verbs::gids::{GidKind, PortGid};

    /// Two ports understand each other exactly where their protocols are equal.
    #[test]
    fn ports_tell_what_reaches_them_and_how_many_requests_they_take() {
        let port = VerbsPort { device: "mlx5_1".to_owned(), number: 2, rate_mbit: None, node: Some(1) };
        let facts = |is_ethernet, gid: &str, kind| PortFacts {
            number: 2,
            is_ethernet,
            needs_route: is_ethernet,
            gid: PortGid { index: 3, gid: gid.parse::<std::net::Ipv6Addr>().unwrap().octets(), kind },
            lid: 7,
            mtu: 5,
            most_message_bytes: 1 << 30,
            most_completions: 100,
            rate_mbit: Some(100_000),
        };
        for (facts, provider, protocol) in [
            (
                facts(false, "fec0:0:0:5::1", GidKind::InfiniBand),
                "InfiniBand, LID 7",
                "1, InfiniBand, subnet fec0000000000005",
            ),
            (
                facts(true, "::ffff:10.9.0.1", GidKind::RoceV2),
                "RoCE, GID 3 (10.9.0.1, RoCE v2)",
                "1, RoCE v2 over IPv4",
            ),
        ] {
            let NicDescription { network, device, provider: by, protocol: speaks, rate_mbit, node } =
                describe(&port, &facts);
            assert_eq!((&*network, &*device, &*by, &*speaks), ("IB", "mlx5_1:2", provider, protocol));
            assert_eq!((rate_mbit, node), (Some(100_000), Some(1)));
            let promises = promises(&facts);
            assert_eq!((promises.most_sends, promises.most_receives), (50, 50), "all completions fit the queue");
        }
    }
}
