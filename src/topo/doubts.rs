//! What in a description reads well and still looks like a mistake: a GPU that differs from its sisters, links that one
//! end alone tells, numbers that two devices share. Each is a note: the description may be right, and then the machine
//! is not.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::topo::bandwidth::{Bandwidth, GpuGeneration};
use crate::topo::description::{Function, Gpu, Machine, Nic, Pci, walk};
use crate::topo::notes::Notes;

/// What looks like a mistake, as notes for people.
pub fn of(machine: &Machine) -> Vec<String> {
    let several = machine.cpus.iter().any(|cpu| cpu.host != machine.cpus[0].host);
    let hosts: HashMap<u64, usize> = machine.hosts().into_iter().zip(0..).collect();
    let on = |host: u64| if several { format!("host {} ", hosts[&host]) } else { String::new() };
    let mut found = ComparedDevices::default();
    for cpu in &machine.cpus {
        found.cpus.push((cpu.host, cpu.numa, format!("{}CPU {}", on(cpu.host), cpu.numa)));
        cpu.nics.iter().for_each(|nic| found.nic(cpu.host, &on(cpu.host), nic));
        walk(&cpu.devices, &mut |device| match &device.function {
            Function::Gpu(gpu) => {
                let name = format!("{}GPU {} ({})", on(cpu.host), gpu.device, device.bus_id);
                found.gpus.push(KnownGpu { host: cpu.host, name, gpu, pci: device });
            }
            Function::Nic(nic) => found.nic(cpu.host, &on(cpu.host), nic),
            Function::Bridge => {}
        });
    }
    let mut notes = Notes::default();
    sisters(&found.gpus, &mut notes);
    one_sided(&found.gpus, &mut notes);
    shared_numbers(&found, &mut notes);
    notes.lines()
}

/// All that is compared.
#[derive(Default)]
struct ComparedDevices<'a> {
    /// Host, number and name.
    cpus: Vec<(u64, u32, String)>,
    ports: Vec<(u64, u32, String)>,
    gpus: Vec<KnownGpu<'a>>,
}

impl ComparedDevices<'_> {
    fn nic(&mut self, host: u64, on: &str, nic: &Nic) {
        self.ports.extend(nic.ports.iter().map(|port| (host, port.device, format!("{on}NIC {}", port.name))));
    }
}

struct KnownGpu<'a> {
    host: u64,
    name: String,
    gpu: &'a Gpu,
    pci: &'a Pci,
}

impl KnownGpu<'_> {
    fn links(&self) -> u32 {
        self.gpu.links.iter().fold(0, |sum, link| sum.saturating_add(link.count))
    }
}

/// GPUs of one kind mostly have as many links, a coherent link of one width, and one width of PCI Express.
fn sisters(gpus: &[KnownGpu<'_>], notes: &mut Notes) {
    let mut kinds: HashMap<GpuGeneration, Vec<&KnownGpu<'_>>> = HashMap::new();
    gpus.iter().for_each(|known| kinds.entry(known.gpu.generation).or_default().push(known));
    // In the order of the description.
    let mut kinds: Vec<Vec<&KnownGpu<'_>>> = kinds.into_values().filter(|kind| kind.len() > 1).collect();
    kinds.sort_by_key(|kind| (kind[0].host, kind[0].gpu.device, &kind[0].pci.bus_id));
    for kind in kinds {
        let what =
            if matches!(kind[0].gpu.generation, GpuGeneration::Nvidia { .. }) { "NVLinks" } else { "xGMI links" };
        if let Some((most, count)) = usual(kind.iter().map(|known| known.links()).filter(|links| *links > 0)) {
            let is_rule = 2 * count > kind.len();
            for known in &kind {
                match known.links() {
                    0 => notes.about(
                        &known.name,
                        format!(
                            "it has no {what}, of its sisters {count} have {most} each: channels through it are \
                             as narrow as PCI Express, or there are none"
                        ),
                    ),
                    links if links < most && is_rule => {
                        let text = format!("it has {links} {what}, of its sisters {count} have {most} each");
                        notes.about(&known.name, text);
                    }
                    _ => {}
                }
            }
        }
        let coherent =
            |known: &&KnownGpu<'_>| known.gpu.c2c.map_or(0, |(links, each)| u64::from(links).saturating_mul(each));
        if let Some((most, count)) = usual(kind.iter().map(coherent).filter(|width| *width > 0)) {
            for known in
                kind.iter().filter(|known| coherent(known) < most && (coherent(known) == 0 || 2 * count > kind.len()))
            {
                let (own, most) = (Bandwidth(coherent(known)), Bandwidth(most));
                let text = format!("its coherent link (c2c) carries {own}, that of {count} of its sisters {most}");
                notes.about(&known.name, text);
            }
        }
        if let Some((most, count)) = usual(kind.iter().map(|known| known.pci.width()))
            && 2 * count > kind.len()
        {
            for known in kind.iter().filter(|known| known.pci.width() < most) {
                let own = known.pci.width();
                let text = format!("its PCI Express link carries {own}, that of {count} of its sisters {most}");
                notes.about(&known.name, text);
            }
        }
        let without = kind.iter().filter(|known| known.gpu.clique.is_none()).count();
        if without > 0 && without < kind.len() {
            for known in kind.iter().filter(|known| known.gpu.clique.is_none()) {
                let told = kind.len() - without;
                let text = format!("it names no NVLink clique, {told} of its sisters do: its links do not join theirs");
                notes.about(&known.name, text);
            }
        }
    }
}

/// The value that most have, the larger one of two that equally many have, and how many have it.
fn usual<T: Copy + Ord + Hash>(values: impl Iterator<Item = T>) -> Option<(T, usize)> {
    let mut counts: HashMap<T, usize> = HashMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().max_by_key(|(value, count)| (*count, *value))
}

/// Links between two GPUs are told by both; each end's row is one direction.
fn one_sided(gpus: &[KnownGpu<'_>], notes: &mut Notes) {
    let ends: HashMap<(u64, &str), &KnownGpu<'_>> =
        gpus.iter().map(|known| ((known.host, &*known.pci.bus_id), known)).collect();
    let mut rows: HashMap<(u64, &str, &str), u64> = HashMap::new();
    for known in gpus {
        for link in &known.gpu.links {
            *rows.entry((known.host, &known.pci.bus_id, &link.target)).or_default() += u64::from(link.count);
        }
    }
    for known in gpus {
        let mut seen: HashSet<&str> = HashSet::new();
        for link in &known.gpu.links {
            let (own, target) = (&*known.pci.bus_id, &*link.target);
            let Some(other) = ends.get(&(known.host, target)).filter(|_| seen.insert(target)) else { continue };
            let there = rows.get(&(known.host, own, target)).copied().unwrap_or_default();
            let back = rows.get(&(known.host, target, own)).copied().unwrap_or_default();
            if there > back {
                let text = format!(
                    "it names {there} links to {}, which names {back} back: each row is one direction",
                    other.name
                );
                notes.about(&known.name, text);
            }
        }
    }
}

/// Files of graphs, and options, name devices by their numbers.
fn shared_numbers(found: &ComparedDevices<'_>, notes: &mut Notes) {
    let mut cpus: HashSet<(u64, u32)> = HashSet::new();
    for (host, numa, name) in &found.cpus {
        if !cpus.insert((*host, *numa)) {
            notes.about(name, "a second NUMA node of this number: coherent links lead to the first");
        }
    }
    let mut gpus: HashMap<(u64, u32), &str> = HashMap::new();
    let mut ranks: HashMap<u32, &str> = HashMap::new();
    for known in &found.gpus {
        if let Some(first) = gpus.insert((known.host, known.gpu.device), &known.name) {
            notes.about(&known.name, format!("it has the number of {first}: graph files and --why mean the first"));
            gpus.insert((known.host, known.gpu.device), first);
        }
        if let Some(rank) = known.gpu.rank
            && let Some(first) = ranks.insert(rank, &known.name)
        {
            notes.about(&known.name, format!("rank {rank} is {first} already"));
        }
    }
    let mut ports: HashMap<(u64, u32), &str> = HashMap::new();
    for (host, device, name) in &found.ports {
        if let Some(first) = ports.get(&(*host, *device)) {
            notes.about(name, format!("it has number {device}, as {first}: graph files and --why mean the first"));
        } else {
            ports.insert((*host, *device), name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::machines;
    use crate::topo::xml;

    const SWITCHED: &str = r#"<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>"#;

    /// Four GPUs of one kind in two NUMA nodes, with what stands in each `<gpu>`.
    fn four(inner: [&str; 4]) -> String {
        let gpu = |place: usize| {
            format!(
                "<pci busid=\"0000:{0}0:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\
                 <gpu dev=\"{place}\" sm=\"90\" rank=\"{place}\" gdr=\"1\">{1}</gpu></pci>",
                place + 1,
                inner[place]
            )
        };
        let cpu = |numa: usize| {
            format!(r#"<cpu numaid="{numa}" affinity="ff" arch="x86_64">{}{}</cpu>"#, gpu(2 * numa), gpu(2 * numa + 1))
        };
        format!("<system>{}{}</system>", cpu(0), cpu(1))
    }

    fn told(text: &str) -> Vec<String> {
        of(&xml::parse("f", text).unwrap().0)
    }

    #[test]
    fn machines_as_they_should_be_give_no_doubt() {
        for name in machines::ALL {
            assert_eq!(told(machines::text(name)), [""; 0], "{name}");
        }
        assert_eq!(told(&four([SWITCHED; 4])), [""; 0]);
    }

    #[test]
    fn a_gpu_that_differs_from_its_sisters_is_told() {
        let notes = told(&four([SWITCHED, "", SWITCHED, SWITCHED]));
        assert_eq!(notes.len(), 1, "{notes:?}");
        let expected = "GPU 1 (0000:20:00.0): it has no NVLinks, of its sisters 3 have 18 each";
        assert!(notes[0].starts_with(expected), "{notes:?}");
        let half = SWITCHED.replace("18", "9");
        let notes = told(&four([SWITCHED, SWITCHED, SWITCHED, &half]));
        assert_eq!(notes, ["GPU 3 (0000:40:00.0): it has 9 NVLinks, of its sisters 3 have 18 each"]);
        let coherent = format!(r#"{SWITCHED}<c2c bw="44712" count="5"/>"#);
        let notes = told(&four([&coherent, &coherent, SWITCHED, &coherent]));
        assert!(notes.len() == 1 && notes[0].starts_with("GPU 2 (0000:30:00.0): its coherent link (c2c)"), "{notes:?}");
        let narrow = four([SWITCHED; 4]).replacen("link_width=\"16\"", "link_width=\"8\"", 1);
        let notes = told(&narrow);
        let expected = "GPU 0 (0000:10:00.0): its PCI Express link carries 24 GB/s, that of 3 of its sisters 48 GB/s";
        assert_eq!(notes, [expected]);
        let cliques = four([SWITCHED; 4]).replace("rank=\"0\"", "clique=\"7\"").replace("rank=\"1\"", "clique=\"7\"");
        let notes = told(&cliques);
        assert!(notes.len() == 1 && notes[0].starts_with("2 times (GPU 2 (0000:30:00.0), GPU 3"), "{notes:?}");
    }

    #[test]
    fn links_of_one_end_and_shared_numbers_are_told() {
        let to =
            |bus: u32, count: u32| format!(r#"<nvlink target="0000:{bus}0:00.0" count="{count}" tclass="0x030200"/>"#);
        let (there, back) = (to(2, 4), to(1, 2));
        let notes = told(&four([&there, &back, &to(4, 4), &to(3, 4)]));
        assert!(
            notes.iter().any(|note| note.contains("names 4 links to GPU 1 (0000:20:00.0), which names 2 back")),
            "{notes:?}"
        );
        let twice = four([SWITCHED; 4]).replace("dev=\"3\"", "dev=\"2\"").replace("rank=\"3\"", "rank=\"0\"");
        let notes = told(&twice.replace("numaid=\"1\"", "numaid=\"0\""));
        let expected = [
            "CPU 0: a second NUMA node of this number",
            "GPU 2 (0000:40:00.0): it has the number of GPU 2 (0000:30:00.0)",
            "GPU 2 (0000:40:00.0): rank 0 is GPU 0 (0000:10:00.0) already",
        ];
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes.iter().zip(expected).all(|(note, start)| note.starts_with(start)), "{notes:?}");
        let net = |name: &str| format!("<net name='{name}' dev='0' speed='10000'/>");
        let nics = format!("<system><cpu numaid='0'><nic>{}{}</nic></cpu></system>", net("a"), net("b"));
        assert_eq!(told(&nics), ["NIC b: it has number 0, as NIC a: graph files and --why mean the first"]);
    }
}
