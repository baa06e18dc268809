//! The NVIDIA GPUs of this host, read from files of the driver and the kernel, without any library of the driver.

use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::fork::PerProcess;
use super::{numa, nvml, open};

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its place on the PCI bus: `0000:3b:00.0`, in lower case.
    pub bus_id: String,
    /// The UUID, `GPU-…`, if the driver tells it.
    pub uuid: Option<String>,
    /// The NUMA node, if the kernel knows it.
    pub node: Option<u32>,
    /// The parts into which it is split (MIG); `None` for a GPU that is used whole, or is in MIG mode but not split
    /// yet.
    pub parts: Option<Vec<Part>>,
}

/// A GPU instance (MIG) as a process uses it, with one of its compute instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The number of the GPU instance.
    pub instance: u32,
    /// The number of its first compute instance that this process may use.
    pub compute: u32,
    /// Whether it is the instance's only compute instance that this process may use.
    pub is_only: bool,
}

impl Part {
    /// The name in `CUDA_VISIBLE_DEVICES`; for a GPU without a UUID, its bus id takes the UUID's place.
    pub fn name(self, of: &Gpu) -> String {
        let gpu = of.uuid.as_ref().unwrap_or(&of.bus_id);
        format!("MIG-{gpu}/{}/{}", self.instance, self.compute)
    }
}

/// The GPUs of the host that this process may use, by bus id; none without NVIDIA's driver. `root` is `/`, or a folder
/// that replaces it in tests.
pub fn list(root: &Path) -> Vec<Gpu> {
    let devices = root.join(PCI_DEVICES);
    let of_driver = |bus_id: String, folder: &Path| {
        let text = read(&folder.join("information")).unwrap_or_default();
        let node = node_of(&devices, &bus_id);
        let minor = minor_of(&text);
        let file = minor.map(|minor| root.join(format!("dev/nvidia{minor}")));
        let parts = minor.and_then(|minor| parts_of(root, minor));
        Some((Gpu { bus_id, uuid: uuid_of(&text), node, parts }, file))
    };
    let of_kernel = |bus_id: String, folder: &Path| {
        is_gpu(folder).then(|| Gpu { node: node_of(&devices, &bus_id), bus_id, uuid: None, parts: None })
    };
    let mut told = scan(&root.join(DRIVER_GPUS), of_driver);
    // A container may hide the driver's files but show the bus.
    if told.is_empty() {
        return scan(&devices, of_kernel);
    }
    // The driver lists all GPUs of the host, even if a container or a batch system gives this process only some.
    let files: Vec<Option<PathBuf>> = told.iter().map(|(_, file)| file.clone()).collect();
    let mut usable = usable(&files, libc::R_OK | libc::W_OK).into_iter();
    told.retain(|_| usable.next() == Some(true));
    told.into_iter().map(|(gpu, _)| gpu).collect()
}

/// The same, where the driver's files show nothing, as its management library tells them: of a container that hides the
/// files, or of a virtual machine of GPUs. The library is asked once in a process: it takes its time.
pub fn list_or_ask(root: &Path) -> Vec<Gpu> {
    let listed = list(root);
    if listed.iter().any(|gpu| gpu.uuid.is_some()) {
        return listed;
    }
    static TOLD: PerProcess<Vec<nvml::Gpu>> = PerProcess::new();
    // Nothing is not kept: the driver may come later.
    let ask = || nvml::gpus().filter(|told| !told.is_empty()).ok_or(());
    let Ok(told) = TOLD.get_or_try_init(ask) else { return listed };
    let devices = root.join(PCI_DEVICES);
    let gpu = |gpu: &nvml::Gpu| {
        let (node, uuid) = (node_of(&devices, &gpu.bus_id), gpu.uuid.map(name_of));
        Some((place_of(&gpu.bus_id)?, Gpu { bus_id: gpu.bus_id.clone(), uuid, node, parts: None }))
    };
    let mut found: Vec<_> = told.iter().filter_map(gpu).collect();
    found.sort_by_key(|(place, _)| *place);
    found.truncate(MAX_GPUS);
    found.into_iter().map(|(_, gpu)| gpu).collect()
}

/// A UUID as the driver writes it.
fn name_of(uuid: [u8; 16]) -> String {
    let digits: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| digits[range].concat();
    format!("GPU-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
}

/// The driver's branch, the first number of its version: 570 of `570.86.15`.
pub fn driver_branch(root: &Path) -> Option<u32> {
    let text = read(&root.join(DRIVER_VERSION))?;
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    // The line has names, the version, and a date.
    line.split_whitespace().find_map(|word| {
        let (branch, rest) = word.split_once('.')?;
        rest.starts_with(|first: char| first.is_ascii_digit()).then_some(branch)?.parse().ok()
    })
}

/// For each of these device files, whether this process may open it by `mode`; CUDA shows the GPUs whose files it can
/// open. If this process can open none, the first use of CUDA creates them, so all count as usable; an entry without a
/// file counts too.
fn usable(files: &[Option<PathBuf>], mode: libc::c_int) -> Vec<bool> {
    let may_open: Vec<bool> =
        files.iter().map(|file| file.as_deref().is_none_or(|file| may_open(file, mode))).collect();
    let is_any_there = files.iter().zip(&may_open).any(|(file, may_open)| file.is_some() && *may_open);
    if is_any_there { may_open } else { vec![true; files.len()] }
}

/// The parts of the GPU whose device file has this number, in the order of their numbers; `None` if it is not split.
///
/// ```text
/// capabilities/gpu0/mig/gi1/access         what it takes to use GPU instance 1: a device file's number
/// capabilities/gpu0/mig/gi1/ci0/access     likewise its compute instance 0
/// ```
/// The folder `mig` alone means nothing: every GPU that could be split has it.
fn parts_of(root: &Path, minor: u32) -> Option<Vec<Part>> {
    let instances = numbered(&root.join(format!("{CAPABILITIES}/gpu{minor}/mig")), "gi");
    if instances.is_empty() {
        return None;
    }
    let mut found = Vec::new();
    for (instance, folder) in instances {
        let computes = numbered(&folder, "ci");
        let is_only = computes.len() == 1;
        for (compute, own) in computes {
            let files = [&folder, &own].map(|folder| capability(root, folder));
            found.push((Part { instance, compute, is_only }, files));
        }
    }
    let files: Vec<Option<PathBuf>> = found.iter().flat_map(|(_, files)| files.clone()).collect();
    let usable = usable(&files, libc::R_OK);
    let both = usable.chunks(2).map(|pair| pair == [true, true]);
    let mut parts: Vec<Part> =
        found.into_iter().zip(both).filter(|(_, usable)| *usable).map(|((part, _), _)| part).collect();
    parts.dedup_by_key(|part| part.instance);
    Some(parts)
}

/// The folders `prefix` + number in `parent`, in the order of the numbers.
fn numbered(parent: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .take(MAX_BUS_ENTRIES)
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort_unstable();
    found.truncate(MAX_GPUS);
    found
}

/// The device file that grants the capability in `folder`.
fn capability(root: &Path, folder: &Path) -> Option<PathBuf> {
    let text = read(&folder.join("access"))?;
    let number: u32 = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:"))?.trim().parse().ok()?;
    Some(root.join(format!("dev/nvidia-caps/nvidia-cap{number}")))
}

/// The results of `make` for each folder in `parent` whose name is a bus id, in the order of the bus.
fn scan<T>(parent: &Path, make: impl Fn(String, &Path) -> Option<T>) -> Vec<T> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.take(MAX_BUS_ENTRIES).flatten() {
        let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
        if let Some(place) = place_of(&name) {
            found.extend(make(name, &entry.path()).map(|made| (place, made)));
        }
    }
    found.sort_by_key(|(place, _)| *place);
    found.truncate(MAX_GPUS);
    found.into_iter().map(|(_, made)| made).collect()
}

/// Whether this process may open `file`: its mode and the limits of a batch system (cgroups) allow it.
pub(super) fn may_open(file: &Path, mode: libc::c_int) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` ends in a zero byte and lives until the call returns.
    unsafe { libc::access(path.as_ptr(), mode) == 0 }
}

/// Domain, bus, device and function of a bus id such as `0000:3b:00.0`.
fn place_of(bus_id: &str) -> Option<(u32, u8, u8, u8)> {
    let (domain, rest) = bus_id.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let byte = |text| u8::from_str_radix(text, 16).ok();
    Some((u32::from_str_radix(domain, 16).ok()?, byte(bus)?, byte(device)?, byte(function)?))
}

/// Whether the PCI device in `folder` is a display or compute device of NVIDIA's that is bound to its driver.
fn is_gpu(folder: &Path) -> bool {
    let number = |name: &str| {
        let text = read(&folder.join(name))?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let driver = std::fs::read_link(folder.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name);
    // The driver first: every init asks this of all devices of the host, which mostly have others.
    driver.is_some_and(|name| name == "nvidia")
        && number("vendor") == Some(NVIDIA)
        && number("class").is_some_and(|class| CLASSES.contains(&(class >> 8)))
}

/// The NUMA node of the GPU with this UUID; `None` where the driver's files do not show it. `root` as in [`list`].
pub fn node_of_gpu(root: &Path, uuid: [u8; 16]) -> Option<u32> {
    list(root).into_iter().find(|gpu| gpu.uuid.as_deref().and_then(nvml::uuid_of) == Some(uuid))?.node
}

/// Moves this thread, one of the library's own, to the processors of that GPU's node which it may use; where the node
/// is not known, it stays.
pub fn settle_near(uuid: [u8; 16]) {
    let root = Path::new("/");
    if let Some(node) = node_of_gpu(root, uuid) {
        numa::settle(root, node);
    }
}

fn uuid_of(information: &str) -> Option<String> {
    let line = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?.trim();
    // A driver that does not know the UUID yet prints question marks.
    let is_name = line.len() <= MAX_UUID_BYTES && line.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_name && line.starts_with("GPU-")).then(|| line.to_owned())
}

/// The number of the GPU's device file.
fn minor_of(information: &str) -> Option<u32> {
    information.lines().find_map(|line| line.strip_prefix("Device Minor:"))?.trim().parse().ok()
}

fn node_of(devices: &Path, bus_id: &str) -> Option<u32> {
    // The kernel writes -1 if the node is unknown.
    read(&devices.join(bus_id).join("numa_node"))?.trim().parse().ok()
}

/// Reads the beginning of a short file.
pub(super) fn read(path: &Path) -> Option<String> {
    // A file that cannot be read counts as absent: every caller handles that.
    let file = open::file(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

const DRIVER_GPUS: &str = "proc/driver/nvidia/gpus";
const DRIVER_VERSION: &str = "proc/driver/nvidia/version";
/// The folder with the driver's capabilities of MIG.
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";
const PCI_DEVICES: &str = "sys/bus/pci/devices";
/// NVIDIA's number as a vendor of PCI devices.
const NVIDIA: u32 = 0x10de;
/// VGA and 3D controllers.
const CLASSES: [u32; 2] = [0x0300, 0x0302];
/// More GPUs than any host has; a rank tells the others of all it sees.
pub const MAX_GPUS: usize = 64;
/// A large host has a few thousand PCI devices.
const MAX_BUS_ENTRIES: usize = 1 << 16;
/// `GPU-` and 36 characters.
const MAX_UUID_BYTES: usize = 64;
/// The files that are read here say a few lines.
const MAX_FILE_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn pci(root: &Path, bus_id: &str, (vendor, class, node): (&str, &str, &str), driver: Option<&str>) {
        let folder = format!("{PCI_DEVICES}/{bus_id}");
        put(root, &format!("{folder}/vendor"), vendor);
        put(root, &format!("{folder}/class"), class);
        put(root, &format!("{folder}/numa_node"), node);
        if let Some(driver) = driver {
            let target = format!("../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(target, root.join(folder).join("driver")).unwrap();
        }
    }

    #[test]
    fn the_driver_tells_its_gpus_and_the_kernel_their_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let information =
            |uuid: &str| format!("Model: \t\t Some\nIRQ:   \t\t 70\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n");
        put(root, "proc/driver/nvidia/gpus/0001:01:00.0/information", &information("GPU-????????-????"));
        put(root, "proc/driver/nvidia/gpus/0000:CA:00.0/information", &information("GPU-aa11-22"));
        put(root, "proc/driver/nvidia/gpus/0000:3b:00.0/information", "\u{0}\u{1}nonsense");
        put(root, "proc/driver/nvidia/gpus/not-a-bus/information", "");
        put(root, &format!("{PCI_DEVICES}/0000:ca:00.0/numa_node"), "1\n");
        put(root, &format!("{PCI_DEVICES}/0000:3b:00.0/numa_node"), "-1\n");
        let gpu = |bus_id: &str, uuid: Option<&str>, node| Gpu {
            bus_id: bus_id.to_owned(),
            uuid: uuid.map(str::to_owned),
            node,
            parts: None,
        };
        let expected = [
            gpu("0000:3b:00.0", None, None),
            gpu("0000:ca:00.0", Some("GPU-aa11-22"), Some(1)),
            gpu("0001:01:00.0", None, None),
        ];
        assert_eq!(list(root), expected);
    }

    #[test]
    fn of_the_drivers_gpus_those_count_whose_device_files_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        // Numbers of device files are not in the order of the bus.
        for (bus, minor) in [("01", "2"), ("02", "0"), ("03", "1"), ("04", "?")] {
            let path = format!("proc/driver/nvidia/gpus/0000:{bus}:00.0/information");
            put(root, &path, &format!("Model: \t Some\nDevice Minor: \t {minor}\n"));
        }
        let buses = || list(root).into_iter().map(|gpu| gpu.bus_id[5..7].to_owned()).collect::<Vec<_>>();
        assert_eq!(buses(), ["01", "02", "03", "04"], "no file yet");
        put(root, "dev/nvidia2", "");
        assert_eq!(buses(), ["01", "04"], "the other two are not given to this process");
        put(root, "dev/nvidia0", "");
        put(root, "dev/nvidia1", "");
        assert_eq!(buses(), ["01", "02", "03", "04"]);
    }

    /// A GPU with this number of a device file, and the capabilities of its parts: instance, compute instance, number
    /// of the device file. An instance's own file has the number that is 100 above its number.
    fn split(root: &Path, (bus, minor): (&str, u32), computes: &[(u32, u32, u32)]) {
        let information = format!("GPU UUID: \t GPU-{bus}\nDevice Minor: \t {minor}\n");
        put(root, &format!("proc/driver/nvidia/gpus/0000:{bus}:00.0/information"), &information);
        let mig = format!("{CAPABILITIES}/gpu{minor}/mig");
        fs::create_dir_all(root.join(&mig)).unwrap();
        let access = |folder: &str, file: u32| {
            let text = format!("DeviceFileMinor: {file}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
            put(root, &format!("{mig}/{folder}/access"), &text);
        };
        for (instance, compute, file) in computes {
            access(&format!("gi{instance}"), 100 + instance);
            access(&format!("gi{instance}/ci{compute}"), *file);
        }
    }

    fn names(root: &Path) -> Vec<Vec<String>> {
        let of = |gpu: &Gpu| gpu.parts.iter().flatten().map(|part| part.name(gpu)).collect();
        list(root).iter().map(of).collect()
    }

    #[test]
    fn a_gpu_that_mig_has_split_has_parts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        split(root, ("01", 1), &[]);
        split(root, ("02", 0), &[(11, 0, 30), (2, 1, 32), (2, 0, 31)]);
        put(root, &format!("{CAPABILITIES}/gpu0/mig/gi13/access"), "DeviceFileMinor: 113\n");
        put(root, &format!("{CAPABILITIES}/gpu0/mig/nonsense/access"), "");
        assert_eq!(list(root)[0].parts, None, "the folder alone says nothing");
        let part = |instance, is_only| Part { instance, compute: 0, is_only };
        assert_eq!(list(root)[1].parts, Some(vec![part(2, false), part(11, true)]), "13 has no compute instance");
        assert_eq!(names(root)[1], ["MIG-GPU-02/2/0", "MIG-GPU-02/11/0"]);
        // What a container or a batch system gives: both files of a part.
        for file in [102, 111, 30] {
            put(root, &format!("dev/nvidia-caps/nvidia-cap{file}"), "");
        }
        assert_eq!(names(root)[1], ["MIG-GPU-02/11/0"]);
        put(root, "dev/nvidia-caps/nvidia-cap32", "");
        assert_eq!(names(root)[1], ["MIG-GPU-02/2/1", "MIG-GPU-02/11/0"]);
    }

    #[test]
    fn a_gpu_without_a_uuid_names_its_parts_by_the_bus() {
        let gpu = Gpu { bus_id: "0000:3b:00.0".to_owned(), uuid: None, node: None, parts: None };
        assert_eq!(Part { instance: 3, compute: 1, is_only: true }.name(&gpu), "MIG-0000:3b:00.0/3/1");
    }

    #[test]
    fn the_drivers_branch_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(driver_branch(root), None);
        let lines = [
            ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023", Some(535)),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@x.y)",
                Some(580),
            ),
            ("NVRM version: something without numbers", None),
            ("GCC version:  gcc version 12.2.0 (Debian)", None),
        ];
        for (line, expected) in lines {
            put(root, DRIVER_VERSION, &format!("{line}\nGCC version:  gcc version 12.2.0\n"));
            assert_eq!(driver_branch(root), expected, "{line}");
        }
    }

    #[test]
    fn without_the_drivers_files_the_bus_tells() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        pci(root, "0000:81:00.0", ("0x10de\n", "0x030200\n", "1\n"), Some("nvidia"));
        pci(root, "0000:05:00.0", ("0x10de\n", "0x030000\n", "0\n"), Some("nvidia"));
        pci(root, "0000:06:00.0", ("0x10de\n", "0x030000\n", "0\n"), Some("vfio-pci"));
        pci(root, "0000:07:00.0", ("0x10de\n", "0x030000\n", "0\n"), None);
        pci(root, "0000:05:00.1", ("0x10de\n", "0x040300\n", "0\n"), Some("snd_hda_intel"));
        pci(root, "0000:02:00.0", ("0x1002\n", "0x030000\n", "0\n"), Some("amdgpu"));
        let found: Vec<(String, Option<u32>)> = list(root).into_iter().map(|gpu| (gpu.bus_id, gpu.node)).collect();
        assert_eq!(found, [("0000:05:00.0".to_owned(), Some(0)), ("0000:81:00.0".to_owned(), Some(1))]);
    }

    #[test]
    fn a_host_without_any_has_none_and_a_place_is_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(list(folder.path()).is_empty());
        assert_eq!(place_of("10000:e1:00.7"), Some((0x10000, 0xe1, 0, 7)));
        for wrong in ["", "0000", "0000:00", "0000:00:00", "0000:00:00.x", "0000:100:00.0", ":::..."] {
            assert_eq!(place_of(wrong), None, "{wrong}");
        }
    }
}
