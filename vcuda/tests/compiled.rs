//! The compiled samples belong to their sources. Needs no compiler: `kernels/build --check` compiles anew where one can be had.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// FNV-1a of 64 bits, as `kernels/build` computes it.
fn fnv(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn the_compiled_samples_belong_to_their_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    let mut there = BTreeMap::new();
    for entry in fs::read_dir(&folder).expect("the samples are in the tree") {
        let path = entry.expect("an entry of the folder").path();
        if path.extension().is_some_and(|ending| ending == "cu" || ending == "h") {
            let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
            there.insert(name, format!("{:016x}", fnv(&fs::read(&path).expect("a file that can be read"))));
        }
    }
    let kept = fs::read_to_string(folder.join("compiled/sources.txt")).expect("what kernels/build has written");
    let kept: BTreeMap<String, String> = kept
        .lines()
        .map(|line| line.split_once(' ').map(|(hash, name)| (name.to_owned(), hash.to_owned())).expect("hash and name"))
        .collect();
    assert_eq!(there, kept, "sources have changed since they were compiled: run kernels/build");
}
