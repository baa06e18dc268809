//! Hosts out of network namespaces: each has its own name, interfaces and `/dev/shm`; a bridge in one more namespace
//! joins them.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

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

    /// Changes a host's links, addresses or routes: `words` follow `ip`.
    pub fn change(&self, host: usize, words: &str) {
        ip(&format!("-n {} {words}", self.host(host))).unwrap();
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
        let setting = format!("net.ipv4.ip_local_port_range={first} {last}");
        run("ip", &["netns", "exec", &self.host(host), "sysctl", "-qw", &setting]).unwrap();
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

    fn host(&self, host: usize) -> String {
        format!("{}-h{}", self.name, host + 1)
    }

    fn switch(&self) -> String {
        format!("{}-sw", self.name)
    }
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
    let named = |why: String| format!("{program} {}: {why}", words.join(" "));
    let output = Command::new(program).args(words).output().map_err(|error| named(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(named(String::from_utf8_lossy(&output.stderr).trim().to_owned())) }
}
