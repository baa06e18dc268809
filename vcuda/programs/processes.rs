//! The producer and the consumer in two processes: the parent owns all memory and consumes, the child opens it and produces.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::driver::{Driver, Shape};
use crate::two::{PAIR, PING_PONG, PIPELINE, Traffic};

/// `taken` and `ready` lie behind the slots.
const READY: u64 = 8_192;
const TAKEN: u64 = READY + 128;
const BYTES: usize = 16_384;

pub(crate) fn processes(driver: &Driver) -> Result<(), String> {
    parent(driver, "processes", PIPELINE)
}

/// The two kernels answer each other round for round: on a GPU that processes share in turns each answer costs a turn.
pub(crate) fn ping_pong(driver: &Driver) -> Result<(), String> {
    parent(driver, "ping_pong", PING_PONG)
}

fn parent(driver: &Driver, name: &str, traffic: Traffic) -> Result<(), String> {
    let Traffic { words, depth, rounds } = traffic;
    assert!(traffic.slot_bytes() as u64 <= READY, "the slots lie before the flags");
    let gpu = driver.gpu(0)?;
    // Not the first allocation of its block: the handle stands for the base of what it names, wherever that lies.
    let before = gpu.zeroed(256)?;
    let shared = gpu.zeroed(BYTES)?;
    let sums = gpu.zeroed(traffic.sum_bytes())?;
    let module = gpu.module(PAIR)?;
    let consume = module.function("consume")?;
    consume.finish_loading()?;
    let stream = gpu.stream()?;
    let handle: String = shared.export()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let myself = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(myself);
    let mut child = child
        .args(["child", &handle, &words.to_string(), &depth.to_string(), &rounds.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    // The child says when it has opened the memory; it closes it when we say that we are done.
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
    output.read_line(&mut said).map_err(|error| error.to_string())?;
    let place = |offset: u64| shared.address + offset;
    let arguments = [place(0), place(READY), place(TAKEN), sums.address, words, depth, rounds];
    let consumed = if said == "open\n" {
        consume
            .launch(Some(&stream), Shape::new(1, 64), &arguments)
            .and_then(|()| stream.synchronize())
            .map_err(String::from)
    } else {
        Err(format!("the child said {said:?}"))
    };
    drop(child.stdin.take());
    let status = child.wait().map_err(|error| error.to_string())?;
    consumed?;
    if !status.success() {
        return Err(format!("the child ended with {status}"));
    }
    let found: Vec<u64> = sums.read()?;
    if found != traffic.expected() {
        return Err(format!("the sums are {found:?}, not {:?}", traffic.expected()));
    }
    before.free()?;
    println!("{name}: right");
    Ok(())
}

pub(crate) fn child(driver: &Driver, handle: &str, traffic: [&str; 3]) -> Result<(), String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let [words, depth, rounds] = traffic.map(number);
    let (words, depth, rounds) = (words?, depth?, rounds?);
    let digits =
        |place: usize| handle.get(place * 2..place * 2 + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<Vec<u8>> = (0..64).map(digits).collect();
    let bytes: [u8; 64] = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or("the handle is not 64 bytes")?;
    let other = (driver.count()? - 1).min(1);
    let peer = other != 0 && driver.can_access_peer(other, 0)?;
    let gpu = driver.gpu(if peer { other } else { 0 })?;
    let module = gpu.module(PAIR)?;
    let produce = module.function("produce")?;
    produce.finish_loading()?;
    let stream = gpu.stream()?;
    let shared = gpu.opened(bytes)?;
    println!("open");
    std::io::stdout().flush().map_err(|error| error.to_string())?;
    let place = |offset: u64| shared.address + offset;
    produce.launch(Some(&stream), Shape::new(1, 64), &[place(0), place(READY), place(TAKEN), words, depth, rounds])?;
    stream.synchronize()?;
    // Ends when the parent closes the pipe.
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).map_err(|error| error.to_string())?;
    Ok(())
}
