//! The text of a machine file: TOML, every mistake told with its line.
//!
//! ```toml
//! driver_version = 12080          # what cuDriverGetVersion answers
//! connections = 8                 # hardware queues
//!
//! [[gpu]]                         # one or, by `count`, several alike
//! kind = "h100"
//! count = 2
//!
//! [[switch]]
//! gpus = [0, 1]
//! links = 18
//! ```

use toml::Spanned;

use super::fields::{Field, Fields, line_of};
use super::kind;
use super::{FabricAttr, Gpu, Link, Machine, Switch, index};

/// Bounds: more is a mistake in the file, not a machine.
const MAX_GPUS: u32 = 64;
const MAX_HOSTS: u32 = 16;
const MAX_CONNECTIONS: u32 = 32;
/// Links of a GPU, as NVML counts them (`NVML_NVLINK_MAX_LINKS`).
const MAX_LINKS: u32 = 18;
const MIB: u64 = 1 << 20;
/// A GPU needs this much for contexts and one block of each size.
const MIN_MEMORY_MIB: u64 = 64;
const MAX_MEMORY_MIB: u64 = 1 << 20;
/// The least driver that loads PTX ISA 8.0.
const MIN_DRIVER: u32 = 12_000;

struct MachineText {
    driver_version: Spanned<u32>,
    driver_name: String,
    hosts: Spanned<u32>,
    pcie_peer: bool,
    connections: Spanned<u32>,
    mps: bool,
    virtual_memory: bool,
    legacy_ipc: bool,
    posix_fd: bool,
    fabric: FabricAttr,
    weak: bool,
    checks: bool,
    /// The host whose view this is; `vcuda run` writes it into the file that it hands to the processes of a host.
    host: Option<Spanned<u32>>,
    gpu: Vec<Spanned<GpuText>>,
    link: Vec<Spanned<LinkText>>,
    switch: Vec<Spanned<SwitchText>>,
}

struct GpuText {
    kind: String,
    count: u32,
    host: u32,
    numa_node: u32,
    pcie_switch: Option<u32>,
    bus_id: Option<String>,
    uuid: Option<String>,
    name: Option<String>,
    capability: Option<(u32, u32)>,
    memory_mib: Option<u64>,
    sms: Option<u32>,
}

struct LinkText {
    gpus: (u32, u32),
    count: u32,
    ll128: bool,
}

struct SwitchText {
    gpus: Vec<u32>,
    links: u32,
    ll128: bool,
}

impl MachineText {
    fn read(fields: &mut Fields<'_>) -> Result<MachineText, String> {
        let or = |given: Option<Spanned<u32>>, usual| given.unwrap_or_else(|| Spanned::new(0..0, usual));
        Ok(MachineText {
            driver_version: or(fields.placed("driver_version")?, 12_080),
            driver_name: fields.optional("driver_name")?.unwrap_or_else(|| "570.86.15".to_owned()),
            hosts: or(fields.placed("hosts")?, 1),
            pcie_peer: fields.or("pcie_peer", true)?,
            connections: or(fields.placed("connections")?, 8),
            mps: fields.or("mps", false)?,
            virtual_memory: fields.or("virtual_memory", true)?,
            legacy_ipc: fields.or("legacy_ipc", true)?,
            posix_fd: fields.or("posix_fd", true)?,
            fabric: fields.or("fabric", FabricAttr::None)?,
            weak: fields.or("weak", true)?,
            checks: fields.or("checks", true)?,
            host: fields.placed("host")?,
            gpu: fields.tables("gpu", GpuText::read)?,
            link: fields.tables("link", LinkText::read)?,
            switch: fields.tables("switch", SwitchText::read)?,
        })
    }
}

impl GpuText {
    fn read(fields: &mut Fields<'_>) -> Result<GpuText, String> {
        Ok(GpuText {
            kind: fields.required("kind")?,
            count: fields.or("count", 1)?,
            host: fields.or("host", 0)?,
            numa_node: fields.or("numa_node", 0)?,
            pcie_switch: fields.optional("pcie_switch")?,
            bus_id: fields.optional("bus_id")?,
            uuid: fields.optional("uuid")?,
            name: fields.optional("name")?,
            capability: fields.optional("capability")?,
            memory_mib: fields.optional("memory_mib")?,
            sms: fields.optional("sms")?,
        })
    }
}

impl LinkText {
    fn read(fields: &mut Fields<'_>) -> Result<LinkText, String> {
        let (gpus, count) = (fields.required("gpus")?, fields.or("count", 1)?);
        Ok(LinkText { gpus, count, ll128: fields.or("ll128", true)? })
    }
}

impl SwitchText {
    fn read(fields: &mut Fields<'_>) -> Result<SwitchText, String> {
        let (gpus, links) = (fields.required("gpus")?, fields.or("links", 1)?);
        Ok(SwitchText { gpus, links, ll128: fields.or("ll128", true)? })
    }
}

impl Field for FabricAttr {
    const WANTED: &'static str = "\"none\", \"lies\", \"no-channel\" or \"works\"";

    fn of(value: &toml::de::DeValue<'_>) -> Option<FabricAttr> {
        Some(match value.as_str()? {
            "none" => FabricAttr::None,
            "lies" => FabricAttr::Lies,
            "no-channel" => FabricAttr::NoChannel,
            "works" => FabricAttr::Works,
            _ => return None,
        })
    }
}

/// Reads a machine, or says in which line the mistake is.
pub(super) fn parse(name: &str, text: &str) -> Result<Machine, String> {
    let file = Fields::of_text(text, MachineText::read)?;
    let reader = Reader { text, name, hosts: *file.hosts.get_ref() };
    reader.check_numbers(&file)?;
    let mut machine = Machine {
        name: name.to_owned(),
        driver_version: *file.driver_version.get_ref(),
        driver_name: file.driver_name.clone(),
        hosts: reader.hosts,
        host: None,
        gpus: reader.gpus(&file.gpu)?,
        links: Vec::new(),
        switches: Vec::new(),
        pcie_peer: file.pcie_peer,
        connections: *file.connections.get_ref(),
        mps: file.mps,
        virtual_memory: file.virtual_memory,
        legacy_ipc: file.legacy_ipc,
        posix_fd: file.posix_fd,
        fabric: file.fabric,
        weak: file.weak,
        checks: file.checks,
    };
    machine.links = reader.links(&file.link, &machine.gpus)?;
    machine.switches = reader.switches(&file.switch, &machine.gpus)?;
    reader.count_links(&mut machine)?;
    match &file.host {
        None => Ok(machine),
        Some(host) if *host.get_ref() < machine.hosts => Ok(machine.on_host(*host.get_ref())),
        Some(host) => Err(reader
            .at(host, &format!("host {} of {} hosts (0 to {})", host.get_ref(), machine.hosts, machine.hosts - 1))),
    }
}

struct Reader<'a> {
    text: &'a str,
    name: &'a str,
    hosts: u32,
}

impl Reader<'_> {
    fn at<T>(&self, place: &Spanned<T>, what: &str) -> String {
        format!("line {}: {what}", line_of(self.text, place.span().start))
    }

    fn check_numbers(&self, file: &MachineText) -> Result<(), String> {
        let within = |value: &Spanned<u32>, what: &str, least: u32, most: u32| match *value.get_ref() {
            number if (least..=most).contains(&number) => Ok(()),
            number => Err(self.at(value, &format!("{what} = {number} ({least} to {most})"))),
        };
        within(&file.driver_version, "driver_version", MIN_DRIVER, 99_990)?;
        within(&file.hosts, "hosts", 1, MAX_HOSTS)?;
        within(&file.connections, "connections", 1, MAX_CONNECTIONS)
    }

    fn gpus(&self, texts: &[Spanned<GpuText>]) -> Result<Vec<Gpu>, String> {
        let mut gpus: Vec<Gpu> = Vec::new();
        for place in texts {
            let text = place.get_ref();
            if text.count == 0 || text.count > MAX_GPUS {
                return Err(self.at(place, &format!("count = {} (1 to {MAX_GPUS})", text.count)));
            }
            if text.count > 1 && (text.bus_id.is_some() || text.uuid.is_some()) {
                return Err(self.at(place, "bus_id and uuid belong to one GPU: leave count out"));
            }
            for _ in 0..text.count {
                let gpu = self.gpu(text, gpus.len()).map_err(|what| self.at(place, &what))?;
                if gpus
                    .iter()
                    .any(|other| other.uuid == gpu.uuid || (other.host, &other.bus_id) == (gpu.host, &gpu.bus_id))
                {
                    return Err(
                        self.at(place, &format!("another GPU has bus id {} or UUID {}", gpu.bus_id, gpu.uuid_text()))
                    );
                }
                if gpus.last().is_some_and(|last| last.host > gpu.host) {
                    return Err(self.at(place, "list the GPUs of host 0 first, then those of host 1, and so on"));
                }
                gpus.push(gpu);
            }
        }
        match gpus.len() {
            0 => Err("line 1: the machine has no [[gpu]]".to_owned()),
            count if count > index(MAX_GPUS) => Err(format!("line 1: {count} GPUs (1 to {MAX_GPUS})")),
            _ => Ok(gpus),
        }
    }

    fn gpu(&self, text: &GpuText, number: usize) -> Result<Gpu, String> {
        let kind =
            kind::find(&text.kind).ok_or_else(|| format!("kind {:?} is none of {}", text.kind, kind::names()))?;
        if text.host >= self.hosts {
            return Err(format!("host = {} (0 to {}; `hosts` says how many there are)", text.host, self.hosts - 1));
        }
        let memory_mib = text.memory_mib.unwrap_or(kind.memory_mib);
        if !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&memory_mib) {
            return Err(format!("memory_mib = {memory_mib} ({MIN_MEMORY_MIB} to {MAX_MEMORY_MIB})"));
        }
        let sms = text.sms.unwrap_or(kind.sms);
        if sms == 0 || sms > 512 {
            return Err(format!("sms = {sms} (1 to 512)"));
        }
        let bus_id = text.bus_id.clone().unwrap_or_else(|| format!("0000:{:02X}:00.0", 0x10 + number));
        Ok(Gpu {
            name: text.name.clone().unwrap_or_else(|| kind.name.to_owned()),
            uuid: match &text.uuid {
                Some(uuid) => uuid_of_text(uuid)?,
                None => uuid_of_name(&format!("{} {number}", self.name)),
            },
            bus_id: checked_bus_id(&bus_id)?,
            host: text.host,
            numa_node: text.numa_node,
            pcie_switch: text.pcie_switch.unwrap_or(text.numa_node),
            capability: text.capability.unwrap_or(kind.capability),
            memory_bytes: memory_mib * MIB,
            sms,
            limits: kind.limits,
            pcie_generation: kind.pcie_generation,
            pcie_width: 16,
            nvlinks: 0,
        })
    }

    fn links(&self, texts: &[Spanned<LinkText>], gpus: &[Gpu]) -> Result<Vec<Link>, String> {
        let mut links: Vec<Link> = Vec::new();
        for place in texts {
            let text = place.get_ref();
            let (a, b) = text.gpus;
            self.known(a, gpus).and_then(|()| self.known(b, gpus)).map_err(|what| self.at(place, &what))?;
            if a == b || gpus[index(a)].host != gpus[index(b)].host {
                return Err(self.at(place, &format!("a link joins two GPUs of one host, not {a} and {b}")));
            }
            if links.iter().any(|link| link.joins(a, b)) {
                return Err(self.at(place, &format!("GPUs {a} and {b} are linked twice: use count")));
            }
            if text.count == 0 || text.count > MAX_LINKS {
                return Err(self.at(place, &format!("count = {} (1 to {MAX_LINKS})", text.count)));
            }
            links.push(Link { a, b, count: text.count, ll128: text.ll128 });
        }
        Ok(links)
    }

    fn switches(&self, texts: &[Spanned<SwitchText>], gpus: &[Gpu]) -> Result<Vec<Switch>, String> {
        let mut switches: Vec<Switch> = Vec::new();
        for place in texts {
            let text = place.get_ref();
            for gpu in &text.gpus {
                self.known(*gpu, gpus).map_err(|what| self.at(place, &what))?;
                let again = text.gpus.iter().filter(|other| *other == gpu).count() > 1;
                if again || switches.iter().any(|switch| switch.gpus.contains(gpu)) {
                    return Err(self.at(place, &format!("GPU {gpu} is on a switch already")));
                }
            }
            if text.links == 0 || text.links > MAX_LINKS {
                return Err(self.at(place, &format!("links = {} (1 to {MAX_LINKS})", text.links)));
            }
            switches.push(Switch { gpus: text.gpus.clone(), links: text.links, ll128: text.ll128 });
        }
        Ok(switches)
    }

    fn known(&self, gpu: u32, gpus: &[Gpu]) -> Result<(), String> {
        if index(gpu) < gpus.len() {
            Ok(())
        } else {
            Err(format!("GPU {gpu} is out of range (0 to {})", gpus.len() - 1))
        }
    }

    fn count_links(&self, machine: &mut Machine) -> Result<(), String> {
        for number in 0..machine.gpus.len() {
            let is_here = |gpu: u32| index(gpu) == number;
            let direct: u32 =
                machine.links.iter().filter(|link| is_here(link.a) || is_here(link.b)).map(|link| link.count).sum();
            let switched: u32 = machine
                .switches
                .iter()
                .filter(|switch| switch.gpus.iter().any(|gpu| is_here(*gpu)))
                .map(|switch| switch.links)
                .sum();
            if direct + switched > MAX_LINKS {
                return Err(format!("line 1: GPU {number} has {} NVLinks (0 to {MAX_LINKS})", direct + switched));
            }
            machine.gpus[number].nvlinks = direct + switched;
        }
        Ok(())
    }
}

fn checked_bus_id(text: &str) -> Result<String, String> {
    let upper = text.to_uppercase();
    let parts: Vec<&str> = upper.split([':', '.']).collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let hexadecimal = parts.iter().all(|part| part.chars().all(|digit| digit.is_ascii_hexdigit()));
    if lengths == [4, 2, 2, 1] && hexadecimal {
        Ok(upper)
    } else {
        Err(format!("bus_id {text:?} is not like \"0000:1B:00.0\""))
    }
}

fn uuid_of_text(text: &str) -> Result<[u8; 16], String> {
    let wrong = || format!("uuid {text:?} is not like \"GPU-\" and 32 hexadecimal digits");
    let digits: String = text.strip_prefix("GPU-").ok_or_else(wrong)?.chars().filter(|digit| *digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| wrong())?;
    if digits.len() == 32 { Ok(number.to_be_bytes()) } else { Err(wrong()) }
}

/// A UUID that is the same each time the machine is read: FNV-1a of the GPU's name, with the bits of a random UUID (version 4).
fn uuid_of_name(name: &str) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    // Twice over: the last letters of a name reach the first digits only through what follows them.
    let bytes = name.bytes().chain(name.bytes());
    let mut uuid = bytes.fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)).to_be_bytes();
    uuid[6] = (uuid[6] & 0x0f) | 0x40;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::super::{Machine, Path};

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let cases = [
            ("", "line 1: the machine has no [[gpu]]"),
            ("mps = 3\n", "line 1: "),
            ("mps = true\nspeed = 3\n", "line 2: unknown field `speed`"),
            ("\n\n[[gpu]]\nkind = \"h200x\"\n", "line 3: kind \"h200x\" is none of a100"),
            ("[[gpu]]\nkind = \"h100\"\nsms = 0\n", "line 1: sms = 0 (1 to 512)"),
            ("[[gpu]]\nkind = \"h100\"\nhost = 1\n", "line 1: host = 1"),
            ("connections = 0\n[[gpu]]\nkind = \"h100\"\n", "line 1: connections = 0 (1 to 32)"),
            ("[[gpu]]\nkind = \"h100\"\n[[link]]\ngpus = [0, 1]\n", "line 3: GPU 1 is out of range (0 to 0)"),
            (
                "[[gpu]]\nkind = \"h100\"\ncount = 2\n[[link]]\ngpus = [0, 1]\n[[link]]\ngpus = [1, 0]\n",
                "line 6: GPUs 1 and 0 are linked twice",
            ),
            ("[[gpu]]\nkind = \"h100\"\nbus_id = \"1B:0\"\n", "line 1: bus_id"),
            ("[[gpu]]\nkind = \"h100\"\nuuid = \"GPU-12\"\n", "line 1: uuid"),
            ("fabric = \"maybe\"\n", "line 1: fabric is wanted as \"none\""),
            ("\n= 3\n", "line 2: "),
            ("mps = true\nmps = true\n", "line 2: duplicate key"),
            ("hosts = -1\n", "line 1: hosts is wanted as a number of 32 bits"),
            ("[gpu]\nkind = \"h100\"\n", "line 1: gpu is wanted as [[gpu]]"),
            ("\n[[gpu]]\nsms = 4\n", "line 2: missing field `kind`"),
            ("[[gpu]]\nkind = \"h100\"\n\nspeed = 3\n", "line 4: unknown field `speed`"),
            ("[[gpu]]\nkind = \"h100\"\n[[link]]\ngpus = [0, 1, 2]\n", "line 4: gpus is wanted as two numbers"),
            ("host = 2\n[[gpu]]\nkind = \"h100\"\n", "line 1: host 2 of 1 hosts"),
        ];
        for (text, expected) in cases {
            let error = Machine::parse("m", text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error:?} lacks {expected:?}");
        }
    }

    #[test]
    fn what_the_file_says_is_what_the_machine_has() {
        let text = "driver_version = 12020\nweak = false\n[[gpu]]\nkind = \"rtx5090\"\nsms = 4\nmemory_mib = 128\nbus_id = \"0000:c1:00.0\"\n\
                    uuid = \"GPU-00112233-4455-6677-8899-aabbccddeeff\"\n[[gpu]]\nkind = \"a100\"\nnuma_node = 1\n\
                    [[link]]\ngpus = [1, 0]\ncount = 3\nll128 = false\n";
        let machine = Machine::parse("m", text).unwrap();
        assert_eq!((machine.driver_version, machine.weak, machine.checks), (12_020, false, true));
        let first = &machine.gpus[0];
        assert_eq!((first.sms, first.memory_bytes, first.capability), (4, 128 << 20, (12, 0)));
        assert_eq!((first.bus_id.as_str(), first.bus_numbers()), ("0000:C1:00.0", (0, 0xc1, 0)));
        assert_eq!(first.uuid_text(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(machine.path(0, 1), Path::NvLink(3));
        assert!(machine.can_access_peer(0, 1) && !machine.ll128(0, 1));
    }

    #[test]
    fn a_machine_keeps_its_uuids() {
        let text = "[[gpu]]\nkind = \"h100\"\ncount = 2\n";
        let (once, again) = (Machine::parse("m", text).unwrap(), Machine::parse("m", text).unwrap());
        assert_eq!(once, again);
        assert_ne!(once.gpus[0].uuid, Machine::parse("n", text).unwrap().gpus[0].uuid);
    }

    #[test]
    fn the_file_of_a_host_holds_its_gpus_alone() {
        let text = "host = 1\nhosts = 2\n[[gpu]]\nkind = \"h100\"\n[[gpu]]\nkind = \"a100\"\nhost = 1\ncount = 2\n";
        let machine = Machine::parse("m", text).unwrap();
        assert_eq!((machine.host, machine.gpus.len()), (Some(1), 2));
        assert_eq!(machine.gpus[0].capability, (8, 0));
    }
}
