//! Where the ranks of a step of Slurm meet if Slurm is all that they have: at a port of the step's first node, which
//! all of them compute from what Slurm tells each.
//!
//! The process with `SLURM_NODEID` 0 and `SLURM_LOCALID` 0 serves there, at the first free one of these ports:
//!
//! 1. those of `SLURM_STEP_RESV_PORTS`, which no other step has (`MpiParams=ports=` in `slurm.conf`);
//! 2. the last 64 of `RSCCL_PORT_RANGE`, beginning at one that depends on job, step and count of restarts;
//! 3. nine below the ports that a system gives to outgoing connections, which depend on the same.

use super::job::text;
use crate::config::environment::Environment;
use crate::config::socket::PortRange;

/// The place where the ranks of a step of Slurm meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstNode {
    /// The name of the step's first node.
    pub(crate) name: String,
    /// The ports that the place may have, in the order in which they are tried: at least one.
    pub(crate) ports: Vec<u16>,
    /// Whether this process serves there. It need not be rank 0: a distribution may put rank 0 anywhere.
    pub(crate) is_mine: bool,
    /// Whether the process that serves is known to be rank 0.
    pub(crate) is_rank_zeros: bool,
}

impl FirstNode {
    /// The first node of this process's step, of the job `job`, for ranks that listen in `range`; `None` where
    /// Slurm does not tell enough.
    pub(super) fn of(environment: &Environment, range: Option<PortRange>, job: &str) -> Option<FirstNode> {
        let number = |name| text(environment, name)?.trim().parse::<u32>().ok();
        let (node, local) = (number(NODE)?, number(LOCAL)?);
        let name = first_name(text(environment, NODES)?)?;
        let reserved = text(environment, RESERVED).and_then(listed);
        let seed = seed(job);
        let ports = reserved.unwrap_or_else(|| match range {
            Some(range) => last_of(range, seed),
            None => derived(seed),
        });
        let is_arbitrary = text(environment, DISTRIBUTION).is_none_or(|how| how.contains("arbitrary"));
        Some(FirstNode { name, ports, is_mine: node == 0 && local == 0, is_rank_zeros: !is_arbitrary })
    }
}

/// The first name of a list as Slurm writes it: `n[03-05,9],m1` begins with `n03`.
fn first_name(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut left = list.trim();
    while let Some(end) = left.find(['[', ',']) {
        name.push_str(&left[..end]);
        if left[end..].starts_with(',') {
            left = "";
            break;
        }
        let (inside, after) = left[end + 1..].split_once(']')?;
        name.push_str(inside.split([',', '-']).next()?);
        left = after;
    }
    name.push_str(left);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_name.then_some(name)
}

/// The ports of a list such as `12012-12013,12020`; `None` if it is no such list.
fn listed(list: &str) -> Option<Vec<u16>> {
    let mut ports = Vec::new();
    for item in list.trim().split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        ports.extend((first..=last).filter(|port| *port != 0).take(MOST_PORTS));
    }
    ports.truncate(MOST_PORTS);
    (!ports.is_empty()).then_some(ports)
}

fn seed(job: &str) -> usize {
    let hash = blake3::hash(job.as_bytes());
    let (first, _) = hash.as_bytes().split_first_chunk::<4>().expect("a hash has 32 bytes");
    usize::try_from(u32::from_le_bytes(*first)).unwrap_or(0)
}

/// The last ports of a range, since the listeners of ranks take its first free ones. Another job begins elsewhere.
fn last_of(range: PortRange, seed: usize) -> Vec<u16> {
    let mut ports: Vec<u16> = range.ports().collect();
    ports.reverse();
    ports.truncate(MOST_PORTS);
    if !ports.is_empty() {
        let first = seed % ports.len();
        ports.rotate_left(first);
    }
    ports
}

/// Ports that need no agreement. Two jobs with one port in common have no second one, mostly.
fn derived(seed: usize) -> Vec<u16> {
    let wide = usize::from(LAST_DERIVED - FIRST_DERIVED) + 1;
    let offset = |turn: usize| u16::try_from((seed % wide + turn * STRIDE) % wide).ok();
    (0..=SPARE_PORTS).filter_map(offset).map(|offset| FIRST_DERIVED + offset).collect()
}

/// The ports to derive one from: below those that Linux gives to outgoing connections by default (from 32768). Where a
/// node's `net.ipv4.ip_local_port_range` begins lower, the ports stay these, since all nodes have to find the same.
const FIRST_DERIVED: u16 = 20_480;
const LAST_DERIVED: u16 = 32_767;
/// The distance of two spare ports: a prime number, so that nine of them differ.
const STRIDE: usize = 1361;
/// How many ports are tried beside the first one.
const SPARE_PORTS: usize = 8;
/// How many ports of a list or a range are tried.
const MOST_PORTS: usize = 64;

const NODE: &str = "SLURM_NODEID";
const LOCAL: &str = "SLURM_LOCALID";
const NODES: &str = "SLURM_STEP_NODELIST";
const RESERVED: &str = "SLURM_STEP_RESV_PORTS";
const DISTRIBUTION: &str = "SLURM_DISTRIBUTION";
/// The variables that this file reads.
pub(super) const NAMES: &[&str] = &[NODE, NODES, RESERVED, DISTRIBUTION];

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: &[(&str, &str)] = &[(NODE, "0"), (LOCAL, "0"), (NODES, "n[3-5]"), (DISTRIBUTION, "cyclic")];

    fn place(more: &[(&str, &str)], range: Option<PortRange>, job: &str) -> Option<FirstNode> {
        let environment = Environment::of(STEP.iter().chain(more).copied());
        FirstNode::of(&environment, range, job)
    }

    #[test]
    fn the_first_name_of_a_list_is_read_as_slurm_writes_it() {
        let names = [
            ("n0", "n0"),
            ("n0,m1", "n0"),
            ("n[0-2]", "n0"),
            ("n[03-05,9],m1", "n03"),
            ("n[7]", "n7"),
            ("rack[1-2]node[08-10]", "rack1node08"),
            ("a[1,3]-ib.site.org,b", "a1-ib.site.org"),
        ];
        for (list, name) in names {
            assert_eq!(first_name(list).as_deref(), Some(name), "{list}");
        }
        for nonsense in ["", ",", "n[1", "[", "n[]]", "a b", "n\u{e9}"] {
            assert_eq!(first_name(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_process_that_serves_is_known_by_its_place_and_not_by_its_rank() {
        let mine = place(&[], None, "job").unwrap();
        assert_eq!((&*mine.name, mine.is_mine, mine.is_rank_zeros), ("n3", true, true));
        for elsewhere in [(NODE, "1"), (LOCAL, "1")] {
            assert!(!place(&[elsewhere], None, "job").unwrap().is_mine, "{elsewhere:?}");
        }
        assert!(!place(&[(DISTRIBUTION, "arbitrary")], None, "job").unwrap().is_rank_zeros);
        for missing in [(NODE, ""), (LOCAL, "x"), (NODES, ",")] {
            assert_eq!(place(&[missing], None, "job"), None, "{missing:?}");
        }
    }

    #[test]
    fn reserved_ports_come_before_a_range_and_that_before_derived_ones() {
        let range = PortRange::new(50_000, 50_099);
        let ports = |more: &[(&str, &str)], range, job: &str| place(more, range, job).unwrap().ports;
        assert_eq!(ports(&[(RESERVED, "12012-12013,12020")], range, "job"), [12_012, 12_013, 12_020]);
        let of_range = ports(&[(RESERVED, "nonsense")], range, "job");
        assert_eq!(of_range.len(), MOST_PORTS);
        assert!(of_range.iter().all(|port| (50_000..=50_099).contains(port)));
        assert_eq!(ports(&[(RESERVED, "1-65535")], None, "job").len(), MOST_PORTS, "bounded");
        assert_eq!(ports(&[], PortRange::new(7, 7), "job"), [7]);
        for job in ["Slurm's job 7 step 3", "Slurm's job 7 step 4", "Slurm's job 7 step 3, restart 1"] {
            let mut derived = ports(&[], None, job);
            assert_eq!(derived, ports(&[], None, job), "the same on all ranks");
            assert!(derived.iter().all(|port| (FIRST_DERIVED..=LAST_DERIVED).contains(port)));
            derived.sort_unstable();
            derived.dedup();
            assert_eq!(derived.len(), SPARE_PORTS + 1);
        }
        // The listeners of 64 ranks, which take the first ports of a range, leave some to meet at.
        let taken = 50_000..50_128;
        for job in 0..1000 {
            let ports = ports(&[], PortRange::new(50_000, 50_199), &format!("job {job}"));
            assert!(ports.iter().any(|port| !taken.contains(port)), "job {job}: {ports:?}");
        }
        let first = |job: &str| ports(&[], None, job)[0];
        assert_ne!(first("Slurm's job 7 step 3"), first("Slurm's job 7 step 4"));
    }
}
