//! Modules, functions, occupancy, launches.

use std::ffi::c_char;

use vcuda::driver::{self, CUresult, LaunchRequest, Outcome, Parameters};

use crate::entry::{Address, In, Out, Text, entries};

/// `CUlaunchConfig`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: In<LaunchAttribute>,
    count: u32,
}

/// `CUlaunchAttribute`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchAttribute {
    id: i32,
    pad: i32,
    value: [u64; 8],
}

const _: () = {
    assert!(size_of::<Config>() == 56);
    assert!(size_of::<LaunchAttribute>() == 72);
};

/// `CU_LAUNCH_ATTRIBUTE_*`: ignored, access policy window, cooperative, cluster dimension, priority, memory domains.
const IGNORE: i32 = 0;
const ACCESS_POLICY: i32 = 1;
const COOPERATIVE: i32 = 2;
const CLUSTER: i32 = 4;
const PRIORITY: i32 = 8;
const DOMAIN_MAP: i32 = 9;
const DOMAIN: i32 = 10;

entries! {
    cuModuleLoadData(2000) (module: Out<u64>, image: In<u8>) {
        module.check()?;
        module.put(driver::get()?.module_load(ptx(image)?)?)
    }

    cuModuleLoadDataEx(2010) (module: Out<u64>, image: In<u8>, count: u32, options: In<i32>, values: In<u64>) {
        module.check()?;
        // Options of the compiler change nothing here; errors are printed on stderr.
        options.get_all(count as usize)?;
        values.get_all(count as usize)?;
        module.put(driver::get()?.module_load(ptx(image)?)?)
    }

    cuModuleUnload(2000) (module: u64) { driver::get()?.module_unload(module) }

    cuModuleGetFunction(2000) (function: Out<u64>, module: u64, name: Text) {
        function.check()?;
        function.put(driver::get()?.module_function(module, name.get()?)?)
    }

    cuModuleGetGlobal_v2(3020) (address: Out<u64>, bytes: Out<u64>, module: u64, name: Text) {
        let (start, length) = driver::get()?.module_global(module, name.get()?)?;
        address.put_if(start);
        bytes.put_if(length);
        Ok(())
    }

    cuModuleGetLoadingMode(11070) (mode: Out<u32>) { mode.put(driver::get()?.loading_mode()) }

    cuFuncGetAttribute(2020) (value: Out<i32>, attribute: i32, function: u64) {
        value.check()?;
        value.put(driver::get()?.function_attribute(function, attribute)?)
    }

    cuFuncSetAttribute(9000) (function: u64, attribute: i32, value: i32) {
        driver::get()?.set_function_attribute(function, attribute, value)
    }

    cuFuncSetCacheConfig(3000) (function: u64, config: i32) {
        driver::get()?.function_name(function)?;
        if (0..=3).contains(&config) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    cuFuncLoad(12040) (function: u64) { driver::get()?.function_load(function) }

    cuFuncIsLoaded(12040) (state: Out<i32>, function: u64) {
        state.check()?;
        state.put(driver::get()?.function_is_loaded(function)?.into())
    }

    cuFuncGetName(12030) (name: Out<*const c_char>, function: u64) {
        name.check()?;
        name.put(keep(&driver::get()?.function_name(function)?))
    }

    cuFuncGetModule(11000) (module: Out<u64>, function: u64) {
        module.check()?;
        module.put(driver::get()?.function_module(function)?)
    }

    cuOccupancyMaxActiveBlocksPerMultiprocessor(6050) (blocks: Out<i32>, function: u64, threads: i32, dynamic: u64) {
        blocks.check()?;
        blocks.put(driver::get()?.occupancy(function, threads, dynamic)?)
    }

    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(7000)
    (blocks: Out<i32>, function: u64, threads: i32, dynamic: u64, flags: u32) {
        blocks.check()?;
        if flags > 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        blocks.put(driver::get()?.occupancy(function, threads, dynamic)?)
    }

    cuOccupancyMaxPotentialBlockSize(6050)
    (grid: Out<i32>, block: Out<i32>, function: u64, by_size: Option<extern "C" fn(i32) -> u64>, dynamic: u64, limit: i32) {
        let bytes = move |threads: i32| by_size.map_or(dynamic, |by_size| by_size(threads));
        let (blocks, threads) = driver::get()?.best_block(function, &bytes, limit)?;
        grid.put(blocks)?;
        block.put(threads)
    }

    cuLaunchKernel(4000)
    (
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: u64, parameters: In<In<u8>>, extra: In<Address>,
    ) {
        let parameters = gather(function, parameters, extra)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        driver::get()?.launch(LaunchRequest { function, grid, block, shared_bytes, stream, parameters, cooperative: false })
    }

    cuLaunchCooperativeKernel(9000)
    (
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: u64, parameters: In<In<u8>>,
    ) {
        let parameters = gather(function, parameters, In::none())?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        driver::get()?.launch(LaunchRequest { function, grid, block, shared_bytes, stream, parameters, cooperative: true })
    }

    cuLaunchKernelEx(11060) (config: In<Config>, function: u64, parameters: In<In<u8>>, extra: In<Address>) {
        let config = config.get()?;
        let parameters = gather(function, parameters, extra)?;
        let mut cooperative = false;
        for attribute in config.attributes.get_all(config.count as usize)? {
            match attribute.id {
                IGNORE | ACCESS_POLICY | PRIORITY | DOMAIN_MAP | DOMAIN => {}
                COOPERATIVE => cooperative = attribute.value[0] & u64::from(u32::MAX) != 0,
                // A cluster of one block is no cluster.
                CLUSTER if attribute.value[0] == 1 | 1 << 32 && attribute.value[1] & u64::from(u32::MAX) == 1 => {}
                _ => return Err(CUresult::NOT_SUPPORTED),
            }
        }
        let (grid, block, shared_bytes) = (config.grid, config.block, config.shared_bytes);
        let stream = config.stream;
        driver::get()?.launch(LaunchRequest { function, grid, block, shared_bytes, stream, parameters, cooperative })
    }
}

/// The text of an image: PTX alone is taken; machine code is for other GPUs than these.
fn ptx<'a>(image: In<u8>) -> Outcome<&'a str> {
    let start = [image.get_at(0)?, image.get_at(1)?];
    match start {
        [0x7F, b'E'] | [0x50, 0xED] => Err(CUresult::NO_BINARY_FOR_GPU),
        _ => image.text().get().map_err(|_| CUresult::INVALID_IMAGE),
    }
}

/// What parameters hold that a launch left out.
const NOTHING: u8 = 0xcb;

/// Copies the parameters of a launch into one block, as the kernel has them.
fn gather(function: u64, parameters: In<In<u8>>, extra: In<Address>) -> Outcome<Parameters> {
    let layout = driver::get()?.function_parameters(function)?;
    if parameters.is_null() && !extra.is_null() {
        return from_buffer(&layout, extra);
    }
    if !extra.is_null() && !parameters.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut block = Vec::new();
    for (index, (offset, bytes)) in layout.into_iter().enumerate() {
        let value = parameters.get_at(index)?.get_all(bytes as usize)?;
        block.resize(offset as usize, 0);
        block.extend(value);
    }
    Ok(Parameters(block))
}

/// Parameters by `CU_LAUNCH_PARAM_BUFFER_POINTER` (1) and `CU_LAUNCH_PARAM_BUFFER_SIZE` (2), ended by 0. The buffer may have
/// fewer bytes than the kernel declares, as NCCL's launches do: the kernel finds nothing of use in the rest.
fn from_buffer(layout: &[(u32, u32)], extra: In<Address>) -> Outcome<Parameters> {
    let (mut buffer, mut size) = (None, None);
    for pair in 0..3 {
        let value = |index| extra.get_at(index).map(|value| value.0);
        match value(2 * pair)? {
            0 => break,
            1 => buffer = Some(In::<u8>::from_address(value(2 * pair + 1)?)),
            2 => size = Some(In::<usize>::from_address(value(2 * pair + 1)?).get()?),
            _ => return Err(CUresult::INVALID_VALUE),
        }
    }
    let (Some(buffer), Some(size)) = (buffer, size) else { return Err(CUresult::INVALID_VALUE) };
    let mut bytes = buffer.get_all(size)?;
    let declared = layout.last().map_or(0, |(offset, bytes)| (offset + bytes) as usize);
    bytes.resize(bytes.len().max(declared), NOTHING);
    Ok(Parameters(bytes))
}

/// A name as C text that lives as long as the process: there are few of them.
fn keep(name: &str) -> *const c_char {
    use std::collections::BTreeMap;
    use std::ffi::CString;
    use std::sync::Mutex;
    static NAMES: Mutex<BTreeMap<String, CString>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let text = names.entry(name.to_owned()).or_insert_with(|| CString::new(name).unwrap_or_default());
    text.as_ptr()
}
