//! A store at one of a few ports of a host that all its users know beforehand. A port may be another job's, or any
//! program's: whoever serves takes the first free one, and clients ask at all of them for one that proves to hold the
//! key.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::TcpStore;
use super::tcp::terms;
use crate::bootstrap::address::HostPort;
use crate::bootstrap::lookup::Lookup;
use crate::bootstrap::probe::{Answer, who_serve};
use crate::bootstrap::serving::ServiceListeners;
use crate::bootstrap::{Options, SharedSecret, socket};
use crate::error::{Error, Kind, Result};
use crate::sync::Wait;
use crate::sys::{clock, poller};

/// The options by which only those who meet as `group` hold the key of the store: it is made of the name of the group,
/// and of the secret, if there is one.
///
/// # Errors
/// As [`SharedSecret::new`].
pub(crate) fn for_group(options: &Options, group: &str) -> Result<Options> {
    let key: [u8; 32] = match &options.secret {
        Some(secret) => secret.key(group),
        None => blake3::hash(group.as_bytes()).into(),
    };
    Ok(Options { secret: Some(SharedSecret::new(&key)?), retry_count: 0, ..options.clone() })
}

/// Serves a store at every address of this host, at the first of `ports` that is free.
///
/// # Errors
/// [`Kind::System`] if none is.
pub(crate) fn serve_at_one_of(ports: &[u16], options: &Options) -> Result<TcpStore> {
    let mut last = None;
    for port in ports {
        match socket::listen_everywhere(*port, options.family) {
            Ok((socket, address)) => return TcpStore::start(ServiceListeners::one(socket, address), options),
            Err(error) if socket::is(&error, std::io::ErrorKind::AddrInUse) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    let message = format!("all {} ports of this host at which ranks can meet are taken: {}", ports.len(), list(ports));
    Err(last.into_iter().fold(Error::new(Kind::System, message), Error::with_source))
}

/// A client's search for the store.
#[derive(Debug)]
pub(crate) struct PortSearch {
    options: Options,
    host: String,
    ports: Vec<u16>,
    lookup: Lookup,
    begun: Instant,
    /// The addresses of the host, once they are known.
    addresses: Vec<SocketAddr>,
    /// What the last round has found, port by port.
    last: Vec<String>,
    pause: Duration,
}

impl PortSearch {
    /// A search at `ports` of `host`, of which there is at least one.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] if `host` is no host's name.
    pub(crate) fn new(host: &str, ports: &[u16], options: &Options) -> Result<PortSearch> {
        let first = ports.first().ok_or_else(|| Error::internal("a search without a port"))?;
        let lookup = Lookup::new(HostPort::new(host, *first)?, options.family);
        Ok(PortSearch {
            options: options.clone(),
            host: host.to_owned(),
            ports: ports.to_vec(),
            lookup,
            begun: clock::now(),
            addresses: Vec::new(),
            last: Vec::new(),
            pause: FIRST_PAUSE,
        })
    }

    /// One round over all ports, which are asked side by side: a rank that computes lets a connection wait at its port,
    /// and many ports may be those of such ranks. The store, where one of them has it.
    ///
    /// # Errors
    /// Of the abort of `wait`, and at its deadline; [`Kind::InvalidUsage`] if the host's name has no address after a
    /// few seconds.
    pub(crate) fn look(&mut self, wait: &Wait) -> Result<Option<TcpStore>> {
        if self.addresses.is_empty() {
            let Some(found) = self.lookup.look(clock::now())? else {
                let waited = clock::now().saturating_duration_since(self.begun);
                return if self.lookup.failures() >= LEAST_FAILURES && waited >= NAME_PATIENCE {
                    Err(self.unknown())
                } else {
                    Ok(None)
                };
            };
            self.addresses = found;
        }
        let on = |port: u16| {
            self.addresses.iter().map(move |address| {
                let mut address = *address;
                address.set_port(port);
                address
            })
        };
        let places: Vec<SocketAddr> = self.ports.iter().copied().flat_map(on).collect();
        let mut seen = Vec::new();
        for some in places.chunks(MOST_AT_ONCE) {
            for (address, answer) in who_serve(some, &terms(&self.options), wait)? {
                match answer {
                    Answer::Service => return TcpStore::connect_near(address, &self.options).map(Some),
                    Answer::OtherJob(other) => seen.push(format!("{}: {}", address.port(), other.name)),
                    // Of free ports there is nothing to say.
                    Answer::Nothing => {}
                    Answer::Unreachable => seen.push(format!("{address}: no answer")),
                }
            }
        }
        self.last = seen;
        Ok(None)
    }

    /// Rests before the next round.
    ///
    /// # Errors
    /// Of the abort of `wait`, and at its deadline.
    pub(crate) fn rest(&mut self, wait: &Wait) -> Result<()> {
        wait.check(|| self.state())?;
        poller::pause(wait.slice(self.pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn state(&self) -> String {
        if self.addresses.is_empty() {
            return self.lookup.state();
        }
        let seen = if self.last.is_empty() { String::new() } else { format!(" ({})", self.last.join("; ")) };
        format!("no rank of this job listens at a port of the host {} where ranks meet{seen}", self.host)
    }

    fn unknown(&self) -> Error {
        Error::invalid_usage(format!(
            "the node {} has no address on this host: {}; set MASTER_ADDR to an address of the node of rank 0, and \
             MASTER_PORT",
            self.host,
            self.lookup.state()
        ))
    }
}

/// Ports in words: the first few of them.
pub(crate) fn list(ports: &[u16]) -> String {
    let shown = ports.iter().take(SHOWN_PORTS).map(u16::to_string).collect::<Vec<_>>().join(", ");
    match ports.len().checked_sub(SHOWN_PORTS) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

const SHOWN_PORTS: usize = 9;
/// How many places are asked side by side: each takes a descriptor meanwhile.
const MOST_AT_ONCE: usize = 128;
/// The pause before the next round: it doubles from the first to the last, since thousands may search.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// How long a name may have no address, and how often that is to be answered, since a resolver may fail now and then:
/// the nodes of a job run already, so their names do not come late.
const NAME_PATIENCE: Duration = Duration::from_secs(3);
const LEAST_FAILURES: u32 = 5;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::bootstrap::store::Store;
    use crate::sync::AbortFlag;

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(20), &AbortFlag::new())
    }

    fn options(group: &str) -> Options {
        for_group(&Options::default(), group).unwrap()
    }

    /// Listeners at ports of this host that were free.
    fn taken(count: usize) -> (Vec<TcpListener>, Vec<u16>) {
        let listeners: Vec<_> =
            (0..count).map(|_| socket::listen((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap()).collect();
        let ports = listeners.iter().map(|(_, address)| address.port()).collect();
        (listeners.into_iter().map(|(socket, _)| socket).collect(), ports)
    }

    /// Rounds until one finds the store.
    fn found(ports: &[u16], options: &Options) -> TcpStore {
        let mut search = PortSearch::new("127.0.0.1", ports, options).unwrap();
        loop {
            if let Some(store) = search.look(&soon()).unwrap() {
                return store;
            }
            search.rest(&soon()).unwrap();
        }
    }

    #[test]
    fn groups_that_share_their_ports_find_their_own_stores() {
        let (held, mut ports) = taken(6);
        drop(held);
        let steps = ["job 7 step 3, 2 ranks", "job 7 step 4, 2 ranks"].map(options);
        let stores = steps.each_ref().map(|step| serve_at_one_of(&ports, step).unwrap());
        for (number, store) in (0..).zip(&stores) {
            store.set("whose", &[number], &soon()).unwrap();
        }
        for (number, step) in (0..).zip(&steps) {
            assert_eq!(found(&ports, step).get("whose", &soon()).unwrap(), [number]);
        }
        // A step of the same job that was queued again, and one of another size, find nothing.
        for other in ["job 7 step 3, restart 1, 2 ranks", "job 7 step 3, 3 ranks"].map(options) {
            let mut search = PortSearch::new("127.0.0.1", &ports, &other).unwrap();
            assert!(search.look(&soon()).unwrap().is_none());
            let over = Wait::new(Duration::ZERO, &AbortFlag::new());
            let why = search.rest(&over).unwrap_err().to_string();
            assert!(why.contains("no rank of this job listens at a port of the host 127.0.0.1"), "{why}");
        }
        // Strangers who take connections and never say anything cost one moment, and not one each.
        let (_silent, before) = taken(12);
        ports.splice(0..0, before);
        assert_eq!(found(&ports, &steps[1]).get("whose", &soon()).unwrap(), [1]);
    }

    #[test]
    fn ports_that_are_all_taken_are_told() {
        let (_held, ports) = taken(2);
        let error = serve_at_one_of(&ports, &options("job 7")).unwrap_err();
        let why = format!("all 2 ports of this host at which ranks can meet are taken: {}, {}", ports[0], ports[1]);
        assert!(error.to_string().contains(&why), "{error}");
    }

    #[test]
    fn a_secret_keeps_out_who_has_none() {
        let secret = SharedSecret::new(b"hush").unwrap();
        let ours = for_group(&Options { secret: Some(secret), ..Options::default() }, "job 7").unwrap();
        let (held, ports) = taken(4);
        drop(held);
        let store = serve_at_one_of(&ports, &ours).unwrap();
        store.set("key", b"value", &soon()).unwrap();
        let mut stranger = PortSearch::new("127.0.0.1", &ports, &options("job 7")).unwrap();
        assert!(stranger.look(&soon()).unwrap().is_none());
        assert_eq!(found(&ports, &ours).get("key", &soon()).unwrap(), b"value");
    }

    #[test]
    fn a_node_without_an_address_is_an_error_that_names_it_and_the_remedy() {
        let mut search = PortSearch::new("no-such-node.invalid", &[4711], &options("job 7")).unwrap();
        let wait = soon();
        let error = loop {
            match search.look(&wait) {
                Ok(None) => search.rest(&wait).unwrap(),
                Ok(Some(_)) => panic!("there is no such node"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::InvalidUsage);
        let text = error.to_string();
        assert!(
            text.contains("the node no-such-node.invalid has no address") && text.contains("MASTER_ADDR"),
            "{text}"
        );
    }

    #[test]
    fn many_ports_are_not_all_shown() {
        assert_eq!(list(&[1, 2]), "1, 2");
        assert_eq!(list(&(1..=9).collect::<Vec<_>>()), "1, 2, 3, 4, 5, 6, 7, 8, 9");
        assert_eq!(list(&(1..=64).collect::<Vec<_>>()), "1, 2, 3, 4, 5, 6, 7, 8, 9 and 55 more");
    }
}
