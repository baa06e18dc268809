//! TCP sockets as the bootstrap wants them: never blocking, closed on exec, no delay, kept alive.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::error::{Error, Result};
use crate::sys::{limits, poller};

/// How many connections may wait to be accepted; the kernel may allow fewer (`somaxconn`).
const BACKLOG: i32 = 16384;

/// A peer whose machine is gone is noticed after idle + probes × interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;

/// Listens at `address`; port 0 gets a free one. Yields where.
///
/// # Errors
/// [`crate::error::Kind::System`] where the address is taken or is none of this machine's.
pub(crate) fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let named = |error| Error::system(format!("listening at {address}"), error);
    let open = || -> io::Result<(TcpListener, SocketAddr)> {
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        if address.port() != 0 {
            // A fixed port must be free for the next job at once, whatever the kernel remembers of the last.
            socket.set_reuse_address(true)?;
        }
        // Accepted sockets inherit these.
        prepare(&socket)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let bound = socket.local_addr()?.as_socket().unwrap_or(address);
        Ok((socket.into(), bound))
    };
    open().map_err(named)
}

/// Begins to connect to `address`. The stream becomes writable when it is connected, or has failed.
///
/// # Errors
/// The system's, where it fails at once.
pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    prepare(&socket)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if poller::is_under_way(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Takes the next waiting connection; `None` where there is none.
///
/// # Errors
/// The system's, e.g. where no descriptor is left; a connection that broke while it waited is skipped.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(true)?;
                return Ok(Some((stream, from)));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset => {}
                _ => return Err(error),
            },
        }
    }
}

fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// The words for `error`, with the remedy where the limit of open files is reached.
pub(crate) fn explain(error: &io::Error) -> String {
    if limits::is_exhausted(error) {
        return format!("{error}: raise the limit of open files (ulimit -n)");
    }
    error.to_string()
}

/// Sends the acknowledgement of what was just read, which the system would keep back for 40 ms, in the hope of an answer to go with
/// it: a rank that leaves waits for it.
pub(super) fn acknowledge_now(stream: &TcpStream) {
    // A system that does not know the option, or a peer that has gone, makes nobody wait for more than those 40 ms.
    let _unknown = SockRef::from(stream).set_tcp_quickack(true);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

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
}
