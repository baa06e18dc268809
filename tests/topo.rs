//! `rsccl topo` on files of machines, on this machine, and on files that are wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rsccl::internals::reach::this_host;
use rsccl::internals::topo::description::Machine;
use rsccl::internals::topo::search::domain::Domain;
use rsccl::internals::topo::system::System;
use rsccl::internals::topo::xml;

mod topo {
    mod simulations;
    mod why;
}

fn topo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rsccl")).arg("topo").args(arguments).output().expect("the command line runs")
}

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rsccl")).arg("sim").args(arguments).output().expect("the command line runs")
}

fn machine(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/topo/machines/{name}.xml")).display().to_string()
}

/// What it prints; it must end well.
fn text(arguments: &[&str]) -> String {
    let output = topo(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&text(&[arguments, &["--json"]].concat())).expect("it prints JSON")
}

#[test]
fn a_cube_mesh_shows_its_rings() {
    let tree = text(&["--file", &machine("dgx1v")]);
    assert!(tree.contains("GPU 0 0000:01:00.0 (sm_70, 6 links), Gen3 x16"), "{tree}");
    assert!(tree.contains("rings: 6 x 20 GB/s = 120 GB/s"), "{tree}");
}

/// What the READMEs beside them promise: machines and descriptions are written by us.
#[test]
fn no_machine_is_a_copy_of_a_vendors_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for folder in ["src/topo/machines", "tests/data/hives", "tests/data/descriptions"].map(|name| root.join(name)) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("text").to_lowercase();
            assert!(
                !["copyright", "all rights reserved", "license"].iter().any(|word| text.contains(word)),
                "{path:?}"
            );
            files += 1;
        }
    }
    assert!(files > 20, "{files}");
}

/// A folder without a machine's `sys`, or with a file of that name, is told with the system's message.
#[test]
fn a_folder_that_is_no_machine_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    let told = |option: &str| {
        let output = topo(&[option, &path]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("text")
    };
    let said = told("--file");
    assert!(said.contains(&path) && said.contains("has no folder sys (No such file or directory"), "{said}");
    std::fs::write(folder.path().join("sys"), "").expect("written");
    assert!(told("--file").contains("has no folder sys (not a directory): name a file"), "{}", told("--file"));
    assert!(told("--overlay").contains("(--overlay): Is a directory (os error 21)"), "{}", told("--overlay"));
}

#[test]
fn a_file_needs_no_option() {
    let file = machine("h100x8");
    assert_eq!(text(&[&file]), text(&["--file", &file]));
    assert_eq!(topo(&[&file, "--file", &file]).status.code(), Some(2), "which one?");
}

#[test]
fn files_of_the_environment_are_read_and_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let [dump, graph] = ["dump.xml", "graph.xml"].map(|name| folder.path().join(name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command.arg("topo").env("NCCL_TOPO_FILE", machine("p4d"));
    command.env("NCCL_TOPO_DUMP_FILE", &dump).env("NCCL_GRAPH_DUMP_FILE", &graph);
    let output = command.output().expect("the command line runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let dump = dump.display().to_string();
    assert_eq!(String::from_utf8(output.stdout).expect("text"), text(&["--file", &dump]));
    assert!(std::fs::read_to_string(graph).expect("written").contains("<graphs version=\"1\">"));
}

/// A site may name files for all its machines, of which some have none.
#[test]
fn files_of_the_environment_that_are_absent_are_left_out() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command.args(["topo", "--file", &machine("p4d")]);
    command.env("NCCL_TOPO_FILE", "/none/topo.xml").env("NCCL_GRAPH_FILE", "/none/graph.xml");
    let output = command.output().expect("the command line runs");
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{told}");
    assert_eq!(String::from_utf8(output.stdout).expect("text"), text(&["--file", &machine("p4d")]));
    assert!(["topo.xml", "graph.xml"].iter().all(|name| told.contains(&format!("/none/{name}"))), "{told}");
}

/// A cloud's file has PCI devices alone: the command says so, and an overlay says the rest.
#[test]
fn an_overlay_tells_what_a_file_leaves_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let [tree, over] = ["tree.xml", "over.xml"].map(|name| folder.path().join(name).display().to_string());
    let whole = std::fs::read_to_string(machine("p4d")).expect("a file");
    let mut bare = String::new();
    let mut rest = &whole[..];
    while let Some((before, after)) = rest
        .split_once(["<gpu ", "<nic>"].into_iter().min_by_key(|tag| rest.find(tag).unwrap_or(usize::MAX)).expect("two"))
    {
        bare += before;
        let ends = ["</gpu>", "</nic>"].into_iter().filter_map(|tag| after.find(tag).map(|at| at + tag.len()));
        rest = &after[ends.min().expect("closed")..];
    }
    std::fs::write(&tree, bare + rest).expect("written");
    std::fs::write(
        &over,
        "<overlay><gpus sm=\"80\" gdr=\"1\" switch=\"12\"/><nics speed=\"100000\" gdr=\"1\"/></overlay>",
    )
    .expect("written");
    let said = String::from_utf8(topo(&["--file", &tree]).stderr).expect("text");
    assert!(said.contains("8 devices are GPUs by their class, but nothing says their kind and links"), "{said}");
    assert!(said.contains("4 devices are NICs by their class"), "{said}");
    let graphs = |arguments: &[&str]| json(&[arguments, &["--hosts", "2"]].concat())["graphs"].clone();
    let widths = |graphs: &serde_json::Value| -> Vec<f64> {
        graphs.as_array().expect("a list").iter().map(|graph| graph["total_gbps"].as_f64().expect("a number")).collect()
    };
    assert_eq!(widths(&graphs(&["--file", &tree, "--overlay", &over])), widths(&graphs(&["--file", &machine("p4d")])));
}

#[test]
fn the_matrix_of_ways_has_kinds_and_widths() {
    let matrix = text(&["--file", &machine("a100x4mesh"), "--paths"]);
    let expected = "\
       GPU 0    GPU 1    GPU 2    GPU 3    NIC m0  NIC m1  NIC m2  NIC m3
GPU 0  LOC      NVL 80   NVL 80   NVL 80   PIX 24  PHB 24  SYS 16  SYS 16
GPU 1  NVL 80   LOC      NVL 80   NVL 80   PHB 24  PIX 24  SYS 16  SYS 16
GPU 2  NVL 80   NVL 80   LOC      NVL 80   SYS 16  SYS 16  PIX 24  PHB 24
GPU 3  NVL 80   NVL 80   NVL 80   LOC      SYS 16  SYS 16  PHB 24  PIX 24
";
    let squeezed = |text: &str| text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeezed(&matrix), squeezed(expected), "{matrix}");
}

#[test]
fn json_has_graphs_with_channels() {
    let shown = json(&["--file", &machine("p4d"), "--hosts", "2"]);
    let graphs = shown["graphs"].as_array().expect("a list");
    let of = |pattern: &str, scope: &str| -> Vec<(usize, f64)> {
        let these = graphs.iter().filter(|graph| graph["pattern"] == pattern && graph["scope"] == scope);
        let figures = |graph: &serde_json::Value| {
            (graph["channels"].as_array().expect("a list").len(), graph["width_gbps"].as_f64().expect("a number"))
        };
        these.map(figures).collect()
    };
    assert_eq!(of("ring", "host"), [(12, 20.0); 2]);
    assert_eq!(of("tree", "host").len(), 2);
    assert_eq!((of("ring", "system"), of("tree", "system")), (vec![(4, 12.0)], vec![(4, 12.0)]));
    let ring = graphs.iter().find(|graph| graph["pattern"] == "ring" && graph["scope"] == "system").expect("there");
    let mut first: Vec<u64> =
        ring["channels"][0].as_array().expect("a list").iter().map(|gpu| gpu.as_u64().expect("a number")).collect();
    first.sort_unstable();
    assert_eq!(first, (0..16).collect::<Vec<u64>>());
    assert_eq!(shown["paths"].as_array().expect("a list").len(), 16 * (15 + 8));
}

/// A dump of the channels that were found, read back, gives the same channels; another file's are weighed on this
/// machine's links.
#[test]
fn graph_files_go_out_and_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("graph.xml").display().to_string();
    let plain = text(&["--file", &machine("dgx1v"), "--dump-graph", &path]);
    let written = std::fs::read_to_string(&path).expect("written");
    assert!(written.contains("pattern=\"4\" crossnic=\"0\" nchannels=\"6\" speedintra=\"20\""), "{written}");
    assert_eq!(text(&["--file", &machine("dgx1v"), "--graph", &path]), plain);
    let output = topo(&["--file", &machine("dgx1p"), "--graph", &path]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("are said to carry 20 GB/s each; the links of this machine give them"), "{said}");
}

/// As communicators do: what a graph file says of one host counts for nothing where there are several.
#[test]
fn a_graph_file_counts_on_one_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("graph.xml").display().to_string();
    text(&["--file", &machine("dgx1p"), "--dump-graph", &path]);
    // Another machine's channels would be seen.
    let two = ["--file", &machine("dgx1v"), "--hosts", "2"];
    let output = topo(&[&two[..], &["--graph", &path]].concat());
    let told = String::from_utf8(output.stderr).expect("text");
    let unused = format!("--graph={path:?} is not used: it has the channels of one host, and these GPUs are on 2");
    assert!(told.contains(&unused), "{told}");
    assert_eq!(String::from_utf8(output.stdout).expect("text"), text(&two));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let output = command.arg("topo").args(two).env("NCCL_GRAPH_FILE", &path).output().expect("it runs");
    assert!(String::from_utf8(output.stderr).expect("text").contains("NCCL_GRAPH_FILE="));
    let one = topo(&["--file", &machine("dgx1v"), "--graph", &path]);
    assert!(!String::from_utf8(one.stderr).expect("text").contains("is not used"));
    assert_ne!(String::from_utf8(one.stdout).expect("text"), text(&["--file", &machine("dgx1v")]));
}

/// What no rank does is said beside what links would carry.
#[test]
fn channels_between_hosts_are_said_to_be_those_of_links() {
    let note = "between hosts: channels are those that the links would carry; PXN is not built, and \
                GPUDirect RDMA goes by net plug-ins alone; ranks send by TCP over all interfaces";
    let shown = json(&["--file", &machine("h100x8"), "--hosts", "2"]);
    assert!(shown["notes"].to_string().contains(note), "{}", shown["notes"]);
    let output = topo(&["--file", &machine("h100x8"), "--hosts", "2"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains(note));
    assert!(!String::from_utf8_lossy(&topo(&["--file", &machine("h100x8")]).stderr).contains("not built"));
}

#[test]
fn nics_are_crossed_where_that_is_better() {
    let tree = |cross: &str| text(&["--file", &machine("h100x8"), "--hosts", "2", "--cross-nic", cross]);
    assert!(tree("2").contains("between hosts: rings: 8 x 48 GB/s = 384 GB/s, NICs are crossed"), "{}", tree("2"));
    assert!(!tree("0").contains("NICs are crossed"), "{}", tree("0"));
    let alone = text(&["--file", &machine("h100x8")]);
    assert!(!alone.contains("between hosts"), "{alone}");
    // As the environment has it: 18 links of 20.6 GB/s are the bound of what enters and leaves by one GPU, and eight
    // NICs' 384 the other one. Where NICs may be crossed anyhow, they are.
    let total = |cross: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["topo", "--file", &machine("h100x8"), "--hosts", "2", "--json"]).env("NCCL_CROSS_NIC", cross);
        let shown: serde_json::Value =
            serde_json::from_slice(&command.output().expect("it runs").stdout).expect("it prints JSON");
        let graphs = shown["graphs"].as_array().expect("a list");
        let is = |graph: &&serde_json::Value| graph["scope"] == "system" && graph["pattern"] == "ring";
        let ring = graphs.iter().find(is).expect("a ring");
        (ring["total_gbps"].as_f64().expect("a number"), ring["cross_nic"] == true)
    };
    let [never, allowed, better] = ["0", "1", "2"].map(total);
    assert!((0.97 * 370.8..=370.81).contains(&never.0) && !never.1, "{never:?}");
    assert_eq!([allowed, better], [(384.0, true); 2]);
}

#[test]
fn a_dump_is_the_same_machine_and_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, two] = ["one.xml", "two.xml"].map(|name| folder.path().join(name).display().to_string());
    text(&["--file", &machine("nvl72"), "--dump", &one]);
    text(&["--file", &one, "--dump", &two]);
    assert_eq!(std::fs::read(&one).expect("written"), std::fs::read(&two).expect("written"));
    assert_eq!(json(&["--file", &machine("nvl72")])["graphs"], json(&["--file", &one])["graphs"]);
}

/// The picture is XML, and names every device and the width of every kind of link.
#[test]
fn a_picture_shows_devices_links_and_channels() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("picture.svg").display().to_string();
    let draw = |arguments: &[&str]| {
        text(&[arguments, &["--svg", &path]].concat());
        let picture = std::fs::read_to_string(&path).expect("written");
        roxmltree::Document::parse(&picture).expect("the picture is XML");
        picture
    };
    let one = draw(&["--file", &machine("dgx1v")]);
    for word in ["GPU 0", "GPU 7", "CPU 0", "CPU 1", "m3", ">12<", ">40<", ">20<", "inside: rings: 6 x 20 GB/s"] {
        assert!(one.contains(word), "{word}");
    }
    let four = draw(&["--file", &machine("h100x8"), "--hosts", "4"]);
    for word in ["host 0", "host 3", "NVLink switches", ">370.8<", "stroke-dasharray", "first tree of hosts", "tree 3"]
    {
        assert!(four.contains(word), "{word}");
    }
    assert!(draw(&["--file", &machine("p4d"), "--hosts", "30"]).contains("and 26 more hosts"));
}

/// Each NUMA node that has processors is shown once, with the kernel's own list of them.
#[test]
fn this_machine_has_the_processors_that_the_kernel_lists() {
    let list = |node: &Path| std::fs::read_to_string(node.join("cpulist")).unwrap_or_default().trim().to_owned();
    let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten().map(|node| node.path());
    let lists: Vec<String> = nodes.map(|node| list(&node)).filter(|list| !list.is_empty()).collect();
    let tree = text(&[]);
    let shown: Vec<&str> = tree.lines().filter(|line| line.starts_with("CPU ")).collect();
    assert_eq!(shown.len(), lists.len().max(1), "{tree}");
    for list in lists {
        let has = |line: &&str, end: char| line.contains(&format!(" processors {list}{end}"));
        assert!(shown.iter().any(|line| has(line, ',') || has(line, ')')), "{list}: {tree}");
    }
    assert!(json(&[])["nodes"].as_array().is_some_and(|all| all.len() >= shown.len()));
}

/// GPUs and links of a virtual machine, which NVML tells. Its six links a GPU carry 120 GB/s, of which a ring leaves none
/// unused; PCI Express, which joins the pairs without a link, carries the rest.
#[test]
fn a_virtual_machine_shows_its_links_and_rings() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/vcuda/run");
    let shown = |machine: &str| {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "300", script, machine, "--", env!("CARGO_BIN_EXE_rsccl"), "topo"]);
        let output = command.output().expect("the virtual machine starts");
        assert!(output.status.success(), "{machine}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let mesh = shown("8-cube-mesh");
    // The processor is that of the host: Intel's PCI roots make steps of a ring over PCI Express take 6/5, so that rings
    // have other rates.
    let rings = ["rings: 13 x 10 GB/s = 130 GB/s", "rings: 36 x 3.636 GB/s = 130.896 GB/s"];
    assert!(rings.iter().any(|rings| mesh.contains(rings)), "{mesh}");
    for (machine, total) in [("2-nvswitch", "370.8 GB/s"), ("8-nvswitch", "370.8 GB/s")] {
        let switched = shown(machine);
        assert!(switched.contains(&format!("= {total}\n")), "{machine}: {switched}");
    }
}

/// Runs on each host of a virtual rack: what a rank there tells of its GPUs.
#[test]
#[ignore = "a process of the next test"]
fn a_host_of_a_rack_describes_itself() {
    #![expect(clippy::disallowed_methods, reason = "tells the hosts of this test apart")]
    let [root, out] = ["RACK_ROOT", "RACK_OUT"].map(|name| PathBuf::from(std::env::var_os(name).expect("set")));
    let host = this_host::look(&root, None);
    assert_eq!(host.gpus.len(), 4, "{:?}", host.notes);
    let number = std::env::var("VCUDA_HOST").expect("a virtual machine");
    std::fs::write(out.join(number), xml::write(&host.machine)).expect("written");
}

/// Two hosts whose GPUs NVML puts in one clique of one cluster are one domain, over which rings pass, and plans run in
/// the simulator; without a channel to memory of other hosts they are two.
#[test]
fn hosts_of_one_clique_are_one_domain() {
    let folder = tempfile::tempdir().expect("a folder");
    let described = |root: &Path| {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "300", concat!(env!("CARGO_MANIFEST_DIR"), "/vcuda/run"), "2x4-mnnvl", "--"]);
        command.arg(std::env::current_exe().expect("this test"));
        command.args(["--exact", "a_host_of_a_rack_describes_itself", "--include-ignored"]);
        let output = command.env("RACK_ROOT", root).env("RACK_OUT", folder.path()).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
        let read = |host: &str| {
            let text = std::fs::read_to_string(folder.path().join(host)).expect("written");
            xml::parse(host, &text).expect("a machine").0
        };
        Machine::joined(["0", "1"].map(read).to_vec())
    };
    // No IMEX channel: each host has the NVLinks of its own GPUs alone.
    let apart = System::new(&described(folder.path())).expect("a system");
    let sizes: Vec<usize> = Domain::all(&apart).iter().map(|domain| domain.part.gpus().len()).collect();
    assert_eq!(sizes, [4, 4]);
    let root = folder.path().join("root");
    let channels = root.join("dev/nvidia-caps-imex-channels");
    std::fs::create_dir_all(&channels).expect("made");
    std::fs::write(channels.join("channel0"), "").expect("written");
    let rack = described(&root);
    let path = folder.path().join("rack.xml").display().to_string();
    std::fs::write(&path, xml::write(&rack)).expect("written");
    let shown = text(&["--file", &path]);
    // 18 links of 40.1 GB/s leave each GPU.
    assert!(shown.contains("rings: 18 x 40.1 GB/s = 721.8 GB/s") && !shown.contains("between hosts"), "{shown}");
    let why = text(&["--file", &path, "--why", "gpu:0", "1/gpu:0"]);
    assert!(why.contains(" and 4, a process on each GPU: P2P/MNNVL\n"), "{why}");
    let shown: serde_json::Value =
        serde_json::from_slice(&sim(&["all_reduce", "--topo", &path, "--json"]).stdout).expect("JSON");
    assert_eq!((shown["ranks"].as_u64(), shown["domains"].as_u64()), (Some(8), Some(1)), "{shown}");
    // To communicators they are two hosts, whose GPUs send to each other by NVLinks, along the channels.
    let run = &shown["runs"][0];
    assert_eq!((&run["algorithm"], &run["windows"]), (&"Ring".into(), &"none".into()), "{run}");
    let network = run["links"].to_string().contains("NIC");
    assert!(!network && run["busbw_gbps"].as_f64().is_some_and(|reached| (361.0..=721.9).contains(&reached)), "{run}");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad.xml");
    std::fs::write(&path, "<system>\n  <cpu numaid=\"zero\"/>\n</system>").expect("written");
    let path = path.display().to_string();
    let said = |arguments: &[&str]| {
        let output = topo(arguments);
        // What the caller can mend ends as a wrong command line does.
        let missing = arguments.contains(&"/nowhere/at/all.xml");
        assert_eq!(output.status.code(), Some(if missing { 1 } else { 2 }));
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(said(&["--file", &path]).contains(&format!("{path}:2:3: numaid=\"zero\" is not a number")));
    assert!(
        said(&["--file", "/nowhere/at/all.xml"]).contains("reading the topology file /nowhere/at/all.xml (--file)")
    );
    std::fs::write(&path, b"<system>\n\xff").expect("written");
    let message = format!("the topology file {path} (--file) is not text: line 2, byte 9 of the file");
    assert!(said(&["--file", &path]).contains(&message));
    let unknown = said(&["--file", &machine("h100x8"), "--why", "gpu:8", "nic:m0"]);
    assert!(unknown.contains("no device \"gpu:8\"") && unknown.contains("GPU 7, NIC m0"), "{unknown}");
}

/// What the command prints of each machine, byte for byte. Anew:
/// `rsccl topo --file src/topo/machines/NAME.xml > tests/data/topo/NAME.txt`
#[test]
fn every_machine_is_shown_as_before() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for path in std::fs::read_dir(root.join("src/topo/machines")).expect("machines").flatten().map(|entry| entry.path())
    {
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".xml")) else { continue };
        let before = std::fs::read_to_string(root.join(format!("tests/data/topo/{name}.txt"))).expect("a snapshot");
        let now = text(&["--file", &path.display().to_string()]);
        assert_eq!(now, before, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 12, "machines");
}

/// Everything that the command line shows of a machine with its hosts, on each machine: between hosts where it has NICs.
fn all_of(file: &Path, overlay: Option<&str>, scratch: &Path) {
    let (name, picture) = (file.display().to_string(), scratch.join("all.svg").display().to_string());
    let dump = scratch.join("all.xml").display().to_string();
    let of: Vec<&str> =
        ["--file", &name].into_iter().chain(overlay.into_iter().flat_map(|over| ["--overlay", over])).collect();
    let shown = json(&[&of[..], &["--hosts", "2", "--svg", &picture, "--dump", &dump]].concat());
    let nodes = shown["nodes"].as_array().expect("a list");
    let named = |kind: &str| -> Vec<&str> {
        let names = nodes.iter().filter_map(|node| node["name"].as_str()?.strip_prefix("host 0 "));
        names.filter(|name| name.starts_with(kind)).collect()
    };
    let (gpus, nics) = (named("GPU "), named("NIC "));
    let picture = std::fs::read_to_string(&picture).expect("written");
    roxmltree::Document::parse(&picture).expect("the picture is XML");
    assert!(gpus.iter().chain(&nics).all(|device| picture.contains(device.trim_start_matches("NIC "))), "{name}");
    let again = json(&["--file", &dump]);
    assert_eq!(shown["graphs"], again["graphs"], "{name}");
    assert!(text(&[&of[..], &["--paths"]].concat()).lines().count() > gpus.len(), "{name}");
    if let [first, .., last] = &gpus[..] {
        let ends = [first, last].map(|gpu| gpu.to_lowercase().replace(' ', ":"));
        let why = text(&[&of[..], &["--why", &ends[0], &ends[1]]].concat());
        assert!(why.contains(", a process on each GPU: ") && why.contains("NVLS: not built"), "{name}: {why}");
        let mut arguments = vec!["all_reduce", "--topo", &name, "--json", "--bytes", "1M", "--hosts"];
        arguments.push(if nics.is_empty() { "1" } else { "2" });
        arguments.extend(overlay.iter().flat_map(|over| ["--overlay", over]));
        let output = sim(&arguments);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(shown["runs"][0]["busbw_gbps"].as_f64().is_some_and(|reached| reached > 0.0), "{name}: {shown}");
    }
    for nic in nics {
        let ends = [gpus[0].to_lowercase().replace(' ', ":"), nic.replacen("NIC ", "nic:", 1)];
        let why = text(&[&of[..], &["--why", &ends[0], &ends[1]]].concat());
        assert!(why.contains("GPUDirect RDMA: ") && why.contains("SHARP: not built"), "{name}: {why}");
        // Where RDMA reaches the GPU, the word on flushing follows.
        assert_eq!(why.contains("GPUDirect RDMA: by a net plug-in"), why.contains("flush: "), "{name}: {why}");
    }
}

#[test]
fn every_machine_has_all_that_can_be_shown() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/topo/machines");
    for path in std::fs::read_dir(folder).expect("machines").flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|ending| ending == "xml") && !path.ends_with("nvl72.xml") {
            all_of(&path, None, scratch.path());
        }
    }
}

/// The text of one of our machines as the owners of such machines publish it: changed by `change`.
fn published(name: &str, change: impl Fn(&str) -> String) -> String {
    let text = std::fs::read_to_string(machine(name)).expect("one of ours");
    let changed = change(&text);
    assert_ne!(changed, text, "{name}");
    changed
}

/// Clouds give PCI trees alone: GPUs, their links, and NICs are what the system tells.
fn tree_alone(text: &str) -> String {
    let without = |text: String, start: &str, end: &str| {
        let pieces = text.split(start).enumerate();
        let kept =
            pieces.map(|(place, piece)| if place == 0 { piece } else { piece.split_once(end).expect("closed").1 });
        kept.collect::<String>()
    };
    without(without(text.to_owned(), "<gpu ", "</gpu>"), "<nic>", "</nic>")
}

/// A cloud that does not say how fast its PCI links are.
fn without_speeds(text: &str) -> String {
    text.replace("link_speed=\"16 GT/s\" link_width=\"16\"", "link_speed=\"\" link_width=\"0\"")
}

/// AMD's words for GPUs and their links.
fn in_words_of_amd(text: &str) -> String {
    text.replace("<nvlink ", "<xgmi ").replace("0x030200", "0x038000").replace("sm=\"70\"", "sm=\"120\"")
}

/// Files with what their owners leave out; each width is that of the narrowest link that all channels share.
#[test]
fn files_as_owners_publish_them_are_read() {
    let scratch = tempfile::tempdir().expect("a folder");
    let overlay = |megabits: u32| {
        let path = scratch.path().join(format!("{megabits}.xml")).display().to_string();
        let nics = format!("<nics speed=\"{megabits}\" gdr=\"1\"/>");
        let overlay = format!("<overlay><gpus sm=\"80\" gdr=\"1\" switch=\"12\"/>{nics}</overlay>");
        std::fs::write(&path, overlay).expect("written");
        path
    };
    let inside_switch = "12 x 20 GB/s = 240 GB/s"; // the 12 links of a GPU
    type Change = fn(&str) -> String;
    let cases: [(&str, Change, Option<String>, &str, &str); 5] = [
        ("p4d", tree_alone, Some(overlay(100_000)), inside_switch, "4 x 12 GB/s = 48 GB/s"), // a NIC's PCIe 3
        ("ndv4", tree_alone, Some(overlay(200_000)), inside_switch, "8 x 24 GB/s = 192 GB/s"), // a NIC's PCIe 4
        ("ncv4-gen4", without_speeds, None, "1 x 12 GB/s = 12 GB/s", "1 x 12 GB/s = 12 GB/s"), // no speed: PCIe 3
        ("r4p3l", in_words_of_amd, None, "6 x 12 GB/s = 72 GB/s", "8 x 0.178 GB/s = 1.424 GB/s"), // half links; 10 Gbit/s, and one slow lane
        ("r8pcie", in_words_of_amd, None, "1 x 10 GB/s = 10 GB/s", "2 x 5.454 GB/s = 10.908 GB/s"), // 12 less a sixth by the root, half the way
    ];
    for (name, change, overlay, inside, between) in cases {
        let path = scratch.path().join(format!("{name}.xml"));
        std::fs::write(&path, published(name, change)).expect("written");
        all_of(&path, overlay.as_deref(), scratch.path());
        let path = path.display().to_string();
        let mut arguments = vec!["--file", &path, "--hosts", "2"];
        arguments.extend(overlay.iter().flat_map(|overlay| ["--overlay", overlay]));
        let shown = text(&arguments);
        assert!(shown.contains(&format!("host 0: rings: {inside}\n")), "{name}: {shown}");
        assert!(shown.contains(&format!("between hosts: rings: {between}")), "{name}: {shown}");
    }
}

fn described(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/descriptions").join(name).display().to_string()
}

/// What the command prints and what it notes, with variables of the environment; it must end well.
fn said(arguments: &[&str], variables: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let output = command.arg("topo").args(arguments).envs(variables.iter().copied()).output().expect("it runs");
    let [out, notes] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    assert!(output.status.success(), "{notes}");
    (out, notes)
}

/// A rack of which a GPU has lost its links: no ring joins it, and the notes say which GPU, and why there is none.
#[test]
fn a_gpu_without_the_links_of_its_sisters_is_told() {
    let (whole, notes) = said(&["--file", &described("two-trays.xml")], &[]);
    assert!(whole.contains("rings: 18 x 40.1 GB/s = 721.8 GB/s"), "{whole}");
    assert!(whole.starts_with("host 0 CPU 0 (arm64, processors 0-31)\n"), "{whole}");
    assert!(whole.contains("GPU 0 0008:06:00.0 (sm_103, 18 links, c2c 5 x 44.712 GB/s), Gen6 x16"), "{whole}");
    assert_eq!(notes.lines().count(), 1, "{notes}");
    assert!(notes.starts_with("rsccl: 4 times (0008:01:00.0, 0009:01:00.0, 0008:01:00.0, 0009:01:00.0): "), "{notes}");
    let (_, notes) = said(&["--file", &described("two-trays-less-links.xml")], &[]);
    assert!(notes.contains("host 1 GPU 1 (0009:06:00.0): it has no NVLinks, of its sisters 3 have 18"), "{notes}");
    let gap = "no channel joins 4 GPUs, which share links: no way leads from host 0 GPU 0 to host 1 GPU 1";
    assert!(notes.contains(gap), "{notes}");
    let shown = json(&["--file", &described("two-trays-less-links.xml")]);
    assert!(shown["notes"].as_array().expect("a list").iter().any(|note| note == gap), "{shown}");
}

/// NCCL dumps an empty graph for SHARP behind the trees; device numbers are hexadecimal in newer files.
#[test]
fn a_graph_file_of_nccls_keeps_its_trees() {
    let (shown, notes) = said(&["--file", &machine("a100x4mesh"), "--graph", &described("four-gpus-graph.xml")], &[]);
    assert!(shown.contains("chains of trees: 2 x 20 GB/s = 40 GB/s"), "{shown}");
    assert_eq!(notes, "", "{notes}");
}

/// hwloc's file of a machine of processors: packages, cores, caches, memory, a NIC and a GPU of unknown kind.
#[test]
fn hwlocs_files_are_read() {
    let (shown, notes) = said(&["--file", &described("hwloc.xml")], &[]);
    let first = "CPU 0 (x86_64 GenuineIntel, package 0, processors 0-1, 2 cores, 64 GiB of memory, L3 32 MiB, 2 x L2 1 MiB, \
                 2 x L1 32 KiB)\n";
    assert!(shown.starts_with(first), "{shown}");
    assert!(shown.contains("    GPU 0 0000:34:00.0 (NVIDIA, 0 links), Gen3 x16"), "{shown}");
    assert!(shown.contains("  NIC ens1 10 Gbit/s 0000:81:00.0, PCI link unknown"), "{shown}");
    assert!(notes.contains("hwloc's file does not tell what kind of GPU it is"), "{notes}");
    // What lstopo says of this machine is what the command shows of it.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("own.xml").display().to_string();
    match Command::new("lstopo-no-graphics").args(["--of", "xml", &path]).output() {
        Ok(output) if output.status.success() => {
            let cpus = |text: &str| -> Vec<String> {
                text.lines().filter(|line| line.starts_with("CPU ")).map(str::to_owned).collect()
            };
            assert_eq!(cpus(&text(&["--file", &path])), cpus(&text(&[])));
        }
        _ => {
            use std::io::Write as _;
            writeln!(std::io::stderr(), "skipped: no lstopo-no-graphics of hwloc 2 here").expect("stderr");
        }
    }
}

/// Another machine's sysfs, as a folder; packed, the message says what to do.
#[test]
fn a_folder_with_another_machines_sysfs_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("machine");
    let put = |name: &str, text: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("below the folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    for (node, list, map) in [(0, "0-1", "3"), (1, "2-3", "c")] {
        put(&format!("sys/devices/system/node/node{node}/cpulist"), list);
        put(&format!("sys/devices/system/node/node{node}/cpumap"), map);
        put(&format!("sys/devices/system/node/node{node}/meminfo"), &format!("Node {node} MemTotal:  1572864 kB\n"));
    }
    for processor in 0..4 {
        let own = format!("sys/devices/system/cpu/cpu{processor}");
        put(&format!("{own}/topology/physical_package_id"), &(processor / 2).to_string());
        put(
            &format!("{own}/topology/thread_siblings_list"),
            &format!("{}-{}", processor / 2 * 2, processor / 2 * 2 + 1),
        );
        for (index, level, kind, size) in
            [(0, "1", "Data", "32K"), (1, "1", "Instruction", "32K"), (2, "3", "Unified", "1024K")]
        {
            put(&format!("{own}/cache/index{index}/level"), level);
            put(&format!("{own}/cache/index{index}/type"), kind);
            put(&format!("{own}/cache/index{index}/size"), size);
            let shared = if level == "3" { "0-3".to_owned() } else { processor.to_string() };
            put(&format!("{own}/cache/index{index}/shared_cpu_list"), &shared);
        }
    }
    let shown = text(&["--file", &root.display().to_string()]);
    let expected = "package 1, processors 2-3, 1 core, 1.5 GiB of memory, L3 1 MiB, 2 x L1 32 KiB)\n";
    assert!(shown.lines().count() == 2 && shown.ends_with(expected), "{shown}");
    let packed = folder.path().join("machine.tar.bz2");
    std::fs::write(&packed, b"BZh91AY&SY\xff\x00").expect("written");
    let output = topo(&["--file", &packed.display().to_string()]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.code() == Some(2) && said.contains("is packed (bzip2): unpack it"), "{said}");
}

/// The file of switches as ranks understand it, and where this host stands.
#[test]
fn a_file_of_switches_is_shown() {
    let shown = |file: &str, variables: &[(&str, &str)]| {
        let path = described(file);
        let variables = [&[("RSCCL_SWITCH_FILE", &*path), ("NCCL_HOSTID", "node3.example")], variables].concat();
        let (shown, notes) = said(&["--file", &machine("a100bridge")], &variables);
        (
            shown[shown.find("switches of").expect("shown")..].split_once(' ').expect("words").1.replace(&path, "FILE"),
            notes,
        )
    };
    let (trunks, notes) = shown("trunks.conf", &[]);
    let expected = "of FILE (Slurm's switches, 7 hosts):
  hallA
    leafA1: node[1-2]
    leafA2: node[3-4]
  hallB
    leafB1: node[5-6]
  leafC: node7
  this host, node3.example, is below hallA, leafA2
";
    assert_eq!(trunks, expected);
    assert!(notes.contains("no switch is above all others: hallA, hallB, leafC stand beside each other"), "{notes}");
    let (blocks, _) = shown("blocks.conf", &[("NCCL_HOSTID", "gpu-4")]);
    assert!(blocks.contains("block_5e797fc6-d: gpu-[2,4,6]\n"), "{blocks}");
    assert!(blocks.contains("gpu-4, is below block_5e797fc6-d\n"), "{blocks}");
    let (other, _) = shown("blocks.conf", &[("NCCL_HOSTID", "gpu-9")]);
    assert!(other.contains("this host, gpu-9, is below none of them\n"), "{other}");
    let (yaml, notes) = shown("topology.yaml", &[("NCCL_HOSTID", "node03")]);
    assert!(
        yaml.contains("is below root, leaf2\n") && notes.contains("3 topologies, and \"tree\" is used: "),
        "{yaml}{notes}"
    );
    let (yaml, _) = shown("topology.yaml", &[("NCCL_HOSTID", "node03"), ("SLURM_JOB_PARTITION", "gpu")]);
    assert!(yaml.contains("  b2: node[03-04]\n") && yaml.contains("is below b2\n"), "{yaml}");
    let (rings, notes) = shown("topology.yaml", &[("SLURM_JOB_PARTITION", "rings")]);
    assert!(
        rings.contains("(Slurm's topology.yaml, 0 hosts)") && notes.contains("is ring, which has no groups"),
        "{notes}"
    );
}

/// Pictures: what is there is drawn, once, at a size that can be looked at, and no two numbers stand in one place.
#[test]
fn pictures_are_whole_and_of_a_size_to_look_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("picture.svg").display().to_string();
    let draw = |file: &str, more: &[&str]| {
        text(&[&["--file", file, "--svg", &path], more].concat());
        let picture = std::fs::read_to_string(&path).expect("written");
        let document = roxmltree::Document::parse(&picture).expect("the picture is XML");
        let number = |name: &str| document.root_element().attribute(name).and_then(|text| text.parse::<f64>().ok());
        let size = (number("width").expect("a width"), number("height").expect("a height"));
        // Long lines are broken.
        let texts = document.descendants().filter(|element| element.has_tag_name("text"));
        let words = texts.filter_map(|element| element.text()).collect::<Vec<_>>().join(" ");
        (size, format!("{picture}\n{words}"))
    };
    // One NVLink domain of 18 hosts: its switches once, every GPU, and no 15,700 points of height.
    let ((width, height), rack) = draw(&machine("nvl72"), &[]);
    assert!(height < 3000.0 && width < 3000.0, "{width} x {height}");
    assert_eq!(rack.matches(">NVLink switches of 18 hosts<").count(), 1);
    assert_eq!(rack.matches(">GPU ").count(), 72);
    assert!(rack.contains("hosts 0 to 17, one NVLink domain") && rack.contains(">host 17<"), "{rack}");
    // Coherent links, and no word of "NUMA" boxes where the text says CPU.
    let (_, trays) = draw(&described("two-trays.xml"), &[]);
    assert!(
        trays.contains("coherent link (C2C)") && trays.contains(">223.56<") && trays.contains(">CPU 1<"),
        "{trays}"
    );
    // Without a channel, the reason.
    let (_, gap) = draw(&described("two-trays-less-links.xml"), &[]);
    assert!(gap.contains("no way leads from host 0 GPU 0") && gap.contains(">GPU 1, no link<"), "{gap}");
    // A small machine fills its picture.
    let ((width, _), _) = draw(&described("hwloc.xml"), &[]);
    assert!(width < 450.0, "{width}");
    let (_, none) = draw(&described("hwloc.xml"), &["--hosts", "2"]);
    assert!(none.contains("no channels") || none.contains("between hosts"), "{none}");
    // Four NUMA nodes are joined each with each.
    let cpus: String =
        (0..4).map(|numa| format!("<cpu numaid=\"{numa}\" arch=\"x86_64\" vendor=\"AuthenticAMD\"/>")).collect();
    let four = folder.path().join("four.xml").display().to_string();
    std::fs::write(&four, format!("<system>{cpus}</system>")).expect("written");
    let (_, mesh) = draw(&four, &[]);
    assert!(
        mesh.contains("each two of them: 16 GB/s") && mesh.contains("no channels: the machine has no GPU"),
        "{mesh}"
    );
    // Sixteen GPUs, linked by arcs of two widths.
    let gpu = |own: usize| {
        let others = (0..16).filter(|other| *other != own);
        let link = |other: usize| {
            let count = 1 + usize::from((own / 4 == other / 4) || own.abs_diff(other) == 8);
            format!("<xgmi target=\"0000:{other:02x}:00.0\" count=\"{count}\" tclass=\"0x038000\"/>")
        };
        format!(
            "<pci busid=\"0000:{own:02x}:00.0\" class=\"0x038000\" link_speed=\"16 GT/s\" link_width=\"16\"><gpu dev=\"{own}\" gcn=\"908\">{}</gpu></pci>",
            others.map(link).collect::<String>()
        )
    };
    let sixteen = folder.path().join("sixteen.xml").display().to_string();
    let gpus: String = (0..16).map(gpu).collect();
    std::fs::write(&sixteen, format!("<system><cpu numaid=\"0\" arch=\"x86_64\">{gpus}</cpu></system>"))
        .expect("written");
    let (_, arcs) = draw(&sixteen, &[]);
    let document = roxmltree::Document::parse(&arcs[..arcs.find("</svg>").expect("closed") + 6]).expect("XML");
    let numbers: Vec<(f64, f64)> = document
        .descendants()
        .filter(|element| element.has_tag_name("text") && element.attribute("paint-order").is_some())
        .map(|element| ["x", "y"].map(|name| element.attribute(name).expect("set").parse().expect("a number")))
        .map(|[x, y]: [f64; 2]| (x, y))
        .collect();
    assert!(numbers.len() > 30, "{}", numbers.len());
    for (place, one) in numbers.iter().enumerate() {
        let apart = |other: &(f64, f64)| (one.0 - other.0).abs() >= 24.0 || (one.1 - other.1).abs() >= 9.0;
        assert!(numbers[..place].iter().all(apart), "two numbers at {one:?}");
    }
}
