//! A producer and a consumer on two GPUs, or on one where there is no second. What a kernel polls lies in its own GPU's
//! memory; without peer access everything lies in the host's.

use crate::driver::{Buffer, Driver, Gpu, Shape};

pub(crate) const PAIR: &[u8] = include_bytes!("../samples/compiled/pair.ptx.z");

/// What a producer sends to a consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Words of a slot.
    pub(crate) words: u64,
    /// Slots.
    pub(crate) depth: u64,
    /// Slots that are filled, one after the other.
    pub(crate) rounds: u64,
}

/// Slots that are in flight while others are read.
pub(crate) const PIPELINE: Traffic = Traffic { words: 600, depth: 2, rounds: 12 };
/// One slot goes back and forth, often.
pub(crate) const PING_PONG: Traffic = Traffic { words: 64, depth: 1, rounds: 500 };

impl Traffic {
    /// Bytes of all slots together.
    pub(crate) fn slot_bytes(self) -> usize {
        usize::try_from(self.words * self.depth * 4).expect("a few slots")
    }

    /// Bytes of the sums that the consumer finds.
    pub(crate) fn sum_bytes(self) -> usize {
        usize::try_from(self.rounds * 8).expect("a few rounds")
    }

    /// The sums that the consumer has to find.
    pub(crate) fn expected(self) -> Vec<u64> {
        let sum = |round: u64| (0..self.words).map(|i| (round * 1_000_003 + i) & 0xffff_ffff).sum();
        (0..self.rounds).map(sum).collect()
    }
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
    let Traffic { words, depth, rounds } = PIPELINE;
    let slots = reached(consumer, reach, PIPELINE.slot_bytes())?;
    let ready = reached(consumer, reach, 128)?;
    let taken = reached(producer, reach, 128)?;
    let sums = consumer.zeroed(PIPELINE.sum_bytes())?;
    let (consuming, producing) = (consumer.module(PAIR)?, producer.module(PAIR)?);
    let (consume, produce) = (consuming.function("consume")?, producing.function("produce")?);
    // The first launch of a function may wait for running kernels: load both before either polls.
    consume.finish_loading()?;
    produce.finish_loading()?;
    let (inlet, outlet) = (consumer.stream()?, producer.stream()?);
    let arguments = [slots.address, ready.address, taken.address, sums.address, words, depth, rounds];
    consume.launch(Some(&inlet), Shape::new(1, 64), &arguments)?;
    produce.launch(
        Some(&outlet),
        Shape::new(1, 64),
        &[slots.address, ready.address, taken.address, words, depth, rounds],
    )?;
    outlet.synchronize()?;
    inlet.synchronize()?;
    let found: Vec<u64> = sums.read()?;
    if found != PIPELINE.expected() {
        return Err(format!("the sums are {found:?}, not {:?}", PIPELINE.expected()));
    }
    println!("pair: right");
    Ok(())
}
