//! The lists of exceptions at the top of `tidy.rs` only shrink: an entry that is no exception any more is a finding.

use super::text::words;
use crate::{
    EXCEPTIONS, HOMONYMS, Source, UNSAFE_FILES, UNSAFE_HOMES, WIDE, homes_of_types, named_modules, wide_lines,
};

/// What stands on a list of exceptions is one still.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<String>) {
    let mut stale = |list: &str, entry: &str, why: &str| {
        findings.push(format!("tests/tidy.rs:1: {why}: take `{entry}` off {list}"));
    };
    let of_path = |path: &str| sources.iter().find(|source| source.path == path);
    for path in WIDE.iter().filter(|path| of_path(path).is_none_or(|source| wide_lines(source).next().is_none())) {
        stale("WIDE", path, "no line is too wide, or there is no such file");
    }
    let has_unsafe = |source: &Source| words(&source.code, "unsafe").next().is_some();
    for path in UNSAFE_FILES.iter().filter(|path| !of_path(path).is_some_and(has_unsafe)) {
        stale("UNSAFE_FILES", path, "nothing in it is unsafe, or there is no such file");
    }
    let of_module = |module: &&str| sources.iter().any(|source| source.module() == Some(*module) && has_unsafe(source));
    for module in UNSAFE_HOMES.iter().filter(|module| !of_module(module)) {
        stale("UNSAFE_HOMES", module, "nothing in it is unsafe, or there is no such module");
    }
    let homes = homes_of_types(sources);
    for (name, _) in HOMONYMS.iter().filter(|(name, _)| homes.get(name).is_none_or(|homes| homes.len() < 2)) {
        stale("HOMONYMS", name, "there are no two types of this name");
    }
    for (from, to, _) in EXCEPTIONS {
        let of_module = sources.iter().filter(|source| source.module() == Some(*from));
        let mut named = of_module.flat_map(|source| named_modules(&source.path, &source.code));
        if !named.any(|(_, name)| name.starts_with(to)) {
            stale("EXCEPTIONS", &format!("{from}, {to}"), "the one does not name the other");
        }
    }
}

#[test]
fn what_is_no_exception_any_more_is_found() {
    let mut findings = Vec::new();
    check(&[Source::new("src/lib.rs", "pub struct Level;")], &mut findings);
    for (list, entries) in [
        ("WIDE", WIDE.len()),
        ("UNSAFE_FILES", UNSAFE_FILES.len()),
        ("UNSAFE_HOMES", UNSAFE_HOMES.len()),
        ("HOMONYMS", HOMONYMS.len()),
        ("EXCEPTIONS", EXCEPTIONS.len()),
    ] {
        let found = findings.iter().filter(|finding| finding.ends_with(&format!("off {list}"))).count();
        assert_eq!(found, entries, "{list}");
    }
}
