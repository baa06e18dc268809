//! The choice of the network interface: the rules of `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`, and NCCL's default
//! order.
//!
//! The choice is a function of a list of interfaces, so tests can describe any machine.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::bootstrap::Options;
use crate::error::{Error, Result};
use crate::sys::interfaces::Interface;

/// The most interfaces that are used, and the most names in a rule.
pub const MAX_INTERFACES: usize = 16;

/// The longest interface name (the kernel's `IFNAMSIZ - 1`).
const MAX_NAME_BYTES: usize = 15;

/// Which addresses may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressFamily {
    /// IPv4 and IPv6.
    #[default]
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl AddressFamily {
    /// Whether `ip` is of this family.
    pub fn allows(self, ip: IpAddr) -> bool {
        match self {
            AddressFamily::Any => true,
            AddressFamily::V4 => ip.is_ipv4(),
            AddressFamily::V6 => ip.is_ipv6(),
        }
    }
}

impl std::fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AddressFamily::Any => "any",
            AddressFamily::V4 => "AF_INET",
            AddressFamily::V6 => "AF_INET6",
        })
    }
}

impl FromStr for AddressFamily {
    type Err = Error;

    fn from_str(text: &str) -> Result<AddressFamily> {
        match text {
            "" => Ok(AddressFamily::Any),
            "AF_INET" => Ok(AddressFamily::V4),
            "AF_INET6" => Ok(AddressFamily::V6),
            _ => Err(Error::invalid_argument(format!(
                "unknown address family '{}' (AF_INET or AF_INET6)",
                text.escape_default()
            ))),
        }
    }
}

/// The value of `NCCL_SOCKET_IFNAME`. The default has no rules.
///
/// A list of names separated by commas. Each is a prefix; after a leading `=` each is a whole name; after a leading `^`
/// (which comes before a `=`) the named interfaces are excluded. A number after a colon (`eth0:1`) does not count, as
/// in NCCL, which has it for InfiniBand's ports; but an interface whose own name has such a number is preferred.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    names: Vec<String>,
    exact: bool,
    exclude: bool,
}

impl FromStr for Rules {
    type Err = Error;

    fn from_str(text: &str) -> Result<Rules> {
        // No name has a blank, and "eth0, eth1" is easily written.
        let text = text.trim();
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.trim_start().strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names = rest.split(',').map(str::trim).filter(|name| !name.is_empty());
        let names: Vec<_> = names.map(str::to_owned).collect();
        let shown: String = text.chars().take(64).flat_map(char::escape_default).collect();
        if names.len() > MAX_INTERFACES {
            let count = names.len();
            return Err(Error::invalid_argument(format!(
                "'{shown}' has {count} interfaces: at most {MAX_INTERFACES} are allowed"
            )));
        }
        if let Some(long) = names.iter().find(|name| without_port(name).len() > MAX_NAME_BYTES) {
            let long: String = long.chars().take(64).flat_map(char::escape_default).collect();
            return Err(Error::invalid_argument(format!(
                "the interface name '{long}' is longer than {MAX_NAME_BYTES} characters"
            )));
        }
        if names.is_empty() && !text.is_empty() {
            return Err(Error::invalid_argument(format!("'{shown}' has no interface name")));
        }
        Ok(Rules { names, exact, exclude })
    }
}

impl Rules {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the rules allow the interface `name`.
    pub fn allow(&self, name: &str) -> bool {
        let named = self.names(name, |rule| rule) || self.names(name, without_port);
        self.is_empty() || named != self.exclude
    }

    /// Whether they allow it and name it with its number, if they have numbers.
    fn prefer(&self, name: &str) -> bool {
        self.exclude || self.names(name, |rule| rule)
    }

    fn names(&self, name: &str, whole: impl Fn(&str) -> &str) -> bool {
        let is_it = |rule: &str| if self.exact { name == rule } else { name.starts_with(rule) };
        self.names.iter().any(|rule| is_it(whole(rule)))
    }
}

impl std::fmt::Display for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (exclude, exact) = (if self.exclude { "^" } else { "" }, if self.exact { "=" } else { "" });
        write!(f, "{exclude}{exact}{}", self.names.join(","))
    }
}

/// The interfaces that may be used, best first, each with its best address: at least one, at most [`MAX_INTERFACES`].
/// Ranks meet on the first one, and their data take all. An address that routers forward is better than a link-local
/// one (169.254.0.0/16, fe80::/10), which another host may not reach or may reach on the wrong link; loopback is the
/// last. Otherwise the machine's order decides.
///
/// With rules, all that they allow. Without rules NCCL's order of names, each step split by the kind of address:
/// those named `ib…`; else the one in the subnet of `near`, if given (the fixed address of `NCCL_COMM_ID`); else all
/// others but `docker…`, `virbr…` and further ones of containers, bridges and tunnels (`veth…`, `cali…`, `cni…`,
/// `flannel…`, `br-` and 12 digits, `podman…`, `lxcbr…`, `lxdbr…`, `tun…`, `tap…`: NCCL does not know those from
/// others); else `ib…` and then the others by link-local addresses; else `docker…`; else these further ones; else
/// loopback; else `virbr…`. An interface is loopback if its address is, whatever its name: a host may have its only
/// address on `lo`.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] if there is none; the message lists the rules and the interfaces of this
/// machine.
pub fn choose(
    all: &[Interface],
    rules: &Rules,
    family: AddressFamily,
    near: Option<&SocketAddr>,
) -> Result<Vec<Interface>> {
    let mut usable: Vec<&Interface> = usable(all, family).collect();
    usable.sort_by_key(|interface| reach_of(interface));
    let pick = |wanted: &dyn Fn(&Interface) -> bool| {
        let mut picked: Vec<Interface> = Vec::new();
        for interface in usable.iter().filter(|interface| wanted(interface)) {
            if picked.len() < MAX_INTERFACES && picked.iter().all(|other| other.name != interface.name) {
                picked.push((*interface).clone());
            }
        }
        picked
    };
    let found = if rules.is_empty() {
        let starts = |prefix: &'static str, reach: RangeInclusive<Reach>| {
            move |interface: &Interface| interface.name.starts_with(prefix) && reach.contains(&reach_of(interface))
        };
        let ordinary =
            |reach: Reach| move |interface: &Interface| is_ordinary(&interface.name) && reach_of(interface) == reach;
        let in_subnet = |interface: &Interface| near.is_some_and(|near| is_in_subnet(interface, near));
        let loopback = |interface: &Interface| reach_of(interface) == Reach::Host;
        let inside = |interface: &Interface| is_inside(&interface.name) && reach_of(interface) != Reach::Host;
        let order: [&dyn Fn(&Interface) -> bool; 9] = [
            &starts("ib", Reach::Networks..=Reach::Networks),
            &in_subnet,
            &ordinary(Reach::Networks),
            &starts("ib", Reach::Link..=Reach::Link),
            &ordinary(Reach::Link),
            &starts("docker", Reach::Networks..=Reach::Link),
            &inside,
            &loopback,
            &starts("virbr", Reach::Networks..=Reach::Link),
        ];
        order.into_iter().map(pick).find(|picked| !picked.is_empty()).unwrap_or_default()
    } else {
        let order: [&dyn Fn(&Interface) -> bool; 2] =
            [&|interface| rules.allow(&interface.name) && rules.prefer(&interface.name), &|interface| {
                rules.allow(&interface.name)
            }];
        order.into_iter().map(pick).find(|picked| !picked.is_empty()).unwrap_or_default()
    };
    if found.is_empty() {
        return Err(nothing(NOTHING, all, (rules, family)));
    }
    Ok(found)
}

/// The interfaces that carry data, where the bootstrap uses the one with the address `control`: all that [`choose`]
/// finds, unless a fixed address of the root says which network is meant, and names do not. None where ranks meet on
/// loopback: then they are on one host.
pub(crate) fn for_data(all: &[Interface], options: &Options, control: IpAddr) -> Vec<Interface> {
    if control.is_loopback() {
        return Vec::new();
    }
    if options.comm_id.is_some() && options.interfaces.is_empty() {
        return all.iter().find(|interface| interface.address == control).cloned().into_iter().collect();
    }
    let chosen = choose(all, &options.interfaces, options.family, None).unwrap_or_default();
    chosen.into_iter().filter(|interface| !interface.address.is_loopback()).collect()
}

/// The interfaces that would carry data and are down or have no carrier.
pub(crate) fn without_carrier<'a>(all: &'a [Interface], options: &'a Options) -> impl Iterator<Item = &'a Interface> {
    let is_wanted = |interface: &&Interface| match options.interfaces.is_empty() {
        true => is_ordinary(&interface.name) && options.comm_id.is_none(),
        false => options.interfaces.allow(&interface.name),
    };
    let fits = |interface: &&Interface| options.family.allows(interface.address) && !interface.address.is_loopback();
    all.iter().filter(|interface| !interface.running).filter(fits).filter(is_wanted)
}

/// The usable interface whose subnet contains `near`: for a bootstrap with a fixed or loopback address.
pub fn nearest(all: &[Interface], rules: &Rules, family: AddressFamily, near: &SocketAddr) -> Option<Interface> {
    let mut allowed = usable(all, family).filter(|interface| rules.allow(&interface.name));
    allowed.find(|interface| is_in_subnet(interface, near)).cloned()
}

/// The name of an interface in a rule, without the number behind a colon.
fn without_port(rule: &str) -> &str {
    match rule.rsplit_once(':') {
        Some((name, port)) if !name.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => rule,
    }
}

/// How far an address reaches; the better comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// It is routed.
    Networks,
    /// It is link-local.
    Link,
    /// It is loopback.
    Host,
}

fn reach_of(interface: &Interface) -> Reach {
    let link_local = match interface.address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    match interface.address.is_loopback() {
        true => Reach::Host,
        false if link_local => Reach::Link,
        false => Reach::Networks,
    }
}

/// The interfaces that are up and of the family. Ranks of one host must meet on one loopback: IPv4's, and IPv6's only
/// where there is no other.
fn usable(all: &[Interface], family: AddressFamily) -> impl Iterator<Item = &Interface> {
    let fits = move |interface: &Interface| interface.running && family.allows(interface.address);
    let is_loopback =
        |interface: &Interface, v6: bool| interface.address.is_loopback() && interface.address.is_ipv6() == v6;
    let has_v4 = all.iter().any(|interface| fits(interface) && is_loopback(interface, false));
    all.iter().filter(move |interface| fits(interface) && !(has_v4 && is_loopback(interface, true)))
}

/// Whether `address` is in the interface's subnet and, if it is link-local, on the interface's link.
fn is_in_subnet(interface: &Interface, address: &SocketAddr) -> bool {
    match (interface.address, interface.netmask, address) {
        (IpAddr::V4(ours), IpAddr::V4(mask), SocketAddr::V4(theirs)) => {
            ours.to_bits() & mask.to_bits() == theirs.ip().to_bits() & mask.to_bits()
        }
        (IpAddr::V6(ours), IpAddr::V6(mask), SocketAddr::V6(theirs)) => {
            let same_link = !theirs.ip().is_unicast_link_local() || theirs.scope_id() == interface.scope;
            same_link && ours.to_bits() & mask.to_bits() == theirs.ip().to_bits() & mask.to_bits()
        }
        _ => false,
    }
}

/// Whether an interface of this name usually reaches other hosts, unless it is loopback.
pub(super) fn is_ordinary(name: &str) -> bool {
    !is_inside(name) && !["docker", "virbr"].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether an interface of this name usually leads into this host: to its containers, virtual machines and tunnels.
fn is_inside(name: &str) -> bool {
    let is_bridge_of_docker = |rest: &str| rest.len() == 12 && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    ["veth", "cali", "cni", "flannel", "podman", "lxcbr", "lxdbr", "tun", "tap"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        // Others called `br-` may have the host's own address.
        || name.strip_prefix("br-").is_some_and(is_bridge_of_docker)
}

/// The error when no interface is usable; the message begins with `what`.
pub(super) fn nothing_usable(what: &str, all: &[Interface], options: &Options) -> Error {
    nothing(what, all, (&options.interfaces, options.family))
}

const NOTHING: &str = "no usable network interface";

fn nothing(what: &str, all: &[Interface], (rules, family): (&Rules, AddressFamily)) -> Error {
    let state = |interface: &Interface| match interface.running {
        true if interface.address.is_loopback() => "running, loopback",
        true => "running",
        false => "not running",
    };
    let mut there: Vec<String> = all
        .iter()
        .map(|interface| format!("{} ({}, {})", interface.name, interface.address, state(interface)))
        .collect();
    there.truncate(MAX_INTERFACES);
    // A fresh network namespace has a loopback that nobody has brought up.
    let none = "none with an address, not even loopback (a network namespace of its own, as a container's? \
                run `ip link set lo up` there)";
    let there = if there.is_empty() { none.to_owned() } else { there.join(", ") };
    let rules = if rules.is_empty() { "not set".to_owned() } else { rules.to_string() };
    Error::invalid_usage(format!(
        "{what}: NCCL_SOCKET_IFNAME is {rules}, NCCL_SOCKET_FAMILY is {family}; the interfaces are: {there}"
    ))
}

/// An interface and its address as NCCL prints them: `eth0:10.0.0.7<40213>`.
pub(super) struct Using<'a>(pub(super) &'a str, pub(super) SocketAddr);

impl fmt::Display for Using<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Using(name, address) = self;
        write!(f, "{name}:{}<{}>", address.ip(), address.port())
    }
}

/// The address of `interface` with port 0, to bind a socket to.
pub fn address(interface: &Interface) -> SocketAddr {
    match interface.address {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, interface.scope).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, bits: u32) -> Interface {
        let address: IpAddr = address.parse().unwrap();
        let netmask = match address {
            IpAddr::V4(_) => IpAddr::V4((!0u32 << (32 - bits)).into()),
            IpAddr::V6(_) => IpAddr::V6((!0u128 << (128 - bits)).into()),
        };
        let scope = if matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local()) { 4 } else { 0 };
        Interface { name: name.into(), address, netmask, scope, running: true }
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1", 8),
            interface("lo", "::1", 127),
            interface("docker0", "172.17.0.1", 16),
            interface("eth0", "10.1.0.5", 16),
            interface("eth0", "fd00::5", 64),
            interface("eth1", "10.2.0.5", 16),
            interface("eth10", "fe80::5", 64),
            Interface { running: false, ..interface("eth2", "10.3.0.5", 16) },
            interface("virbr0", "192.168.122.1", 24),
        ]
    }

    fn names(rules: &str, family: AddressFamily, near: Option<&str>) -> Vec<String> {
        let near = near.map(|text| text.parse().unwrap());
        let chosen = choose(&machine(), &rules.parse().unwrap(), family, near.as_ref()).unwrap();
        chosen.iter().map(|interface| format!("{} {}", interface.name, interface.address)).collect()
    }

    #[test]
    fn rules_are_prefixes_exact_names_and_exclusions() {
        assert_eq!(names("eth1", AddressFamily::Any, None), ["eth1 10.2.0.5", "eth10 fe80::5"]);
        assert_eq!(names("=eth1", AddressFamily::Any, None), ["eth1 10.2.0.5"]);
        assert_eq!(names("eth0,docker", AddressFamily::Any, None), ["docker0 172.17.0.1", "eth0 10.1.0.5"]);
        assert_eq!(names("^eth,lo,virbr", AddressFamily::Any, None), ["docker0 172.17.0.1"]);
        assert_eq!(names("^=eth1,lo,docker0,virbr0", AddressFamily::Any, None), ["eth0 10.1.0.5", "eth10 fe80::5"]);
        assert_eq!(names("eth", AddressFamily::V6, None), ["eth0 fd00::5", "eth10 fe80::5"]);
        let spaced = names(" ^ = eth1, lo ,docker0,virbr0", AddressFamily::Any, None);
        assert_eq!(spaced, ["eth0 10.1.0.5", "eth10 fe80::5"], "blanks do not count");
        assert!("  ".parse::<Rules>().unwrap().is_empty() && " , ".parse::<Rules>().is_err());
    }

    #[test]
    fn a_number_after_a_colon_does_not_count_unless_it_is_part_of_the_name() {
        assert_eq!(names("lo:0", AddressFamily::Any, None), ["lo 127.0.0.1"]);
        assert_eq!(names("=eth1:3,nothing", AddressFamily::Any, None), ["eth1 10.2.0.5"]);
        assert_eq!(names("^eth:0,lo,virbr:7", AddressFamily::Any, None), ["docker0 172.17.0.1"]);
        // A second address that was given to eth0 under a name of its own.
        let mut list = machine();
        list.push(interface("eth0:1", "10.8.0.5", 16));
        let rules: Rules = "eth0:1".parse().unwrap();
        let chosen = choose(&list, &rules, AddressFamily::Any, None).unwrap();
        assert_eq!(chosen.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["eth0:1"]);
        assert!(!"lo:x".parse::<Rules>().unwrap().allow("lo"));
    }

    #[test]
    fn without_rules_the_order_is_that_of_nccl() {
        let first = |list: &[Interface], near: Option<&str>| {
            let near = near.map(|text| text.parse().unwrap());
            choose(list, &Rules::default(), AddressFamily::Any, near.as_ref()).unwrap()[0].name.clone()
        };
        let mut list = machine();
        assert_eq!(names("", AddressFamily::Any, None), ["eth0 10.1.0.5", "eth1 10.2.0.5"]);
        assert_eq!(first(&list, Some("10.2.9.9:5")), "eth1");
        list.push(interface("ib0", "10.9.0.5", 16));
        assert_eq!(first(&list, Some("10.2.9.9:5")), "ib0");
        list.retain(|i| !i.name.starts_with("eth") && i.name != "ib0");
        assert_eq!(first(&list, None), "docker0");
        list.retain(|i| i.name != "docker0");
        assert_eq!(first(&list, None), "lo");
        list.retain(|i| i.name != "lo");
        assert_eq!(first(&list, None), "virbr0");
    }

    /// Reports 7, 7b and 8.
    #[test]
    fn the_address_decides_what_an_interface_reaches_not_its_name_or_place() {
        let chosen = |list: &[Interface], rules: &str| -> Vec<String> {
            let chosen = choose(list, &rules.parse().unwrap(), AddressFamily::Any, None).unwrap();
            chosen.iter().map(|interface| format!("{} {}", interface.name, interface.address)).collect()
        };
        let routed = [
            interface("lo", "127.0.0.1", 8),
            interface("lo", "10.9.0.2", 32),
            interface("docker0", "172.17.0.1", 16),
            interface("bmc0", "169.254.3.1", 24),
            interface("eth5", "fe80::5", 64),
        ];
        assert_eq!(chosen(&routed, ""), ["lo 10.9.0.2"]);
        assert_eq!(chosen(&routed, "lo"), ["lo 10.9.0.2"]);
        assert_eq!(chosen(&routed, "^docker,lo"), ["bmc0 169.254.3.1", "eth5 fe80::5"]);
        let unrouted: Vec<_> = routed.into_iter().filter(|i| i.address.to_string() != "10.9.0.2").collect();
        assert_eq!(chosen(&unrouted, ""), ["bmc0 169.254.3.1", "eth5 fe80::5"]);
        assert_eq!(chosen(&unrouted, "lo"), ["lo 127.0.0.1"]);
        let with_bmc = [
            interface("bmc0", "169.254.3.1", 24),
            interface("ib0", "fe80::9", 64),
            interface("eth0", "fe80::6", 64),
            interface("eth0", "10.77.0.1", 24),
            interface("lom1", "fd00::7", 64),
        ];
        assert_eq!(chosen(&with_bmc, ""), ["eth0 10.77.0.1", "lom1 fd00::7"]);
        assert_eq!(chosen(&with_bmc, "bmc,eth,lo"), ["eth0 10.77.0.1", "lom1 fd00::7", "bmc0 169.254.3.1"]);
        assert_eq!(chosen(&with_bmc[..2], ""), ["ib0 fe80::9"]);
    }

    #[test]
    fn a_subnet_is_the_netmask_and_on_a_link_the_scope() {
        let near = |text: &str| nearest(&machine(), &Rules::default(), AddressFamily::Any, &text.parse().unwrap());
        assert_eq!(near("10.2.255.1:1").unwrap().name, "eth1");
        assert_eq!(near("127.0.0.9:1").unwrap().name, "lo");
        assert_eq!(near("[fd00::77]:1").unwrap().name, "eth0");
        assert_eq!(near("[fe80::77%4]:1").unwrap().name, "eth10");
        assert!(near("[fe80::77%5]:1").is_none() && near("10.3.0.1:1").is_none() && near("8.8.8.8:1").is_none());
        assert_eq!(address(&machine()[6]).to_string(), "[fe80::5%4]:0");
    }

    /// On some machines those are all that there is.
    #[test]
    fn interfaces_of_containers_and_tunnels_come_behind_others() {
        let inside = ["veth608058c", "cali1", "cni0", "flannel.1", "br-0a1b2c3d4e5f", "podman0", "tun0", "tap3"];
        let mut list: Vec<_> = inside.iter().map(|name| interface(name, "10.9.0.1", 24)).collect();
        let lo = interface("lo", "127.0.0.1", 8);
        let first = |list: &[Interface]| {
            let chosen = choose(list, &Rules::default(), AddressFamily::Any, None).unwrap();
            chosen.iter().map(|interface| interface.name.clone()).collect::<Vec<_>>()
        };
        list.push(lo);
        assert_eq!(first(&list), inside, "before loopback");
        // A bridge that an administrator has made for the host's own address is one as any other.
        list.extend([interface("br-ex", "10.1.0.1", 24), interface("bond0", "10.2.0.1", 24)]);
        assert_eq!(first(&list), ["br-ex", "bond0"]);
    }

    #[test]
    fn data_take_all_interfaces_unless_ranks_meet_on_loopback_or_a_fixed_address_says_where() {
        let data = |options: &Options, control: &str| {
            let found = for_data(&machine(), options, control.parse().unwrap());
            found.into_iter().map(|interface| interface.name).collect::<Vec<_>>()
        };
        let usual = Options::default();
        assert_eq!(data(&usual, "10.1.0.5"), ["eth0", "eth1"]);
        assert!(data(&usual, "127.0.0.1").is_empty());
        let fixed = Options { comm_id: Some("10.2.0.9:5".to_owned()), ..Options::default() };
        assert_eq!(data(&fixed, "10.2.0.5"), ["eth1"]);
        let named = Options { interfaces: "eth0,lo".parse().unwrap(), ..fixed };
        assert_eq!(data(&named, "10.1.0.5"), ["eth0"]);
    }

    #[test]
    fn nothing_usable_names_the_rules_and_what_there_is() {
        let error = choose(&machine(), &"=eth2".parse().unwrap(), AddressFamily::Any, None).unwrap_err().to_string();
        assert!(
            error.contains("NCCL_SOCKET_IFNAME is =eth2") && error.contains("eth2 (10.3.0.5, not running)"),
            "{error}"
        );
        let error = choose(&[], &Rules::default(), AddressFamily::Any, None).unwrap_err().to_string();
        assert!(error.contains("the interfaces are: none with an address, not even loopback"), "{error}");
    }

    #[test]
    fn the_ipv6_loopback_is_used_where_there_is_no_other() {
        let chosen = |list: &[Interface], family| {
            choose(list, &"lo".parse().unwrap(), family, None).map(|found| found[0].address.to_string())
        };
        let (v4, v6) = (interface("lo", "127.0.0.1", 8), interface("lo", "::1", 128));
        assert_eq!(chosen(&[v6.clone(), v4.clone()], AddressFamily::Any).unwrap(), "127.0.0.1");
        assert_eq!(chosen(&[v6.clone(), v4.clone()], AddressFamily::V6).unwrap(), "::1");
        assert_eq!(chosen(&[v6.clone(), Interface { running: false, ..v4 }], AddressFamily::Any).unwrap(), "::1");
        let error = chosen(std::slice::from_ref(&v6), AddressFamily::V4).unwrap_err().to_string();
        assert!(error.contains("lo (::1, running, loopback)"), "{error}");
        // Others reach a network's address, so that is better.
        let list = [v6, interface("eth0", "fd00::5", 64)];
        assert_eq!(choose(&list, &Rules::default(), AddressFamily::Any, None).unwrap()[0].name, "eth0");
        let near = "[::1]:5".parse().unwrap();
        assert_eq!(nearest(&list, &Rules::default(), AddressFamily::Any, &near).unwrap().name, "lo");
    }

    #[test]
    fn bad_rules_and_families_are_errors() {
        for rules in ["^", "=", ",", "^=", "an-interface-with-a-long-name", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"] {
            assert!(rules.parse::<Rules>().is_err(), "{rules}");
        }
        assert!("".parse::<Rules>().unwrap().is_empty());
        assert!("inet".parse::<AddressFamily>().unwrap_err().to_string().contains("AF_INET6"));
        assert_eq!("AF_INET".parse::<AddressFamily>().unwrap(), AddressFamily::V4);
    }

    #[test]
    fn at_most_sixteen_are_used() {
        let many: Vec<_> = (0..40).map(|i| interface(&format!("eth{i}"), "10.0.0.1", 8)).collect();
        assert_eq!(choose(&many, &Rules::default(), AddressFamily::Any, None).unwrap().len(), MAX_INTERFACES);
    }
}
