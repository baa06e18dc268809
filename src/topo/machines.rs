//! Descriptions of real machines for tests.

use crate::topo::system::System;
use crate::topo::xml;

/// The text of a machine's file.
pub fn text(name: &str) -> &'static str {
    match name {
        "a100bridge" => include_str!("machines/a100bridge.xml"),
        "a100x4mesh" => include_str!("machines/a100x4mesh.xml"),
        "b200x8" => include_str!("machines/b200x8.xml"),
        "dgx1p" => include_str!("machines/dgx1p.xml"),
        "dgx1v" => include_str!("machines/dgx1v.xml"),
        "h100x8" => include_str!("machines/h100x8.xml"),
        "ncv4-gen4" => include_str!("machines/ncv4-gen4.xml"),
        "ndv4" => include_str!("machines/ndv4.xml"),
        "nvl72" => include_str!("machines/nvl72.xml"),
        "p4d" => include_str!("machines/p4d.xml"),
        "r4p3l" => include_str!("machines/r4p3l.xml"),
        "r8pcie" => include_str!("machines/r8pcie.xml"),
        _ => panic!("no machine {name}"),
    }
}

/// The graph of a machine.
pub fn system(name: &str) -> System {
    let (machine, _) = xml::parse(name, text(name)).unwrap();
    System::new(&machine).unwrap()
}

/// Every machine.
pub const ALL: [&str; 12] = [
    "a100bridge",
    "a100x4mesh",
    "b200x8",
    "dgx1p",
    "dgx1v",
    "h100x8",
    "ncv4-gen4",
    "ndv4",
    "nvl72",
    "p4d",
    "r4p3l",
    "r8pcie",
];
