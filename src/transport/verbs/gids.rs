//! Which of a port's GIDs a connection uses. A GID is an address of 128 bits: over Ethernet it is an IP address of the
//! interface, in one of two formats of packets, RoCE version 1 and 2; InfiniBand has one of its own.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::config::SocketFamily;
use crate::transport::verbs::abi::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};
use crate::transport::verbs::settings::VerbsSettings;

/// An entry of a port's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PortGid {
    pub(super) index: u8,
    pub(super) gid: [u8; 16],
    pub(super) kind: GidKind,
}

/// In which packets an entry's address goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
}

/// What kind of address it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GidAddress {
    /// An IPv4 address, in IPv6 form.
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    /// Of one link, which every interface has: it says nothing of which ports reach each other.
    LinkLocal,
}

impl GidKind {
    /// The kind with this number in libibverbs.
    pub(super) fn of(number: u32) -> Option<GidKind> {
        match number {
            IBV_GID_TYPE_IB => Some(GidKind::InfiniBand),
            IBV_GID_TYPE_ROCE_V1 => Some(GidKind::RoceV1),
            IBV_GID_TYPE_ROCE_V2 => Some(GidKind::RoceV2),
            _ => None,
        }
    }

    fn words(self) -> &'static str {
        match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        }
    }
}

impl PortGid {
    pub(super) fn address(&self) -> GidAddress {
        let address = Ipv6Addr::from(self.gid);
        match address.to_ipv4_mapped() {
            Some(four) => GidAddress::V4(four),
            None if address.is_unicast_link_local() => GidAddress::LinkLocal,
            None => GidAddress::V6(address),
        }
    }

    /// What goes over the wire of a RoCE port: ports with different words do not reach each other.
    pub(super) fn protocol(&self) -> String {
        let family = match self.address() {
            GidAddress::V4(_) => "IPv4",
            GidAddress::V6(_) => "IPv6",
            GidAddress::LinkLocal => "link-local addresses",
        };
        format!("{} over {family}", self.kind.words())
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        let address = match self.address() {
            GidAddress::V4(address) => address.to_string(),
            GidAddress::V6(_) | GidAddress::LinkLocal => Ipv6Addr::from(self.gid).to_string(),
        };
        format!("GID {} ({address}, {})", self.index, self.kind.words())
    }
}

/// The entry of a RoCE port that its connections use: the one that the user names, or the best. An address of one link
/// comes after all others, then the asked version of RoCE counts, then the asked family, then the lower place.
///
/// # Errors
/// A sentence where the table has none, or not the one that the user names.
pub(super) fn choose(gids: &[PortGid], settings: &VerbsSettings) -> Result<PortGid, String> {
    if let Some(asked) = settings.gid_index {
        let found = gids.iter().find(|gid| u32::from(gid.index) == asked);
        return found.copied().ok_or_else(|| {
            let there: Vec<_> = gids.iter().map(|gid| gid.index.to_string()).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            format!("NCCL_IB_GID_INDEX={asked} is no entry of its table of GIDs, which has {there}")
        });
    }
    let version = if settings.roce_version == 1 { GidKind::RoceV1 } else { GidKind::RoceV2 };
    let rank = |gid: &&PortGid| {
        let is_of_family = match gid.address() {
            GidAddress::V4(_) => settings.family == SocketFamily::Inet,
            GidAddress::V6(_) => settings.family == SocketFamily::Inet6,
            GidAddress::LinkLocal => false,
        };
        (gid.address() == GidAddress::LinkLocal, gid.kind != version, !is_of_family, gid.index)
    };
    let best = gids.iter().min_by_key(rank).copied();
    best.ok_or_else(|| "its table of GIDs is empty: its interface is down or has no address".to_owned())
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn entry(index: u8, address: &str, kind: GidKind) -> PortGid {
        PortGid { index, gid: address.parse::<Ipv6Addr>().unwrap().octets(), kind }
    }

    const LINK: &str = "fe80::5cba:a3ff:fea8:d0d9";
    const FOUR: &str = "::ffff:10.8.0.1";
    const SIX: &str = "2001:db8::1";

    #[test]
    fn the_best_entry_is_chosen_and_never_link_local_where_another_is_there() {
        use GidKind::{RoceV1, RoceV2};
        let usual = VerbsSettings::default();
        let of_v1 = VerbsSettings { roce_version: 1, ..usual.clone() };
        let of_six = VerbsSettings { family: SocketFamily::Inet6, ..usual.clone() };
        let mlx5 = [
            entry(0, LINK, RoceV1),
            entry(1, LINK, RoceV2),
            entry(2, FOUR, RoceV1),
            entry(3, FOUR, RoceV2),
            entry(4, SIX, RoceV1),
            entry(5, SIX, RoceV2),
        ];
        // As bnxt_re: no IPv4.
        let six_only = [entry(0, LINK, RoceV2), entry(1, SIX, RoceV2)];
        // As soft RoCE after its address was removed and added again: places are in the order of time.
        let late = [entry(0, LINK, RoceV2), entry(4, FOUR, RoceV2), entry(2, SIX, RoceV2)];
        let v1_only = [entry(0, LINK, RoceV2), entry(1, FOUR, RoceV1)];
        let two = [entry(7, FOUR, RoceV2), entry(3, "::ffff:10.8.0.77", RoceV2)];
        for (gids, settings, expected) in [
            (&mlx5[..], &usual, 3),
            (&mlx5, &of_v1, 2),
            (&mlx5, &of_six, 5),
            (&six_only, &usual, 1),
            (&late, &usual, 4),
            (&late, &of_six, 2),
            (&v1_only, &usual, 1),
            (&two, &usual, 3),
            (&mlx5[..2], &usual, 1),
            (&mlx5[..1], &of_six, 0),
        ] {
            assert_eq!(choose(gids, settings).unwrap().index, expected, "{gids:?} {settings:?}");
        }
    }

    #[test]
    fn an_entry_that_the_user_names_must_be_there() {
        let gids = [entry(0, LINK, GidKind::RoceV2), entry(3, FOUR, GidKind::RoceV2)];
        let asking = |index| VerbsSettings { gid_index: Some(index), ..VerbsSettings::default() };
        assert_eq!(choose(&gids, &asking(0)).unwrap().index, 0, "also a link-local one");
        let no = choose(&gids, &asking(7)).unwrap_err();
        assert_eq!(no, "NCCL_IB_GID_INDEX=7 is no entry of its table of GIDs, which has 0, 3");
        assert!(choose(&[], &asking(0)).unwrap_err().ends_with("which has none"));
        assert!(choose(&[], &VerbsSettings::default()).unwrap_err().contains("is empty"));
    }

    #[test]
    fn words_tell_ports_apart_that_do_not_reach_each_other() {
        assert_eq!(entry(3, FOUR, GidKind::RoceV2).protocol(), "RoCE v2 over IPv4");
        assert_eq!(entry(3, SIX, GidKind::RoceV1).protocol(), "RoCE v1 over IPv6");
        assert_eq!(entry(0, LINK, GidKind::RoceV2).protocol(), "RoCE v2 over link-local addresses");
        assert_eq!(entry(3, FOUR, GidKind::RoceV2).shown(), "GID 3 (10.8.0.1, RoCE v2)");
        assert_eq!(entry(0, LINK, GidKind::RoceV1).shown(), "GID 0 (fe80::5cba:a3ff:fea8:d0d9, RoCE v1)");
    }
}
