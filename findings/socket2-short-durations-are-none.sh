#!/usr/bin/env bash
# socket2 0.6.5 (crates.io): a linger below a second throws data away, and a timeout below a microsecond waits for ever.
#
# What happens: Socket::set_linger(Some(500 ms)) returns Ok and sets 0 s, and with 0 s a close does not wait for half a second but resets the
# connection at once: of 100,000 bytes that were written before, the peer gets a part and then ConnectionReset. With 1 s, with 1.5 s (which
# sets 1 s) and with None it gets all. A linger of 2^33 s sets 0 s too. set_read_timeout(Some(999 ns)) and Some(0) set no timeout, that is:
# wait for ever; set_tcp_user_timeout(Some(500 us)) turns that timeout off. TcpKeepalive::with_time(500 ms) alone is an error (InvalidInput).
# The standard library refuses a read timeout of 0, and makes 1 us or more of 1 ns.
#
# Why it surprises: the arguments are Durations, the kernel's fields are whole seconds, microseconds and milliseconds, and everything is cut down to
# them. Where 0 has a meaning of its own, shorter turns into the opposite: the shortest timeout is the longest, and the friendly close is a
# reset. A linger of a second in a program's settings works; who lowers it to half a second to end faster loses the ends of messages.
#
# Needs cargo. Takes under a minute with the download and build, in a temporary folder. Sockets are on 127.0.0.1.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the crate could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
command -v cargo >/dev/null || { echo "skipped: there is no cargo"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
mkdir "$work/src"
cat >"$work/Cargo.toml" <<'TOML'
[package]
name = "show"
version = "0.0.0"
edition = "2021"

[dependencies]
socket2 = { version = "=0.6.5", features = ["all"] }
TOML
cat >"$work/src/main.rs" <<'RUST'
use socket2::{Domain, Socket, TcpKeepalive, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

const BYTES: usize = 100_000;

fn stream() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
}

/// Writes to a peer that reads only once the connection is closed, and says what the peer gets.
fn close_after_write(linger: Option<Duration>) -> String {
    let listener = stream();
    // The peer's window is smaller than what is written, and the writer's buffer is larger.
    listener.set_recv_buffer_size(4096).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(1).unwrap();
    let writer = stream();
    writer.set_send_buffer_size(8 * BYTES).unwrap();
    writer.set_linger(linger).unwrap();
    writer.connect(&listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    (&writer).write_all(&vec![7; BYTES]).unwrap();
    // A close that lingers waits until the peer has read.
    let closing = std::thread::spawn(move || drop(writer));
    if linger == Some(Duration::from_millis(500)) {
        closing.join().unwrap();
    }
    let mut got = Vec::new();
    match peer.read_to_end(&mut got) {
        Ok(BYTES) => "all".to_string(),
        Ok(part) => format!("{part} bytes"),
        Err(error) => format!("{} and {:?}", if got.len() < BYTES { "a part" } else { "all" }, error.kind()),
    }
}

fn main() {
    let (socket, std) = (stream(), UdpSocket::bind("127.0.0.1:0").unwrap());
    for duration in [Duration::from_millis(500), Duration::from_millis(1500), Duration::from_secs(1 << 33)] {
        println!("linger {duration:?}: {:?}, then {:?}", socket.set_linger(Some(duration)).is_ok(), socket.linger().unwrap());
    }
    for duration in [Duration::ZERO, Duration::from_nanos(999)] {
        println!("read timeout {duration:?}: {:?}, then {:?}", socket.set_read_timeout(Some(duration)).is_ok(), socket.read_timeout().unwrap());
    }
    let short = Duration::from_micros(500);
    println!("user timeout {short:?}: {:?}, then {:?}", socket.set_tcp_user_timeout(Some(short)).is_ok(), socket.tcp_user_timeout().unwrap());
    let keepalive = TcpKeepalive::new().with_time(Duration::from_millis(500));
    println!("keepalive 500ms: {:?}", socket.set_tcp_keepalive(&keepalive).map_err(|error| error.kind()));
    println!("std, read timeout 0ns: {:?}", std.set_read_timeout(Some(Duration::ZERO)).map_err(|error| error.kind()));
    std.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
    println!("std, read timeout 1ns: at least 1us: {:?}", std.read_timeout().unwrap() >= Some(Duration::from_micros(1)));
    for linger in [None, Some(500), Some(1000), Some(1500)] {
        let linger = linger.map(Duration::from_millis);
        println!("close with linger {linger:?}: the peer gets {}", close_after_write(linger));
    }
}
RUST
(cd "$work" && env -u RUSTFLAGS cargo build --quiet --target-dir "$work/target") >&2 ||
    { echo "cannot install: cargo does not build socket2 0.6.5" >&2; exit 2; }
found=$(timeout "$RUN_LIMIT_S" "$work/target/debug/show" 2>&1) || true
echo "$found"
[[ $found == 'linger 500ms: true, then Some(0ns)
linger 1.5s: true, then Some(1s)
linger 8589934592s: true, then Some(0ns)
read timeout 0ns: true, then None
read timeout 999ns: true, then None
user timeout 500µs: true, then None
keepalive 500ms: Err(InvalidInput)
std, read timeout 0ns: Err(InvalidInput)
std, read timeout 1ns: at least 1us: true
close with linger None: the peer gets all
close with linger Some(500ms): the peer gets a part and ConnectionReset
close with linger Some(1s): the peer gets all
close with linger Some(1.5s): the peer gets all' ]] || { echo "changed"; exit 1; }
echo "as described"
