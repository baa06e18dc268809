use super::*;
use crate::error::Kind;
use crate::topo::machines;

#[test]
fn what_is_written_reads_as_the_same_machine_byte_for_byte() {
    for name in machines::ALL {
        let (one, _) = parse(name, machines::text(name)).unwrap();
        // Two of them keep NVLink switches of their own.
        for machine in [one.repeated(2), one] {
            let written = write(&machine);
            let (again, _) = parse("again", &written).unwrap();
            assert_eq!(again, machine, "{name}");
            assert_eq!(write(&again), written, "{name}");
        }
    }
}

#[test]
fn files_of_clouds_leave_things_open() {
    let text = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
        <pci busid="0001:00:00.0" class="0x030200" link_speed="" link_width="0">
          <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0001:00:00.0" count="12" tclass="0x030200"/></gpu></pci>
        <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16"/>
        <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16"/></cpu></system>"#;
    let (machine, notes) = parse("cloud", text).unwrap();
    let gpu = &machine.cpus[0].devices[0];
    assert_eq!((gpu.speed, gpu.lanes, machine.gpus()[0].links.len()), (None, 0, 0));
    assert_eq!(machine.cpus[0].devices[1].speed, machine.cpus[0].devices[2].speed);
    assert_eq!(notes.len(), 3, "{notes:?}");
}

/// What a file says twice counts once, and is told.
#[test]
fn what_stands_twice_counts_once() {
    let head = r#"<system version="1"><cpu numaid="0" arch="x86_64">"#;
    let link = r#"link_speed="16 GT/s" link_width="16""#;
    let net = |name: &str| format!(r#"<nic><net name="{name}" dev="0" speed="10000" port="0" guid="0x0"/></nic>"#);
    // One NIC below both NUMA nodes, as virtual machines show it.
    let text = format!("{head}{0}</cpu><cpu numaid=\"1\" arch=\"x86_64\">{0}</cpu></system>", net("eth0"));
    let (machine, notes) = parse("f", &text).unwrap();
    assert_eq!((machine.cpus[0].nics.len(), machine.cpus[1].nics.len()), (1, 0));
    let expected = "eth0: this NIC is listed twice with one name, number and guid: it counts where it stands first";
    assert_eq!(notes, [expected]);
    // Two GPUs, or the parts of one, in one slot.
    let gpus = r#"<gpu dev="0" sm="100"/><gpu dev="1" sm="100"/>"#;
    let text = format!(r#"{head}<pci busid="0000:01:00.0" class="0x030200" {link}>{gpus}</pci></cpu></system>"#);
    let (machine, notes) = parse("f", &text).unwrap();
    assert_eq!(machine.gpus()[0].device, 0);
    assert!(notes.len() == 1 && notes[0].contains("two <gpu> in one <pci>: GPU 1 is left out, GPU 0"), "{notes:?}");
    // Two cards' ports in one slot are all there; a card beside a GPU is not.
    let two = net("a") + &net("b");
    let text = format!(r#"{head}<pci busid="0000:01:00.0" class="0x020000" {link}>{two}</pci></cpu></system>"#);
    let (machine, notes) = parse("f", &text).unwrap();
    assert!(matches!(&machine.cpus[0].devices[0].function, Function::Nic(nic) if nic.ports.len() == 2));
    assert_eq!(notes, [""; 0]);
    // Ports of a switch that RCCL's models call by one id.
    let bridge = |inner: &str| {
        format!(
            r#"<pci busid="0000:c5:00.0" class="0x060400" {link}><pci busid="{inner}" class="0x030200" {link}/></pci>"#
        )
    };
    let text = format!("{head}{}{}</cpu></system>", bridge("0000:cf:00.0"), bridge("0000:d0:00.0"));
    let (machine, notes) = parse("f", &text).unwrap();
    assert_eq!(machine.cpus[0].devices.len(), 2);
    assert_eq!(notes, ["0000:c5:00.0: a second bridge of this bus id: it is taken for another one"]);
    assert_eq!(Machine::fused([machine.clone(), machine.clone()]), machine);
}

/// Numbers that no machine has are refused where they are read: sums and products of the others fit.
#[test]
fn absurd_numbers_are_refused_with_a_sentence() {
    let within = |inner: &str, lanes: &str| {
        format!(
            "<system><cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\" link_width=\"{lanes}\">{inner}</pci></cpu></system>"
        )
    };
    let gpu = |inner: &str| within(&format!("<gpu dev=\"0\" sm=\"90\">\n{inner}</gpu>"), "16");
    let link = "target=\"0000:ff:00.0\" tclass=\"0x068000\"";
    let cases = [
        (gpu("<c2c bw=\"18446744073709551615\" count=\"2\"/>"), "f:3:1: bw=\"18446744073709551615\" is more than"),
        (gpu("<c2c bw=\"90000\" count=\"4294967295\"/>"), "f:3:1: count=\"4294967295\" is more than 1024"),
        (gpu("<c2c bw=\"90000\" count=\"1025\"/>"), "f:3:1: count=\"1025\" is more than 1024 links"),
        (gpu(&format!("<nvlink {link} count=\"4294967295\"/>")), "f:3:1: count=\"4294967295\" is more than 1024 links"),
        (within("<nic>\n<net name=\"a\" dev=\"0\" speed=\"18446744073709551615\"/></nic>", "16"), "f:3:1: speed="),
        (
            within("<nic>\n<net name=\"a\" dev=\"0\" speed=\"1000000000001\"/></nic>", "16"),
            "is more than 1000000000000 Mbit/s",
        ),
        (within("", "18446744073709551616"), "f:2:1: link_width=\"18446744073709551616\" is not a number"),
        (within("<gpu dev=\"0\" sm=\"90\" rank=\"4294967295\"/>", "16"), "rank=\"4294967295\" is more than 2147483647"),
    ];
    for (text, expected) in cases {
        let error = parse("f", &text).unwrap_err();
        assert!(error.message().contains(expected), "{error} for {text}");
    }
    // What systems write for a width that they do not know.
    for width in ["255", "4294967295", "18446744073709551615"] {
        let (machine, notes) = parse("f", &within("", width)).unwrap();
        assert_eq!((machine.cpus[0].devices[0].lanes, notes.len()), (0, 2), "{notes:?}");
        assert!(notes[1].ends_with("is more than 64 lanes: 16 lanes are assumed"), "{notes:?}");
    }
    // The largest that are taken, and one link more in rows of their own.
    let rows = |count: usize| {
        let links = format!("<nvlink {link} count=\"1\"/>").repeat(count);
        gpu(&format!("{links}<c2c bw=\"1000000000\" count=\"1024\"/>"))
    };
    let error = parse("f", &rows(1025)).unwrap_err();
    assert!(error.message().ends_with("1025 links of one GPU are more than 1024"), "{error}");
    let (machine, _) = parse("f", &rows(1024)).unwrap();
    let system = crate::topo::system::System::new(&machine.repeated(1024)).unwrap();
    assert_eq!(system.gpus().len(), 1024);
}

#[test]
fn what_cannot_be_is_told() {
    let port = |speed: &str| {
        let net = format!(r#"<nic><net name="cxi0" dev="0" {speed}/></nic>"#);
        let (machine, notes) =
            parse("f", &format!(r#"<system><cpu numaid="0" affinity="0-15">{net}</cpu></system>"#)).unwrap();
        assert_eq!(
            (&*machine.cpus[0].affinity, machine.node_of(&[15]), machine.node_of(&[16])),
            ("0000ffff", Some(0), None)
        );
        assert_eq!(notes[0], "CPU 0: affinity=\"0-15\" is a list of processors where a mask is due: 0000ffff");
        (machine.cpus[0].nics[0].ports[0].megabits, notes[1..].join(" "))
    };
    assert_eq!(port("speed=\"200000\""), (200_000, String::new()));
    assert!(port("speed=\"200000000\"").1.contains("is 200000 Gbit/s, more than any port has"));
    assert_eq!(port("speed=\"0\""), (0, "cxi0: its speed is 0: no channel uses it".to_owned()));
    for unknown in ["speed=\"-1\"", "speed=\"\"", ""] {
        assert_eq!(port(unknown), (10_000, "cxi0: its speed is not known: 10000 Mbit/s are assumed".to_owned()));
    }
    // A virtual machine's bridge above a GPU of 16 lanes.
    let bridge = r#"<system><cpu numaid="0"><pci busid="0000:a1:00.0" class="0x060400" link_speed="2.5 GT/s PCIe" link_width="1">
        <pci busid="0000:a2:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/></pci></cpu></system>"#;
    let (machine, notes) = parse("f", bridge).unwrap();
    assert_eq!(machine.cpus[0].devices[0].width().gigabytes(), 48.0);
    assert!(notes.len() == 1 && notes[0].contains("a bridge of one lane above wider links"), "{notes:?}");
}

/// A broken file, or one of a hostile writer, has as many kinds of elements as lines.
#[test]
fn notes_are_said_once_and_in_no_more_time_than_reading_takes() {
    let unknown: String = (0..60_000).map(|number| format!("<x{number}/>")).collect();
    let (_, notes) = parse("f", &format!("<system><cpu numaid=\"0\">{unknown}</cpu></system>")).unwrap();
    assert_eq!(notes.last().map(String::as_str), Some("and 59936 notes of other kinds"));
    let slow: String = (0..16).map(|bus| format!(r#"<pci busid="0000:{bus:02x}:00.0" link_width="16"/>"#)).collect();
    let (_, notes) = parse("f", &format!("<system><cpu numaid=\"0\">{slow}</cpu></system>")).unwrap();
    assert!(notes.len() == 1 && notes[0].starts_with("16 times (0000:00:00.0, 0000:01:00.0, "), "{notes:?}");
    let cpus = "<cpu numaid=\"0\"/>".repeat(300);
    let error = parse("f", &format!("<system>{cpus}</system>")).unwrap_err();
    assert!(error.message().contains("more than 256 <cpu> of one host"), "{error}");
}

#[test]
fn rccl_names_architectures_in_two_ways_and_counts_compute_units_in_sm() {
    for (gcn, gfx) in [("908", 0x908), ("gfx942", 0x942), ("gfx90a:sramecc+", 0x90a)] {
        let text = format!(
            r#"<system version="2"><cpu numaid="0"><pci busid="0000:1d:00.0" link_width="16" link_speed="16 GT/s"><gpu dev="0" sm="304" gcn="{gcn}" rank="0" gdr="0"/></pci></cpu></system>"#
        );
        assert_eq!(parse("rccl", &text).unwrap().0.gpus()[0].generation, GpuGeneration::Amd { gfx });
    }
}

#[test]
fn errors_name_line_and_column() {
    let within = |inner: &str| format!("<system>\n<cpu numaid=\"0\">\n{inner}</cpu></system>");
    let gpu = |inner: &str| within(&format!(r#"<pci busid="0000:01:00.0">{inner}</pci>"#));
    let cases = [
        ("<graphs/>".to_owned(), "f:1:1: <graphs> where a topology file has <system>"),
        ("<system/>".to_owned(), "f:1:1: <system> has no <cpu>"),
        ("<system".to_owned(), "f:1:8: "),
        ("<system>\n  <cpu numaid=\"0\">\n  </cpu>\n".to_owned(), "f:3:9: the root node was opened but never closed"),
        (String::new(), "f:1:1: "),
        ("<system>\n <a></b></system>".to_owned(), "f:2:5: expected 'a' tag, not 'b'"),
        (within("<pci/>"), "f:3:1: <pci> has no attribute busid"),
        (gpu(r#"<gpu dev="x" sm="80"/>"#), "f:3:27: dev=\"x\" is not a number"),
        (gpu(r#"<gpu dev="0"/>"#), "f:3:27: <gpu> has no attribute sm"),
        (gpu(r#"<gpu dev="0" gcn="fast"/>"#), "f:3:27: gcn=\"fast\" is not an architecture"),
        (gpu(r#"<gpu dev="5000000000" sm="80"/>"#), "f:3:27: dev=\"5000000000\" is above"),
        (within(r#"<pci busid="a"/><pci busid="a"/>"#), "f:3:17: a second device a on one host"),
        (
            gpu("<gpu dev=\"0\" sm=\"80\">\n<nvlink target=\"1\"/></gpu>"),
            "f:4:1: GPU 0000:01:00.0 has links to 1, which is not a GPU of its host",
        ),
        (within(&(r#"<pci busid="ffff:a">"#.repeat(65) + &"</pci>".repeat(65))), "bridges stand in each other"),
        ("\n<!DOCTYPE x [<!ENTITY a \"aaaa\">]><system>&a;</system>".to_owned(), "f:2:1: "),
    ];
    for (text, expected) in cases {
        let error = parse("f", &text).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.message().contains(expected), "{error} for {text}");
    }
}
