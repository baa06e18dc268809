//! The loader knows the opcodes of the PTX that is kept here.

use miniz_oxide::inflate::decompress_to_vec_zlib;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use vcuda::ptx::{Module, OPCODES, histogram};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The PTX of a folder, by name; texts may be compressed.
fn texts_of(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let bytes = || std::fs::read(&path).expect("a readable file");
        let text = match name.strip_suffix(".z") {
            _ if name.ends_with(".ptx") => bytes(),
            Some(inner) if inner.ends_with(".ptx") => decompress_to_vec_zlib(&bytes()).expect("zlib"),
            _ => continue,
        };
        found.push((name, String::from_utf8(text).expect("PTX is text")));
    }
    found.sort();
    assert!(!found.is_empty(), "no PTX in {}", folder.display());
    found
}

/// What ships: the kernels of the library that vcuda lies in.
fn shipped() -> PathBuf {
    root().join("../kernels/compiled")
}

fn texts() -> Vec<(String, String)> {
    [root().join("tests/ptx"), root().join("samples/compiled"), shipped()]
        .iter()
        .flat_map(|folder| texts_of(folder))
        .collect()
}

#[test]
fn every_kept_text_loads() {
    for (name, text) in texts() {
        let module = Module::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!module.functions.is_empty(), "{name} has kernels");
        let counted = text.lines().filter(|line| line.starts_with("// registers ")).count();
        let compiled_here = name.ends_with(".z");
        assert_eq!(counted, if compiled_here { module.functions.len() } else { 0 }, "{name}: registers of its kernels");
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

/// Written anew where this variable is set.
const WRITE: &str = "VCUDA_WRITE_OPCODES";

#[test]
fn the_shipped_opcodes_are_those_that_are_known_to_ship() {
    let mut all: BTreeMap<String, usize> = BTreeMap::new();
    for (_, text) in texts_of(&shipped()) {
        for (opcode, count) in histogram(&text).expect("it loads") {
            *all.entry(opcode).or_default() += count;
        }
    }
    let mut table = String::new();
    for (opcode, count) in all {
        writeln!(table, "{count:6} {opcode}").expect("a string");
    }
    let place = root().join("../kernels/opcodes.txt");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&place, &table).expect("a file of the tree");
    }
    let kept = std::fs::read_to_string(&place).unwrap_or_default();
    assert!(
        kept == table,
        "kernels/opcodes.txt is not what kernels/compiled holds; with {WRITE}=1 this test writes it:\n{table}"
    );
}

#[test]
fn an_unknown_opcode_is_an_error_with_line_and_name() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k()\n{\n.reg .b32 %r<3>;\nwgmma.fence %r1;\n}\n";
    let error = Module::parse(text).expect_err("no such opcode here");
    assert_eq!(error.to_string(), "PTX line 7: the opcode `wgmma.fence` is not supported");
}

/// Every form that compilers write for ordinary kernels, an instruction a line.
const FORMS: &str = include_str!("ptx/forms.txt");

#[test]
fn every_form_that_compilers_write_loads() {
    let registers =
        ".reg .b16 %h<9>;\n.reg .b32 %r<9>;\n.reg .b64 %d<9>;\n.reg .f32 %f<9>;\n.reg .f64 %e<9>;\n.reg .pred %p<9>;";
    let head =
        ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 8 .b8 var[64];\n.const .align 8 .b8 table[64];";
    let refused: Vec<String> = FORMS
        .lines()
        .filter_map(|form| {
            let body = format!("{registers}\n.shared .align 8 .b8 buf[64];\n{form}\nEND:\nret;\n");
            let text = format!("{head}\n.visible .entry k(.param .u32 a)\n{{\n{body}}}\n");
            Module::parse(&text).err().map(|error| format!("{form}: {error}"))
        })
        .collect();
    assert!(refused.is_empty(), "{} of {}:\n{}", refused.len(), FORMS.lines().count(), refused.join("\n"));
}
