//! Which of libfabric's providers carries the data, and why the others do not: from plain facts, without a call.
//!
//! libfabric lists native hardware, software that emulates it and shared memory side by side, several times each, and
//! its first entry is the wrong one in most releases. So the order is ours: [`Family`] from top to bottom.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;

use crate::sys::fabric_devices::FabricDevice;
use crate::transport::libfabric::abi::{FI_PROTO_XNET, FI_SOCKADDR_IN6};
use crate::types::Rank;

/// A way to communicate, as libfabric lists it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct OfiEntry {
    pub(super) provider: String,
    /// The NIC's name to this provider.
    pub(super) domain: String,
    /// The NIC's name to the system, where the provider tells it.
    pub(super) device: Option<String>,
    /// Its PCI bus id, where the provider tells it.
    pub(super) pci: Option<String>,
    /// Its rate, where the provider tells it.
    pub(super) rate_mbit: Option<u64>,
    /// Whether the provider says that it has no link.
    pub(super) is_down: bool,
    /// How its addresses are written.
    pub(super) format: u32,
    /// Its IP address, if it has one.
    pub(super) address: Option<IpAddr>,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    /// How many low bits of a tag count.
    pub(super) tag_bits: u32,
    /// What it asks of memory.
    pub(super) memory: i32,
    /// What it asks of the caller beside that.
    pub(super) mode: u64,
    /// Whether messages of one sender arrive in the order in which they were sent.
    pub(super) is_ordered: bool,
    /// Up to so many bytes it copies before a send returns.
    pub(super) inject_bytes: usize,
    pub(super) most_message_bytes: usize,
    /// So many sends, and so many receives, it takes at a time.
    pub(super) requests: [usize; 2],
}

/// What the choice depends on beside the list.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OfiWish<'a> {
    /// `NCCL_NET=libfabric`: TCP by libfabric will do, where there is no better.
    pub(super) is_asked: bool,
    pub(super) devices: &'a [FabricDevice],
    /// The address of the interface at which ranks meet: TCP takes no other, as nothing else tells which addresses
    /// lead to other hosts. Without it any will do that may.
    pub(super) own: Option<IpAddr>,
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct OfiChoice {
    /// Places in the list: one for each NIC of the best provider, the first one first. None where nothing will do.
    pub(super) nics: Vec<usize>,
    /// Why not the others, a sentence each.
    pub(super) noes: Vec<String>,
}

/// The providers that are used, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Cxi,
    Efa,
    Opx,
    Psm3,
    Verbs,
    Tcp,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Cxi => "cxi",
            Family::Efa => "efa",
            Family::Opx => "opx",
            Family::Psm3 => "psm3",
            Family::Verbs => "verbs;ofi_rxm",
            Family::Tcp => "tcp",
        })
    }
}

/// Chooses among the entries.
pub(super) fn choose(entries: &[OfiEntry], wish: OfiWish<'_>) -> OfiChoice {
    let verdicts: Vec<Result<Family, String>> = entries.iter().map(|entry| family(entry, wish)).collect();
    let best = verdicts.iter().flatten().min().copied();
    let mut choice = OfiChoice::default();
    // First: other ranks are told the beginning of all this, and a user can do something about it.
    for device in wish.devices.iter().filter(|device| device.missing.is_some()) {
        device.refusal().into_iter().for_each(|why| choice.refuse(why));
    }
    for (place, (entry, verdict)) in entries.iter().zip(&verdicts).enumerate() {
        match verdict {
            Ok(family) if Some(*family) == best => choice.take(entries, place, wish.own),
            Ok(family) => {
                let better = best.map_or_else(String::new, |best| best.to_string());
                choice.refuse(format!("{family}: {better} is there, which comes first"));
            }
            Err(why) => choice.refuse(format!("{}: {why}", entry.provider)),
        }
    }
    if entries.is_empty() {
        choice.refuse(
            "it lists no provider that does what is needed, in what FI_PROVIDER leaves of it if that is set".to_owned(),
        );
    }
    choice
}

impl OfiChoice {
    /// The place of the NIC for a rank on this NUMA node, where it is on one. `nodes` has those of the NICs, in their
    /// order. Ranks to which several NICs are equally near take turns, by their number.
    pub(super) fn nearest(&self, (me, node): (Rank, Option<u32>), nodes: &[Option<u32>]) -> Option<usize> {
        let near: Vec<usize> =
            (0..self.nics.len()).filter(|nic| node.is_some() && nodes.get(*nic) == Some(&node)).collect();
        let all: Vec<usize> = if near.is_empty() { (0..self.nics.len()).collect() } else { near };
        let turn = me.index().checked_rem(all.len())?;
        self.nics.get(all[turn]).copied()
    }

    /// Adds an entry, unless its NIC is there already by another address: the same one is listed for each protocol and
    /// each of its addresses.
    fn take(&mut self, entries: &[OfiEntry], place: usize, own: Option<IpAddr>) {
        let new = &entries[place];
        let same = |known: &&mut usize| {
            let known = &entries[**known];
            (&known.provider, &known.domain) == (&new.provider, &new.domain)
        };
        let Some(known) = self.nics.iter_mut().find(same) else { return self.nics.push(place) };
        let worth = |entry: &OfiEntry| (own.is_some() && entry.address == own, entry.format != FI_SOCKADDR_IN6);
        if worth(new) > worth(&entries[*known]) {
            *known = place;
        }
    }

    fn refuse(&mut self, why: String) {
        if !self.noes.contains(&why) {
            self.noes.push(why);
        }
    }
}

/// Which family an entry is of, or why it is not used.
fn family(entry: &OfiEntry, wish: OfiWish<'_>) -> Result<Family, String> {
    let found = match &*entry.provider {
        "cxi" => Family::Cxi,
        "efa" => Family::Efa,
        "opx" => Family::Opx,
        "psm3" if is_on_own_hardware(entry, wish.devices) => Family::Psm3,
        "psm3" => {
            return Err("it is used on its own hardware (drivers irdma and hfi1) only, here it would go over sockets"
                .to_owned());
        }
        "verbs;ofi_rxm" => Family::Verbs,
        "tcp" | "net" if entry.protocol == FI_PROTO_XNET => native_tcp(entry, wish)?,
        "tcp;ofi_rxm" | "net;ofi_rxm" => {
            return Err("messages over TCP twice; native TCP is used (tcp, or net in release 1.17)".to_owned());
        }
        "udp;ofi_rxd" => return Err("datagrams by software: slower than TCP".to_owned()),
        "sockets" => return Err("it is superseded by tcp, and no longer maintained".to_owned()),
        "shm" | "sm2" => return Err("shared memory leads to no other host".to_owned()),
        _ => return Err("rsccl does not use this provider".to_owned()),
    };
    if entry.is_down {
        return Err(format!("{} has no link", entry.domain));
    }
    let device = entry.known(wish.devices).filter(|_| !wish.is_asked);
    if let Some(why) = device.and_then(FabricDevice::refusal) {
        return Err(format!("{why}, so it is used only where NCCL_NET=libfabric asks for it"));
    }
    if entry.tag_bits < LEAST_TAG_BITS {
        return Err(format!("its tags have {} bits, and {LEAST_TAG_BITS} are needed", entry.tag_bits));
    }
    Ok(found)
}

impl OfiEntry {
    /// Whether a tag has room for 32 bits of a random number.
    pub(super) fn has_wide_tags(&self) -> bool {
        self.tag_bits >= WIDE_TAG_BITS
    }

    /// The device that the system shows of it, where it is one of `devices`.
    pub(super) fn known<'a>(&self, devices: &'a [FabricDevice]) -> Option<&'a FabricDevice> {
        let names = [self.device.as_ref(), Some(&self.domain)];
        names.into_iter().flatten().find_map(|name| devices.iter().find(|device| device.name == *name))
    }
}

/// Whether psm3 has the hardware that it was made for under it, and does not go over sockets.
fn is_on_own_hardware(entry: &OfiEntry, devices: &[FabricDevice]) -> bool {
    entry.known(devices).is_some_and(|device| matches!(&*device.driver, "irdma" | "hfi1"))
}

fn native_tcp(entry: &OfiEntry, wish: OfiWish<'_>) -> Result<Family, String> {
    if !wish.is_asked {
        return Err("TCP by libfabric is used where NCCL_NET=libfabric asks for it".to_owned());
    }
    let Some(address) = entry.address else { return Err(format!("{} has no IP address", entry.domain)) };
    if let Some(own) = wish.own {
        return if address == own {
            Ok(Family::Tcp)
        } else {
            Err(format!("{address} of {} is not {own}, at which ranks meet", entry.domain))
        };
    }
    let is_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    match (address.is_loopback(), is_local) {
        (true, _) => Err(format!("{} leads to no other host", entry.domain)),
        (_, true) => Err(format!("{address} of {} counts on one link only", entry.domain)),
        (false, false) => Ok(Family::Tcp),
    }
}

/// So many bits of a tag are needed: what cxi has in the shorter of its two protocols.
pub(super) const LEAST_TAG_BITS: u32 = 40;
/// So many are used where they are there: native TCP of all releases, and most others.
pub(super) const WIDE_TAG_BITS: u32 = 49;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::transport::libfabric::abi::FI_SOCKADDR_IN;

    fn entry(provider: &str, domain: &str, address: Option<&str>) -> OfiEntry {
        let address: Option<IpAddr> = address.map(|text| text.parse().unwrap());
        let format = match address {
            Some(IpAddr::V4(_)) => FI_SOCKADDR_IN,
            Some(IpAddr::V6(_)) => FI_SOCKADDR_IN6,
            None => 0,
        };
        let protocol = if matches!(provider, "tcp" | "net") { FI_PROTO_XNET } else { 11 };
        let (provider, domain) = (provider.to_owned(), domain.to_owned());
        OfiEntry { provider, domain, format, address, protocol, tag_bits: 64, ..OfiEntry::default() }
    }

    fn device(name: &str, driver: &str) -> FabricDevice {
        FabricDevice { name: name.to_owned(), driver: driver.to_owned(), ..FabricDevice::default() }
    }

    /// What Debian's 1.17 lists, in its order.
    fn debian() -> Vec<OfiEntry> {
        let addresses = [("eth0", "192.0.2.1"), ("eth0", "fe80::1"), ("lo", "127.0.0.1")];
        let all = ["tcp;ofi_rxm", "tcp;ofi_rxm", "net", "net;ofi_rxm", "udp;ofi_rxd", "sockets"];
        let mut list: Vec<OfiEntry> = all
            .iter()
            .flat_map(|provider| addresses.map(|(domain, address)| entry(provider, domain, Some(address))))
            .collect();
        list.insert(15, entry("shm", "shm", None));
        list
    }

    fn names<'a>(entries: &'a [OfiEntry], choice: &OfiChoice) -> Vec<(&'a str, &'a str)> {
        choice.nics.iter().map(|place| (&*entries[*place].provider, &*entries[*place].domain)).collect()
    }

    #[test]
    fn of_what_debian_lists_native_tcp_is_taken_where_it_is_asked_for() {
        let list = debian();
        let asked = OfiWish { is_asked: true, ..OfiWish::default() };
        let choice = choose(&list, asked);
        assert_eq!(names(&list, &choice), [("net", "eth0")]);
        assert_eq!(list[choice.nics[0]].address, Some("192.0.2.1".parse().unwrap()));
        let noes = choice.noes.join("\n");
        for no in [
            "tcp;ofi_rxm: messages over TCP twice",
            "net;ofi_rxm: messages over TCP twice",
            "udp;ofi_rxd: datagrams by software",
            "sockets: it is superseded",
            "shm: shared memory leads to no other host",
            "net: lo leads to no other host",
            "net: fe80::1 of eth0 counts on one link only",
        ] {
            assert!(noes.contains(no), "{no}\n{noes}");
        }
        assert_eq!(choice.noes.len(), 7, "each once: {noes}");
        let unasked = choose(&list, OfiWish::default());
        assert!(unasked.nics.is_empty());
        assert!(
            unasked.noes.contains(&"net: TCP by libfabric is used where NCCL_NET=libfabric asks for it".to_owned())
        );
    }

    #[test]
    fn the_best_provider_there_is_taken_with_all_its_nics_once_each() {
        let order = ["cxi", "efa", "opx", "psm3", "verbs;ofi_rxm", "tcp"];
        let devices = [device("d0", "irdma")];
        let wish = OfiWish { is_asked: true, devices: &devices, ..OfiWish::default() };
        for from in 0..order.len() {
            // The worst one first, and each NIC twice.
            let list: Vec<OfiEntry> = order[from..]
                .iter()
                .rev()
                .flat_map(|provider| ["d0", "d0", "d1"].map(|domain| entry(provider, domain, Some("192.0.2.7"))))
                .collect();
            let choice = choose(&list, wish);
            let expected = if order[from] == "psm3" { vec!["d0"] } else { vec!["d0", "d1"] };
            let expected: Vec<_> = expected.into_iter().map(|domain| (order[from], domain)).collect();
            assert_eq!(names(&list, &choice), expected);
            for worse in order[from + 1..].iter() {
                let no = format!("{worse}: {} is there, which comes first", order[from]);
                assert!(choice.noes.contains(&no), "{no}: {:?}", choice.noes);
            }
        }
    }

    #[test]
    fn psm3_counts_on_its_own_hardware_only() {
        let list = [entry("psm3", "mlx5_0", None), entry("psm3", "eth0", Some("192.0.2.1"))];
        let devices = [device("mlx5_0", "mlx5_core")];
        let choice = choose(&list, OfiWish { is_asked: true, devices: &devices, ..OfiWish::default() });
        assert!(choice.nics.is_empty());
        let no = "psm3: it is used on its own hardware (drivers irdma and hfi1) only, here it would go over sockets";
        assert_eq!(choice.noes, [no]);
        let named = OfiEntry { device: Some("irdma1".to_owned()), ..entry("psm3", "psm3", None) };
        let devices = [device("irdma1", "irdma")];
        assert_eq!(choose(&[named], OfiWish { devices: &devices, ..OfiWish::default() }).nics, [0]);
    }

    #[test]
    fn tcp_takes_the_interface_at_which_ranks_meet_and_no_other() {
        let list = [
            entry("tcp", "eth0", Some("192.0.2.1")),
            entry("tcp", "eth1", Some("fd00::2")),
            entry("tcp", "eth1", Some("198.51.100.1")),
            entry("tcp", "lo", Some("127.0.0.1")),
        ];
        let of = |own: Option<&str>| {
            let own = own.map(|text| text.parse().unwrap());
            choose(&list, OfiWish { is_asked: true, own, ..OfiWish::default() }).nics
        };
        assert_eq!(of(None), [0, 2], "IPv4 before IPv6");
        assert_eq!(of(Some("198.51.100.1")), [2]);
        assert_eq!(of(Some("fd00::2")), [1]);
        assert_eq!(of(Some("127.0.0.1")), [3], "ranks that meet at the loopback interface are on one host");
    }

    /// All hosts with containers have this address, and each of them reaches itself by it.
    #[test]
    fn tcp_takes_no_bridge_of_containers_where_ranks_meet_elsewhere() {
        let list = [entry("net", "docker0", Some("172.17.0.1")), entry("net", "virbr0", Some("192.168.122.1"))];
        let own = Some("192.0.2.9".parse().unwrap());
        let choice = choose(&list, OfiWish { is_asked: true, own, ..OfiWish::default() });
        assert_eq!(choice.nics, [0; 0]);
        assert_eq!(
            choice.noes,
            [
                "net: 172.17.0.1 of docker0 is not 192.0.2.9, at which ranks meet",
                "net: 192.168.122.1 of virbr0 is not 192.0.2.9, at which ranks meet"
            ]
        );
    }

    #[test]
    fn each_other_no_has_its_sentence() {
        let noes = |list: &[OfiEntry], wish: OfiWish<'_>| choose(list, wish).noes;
        let asked = OfiWish { is_asked: true, ..OfiWish::default() };
        let short = OfiEntry { tag_bits: 32, ..entry("cxi", "cxi0", None) };
        assert_eq!(noes(&[short], asked), ["cxi: its tags have 32 bits, and 40 are needed"]);
        assert_eq!(noes(&[entry("ucx", "mlx5_0", None)], asked), ["ucx: rsccl does not use this provider"]);
        assert_eq!(noes(&[entry("sm2", "sm2", None)], asked), ["sm2: shared memory leads to no other host"]);
        let older = OfiEntry { protocol: 11, ..entry("tcp", "eth0", Some("192.0.2.1")) };
        assert_eq!(noes(&[older], asked), ["tcp: rsccl does not use this provider"], "of another protocol");
        assert_eq!(noes(&[entry("tcp", "ib0", None)], asked), ["tcp: ib0 has no IP address"]);
        let nothing = "it lists no provider that does what is needed, in what FI_PROVIDER leaves of it if that is set";
        assert_eq!(noes(&[], asked), [nothing]);
    }

    #[test]
    fn a_missing_device_file_comes_before_all_other_noes() {
        let missing = Some("/dev/infiniband/uverbs0".to_owned());
        let devices = [FabricDevice { missing, ..device("mlx5_0", "mlx5_core") }];
        let choice = choose(&debian(), OfiWish { devices: &devices, ..OfiWish::default() });
        assert!(choice.noes.len() > 6 && choice.noes[0].contains("/dev/infiniband/uverbs0"), "{:?}", choice.noes);
    }

    #[test]
    fn without_being_asked_for_only_hardware_with_a_link_will_do() {
        let devices = [
            FabricDevice { rate_mbit: Some(0), ..device("mlx5_0", "mlx5_core") },
            device("rxe0", ""),
            FabricDevice { is_of_verbs: true, ..device("mlx5_1", "mlx5_core") },
            device("hfi1_0", "hfi1"),
        ];
        let wish = OfiWish { devices: &devices, ..OfiWish::default() };
        let down = OfiEntry { is_down: true, ..entry("cxi", "cxi0", None) };
        let list = [
            down,
            entry("verbs;ofi_rxm", "mlx5_0", None),
            entry("verbs;ofi_rxm", "rxe0", None),
            entry("verbs;ofi_rxm", "mlx5_1", None),
            entry("opx", "hfi1_0", None),
            entry("tcp", "eth0", Some("192.0.2.1")),
        ];
        let choice = choose(&list, wish);
        assert_eq!(names(&list, &choice), [("opx", "hfi1_0")]);
        let only = "so it is used only where NCCL_NET=libfabric asks for it";
        let expected = [
            "cxi: cxi0 has no link".to_owned(),
            format!("verbs;ofi_rxm: mlx5_0: its link is down, {only}"),
            format!("verbs;ofi_rxm: rxe0: software makes it, {only}"),
            format!(
                "verbs;ofi_rxm: mlx5_1: it is of InfiniBand or RoCE, whose ports may not reach those of other hosts, \
                 {only}"
            ),
            "tcp: TCP by libfabric is used where NCCL_NET=libfabric asks for it".to_owned(),
        ];
        assert_eq!(choice.noes, expected);
        let asked = choose(&list[1..], OfiWish { is_asked: true, ..wish });
        assert_eq!(names(&list[1..], &asked), [("opx", "hfi1_0")]);
        let asked = choose(&list[1..4], OfiWish { is_asked: true, ..wish });
        assert_eq!(names(&list[1..4], &asked).len(), 3, "whoever asks for it gets software too");
    }

    #[test]
    fn ranks_take_the_nic_of_their_node_and_turns_among_equal_ones() {
        let list: Vec<OfiEntry> = ["cxi0", "cxi1", "cxi2", "cxi3"].map(|name| entry("cxi", name, None)).into();
        let choice = choose(&list, OfiWish::default());
        let nic = |me: u32, node: Option<u32>, nodes: [Option<u32>; 4]| {
            list[choice.nearest((Rank::new(me), node), &nodes).unwrap()].domain.clone()
        };
        let each = [3, 1, 0, 2].map(Some);
        assert_eq!([0, 1, 2, 3].map(|node| nic(0, Some(node), each)), ["cxi2", "cxi1", "cxi3", "cxi0"]);
        let two = [0, 0, 1, 1].map(Some);
        assert_eq!([4, 5, 6].map(|me| nic(me, Some(1), two)), ["cxi2", "cxi3", "cxi2"]);
        assert_eq!([0, 1, 2, 7].map(|me| nic(me, None, two)), ["cxi0", "cxi1", "cxi2", "cxi3"], "a rank of no node");
        assert_eq!(nic(2, Some(9), two), "cxi2", "no NIC is near");
        assert_eq!(nic(1, Some(1), [None; 4]), "cxi1", "nobody tells where NICs are");
        assert_eq!(OfiChoice::default().nearest((Rank::new(0), None), &[]), None);
    }

    #[test]
    fn a_device_whose_file_the_container_lacks_is_named() {
        let missing = Some("/dev/infiniband/uverbs0".to_owned());
        let devices = [FabricDevice { missing, ..device("mlx5_0", "mlx5_core") }, device("mlx5_1", "mlx5_core")];
        let list = [entry("verbs;ofi_rxm", "mlx5_1", None)];
        let choice = choose(&list, OfiWish { devices: &devices, ..OfiWish::default() });
        assert_eq!(choice.nics, [0]);
        assert_eq!(
            choice.noes,
            ["mlx5_0: its device file /dev/infiniband/uverbs0 is not here; a container gets it by \
             --device=/dev/infiniband/uverbs0, or by its device plug-in"]
        );
    }
}
