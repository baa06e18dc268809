//! Programs that need one GPU, run on each.

use crate::driver::{Driver, Failure, Gpu, Shape};

const VECTOR_ADD: &[u8] = include_bytes!("../samples/compiled/vector_add.ptx.z");
const REDUCE: &[u8] = include_bytes!("../samples/compiled/reduce.ptx.z");
const HISTOGRAM: &[u8] = include_bytes!("../samples/compiled/histogram.ptx.z");
const OUT_OF_MEMORY: i32 = 2;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`
const ATTRIBUTE_FABRIC: i32 = 128;
/// No GPU has as much.
const TOO_MUCH: usize = 1 << 45;

/// What each GPU is.
pub(crate) fn devices(driver: &Driver) -> Result<(), String> {
    println!("driver: {}", driver.version()?);
    println!("devices: {}", driver.count()?);
    for device in 0..driver.count()? {
        println!("device {device}: {} at {}", driver.name(device)?, driver.bus_id(device)?);
    }
    Ok(())
}

/// What the driver refuses though it looks allowed, by the codes of cuda.h.
pub(crate) fn refusals(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    let [wait, shared, fabric] = gpu.refusals()?;
    println!("a wait of the first version: {wait}");
    println!("a handle of a pool's memory: {shared}");
    println!("fabric memory, attribute {}: {fabric}", driver.attribute(0, ATTRIBUTE_FABRIC)?);
    Ok(())
}

/// Runs something on each GPU.
fn on_each(driver: &Driver, name: &str, run: impl Fn(&Gpu<'_>) -> Result<(), String>) -> Result<(), String> {
    for device in 0..driver.count()? {
        run(&driver.gpu(device)?).map_err(|what| format!("{name} on GPU {device}: {what}"))?;
    }
    println!("{name}: right");
    Ok(())
}

pub(crate) fn vector_add(driver: &Driver) -> Result<(), String> {
    const COUNT: u16 = 20_003;
    on_each(driver, "vector_add", |gpu| {
        let a: Vec<f32> = (0..COUNT).map(f32::from).collect();
        let b: Vec<f32> = (0..COUNT).map(|i| f32::from(i % 7) * 0.25).collect();
        let module = gpu.module(VECTOR_ADD)?;
        let (on_a, on_b) = (gpu.holding(&a)?, gpu.holding(&b)?);
        let sum = gpu.zeroed(usize::from(COUNT) * 4)?;
        let arguments = [on_a.address, on_b.address, sum.address, u64::from(COUNT)];
        module.function("vector_add")?.launch(None, Shape::new(8, 128), &arguments)?;
        let found: Vec<f32> = sum.read()?;
        let wrong = (0..found.len()).find(|i| found[*i].to_bits() != (a[*i] + b[*i]).to_bits());
        wrong.map_or(Ok(()), |i| Err(format!("element {i} is {}, not {}", found[i], a[i] + b[i])))
    })
}

pub(crate) fn reduce(driver: &Driver) -> Result<(), String> {
    on_each(driver, "reduce", |gpu| {
        let values: Vec<u32> = (0..50_000_u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let expected: u64 = values.iter().map(|value| u64::from(*value)).sum();
        let module = gpu.module(REDUCE)?;
        let on_gpu = gpu.holding(&values)?;
        for name in ["reduce_shuffle", "reduce_shared"] {
            let sum = gpu.zeroed(8)?;
            let shape = Shape { blocks: 4, threads: 128, shared: 128 * 8 };
            module.function(name)?.launch(None, shape, &[on_gpu.address, sum.address, 50_000])?;
            let found: Vec<u64> = sum.read()?;
            if found != [expected] {
                return Err(format!("{name}: {found:?}, not {expected}"));
            }
        }
        Ok(())
    })
}

pub(crate) fn histogram(driver: &Driver) -> Result<(), String> {
    on_each(driver, "histogram", |gpu| {
        let bytes: Vec<u8> = (0..30_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0] | 1).collect();
        let mut expected = vec![0_u32; 256];
        for byte in &bytes {
            expected[usize::from(*byte)] += 1;
        }
        let module = gpu.module(HISTOGRAM)?;
        let on_gpu = gpu.holding(&bytes)?;
        let (shared, global) = (gpu.zeroed(1_024)?, gpu.zeroed(1_024)?);
        let facts = gpu.holding(&[u32::MAX, 0, 0, 0])?;
        module.function("histogram")?.launch(None, Shape::new(4, 64), &[on_gpu.address, shared.address, 30_000])?;
        let arguments = [on_gpu.address, global.address, facts.address, 30_000];
        module.function("histogram_global")?.launch(None, Shape::new(4, 64), &arguments)?;
        if shared.read::<u32>()? != expected || global.read::<u32>()? != expected {
            return Err("the counts are wrong".to_owned());
        }
        let parity = bytes.iter().fold(0, |all, byte| all ^ u32::from(*byte));
        let found: Vec<u32> = facts.read()?;
        if found == [1, 255, parity, 30_000] {
            Ok(())
        } else {
            Err(format!("least, greatest, parity, count: {found:?}"))
        }
    })
}

/// An allocation that no GPU can serve fails, and smaller ones work afterwards.
pub(crate) fn memory_runs_out(driver: &Driver) -> Result<(), String> {
    on_each(driver, "memory_runs_out", |gpu| {
        match gpu.uninitialised(TOO_MUCH) {
            Err(Failure { code: OUT_OF_MEMORY, .. }) => {}
            other => return Err(format!("{TOO_MUCH} bytes: {:?}", other.map(|buffer| buffer.address))),
        }
        let buffer = gpu.zeroed(1 << 20)?;
        if buffer.read::<u8>()?.iter().all(|byte| *byte == 0) { Ok(()) } else { Err("a memset left bytes".to_owned()) }
    })
}

/// Leaves memory behind, for the list of what leaked.
pub(crate) fn leaks(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    std::mem::forget(gpu.zeroed(12_345)?);
    // Releasing the context would free it.
    std::mem::forget(gpu);
    println!("leaks: right");
    Ok(())
}
