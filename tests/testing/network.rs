//! Hosts out of network namespaces: each has its own name, interfaces and `/dev/shm`; a bridge in one more namespace
//! joins them.

use std::fs::File;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rsccl::internals::sys::thread;

/// Some hosts on one network, `10.77.0.1`, `fd77::1` and on. Dropping it ends what runs there and takes it away.
#[derive(Debug)]
pub struct Network {
    name: String,
    hosts: usize,
}

impl Network {
    /// A network of `hosts` hosts; `None`, with the reason printed, if this machine does not let us make it.
    pub fn make(hosts: usize) -> Option<Network> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        if let Err(why) = run("unshare", &["--uts", "--mount", "--ipc", "--net", "true"]).and_then(|()| ip("-V")) {
            // Past the capture of a test's output.
            let mut errors = std::io::stderr();
            writeln!(errors, "skipped: hosts need network namespaces, root and iproute2: {why}").unwrap();
            return None;
        }
        let name = format!("rsccl{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // From here on whatever has been made is taken away.
        let network = Network { name, hosts };
        network.build().unwrap_or_else(|why| panic!("making hosts: {why}"));
        Some(network)
    }

    fn build(&self) -> Result<(), String> {
        let switch = self.switch();
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        for number in 1..=self.hosts {
            let host = self.host(number - 1);
            ip(&format!("netns add {host}"))?;
            ip(&format!("link add eth0 netns {host} type veth peer name p{number} netns {switch}"))?;
            ip(&format!("-n {switch} link set p{number} master br0 up"))?;
            ip(&format!("-n {host} addr add 10.77.0.{number}/24 dev eth0"))?;
            ip(&format!("-n {host} addr add fd77::{number}/64 dev eth0 nodad"))?;
            ip(&format!("-n {host} link set eth0 up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        Ok(())
    }

    /// The words before a program that make it run on `host`, counted from 0.
    pub fn on(&self, host: usize) -> Vec<String> {
        let script = format!("hostname host{host} && mount -t tmpfs -o size=1G tmpfs /dev/shm && exec \"$@\"");
        let name = self.host(host);
        let words = ["ip", "netns", "exec", &name, "unshare", "--uts", "--mount", "--ipc", "sh", "-c", &script, "sh"];
        words.map(str::to_owned).to_vec()
    }

    /// The same, where `names` is the host's `/etc/hosts`, and the file of that name and `.resolver` its
    /// `/etc/resolv.conf`.
    pub fn on_with_names(&self, host: usize, names: &Path) -> Vec<String> {
        let mut words = self.on(host);
        let names = names.display();
        let resolver = format!("mount --bind {names}.resolver /etc/resolv.conf");
        let mount = format!("mount --bind {names} /etc/hosts && {resolver} && ");
        let script = words.iter_mut().find(|word| word.starts_with("hostname")).expect("a script names the host");
        script.insert_str(0, &mount);
        words
    }

    /// The same as [`Network::on`], where the folder `classes` is the host's `/sys/class`: the devices that it shows.
    pub fn on_with_devices(&self, host: usize, classes: &Path) -> Vec<String> {
        let mut words = self.on(host);
        let mount = format!("mount --bind {} /sys/class && ", classes.display());
        let script = words.iter_mut().find(|word| word.starts_with("hostname")).expect("a script names the host");
        script.insert_str(0, &mount);
        words
    }

    /// Changes a host's links, addresses or routes: `words` follow `ip`.
    pub fn change(&self, host: usize, words: &str) {
        ip(&format!("-n {} {words}", self.host(host))).unwrap();
    }

    /// Gives hosts one more network each, with a bridge of its own: on rail `number`, from 1, a host that `hosts` names has
    /// the interface `eth` and that number, with the address `10.78.NUMBER.HOST`.
    pub fn add_rail(&self, number: usize, hosts: &[usize]) {
        let (switch, bridge) = (self.switch(), format!("br{number}"));
        ip(&format!("-n {switch} link add {bridge} type bridge")).unwrap();
        ip(&format!("-n {switch} link set {bridge} up")).unwrap();
        for host in hosts {
            let (name, port) = (format!("eth{number}"), format!("r{number}h{}", host + 1));
            ip(&format!("link add {name} netns {} type veth peer name {port} netns {switch}", self.host(*host)))
                .unwrap();
            ip(&format!("-n {switch} link set {port} master {bridge} up")).unwrap();
            self.change(*host, &format!("addr add 10.78.{number}.{}/24 dev {name}", host + 1));
            self.change(*host, &format!("link set {name} up"));
        }
    }

    /// Puts `inside` behind NAT: its only link leads to `router`, which sends on what it sends under an address of its
    /// own. What `router` does with connections inwards is `inwards`, a verdict of nft; nobody else has a route there.
    pub fn put_behind(&self, inside: usize, router: usize, inwards: &str) {
        self.add_rail(inside, &[router, inside]);
        self.change(inside, "link del eth0");
        self.change(inside, &format!("route add default via 10.78.{inside}.{}", router + 1));
        self.set(router, "net.ipv4.ip_forward=1");
        let rules = format!(
            "table ip nat {{ chain out {{ type nat hook postrouting priority 100; oifname eth0 masquerade; }}; }};
             table ip filter {{ chain forward {{ type filter hook forward priority 0; iifname eth0 ct state new {inwards}; }}; }}"
        );
        run("ip", &["netns", "exec", &self.host(router), "nft", &rules]).unwrap();
    }

    /// Gives `host` a route to what is behind `router`, with [`Network::put_behind`].
    pub fn show_way(&self, host: usize, inside: usize, router: usize) {
        self.change(host, &format!("route add 10.78.{inside}.0/24 via 10.77.0.{}", router + 1));
    }

    /// Takes a host off a rail, without a word to anybody: its link there stays up.
    pub fn part_rail(&self, number: usize, host: usize) {
        ip(&format!("-n {} link set r{number}h{} nomaster", self.switch(), host + 1)).unwrap();
    }

    /// Bytes that a host has sent by an interface.
    pub fn sent_bytes(&self, host: usize, interface: &str) -> u64 {
        let file = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        let words = ["netns", "exec", &self.host(host), "cat", &file];
        output("ip", &words).unwrap().trim().parse().expect("the kernel counts bytes")
    }

    /// How many TCP connections a host has with others, by its kernel's own list (`/proc/net/tcp`). Those of its ranks
    /// among themselves do not count.
    pub fn far_connections(&self, host: usize) -> usize {
        let list = output("ip", &["netns", "exec", &self.host(host), "cat", "/proc/net/tcp"]).unwrap();
        let is_far = |line: &&str| {
            let [_, own, other, state, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { return false };
            let address = |end: &str| end.split(':').next().map(str::to_owned);
            state == ESTABLISHED && address(own) != address(other)
        };
        list.lines().skip(1).filter(is_far).count()
    }

    /// Sets a switch of a host's kernel, as `net.ipv4.conf.all.rp_filter=1`.
    pub fn set(&self, host: usize, setting: &str) {
        run("ip", &["netns", "exec", &self.host(host), "sysctl", "-qw", setting]).unwrap();
    }

    /// Gives a host one more link to the network, called `name`.
    pub fn add_link(&self, host: usize, name: &str) {
        let (switch, port) = (self.switch(), format!("q{}", host + 1));
        ip(&format!("link add {name} netns {} type veth peer name {port} netns {switch}", self.host(host))).unwrap();
        ip(&format!("-n {switch} link set {port} master br0 up")).unwrap();
        self.change(host, &format!("link set {name} up"));
    }

    /// Takes a host's first link off the network; it stays up.
    pub fn part(&self, host: usize) {
        ip(&format!("-n {} link set p{} nomaster", self.switch(), host + 1)).unwrap();
    }

    /// The ports that a host gives to outgoing connections.
    pub fn set_ephemeral_ports(&self, host: usize, first: u16, last: u16) {
        self.set(host, &format!("net.ipv4.ip_local_port_range={first} {last}"));
    }

    /// Makes the network lose packets to a host of more than `bytes`, without a word to anybody.
    pub fn lose_larger(&self, host: usize, bytes: u32) {
        ip(&format!("-n {} link set p{} mtu {bytes}", self.switch(), host + 1)).unwrap();
    }

    /// Cuts a host off, without a word to anybody.
    pub fn cut(&self, host: usize) {
        ip(&format!("-n {} link set p{} down", self.switch(), host + 1)).unwrap();
    }

    /// Takes a host's interface down, as before the network is up.
    pub fn take_down(&self, host: usize) {
        ip(&format!("-n {} link set eth0 down", self.host(host))).unwrap();
    }

    /// Brings it up.
    pub fn bring_up(&self, host: usize) {
        ip(&format!("-n {} link set eth0 up", self.host(host))).unwrap();
    }

    /// Records what goes over the network from now on.
    pub fn record(&self) -> Recorder {
        let switch = File::open(format!("/run/netns/{}", self.switch())).unwrap();
        let (stop, stopped) = mpsc::channel();
        let (started, start) = mpsc::channel();
        // A namespace is its thread's: this one ends with the record.
        let thread = thread::spawn("recorder", move || {
            let packets = packets_of(&switch);
            started.send(()).unwrap();
            let (mut seen, mut packet) = (Vec::new(), vec![0; 1 << 17]);
            // What has come by the time that it is told to stop is read.
            let mut is_last = false;
            while seen.len() < MOST_RECORDED {
                match packets.recv(&mut packet) {
                    Ok(count) => seen.extend_from_slice(&packet[..count]),
                    Err(_) if is_last => break,
                    Err(_) => is_last = stopped.try_recv().is_ok(),
                }
            }
            seen
        });
        start.recv().unwrap();
        Recorder { stop, thread: thread.unwrap() }
    }

    fn host(&self, host: usize) -> String {
        format!("{}-h{}", self.name, host + 1)
    }

    fn switch(&self) -> String {
        format!("{}-sw", self.name)
    }
}

/// Records packets on the bridge and its ports, until it is full.
#[derive(Debug)]
pub struct Recorder {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Vec<u8>>,
}

impl Recorder {
    /// All bytes that it has seen, with the headers of packets.
    pub fn end(self) -> Vec<u8> {
        // One that is full has ended.
        let _full = self.stop.send(());
        self.thread.join().unwrap()
    }
}

/// A state of the kernel's list of connections.
const ESTABLISHED: &str = "01";

/// The most bytes of a record.
const MOST_RECORDED: usize = 64 << 20;

/// For packets that the recorder has not read: on a busy machine it comes late, and the kernel drops what has no room.
const ROOM_BYTES: libc::c_int = 16 << 20;

/// A socket that gets all packets of this namespace, which becomes this thread's.
fn packets_of(namespace: &File) -> UdpSocket {
    // SAFETY: the descriptor is an open one of a namespace, and the call reads no memory.
    assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
    let protocol = i32::from(u16::try_from(libc::ETH_P_ALL).unwrap().to_be());
    // SAFETY: the call reads no memory.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and nobody else has it.
    let socket = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(socket) });
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (room, bytes) = (ROOM_BYTES, libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap());
    // SAFETY: the option is a number of this length, which lives until the call returns.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const room).cast(), bytes)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    socket
}

impl Drop for Network {
    fn drop(&mut self) {
        let hosts = (0..self.hosts).map(|host| self.host(host));
        for name in hosts.chain([self.switch()]) {
            // A namespace lives on while a process is in it: the tests end theirs before. One that was not made cannot
            // be taken away.
            if let Err(why) = ip(&format!("netns del {name}")) {
                drop(writeln!(std::io::stderr(), "taking a host away: {why}"));
            }
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    run("ip", &words.split(' ').collect::<Vec<_>>())
}

fn run(program: &str, words: &[&str]) -> Result<(), String> {
    output(program, words).map(drop)
}

/// What the program says.
fn output(program: &str, words: &[&str]) -> Result<String, String> {
    let named = |why: String| format!("{program} {}: {why}", words.join(" "));
    let output = Command::new(program).args(words).output().map_err(|error| named(error.to_string()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(named(text(&output.stderr))) }
}
