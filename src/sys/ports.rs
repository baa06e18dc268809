//! The sockets that hold a TCP port of this network namespace, as `/proc` shows them.

use std::fs;

/// A socket that holds the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortHolder {
    /// What the socket does.
    pub state: SocketState,
    /// The number by which its owner's open files name it; 0 if it has no owner any more.
    inode: u64,
}

/// What a socket that holds a port does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// It listens.
    Listens,
    /// It has asked for a connection and has no answer yet.
    Asks,
    /// It is connected to itself.
    Itself,
    /// It was connected, and the kernel keeps the port for a minute (TIME-WAIT).
    Lingers,
    /// It is connected, or is about to be no more.
    Connected,
}

/// The sockets that hold `port`. None where `/proc` is hidden, and none for a socket that is bound and does nothing.
pub fn holders(port: u16) -> Vec<PortHolder> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    // A missing table belongs to a family that this kernel does not have, or is hidden.
    tables.iter().flat_map(|table| parse(&fs::read_to_string(table).unwrap_or_default(), port)).collect()
}

fn parse(table: &str, port: u16) -> Vec<PortHolder> {
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, remote, state) = (fields.get(1)?, fields.get(2)?, fields.get(3)?);
        let (_, digits) = local.rsplit_once(':')?;
        if u16::from_str_radix(digits, 16) != Ok(port) {
            return None;
        }
        // The numbers of the kernel's tcp_states.h.
        let state = match *state {
            "0A" => SocketState::Listens,
            "02" => SocketState::Asks,
            "06" => SocketState::Lingers,
            _ if local == remote => SocketState::Itself,
            _ => SocketState::Connected,
        };
        let inode = fields.get(9).and_then(|field| field.parse().ok()).unwrap_or(0);
        Some(PortHolder { state, inode })
    };
    table.lines().skip(1).filter_map(holder).collect()
}

impl PortHolder {
    /// The number and name of a process that has the socket open; `None` if this process may not see it.
    pub fn process(&self) -> Option<(u32, String)> {
        if self.inode == 0 {
            return None;
        }
        let wanted = format!("socket:[{}]", self.inode);
        let numbers = fs::read_dir("/proc").ok()?.filter_map(|entry| {
            // Other folders have no number for a name.
            entry.ok()?.file_name().to_str()?.parse::<u32>().ok()
        });
        let mut left = MAX_FILES;
        let process = numbers.take(MAX_PROCESSES).find(|process| {
            // The files of another user's process cannot be read.
            let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
            for file in files.take(left).flatten() {
                left -= 1;
                if fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == &*wanted) {
                    return true;
                }
            }
            false
        })?;
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        Some((process, name.trim_end().escape_default().to_string()))
    }
}

/// Whether the error says that the kernel does not have the address's family, as where IPv6 is off.
pub fn is_unknown_family(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// The ports that the kernel gives to outgoing connections, as `/proc` shows them; else the kernel's default.
pub fn ephemeral() -> (u16, u16) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(first), Some(last)) => (first, last),
        _ => DEFAULT_EPHEMERAL,
    }
}

/// Whether the administrator keeps `port` from connections that go out. `false` where `/proc` does not tell.
pub fn is_reserved(port: u16) -> bool {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    lists(&text, port)
}

/// Whether `list`, of ports and ranges of ports with commas between them, has `port`.
fn lists(list: &str, port: u16) -> bool {
    list.trim().split(',').any(|item| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&port))
    })
}

/// The bounds of a search among all processes: the files of all of them together, and the processes.
const MAX_FILES: usize = 1 << 16;
const MAX_PROCESSES: usize = 1 << 14;

/// The kernel's default range.
const DEFAULT_EPHEMERAL: (u16, u16) = (32_768, 60_999);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn reserved_ports_are_read_one_by_one_and_as_ranges() {
        let list = "8080,50000-50100,9148\n";
        for (port, is_listed) in
            [(8080, true), (50_000, true), (50_100, true), (50_101, false), (9148, true), (9, false)]
        {
            assert_eq!(lists(list, port), is_listed, "{port}");
        }
        assert!(!lists("", 0) && !lists("\n", 1) && !lists("x-y,-,70000", 1));
    }

    #[test]
    fn a_table_of_the_kernel_is_read_and_odd_lines_are_skipped() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0\n\
            1: 0100007F:1F90 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 0\n\
            2: 0100007F:1F90 0200007F:1F90 06 00000000:00000000 03:000017A5 00000000     0        0 0 3 0\n\
            3: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1 0\n\
            nonsense\n\n4: 0100007F:XXXX 0 0A\n5: 00000000000000000000000001000000:1F90 0:0050 02 0";
        let of = |state, inode| PortHolder { state, inode };
        assert_eq!(
            parse(table, 0x1f90),
            [
                of(SocketState::Listens, 4242),
                of(SocketState::Itself, 4243),
                of(SocketState::Lingers, 0),
                of(SocketState::Asks, 0)
            ]
        );
        assert!(parse("", 1).is_empty() && parse("one line", 1).is_empty());
    }

    #[test]
    fn a_listener_of_this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = holders(listener.local_addr().unwrap().port());
        // A container may hide /proc.
        if let Some(holder) = found.iter().find(|holder| holder.state == SocketState::Listens) {
            let process = holder.process().map(|(process, _)| process);
            assert!(process.is_none_or(|process| process == std::process::id()), "{process:?}");
        }
        let (first, last) = ephemeral();
        assert!(first <= last);
    }
}
