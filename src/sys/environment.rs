//! The process's environment, kept as it is while a foreign library starts: some set variables there for whoever has
//! loaded them, which every later look at the environment would find.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::config::VariablesTurn;

/// Runs `work`, and gives each variable whose name `is_kept` the value back that it had before. Returns their names,
/// too. Meanwhile other threads that read a configuration wait, and so would `work`, which must not.
pub fn kept<T>(is_kept: impl Fn(&str) -> bool, work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let turn = VariablesTurn::take();
    let look = || -> BTreeMap<OsString, OsString> {
        let all = turn.variables().into_iter();
        all.filter(|(name, _)| name.to_str().is_some_and(&is_kept)).collect()
    };
    let before = look();
    let done = work();
    let after = look();
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    let changed: Vec<&OsString> = names.filter(|name| before.get(*name) != after.get(*name)).collect();
    for name in &changed {
        put_back(name, before.get(*name));
    }
    (done, changed.iter().map(|name| name.to_string_lossy().into_owned()).collect())
}

fn put_back(name: &OsString, value: Option<&OsString>) {
    let text = |text: &OsString| CString::new(text.as_bytes());
    let Ok(name) = text(name) else { return };
    match value.map(text) {
        // SAFETY: two texts, which it copies. As the library has done before, it changes what other threads of the
        // program may be reading: C has no lock for that.
        Some(Ok(value)) => _ = unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) },
        // SAFETY: as above.
        None => _ = unsafe { libc::unsetenv(name.as_ptr()) },
        // No variable has a zero byte in it.
        Some(Err(_)) => {}
    }
}

/// The value of a variable.
#[cfg(test)]
#[cfg(not(loom))]
pub(crate) fn value(name: &str) -> Option<String> {
    let value = VariablesTurn::take().variables().remove(std::ffi::OsStr::new(name))?;
    Some(value.to_string_lossy().into_owned())
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn what_was_set_changed_or_removed_meanwhile_is_as_before_and_others_stay() {
        let set = |name: &CStr, value: &CStr| {
            // SAFETY: two texts; no other test has variables of these names.
            unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
        };
        set(c"RSCCL_KEPT_TEST_CHANGED", c"before");
        set(c"RSCCL_KEPT_TEST_REMOVED", c"there=too");
        let is_kept = |name: &str| name.starts_with("RSCCL_KEPT_TEST_");
        let (done, names) = kept(is_kept, || {
            set(c"RSCCL_KEPT_TEST_CHANGED", c"after");
            set(c"RSCCL_KEPT_TEST_SET", c"new");
            set(c"KEPT_TEST_OTHER", c"new");
            // SAFETY: as above.
            unsafe { libc::unsetenv(c"RSCCL_KEPT_TEST_REMOVED".as_ptr()) };
            // SAFETY: a text; nobody changes the variable meanwhile.
            let there = unsafe { libc::getenv(c"RSCCL_KEPT_TEST_SET".as_ptr()) };
            assert!(!there.is_null(), "or the test has tried nothing");
            7
        });
        assert_eq!(done, 7);
        let expected = ["RSCCL_KEPT_TEST_CHANGED", "RSCCL_KEPT_TEST_REMOVED", "RSCCL_KEPT_TEST_SET"];
        assert_eq!(names, expected);
        let values = expected.map(value);
        assert_eq!(values, [Some("before".to_owned()), Some("there=too".to_owned()), None]);
        assert_eq!(value("KEPT_TEST_OTHER").as_deref(), Some("new"));
    }

    #[test]
    fn who_reads_meanwhile_does_not_see_what_is_put_back() {
        let (begun, seen) = (std::sync::Barrier::new(2), crate::sync::primitive::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                let here = VariablesTurn::take().variables();
                let seen_here = here.keys().any(|name| name == "RSCCL_KEPT_BESIDE");
                seen.store(seen_here, crate::sync::primitive::Ordering::Relaxed);
            });
            let (_, names) = kept(
                |name| name == "RSCCL_KEPT_BESIDE",
                || {
                    // SAFETY: two texts; no other test has a variable of this name.
                    unsafe { libc::setenv(c"RSCCL_KEPT_BESIDE".as_ptr(), c"1".as_ptr(), 1) };
                    begun.wait();
                    // Long enough for the reader to look, if it could: it would be seen then, and only then.
                    (0..1_000).for_each(|_| std::thread::yield_now());
                },
            );
            assert_eq!(names, ["RSCCL_KEPT_BESIDE"]);
        });
        assert!(!seen.load(crate::sync::primitive::Ordering::Relaxed));
    }
}
