use super::*;

fn read(text: &str) -> Switches {
    Switches::parse("f", text, None).unwrap()
}

#[test]
fn both_kinds_of_files_are_read() {
    let small = read("# racks\nrack-a: node[01-03] node17\n\nrack-b: x,y # two\n");
    assert_eq!(small.above("node02"), ["rack-a"]);
    assert_eq!((small.above("node17"), small.above("y")), (vec!["rack-a"], vec!["rack-b"]));
    assert_eq!(small.above("node2"), [""; 0]);
    let full = |host: &str| small.above_host(host);
    assert_eq!((full("x.site.org"), full("z.site.org")), (Some(vec!["rack-b"]), None));
    let slurm =
        read("SwitchName=leaf1 Nodes=n[08-11,20]\nswitchname=leaf2 nodes=m1,m2\nSwitchName=spine Switches=leaf[1-2]");
    assert_eq!(slurm.above("n10"), ["spine", "leaf1"]);
    assert_eq!(slurm.above("m2"), ["spine", "leaf2"]);
    assert_eq!(slurm.notes, [""; 0]);
    assert_eq!(Switches::of_address("spine.leaf1.n10"), ["spine", "leaf1"]);
    assert_eq!(Switches::of_address("n10"), [""; 0]);
}

/// Blocks, as cyclecloud writes them: each is a group.
#[test]
fn slurms_blocks_are_groups() {
    let blocks =
        read("# of 18\r\nBlockName=block_5e79-1 Nodes=hpc-1,hpc-5\r\nBlockName=b2 Nodes=hpc-[2-3]\r\nBlockSizes=2\r\n");
    assert_eq!((blocks.above("hpc-5"), blocks.above("hpc-3")), (vec!["block_5e79-1"], vec!["b2"]));
    assert_eq!((blocks.form, &blocks.notes[..]), ("Slurm's blocks", &[][..] as &[String]));
    let small = read("BlockName=a Nodes=n[1-4]\nBlockName=b Nodes=n[5-6]\nBlockSizes=4,8");
    assert_eq!(small.notes.len(), 2, "{:?}", small.notes);
    assert!(small.notes[0].contains("the block b has 2 hosts, fewer than the block size 4"), "{:?}", small.notes);
}

/// Two trunks and a leaf that no switch joins.
#[test]
fn trunks_without_a_root_stand_beside_each_other() {
    let trunks = "SwitchName=sA Switches=a1,a2\nSwitchName=a1 Nodes=n[1-2]\nSwitchName=a2 Nodes=n[3-4]\n\
                  SwitchName=sB Switches=b1\nSwitchName=b1 \\\n  Nodes=n[5-6]\nSwitchName=c Nodes=n7";
    let found = read(trunks);
    assert_eq!((found.above("n4"), found.above("n6")), (vec!["sA", "a2"], vec!["sB", "b1"]));
    assert_eq!(found.above("n7"), ["c"]);
    assert_eq!(found.notes, ["no switch is above all others: sA, sB, c stand beside each other"]);
    let tree: Vec<String> =
        found.tree().into_iter().map(|(depth, name, hosts)| format!("{depth} {name} {hosts}")).collect();
    assert_eq!(tree, ["0 sA ", "1 a1 n[1-2]", "1 a2 n[3-4]", "0 sB ", "1 b1 n[5-6]", "0 c n7"]);
}

const YAML: &str = "---
- topology: topo1
  cluster_default: true
  tree:
    switches:
      - switch: root # of all
        children: s[1-2]
      - switch: s1
        nodes: node[01-02]
      - switch: s2
        nodes: [node03, node04]
- topology: gpu
  cluster_default: false
  block:
    block_sizes:
      - 2
    blocks:
      - block: b1
        nodes: node[01-02]
      - block: b2
        nodes: node[03-04]
- topology: flat1
  flat: true
- topology: ring1
  ring:
    rings:
      - ring: ring0
        nodes: node[01-04]
- topology: torus1
  torus3d:
    toruses:
      - name: pod1
        dims: 
          x: 4
";

/// Slurm's topology.yaml: the topology that is called as the partition, or the cluster's.
#[test]
fn a_yaml_file_has_several_topologies() {
    let of = |partition: Option<&str>| Switches::parse("topology.yaml", YAML, partition).unwrap();
    let (default, gpu) = (of(None), of(Some("gpu")));
    assert_eq!(default.above("node03"), ["root", "s2"]);
    assert_eq!(gpu.above("node03"), ["b2"]);
    assert_eq!(of(Some("other")), default);
    assert!(
        default.notes[0].contains("has 5 topologies, and \"topo1\" is used: it is the cluster's default"),
        "{:?}",
        default.notes
    );
    assert!(gpu.notes[0].contains("\"gpu\" is used: it has the name of this job's partition"), "{:?}", gpu.notes);
    for (partition, kind) in [("flat1", "flat"), ("ring1", "ring"), ("torus1", "torus3d")] {
        let flat = of(Some(partition));
        assert_eq!((flat.above("node01"), flat.hosts()), (Vec::new(), 0));
        assert!(
            flat.notes[1].contains(&format!("is {kind}, which has no groups: hosts are ordered by their ranks")),
            "{flat:?}"
        );
    }
    let first = YAML.replace("  cluster_default: true\n", "");
    let first = Switches::parse("f", &first, None).unwrap();
    assert_eq!(first.above("node03"), ["root", "s2"]);
    assert!(first.notes[0].contains("is used: it is the first;"), "{:?}", first.notes);
}

#[test]
fn what_may_be_a_mistake_is_told() {
    let found = read("SwitchName=a Nodes=x\nSwitchName=a Nodes=y\nSwitchName=top Switches=a,b");
    assert_eq!(found.above("y"), ["top", "a"]);
    let expected = [
        "a stands on line 1 and on line 2: they are taken together",
        "top names the switch b, of which nothing is said",
    ];
    assert_eq!(found.notes, expected);
    let twice = read("a: n1,n[1-2]\na: n2");
    assert_eq!((twice.hosts(), twice.tree()), (2, vec![(0, "a", "n[1-2]".to_owned())]));
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("\nrack a b", "f:2: \"rack a b\" is neither \"group: hosts\" nor"),
        ("a: n[1-", "f:1: \"n[1-\" has a [ without a ]"),
        ("a: n[1-x]", "f:1: \"1-x\" is not a range of numbers"),
        ("a: n[9-1]", "f:1: \"9-1\" is not a range of at most"),
        ("a: n[1-99999999]", "is not a range of at most 65536 numbers"),
        ("a: n[1]/b", "f:1: \"/b\" is not a name of letters"),
        ("a: n[1-40000,1-40000]", "f:1: more than 65536 hosts and switches"),
        ("a: n[1-40000] m[1-40000]", "f:1: more than 65536 hosts and switches"),
        ("a: n[1-400]m[1-400]", "f:1: more than 65536 hosts and switches"),
        ("a: n[000000000000000000001-2]", "is not a range of at most 65536 numbers"),
        ("a: x\nb: x", "f:2: x is below a already"),
        ("a: n[1-40000]\na: n[1-40000]", "f:2: more than 65536 hosts and switches"),
        ("SwitchName=a Switches=b Nodes=x\nSwitchName=b Switches=a", "f:1: the switch a stands above itself: a, b, a"),
        // A text with a colon is no file of switches.
        ("repo: openfabric-systems/simllm\n", "f:1: \"openfabric-systems/simllm\" is not a name of letters"),
        ("two words: x", "f:1: \"two words\" is not a name of letters"),
        ("rack:", "f:1: the group rack has no hosts"),
        ("", "f: no group: a file of switches has"),
        ("# only a comment\n", "f: no group"),
        // Files that their writers have commented out, or mixed.
        ("#BlockName=b1 Nodes=n[1-18]\nBlockSizes=20", "f:2: BlockSizes without a BlockName: no block is left"),
        ("BlockName=b1\nBlockSizes=1", "f:1: the block b1 has no Nodes"),
        ("BlockName=b1 Nodes=n1\nBlockSizes=x", "f:2: BlockSizes=\"x\" is not a list of numbers"),
        ("BlockName=b1 Nodes=n1\nSwitchName=s Nodes=n2", "f:2: Slurm's switches in a file of Slurm's blocks"),
        ("BlockName=b1 Nodes=n1\nBlockName=b2 Nodes=n1", "f:2: n1 is below b1 already"),
        ("BlockName=b1 Nodes=n1 Switches=s", "f:1: \"switches\" is not known here (allowed: blockname, nodes)"),
        ("SwitchName=s", "f:1: the switch s has neither Nodes nor Switches"),
        ("Include other.conf", "f:1: Include is not followed"),
        ("- topology: a\n  mesh: true", "f:2: \"mesh\" is not known here (allowed: topology, cluster_default, tree"),
        ("- topology: a\n", "f:1: the topology \"a\" has no tree, block, flat, ring or torus3d"),
        ("- topology: a\n  flat: true\n  tree:\n    switches: []", "is of several kinds: tree, flat"),
        ("- topology: a\n  block:\n    blocks:\n      - block: b\n", "f:4: the block b has no nodes"),
        ("---\ntopology: a", "f:2: not a list where one is due"),
        ("- topology: a\n  tree:\n\t  switches:", "f:3: a tab in the indentation"),
    ];
    for (text, expected) in cases {
        let error = Switches::parse("f", text, None).unwrap_err();
        assert!(error.message().contains(expected), "{error} for {text}");
    }
}

/// A small file can ask for much memory, or for a long error.
#[test]
fn long_names_are_refused_before_they_are_repeated() {
    let long = "x".repeat(1 << 20);
    let texts = [
        format!("a: {long}[1-65536]"),
        format!("{long}: y[1-65536]"),
        format!("a: y[{long}]"),
        format!("- topology: a\n  {long}: 1"),
        format!("- topology: &{long}"),
    ];
    for text in texts {
        let error = Switches::parse("f", &text, None).unwrap_err();
        assert!(error.message().len() < 300, "{}", error.message().len());
    }
}

/// Whatever ring there is, the first line that is in one is named, whether or not hosts are below.
#[test]
fn rings_of_switches_are_told_by_their_first_line() {
    let ring = |count: usize| -> String {
        let line = |at: usize| format!("SwitchName=s{at} Switches=s{}\n", (at + 1) % count);
        (0..count).map(line).collect()
    };
    let below = format!("SwitchName=leaf Nodes=n[1-9]\nSwitchName=mid Switches=leaf\n{}", ring(2));
    let cases = [
        ("SwitchName=a Switches=a".to_owned(), "f:1: the switch a stands above itself: a, a"),
        (
            "SwitchName=top Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=top,x".to_owned(),
            "f:1: the switch top",
        ),
        // Hosts below a ring, and hosts elsewhere.
        (format!("{}SwitchName=s1 Nodes=h\n", ring(3)), "f:1: the switch s0 stands above itself: s0, s1, s2, s0"),
        (format!("{below}SwitchName=s0 Switches=mid"), "f:3: the switch s0 stands above itself: s0, s1, s0"),
        // Two rings: the first one. A long one is cut.
        (
            "SwitchName=x Nodes=h\nSwitchName=q Switches=p\nSwitchName=p Switches=q\nSwitchName=b Switches=b"
                .to_owned(),
            "f:2: the switch q stands above itself: q, p, q",
        ),
        (ring(30), "f:1: the switch s0 stands above itself: s0, s1, s2, s3, s4, s5, s6, s7, … (30 switches)"),
        (
            "- topology: t\n  tree:\n    switches:\n    - switch: a\n      children: a".to_owned(),
            "f:4: the switch a stands above",
        ),
    ];
    for (text, expected) in cases {
        for _ in 0..4 {
            let error = Switches::parse("f", &text, None).unwrap_err();
            assert!(error.message().starts_with(expected), "{error} for {text}");
        }
    }
    // A network of 16 layers is one, a network of 17 is none.
    let layers = |count: usize| -> String {
        let line = |at: usize| format!("SwitchName=s{at} Switches=s{}\n", at + 1);
        (1..count).map(line).chain([format!("SwitchName=s{count} Nodes=h\n")]).collect()
    };
    assert_eq!(read(&layers(16)).above("h").len(), 16);
    let error = Switches::parse("f", &layers(40), None).unwrap_err();
    assert!(error.message().starts_with("f:17: more than 16 switches stand above each other: s17"), "{error}");
}

/// A small file can ask for much memory.
#[test]
fn names_are_counted_over_the_whole_file() {
    let lines = "a: n[1-65536]\n".repeat(80);
    let items = "\n          - n[1-65536]".repeat(80);
    let nodes = format!("- topology: t\n  tree:\n    switches:\n      - switch: s\n        nodes:{items}");
    let switch = "\n      - switch: s\n        nodes: n[1-65536]".repeat(80);
    let switches = format!("- topology: t\n  tree:\n    switches:{switch}");
    for text in [lines, nodes, switches] {
        let error = Switches::parse("f", &text, None).unwrap_err();
        assert!(error.message().contains("more than 65536 hosts and switches"), "{error}");
    }
}
