//! A producer and a consumer on two GPUs, or on one where there is no second. What a kernel polls lies in its own GPU's
//! memory; without peer access everything lies in the host's.

use crate::driver::{Buffer, Driver, Gpu, Shape};

pub(crate) const PAIR: &[u8] = include_bytes!("../samples/compiled/pair.ptx.z");
pub(crate) const WORDS: u64 = 600;
pub(crate) const DEPTH: u64 = 2;
pub(crate) const ROUNDS: u64 = 12;
/// `ready` and `taken` keep away from the slots' lines.
pub(crate) const SLOT_BYTES: usize = 2 * 600 * 4;

/// The sums that the consumer has to find.
pub(crate) fn expected() -> Vec<u64> {
    (0..ROUNDS).map(|round| (0..WORDS).map(|i| (round * 1_000_003 + i) & 0xffff_ffff).sum()).collect()
}

/// The two GPUs of a program, and whether they reach each other's memory.
pub(crate) fn two_gpus(driver: &Driver) -> Result<(Gpu<'_>, Gpu<'_>, bool), String> {
    let last = driver.count()? - 1;
    let other = last.min(1);
    let (consumer, producer) = (driver.gpu(0)?, driver.gpu(other)?);
    let reach = other == 0 || (driver.can_access_peer(0, other)? && driver.can_access_peer(other, 0)?);
    if reach && other != 0 {
        consumer.reach(&producer)?;
        producer.reach(&consumer)?;
    }
    println!("GPUs: {}, peer access: {}", other + 1, if reach { "yes" } else { "no" });
    Ok((consumer, producer, reach))
}

/// Zeroed memory of a GPU, or of the host where the other GPU would not reach it.
pub(crate) fn reached<'g>(gpu: &'g Gpu<'g>, reach: bool, bytes: usize) -> Result<Buffer<'g>, String> {
    Ok(if reach { gpu.zeroed(bytes)? } else { gpu.pinned(bytes)? })
}

pub(crate) fn pair(driver: &Driver) -> Result<(), String> {
    let (consumer, producer, reach) = two_gpus(driver)?;
    let (consumer, producer) = (&consumer, &producer);
    let slots = reached(consumer, reach, SLOT_BYTES)?;
    let ready = reached(consumer, reach, 128)?;
    let taken = reached(producer, reach, 128)?;
    let sums = consumer.zeroed(usize::try_from(ROUNDS).unwrap_or(0) * 8)?;
    let (consuming, producing) = (consumer.module(PAIR)?, producer.module(PAIR)?);
    let (consume, produce) = (consuming.function("consume")?, producing.function("produce")?);
    // The first launch of a function may wait for running kernels: load both before either polls.
    consume.finish_loading()?;
    produce.finish_loading()?;
    let (inlet, outlet) = (consumer.stream()?, producer.stream()?);
    let arguments = [slots.address, ready.address, taken.address, sums.address, WORDS, DEPTH, ROUNDS];
    consume.launch(Some(&inlet), Shape::new(1, 64), &arguments)?;
    produce.launch(
        Some(&outlet),
        Shape::new(1, 64),
        &[slots.address, ready.address, taken.address, WORDS, DEPTH, ROUNDS],
    )?;
    outlet.synchronize()?;
    inlet.synchronize()?;
    let found: Vec<u64> = sums.read()?;
    if found != expected() {
        return Err(format!("the sums are {found:?}, not {:?}", expected()));
    }
    println!("pair: right");
    Ok(())
}
