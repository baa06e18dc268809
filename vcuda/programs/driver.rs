//! The CUDA driver for the programs: loaded at run time as any program loads it, and safe to call.
//!
//! Only what the programs need. A failing call is a [`Failure`] with its name and code; handles are owned and given back.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::marker::PhantomData;

use miniz_oxide::inflate::decompress_to_vec_zlib;

/// A call that answered with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) code: i32,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} answered {}", self.call, self.code)
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.to_string()
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;
type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// The driver's functions, by their exported names.
        #[derive(Debug)]
        #[expect(non_snake_case, reason = "the names are CUDA's")]
        pub(crate) struct Driver {
            $($name: unsafe extern "C" fn($($type),*) -> i32,)*
        }

        impl Driver {
            /// Loads `libcuda.so.1`, finds all functions and initialises the driver.
            pub(crate) fn open() -> Result<Driver, String> {
                let library = open_library()?;
                let driver = Driver {
                    $($name: {
                        let address = symbol(library, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the driver exports a function of this type by this name: cuda.h declares it so.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($type),*) -> i32>(address) }
                    },)*
                };
                driver.cuInit(0)?;
                Ok(driver)
            }

            $(#[expect(non_snake_case, reason = "the names are CUDA's")]
            #[expect(clippy::allow_attributes_without_reason, reason = "one attribute for all functions")]
            #[allow(clippy::too_many_arguments, dead_code)]
            fn $name(&self, $($argument: $type),*) -> Outcome {
                // SAFETY: every caller in this file passes pointers to places of its own that live through the call, or
                // handles that the driver gave it.
                match unsafe { (self.$name)($($argument),*) } {
                    0 => Ok(()),
                    code => Err(Failure { call: stringify!($name), code }),
                }
            })*
        }
    };
}

functions! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut i32);
    cuDeviceGetCount(count: *mut i32);
    cuDeviceGetName(name: *mut c_char, length: i32, device: i32);
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    cuDeviceGetPCIBusId(text: *mut c_char, length: i32, device: i32);
    cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuCtxSetCurrent(context: Handle);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(peer: Handle, flags: u32);
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle);
    cuMemFreeAsync(address: u64, stream: Handle);
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64);
    cuMemRelease(handle: u64);
    cuMemHostAlloc(place: *mut Handle, bytes: usize, flags: u32);
    cuMemFreeHost(place: Handle);
    cuMemHostGetDevicePointer_v2(address: *mut u64, place: Handle, flags: u32);
    cuMemcpyHtoD_v2(address: u64, from: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(to: Handle, address: u64, bytes: usize);
    cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
    cuMemsetD8_v2(address: u64, value: u8, bytes: usize);
    cuIpcGetMemHandle(handle: *mut [u8; 64], address: u64);
    cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcHandle, flags: u32);
    cuIpcCloseMemHandle(address: u64);
    cuStreamCreate(stream: *mut Handle, flags: u32);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamWaitValue32(stream: Handle, address: u64, value: u32, flags: u32);
    cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: u32);
    cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, flags: u32);
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleUnload(module: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuFuncGetAttribute(value: *mut i32, attribute: i32, function: Handle);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: Handle, threads: i32, shared: usize);
    cuLaunchKernel(function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchCooperativeKernel(function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: Handle, parameters: *mut *mut c_void);
}

/// `CUipcMemHandle`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle([u8; 64]);

/// `CUmemAllocationProp`
#[derive(Default)]
#[repr(C)]
struct Properties {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
    windows: u64,
    flags: u64,
}

/// `CU_MEM_HANDLE_TYPE_FABRIC`
const HANDLE_FABRIC: i32 = 8;
const GRANULE: usize = 2 << 20;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(crate) const ATTRIBUTE_SMS: i32 = 16;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_PORTABLE_MAPPED: u32 = 3;
const STREAM_NON_BLOCKING: u32 = 1;
const IPC_LAZY_ENABLE_PEER: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_EQ`.
const WAIT_EQUAL: u32 = 1;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY_ENABLED: i32 = 704;

impl Driver {
    pub(crate) fn version(&self) -> Outcome<i32> {
        let mut version = 0;
        self.cuDriverGetVersion(&raw mut version).map(|()| version)
    }

    pub(crate) fn count(&self) -> Outcome<i32> {
        let mut count = 0;
        self.cuDeviceGetCount(&raw mut count).map(|()| count)
    }

    pub(crate) fn name(&self, device: i32) -> Outcome<String> {
        text(|place, length| self.cuDeviceGetName(place, length, device))
    }

    pub(crate) fn bus_id(&self, device: i32) -> Outcome<String> {
        text(|place, length| self.cuDeviceGetPCIBusId(place, length, device))
    }

    pub(crate) fn attribute(&self, device: i32, attribute: i32) -> Outcome<i32> {
        let mut value = 0;
        self.cuDeviceGetAttribute(&raw mut value, attribute, device).map(|()| value)
    }

    pub(crate) fn can_access_peer(&self, device: i32, peer: i32) -> Outcome<bool> {
        let mut can = 0;
        self.cuDeviceCanAccessPeer(&raw mut can, device, peer).map(|()| can != 0)
    }

    /// The primary context of a GPU.
    pub(crate) fn gpu(&self, device: i32) -> Outcome<Gpu<'_>> {
        let mut context = std::ptr::null_mut();
        self.cuDevicePrimaryCtxRetain(&raw mut context, device)?;
        Ok(Gpu { driver: self, device, context })
    }
}

/// A GPU with its primary context. Each call makes the context the thread's own first.
#[derive(Debug)]
pub(crate) struct Gpu<'d> {
    pub(crate) driver: &'d Driver,
    pub(crate) device: i32,
    context: Handle,
}

impl<'d> Gpu<'d> {
    fn enter(&self) -> Outcome<&'d Driver> {
        self.driver.cuCtxSetCurrent(self.context).map(|()| self.driver)
    }

    pub(crate) fn synchronize(&self) -> Outcome {
        self.enter()?.cuCtxSynchronize()
    }

    /// Lets kernels of this GPU touch the memory of another.
    pub(crate) fn reach(&self, peer: &Gpu<'_>) -> Outcome {
        match self.enter()?.cuCtxEnablePeerAccess(peer.context, 0) {
            Err(Failure { code: ALREADY_ENABLED, .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// What is answered to what looks allowed: a wait of the first version, the handle of a pool's memory, and fabric memory.
    pub(crate) fn refusals(&self) -> Outcome<[i32; 3]> {
        let driver = self.enter()?;
        let code = |outcome: Outcome| outcome.err().map_or(0, |failure| failure.code);
        let flag = self.zeroed(4)?;
        let wait = code(driver.cuStreamWaitValue32(std::ptr::null_mut(), flag.address, 0, WAIT_EQUAL));
        let (mut pooled, mut handle) = (0, [0; 64]);
        driver.cuMemAllocAsync(&raw mut pooled, 4096, std::ptr::null_mut())?;
        self.synchronize()?;
        let shared = code(driver.cuIpcGetMemHandle(&raw mut handle, pooled));
        driver.cuMemFreeAsync(pooled, std::ptr::null_mut())?;
        let properties =
            Properties { kind: 1, handle_types: HANDLE_FABRIC, location: [1, self.device], ..Properties::default() };
        let mut fabric = 0;
        let made = code(driver.cuMemCreate(&raw mut fabric, GRANULE, &raw const properties, 0));
        if made == 0 {
            driver.cuMemRelease(fabric)?;
        }
        self.synchronize()?;
        Ok([wait, shared, made])
    }

    /// Fresh memory, all zero.
    pub(crate) fn zeroed(&self, bytes: usize) -> Outcome<Buffer<'_>> {
        let mut buffer = self.uninitialised(bytes)?;
        self.driver.cuMemsetD8_v2(buffer.address, 0, bytes)?;
        // A memset may return before it is done, and other streams do not wait for it.
        self.synchronize()?;
        buffer.bytes = bytes;
        Ok(buffer)
    }

    pub(crate) fn uninitialised(&self, bytes: usize) -> Outcome<Buffer<'_>> {
        let mut address = 0;
        self.enter()?.cuMemAlloc_v2(&raw mut address, bytes)?;
        Ok(Buffer { gpu: self, address, bytes, place: Place::Device })
    }

    /// Memory of the host that kernels of every GPU reach.
    pub(crate) fn pinned(&self, bytes: usize) -> Outcome<Buffer<'_>> {
        let (mut place, mut address) = (std::ptr::null_mut(), 0);
        let driver = self.enter()?;
        driver.cuMemHostAlloc(&raw mut place, bytes, HOST_PORTABLE_MAPPED)?;
        driver.cuMemHostGetDevicePointer_v2(&raw mut address, place, 0)?;
        // SAFETY: the driver has given so many bytes at this place.
        unsafe { place.cast::<u8>().write_bytes(0, bytes) };
        Ok(Buffer { gpu: self, address, bytes, place: Place::Host(place) })
    }

    /// Memory that holds these values.
    pub(crate) fn holding<T: Word>(&self, values: &[T]) -> Outcome<Buffer<'_>> {
        let buffer = self.uninitialised(size_of_val(values).max(1))?;
        self.driver.cuMemcpyHtoD_v2(buffer.address, values.as_ptr().cast(), size_of_val(values))?;
        Ok(buffer)
    }

    /// Memory of another process.
    pub(crate) fn opened(&self, handle: [u8; 64]) -> Outcome<Opened<'_>> {
        let mut address = 0;
        self.enter()?.cuIpcOpenMemHandle_v2(&raw mut address, IpcHandle(handle), IPC_LAZY_ENABLE_PEER)?;
        Ok(Opened { gpu: self, address })
    }

    /// A stream that the null stream does not wait for.
    pub(crate) fn stream(&self) -> Outcome<Stream<'_>> {
        self.stream_with(STREAM_NON_BLOCKING)
    }

    /// A stream that waits for the null stream, and the null stream for it.
    pub(crate) fn blocking_stream(&self) -> Outcome<Stream<'_>> {
        self.stream_with(0)
    }

    fn stream_with(&self, flags: u32) -> Outcome<Stream<'_>> {
        let mut handle = std::ptr::null_mut();
        self.enter()?.cuStreamCreate(&raw mut handle, flags)?;
        Ok(Stream { gpu: self, handle })
    }

    /// The module of a sample.
    pub(crate) fn module(&self, sample: &'static [u8]) -> Result<Module<'_>, String> {
        let image = image(sample)?;
        let mut handle = std::ptr::null_mut();
        self.enter()?.cuModuleLoadData(&raw mut handle, image.as_ptr().cast())?;
        Ok(Module { gpu: self, handle })
    }
}

/// The PTX text of a compiled sample, with the zero byte that the driver wants behind it.
pub(crate) fn image(sample: &[u8]) -> Result<Vec<u8>, String> {
    let mut text = decompress_to_vec_zlib(sample).map_err(|error| format!("a sample does not unpack: {error:?}"))?;
    text.push(0);
    Ok(text)
}

impl Drop for Gpu<'_> {
    fn drop(&mut self) {
        // After a sticky error nothing can be given back any more; the process ends soon.
        let _ = self.driver.cuDevicePrimaryCtxRelease_v2(self.device);
    }
}

/// Plain numbers that memory may hold.
pub(crate) trait Word: Copy + Default {}
impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {}
impl Word for u64 {}
impl Word for f32 {}

#[derive(Debug)]
enum Place {
    Device,
    Host(Handle),
}

/// Memory that kernels reach.
#[derive(Debug)]
pub(crate) struct Buffer<'g> {
    gpu: &'g Gpu<'g>,
    pub(crate) address: u64,
    bytes: usize,
    place: Place,
}

impl Buffer<'_> {
    /// All of it, once everything before has been done.
    pub(crate) fn read<T: Word>(&self) -> Outcome<Vec<T>> {
        let mut values = vec![T::default(); self.bytes / size_of::<T>()];
        let bytes = size_of_val(&values[..]);
        match self.place {
            Place::Device => self.gpu.enter()?.cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), self.address, bytes)?,
            // SAFETY: both places hold so many bytes, and they are not the same.
            Place::Host(place) => unsafe {
                values.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(place.cast(), bytes)
            },
        }
        Ok(values)
    }

    /// Stores a word of pinned memory, which a kernel may be polling.
    pub(crate) fn store(&self, value: u32) {
        let Place::Host(place) = self.place else { panic!("only memory of the host can be stored to") };
        // SAFETY: the buffer begins with an aligned word that lives as long as it; kernels see it as an atomic too.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(place.cast()) };
        word.store(value, std::sync::atomic::Ordering::Release);
    }

    /// Copies as much of another place of the GPU as this holds.
    pub(crate) fn copy_from(&self, other: &Buffer<'_>) -> Outcome {
        self.gpu.enter()?.cuMemcpyDtoD_v2(self.address, other.address, self.bytes.min(other.bytes))
    }

    /// What another process opens.
    pub(crate) fn export(&self) -> Outcome<[u8; 64]> {
        let mut handle = [0; 64];
        self.gpu.enter()?.cuIpcGetMemHandle(&raw mut handle, self.address).map(|()| handle)
    }

    /// Gives it back, and says how that went.
    pub(crate) fn free(mut self) -> Outcome {
        self.give_back()
    }

    fn give_back(&mut self) -> Outcome {
        if self.address == 0 {
            return Ok(());
        }
        let address = std::mem::take(&mut self.address);
        let driver = self.gpu.enter()?;
        match self.place {
            Place::Device => driver.cuMemFree_v2(address),
            Place::Host(place) => driver.cuMemFreeHost(place),
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // As for the context: after a sticky error this fails, and the program has already told of that error.
        let _ = self.give_back();
    }
}

/// Memory of another process.
#[derive(Debug)]
pub(crate) struct Opened<'g> {
    gpu: &'g Gpu<'g>,
    pub(crate) address: u64,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // As for the context.
        let _ = self.gpu.enter().and_then(|driver| driver.cuIpcCloseMemHandle(self.address));
    }
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream<'g> {
    gpu: &'g Gpu<'g>,
    handle: Handle,
}

impl Stream<'_> {
    pub(crate) fn synchronize(&self) -> Outcome {
        self.gpu.enter()?.cuStreamSynchronize(self.handle)
    }

    /// What follows waits until the word has the value.
    pub(crate) fn wait_value(&self, address: u64, value: u32) -> Outcome {
        self.gpu.enter()?.cuStreamWaitValue32_v2(self.handle, address, value, WAIT_EQUAL)
    }

    pub(crate) fn write_value(&self, address: u64, value: u32) -> Outcome {
        self.gpu.enter()?.cuStreamWriteValue32_v2(self.handle, address, value, 0)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // As for the context.
        let _ = self.gpu.enter().and_then(|driver| driver.cuStreamDestroy_v2(self.handle));
    }
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module<'g> {
    gpu: &'g Gpu<'g>,
    handle: Handle,
}

impl Module<'_> {
    pub(crate) fn function(&self, name: &str) -> Outcome<Function<'_>> {
        let name = CString::new(name).expect("names of kernels hold no zero byte");
        let mut handle = std::ptr::null_mut();
        self.gpu.enter()?.cuModuleGetFunction(&raw mut handle, self.handle, name.as_ptr())?;
        Ok(Function { gpu: self.gpu, handle, module: PhantomData })
    }
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // As for the context.
        let _ = self.gpu.enter().and_then(|driver| driver.cuModuleUnload(self.handle));
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function<'m> {
    gpu: &'m Gpu<'m>,
    handle: Handle,
    module: PhantomData<&'m Module<'m>>,
}

/// Blocks, threads a block, dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared: u32,
}

impl Shape {
    pub(crate) fn new(blocks: u32, threads: u32) -> Shape {
        Shape { blocks, threads, shared: 0 }
    }
}

impl Function<'_> {
    /// Resident blocks of an SM.
    pub(crate) fn occupancy(&self, threads: i32) -> Outcome<i32> {
        let mut blocks = 0;
        let driver = self.gpu.enter()?;
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.handle, threads, 0).map(|()| blocks)
    }

    /// Loads it now where loading is lazy: an attribute cannot be told before.
    pub(crate) fn finish_loading(&self) -> Outcome {
        let mut value = 0;
        self.gpu.enter()?.cuFuncGetAttribute(&raw mut value, 0, self.handle)
    }

    /// Launches it on a stream, or on the null stream. Numbers of 32 bits are passed as the low half of their word.
    pub(crate) fn launch(&self, stream: Option<&Stream<'_>>, shape: Shape, arguments: &[u64]) -> Outcome {
        let mut places = places(arguments);
        let handle = stream.map_or(std::ptr::null_mut(), |stream| stream.handle);
        let Shape { blocks, threads, shared } = shape;
        let (parameters, none) = (places.as_mut_ptr(), std::ptr::null_mut());
        self.gpu.enter()?.cuLaunchKernel(self.handle, blocks, 1, 1, threads, 1, 1, shared, handle, parameters, none)
    }

    /// The same with all blocks resident together, or an error.
    pub(crate) fn launch_together(&self, stream: &Stream<'_>, shape: Shape, arguments: &[u64]) -> Outcome {
        let mut places = places(arguments);
        let Shape { blocks, threads, shared } = shape;
        let driver = self.gpu.enter()?;
        driver.cuLaunchCooperativeKernel(
            self.handle,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            shared,
            stream.handle,
            places.as_mut_ptr(),
        )
    }
}

fn places(arguments: &[u64]) -> Vec<*mut c_void> {
    arguments.iter().map(|argument| std::ptr::from_ref(argument).cast_mut().cast()).collect()
}

fn open_library() -> Result<Handle, String> {
    // SAFETY: the name ends in a zero byte; the driver's initialisers do what the driver does.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        Err("there is no libcuda.so.1: start the program by `vcuda run`".to_owned())
    } else {
        Ok(library)
    }
}

fn symbol(library: Handle, name: &str) -> Result<Handle, String> {
    // SAFETY: the library is open for good, and the name ends in a zero byte.
    let address = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if address.is_null() { Err(format!("the driver has no {}", name.trim_end_matches('\0'))) } else { Ok(address) }
}

fn text(call: impl FnOnce(*mut c_char, i32) -> Outcome) -> Outcome<String> {
    let mut bytes = [0; 256];
    call(bytes.as_mut_ptr(), 256)?;
    // SAFETY: the place is full of zero bytes but for what the driver wrote, which leaves at least the last.
    let text = unsafe { CStr::from_ptr(bytes.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}
