//! The NUMA node that a thread is bound to.

use std::path::Path;

use super::gpus::read;

/// The node whose processors are all that this thread may run on; `None` where it may run on several nodes, or the system does not
/// tell. `root` is `/`, or what stands for it in tests.
pub fn node_of_thread(root: &Path) -> Option<u32> {
    let status = read(&root.join("proc/thread-self/status"))?;
    let allowed = ranges(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)?;
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

/// First and last of each range of a list such as `0-3,8,10-11`; `None` where it is none.
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

/// Whether every processor of `wanted` is in `own`, whose ranges stand in order.
fn is_inside(wanted: (u32, u32), own: &[(u32, u32)]) -> bool {
    let mut next = u64::from(wanted.0);
    for (first, last) in own {
        if u64::from(*first) <= next && next <= u64::from(*last) {
            next = u64::from(*last) + 1;
        }
    }
    next > u64::from(wanted.1)
}

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
    fn a_system_without_the_files_does_not_tell() {
        assert_eq!(node_of_thread(tempfile::tempdir().unwrap().path()), None);
    }
}
