//! Rails: over which NICs two hosts send data to each other.
//!
//! Two NICs reach each other where one network joins them: a rail. Its number is what the user says (`RSCCL_RAILS`),
//! else the subnet of its addresses; the order of interfaces on a host says nothing. Both ranks of a pair compute the
//! rails between them from the same two lists, and have them in the same order.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::wire::{Reader, Writer};

/// A network interface that may carry data, as its rank tells all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataNic {
    /// The interface, as `eth0`.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// How many leading bits of the address are the subnet's.
    pub subnet_bits: u8,
    /// Megabits per second, where the system tells.
    pub rate_mbit: Option<u32>,
    /// The NUMA node of its device, where it has one.
    pub node: Option<u32>,
    /// The number of the network that it is on, where the user has said.
    pub rail: Option<u32>,
}

/// The rails between two ranks, and the NICs that are no part of one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rails {
    /// In the same order on both ranks.
    pub used: Vec<Rail>,
    /// NICs of either rank that carry nothing to the other, each with the reason.
    pub left_out: Vec<String>,
}

/// Two NICs that reach each other. The numbers are places in the lists of their ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rail {
    /// That of the rank that asks.
    pub mine: usize,
    /// That of the other rank.
    pub theirs: usize,
    /// What joins them.
    pub by: JoinedBy,
    /// Megabits per second for this rail, where known: NICs that serve several rails are shared out.
    pub rate_mbit: Option<u32>,
}

/// What joins two NICs. In the order in which rails of one rate stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JoinedBy {
    /// `RSCCL_RAILS` gives both this number.
    Number(u32),
    /// Both addresses are of this subnet.
    Subnet {
        /// Its first address.
        first: IpAddr,
        /// Its length in bits.
        bits: u8,
    },
}

/// Who receives what a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receiving {
    /// Whether it is the rank that asks.
    pub is_me: bool,
    /// The NUMA node on which the receiver runs, where it runs on one.
    pub node: Option<u32>,
    /// By which the receivers of a host, and the connections of one receiver, take turns.
    pub turn: usize,
}

/// The rails between a rank with NICs `mine` and one with `theirs`; none where no network is known to join them.
///
/// Numbers count where both ranks have some. In each network the NICs of both sides stand in the order of their
/// addresses, and a side with fewer serves several of the other's. A NIC of a rate that would hold the others back is
/// left out: each rail carries an equal part, so that of `n` rails the slowest counts `n` times.
pub fn between(mine: &[DataNic], theirs: &[DataNic]) -> Rails {
    let numbered = [mine, theirs].iter().all(|nics| nics.iter().any(|nic| nic.rail.is_some()));
    let networks = [networks(mine, numbered), networks(theirs, numbered)];
    let (mut used, mut left_out) = (Vec::new(), Vec::new());
    for (by, own) in &networks[0] {
        let Some(others) = networks[1].get(by) else { continue };
        // As of the bridges of containers, which have one address on every host and join no hosts.
        let is_twice = |place: &&usize| others.iter().any(|other| theirs[*other].address == mine[**place].address);
        if let Some(place) = own.iter().find(is_twice) {
            let DataNic { name, address, .. } = &mine[*place];
            left_out.push(format!("{name}: both ranks have its address {address}"));
            continue;
        }
        used.extend(pairs((mine, own), (theirs, others), *by));
    }
    let fastest = used.iter().filter_map(|rail| rail.rate_mbit).max().unwrap_or(1);
    let rate = |rail: &Rail| u64::from(rail.rate_mbit.unwrap_or(fastest));
    // Stable: rails of one rate keep the order of their networks.
    used.sort_by_key(|rail| std::cmp::Reverse(rate(rail)));
    let together = |count: usize| u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(rate(&used[count - 1]));
    // Of equal ones the first: fewer rails.
    let best = (1..=used.len()).rev().max_by_key(|count| together(*count)).unwrap_or(0);
    for rail in used.split_off(best) {
        let (name, rate) = (&mine[rail.mine].name, rate(&rail));
        left_out.push(format!("{name} to {}: {rate} Mbit/s would hold the others back", theirs[rail.theirs].name));
    }
    let joined = |by: &JoinedBy| networks.iter().all(|side| side.contains_key(by));
    for (nics, whose) in [(mine, ""), (theirs, " of the other rank")] {
        for nic in nics.iter().filter(|nic| !nic.network(numbered).is_some_and(|by| joined(&by))) {
            let why = nic.why_alone(numbered);
            left_out.push(format!("{}{whose}: {why}", nic.name));
        }
    }
    Rails { used, left_out }
}

impl Rails {
    /// How many sockets a connection along these rails has where the user says nothing: for each rail as many as the
    /// slowest of them needs, since each carries an equal part. At most `most`, and one without any rail.
    pub fn sockets(&self, most: u32) -> u32 {
        let slowest = self.used.iter().filter_map(|rail| rail.rate_mbit).min();
        let rails = u32::try_from(self.used.len()).unwrap_or(u32::MAX);
        // No rail is without a socket as long as there are some.
        let each = slowest.map_or(1, sockets_of_rate).min(most / rails.max(1)).max(1);
        rails.saturating_mul(each).clamp(1, most)
    }

    /// The rails, places among [`Rails::used`], in the order in which the sockets of a connection take them: first the
    /// receiver's, which are those of the NICs at its NUMA node, where it has such. The turn says which of them is the
    /// first.
    pub fn order(&self, (mine, theirs): (&[DataNic], &[DataNic]), receiving: Receiving) -> Vec<usize> {
        let nic = |rail: &Rail| if receiving.is_me { &mine[rail.mine] } else { &theirs[rail.theirs] };
        let is_near = |place: &usize| receiving.node.is_some() && nic(&self.used[*place]).node == receiving.node;
        let (mut near, mut far): (Vec<usize>, Vec<usize>) = (0..self.used.len()).partition(is_near);
        for side in [&mut near, &mut far] {
            let turn = receiving.turn % side.len().max(1);
            side.rotate_left(turn);
        }
        near.append(&mut far);
        near
    }
}

impl Rails {
    /// Each rail with what joins it, and each NIC that is left out with the reason, in words.
    pub fn described(&self, (mine, theirs): (&[DataNic], &[DataNic])) -> Vec<String> {
        let mut lines = Vec::new();
        if self.used.is_empty() {
            lines.push("no rail, so by the interfaces on which ranks met".to_owned());
        }
        for (number, rail) in self.used.iter().enumerate() {
            let ([mine, theirs], by) = ([&mine[rail.mine], &theirs[rail.theirs]], rail.by);
            let rate = rail.rate_mbit.map_or_else(String::new, |rate| format!(", {rate} Mbit/s"));
            let ends = format!("{} {} - {} {}", mine.name, mine.address, theirs.name, theirs.address);
            lines.push(format!("[{number}] {ends} ({by}{rate})"));
        }
        lines.extend(self.left_out.iter().map(|reason| format!("not {reason}")));
        lines
    }
}

/// The NICs of a host as a user writes them, separated by commas: `eth0=10.1.0.2/24`, and behind that, where they are
/// known, the rate in Mbit/s and the number of the network: `eth0=10.1.0.2/24@25000#3`. Without a name they are called
/// `nic0` and on.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] with what cannot be read.
pub fn parse(text: &str) -> Result<Vec<DataNic>> {
    let wrong = |part: &str, why: &str| {
        Error::invalid_argument(format!(
            "{part:?} is no interface ({why}): write NAME=ADDRESS/BITS, as eth0=10.1.0.2/24, behind it @MBIT and #RAIL"
        ))
    };
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() || parts.len() > MOST_NICS {
        return Err(wrong(text, &format!("1 to {MOST_NICS} are wanted, separated by commas")));
    }
    let nic = |(place, part): (usize, &&str)| {
        let (name, rest) = part.split_once('=').map_or((None, *part), |(name, rest)| (Some(name), rest));
        let (rest, rail) = rest.split_once('#').map_or((rest, None), |(rest, rail)| (rest, Some(rail)));
        let (rest, rate) = rest.split_once('@').map_or((rest, None), |(rest, rate)| (rest, Some(rate)));
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong(part, &format!("{text:?} is no number")));
        let (address, bits) = rest.split_once('/').ok_or_else(|| wrong(part, "the length of the subnet is missing"))?;
        let address = address.parse::<IpAddr>().map_err(|_| wrong(part, &format!("{address:?} is no address")))?;
        let subnet_bits = bits.parse::<u8>().ok().filter(|bits| *bits <= address_bits(address));
        Ok(DataNic {
            name: name.map_or_else(|| format!("nic{place}"), str::to_owned),
            address,
            subnet_bits: subnet_bits.ok_or_else(|| wrong(part, "the subnet is longer than the address"))?,
            rate_mbit: rate.map(number).transpose()?,
            node: None,
            rail: rail.map(number).transpose()?,
        })
    };
    parts.iter().enumerate().map(nic).collect()
}

impl DataNic {
    /// What it is on; `None` where it joins nobody: an address for one host alone, or one of its link, as service
    /// processors have them on every host.
    fn network(&self, numbered: bool) -> Option<JoinedBy> {
        if numbered {
            return self.rail.map(JoinedBy::Number);
        }
        let is_of_link = match self.address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let is_of_many = self.subnet_bits < address_bits(self.address);
        let first = first_address(self.address, self.subnet_bits);
        (is_of_many && !is_of_link).then_some(JoinedBy::Subnet { first, bits: self.subnet_bits })
    }

    fn why_alone(&self, numbered: bool) -> String {
        match self.network(numbered) {
            None if numbered => "RSCCL_RAILS gives it no number".to_owned(),
            None => format!("{}/{} is no network of several hosts", self.address, self.subnet_bits),
            Some(by) => format!("the other side has no interface in {by}"),
        }
    }
}

/// Whether another NIC of the list is in the subnet of the one at `place`. Then addresses do not say which NIC packets
/// leave by.
pub fn shares_subnet(nics: &[DataNic], place: usize) -> bool {
    let network = nics[place].network(false);
    network.is_some() && nics.iter().enumerate().any(|(other, nic)| other != place && nic.network(false) == network)
}

/// The NICs of each network, in the order of their addresses.
fn networks(nics: &[DataNic], numbered: bool) -> BTreeMap<JoinedBy, Vec<usize>> {
    let mut networks: BTreeMap<JoinedBy, Vec<usize>> = BTreeMap::new();
    for (place, nic) in nics.iter().enumerate() {
        if let Some(by) = nic.network(numbered) {
            networks.entry(by).or_default().push(place);
        }
    }
    for places in networks.values_mut() {
        places.sort_by_key(|place| nics[*place].address);
    }
    networks
}

/// As many rails as the side with more NICs has.
fn pairs<'a>(
    (mine, own): (&'a [DataNic], &'a [usize]),
    (theirs, others): (&'a [DataNic], &'a [usize]),
    by: JoinedBy,
) -> impl Iterator<Item = Rail> + 'a {
    let count = own.len().max(others.len());
    // Of `count` rails, in turn: how many the NIC at `place` of a side serves.
    let shared = move |nic: &DataNic, place: usize, side: usize| {
        let served = (count - place).div_ceil(side);
        nic.rate_mbit.map(|rate| rate / u32::try_from(served).unwrap_or(u32::MAX))
    };
    (0..count).map(move |number| {
        let (at, to) = (number % own.len(), number % others.len());
        let rates = [shared(&mine[own[at]], at, own.len()), shared(&theirs[others[to]], to, others.len())];
        Rail { mine: own[at], theirs: others[to], by, rate_mbit: rates.into_iter().flatten().min() }
    })
}

/// How many sockets a NIC of this rate needs. TCP carries 10 Gbit/s in one of them; where links are bundled, or a
/// switch spreads connections, one never has more than one link's part.
fn sockets_of_rate(rate_mbit: u32) -> u32 {
    match rate_mbit {
        0..=10_000 => 1,
        10_001..=50_000 => 4,
        50_001.. => 8,
    }
}

fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn first_address(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

impl fmt::Display for JoinedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinedBy::Number(number) => write!(f, "rail {number}"),
            JoinedBy::Subnet { first, bits } => write!(f, "subnet {first}/{bits}"),
        }
    }
}

/// Appends what a rank tells of its NICs: their count, then each.
pub fn encode(nics: &[DataNic], writer: &mut Writer) {
    let nics = &nics[..nics.len().min(MOST_NICS)];
    writer.u8(u8::try_from(nics.len()).expect("at most MOST_NICS"));
    for nic in nics {
        match nic.address {
            IpAddr::V4(address) => writer.u8(4).raw(&address.octets()),
            IpAddr::V6(address) => writer.u8(6).raw(&address.octets()),
        };
        writer.u8(nic.subnet_bits).text(&nic.name);
        for number in [nic.rate_mbit, nic.node, nic.rail] {
            writer.u32(number.map_or(UNKNOWN, |number| number.min(UNKNOWN - 1)));
        }
    }
}

/// Reads what [`encode`] has written.
///
/// # Errors
/// [`crate::error::Kind::Remote`] where it cannot be that.
pub fn decode(reader: &mut Reader<'_>) -> Result<Vec<DataNic>> {
    let count = usize::from(reader.u8()?);
    if count > MOST_NICS {
        return Err(reader.malformed(&format!("{count} interfaces, at most {MOST_NICS} are told")));
    }
    (0..count).map(|_| decode_nic(reader)).collect()
}

fn decode_nic(reader: &mut Reader<'_>) -> Result<DataNic> {
    let address = match reader.u8()? {
        4 => IpAddr::from(reader.array::<4>()?),
        6 => IpAddr::from(reader.array::<16>()?),
        family => return Err(reader.malformed(&format!("an address of family {family}"))),
    };
    let subnet_bits = reader.u8()?;
    if subnet_bits > address_bits(address) {
        return Err(reader.malformed(&format!("a subnet of {subnet_bits} bits")));
    }
    let name = reader.text(MOST_NAME_BYTES)?;
    let mut number = || reader.u32().map(|number| Some(number).filter(|number| *number != UNKNOWN));
    Ok(DataNic { name, address, subnet_bits, rate_mbit: number()?, node: number()?, rail: number()? })
}

/// The most NICs of a rank.
pub const MOST_NICS: usize = 16;
/// The longest name of an interface (the kernel's `IFNAMSIZ - 1`).
const MOST_NAME_BYTES: usize = 15;
/// What stands for a number that nobody knows.
const UNKNOWN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection;
    use proptest::prelude::*;

    fn nic(name: &str, address: &str, rate_mbit: Option<u32>) -> DataNic {
        let (address, bits) = address.split_once('/').unwrap();
        let (address, subnet_bits) = (address.parse().unwrap(), bits.parse().unwrap());
        DataNic { name: name.to_owned(), address, subnet_bits, rate_mbit, node: None, rail: None }
    }

    /// NICs by their addresses, called `n0`, `n1`, ...
    fn nics(addresses: &[&str]) -> Vec<DataNic> {
        addresses.iter().enumerate().map(|(place, address)| nic(&format!("n{place}"), address, None)).collect()
    }

    fn places(rails: &Rails) -> Vec<(usize, usize)> {
        rails.used.iter().map(|rail| (rail.mine, rail.theirs)).collect()
    }

    #[test]
    fn nics_pair_by_subnet_and_not_by_their_order() {
        let mine = nics(&["10.1.0.1/24", "10.2.0.1/24", "10.3.0.1/24"]);
        let theirs = nics(&["10.3.0.2/24", "10.9.0.2/24", "10.1.0.2/24"]);
        let rails = between(&mine, &theirs);
        assert_eq!(places(&rails), [(0, 2), (2, 0)]);
        assert_eq!(rails.used[1].by.to_string(), "subnet 10.3.0.0/24");
        assert_eq!(
            rails.left_out,
            [
                "n1: the other side has no interface in subnet 10.2.0.0/24",
                "n1 of the other rank: the other side has no interface in subnet 10.9.0.0/24"
            ]
        );
    }

    #[test]
    fn uneven_hosts_share_what_they_have() {
        let four = nics(&["10.0.0.1/16", "10.0.0.2/16", "10.0.0.3/16", "10.0.0.4/16"]);
        let two = nics(&["10.0.1.2/16", "10.0.1.1/16"]);
        assert_eq!(places(&between(&four, &two)), [(0, 1), (1, 0), (2, 1), (3, 0)]);
        let rails = nics(&["10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24", "10.0.3.1/24"]);
        let some = nics(&["10.0.3.9/24", "10.0.1.9/24"]);
        assert_eq!(places(&between(&rails, &some)), [(1, 1), (3, 0)]);
    }

    /// Addresses of /32 as clouds give them, of links, and those that bridges of containers have on every host.
    #[test]
    fn what_joins_nobody_is_no_rail() {
        let mine = nics(&["10.0.0.1/32", "169.254.3.1/16", "fe80::1/64", "172.17.0.1/16"]);
        let theirs = nics(&["10.0.0.2/32", "169.254.3.2/16", "fe80::2/64", "172.17.0.1/16"]);
        let rails = between(&mine, &theirs);
        assert!(rails.used.is_empty(), "{rails:?}");
        assert_eq!(rails.left_out[0], "n3: both ranks have its address 172.17.0.1");
        assert_eq!(rails.left_out[1], "n0: 10.0.0.1/32 is no network of several hosts");
        assert_eq!(between(&[], &theirs).used, []);
    }

    #[test]
    fn a_slow_nic_does_not_hold_fast_ones_back() {
        let host = |last: u8, rates: [Option<u32>; 3]| {
            let nic = |(subnet, rate)| nic(&format!("n{subnet}"), &format!("10.{subnet}.0.{last}/24"), rate);
            (0..3).zip(rates).map(nic).collect::<Vec<_>>()
        };
        let used = |rates| places(&between(&host(1, rates), &host(2, rates)));
        assert_eq!(used([Some(1_000), Some(100_000), Some(100_000)]), [(1, 1), (2, 2)]);
        assert_eq!(used([Some(100_000), Some(60_000), Some(1_000)]), [(0, 0), (1, 1)]);
        // Half the rate: two would carry what the fast one carries alone.
        assert_eq!(used([Some(100_000), Some(50_000), None]), [(0, 0), (2, 2)]);
        assert_eq!(used([None; 3]), [(0, 0), (1, 1), (2, 2)]);
        let rails = between(&host(1, [Some(10), Some(1_000), None]), &host(2, [None; 3]));
        assert_eq!(rails.left_out, ["n0 to n0: 10 Mbit/s would hold the others back"]);
        // One NIC of 100 Gbit/s serves four of 25.
        let four: Vec<DataNic> = (1..=4).map(|host| nic("n", &format!("10.0.0.{host}/24"), Some(25_000))).collect();
        let rails = between(&four, &[nic("m", "10.0.0.9/24", Some(100_000))]);
        assert_eq!(rails.used.iter().map(|rail| rail.rate_mbit).collect::<Vec<_>>(), [Some(25_000); 4]);
    }

    #[test]
    fn a_connection_has_sockets_by_the_rate_of_its_slowest_rail() {
        let host = |host: u8, rates: &[Option<u32>]| -> Vec<DataNic> {
            let nic = |(subnet, rate): (usize, &Option<u32>)| nic("n", &format!("10.{subnet}.0.{host}/24"), *rate);
            rates.iter().enumerate().map(nic).collect()
        };
        let sockets = |rates: &[Option<u32>]| between(&host(1, rates), &host(2, rates)).sockets(64);
        assert_eq!(sockets(&[]), 1, "they met somehow");
        assert_eq!([None, Some(1_000), Some(10_000)].map(|rate| sockets(&[rate])), [1; 3]);
        assert_eq!([25_000, 40_000, 50_000].map(|rate| sockets(&[Some(rate)])), [4; 3]);
        assert_eq!([100_000, 200_000, 400_000].map(|rate| sockets(&[Some(rate)])), [8; 3]);
        assert_eq!(sockets(&[Some(100_000), Some(100_000)]), 16);
        assert_eq!(sockets(&[Some(100_000), None]), 16, "what nobody knows counts as the others");
        assert_eq!(sockets(&[Some(50_000), Some(100_000)]), 8, "each carries an equal part");
        // The most is shared evenly, and no rail is left without a socket.
        assert_eq!(sockets(&[Some(100_000); 12]), 60);
        assert_eq!(between(&host(1, &[None; 3]), &host(2, &[None; 3])).sockets(2), 2);
        // Four rails to one NIC have a quarter of its rate each: 25 Gbit/s.
        let four = nics(&["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24", "10.0.0.4/24"]);
        assert_eq!(between(&four, &[nic("m", "10.0.0.9/24", Some(100_000))]).sockets(64), 16);
    }

    #[test]
    fn numbers_join_what_routers_join_and_count_where_both_have_some() {
        let numbered = |addresses: &[&str], numbers: &[Option<u32>]| {
            let mut nics = nics(addresses);
            nics.iter_mut().zip(numbers).for_each(|(nic, number)| nic.rail = *number);
            nics
        };
        let mine = numbered(&["10.1.0.1/31", "10.2.0.1/31"], &[Some(0), Some(1)]);
        let theirs = numbered(&["10.3.0.1/31", "10.4.0.1/31", "10.5.0.1/31"], &[Some(1), Some(0), None]);
        let rails = between(&mine, &theirs);
        assert_eq!(places(&rails), [(0, 1), (1, 0)]);
        assert_eq!(rails.left_out, ["n2 of the other rank: RSCCL_RAILS gives it no number"]);
        assert_eq!(rails.used[0].by.to_string(), "rail 0");
        let one_sided = [numbered(&["10.1.0.1/24"], &[Some(7)]), nics(&["10.1.0.2/24"])];
        assert_eq!(places(&between(&one_sided[0], &one_sided[1])), [(0, 0)]);
    }

    #[test]
    fn nics_of_one_subnet_are_known() {
        let nics = nics(&["10.0.0.1/24", "10.0.1.1/24", "10.0.0.2/24", "10.9.0.1/32"]);
        assert_eq!([0, 1, 2, 3].map(|place| shares_subnet(&nics, place)), [true, false, true, false]);
    }

    #[test]
    fn connections_begin_with_the_receiver_s_rails_in_turn() {
        let mut mine = nics(&["10.0.0.1/24", "10.1.0.1/24", "10.2.0.1/24", "10.3.0.1/24"]);
        let theirs = nics(&["10.0.0.2/24", "10.1.0.2/24", "10.2.0.2/24", "10.3.0.2/24"]);
        for (nic, node) in mine.iter_mut().zip([0, 0, 1, 1]) {
            nic.node = Some(node);
        }
        let rails = between(&mine, &theirs);
        let order = |is_me, node, turn| rails.order((&mine, &theirs), Receiving { is_me, node, turn });
        assert_eq!(order(true, Some(1), 0), [2, 3, 0, 1]);
        assert_eq!(order(true, Some(1), 3), [3, 2, 1, 0]);
        assert_eq!(order(false, Some(1), 2), [2, 3, 0, 1], "nothing is known of its NICs");
        assert_eq!(order(true, None, 1), [1, 2, 3, 0]);
        assert_eq!(
            Rails::default().order((&[], &[]), Receiving { is_me: true, node: None, turn: 5 }),
            Vec::<usize>::new()
        );
    }

    #[test]
    fn interfaces_are_read_as_users_write_them_and_described() {
        let mine = parse("eth0=10.1.0.1/24@25000, eth1=fd00::1/64#3").unwrap();
        assert_eq!((mine[0].rate_mbit, mine[0].rail), (Some(25_000), None));
        assert_eq!((mine[1].subnet_bits, mine[1].rail), (64, Some(3)));
        let theirs = parse("10.1.0.2/24,10.7.0.2/24").unwrap();
        let lines = between(&mine, &theirs).described((&mine, &theirs));
        assert_eq!(
            lines,
            [
                "[0] eth0 10.1.0.1 - nic0 10.1.0.2 (subnet 10.1.0.0/24, 25000 Mbit/s)",
                "not eth1: the other side has no interface in subnet fd00::/64",
                "not nic1 of the other rank: the other side has no interface in subnet 10.7.0.0/24"
            ]
        );
        assert!(between(&mine[1..], &theirs).described((&mine[1..], &theirs))[0].starts_with("no rail"));
        for text in ["", "eth0", "eth0=10.1.0.1", "10.1.0.1/33", "x/24", "10.1.0.1/24@fast", "10.1.0.1/24#-1"] {
            assert!(parse(text).unwrap_err().message().contains("is no interface"), "{text}");
        }
        assert!(parse(&vec!["10.1.0.1/24"; 17].join(",")).is_err());
    }

    fn any_nics() -> impl Strategy<Value = Vec<DataNic>> {
        let rate = prop_oneof![Just(None), Just(Some(10)), Just(Some(100)), Just(Some(25))];
        let nic = (0..3u8, 1..250u8, rate, proptest::option::of(0..3u32), proptest::option::of(0..2u32)).prop_map(
            |(subnet, host, rate_mbit, rail, node)| DataNic {
                name: format!("eth{host}"),
                address: IpAddr::from([10, 0, subnet, host]),
                subnet_bits: 24,
                rate_mbit,
                node,
                rail,
            },
        );
        collection::vec(nic, 0..6)
    }

    proptest! {
        #[test]
        fn both_ends_have_the_same_rails_in_the_same_order(mine in any_nics(), theirs in any_nics()) {
            let [here, there] = [between(&mine, &theirs), between(&theirs, &mine)];
            prop_assert_eq!(here.sockets(64), there.sockets(64));
            let turned: Vec<Rail> =
                there.used.iter().map(|rail| Rail { mine: rail.theirs, theirs: rail.mine, ..*rail }).collect();
            prop_assert_eq!(&here.used, &turned);
            let receiving = |is_me| Receiving { is_me, node: Some(1), turn: 3 };
            let near = here.order((&mine, &theirs), receiving(true));
            prop_assert_eq!(near, there.order((&theirs, &mine), receiving(false)));
        }

        #[test]
        fn what_a_rank_tells_comes_back_and_what_is_cut_short_is_refused(nics in any_nics(), cut in 0..200usize) {
            let mut writer = Writer::new();
            encode(&nics, &mut writer);
            let bytes = writer.finish();
            let mut reader = Reader::new(&bytes, "interfaces");
            prop_assert_eq!(decode(&mut reader).unwrap(), nics);
            prop_assert!(reader.finish().is_ok());
            prop_assert!(cut >= bytes.len() || decode(&mut Reader::new(&bytes[..cut], "interfaces")).is_err());
        }
    }
}
