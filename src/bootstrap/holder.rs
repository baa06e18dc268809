//! Who holds a port where rank 0 cannot listen, and how long it is worth to try again.

use std::fmt;
use std::time::Duration;

use crate::sys::host;
use crate::sys::ports::{self, SocketState};

/// What holds a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// A listening socket, of this process if it can be seen: its number and name.
    Listener(Option<(u32, String)>),
    /// An outgoing connection that has none to talk to: a rank that looks for this very rank 0, mostly.
    Passing,
    /// A connection that has ended; the kernel keeps its port for a minute.
    Ended,
    /// A connection.
    Connection,
    /// Nothing that can be seen.
    Unseen,
}

/// How long a port is worth waiting for that is about to be free: longer than the kernel's TIME-WAIT of a minute.
const PASSING_PATIENCE: Duration = Duration::from_secs(65);

/// How long a port is worth waiting for that something holds which does not listen.
const SOME_PATIENCE: Duration = Duration::from_secs(5);

/// What holds `port`. A listener counts most: no try succeeds while it lives.
pub(super) fn of(port: u16) -> Holder {
    let holders = ports::holders(port);
    let find = |state: SocketState| holders.iter().find(|holder| holder.state == state);
    if let Some(listener) = find(SocketState::Listens) {
        return Holder::Listener(listener.process());
    }
    if find(SocketState::Connected).is_some() {
        return Holder::Connection;
    }
    if find(SocketState::Asks).or_else(|| find(SocketState::Itself)).is_some() {
        return Holder::Passing;
    }
    if find(SocketState::Lingers).is_some() { Holder::Ended } else { Holder::Unseen }
}

impl Holder {
    /// How long it is worth to try again; `listener` is the answer for a listener.
    pub(super) fn patience(&self, listener: Duration) -> Duration {
        match self {
            Holder::Listener(_) => listener,
            Holder::Passing | Holder::Ended => PASSING_PATIENCE,
            Holder::Connection | Holder::Unseen => SOME_PATIENCE,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = ports::ephemeral();
        let elsewhere = format!("choose a port outside {first}-{last} (/proc/sys/net/ipv4/ip_local_port_range)");
        match self {
            Holder::Listener(Some((process, _))) if *process == host::process_id() => {
                f.write_str("this process listens there already")
            }
            Holder::Listener(Some((process, name))) => write!(f, "process {process} ({name}) listens there"),
            Holder::Listener(None) => f.write_str("a process of another user or container listens there"),
            Holder::Passing | Holder::Connection => {
                write!(f, "an outgoing connection of this host has this port; {elsewhere}")
            }
            Holder::Ended => write!(
                f,
                "an outgoing connection of this host had this port, and the kernel keeps it for a minute (TIME-WAIT); \
                 {elsewhere}"
            ),
            Holder::Unseen => f.write_str("no socket is seen there: a process may have bound it without listening"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_a_listener_is_named_and_all_else_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = of(listener.local_addr().unwrap().port());
        // A container may hide /proc.
        if holder != Holder::Unseen {
            assert_eq!(holder.to_string(), "this process listens there already");
            assert_eq!(holder.patience(Duration::ZERO), Duration::ZERO);
        }
        let other = Holder::Listener(Some((1, "init".to_owned())));
        assert_eq!(other.to_string(), "process 1 (init) listens there");
        for passing in [Holder::Passing, Holder::Ended] {
            assert!(passing.to_string().contains("ip_local_port_range"));
            assert_eq!(passing.patience(Duration::ZERO), PASSING_PATIENCE);
        }
    }
}
