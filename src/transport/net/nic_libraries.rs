//! The libraries of request-based NICs that rsccl knows, each by one line.

use crate::transport::net::request_nic::NicLibrary;

/// All of them. Ranks use one where the user asks for it by name (`NCCL_NET`), or, if that is not set, the first one
/// for which there is hardware; and sockets otherwise.
pub(super) const NIC_LIBRARIES: &[NicLibrary] = &[
    crate::transport::libfabric::LIBRARY,
    crate::transport::verbs::LIBRARY,
    crate::transport::net_plugin::LIBRARY,
    #[cfg(all(test, not(loom)))]
    crate::transport::net::test_nic::LIBRARY,
    #[cfg(all(test, not(loom)))]
    crate::transport::net::test_nic::STRAIGHT_LIBRARY,
];

/// The library of NCCL's net plug-ins.
pub(super) fn of_plug_ins() -> &'static NicLibrary {
    &crate::transport::net_plugin::LIBRARY
}

/// The library that `NCCL_NET` names, in any case.
pub(super) fn named(name: &str) -> Option<&'static NicLibrary> {
    NIC_LIBRARIES.iter().find(|library| library.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::NETWORKS;

    #[test]
    fn users_can_ask_for_each_library_by_name() {
        let names: Vec<_> = NIC_LIBRARIES.iter().map(|library| library.name).collect();
        assert_eq!(names, NETWORKS[1..]);
        assert!(named("TEST-nic").is_some() && named("Socket").is_none());
    }
}
