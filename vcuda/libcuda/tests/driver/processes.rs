//! Several processes on one machine: memory that they share by handles and descriptors, turns on a GPU, exporters that die.

use std::os::unix::process::CommandExt;

use crate::support::{
    self, call, finish, get, kernels, launch, launch_threads, ok, place, run, slice, start, symbol, word,
};
use crate::{LAUNCH_TIMEOUT, NOT_READY, properties};

/// Runs a part whose processes share the state of one machine, in a folder of their own. Returns what it printed.
fn run_together(part: &str, settings: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let state = ("VCUDA_STATE", folder.path().to_str().expect("a path"));
    run(part, &[&[state], settings].concat())
}

#[test]
fn a_cycle_through_two_processes_is_found() {
    let errors = run_together("cycle of two processes", &[("VCUDA_MACHINE", "1"), ("VCUDA_STUCK_MS", "4000")]);
    // Whichever process notices first reports both; the other may find its peer gone by then.
    let names_both = |report: &str| {
        let cycle = report.split("all waits:").next().unwrap_or_default();
        let pids: std::collections::BTreeSet<&str> =
            cycle.split("process ").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        cycle.contains("as a cycle:") && pids.len() == 2
    };
    assert!(errors.split("vcuda: deadlock:").any(names_both), "{errors}");
}

/// Each process waits for a word that the other writes only after its own wait.
pub(crate) fn cycle_of_two_processes() {
    start(0);
    let other = std::env::var("VCUDA_TEST_HANDLE").ok();
    let mut memory = 0_u64;
    let (mut own, mut its) = (0, 4);
    let child = match other {
        None => {
            memory = get("cuMemAlloc_v2", &[64]);
            ok("cuMemsetD32_v2", &[memory, 0, 16]);
            ok("cuCtxSynchronize", &[]);
            let mut handle = [0_u8; 64];
            ok("cuIpcGetMemHandle", &[place(&mut handle), memory]);
            let text: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
            let child = support::part("cycle of two processes", &[("VCUDA_TEST_HANDLE", &text)]).spawn();
            Some(child.expect("a process"))
        }
        Some(hex) => {
            let mut handle = [0_u8; 64];
            for (index, byte) in handle.iter_mut().enumerate() {
                *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).expect("a byte");
            }
            assert_eq!(open(handle, place(&mut memory), 1), 0);
            (own, its) = (its, own);
            None
        }
    };
    // The second process says by a word of its own that it is there: a slow start is no deadlock.
    if child.is_none() {
        ok("cuMemsetD32_v2", &[memory + 8, 1, 1]);
    }
    while word(memory + 8) == 0 {
        std::thread::yield_now();
    }
    let stream = get("cuStreamCreate", &[1]);
    ok("cuStreamWaitValue32_v2", &[stream, memory + own, 1, 1]);
    ok("cuStreamWriteValue32_v2", &[stream, memory + its, 1, 0]);
    let code = call("cuStreamSynchronize", &[stream]);
    if let Some(child) = child {
        let output = child.wait_with_output().expect("its output");
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(code, LAUNCH_TIMEOUT);
}

#[test]
fn two_processes_share_memory_by_handle_and_descriptor() {
    run_together("exporter", &[("VCUDA_MACHINE", "2-nvswitch")]);
}

pub(crate) fn exporter() {
    start(0);
    let [first, memory] = [(); 2].map(|()| get("cuMemAlloc_v2", &[4096]));
    ok("cuMemsetD32_v2", &[memory, 21, 1024]);
    let mut handle = [0_u8; 64];
    ok("cuIpcGetMemHandle", &[place(&mut handle), memory + 100]);
    let unit = 2 << 20;
    let physical = get("cuMemCreate", &[unit, slice(&properties(0)), 0]);
    let at = get("cuMemAddressReserve", &[unit, 0, 0, 0]);
    ok("cuMemMap", &[at, unit, 0, physical, 0]);
    ok("cuMemSetAccess", &[at, unit, slice(&[1_u32, 0, 3]), 1]);
    ok("cuMemsetD32_v2", &[at, 22, 16]);
    ok("cuCtxSynchronize", &[]);
    let mut fd = 0_i32;
    ok("cuMemExportToShareableHandle", &[place(&mut fd), physical, 1, 0]);
    let text: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = support::part("importer", &[("VCUDA_TEST_HANDLE", &text), ("VCUDA_TEST_FD", &fd.to_string())]);
    let inherit = move || {
        // SAFETY: fcntl takes no pointers here; the descriptor is the child's copy.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        Ok(())
    };
    // SAFETY: the closure makes one call that is safe between fork and exec.
    unsafe { command.pre_exec(inherit) };
    finish(command);
    assert_eq!((word(memory), word(at)), (31, 32), "the importer has written");
    ok("cuMemFree_v2", &[first]);
}

/// Opens a legacy handle, which C passes by value.
fn open(handle: [u8; 64], place: u64, flags: u32) -> i32 {
    #[repr(C)]
    struct Handle([u8; 64]);
    // SAFETY: the signature of `cuIpcOpenMemHandle_v2`.
    let open = unsafe {
        std::mem::transmute::<*const (), extern "C" fn(u64, Handle, u32) -> i32>(symbol("cuIpcOpenMemHandle_v2"))
    };
    open(place, Handle(handle), flags)
}

pub(crate) fn importer() {
    start(1);
    let hex = std::env::var("VCUDA_TEST_HANDLE").expect("a handle");
    let mut handle = [0_u8; 64];
    for (index, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).expect("a byte");
    }
    let mut memory = 0_u64;
    assert_eq!(open([7; 64], place(&mut memory), 1), 1, "no handle");
    assert_eq!(open(handle, place(&mut memory), 1), 0);
    let mut again = 0_u64;
    assert_eq!(open(handle, place(&mut again), 1), 0);
    assert_eq!(again, memory, "counted, not mapped twice");
    assert_eq!(word(memory + 4000), 21);
    let [_, set_to, _] = kernels();
    assert_eq!(launch(set_to, 1, 0, memory, 31), 0);
    ok("cuCtxSynchronize", &[]);
    assert_eq!(call("cuMemFree_v2", &[memory]), 1, "not ours to free");
    ok("cuIpcCloseMemHandle", &[memory]);
    ok("cuIpcCloseMemHandle", &[memory]);
    assert_eq!(call("cuIpcCloseMemHandle", &[memory]), 1);
    let fd: u64 = std::env::var("VCUDA_TEST_FD").expect("a descriptor").parse().expect("a number");
    let physical = get("cuMemImportFromShareableHandle", &[fd, 1]);
    let unit = 2 << 20;
    let at = get("cuMemAddressReserve", &[unit, 0, 0, 0]);
    ok("cuMemMap", &[at, unit, 0, physical, 0]);
    ok("cuMemSetAccess", &[at, unit, slice(&[1_u32, 1, 3]), 1]);
    assert_eq!(word(at), 22);
    assert_eq!(launch(set_to, 1, 0, at, 32), 0);
    ok("cuCtxSynchronize", &[]);
    let mut fabric = 0_u64;
    assert_eq!(call("cuMemImportFromShareableHandle", &[place(&mut fabric), slice(&[0_u64; 8]), 8]), 1);
}

#[test]
fn processes_on_one_gpu_take_turns() {
    run_together("turns", &[("VCUDA_MACHINE", "1"), ("VCUDA_STUCK_MS", "60000")]);
}

/// Rounds of ping-pong between kernels of two processes on one GPU.
const ROUNDS: u32 = 20;

pub(crate) fn turns() {
    start(0);
    let hex = std::env::var("VCUDA_TEST_HANDLE").ok();
    let [wait_for, set_to, _] = kernels();
    let mut memory = 0_u64;
    let child = match &hex {
        None => {
            memory = get("cuMemAlloc_v2", &[64]);
            ok("cuMemsetD32_v2", &[memory, 0, 16]);
            ok("cuCtxSynchronize", &[]);
            let mut handle = [0_u8; 64];
            ok("cuIpcGetMemHandle", &[place(&mut handle), memory]);
            let text: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
            let command = support::part("turns", &[("VCUDA_TEST_HANDLE", &text)]);
            Some(std::thread::spawn(move || finish(command)))
        }
        Some(hex) => {
            let mut handle = [0_u8; 64];
            for (index, byte) in handle.iter_mut().enumerate() {
                *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).expect("a byte");
            }
            assert_eq!(open(handle, place(&mut memory), 1), 0);
            None
        }
    };
    let first = u32::from(child.is_none());
    for round in 0..ROUNDS {
        assert_eq!(launch(wait_for, 2, 0, memory, 2 * round + first), 0);
        // One thread: a second one's store of the same value may come after the answer to the first one's, and undo it.
        assert_eq!(launch_threads(set_to, (1, 1), 0, memory, 2 * round + first + 1), 0);
    }
    ok("cuCtxSynchronize", &[]);
    if let Some(child) = child {
        child.join().expect("the other process");
        assert_eq!(word(memory), 2 * ROUNDS);
    }
}

/// The bytes of a handle as text.
fn hex(handle: &[u8]) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The handle that this part was told.
fn told_handle() -> [u8; 64] {
    let text = std::env::var("VCUDA_TEST_HANDLE").expect("a handle");
    from_hex(&text)
}

fn from_hex(text: &str) -> [u8; 64] {
    let mut handle = [0_u8; 64];
    for (index, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("a byte");
    }
    handle
}

/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`.
const FABRIC_SUPPORTED: u64 = 128;
/// `CUmemAllocationProp` for memory of a device that may be exported by a fabric handle.
const FABRIC_MEMORY: [u32; 8] = [1, 8, 1, 0, 0, 0, 0, 0];

#[test]
fn the_fabric_attribute_lies_as_in_life() {
    run("fabric lies", &[("VCUDA_MACHINE", "2-nvswitch")]);
}

pub(crate) fn fabric_lies() {
    start(0);
    let (mut supported, mut handle) = (0_u32, 0_u64);
    ok("cuDeviceGetAttribute", &[place(&mut supported), FABRIC_SUPPORTED, 0]);
    assert_eq!(supported, 1, "it says yes");
    assert_eq!(
        call("cuMemCreate", &[place(&mut handle), 2 << 20, slice(&FABRIC_MEMORY), 0]),
        800,
        "and is not permitted"
    );
    let both = [1_u32, 9, 1, 0, 0, 0, 0, 0];
    assert_eq!(call("cuMemCreate", &[place(&mut handle), 2 << 20, slice(&both), 0]), 800, "nor beside a descriptor");
    ok("cuMemRelease", &[get("cuMemCreate", &[2 << 20, slice(&properties(0)), 0])]);
}

#[test]
fn fabric_handles_that_work_open_in_another_process() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let machine = folder.path().join("fabric.toml");
    std::fs::write(&machine, "fabric = \"works\"\n[[gpu]]\nkind = \"h100\"\ncount = 2\nmemory_mib = 256\n")
        .expect("a file");
    let (path, machine) = (folder.path().to_str().expect("a path"), machine.to_str().expect("a path"));
    run("fabric", &[("VCUDA_STATE", path), ("VCUDA_MACHINE", machine)]);
}

/// Two hosts, and what crosses between them: fabric handles, but no handle of `cuIpcGetMemHandle`.
#[test]
fn fabric_handles_that_work_open_on_another_host() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let rack = vcuda::machine::Machine::text("2x4-mnnvl").expect("a ready machine");
    for host in ["0", "1"] {
        let state = folder.path().join(format!("host{host}"));
        std::fs::create_dir(&state).expect("a folder");
        std::fs::write(state.join("machine.toml"), format!("host = {host}\n{rack}")).expect("a file");
    }
    std::fs::create_dir(folder.path().join("fabric")).expect("a folder");
    let (state, machine) = place_of_host(folder.path(), 0);
    run("fabric", &[("VCUDA_STATE", &state), ("VCUDA_MACHINE", &machine), ("VCUDA_TEST_IMPORTER", "host 1")]);
}

/// `VCUDA_STATE` and `VCUDA_MACHINE` of a host.
fn place_of_host(run: &std::path::Path, host: u32) -> (String, String) {
    let state = run.join(format!("host{host}"));
    let text = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
    (text(&state), text(&state.join("machine.toml")))
}

/// Maps physical memory with full rights for a device.
fn mapped(physical: u64, device: u32) -> u64 {
    let unit = 2 << 20;
    let at = get("cuMemAddressReserve", &[unit, 0, 0, 0]);
    ok("cuMemMap", &[at, unit, 0, physical, 0]);
    ok("cuMemSetAccess", &[at, unit, slice(&[1_u32, device, 3]), 1]);
    at
}

pub(crate) fn fabric() {
    start(0);
    let physical = get("cuMemCreate", &[2 << 20, slice(&FABRIC_MEMORY), 0]);
    let at = mapped(physical, 0);
    ok("cuMemsetD32_v2", &[at, 51, 16]);
    ok("cuCtxSynchronize", &[]);
    let mut handle = [0_u8; 64];
    ok("cuMemExportToShareableHandle", &[place(&mut handle), physical, 8, 0]);
    let mut fd = 0_i32;
    assert_eq!(call("cuMemExportToShareableHandle", &[place(&mut fd), physical, 1, 0]), 1, "not asked for");
    if std::env::var_os("VCUDA_TEST_IMPORTER").is_none() {
        run("fabric importer", &[("VCUDA_TEST_HANDLE", &hex(&handle))]);
        assert_eq!(word(at), 52, "the importer has written");
        return;
    }
    let own = std::env::var_os("VCUDA_STATE").expect("a host");
    let run_folder = std::path::Path::new(&own).parent().expect("a run");
    let (state, machine) = place_of_host(run_folder, 1);
    let started = |name: &str, handle: &[u8; 64]| {
        run(name, &[("VCUDA_STATE", &state), ("VCUDA_MACHINE", &machine), ("VCUDA_TEST_HANDLE", &hex(handle))]);
    };
    started("fabric importer", &handle);
    assert_eq!(word(at), 52, "the importer on the other host has written");
    let memory = get("cuMemAlloc_v2", &[4096]);
    ok("cuIpcGetMemHandle", &[place(&mut handle), memory]);
    started("handle of another host", &handle);
    ok("cuMemFree_v2", &[memory]);
}

pub(crate) fn handle_of_another_host() {
    start(0);
    let mut at = 0_u64;
    assert_eq!(open(told_handle(), place(&mut at), 1), 1, "a handle of another host's memory");
}

pub(crate) fn fabric_importer() {
    start(0);
    let mut handle = told_handle();
    let physical = get("cuMemImportFromShareableHandle", &[place(&mut handle), 8]);
    let at = mapped(physical, 0);
    assert_eq!(word(at + 60), 51);
    ok("cuMemsetD32_v2", &[at, 52, 1]);
    ok("cuCtxSynchronize", &[]);
}

#[test]
fn memory_outlives_an_exporter_that_is_killed() {
    run_together("bereaved importer", &[("VCUDA_MACHINE", "1")]);
}

/// Exports, says the handle, and waits to be killed.
pub(crate) fn doomed_exporter() {
    start(0);
    let memory = get("cuMemAlloc_v2", &[4096]);
    ok("cuMemsetD32_v2", &[memory, 61, 1024]);
    ok("cuCtxSynchronize", &[]);
    let mut handle = [0_u8; 64];
    ok("cuIpcGetMemHandle", &[place(&mut handle), memory]);
    eprintln!("handle {}", hex(&handle));
    // The importer holds the other end of its input: it ends with the importer at the latest.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("a pipe");
}

pub(crate) fn bereaved_importer() {
    use std::io::BufRead as _;
    start(0);
    let mut command = support::part("doomed exporter", &[]);
    let mut exporter = command.stdin(std::process::Stdio::piped()).spawn().expect("a process");
    let errors = std::io::BufReader::new(exporter.stderr.take().expect("a pipe"));
    let handle =
        errors.lines().find_map(|line| line.expect("text").strip_prefix("handle ").map(from_hex)).expect("a handle");
    let mut memory = 0_u64;
    assert_eq!(open(handle, place(&mut memory), 1), 0);
    let stream = get("cuStreamCreate", &[1]);
    let [wait_for, set_to, _] = kernels();
    for function in [wait_for, set_to] {
        ok("cuFuncLoad", &[function]);
    }
    // A kernel polls the memory while its owner dies.
    assert_eq!(launch(wait_for, 1, stream, memory, 62), 0);
    exporter.kill().expect("our child");
    exporter.wait().expect("our child");
    assert_eq!(call("cuStreamQuery", &[stream]), NOT_READY);
    assert_eq!(word(memory + 4), 61, "undefined in CUDA; here the memory stays until the last has closed it");
    let other = get("cuStreamCreate", &[1]);
    assert_eq!(launch(set_to, 1, other, memory, 62), 0);
    ok("cuStreamSynchronize", &[stream]);
    let mut again = 0_u64;
    assert_eq!(open(handle, place(&mut again), 1), 1, "the exporter is gone: no further reference");
    ok("cuIpcCloseMemHandle", &[memory]);
    assert_eq!(open(handle, place(&mut again), 1), 1, "the memory is gone too");
    ok("cuMemFree_v2", &[get("cuMemAlloc_v2", &[4096])]);
}
