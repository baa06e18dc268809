//! The processors that a thread may use, grouped by core and by NUMA node.

use std::path::Path;

use super::cpu;
use super::gpus::read;

/// The node that contains all processors of this thread; `None` if they belong to several nodes, or the system does not
/// tell. `root` is `/`, or a folder that replaces it in tests.
pub fn node_of_thread(root: &Path) -> Option<u32> {
    node_of(root, &allowed_ranges(root)?)
}

fn node_of(root: &Path, allowed: &[(u32, u32)]) -> Option<u32> {
    if allowed.is_empty() {
        return None;
    }
    let entries = std::fs::read_dir(root.join("sys/devices/system/node")).ok()?;
    for entry in entries.take(MAX_NODE_ENTRIES).flatten() {
        let name = entry.file_name();
        let Some(node) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok()) else { continue };
        let Some(own) = read(&entry.path().join("cpulist")).and_then(|text| ranges(&text)) else { continue };
        if allowed.iter().all(|wanted| is_inside(*wanted, &own)) {
            return Some(node);
        }
    }
    None
}

/// What all processors that this thread may use have in common; `None` for what they have not, or the system does not
/// tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadHome {
    /// Their socket (the kernel's physical package).
    pub socket: Option<u32>,
    /// Their NUMA node.
    pub node: Option<u32>,
    /// Their last-level cache, by the first processor that it serves.
    pub cache: Option<u32>,
}

/// What this thread's processors share: a rank that is bound to them stands there. `root` is `/`, or a folder that
/// replaces it in tests.
pub fn home_of_thread(root: &Path) -> ThreadHome {
    home_of(root, &allowed_processors(root))
}

/// What these processors share.
pub fn home_of(root: &Path, allowed: &[u32]) -> ThreadHome {
    let single: Vec<(u32, u32)> = allowed.iter().map(|processor| (*processor, *processor)).collect();
    let all = |of: &dyn Fn(u32) -> Option<u32>| {
        let first = of(*allowed.first()?)?;
        allowed.iter().all(|processor| of(*processor) == Some(first)).then_some(first)
    };
    ThreadHome {
        socket: all(&|processor| socket(root, processor)),
        node: node_of(root, &single),
        cache: shared_cache(root, allowed),
    }
}

fn socket(root: &Path, processor: u32) -> Option<u32> {
    read(&root.join(format!("sys/devices/system/cpu/cpu{processor}/topology/physical_package_id")))?.trim().parse().ok()
}

/// The first processor of the cache of the highest level, if it serves all `allowed` processors. It says itself whom it
/// serves, so the files of the other processors are not read: of hundreds of processors each rank would read thousands.
fn shared_cache(root: &Path, allowed: &[u32]) -> Option<u32> {
    let caches = root.join(format!("sys/devices/system/cpu/cpu{}/cache", allowed.first()?));
    let folder = |index: usize| caches.join(format!("index{index}"));
    // The kernel numbers the caches without a gap.
    let levels = (0..MAX_CACHES).map_while(|index| Some((index, read(&folder(index).join("level"))?)));
    let level = |(index, text): (usize, String)| Some((text.trim().parse::<u32>().ok()?, index));
    let (_, last) = levels.filter_map(level).max()?;
    let served = ranges(&read(&folder(last).join("shared_cpu_list"))?)?;
    let serves = |processor: &u32| served.iter().any(|(first, end)| (first..=end).contains(&processor));
    allowed.iter().all(serves).then_some(served.first()?.0)
}

/// The processors that this thread may use, by core; the processors of one core share its arithmetic units. Without
/// information about cores each processor counts as one. Empty without information about processors.
pub fn cores(root: &Path) -> Vec<Vec<u32>> {
    let allowed = allowed_processors(root);
    let mut cores: Vec<Vec<u32>> = Vec::new();
    for processor in &allowed {
        if cores.iter().any(|core| core.contains(processor)) {
            continue;
        }
        let path = root.join(format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"));
        let siblings = read(&path).and_then(|text| ranges(&text)).map(|ranges| numbers(&ranges)).unwrap_or_default();
        let mut core: Vec<u32> = allowed.iter().copied().filter(|other| siblings.contains(other)).collect();
        if !core.contains(processor) {
            core = vec![*processor];
        }
        cores.push(core);
    }
    cores
}

/// The processors that this thread may use, by NUMA node, in the order of the nodes; nodes without any are left out.
pub fn nodes(root: &Path) -> Vec<Vec<u32>> {
    let allowed = allowed_processors(root);
    let own = |number: usize| {
        let list = read(&root.join(format!("sys/devices/system/node/node{number}/cpulist")))?;
        let all = numbers(&ranges(&list)?);
        let mine: Vec<u32> = allowed.iter().copied().filter(|processor| all.contains(processor)).collect();
        (!mine.is_empty()).then_some(mine)
    };
    (0..MAX_NODES).filter_map(own).collect()
}

/// Moves this thread, which must be one of the library's own, to the processors of a node that it may use. It stays
/// where it is if there are none, or the system refuses: a thread that is far from its device only takes longer.
pub fn settle(root: &Path, node: u32) {
    let list = read(&root.join(format!("sys/devices/system/node/node{node}/cpulist"))).and_then(|text| ranges(&text));
    let own = numbers(&list.unwrap_or_default());
    let near: Vec<u32> = allowed_processors(root).into_iter().filter(|processor| own.contains(processor)).collect();
    if !near.is_empty() {
        let _stays = cpu::bind_to_all(&near);
    }
}

/// The numbers of a list such as `0-3,8,10-11`, at most as many as a machine has processors; `None` if it is not such a
/// list.
pub fn list(text: &str) -> Option<Vec<u32>> {
    ranges(text).map(|ranges| numbers(&ranges))
}

/// The processors on which this thread may run; empty where the system does not tell.
pub fn allowed_processors(root: &Path) -> Vec<u32> {
    numbers(&allowed_ranges(root).unwrap_or_default())
}

fn allowed_ranges(root: &Path) -> Option<Vec<(u32, u32)>> {
    let status = read(&root.join("proc/thread-self/status"))?;
    ranges(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// The numbers of `ranges`, at most as many as a machine has processors.
fn numbers(ranges: &[(u32, u32)]) -> Vec<u32> {
    ranges.iter().flat_map(|(first, last)| *first..=*last).take(MAX_PROCESSORS).collect()
}

/// The first and last number of each range of a list such as `0-3,8,10-11`; `None` if the text is not such a list.
fn ranges(list: &str) -> Option<Vec<(u32, u32)>> {
    let list = list.trim();
    if list.is_empty() {
        return Some(Vec::new());
    }
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last).then_some((first, last))
    };
    list.split(',').map(range).collect()
}

/// Whether every processor of `wanted` is in `own`, whose ranges are sorted.
fn is_inside(wanted: (u32, u32), own: &[(u32, u32)]) -> bool {
    let mut next = u64::from(wanted.0);
    for (first, last) in own {
        if u64::from(*first) <= next && next <= u64::from(*last) {
            next = u64::from(*last) + 1;
        }
    }
    next > u64::from(wanted.1)
}

/// The bound of the kernel's build.
const MAX_NODES: usize = 1024;
/// The bound of the kernel's build.
const MAX_PROCESSORS: usize = 8192;
/// Levels of caches, of instructions and of data, and some to spare.
const MAX_CACHES: usize = 16;
/// The folder holds the nodes, at most 1024 by the kernel's build, and a few files.
const MAX_NODE_ENTRIES: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn node(allowed: &str, nodes: &[&str]) -> Option<u32> {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("proc/thread-self")).unwrap();
        let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed:\t1\n");
        fs::write(root.join("proc/thread-self/status"), status).unwrap();
        for (number, list) in nodes.iter().enumerate() {
            let node = root.join(format!("sys/devices/system/node/node{number}"));
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("cpulist"), format!("{list}\n")).unwrap();
        }
        fs::create_dir_all(root.join("sys/devices/system/node/power")).unwrap();
        node_of_thread(root)
    }

    #[test]
    fn a_thread_on_one_nodes_processors_is_on_that_node() {
        let two = ["0-3,8-11", "4-7,12-15"];
        let cases: &[(&str, &[&str], Option<u32>)] = &[
            ("0-15", &two, None),
            ("4-5,12", &two, Some(1)),
            ("2-4", &two, None),
            ("9", &two, Some(0)),
            ("0-1", &["0-1"], Some(0)),
            ("0-7", &["0-3,4-7"], Some(0)),
            ("3-1", &two, None),
            ("x", &two, None),
            ("", &two, None),
            ("0-4294967295", &two, None),
            ("0", &["", "0"], Some(1)),
            ("0", &["nonsense"], None),
        ];
        for (allowed, nodes, expected) in cases {
            assert_eq!(node(allowed, nodes), *expected, "{allowed} {nodes:?}");
        }
    }

    #[test]
    fn processors_are_told_by_core_and_by_node() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert!(cores(root).is_empty() && nodes(root).is_empty());
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/thread-self/status", "Cpus_allowed_list:\t0-3,6\n");
        assert_eq!(cores(root), [[0], [1], [2], [3], [6]], "each its own core where nothing else is known");
        for (processor, siblings) in [(0, "0,4"), (1, "1,5"), (2, "2,6"), (3, "3,7"), (6, "2,6")] {
            write(&format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"), siblings);
        }
        assert_eq!(cores(root), [vec![0], vec![1], vec![2, 6], vec![3]]);
        for (node, list) in [(0, "0-1,4-5"), (1, "2-3,6-7"), (2, "8-9")] {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), list);
        }
        assert_eq!(nodes(root), [vec![0, 1], vec![2, 3, 6]]);
    }

    #[test]
    fn a_thread_is_where_all_its_processors_are() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // Two sockets of one node each, with two last-level caches of two processors.
        for processor in 0..8 {
            let cpu = format!("sys/devices/system/cpu/cpu{processor}");
            write(&format!("{cpu}/topology/physical_package_id"), &format!("{}\n", processor / 4));
            let third = format!("{}-{}\n", processor / 2 * 2, processor / 2 * 2 + 1);
            for (index, level, served) in [(0, "1", &*format!("{processor}")), (1, "1", "0"), (2, "3", &third)] {
                write(&format!("{cpu}/cache/index{index}/level"), level);
                write(&format!("{cpu}/cache/index{index}/shared_cpu_list"), served);
            }
        }
        for (node, list) in [(0, "0-3"), (1, "4-7")] {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), list);
        }
        let shared = |allowed: &str| {
            write("proc/thread-self/status", &format!("Cpus_allowed_list:\t{allowed}\n"));
            let ThreadHome { socket, node, cache } = home_of_thread(root);
            (socket, node, cache)
        };
        assert_eq!(shared("5"), (Some(1), Some(1), Some(4)));
        assert_eq!(shared("2-3"), (Some(0), Some(0), Some(2)));
        assert_eq!(shared("0-3"), (Some(0), Some(0), None));
        assert_eq!(shared("0,4"), (None, None, None));
        assert_eq!(shared("0,99"), (None, None, None));
        // One processor's cache tells of the others: theirs need not be there.
        fs::remove_dir_all(root.join("sys/devices/system/cpu/cpu3/cache")).unwrap();
        assert_eq!(shared("2-3"), (Some(0), Some(0), Some(2)));
        assert_eq!(shared("3"), (Some(0), Some(0), None));
    }

    /// An own thread goes to the node of its GPU, as far as it may; the thread that starts it stays where it is.
    #[test]
    fn an_own_thread_settles_near_its_device_and_its_callers_does_not_move() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let here = allowed_processors(Path::new("/"));
        let last = here[here.len() - 1];
        let all: Vec<String> = here.iter().map(u32::to_string).collect();
        write("proc/thread-self/status", &format!("Cpus_allowed_list:\t{}\n", all.join(",")));
        // Half of the node is not for this process.
        write("sys/devices/system/node/node3/cpulist", &format!("{last},8000-8190\n"));
        write("sys/devices/system/node/node4/cpulist", "8000-8190\n");
        let information =
            "Model: \t\t H100\nGPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\nDevice Minor: \t 0\n";
        write("proc/driver/nvidia/gpus/0000:3b:00.0/information", information);
        write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "3\n");
        write("dev/nvidia0", "");
        let uuid = [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        let node = super::super::gpus::node_of_gpu(&root, uuid);
        assert_eq!((node, super::super::gpus::node_of_gpu(&root, [1; 16])), (Some(3), None));
        let settled = |node: u32| {
            let root = root.clone();
            let body = move || {
                settle(&root, node);
                allowed_processors(Path::new("/"))
            };
            crate::sys::thread::spawn("own", body).unwrap().join().unwrap()
        };
        assert_eq!((settled(3), settled(4), settled(5)), (vec![last], here.clone(), here.clone()));
        assert_eq!(allowed_processors(Path::new("/")), here);
    }

    #[test]
    fn a_system_without_the_files_does_not_tell() {
        assert_eq!(node_of_thread(tempfile::tempdir().unwrap().path()), None);
        assert_eq!(home_of_thread(tempfile::tempdir().unwrap().path()), ThreadHome::default());
    }
}
