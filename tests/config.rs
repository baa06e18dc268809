//! Configuration from outside: which source overrides which, which values are refused, and in which words.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rsccl::config::{Config, DebugLevel, Environment, PortRange, Secret, SocketFamily};
use rsccl::error::Kind;
use rsccl::internals::config::{Note, Source, VARIABLES};

fn resolve(variables: &[(&str, &str)]) -> rsccl::Result<Config> {
    Config::default().resolve_in(&Environment::of(variables.iter().copied()))
}

fn refused(variables: &[(&str, &str)]) -> String {
    let error = resolve(variables).expect_err("a bad value is an error");
    assert_eq!(error.kind(), Kind::InvalidArgument);
    error.to_string()
}

fn write(path: &Path, text: &str) -> String {
    std::fs::write(path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn each_layer_is_stronger_than_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let home_file = folder.path().join(".nccl.conf");
    let system_file = folder.path().join("system.conf");
    let named_file = write(&folder.path().join("named.conf"), "NCCL_ALGO=named\n");
    let mut variables = vec![("RSCCL_ALGO", "own"), ("NCCL_ALGO", "nccl"), ("NCCL_CONF_FILE", &*named_file)];
    write(&home_file, "NCCL_ALGO=home\nRSCCL_ALGO=own-home\n");
    write(&system_file, "RSCCL_ALGO=system\n");
    let algo = |variables: &[(&str, &str)], config: Config| {
        let environment = Environment::of(variables.iter().copied()).with_home(folder.path());
        config.resolve_in(&environment.with_system_file(&system_file)).unwrap().algo
    };
    let code = || Config::default().with_algo("code");
    assert_eq!(algo(&variables, code()).as_deref(), Some("own"));
    variables.remove(0);
    assert_eq!(algo(&variables, code()).as_deref(), Some("nccl"));
    variables.remove(0);
    assert_eq!(algo(&variables, code()).as_deref(), Some("named"));
    variables.remove(0);
    assert_eq!(algo(&variables, code()).as_deref(), Some("own-home"));
    write(&home_file, "NCCL_ALGO=home\nNCCL_ALGO=later\n");
    assert_eq!(algo(&variables, code()).as_deref(), Some("home"), "the first line wins");
    std::fs::remove_file(&home_file).unwrap();
    assert_eq!(algo(&variables, code()).as_deref(), Some("system"));
    std::fs::remove_file(&system_file).unwrap();
    assert_eq!(algo(&variables, code()).as_deref(), Some("code"));
    assert_eq!(algo(&variables, Config::default()), None);
}

#[test]
fn every_kind_of_value_is_read() {
    let config = resolve(&[
        ("NCCL_COMM_BLOCKING", "0"),
        ("RSCCL_TIMEOUT_MS", "1500"),
        ("RSCCL_SPIN_US", "0"),
        ("NCCL_BUFFSIZE", "8M"),
        ("NCCL_MAX_CTAS", "16"),
        ("NCCL_NET", "socket"),
        ("NCCL_SOCKET_FAMILY", "af_inet6"),
        ("RSCCL_PORT_RANGE", " 50000 - 50100 "),
        ("NCCL_SOCKET_RCVBUF", "-1"),
        ("RSCCL_SECRET", "open sesame"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^NET"),
        ("NCCL_DEBUG_TIMESTAMP_FORMAT", "%T "),
        ("NCCL_COMM_NAME", ""),
    ])
    .unwrap();
    assert!(!config.blocking);
    assert_eq!((config.timeout, config.spin), (Duration::from_millis(1500), Duration::ZERO));
    assert_eq!((config.buffer_bytes, config.max_channels), (Some(8 << 20), Some(16)));
    assert_eq!((config.net.as_deref(), config.socket_family), (Some("Socket"), Some(SocketFamily::Inet6)));
    assert_eq!(config.port_range, PortRange::new(50_000, 50_100));
    assert_eq!((config.socket_receive_bytes, config.debug), (None, Some(DebugLevel::Info)));
    assert_eq!((&*config.debug_time_format, &*config.name), ("%T ", ""));
    assert_eq!(config.secret.as_ref().map(Secret::expose), Some(&b"open sesame"[..]));
    let printed = format!("{config:?}");
    assert!(printed.contains("<redacted>") && !printed.contains("sesame"), "{printed}");
}

#[test]
fn a_bad_value_names_variable_value_source_and_what_is_allowed() {
    for (name, value, allowed) in [
        ("NCCL_COMM_BLOCKING", "2", "1 or 0"),
        ("RSCCL_COMM_BLOCKING", "maybe", "1 or 0"),
        ("RSCCL_TIMEOUT_MS", "10s", "10 to 2592000000 milliseconds"),
        ("RSCCL_TIMEOUT_MS", "1", "10 to 2592000000 milliseconds, or 0 to wait for ever"),
        ("RSCCL_INIT_TIMEOUT_MS", "5", "10 to 2592000000 milliseconds"),
        ("NCCL_SOCKET_RCVBUF", "1", "bytes from 65536 to 2147483647"),
        ("NCCL_SOCKET_SNDBUF", "65535", "bytes from 65536 to 2147483647"),
        ("RSCCL_SPIN_US", "2000000", "0 to 1000000 microseconds"),
        ("NCCL_BUFFSIZE", "1", "bytes from 16384 to 1073741824"),
        ("NCCL_MIN_NCHANNELS", "65", "a whole number from 1 to 64, or -1 for automatic"),
        ("NCCL_SOCKET_RETRY_CNT", "-1", "a whole number from 0 to 1000"),
        ("RSCCL_PORT_RANGE", "50000", "two ports"),
        ("RSCCL_PORT_RANGE", "50100-50000", "two ports"),
        ("RSCCL_PORT_RANGE", "0-70000", "two ports"),
        ("NCCL_SOCKET_FAMILY", "inet", "AF_INET, AF_INET6"),
        ("RSCCL_STORE", "nowhere", "tcp://host:port"),
    ] {
        let text = refused(&[(name, value)]);
        assert!(text.starts_with(&format!("{name}={value:?} (environment): ")), "{text}");
        assert!(text.contains("; allowed: ") && text.contains(allowed), "{text}");
    }
    let long = "x".repeat(5000);
    assert!(refused(&[("NCCL_ALGO", &long)]).contains("too long"));
    let secret = refused(&[("RSCCL_SECRET", &long)]);
    assert!(secret.contains("<redacted>") && !secret.contains("xxx"), "{secret}");
}

#[test]
fn what_the_program_sets_is_held_to_the_same_ranges() {
    let nobody = Environment::default();
    let error = Config::default().with_scratch_bytes(1).resolve_in(&nobody).unwrap_err().to_string();
    assert!(error.starts_with("RSCCL_SCRATCH_BYTES=\"1\" (program): out of range"), "{error}");
    assert!(Config::default().with_timeout(Duration::ZERO).resolve_in(&nobody).is_err());
    let config = Config::default().with_min_channels(2).with_secret(Secret::new("s")).resolve_in(&nobody).unwrap();
    assert_eq!(config.clone().resolve_in(&nobody).unwrap().min_channels, Some(2));
}

/// A site's module file sets `NCCL_NET=AWS` for all its users.
#[test]
fn a_network_of_others_is_told_and_sockets_are_used() {
    let config = resolve(&[("NCCL_NET", "AWS")]).unwrap();
    assert_eq!(config.net.as_deref(), Some("Socket"), "and not what there is hardware for");
    let told: Vec<_> = config
        .notes()
        .iter()
        .filter_map(|note| if let Note::Mistake(text) = note { Some(&**text) } else { None })
        .collect();
    let why = "NCCL_NET=\"AWS\" (environment): rsccl does not have this network";
    assert_eq!(told, [format!("{why}; ranks of different hosts use Socket (TCP)")]);
    let nobody = Environment::default();
    let config = Config::default().with_net("AWS Libfabric").resolve_in(&nobody).unwrap();
    assert!(config.notes().iter().any(|note| matches!(note, Note::Mistake(text) if text.contains("(program)"))));

    let text = refused(&[("NCCL_NET", "AWS"), ("RSCCL_NET_STRICT", "1")]);
    assert!(text.starts_with(why) && text.contains("; allowed: Socket"), "{text}");
    let error = Config::default().with_net("AWS").with_net_strict(true).resolve_in(&nobody).unwrap_err().to_string();
    assert!(error.contains("NCCL_NET=\"AWS\" (program)"), "{error}");
    assert_eq!(resolve(&[("NCCL_NET", "SOCKET"), ("RSCCL_NET_STRICT", "1")]).unwrap().net.as_deref(), Some("Socket"));
}

/// It may be what the plug-in calls its network, which only the plug-in knows.
#[test]
fn any_network_goes_where_a_plug_in_is_asked_for() {
    let theirs = |plug_ins: &str| {
        let config = resolve(&[("NCCL_NET", " AWS Libfabric "), ("NCCL_NET_PLUGIN", plug_ins)]).unwrap();
        let is_told = config.notes().iter().any(|note| matches!(note, Note::Mistake(_)));
        (config.net.clone(), is_told)
    };
    assert_eq!(theirs("aws-ofi"), (Some("AWS Libfabric".to_owned()), false));
    for none in ["none", "NONE", " "] {
        assert_eq!(theirs(none), (Some("Socket".to_owned()), true), "{none:?}");
    }
    assert_eq!(resolve(&[("NCCL_NET", "Plugin")]).unwrap().net.as_deref(), Some("plugin"));
}

#[test]
fn variables_that_contradict_each_other_are_named() {
    let channels = refused(&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_MAX_NCHANNELS", "4")]);
    assert!(channels.contains("NCCL_MIN_NCHANNELS=8 is above NCCL_MAX_NCHANNELS=4"), "{channels}");
    let sockets = refused(&[("NCCL_SOCKET_NTHREADS", "16"), ("NCCL_NSOCKS_PERTHREAD", "5")]);
    assert!(sockets.contains("is 80; at most 64"), "{sockets}");
    assert!(resolve(&[("NCCL_SOCKET_NTHREADS", "16"), ("NCCL_NSOCKS_PERTHREAD", "4")]).is_ok());
}

#[test]
fn errors_in_files_name_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder.path().join("a.conf"), "# ours\n\nNCCL_BUFFSIZE = many # too many\n");
    let with = |path: &str| refused(&[("NCCL_CONF_FILE", path)]);
    assert!(with(&path).starts_with(&format!("NCCL_BUFFSIZE=\"many\" ({path}:3): not a whole number; allowed: bytes")));
    // A wrong line in a file does no harm if a stronger source overrides it.
    assert!(resolve(&[("NCCL_CONF_FILE", &path), ("NCCL_BUFFSIZE", "1M")]).is_ok());
    let missing = folder.path().join("none").to_str().unwrap().to_owned();
    assert_eq!(
        with(&missing),
        format!("NCCL_CONF_FILE={missing:?} (environment): there is no such file; allowed: a readable file")
    );
    assert!(with(folder.path().to_str().unwrap()).contains("not a regular file"));
    std::fs::write(folder.path().join("b.conf"), [0x7f, b'E', b'L', b'F', 2, 1, 1, 0]).unwrap();
    let garbage = with(folder.path().join("b.conf").to_str().unwrap());
    assert!(garbage.contains("b.conf is not text"), "{garbage}");
}

/// What NCCL leaves out ends no program here: users of a machine cannot edit its file.
#[test]
fn lines_that_are_no_assignments_are_remarks() {
    let folder = tempfile::tempdir().unwrap();
    let lines =
        b"\xef\xbb\xbf[site]\r\nexport NCCL_DEBUG=INFO\r\n\xff\xfe\r\nNCCL_BUFFSIZE = 1M\r\nNCCL_BUFFSIZE=2M\r\n";
    let path = folder.path().join("a.conf");
    std::fs::write(&path, lines).unwrap();
    let shown = path.to_str().unwrap();
    let machine = Environment::default().with_system_file(&path);
    for environment in [machine, Environment::of([("NCCL_CONF_FILE", shown)])] {
        let config = Config::default().resolve_in(&environment).unwrap();
        assert_eq!((config.buffer_bytes, config.debug), (Some(1 << 20), None));
        let told = format!("{shown}:1, and 2 more lines, the next is 2: ignored, it has no =");
        let is_it = |note: &&Note| matches!(note, Note::Warning(text) if text.starts_with(&told));
        assert_eq!(config.notes().iter().filter(is_it).count(), 1, "{:?}", config.notes());
    }
    // A name that a newer release may know, or none, in the file of a machine.
    std::fs::write(&path, "RSCCL_TIMEOUT=10\nNCCL_BUFSIZE=1M\n").unwrap();
    let config = Config::default().resolve_in(&Environment::default().with_system_file(&path)).unwrap();
    let told =
        |part: &str| config.notes().iter().any(|note| matches!(note, Note::Warning(text) if text.contains(part)));
    assert!(told("did you mean RSCCL_TIMEOUT_MS?") && told("did you mean NCCL_BUFFSIZE?"), "{:?}", config.notes());
    assert!(refused(&[("NCCL_CONF_FILE", shown)]).contains("did you mean RSCCL_TIMEOUT_MS?"));
}

#[test]
fn a_file_that_nobody_named_ends_no_program() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long.conf");
    std::fs::write(&long, vec![b'#'; 2 << 20]).unwrap();
    for (path, why) in
        [(folder.path(), "is not a regular file: ignored"), (&*long, "longer than 1048576 bytes: ignored")]
    {
        let config = Config::default().resolve_in(&Environment::default().with_system_file(path)).unwrap();
        let [Note::Warning(text)] = config.notes() else { panic!("{:?}", config.notes()) };
        assert!(text.contains(why), "{text}");
    }
}

fn mistakes(config: &Config) -> Vec<&str> {
    let told =
        config.notes().iter().filter_map(|note| if let Note::Mistake(text) = note { Some(&**text) } else { None });
    told.collect()
}

#[test]
fn settings_of_the_log_are_never_errors() {
    use std::os::unix::ffi::OsStrExt;
    let log = VARIABLES.iter().filter(|variable| variable.name.starts_with("DEBUG"));
    let names: Vec<String> = log.map(rsccl::internals::config::Variable::full_name).collect();
    assert_eq!(names.len(), 5);
    let no_text = std::ffi::OsStr::from_bytes(b"\xff");
    let all = Environment::of(names.iter().map(|name| (&**name, no_text)));
    let config = Config::default().with_debug(DebugLevel::Warn).resolve_in(&all).unwrap();
    assert_eq!((config.debug, mistakes(&config).len()), (Some(DebugLevel::Warn), 5), "what the program says is kept");
    let config = resolve(&[("NCCL_DEBUG", "FOO"), ("NCCL_DEBUG_SUBSYS", "INIT,^ENV")]).unwrap();
    assert_eq!((config.debug, config.debug_subsystems), (None, Config::default().debug_subsystems));
    let [level, parts] = &mistakes(&config)[..] else { panic!("{:?}", config.notes()) };
    assert!(level.starts_with("NCCL_DEBUG=\"FOO\" (environment): no such choice; allowed: VERSION"), "{level}");
    assert!(level.ends_with(": ignored") && parts.contains("there is no subsystem \"^ENV\""), "{level}, {parts}");
    let empty = resolve(&[("NCCL_DEBUG_SUBSYS", "")]).unwrap();
    assert_eq!((empty.debug_subsystems.to_string(), mistakes(&empty).len()), ("NONE".to_owned(), 0));
    let silent = Config::default().with_debug(DebugLevel::Info);
    let silent = silent.resolve_in(&Environment::of([("NCCL_DEBUG", "none")])).unwrap();
    assert_eq!((silent.debug, mistakes(&silent).len()), (None, 0));
}

#[test]
fn a_file_of_topology_or_channels_that_is_absent_is_left_out() {
    let config = resolve(&[("NCCL_TOPO_FILE", "/none/a"), ("NCCL_GRAPH_FILE", "/none/b")]).unwrap();
    assert_eq!((&config.topo_file, &config.graph_file), (&None, &None));
    let [topology, graph] = &mistakes(&config)[..] else { panic!("{:?}", config.notes()) };
    assert!(topology.starts_with("NCCL_TOPO_FILE=\"/none/a\" (environment): No such file"), "{topology}");
    assert!(graph.starts_with("NCCL_GRAPH_FILE=\"/none/b\" (environment): No such file"), "{graph}");
    let by_program = Config::default().with_topo_file("/none/c").resolve_in(&Environment::default()).unwrap();
    assert!(by_program.topo_file.is_none() && mistakes(&by_program)[0].contains("(program)"));
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    assert!(resolve(&[("NCCL_TOPO_FILE", here)]).unwrap().topo_file.is_some(), "it is there");
    // Nobody who runs a program can change the machine's file: only the log says it.
    let path = write(&folder.path().join("system.conf"), "NCCL_TOPO_FILE=/none/d\n");
    let machine = Config::default().resolve_in(&Environment::default().with_system_file(&path)).unwrap();
    let is_it = |note: &Note| matches!(note, Note::Warning(text) if text.contains("/none/d"));
    assert!(mistakes(&machine).is_empty() && machine.notes().iter().any(is_it), "{:?}", machine.notes());
}

/// A site's file for NCCL may hold them, and must not end programs that use sockets.
#[test]
fn values_of_verbs_that_nccl_takes_for_unset_or_ignores_end_no_program() {
    let unset = [("NCCL_NET", "IB"), ("NCCL_IB_SL", "-1"), ("NCCL_IB_TC", "-1"), ("NCCL_IB_TIMEOUT", "0")];
    let config = resolve(&unset).unwrap();
    assert_eq!((config.ib_sl, config.ib_tc, config.ib_timeout, mistakes(&config).len()), (None, None, 0, 0));
    for (name, value) in [
        ("NCCL_IB_DISABLE", "2"),
        ("NCCL_IB_SL", "16"),
        ("NCCL_IB_QPS_PER_CONNECTION", "129"),
        ("NCCL_IB_ADDR_FAMILY", "AF_IB"),
        ("NCCL_IB_ROCE_VERSION_NUM", "3"),
    ] {
        for net in ["Socket", ""] {
            let config = resolve(&[(name, value), ("NCCL_NET", net)]).unwrap();
            let [told] = &mistakes(&config)[..] else { panic!("{name}: {:?}", config.notes()) };
            assert!(
                told.starts_with(&format!("{name}=\"{value}\" (environment): ")) && told.ends_with(": ignored"),
                "{told}"
            );
        }
        let error = resolve(&[(name, value), ("NCCL_NET", "ib")]).unwrap_err();
        assert!(error.message().contains(name), "{error}");
    }
}

#[test]
fn marks_inside_a_list_of_interfaces_are_told() {
    for (list, stray) in [("=a,b,^c", Some("^c")), ("a,=b", Some("=b")), ("^=a,b", None), ("=a", None), ("a,b", None)] {
        let config = resolve(&[("NCCL_SOCKET_IFNAME", list)]).unwrap();
        let told =
            config.notes().iter().find_map(|note| if let Note::Warning(text) = note { Some(text) } else { None });
        assert_eq!(told.is_some(), stray.is_some(), "{list}: {told:?}");
        assert!(told.is_none_or(|text| text.contains(&format!("{:?} is no interface", stray.unwrap()))), "{told:?}");
    }
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        writeln!(std::io::stderr(), "skipped: this machine has no mkfifo").expect("standard error can be written");
        return;
    }
    assert!(refused(&[("NCCL_CONF_FILE", path.to_str().unwrap())]).contains("not a regular file"));
    assert!(refused(&[("RSCCL_SECRET_FILE", path.to_str().unwrap())]).contains("not a regular file"));
}

#[test]
fn unknown_names_are_told_and_idle_ones_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder.path().join("a.conf"), "NCCL_GDRCOPY_ENABLE=1\nPATH=/bin\n");
    let config = resolve(&[
        ("RSCCL_XYZZY_PLUGH", "1"),
        ("NCCL_BUFSIZE", "1M"),
        ("NCCL_REPRODUCIBLE", "1"),
        ("NCCL_IB_AR_THRESHOLD", "0"),
        ("RSCCL_RANK", "0"),
        ("RSCCL_CONF_FILE", &path),
    ]);
    let expected = [
        Note::Mistake("RSCCL_XYZZY_PLUGH (environment) is unknown; `rsccl env` lists what is known".to_owned()),
        Note::Mistake("NCCL_BUFSIZE (environment) is not a variable of NCCL; did you mean NCCL_BUFFSIZE?".to_owned()),
        Note::Mistake(
            "NCCL_REPRODUCIBLE (environment) is not a variable of NCCL; did you mean RSCCL_REPRODUCIBLE?".to_owned(),
        ),
        Note::Warning(format!("PATH ({path}:2) has no effect: only names with NCCL_ or RSCCL_ are read here")),
        Note::Information(
            "variables of NCCL that have no effect here: NCCL_GDRCOPY_ENABLE, NCCL_IB_AR_THRESHOLD".to_owned(),
        ),
    ];
    assert_eq!(config.unwrap().notes(), expected);
    let all = refused(&[("RSCCL_TIMEOUT", "1"), ("RSCCL_SCRATCH", "1")]);
    assert_eq!(
        all,
        "RSCCL_SCRATCH (environment) is unknown; did you mean RSCCL_SCRATCH_BYTES?; \
         RSCCL_TIMEOUT (environment) is unknown; did you mean RSCCL_TIMEOUT_MS?"
    );
    assert!(resolve(&[("RSCCL_TIMEOUT", ""), ("NCCL_BUFSIZE", "")]).unwrap().notes().is_empty(), "that is unset");
    // The names of installations, builds and tests are no settings.
    let elsewhere = [("RSCCL_ROOT", "/opt"), ("RSCCL_HOME", "/opt"), ("RSCCL_DIR", "/opt"), ("RSCCL_TEST_SEED", "7")];
    assert!(resolve(&elsewhere).unwrap().notes().iter().all(|note| matches!(note, Note::Information(_))));
}

#[test]
fn the_table_tells_value_and_source_of_each_variable() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder.path().join(".nccl.conf"), "\nNCCL_PROTO=LL\n");
    let variables = [("NCCL_ALGO", "Ring"), ("RSCCL_SECRET", "sesame"), ("NCCL_BUFFSIZE", "LOUD")];
    let environment = Environment::of(variables).with_home(folder.path());
    let (settings, _) = Config::default().with_name("code").explain(&environment).unwrap();
    assert_eq!(settings.len(), VARIABLES.len());
    let of = |name: &str| settings.iter().find(|setting| setting.variable.name == name).unwrap();
    assert_eq!((&*of("ALGO").value, &of("ALGO").source), ("Ring", &Source::Environment));
    assert_eq!((&*of("PROTO").value, of("PROTO").source.to_string()), ("LL", format!("{path}:2")));
    assert_eq!((&*of("COMM_NAME").value, &of("COMM_NAME").source), ("code", &Source::Code));
    assert_eq!((&*of("SOCKET_RETRY_CNT").value, &of("SOCKET_RETRY_CNT").source), ("34", &Source::Default));
    assert_eq!(of("SECRET").value, "<redacted>");
    assert!(of("BUFFSIZE").problem.as_ref().unwrap().contains("LOUD"));
}

proptest::proptest! {
    #[test]
    fn no_environment_and_no_file_makes_it_panic(
        values in proptest::collection::vec((0..VARIABLES.len(), "[-0-9a-zA-Z^=,:/\\[\\] .%]{0,24}|\\PC{0,12}"), 0..12),
        file in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        lines in proptest::collection::vec((0..VARIABLES.len(), "[-0-9a-z^=,:/ #]{0,16}"), 0..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let variables: Vec<(String, String)> =
            values.into_iter().map(|(index, value)| (VARIABLES[index].full_name(), value.replace('\0', ""))).collect();
        let text: String = lines.iter().map(|(index, value)| format!("{}={value}\n", VARIABLES[*index].full_name())).collect();
        write(&folder.path().join(".nccl.conf"), &text);
        std::fs::write(folder.path().join("system.conf"), file).unwrap();
        let environment = Environment::of(variables).with_home(folder.path());
        for environment in [environment.clone(), environment.with_system_file(folder.path().join("system.conf"))] {
            match Config::default().resolve_in(&environment) {
                Ok(config) => proptest::prop_assert!(config.resolve_in(&environment).is_ok()),
                Err(error) => proptest::prop_assert!(matches!(error.kind(), Kind::InvalidArgument | Kind::System)),
            }
            if let Ok((settings, _)) = Config::default().explain(&environment) {
                proptest::prop_assert_eq!(settings.len(), VARIABLES.len());
            }
        }
    }
}
