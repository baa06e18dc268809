//! The loader knows the opcodes of the PTX that is kept here.

use std::path::Path;
use vcuda::ptx::{Module, OPCODES, histogram};

fn texts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptx");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("tests/ptx is there") {
        let path = entry.expect("a readable folder").path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).expect("PTX is text")));
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

#[test]
fn every_kept_text_loads() {
    for (name, text) in texts() {
        let module = Module::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!module.functions.is_empty(), "{name} has kernels");
        assert_eq!(module.version, (8, 0), "{name}");
    }
}

#[test]
fn every_opcode_of_the_kept_texts_stands_in_the_table() {
    for (name, text) in texts() {
        for (opcode, count) in histogram(&text).expect("it loads") {
            let root = opcode.split('.').next().expect("never empty");
            assert!(OPCODES.contains(&root), "{name}: {opcode}, {count} times");
        }
    }
    assert!(OPCODES.is_sorted());
}

#[test]
fn an_unknown_opcode_is_an_error_with_line_and_name() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k()\n{\n.reg .b32 %r<3>;\nwgmma.fence %r1;\n}\n";
    let error = Module::parse(text).expect_err("no such opcode here");
    assert_eq!(error.to_string(), "PTX line 7: the opcode `wgmma.fence` is not supported");
}
