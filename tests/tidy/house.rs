//! The rules that are judged on all files together: floors, circles, sleeps.

use super::arrows::House;
use super::{circles, sleepers};
use crate::{EXCEPTIONS, Source, floor_of};

/// What is seen of all files together: each path is followed to the file that defines what it means.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<String>) {
    let of_library = || sources.iter().filter(|source| source.module().is_some());
    let root = sources.iter().filter(|source| source.path == "src/lib.rs");
    let house = House::of(of_library().chain(root).map(|source| (&*source.path, &*source.code)).collect());
    for source in of_library() {
        for (path, offset) in house.named_by(&source.path) {
            findings.extend(climb(source, path, offset));
        }
    }
    let listed: Vec<(&str, &str)> =
        circles::KNOTS.iter().chain(circles::INNOCENT).flat_map(|(_, arrows)| *arrows).copied().collect();
    circles::check(&house, &listed, findings);
    sleepers::check(of_library().map(|source| (&*source.path, &*source.code)), findings);
}

/// What is wrong with a file that names, however it does so, what `path` defines.
fn climb(source: &Source, path: &str, offset: usize) -> Option<String> {
    let module = source.module()?;
    let target = path.trim_start_matches("src/").split('/').next()?.trim_end_matches(".rs");
    let is_excepted =
        EXCEPTIONS.iter().any(|(from, to, _)| *from == module && to.split("::").next().is_some_and(|to| to == target));
    let climbs = target != module && !is_excepted && floor_of(target) >= floor_of(module);
    climbs.then(|| source.finding(offset, &format!("`{module}` names what {path} defines; imports go down")))
}

#[test]
fn paths_are_followed_to_their_files() {
    let files = vec![
        ("src/lib.rs", "mod low; mod high; pub use high::Top;"),
        ("src/low.rs", "mod part; use part::Part; pub use crate::high::Top; struct Own; fn f(own: Own, part: Part) {}"),
        ("src/low/part.rs", "use super::Own; pub struct Part; fn f() { self::g(); super::next::run::<Own>() }"),
        ("src/low/next.rs", "use crate::{Top as Summit, low::Top};"),
        ("src/high.rs", "mod top; pub use top::*;"),
        ("src/high/top.rs", "pub struct Top; impl Top { pub(in crate::high) fn f() {} }"),
    ];
    let house = House::of(files);
    let named = |path| house.named_by(path).into_keys().collect::<Vec<&str>>();
    assert_eq!(named("src/low.rs"), ["src/low/part.rs"], "what is only handed on is not named");
    assert_eq!(named("src/low/part.rs"), ["src/low.rs", "src/low/next.rs"]);
    assert_eq!(named("src/low/next.rs"), ["src/high/top.rs"]);
    assert!(named("src/high/top.rs").is_empty(), "who may see an item is no import");

    let check = |listed: &[(&str, &str)]| {
        let mut findings = Vec::new();
        circles::check(&house, listed, &mut findings);
        findings
    };
    let circle = "src/low.rs:1 names src/low/part.rs, src/low/part.rs:1 names src/low.rs";
    assert_eq!(check(&[]), [format!("src/low.rs:1: a circle of files: {circle}; open it")]);
    assert!(check(&[("low", "low/part")]).is_empty());
    assert!(check(&[("low", "low/part"), ("low/next", "high/top")])[0].contains("closes no circle"));

    let low = Source::new("src/sync/low.rs", "use super::Raised;");
    assert!(climb(&low, "src/comm/window.rs", 0).is_some_and(|finding| finding.contains("imports go down")));
    assert!(climb(&low, "src/sys/futex.rs", 0).is_none(), "an exception");
    assert!(climb(&low, "src/types.rs", 0).is_none());
}

#[test]
fn a_line_that_sleeps_is_found() {
    let check = |path: &str, code: &str| {
        let mut findings = Vec::new();
        sleepers::check([(path, code)].into_iter(), &mut findings);
        findings.retain(|finding| finding.starts_with(path));
        findings
    };
    assert!(check("src/session.rs", "futex::nap(A);").is_empty(), "it is on the list");
    assert!(check("src/session.rs", "futex::nap(A);\nfutex::nap(B);")[0].contains("[1, 2]: 2 lines sleep"));
    assert!(check("src/session.rs", "")[0].contains("not 1"));
    assert!(check("src/plan.rs", "flag.park(1, A);")[0].contains("1 lines sleep by `.park(`, 0 are known"));
}
