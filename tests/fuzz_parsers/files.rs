//! Files of machines and of switches: good ones with pieces cut out, doubled or moved, and ones that are made of their
//! formats' own elements with numbers and names as nobody would write them.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use rsccl::internals::topo::channels::SystemChannels;
use rsccl::internals::topo::description::Machine;
use rsccl::internals::topo::search::between::CrossNic;
use rsccl::internals::topo::switches::Switches;
use rsccl::internals::topo::{doubts, graphs, machine_file, overlay, system::System};
use rsccl::internals::tune::Calibration;

use crate::{bounded, config};

/// A search takes some hundred times as long as reading does.
fn fewer() -> ProptestConfig {
    let config = config();
    ProptestConfig { cases: (config.cases / 4).clamp(8, 400), ..config }
}

/// A good file with some pieces cut out, doubled or put in another place.
fn mangled(text: &str, edits: &[(Index, Index, u8)]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for (from, length, how) in edits {
        let from = from.index(letters.len() + 1);
        let to = (from + length.index(40)).min(letters.len());
        let piece: Vec<char> = letters[from..to].to_vec();
        match how % 4 {
            0 => drop(letters.drain(from..to)),
            1 => drop(letters.splice(from..from, piece)),
            2 => drop(letters.splice(from..to, "0x7f-[,:\n  ".chars())),
            _ => letters[from..to].reverse(),
        }
    }
    letters.into_iter().collect()
}

fn edits() -> impl Strategy<Value = Vec<(Index, Index, u8)>> {
    prop::collection::vec(any::<(Index, Index, u8)>(), 0..6)
}

/// What reads, with its doubts; what does not is an error that names the file.
fn machine_of(text: &str) -> Option<Machine> {
    let read = bounded(text.len(), || {
        machine_file::parse("f", text).map(|(machine, notes)| {
            let all = notes.len() + doubts::of(&machine).len();
            (machine, notes.iter().map(String::len).max().unwrap_or_default(), all)
        })
    });
    match read {
        Ok((machine, longest, count)) => {
            assert!(longest < 1000 && count < 200, "{count} notes, one of {longest} bytes");
            Some(machine)
        }
        Err(error) => {
            assert!(error.message().starts_with("f:"), "{error}");
            assert!(error.message().len() < 1000, "an error of {} bytes", error.message().len());
            None
        }
    }
}

/// Builds the graph of one and of two such machines, and searches both.
fn search(machine: &Machine) {
    for hosts in [1, 2] {
        if let Ok(system) = System::new(&machine.repeated(hosts)) {
            let _channels = SystemChannels::search(&system, CrossNic::IfBetter);
        }
    }
}

/// Values of attributes: usual ones, the ends of types, and no numbers.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "16",
    "18",
    "90",
    "200000",
    "0x030200",
    "1000000000",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "-1",
    "",
];

/// One device of a machine: where it stands, what it is, and what its attributes are.
type Part = (u8, u8, [u8; 6], Vec<(u8, u8)>);

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let links = prop::collection::vec((0u8..8, any::<u8>()), 0..4);
    prop::collection::vec((any::<u8>(), any::<u8>(), any::<[u8; 6]>(), links), 0..7)
}

/// A number of the table; mostly one that a real file could have.
fn number(of: u8, usual: &'static str) -> &'static str {
    if of < 160 { usual } else { NUMBERS[usize::from(of) % NUMBERS.len()] }
}

/// A file of NCCL's or RCCL's of these devices.
fn topology_file(parts: &[Part]) -> String {
    let mut below = [const { String::new() }; 4];
    for (own, (place, kind, numbers, links)) in parts.iter().enumerate() {
        let text = &mut below[usize::from(place % 4)];
        let of = |at: usize, usual: &'static str| number(numbers[at], usual);
        // Some ids are there twice.
        let id = if numbers[5] < 8 { 0 } else { own };
        let _ = write!(
            text,
            "<pci busid=\"0000:{id:02x}:00.0\" class=\"0x030200\" link_speed=\"{}\" link_width=\"{}\">",
            ["", "8 GT/s", "16.0 GT/s PCIe", "fast"][usize::from(numbers[0] % 4)],
            of(1, "16")
        );
        if kind % 4 == 0 {
            let speed = of(2, "200000");
            let _ = write!(text, "<nic><net name=\"n{own}\" dev=\"{own}\" speed=\"{speed}\" gdr=\"1\"/></nic>");
        } else {
            let (capability, rank) = (of(3, "80"), of(4, "0"));
            let _ = write!(text, "<gpu dev=\"{own}\" sm=\"{capability}\" rank=\"{rank}\" gdr=\"1\">");
            for (to, count) in links {
                let (count, class) = (number(*count, "2"), if to % 8 == 7 { "0x068000" } else { "0x030200" });
                let to = usize::from(*to) % parts.len();
                let _ = write!(text, "<nvlink target=\"0000:{to:02x}:00.0\" count=\"{count}\" tclass=\"{class}\"/>");
            }
            if kind % 8 == 1 {
                let _ = write!(text, "<c2c bw=\"{}\" count=\"{}\"/>", of(2, "40000"), of(0, "2"));
            }
            text.push_str("</gpu>");
        }
        text.push_str("</pci>");
    }
    let [one, two, three, four] = below;
    let bridge = "<pci busid=\"0000:f0:00.0\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"16\">";
    format!(
        "<system><cpu numaid=\"0\" affinity=\"0-3\" arch=\"x86_64\">{one}{bridge}{two}</pci></cpu><cpu numaid=\"1\" \
         arch=\"x86_64\">{three}</cpu><cpu host_hash=\"0x7\" numaid=\"0\">{four}</cpu></system>"
    )
}

/// A file of hwloc's of these devices.
fn hwloc_file(parts: &[Part]) -> String {
    let mut below = [const { String::new() }; 2];
    for (own, (place, kind, numbers, _)) in parts.iter().enumerate() {
        let text = &mut below[usize::from(place % 2)];
        let id = if numbers[5] < 8 { 0 } else { own };
        let of = |at: usize, usual: &'static str| number(numbers[at], usual);
        let _ = match kind % 4 {
            0 => write!(
                text,
                "<object type=\"PCIDev\" pci_busid=\"0000:{id:02x}:00.0\" pci_type=\"0200 [15b3:1017]\" \
                 pci_link_speed=\"{}\"><object type=\"OSDev\" name=\"n{own}\" osdev_type=\"{}\"/></object>",
                of(0, "15.753846"),
                of(1, "2")
            ),
            1 => write!(
                text,
                "<object type=\"L2Cache\" nodeset=\"{}\" cache_size=\"{}\" depth=\"{}\"/>",
                of(0, "0x1"),
                of(1, "1048576"),
                of(2, "2")
            ),
            _ => write!(
                text,
                "<object type=\"PCIDev\" pci_busid=\"0000:{id:02x}:00.0\" pci_type=\"0302 [10de:2330]\" \
                 pci_link_speed=\"{}\"/>",
                of(0, "15.753846")
            ),
        };
    }
    let [one, two] = below;
    let node = |number: u8, inner: &str| {
        format!(
            "<object type=\"Package\" os_index=\"{number}\" nodeset=\"{0:#x}\"><object type=\"NUMANode\" \
             os_index=\"{number}\" cpuset=\"{0:#x}\" nodeset=\"{0:#x}\"/>{inner}</object>",
            1 << number
        )
    };
    format!("<topology version=\"2.0\"><object type=\"Machine\">{}{}</object></topology>", node(0, &one), node(1, &two))
}

/// Lists of names; few of them have many.
fn list(of: u8) -> &'static str {
    ["a", "b", "c", "d", "n[1-3,7]", "n[01-02]-ib", "r[1-2]n[1-2]", "a,b", "", "n[", "n[2-1]"][usize::from(of % 11)]
}

/// A file of groups, Slurm's switches or its blocks.
fn lines_of_switches(lines: &[(u8, u8, u8, u8)]) -> String {
    let mut text = String::new();
    for (kind, own, one, two) in lines {
        let (own, one, two) = (["a", "b", "c", "d"][usize::from(own % 4)], list(*one), list(*two));
        let _ = match kind % 8 {
            0 => writeln!(text, "{own}: {one} {two}"),
            1..=4 => writeln!(text, "SwitchName={own} Switches={one}"),
            5 => writeln!(text, "SwitchName={own} \\\n Nodes={two}"),
            6 => writeln!(text, "BlockName={own} Nodes={one}"),
            _ => writeln!(text, "BlockSizes={}", NUMBERS[usize::from(kind / 8) % NUMBERS.len()]),
        };
    }
    text
}

/// A topology.yaml, or another document of its keys, maps and lists.
fn yaml_of(shape: &[(u8, u8)]) -> String {
    let keys = ["- topology: t", "  tree:", "    switches:", "      - switch: s", "        nodes: n[1-2]"];
    let mut text = String::new();
    let mut indent = 0;
    for (what, deeper) in shape {
        let own = ["a:", "- a:", "- - x", "switch: s", "nodes: [x, y]", "- topology: t", "tree:", "flat: true"];
        match what % 16 {
            at @ 0..=7 => {
                let _ = writeln!(text, "{:indent$}{}", "", own[usize::from(at)]);
                indent = (indent + usize::from(deeper % 4)).saturating_sub(usize::from(deeper / 64) / 2);
            }
            at => {
                let _ = writeln!(text, "{}", keys[usize::from(at) % keys.len()]);
            }
        }
    }
    text
}

/// How many names a file may have: as many allocations a list of a few bytes may cost.
const EXPANDED: usize = 4 << 16;

fn switches_of(text: &str) {
    let bytes = text.len() + if text.contains('[') { EXPANDED } else { 0 };
    match bounded(bytes, || Switches::parse("f", text, Some("gpu"))) {
        Ok(found) => drop(found.tree()),
        Err(error) => assert!(error.message().starts_with("f:") && error.message().len() < 1000, "{error}"),
    }
}

proptest! {
    #![proptest_config(config())]

    /// Files of machines in both formats: what reads is looked at for doubts.
    #[test]
    fn machine_files(which in 0usize..3, edits in edits()) {
        let good = [
            include_str!("../data/descriptions/hwloc.xml"),
            include_str!("../data/descriptions/two-trays.xml"),
            include_str!("../../src/topo/machines/dgx1v.xml"),
        ][which];
        let machine = machine_of(&mangled(good, &edits));
        prop_assert!(machine.is_some() || !edits.is_empty());
        machine.iter().for_each(|machine| drop(System::new(machine)));
    }

    /// Files of switches in all formats.
    #[test]
    fn switch_files(which in 0usize..3, edits in edits(), text in "\\PC{0,60}|[-a-z:#\\[\\], \\n]{0,80}") {
        let good = [
            include_str!("../data/descriptions/topology.yaml"),
            include_str!("../data/descriptions/trunks.conf"),
            include_str!("../data/descriptions/blocks.conf"),
        ][which];
        switches_of(&mangled(good, &edits));
        switches_of(&text);
    }

    /// Switches above each other in any way, rings among them, in all formats.
    #[test]
    fn made_switch_files(
        lines in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 0..8),
        shape in prop::collection::vec(any::<(u8, u8)>(), 0..40),
    ) {
        switches_of(&lines_of_switches(&lines));
        switches_of(&yaml_of(&shape));
    }
}

proptest! {
    #![proptest_config(fewer())]

    /// Machines that no vendor builds are searched, or refused with a sentence.
    #[test]
    fn made_machine_files(parts in parts()) {
        for text in [topology_file(&parts), hwloc_file(&parts)] {
            machine_of(&text).iter().for_each(search);
        }
    }

    /// So are files of real machines that were damaged.
    #[test]
    fn mangled_machines_are_searched(edits in edits()) {
        machine_of(&mangled(include_str!("../data/descriptions/two-trays.xml"), &edits)).iter().for_each(search);
    }
}

/// A list of a few bytes has many names, and a file of many such lists no more than one of them.
#[test]
fn a_small_file_of_long_lists_takes_little_memory() {
    let lines = "a: n[1-65536]\n".repeat(80);
    let layers: String =
        (1..16).map(|at| format!("SwitchName={0}{at} Switches={0}{1}\n", "x".repeat(240), at + 1)).collect();
    let layers = format!("{layers}SwitchName={}16 Nodes=n[1-65000]", "x".repeat(240));
    for text in [lines, layers] {
        switches_of(&text);
    }
}

/// What a file says in one value or name stands in errors and notes with its first bytes alone: each value, each
/// element's name, and each word of samples of all formats is made long, as letters and as digits.
#[test]
fn no_sentence_is_as_long_as_a_word_of_the_file() {
    let overlay = "<overlay><pci busid=\"0000:80:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"8\"/>\
                   <gpu busid=\"0000:01:00.0\" dev=\"0\" sm=\"80\" rank=\"0\"><nvlink target=\"0000:02:00.0\" count=\"1\"/></gpu>\
                   <nic busid=\"0000:41:00.0\"><net name=\"a\" dev=\"0\" speed=\"100000\"/></nic>\
                   <gpus gcn=\"gfx942\" switch=\"2\"/><nics speed=\"100000\"/></overlay>";
    let machine = |text: &str| {
        let read =
            machine_file::parse("f", text).map(|(machine, notes)| (System::new(&machine), doubts::of(&machine), notes));
        read.map_or_else(
            |error| vec![error.message().to_owned()],
            |(system, doubts, notes)| {
                let error = system.err().map(|error| error.message().to_owned());
                doubts.into_iter().chain(notes).chain(error).collect()
            },
        )
    };
    let laid = |text: &str| {
        let (mut machine, _) =
            machine_file::parse("f", include_str!("../../src/topo/machines/dgx1v.xml")).expect("a machine");
        overlay::apply("f", text, &mut machine).unwrap_or_else(|error| vec![error.message().to_owned()])
    };
    let graph =
        |text: &str| graphs::parse("f", text).err().map(|error| error.message().to_owned()).into_iter().collect();
    let switches = |text: &str| match Switches::parse("f", text, Some("gpu")) {
        Ok(found) => found.notes,
        Err(error) => vec![error.message().to_owned()],
    };
    let tuning =
        |text: &str| Calibration::parse("f", text).err().map(|error| error.message().to_owned()).into_iter().collect();
    let constants = Calibration::parse("f", "rsccl-tune 1\n").expect("the defaults").write();
    let samples: [(&str, &str, &Sentences<'_>); 9] = [
        ("topology", include_str!("../data/descriptions/two-trays.xml"), &machine),
        ("links", include_str!("../../src/topo/machines/dgx1v.xml"), &machine),
        ("hwloc", include_str!("../data/descriptions/hwloc.xml"), &machine),
        ("overlay", overlay, &laid),
        ("graph", include_str!("../data/descriptions/four-gpus-graph.xml"), &graph),
        ("lines", include_str!("../data/descriptions/trunks.conf"), &switches),
        ("blocks", include_str!("../data/descriptions/blocks.conf"), &switches),
        ("yaml", include_str!("../data/descriptions/topology.yaml"), &switches),
        ("tuning", &constants, &tuning),
    ];
    let long = ["x".repeat(3000), "9".repeat(3000), "a b ".repeat(750)];
    for (format, sample, read) in samples {
        let words = words(sample);
        assert!(words.len() > 8, "{format}: {} words", words.len());
        // Of files that repeat themselves some three hundred words.
        for word in words.iter().step_by(words.len() / 300 + 1) {
            for long in &long {
                let text = format!("{}{long}{}", &sample[..word.start], &sample[word.end..]);
                let said = read(&text);
                let most = said.iter().map(String::len).max().unwrap_or_default();
                assert!(most < MOST_SENTENCE, "{format}: {:?}: {most} bytes: {said:?}", &sample[word.clone()]);
            }
        }
    }
}

/// What reading a file says.
type Sentences<'a> = dyn Fn(&str) -> Vec<String> + 'a;

/// Where words stand: what blanks, quotes and the marks of the formats part.
fn words(text: &str) -> Vec<Range<usize>> {
    let is_mark = |letter: char| letter.is_whitespace() || "\"<>/=:#,[]".contains(letter);
    let mut found = Vec::new();
    let mut start = None;
    for (at, letter) in text.char_indices().chain([(text.len(), ' ')]) {
        match (is_mark(letter), start) {
            (false, None) => start = Some(at),
            (true, Some(from)) => {
                found.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// Of a sentence with three names and the list of what is allowed.
const MOST_SENTENCE: usize = 1000;

/// What takes time in the square of its length would take minutes here.
#[test]
fn reading_takes_time_in_proportion_to_the_file() {
    let lines = "x \\\n".repeat(400_000);
    let keys: String = (0..300_000).map(|number| format!("k{number}: 1\n")).collect();
    let list = vec!["0-16383"; 1_000_000].join(",");
    let caches: String = (0..200_000)
        .map(|bytes| format!("<object type=\"L2Cache\" nodeset=\"0x1\" cache_size=\"{bytes}\" depth=\"2\"/>"))
        .collect();
    let started = now();
    let cases: [(&str, &dyn Fn()); 4] = [
        ("lines that go on", &|| drop(Switches::parse("f", &lines, None))),
        ("keys of one map", &|| drop(Switches::parse("f", &format!("---\n{keys}"), None))),
        ("a list of processors", &|| {
            let text = format!("<system><cpu numaid=\"0\" affinity=\"{list}\"/></system>");
            assert!(machine_of(&text).is_some());
        }),
        ("caches of a node", &|| {
            let node = "<object type=\"NUMANode\" os_index=\"0\" nodeset=\"0x1\"/>";
            assert!(machine_of(&format!("<topology version=\"2.0\">{node}{caches}</topology>")).is_some());
        }),
    ];
    for (what, read) in cases {
        let before = started.elapsed();
        read();
        let took = started.elapsed() - before;
        assert!(took < MOST_TIME, "{what} took {took:?}");
    }
}

fn now() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "it measures what reading takes")]
    Instant::now()
}

/// Of a loaded machine without optimisation; each case takes a second at most.
const MOST_TIME: Duration = Duration::from_secs(20);
