//! Several hosts on one: each has its own network, name, System V memory and `/dev/shm`, by namespaces of the kernel.
//!
//! The namespaces belong to threads of this process and to what these start, so that nothing has to be taken down. Host 0
//! holds a bridge; `10.77.0.1`, `10.77.0.2` and on, and `fd77::1` and on, are the hosts' addresses.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::children::{Children, Program};
use super::folder::Folder;

/// Starts a program on each host and waits for all; their exit statuses by host.
///
/// Where namespaces may not be made, the programs run side by side, and a remark says so.
pub(super) fn run_on_all(
    hosts: u32,
    folder: &Folder,
    children: &Children,
    remarks: &mut Vec<String>,
    command: impl Fn(u32) -> Command + Sync,
) -> Result<Vec<u8>, String> {
    thread::scope(|scope| {
        let (mut ends, mut threads) = (Vec::new(), Vec::new());
        for host in 0..hosts {
            let (work, inbox) = mpsc::channel();
            let (outbox, answers) = mpsc::channel();
            let command = &command;
            scope.spawn(move || serve(host, folder, children, command, &inbox, &outbox));
            // When `work` is dropped the thread ends, and with it its namespaces.
            threads.push((work, answers));
        }
        ends.clear();
        let made = make_network(&threads);
        if let Err(why) = &made {
            remarks.push(format!("the hosts share one network, since namespaces could not be made: {why}"));
        }
        for (work, answers) in &threads {
            ends.push(ask(work, answers, Work::Start)?.program()?);
        }
        children.wait(&ends)
    })
}

/// What a host's thread is asked to do.
enum Work {
    /// Leave the namespaces of the process for new ones.
    Leave,
    /// Run `ip` with these words.
    Ip(String),
    /// Start the host's program.
    Start,
}

enum Answer {
    Done(Result<(), String>),
    /// The thread's id, by which another host names its network.
    Left(Result<i32, String>),
    Started(Result<Program, String>),
}

impl Answer {
    fn done(self) -> Result<(), String> {
        match self {
            Answer::Done(result) => result,
            Answer::Left(result) => result.map(|_| ()),
            Answer::Started(result) => result.map(|_| ()),
        }
    }

    fn thread(self) -> Result<i32, String> {
        match self {
            Answer::Left(result) => result,
            Answer::Done(_) | Answer::Started(_) => Err("a host gave the answer to another question".to_owned()),
        }
    }

    fn program(self) -> Result<Program, String> {
        match self {
            Answer::Started(result) => result,
            Answer::Done(_) | Answer::Left(_) => Err("a host gave the answer to another question".to_owned()),
        }
    }
}

type Host = (Sender<Work>, Receiver<Answer>);

fn ask(work: &Sender<Work>, answers: &Receiver<Answer>, what: Work) -> Result<Answer, String> {
    work.send(what).map_err(|_| "a host's thread ended early".to_owned())?;
    answers.recv().map_err(|_| "a host's thread ended early".to_owned())
}

/// The life of a host's thread. The programs that it starts die with it, so it lives as long as the run.
fn serve(
    host: u32,
    folder: &Folder,
    children: &Children,
    command: &impl Fn(u32) -> Command,
    inbox: &Receiver<Work>,
    outbox: &Sender<Answer>,
) {
    while let Ok(work) = inbox.recv() {
        let answer = match work {
            Work::Leave => Answer::Left(leave(host, folder)),
            Work::Ip(words) => Answer::Done(ip(&words)),
            Work::Start => Answer::Started(children.start(command(host))),
        };
        if outbox.send(answer).is_err() {
            return;
        }
    }
}

fn make_network(hosts: &[Host]) -> Result<(), String> {
    let mut threads = Vec::new();
    for (work, answers) in hosts {
        threads.push(ask(work, answers, Work::Leave)?.thread()?);
    }
    let on = |host: usize, words: String| ask(&hosts[host].0, &hosts[host].1, Work::Ip(words))?.done();
    on(0, "link add eth0 type bridge".to_owned())?;
    for (host, thread) in threads.iter().enumerate().skip(1) {
        on(0, format!("link add p{host} type veth peer name eth0 netns {thread}"))?;
        on(0, format!("link set p{host} master eth0 up"))?;
    }
    for host in 0..hosts.len() {
        let number = host + 1;
        on(host, format!("addr add 10.77.0.{number}/24 dev eth0"))?;
        on(host, format!("addr add fd77::{number}/64 dev eth0 nodad"))?;
        on(host, "link set eth0 up".to_owned())?;
        on(host, "link set lo up".to_owned())?;
    }
    Ok(())
}

/// Gives the calling thread namespaces of its own, with a `/dev/shm` in which only the run's folder is shared.
fn leave(host: u32, folder: &Folder) -> Result<i32, String> {
    let flags = libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWNS;
    // SAFETY: the call takes a number and changes only the calling thread.
    ok(unsafe { libc::unshare(flags) }, "unshare")?;
    let name = format!("vcuda-host{host}");
    // SAFETY: pointer and length are those of one string.
    ok(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }, "sethostname")?;
    own_shared_memory(folder)?;
    // SAFETY: the call has no arguments.
    Ok(unsafe { libc::gettid() })
}

fn own_shared_memory(folder: &Folder) -> Result<(), String> {
    let shared = "/dev/shm";
    mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE)?;
    // What lies in /dev/shm is out of sight once something is mounted over it; the open folder still leads there.
    let open = fs::File::open(folder.root()).map_err(|error| format!("{}: {error}", folder.root().display()))?;
    mount("tmpfs", shared, "tmpfs", 0)?;
    if folder.root().starts_with(shared) {
        fs::create_dir(folder.root()).map_err(|error| format!("{}: {error}", folder.root().display()))?;
        let source = format!("/proc/self/fd/{}", open.as_raw_fd());
        let root = String::from_utf8_lossy(folder.root().as_os_str().as_bytes()).into_owned();
        mount(&source, &root, "", libc::MS_BIND)?;
    }
    Ok(())
}

fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong) -> Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let (from, to, kind) = (text(source)?, text(target)?, text(kind)?);
    // SAFETY: three strings that end in a zero byte, and no data.
    let result = unsafe { libc::mount(from.as_ptr(), to.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    ok(result, &format!("mount {target}"))
}

fn ok(result: i32, what: &str) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(format!("{what}: {}", io::Error::last_os_error())) }
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
