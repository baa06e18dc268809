//! The NVIDIA GPUs of this host, from the files of the driver and the kernel: no library of a driver is needed.

use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its place on the PCI bus: `0000:3b:00.0`, in lower case.
    pub bus_id: String,
    /// `GPU-…`, where the driver tells it.
    pub uuid: Option<String>,
    /// Its NUMA node, where the kernel knows one.
    pub node: Option<u32>,
}

/// The GPUs of the host that this process may use, by bus id; none where there is no driver of NVIDIA's. `root` is `/`, or what stands
/// for it in tests.
pub fn list(root: &Path) -> Vec<Gpu> {
    let devices = root.join(PCI_DEVICES);
    let of_driver = |bus_id: String, folder: &Path| {
        let text = read(&folder.join("information")).unwrap_or_default();
        let node = node_of(&devices, &bus_id);
        let file = minor_of(&text).map(|minor| root.join(format!("dev/nvidia{minor}")));
        Some((Gpu { bus_id, uuid: uuid_of(&text), node }, file))
    };
    let of_kernel = |bus_id: String, folder: &Path| {
        let node = node_of(&devices, &bus_id);
        is_gpu(folder).then_some(Gpu { bus_id, uuid: None, node })
    };
    let mut told = scan(&root.join(DRIVER_GPUS), of_driver);
    // A container may hide the driver's files and show the bus.
    if told.is_empty() {
        return scan(&devices, of_kernel);
    }
    // The driver tells of all GPUs of the host, also where a container or a batch system gives this process some: CUDA shows those whose
    // files it can open. Where there are no files at all, the first use of CUDA makes them.
    let may_open: Vec<bool> = told.iter().map(|(_, file)| file.as_deref().is_none_or(may_open)).collect();
    if told.iter().zip(&may_open).any(|((_, file), may_open)| file.is_some() && *may_open) {
        let mut each = may_open.iter();
        told.retain(|_| each.next() == Some(&true));
    }
    told.into_iter().map(|(gpu, _)| gpu).collect()
}

/// What `make` yields of each folder in `parent` that is named by a bus id, in the order of the bus.
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

/// Whether this process may open `file`, by its mode and by the limits that a batch system sets.
fn may_open(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` ends in a zero byte and lives until the call returns.
    unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
}

/// Domain, bus, device and function of `0000:3b:00.0`.
fn place_of(bus_id: &str) -> Option<(u32, u8, u8, u8)> {
    let (domain, rest) = bus_id.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let byte = |text| u8::from_str_radix(text, 16).ok();
    Some((u32::from_str_radix(domain, 16).ok()?, byte(bus)?, byte(device)?, byte(function)?))
}

/// Whether the PCI device in `folder` is a display or compute device of NVIDIA's that its driver has.
fn is_gpu(folder: &Path) -> bool {
    let number = |name: &str| {
        let text = read(&folder.join(name))?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let driver = std::fs::read_link(folder.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name);
    number("vendor") == Some(NVIDIA)
        && number("class").is_some_and(|class| CLASSES.contains(&(class >> 8)))
        && driver.is_some_and(|name| name == "nvidia")
}

fn uuid_of(information: &str) -> Option<String> {
    let line = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?.trim();
    // A driver that does not know it yet prints question marks.
    let is_name = line.len() <= MAX_UUID_BYTES && line.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_name && line.starts_with("GPU-")).then(|| line.to_owned())
}

/// The number of the GPU's device file.
fn minor_of(information: &str) -> Option<u32> {
    information.lines().find_map(|line| line.strip_prefix("Device Minor:"))?.trim().parse().ok()
}

fn node_of(devices: &Path, bus_id: &str) -> Option<u32> {
    // -1 is the kernel's word for unknown.
    read(&devices.join(bus_id).join("numa_node"))?.trim().parse().ok()
}

/// The beginning of a file that says a few lines.
pub(super) fn read(path: &Path) -> Option<String> {
    // What cannot be read says nothing: every caller has an answer for that.
    let file = std::fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

const DRIVER_GPUS: &str = "proc/driver/nvidia/gpus";
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
