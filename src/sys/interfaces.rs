//! The network interfaces of this machine.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::error::{Error, Result};

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The name, e.g. "eth0".
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The netmask, of the address's family.
    pub netmask: IpAddr,
    /// The scope of an IPv6 address, which link-local addresses need; 0 for others.
    pub scope: u32,
    /// Whether it is up and has a carrier.
    pub running: bool,
}

/// What the system tells of the device behind an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkDevice {
    /// Megabits per second; many virtual interfaces have none.
    pub rate_mbit: Option<u32>,
    /// Its NUMA node.
    pub node: Option<u32>,
}

/// The device behind the interface `name`. `root` is `/`, or a folder that replaces it in tests.
pub fn device(root: &Path, name: &str) -> NetworkDevice {
    let folder = root.join("sys/class/net").join(name);
    // Either file says -1 where it knows nothing, and the first cannot be read of an interface that is down.
    let number = |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u32>().ok();
    NetworkDevice { rate_mbit: number("speed").filter(|rate| *rate > 0), node: number("device/numa_node") }
}

/// All IPv4 and IPv6 addresses, in the kernel's order.
///
/// # Errors
/// [`crate::error::Kind::System`] if the kernel does not tell.
pub fn list() -> Result<Vec<Interface>> {
    let mut interfaces = Vec::new();
    each(|entry| interfaces.extend(interface(entry)))?;
    Ok(interfaces)
}

/// The names of all links but loopback, including those without address and those that are down.
///
/// # Errors
/// [`crate::error::Kind::System`] if the kernel does not tell.
pub fn links() -> Result<Vec<String>> {
    let mut names = Vec::new();
    each(|entry| names.extend((!has(entry, libc::IFF_LOOPBACK)).then(|| name(entry))))?;
    names.sort();
    names.dedup();
    Ok(names)
}

/// Whether a loopback link is up. In a new network namespace it is down.
///
/// # Errors
/// [`crate::error::Kind::System`] if the kernel does not tell.
pub fn loopback_is_up() -> Result<bool> {
    let mut up = false;
    each(|entry| up |= has(entry, libc::IFF_LOOPBACK | libc::IFF_UP))?;
    Ok(up)
}

/// Whether the link of `entry` has all of `flags`.
fn has(entry: &libc::ifaddrs, flags: libc::c_int) -> bool {
    let flags = flags.cast_unsigned();
    entry.ifa_flags & flags == flags
}

/// Calls `look` with every entry of the kernel's list.
fn each(mut look: impl FnMut(&libc::ifaddrs)) -> Result<()> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer, which `head` is.
    let code = unsafe { libc::getifaddrs(&raw mut head) };
    if code != 0 {
        return Err(Error::last_os("getifaddrs"));
    }
    let mut next = head.cast_const();
    // SAFETY: a pointer of the list that getifaddrs made is null or valid until freeifaddrs, and nobody writes to it.
    while let Some(entry) = unsafe { next.as_ref() } {
        look(entry);
        next = entry.ifa_next;
    }
    // SAFETY: `head` came from getifaddrs, is freed once, and what was taken from the list was copied.
    unsafe { libc::freeifaddrs(head) };
    Ok(())
}

fn name(entry: &libc::ifaddrs) -> String {
    // SAFETY: getifaddrs gives each entry a name that ends with NUL and lives as long as the entry.
    unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned()
}

/// `None` for an entry without an IP address.
fn interface(entry: &libc::ifaddrs) -> Option<Interface> {
    let (address, scope) = ip(entry.ifa_addr)?;
    let all_ones = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::BROADCAST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
    };
    let netmask = ip(entry.ifa_netmask).map_or(all_ones, |(netmask, _)| netmask);
    let name = name(entry);
    let running = has(entry, libc::IFF_UP | libc::IFF_RUNNING);
    Some(Interface { name, address, netmask, scope, running })
}

fn ip(address: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    // SAFETY: getifaddrs gives null or a valid socket address that lives as long as its entry.
    let family = unsafe { address.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of family AF_INET is a `sockaddr_in`, which the kernel's list aligns for it.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some((IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr))), 0))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for AF_INET6 and `sockaddr_in6`.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some((IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)), v6.sin6_scope_id))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_does_not_know_of_a_device_is_not_told() {
        let root = tempfile::tempdir().unwrap();
        let device = |name: &str, speed: &str, node: Option<&str>| {
            let folder = root.path().join("sys/class/net").join(name);
            std::fs::create_dir_all(folder.join("device")).unwrap();
            std::fs::write(folder.join("speed"), speed).unwrap();
            if let Some(node) = node {
                std::fs::write(folder.join("device/numa_node"), node).unwrap();
            }
            device(root.path(), name)
        };
        let known = |rate_mbit, node| NetworkDevice { rate_mbit, node };
        assert_eq!(device("eth0", "25000\n", Some("1\n")), known(Some(25_000), Some(1)));
        assert_eq!(device("eth1", "-1\n", Some("-1\n")), known(None, None));
        assert_eq!(device("eth2", "0\n", None), known(None, None));
        assert_eq!(super::device(root.path(), "eth3"), NetworkDevice::default());
    }

    #[test]
    fn the_loopback_is_there() {
        let interfaces = list().unwrap();
        let loopback = interfaces.iter().find(|i| i.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert_eq!(loopback.netmask, IpAddr::V4(Ipv4Addr::new(255, 0, 0, 0)));
        assert!(loopback.running && !loopback.name.is_empty());
        assert!(loopback_is_up().unwrap() && !links().unwrap().contains(&loopback.name));
    }
}
