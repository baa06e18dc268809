//! The quota of processor time that control groups set for this process, as containers and batch systems do.
//!
//! A group may use so many microseconds of processor time in each period, on all of its processors together: with
//! 200,000 in periods of 100,000 it has the time of two processors, however many its threads may run on. Once the time
//! is used up all threads of the group stand still until the next period.

use std::fmt;
use std::path::{Path, PathBuf};

/// How much processor time a group of processes has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quota {
    /// In thousandths of a processor; at least 1.
    thousandths: u32,
}

impl Quota {
    /// The smallest quota of the control groups that this process is in, of version 1 and 2; `None` where none of them
    /// has one, or the system does not tell. `root` is the root of the file system, `/` but for tests.
    pub fn of_process(root: &Path) -> Option<Quota> {
        let own = read(&root.join("proc/self/cgroup"))?;
        let mounts = read(&root.join("proc/self/mountinfo"))?;
        own.lines().filter_map(Membership::parse).filter_map(|membership| membership.least_quota(root, &mounts)).min()
    }

    /// `used` microseconds in periods of `period`; `None` where that is no quota.
    fn of(used: u64, period: u64) -> Option<Quota> {
        let thousandths = used.checked_mul(1000)?.checked_div(period)?;
        // More than any machine has is no limit; less than a thousandth is one all the same.
        Some(Quota { thousandths: u32::try_from(thousandths).ok()?.max(1) })
    }

    /// How many threads can run all the time: at least 1.
    pub fn processors(self) -> usize {
        (self.thousandths as usize / 1000).max(1)
    }

    /// In thousandths of a processor, above 0.
    pub fn thousandths(self) -> u32 {
        self.thousandths
    }

    /// So many thousandths of a processor; 0 is no quota.
    pub fn from_thousandths(thousandths: u32) -> Option<Quota> {
        (thousandths > 0).then_some(Quota { thousandths })
    }
}

/// The processors: "1.5".
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.thousandths) / 1000.0)
    }
}

/// The group of this process in one hierarchy that may rule processors.
#[derive(Debug)]
struct Membership<'a> {
    version: Version,
    /// From the root of the hierarchy.
    path: &'a Path,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl<'a> Membership<'a> {
    /// A line of `/proc/self/cgroup`: `ID:CONTROLLERS:PATH`, in version 2 without controllers.
    fn parse(line: &'a str) -> Option<Membership<'a>> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, Path::new(fields.next()?));
        let version = match controllers {
            "" => Version::V2,
            _ if has_processors(controllers) => Version::V1,
            _ => return None,
        };
        Some(Membership { version, path })
    }

    /// The smallest quota of the group and of those above it, as far as they are mounted.
    fn least_quota(&self, root: &Path, mounts: &str) -> Option<Quota> {
        let (top, folder) = mounts.lines().find_map(|line| self.folder(line))?;
        let top = root.join(top.strip_prefix("/").unwrap_or(&top));
        let groups = folder.ancestors().map(|group| top.join(group));
        groups.filter_map(|group| self.version.quota(&group)).min()
    }

    /// Where a line of `/proc/self/mountinfo` mounts this hierarchy, and the group's folder below it.
    fn folder(&self, mount: &str) -> Option<(PathBuf, PathBuf)> {
        let (place, kind) = mount.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (shown, top) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let is_mine = match (self.version, kind.next()?) {
            (Version::V2, "cgroup2") => true,
            (Version::V1, "cgroup") => has_processors(kind.nth(1)?),
            _ => return None,
        };
        // A container may see its own group alone, mounted in place of the hierarchy's root.
        let below = self.path.strip_prefix(shown).unwrap_or(Path::new(""));
        let is_inside = !below.components().any(|part| part.as_os_str() == "..");
        is_mine.then(|| (PathBuf::from(top), if is_inside { below.to_path_buf() } else { PathBuf::new() }))
    }
}

impl Version {
    /// The quota of the group with this folder alone.
    fn quota(self, group: &Path) -> Option<Quota> {
        match self {
            Version::V2 => {
                let text = read(&group.join("cpu.max"))?;
                let (used, period) = text.trim().split_once(' ')?;
                Quota::of(used.parse().ok()?, period.trim().parse().ok()?)
            }
            Version::V1 => {
                let number = |name: &str| read(&group.join(name))?.trim().parse::<u64>().ok();
                // -1, which is no such number, is no quota.
                Quota::of(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
            }
        }
    }
}

fn has_processors(controllers: &str) -> bool {
    controllers.split(',').any(|controller| controller == "cpu")
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const V1: &str = "30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// The quota of a process with these files.
    fn quota_of(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        let proc = [("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)];
        for (path, text) in proc.iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let quota = Quota::of_process(root.path());
        assert_eq!(quota, quota.and_then(|quota| Quota::from_thousandths(quota.thousandths())));
        quota.map(|quota| format!("{quota}: {}", quota.processors()))
    }

    #[test]
    fn the_smallest_quota_of_a_group_and_those_above_it_counts() {
        let own = "0::/job/step\n";
        let files = |top, job, step| {
            let files = [
                ("sys/fs/cgroup/cpu.max", top),
                ("sys/fs/cgroup/job/cpu.max", job),
                ("sys/fs/cgroup/job/step/cpu.max", step),
            ];
            quota_of(own, V2, &files)
        };
        assert_eq!(files("max 100000\n", "max 100000\n", "max 100000\n"), None);
        assert_eq!(files("max 100000\n", "max 100000\n", "150000 100000\n").as_deref(), Some("1.5: 1"));
        assert_eq!(files("max 100000\n", "400000 100000\n", "800000 100000\n").as_deref(), Some("4: 4"));
        assert_eq!(files("10000 20000\n", "400000 100000\n", "800000 100000\n").as_deref(), Some("0.5: 1"));
        assert_eq!(files("", "100000\n", "-3 x\n"), None, "what is no quota");
        assert_eq!(files("1 1000000\n", "5 0\n", "18446744073709551615 1\n").as_deref(), Some("0.001: 1"));
    }

    #[test]
    fn groups_of_version_1_have_two_files() {
        let own = "4:memory:/job\n3:cpu,cpuacct:/job\n0::/job\n";
        let files = |quota| {
            let files = [
                ("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", quota),
                ("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/memory/job/cpu.cfs_quota_us", "1\n"),
            ];
            quota_of(own, V1, &files)
        };
        assert_eq!(files("-1\n"), None);
        assert_eq!(files("250000\n").as_deref(), Some("2.5: 2"));
        // Without the period nothing is known.
        assert_eq!(quota_of(own, V1, &[("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "1000\n")]), None);
    }

    /// A container whose group stands where the root of the hierarchy would, by a namespace or by the mount.
    #[test]
    fn a_container_sees_its_own_group_at_the_top() {
        let files = [("sys/fs/cgroup/cpu.max", "200000 100000\n")];
        assert_eq!(quota_of("0::/\n", V2, &files).as_deref(), Some("2: 2"));
        assert_eq!(quota_of("0::/../other\n", V2, &files).as_deref(), Some("2: 2"));
        let mounted = V2.replace(" / /sys", " /docker/abc /sys");
        assert_eq!(quota_of("0::/docker/abc\n", &mounted, &files).as_deref(), Some("2: 2"));
        assert_eq!(quota_of("0::/elsewhere\n", &mounted, &files).as_deref(), Some("2: 2"));
    }

    #[test]
    fn broken_files_are_no_quota() {
        assert_eq!(quota_of("", "", &[]), None);
        assert_eq!(quota_of("0::/\n:\n::\n", "a b - c\n - \n29 23\n 1 2 3 4 5 - cgroup\n", &[]), None);
        assert_eq!(Quota::of_process(Path::new("/nowhere")), None);
    }
}
