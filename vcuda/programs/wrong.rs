//! Kernels with one mistake each. The report of a virtual machine names kernel, line, thread and address; hardware gives the
//! code alone, or nothing at all.

use crate::driver::{Driver, Failure, Gpu, Module, Outcome, Shape};

const WRONG: &[u8] = include_bytes!("../samples/compiled/wrong.ptx.z");
/// Where no memory can be.
const NOWHERE: u64 = 1 << 40;

/// Launches and waits; the code is printed, and an error is what is expected.
fn must_fail(name: &str, run: impl FnOnce(&Gpu<'_>, &Module<'_>) -> Outcome, driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    let module = gpu.module(WRONG)?;
    match run(&gpu, &module).and_then(|()| gpu.synchronize()) {
        Ok(()) => Err(format!("{name} was not noticed")),
        Err(Failure { code, .. }) => {
            // A sticky error: the context answers it from now on.
            let again = gpu.synchronize().err().map(|failure| failure.code);
            println!("{name}: {code}, and again {}", again.unwrap_or(0));
            Ok(())
        }
    }
}

pub(crate) fn illegal_address(driver: &Driver) -> Result<(), String> {
    let run = |_: &Gpu<'_>, module: &Module<'_>| {
        module.function("store_at")?.launch(None, Shape::new(1, 1), &[0x1000, NOWHERE, 1])
    };
    must_fail("illegal_address", run, driver)
}

pub(crate) fn out_of_bounds(driver: &Driver) -> Result<(), String> {
    let run = |gpu: &Gpu<'_>, module: &Module<'_>| {
        let words = gpu.zeroed(400)?;
        // The next word behind 100.
        module.function("store_at")?.launch(None, Shape::new(1, 1), &[words.address, 100, 1])?;
        gpu.synchronize()
    };
    must_fail("out_of_bounds", run, driver)
}

pub(crate) fn freed(driver: &Driver) -> Result<(), String> {
    let run = |gpu: &Gpu<'_>, module: &Module<'_>| {
        let words = gpu.zeroed(4_096)?;
        let address = words.address;
        words.free()?;
        module.function("store_at")?.launch(None, Shape::new(1, 1), &[address, 0, 1])
    };
    must_fail("freed", run, driver)
}

pub(crate) fn misaligned(driver: &Driver) -> Result<(), String> {
    let run = |gpu: &Gpu<'_>, module: &Module<'_>| {
        let bytes = gpu.zeroed(64)?;
        module.function("misaligned")?.launch(None, Shape::new(1, 1), &[bytes.address])?;
        gpu.synchronize()
    };
    must_fail("misaligned", run, driver)
}

pub(crate) fn trap(driver: &Driver) -> Result<(), String> {
    must_fail("trap", |_, module| module.function("trap")?.launch(None, Shape::new(1, 1), &[]), driver)
}

pub(crate) fn uninitialised(driver: &Driver) -> Result<(), String> {
    let run = |gpu: &Gpu<'_>, module: &Module<'_>| {
        let (words, found) = (gpu.uninitialised(256)?, gpu.zeroed(4)?);
        module.function("count_set")?.launch(None, Shape::new(1, 64), &[words.address, found.address])?;
        gpu.synchronize()
    };
    must_fail("uninitialised", run, driver)
}

/// The bytes are copied before a kernel looks at them: they stay what they are.
pub(crate) fn uninitialised_copied(driver: &Driver) -> Result<(), String> {
    let run = |gpu: &Gpu<'_>, module: &Module<'_>| {
        let (words, copy, found) = (gpu.uninitialised(256)?, gpu.zeroed(256)?, gpu.zeroed(4)?);
        copy.copy_from(&words)?;
        module.function("count_set")?.launch(None, Shape::new(1, 64), &[copy.address, found.address])?;
        gpu.synchronize()
    };
    must_fail("uninitialised_copied", run, driver)
}

pub(crate) fn race(driver: &Driver) -> Result<(), String> {
    let run = |gpu: &Gpu<'_>, module: &Module<'_>| {
        let to = gpu.zeroed(256)?;
        module.function("race")?.launch(None, Shape::new(1, 64), &[to.address])?;
        gpu.synchronize()
    };
    must_fail("race", run, driver)
}
