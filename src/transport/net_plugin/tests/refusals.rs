//! What is said of plug-ins that will not do.

use super::*;
use crate::sys::environment;
use crate::transport::net_plugin::library::PlugInFile;

fn refusal(options: &[&str]) -> Option<String> {
    let plug_in = StandIn::new(options)?;
    let error = plug_in.found().unwrap_err();
    assert_eq!(error.kind(), Kind::System);
    let path = plug_in.path.display().to_string();
    Some(error.message().replace(&path, "F"))
}

#[test]
fn each_plug_in_that_will_not_do_has_its_sentence() {
    let all: &[(&[&str], &str)] = &[
        (
            &["VERSIONS=8"],
            "F is a library, but of NCCL's interface of net plug-ins it has version 10; 8, 11 or 12 is needed",
        ),
        (&["DEVICES=0"], "F (version 12) has no devices"),
        (&["DEVICES=-3"], "F (version 12) has no devices"),
        (&["POINTERS=2"], "F (version 12) has no device that will do: device 0: stand0 takes no memory of the host"),
        (
            &["DEVICE_TYPE=1", "VERSIONS=1"],
            "F (version 8) has no device that will do: device 0: stand0 is driven by kernels of GPUs (type 1), \
             which rsccl does not do",
        ),
        (
            &["FAIL_CALL=\"devices\"", "VERSIONS=2"],
            "F (version 11) tells no devices: devices gives ncclSystemError (2)",
        ),
        (
            &["FAIL_CALL=\"getProperties\"", "FAIL_CODE=77"],
            "F (version 12) has no device that will do: device 0: getProperties gives an unknown code (77)",
        ),
        (&["FAIL_CALL=\"init\"", "FAIL_CODE=3"], "F (version 12) does not start: init gives ncclInternalError (3)"),
    ];
    for (options, sentence) in all {
        let Some(said) = refusal(options) else { return };
        assert_eq!(said, *sentence, "{options:?}");
    }
}

#[test]
fn a_function_that_is_missing_is_named() {
    let all = [
        "init",
        "devices",
        "getProperties",
        "listen",
        "connect",
        "accept",
        "regMr",
        "deregMr",
        "isend",
        "irecv",
        "test",
        "closeSend",
        "closeRecv",
        "closeListen",
        "finalize",
    ];
    for name in all {
        let Some(said) = refusal(&[&format!("LACKS=\"{name}\"")]) else { return };
        assert_eq!(said, format!("F (version 12) lacks {name}"));
    }
    let Some(said) = refusal(&["LACKS=\"irecv\"", "VERSIONS=1"]) else { return };
    assert_eq!(said, "F (version 8) lacks irecv");
}

#[test]
fn files_that_are_missing_or_no_plug_ins_are_told() {
    let find = |name: &str| find_in(Rank::new(0), &[name.to_owned()], None).unwrap_err().message().to_owned();
    let takes = "(NCCL_NET_PLUGIN takes the path of a library, or NAME for libnccl-net-NAME.so)";
    assert_eq!(
        find("nowhere"),
        format!(
            "there is no nowhere where the loader looks, there is no libnccl-net-nowhere.so where the loader looks \
             {takes}"
        )
    );
    for name in ["libnowhere.so", "/tmp/nowhere.so"] {
        assert_eq!(find(name), format!("there is no {name} where the loader looks {takes}"));
    }
    let said = find("/etc/hostname");
    assert!(said.starts_with("/etc/hostname cannot be loaded: ") && said.ends_with(takes), "{said}");
    assert_eq!(said.matches("/etc/hostname").count(), 1, "{said}");
    assert!(find("/dev/null").starts_with("/dev/null is no regular file"), "{}", find("/dev/null"));
    assert_eq!(find("a\0b"), "a\0b: \"a\\0b\" is no name of a file");
    let none = find_in(Rank::new(0), &[], None).unwrap_err();
    assert_eq!(none.message(), "NCCL_NET_PLUGIN names no plug-in");
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = machine::net_plugin::none(folder.path()) else { return };
    let said = find(&path.display().to_string());
    assert!(said.ends_with("it has none that is known; 8, 11 or 12 is needed"), "{said}");
}

#[test]
fn the_first_plug_in_that_will_do_is_taken_and_others_are_told() {
    let (Some(first), Some(second)) = (StandIn::new(&["DEVICES=0"]), StandIn::new(&["NET=\"Other\""])) else { return };
    let names = [&first, &second].map(|plug_in| plug_in.path.display().to_string());
    let found = find_in(Rank::new(0), &names, None).unwrap();
    assert!(found.description().provider.starts_with("Other of "), "{}", found.description());
    assert_eq!(found.noes(), [format!("{0} (version 12) has no devices", names[0])]);
    assert!(find_in(Rank::new(0), &names, Some("OTHER")).is_ok(), "in any case");
    let error = find_in(Rank::new(0), &names[1..], Some("Theirs")).unwrap_err();
    let sentence = format!("{0} has the network \"Other\", and NCCL_NET asks for \"Theirs\"", names[1]);
    assert_eq!(error.message(), sentence);
}

/// All kinds of variable arguments: in registers of both kinds, and on the stack.
#[test]
fn what_a_plug_in_warns_of_stands_in_the_error_with_all_its_arguments() {
    let Some(plug_in) = StandIn::new(&["WARNS=1"]) else { return };
    let error = plug_in.found().unwrap_err();
    let words = "init gives ncclSystemError (2); it says: Stand-in starts: -7 1099511627776 x 1.50 text 9 2.5 0x10 \
                 3.5 4.5 5.5 6.5 7.5 8.5 9.5 10 11";
    assert!(error.message().ends_with(words), "{error}");
}

#[test]
fn a_variable_of_nccls_that_a_plug_in_sets_is_put_back_and_others_stay() {
    for (variable, is_put_back) in [("NCCL_OF_THE_TEST", true), ("FI_OF_THE_TEST", false)] {
        let Some(plug_in) = StandIn::new(&[&format!("VARIABLE=\"{variable}\"")]) else { return };
        let loaded = PlugInFile::load(&plug_in.path.display().to_string()).unwrap();
        let (_, _, names) = loaded.start(1).unwrap();
        assert_eq!(names, if is_put_back { vec![variable] } else { Vec::new() });
        assert_eq!(environment::value(variable).is_none(), is_put_back);
    }
}

#[test]
fn each_call_that_fails_is_an_error_with_its_name() {
    for (call, at) in [
        ("listen", 1),
        ("listen", 2),
        ("connect", 1),
        ("accept", 1),
        ("regMr", 1),
        ("regMr", 5),
        ("isend", 3),
        ("irecv", 3),
        ("test", 30),
    ] {
        let options = [format!("FAIL_CALL=\"{call}\""), format!("FAIL_AT={at}")];
        let Some(plug_in) = StandIn::new(&options.each_ref().map(String::as_str)) else { return };
        let found = plug_in.found().unwrap();
        let error = Pair::open(&*found).and_then(|mut pair| pair.exchange(&LENGTHS)).unwrap_err();
        let sentence = format!("net plug-in Stand-in: {call} gives ncclSystemError (2)");
        assert_eq!((error.kind(), error.message()), (Kind::System, &*sentence), "{call}, {at}");
        assert_eq!(plug_in.state().0, None, "{call}, {at}");
    }
}
