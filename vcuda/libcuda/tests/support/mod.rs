//! Programs of the driver API, each in a process of its own: the driver belongs to a process.
#![allow(dead_code, reason = "each test uses its part")]

use std::ffi::CString;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Says to the test binary which part it is to play.
const PART: &str = "VCUDA_TEST_PART";
/// No part takes longer, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(100);

/// The parts of a test binary, by name.
pub(crate) type Parts = &'static [(&'static str, fn())];

/// Plays the part that this process was started for, if it was.
pub(crate) fn play(parts: Parts) {
    if let Ok(name) = std::env::var(PART) {
        let (_, part) = parts.iter().find(|(known, _)| *known == name).expect("a part of this name");
        part();
    }
}

/// A process that plays a part; the test named `part` of this binary starts it.
pub(crate) fn part(name: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", "part", "--nocapture", "--test-threads=1"]).env(PART, name);
    for name in ["VCUDA_MACHINE", "VCUDA_STATE", "VCUDA_SEED", "VCUDA_FAIL", "VCUDA_STUCK_MS", "CUDA_VISIBLE_DEVICES"] {
        if std::env::var_os(PART).is_none() {
            command.env_remove(name);
        }
    }
    command.envs(settings.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a part to its end, which must be a good one; gives back what it wrote on stderr.
#[track_caller]
pub(crate) fn run(name: &str, settings: &[(&str, &str)]) -> String {
    finish(part(name, settings))
}

/// As [`run`], for a command.
#[track_caller]
pub(crate) fn finish(mut command: Command) -> String {
    build_library();
    let child = command.spawn().expect("a process");
    let pid = child.id();
    let deadline = Instant::now() + DEADLINE;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output: Output = match receiver.recv_timeout(deadline - Instant::now()) {
        Ok(output) => output.expect("its output"),
        Err(_) => {
            let pid = i32::try_from(pid).expect("a pid");
            // SAFETY: kills the process that was started above; it has not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            let output = receiver.recv().expect("its end").expect("its output");
            panic!("it did not end: {}", String::from_utf8_lossy(&output.stderr));
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{errors}", String::from_utf8_lossy(&output.stdout));
    errors
}

/// Cargo builds the library for no test by itself, since nothing links to it.
fn build_library() {
    static BUILT: OnceLock<()> = OnceLock::new();
    if std::env::var_os(PART).is_none() {
        BUILT.get_or_init(|| {
            let mut command = Command::new(env!("CARGO"));
            command.args(["build", "--locked", "--quiet", "-p", "vcuda-driver"]);
            let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        });
    }
}

/// A call of the driver, all of whose arguments are integers or pointers; its code.
#[track_caller]
pub(crate) fn call(name: &str, arguments: &[u64]) -> i32 {
    type Call = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;
    let mut all = [0; 11];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f, g, h, i, j, k] = all;
    // SAFETY: all calls take integers and pointers alone; on this ABI arguments beyond those a function has do no harm.
    let function = unsafe { std::mem::transmute::<*const (), Call>(symbol(name)) };
    function(a, b, c, d, e, f, g, h, i, j, k)
}

/// The address of an entry point.
#[track_caller]
pub(crate) fn symbol(name: &str) -> *const () {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let binary = std::env::current_exe().expect("this binary");
        let folder = binary.parent().and_then(Path::parent).expect("its folder");
        let path = CString::new(folder.join("libcuda.so").to_string_lossy().into_owned()).expect("a path");
        // SAFETY: loads our own library by a terminated path.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{} was not built", path.to_string_lossy());
        library.expose_provenance()
    });
    let text = CString::new(name).expect("a name");
    // SAFETY: the library was loaded above, and the name is terminated.
    let address = unsafe { libc::dlsym(std::ptr::with_exposed_provenance_mut(library), text.as_ptr()) };
    assert!(!address.is_null(), "{name} is not exported");
    address.cast_const().cast()
}

/// A call that must succeed.
#[track_caller]
pub(crate) fn ok(name: &str, arguments: &[u64]) {
    let code = call(name, arguments);
    assert_eq!(code, 0, "{name} answered {code}");
}

/// A call that must succeed and whose first argument is the place for a 64-bit result.
#[track_caller]
pub(crate) fn get(name: &str, rest: &[u64]) -> u64 {
    let mut result = 0_u64;
    let mut arguments = vec![place(&mut result)];
    arguments.extend_from_slice(rest);
    ok(name, &arguments);
    result
}

/// The address of a value, as an argument.
pub(crate) fn place<T>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).expose_provenance() as u64
}

/// The address of values, as an argument.
pub(crate) fn slice<T>(values: &[T]) -> u64 {
    values.as_ptr().expose_provenance() as u64
}

/// The address of a text with a zero byte at its end.
pub(crate) fn text(text: &str) -> u64 {
    assert!(text.ends_with('\0'), "{text:?} has no end");
    text.as_ptr().expose_provenance() as u64
}

/// Starts the driver and makes the primary context of a device current.
pub(crate) fn start(device: u64) -> u64 {
    ok("cuInit", &[0]);
    let context = get("cuDevicePrimaryCtxRetain", &[device]);
    ok("cuCtxSetCurrent", &[context]);
    context
}

/// A 32-bit word of device memory.
#[track_caller]
pub(crate) fn word(address: u64) -> u32 {
    let mut value = 0_u32;
    ok("cuMemcpyDtoH_v2", &[place(&mut value), address, 4]);
    value
}

/// Two kernels: one polls a word until it has a value, one sets it. PTX as NVRTC writes it for `samples/spin.cu`.
pub(crate) const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64

.visible .entry wait_for(.param .u64 wait_for_param_0, .param .u32 wait_for_param_1)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [wait_for_param_0];
    ld.param.u32 %r2, [wait_for_param_1];
    cvta.to.global.u64 %rd2, %rd1;
$L_again:
    ld.acquire.sys.global.u32 %r1, [%rd2];
    setp.ne.s32 %p1, %r1, %r2;
    @%p1 bra $L_again;
    ret;
}

.visible .entry set_to(.param .u64 set_to_param_0, .param .u32 set_to_param_1)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [set_to_param_0];
    ld.param.u32 %r1, [set_to_param_1];
    cvta.to.global.u64 %rd2, %rd1;
    st.release.sys.global.u32 [%rd2], %r1;
    ret;
}

.visible .entry set_too(.param .u64 set_too_param_0, .param .u32 set_too_param_1)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [set_too_param_0];
    ld.param.u32 %r1, [set_too_param_1];
    cvta.to.global.u64 %rd2, %rd1;
    st.release.sys.global.u32 [%rd2], %r1;
    ret;
}
\0";

/// The kernels of [`PTX`], loaded.
pub(crate) fn kernels() -> [u64; 3] {
    let module = get("cuModuleLoadData", &[text(PTX)]);
    ["wait_for\0", "set_to\0", "set_too\0"].map(|name| get("cuModuleGetFunction", &[module, text(name)]))
}

/// Launches a kernel of [`PTX`] with some blocks of one warp.
pub(crate) fn launch(function: u64, blocks: u64, stream: u64, word: u64, value: u32) -> i32 {
    launch_threads(function, (blocks, 32), stream, word, value)
}

/// The same with so many blocks of so many threads.
pub(crate) fn launch_threads(function: u64, (blocks, threads): (u64, u64), stream: u64, word: u64, value: u32) -> i32 {
    let (mut word, mut value) = (word, value);
    let parameters = [place(&mut word), place(&mut value)];
    call("cuLaunchKernel", &[function, blocks, 1, 1, threads, 1, 1, 0, stream, slice(&parameters), 0])
}
