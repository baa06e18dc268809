//! `rsccl topo` on files of machines, on this machine, and on files that are wrong.

use std::path::Path;
use std::process::{Command, Output};

fn topo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rsccl")).arg("topo").args(arguments).output().expect("the command line runs")
}

fn machine(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/machines/{name}.xml")).display().to_string()
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

#[test]
fn why_names_every_link_and_the_gpu_between() {
    let shown = text(&["--file", &machine("dgx1v"), "--why", "gpu:0", "gpu:7"]);
    let expected = "\
GPU 0 to GPU 7: NVB, 40 GB/s
  GPU 0 -> GPU 4: NvLink 40 GB/s
  GPU 4 -> GPU 7: NvLink 40 GB/s
peer access: yes, with the buffer on GPU 4, which both reach by their links
NVLS: no, not built
";
    assert_eq!(shown, expected);
    let shown = text(&["--file", &machine("h100x8"), "--why", "gpu:0", "nic:m1"]);
    assert!(shown.contains("GPUDirect RDMA: no, PHB is beyond NCCL_NET_GDR_LEVEL=PXB"), "{shown}");
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
    assert_eq!(graphs.len(), 2);
    for graph in graphs {
        assert_eq!((&graph["pattern"], &graph["scope"]), (&"ring".into(), &"host".into()));
        assert_eq!(graph["channels"].as_array().expect("a list").len(), 12);
        assert_eq!(graph["width_gbps"], 20.0);
    }
    assert_eq!(shown["paths"].as_array().expect("a list").len(), 16 * (15 + 8));
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

#[test]
fn this_machine_has_a_processor() {
    let tree = text(&[]);
    assert!(tree.starts_with("CPU "), "{tree}");
    assert!(json(&[])["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty()));
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad.xml");
    std::fs::write(&path, "<system>\n  <cpu numaid=\"zero\"/>\n</system>").expect("written");
    let path = path.display().to_string();
    let said = |arguments: &[&str]| {
        let output = topo(arguments);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(said(&["--file", &path]).contains(&format!("{path}:2:3: numaid=\"zero\" is no number")));
    assert!(said(&["--file", "/nowhere/at/all.xml"]).contains("reading /nowhere/at/all.xml"));
    let unknown = said(&["--file", &machine("h100x8"), "--why", "gpu:8", "nic:m0"]);
    assert!(unknown.contains("no device \"gpu:8\"") && unknown.contains("GPU 7, NIC m0"), "{unknown}");
}

/// Files of clouds and of AMD's machines, which are not ours to ship.
#[test]
fn files_of_real_machines_are_read() {
    use std::io::Write as _;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/topologies");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        writeln!(std::io::stderr(), "skipped: no reference files beside the project: topologies of clouds")
            .expect("stderr");
        return;
    };
    let mut read = 0;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".xml") && !name.contains("graph") {
            text(&["--file", &path.display().to_string()]);
            read += 1;
        }
    }
    assert!(read >= 5, "{read} files");
}
