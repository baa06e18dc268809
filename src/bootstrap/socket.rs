//! TCP sockets with the bootstrap's options: non-blocking, close-on-exec, no delay, keep-alive.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive};

use crate::bootstrap::interface::AddressFamily;
use crate::config::PortRange;
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Ordering, statics};
use crate::sys::{interfaces, limits, open, poller, ports};

/// How many connections may wait to be accepted; the kernel may allow fewer (`somaxconn`).
const BACKLOG: i32 = 16384;

/// A peer whose machine has vanished is noticed after idle + probes × interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;

/// Listens at `address`, where port 0 means any free port. Yields the listener and its address.
///
/// # Errors
/// [`crate::error::Kind::System`] if the address is taken or does not belong to this machine.
pub(crate) fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    listen_in(address, None)
}

/// Listens at `address`; where its port is 0, at the first free one of `ports`, or any free one if they are not
/// limited.
///
/// # Errors
/// As [`listen`]. If all of `ports` are taken, the message says what the processes of a host need.
pub(crate) fn listen_in(address: SocketAddr, ports: Option<PortRange>) -> Result<(TcpListener, SocketAddr)> {
    listen_as(address, ports, |_| Ok(()))
}

/// [`listen_in`] of a socket that is given its options by `tune`.
///
/// # Errors
/// As there, and of `tune`.
pub(crate) fn listen_as(
    address: SocketAddr,
    ports: Option<PortRange>,
    tune: impl Fn(&Socket) -> io::Result<()>,
) -> Result<(TcpListener, SocketAddr)> {
    check_loopback(address)?;
    let listening = |at: SocketAddr| move |error| Error::system(format!("listening at {at}"), error);
    let Some(range) = ports.filter(|_| address.port() == 0) else {
        return bound(address, &tune).map_err(listening(address));
    };
    warn_of_ephemeral(range);
    let mut at = address;
    for port in range.ports() {
        at.set_port(port);
        match bound(at, &tune) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            outcome => return outcome.map_err(listening(at)),
        }
    }
    let message = format!(
        "RSCCL_PORT_RANGE={range}: all {} ports are taken at {}: each process of a host needs one, a second one if \
         the options of its data sockets are set, and the process of rank 0 one more while ranks meet",
        range.ports().count(),
        address.ip()
    );
    Err(Error::new(Kind::System, message).with_source(io::Error::from(io::ErrorKind::AddrInUse)))
}

/// Warns once if the system may give a port of `range` to a connection that goes out: then that port cannot be listened
/// at while the connection lives, and for a minute after.
///
/// The program's own code may hear it, and open communicators: so callers have no lock.
pub(super) fn warn_of_ephemeral(range: PortRange) {
    // Relaxed: one thread tells it, and nothing else is ordered.
    if TOLD_OF_EPHEMERAL.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    let (first, last) = ports::ephemeral();
    let mut lent = range.ports().filter(|port| (first..=last).contains(port) && !ports::is_reserved(*port));
    if let Some(port) = lent.next() {
        log::warn!(
            Bootstrap,
            "RSCCL_PORT_RANGE={range}: the system gives port {port} and {} others of it to connections that go out \
             (net.ipv4.ip_local_port_range is {first} to {last}); as root: \
             sysctl net.ipv4.ip_local_reserved_ports={range}",
            lent.count()
        );
    }
}

/// Whether it was told.
static TOLD_OF_EPHEMERAL: statics::AtomicU64 = statics::AtomicU64::new(0);

/// Listens at `port` of every address that this machine has or gets, of both families if it has IPv6.
///
/// # Errors
/// As [`listen`].
pub(crate) fn listen_everywhere(port: u16, family: AddressFamily) -> Result<(TcpListener, SocketAddr)> {
    let (v4, v6) = (SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    let both = || bound(v6, |socket| socket.set_only_v6(false));
    let opened = match family {
        AddressFamily::V4 => bound(v4, |_| Ok(())),
        AddressFamily::Any | AddressFamily::V6 => match both() {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => bound(v4, |_| Ok(())),
            other => other,
        },
    };
    opened.map_err(|error| Error::system(format!("listening at port {port} of all addresses"), error))
}

fn bound(address: SocketAddr, tune: impl FnOnce(&Socket) -> io::Result<()>) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = open::socket(Domain::for_address(address), Some(Protocol::TCP))?;
    if address.port() != 0 {
        // A fixed port must be free for the next job at once, even if old connections are in TIME_WAIT.
        socket.set_reuse_address(true)?;
    }
    // Accepted sockets inherit these options.
    prepare(&socket)?;
    tune(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket.into(), bound))
}

/// Whether the system's error behind `error` is of this kind.
pub(crate) fn is(error: &Error, kind: io::ErrorKind) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == kind)
}

/// Fails for a loopback address that cannot be reached because loopback is down, as in a new network namespace.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`], which says so.
pub(crate) fn check_loopback(address: SocketAddr) -> Result<()> {
    if !address.ip().is_loopback() || interfaces::loopback_is_up()? {
        return Ok(());
    }
    Err(Error::invalid_usage(format!(
        "{address} cannot be used: loopback is down in this network namespace (no interface lo is up): run \
         `ip link set lo up`"
    )))
}

/// Begins to connect to `address`. The stream becomes writable when it is connected, or has failed.
///
/// # Errors
/// The system's error if the attempt fails at once.
pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    connect_as(address, |_| Ok(()))
}

/// [`connect`] of a socket that was given its options by `tune`.
///
/// # Errors
/// As there, and of `tune`.
pub(crate) fn connect_as(
    address: SocketAddr,
    tune: impl FnOnce(&SockRef<'_>) -> io::Result<()>,
) -> io::Result<TcpStream> {
    let socket = open::socket(Domain::for_address(address), Some(Protocol::TCP))?;
    prepare(&socket)?;
    // The kernel chooses the port, perhaps the one where rank 0 will listen: this option lets rank 0 listen there all
    // the same.
    socket.set_reuse_address(true)?;
    tune(&SockRef::from(&socket))?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if poller::is_under_way(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Accepts the next waiting connection; `None` if there is none. Skips a connection that broke while it waited.
///
/// # Errors
/// The system's error, such as when no descriptor is left.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    loop {
        match open::accept_tcp(listener) {
            Ok((stream, from)) => {
                stream.set_nonblocking(true)?;
                // A listener of both families shows an IPv4 address inside an IPv6 one.
                return Ok(Some((stream, canonical(from))));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset => {}
                _ => return Err(error),
            },
        }
    }
}

fn canonical(from: SocketAddr) -> SocketAddr {
    match from {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(from.ip().to_canonical(), v6.port())
        }
        _ => from,
    }
}

fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Whether the stream is connected to itself. This happens when the kernel gives a connecting socket the very port that
/// it connects to, while nobody listens there.
pub(crate) fn is_own(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(ours), Ok(theirs)) if ours == theirs)
}

/// Whether the stream is connected to itself. If so it will leave nothing behind when it is closed: in TIME-WAIT it
/// would keep the port from the process that is to listen there.
pub(crate) fn reset_if_own(stream: &TcpStream) -> bool {
    let own = is_own(stream);
    if own {
        log::info!(Bootstrap, "nobody listens there yet: a socket had connected to itself");
    }
    if own && let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        log::trace!(Bootstrap, "a socket that has connected to itself stays in TIME-WAIT: {error}");
    }
    own
}

/// The error in words, with the remedy if the limit of open files is reached.
pub(crate) fn explain(error: &io::Error) -> String {
    if limits::is_exhausted(error) {
        return format!("{error}: raise the limit of open files (ulimit -n)");
    }
    error.to_string()
}

/// Sends the acknowledgement of what was just read now, by a packet of its own. The kernel would delay it by 40 ms, to
/// send it with an answer.
pub(super) fn acknowledge_now(stream: &TcpStream) {
    // Where the option is unknown, or the peer has gone, the cost is a wait of 40 ms.
    let _unknown = SockRef::from(stream).set_tcp_quickack(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_made_and_a_taken_port_is_named() {
        let (listener, address) = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert_ne!(address.port(), 0);
        assert!(accept(&listener).unwrap().is_none());
        let stream = connect(address).unwrap();
        let accepted = std::iter::repeat_with(|| accept(&listener).unwrap()).flatten().next().unwrap().0;
        assert!(stream.nodelay().unwrap() && accepted.nodelay().unwrap());
        let error = listen(address).unwrap_err().to_string();
        assert!(error.contains(&format!("listening at {address}")), "{error}");
    }

    #[test]
    fn a_range_is_used_up_port_by_port_and_then_named() {
        // A port below the system's own range, which another program may have by chance: then another one is tried.
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let pair = (20_000..30_000).step_by(2).filter_map(|first| PortRange::new(first, first + 1)).find_map(|range| {
            let both: Vec<_> = (0..2).map(|_| listen_in(any, Some(range)).ok()).collect::<Option<_>>()?;
            Some((range, both))
        });
        let (range, both) = pair.unwrap();
        assert!(both.iter().map(|(_, address)| address.port()).eq(range.ports()));
        let error = listen_in(any, Some(range)).unwrap_err().to_string();
        assert!(error.contains(&format!("RSCCL_PORT_RANGE={range}: all 2 ports are taken at 127.0.0.1")), "{error}");
        // A port that is given is not one of the range.
        let (_, elsewhere) = listen(any).unwrap();
        assert_eq!(listen_in(elsewhere, Some(range)).unwrap().1, elsewhere);
    }
}
