//! By which interface a socket leaves, and where it leads.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::SockRef;

use crate::sync::primitive::{Arc, Mutex};
use crate::topo::rails::{DataNic, JoinedBy, Rail, shares_subnet};

/// The way of one socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::transport) struct SocketRoute {
    /// The interface, where it is known by which packets leave.
    pub(super) interface: Option<String>,
    /// The interface to bind to, where addresses do not decide by which one packets leave.
    pub(super) device: Option<String>,
    /// The address to bind to, by which routers of the user's tell rails.
    pub(super) from: Option<IpAddr>,
    /// Where it leads.
    pub(super) to: SocketAddr,
}

impl SocketRoute {
    /// To an address, by whatever interface.
    pub(in crate::transport) fn plain(to: SocketAddr) -> SocketRoute {
        SocketRoute { interface: None, device: None, from: None, to }
    }

    /// Along a rail, to the port where the peer listens.
    pub(super) fn of_rail(rail: &Rail, (mine, theirs): (&[DataNic], &[DataNic]), port: u16) -> SocketRoute {
        let own = &mine[rail.mine];
        SocketRoute {
            interface: Some(own.name.clone()),
            device: device(mine, rail.mine),
            from: matches!(rail.by, JoinedBy::Number(_)).then_some(own.address),
            to: SocketAddr::new(theirs[rail.theirs].address, port),
        }
    }

    /// Gives a socket that has not connected its interface.
    pub(super) fn bind(&self, socket: &SockRef<'_>) -> io::Result<()> {
        if let Some(device) = &self.device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        match self.from {
            Some(from) => socket.bind(&SocketAddr::new(from, 0).into()),
            None => Ok(()),
        }
    }

    /// Whether it needs nothing but the address, and leads where `other` does.
    pub(super) fn is_as_plain_as(&self, other: &SocketRoute) -> bool {
        self.device.is_none() && self.from.is_none() && self.to == other.to
    }
}

impl fmt::Display for SocketRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{interface} to {}", self.to),
            None => write!(f, "{}", self.to),
        }
    }
}

/// The interface to which sockets of a NIC are bound: another one is in its subnet, and the system would send by the
/// first of them.
pub(super) fn device(nics: &[DataNic], place: usize) -> Option<String> {
    shares_subnet(nics, place).then(|| nics[place].name.clone())
}

/// Routes that have failed on this rank, in this communicator or one that it comes from. Ports differ from connection
/// to connection: a route is its interface and the address where it leads. One whose end answers has not failed, also
/// where a process there refuses the connection.
///
/// Also which hosts this rank has not reached in time by any route, and is reached by: they are asked to connect at
/// once.
#[derive(Debug, Clone, Default)]
pub struct DeadRoutes(Arc<Mutex<FailedWays>>);

#[derive(Debug, Default)]
struct FailedWays {
    routes: Vec<DeadRoute>,
    one_way: HashSet<u64>,
}

/// Its interface, and where it leads.
type DeadRoute = (Option<String>, IpAddr);

impl DeadRoutes {
    /// Adds a route; false where it is known.
    pub(super) fn add(&self, route: &SocketRoute) -> bool {
        let dead = &mut self.0.lock().routes;
        let known = dead.iter().any(|known| is_it(known, route));
        if !known {
            dead.push((route.interface.clone(), route.to.ip()));
        }
        !known
    }

    pub(super) fn has(&self, route: &SocketRoute) -> bool {
        self.0.lock().routes.iter().any(|known| is_it(known, route))
    }

    /// Notes that a host connects to this one, which has not reached it in time; false where that is known.
    pub(super) fn add_one_way(&self, host: u64) -> bool {
        self.0.lock().one_way.insert(host)
    }

    /// Notes that this rank has reached a host: it was slow for a moment only.
    pub(super) fn end_one_way(&self, host: u64) {
        self.0.lock().one_way.remove(&host);
    }

    pub(super) fn is_one_way(&self, host: u64) -> bool {
        self.0.lock().one_way.contains(&host)
    }
}

fn is_it((interface, address): &DeadRoute, route: &SocketRoute) -> bool {
    *interface == route.interface && *address == route.to.ip()
}
