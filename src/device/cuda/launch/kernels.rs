//! The kernels that ship, loaded into a context: machine code where it fits the GPU, else PTX.
//!
//! Every function is loaded and finalised at set-up: by default the driver loads one at its first launch, and to do so
//! it waits for the kernels that run.

use std::ffi::{CStr, c_int, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule};
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

use super::arguments::THREADS;
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::{NO_BINARY_FOR_GPU, call};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::types::DataType;

/// Which kernel: one of the copies and folds of `kernels/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) enum EntryPoint {
    /// Copies bytes.
    Copy,
    /// Folds bytes with an operator on bits.
    Bits(BitOp),
    /// Folds elements.
    Fold(DataType, FoldOp),
}

/// The operators on bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) enum BitOp {
    And,
    Or,
    Xor,
}

/// The arithmetic operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) enum FoldOp {
    Sum,
    ScaledSum,
    Prod,
    Min,
    Max,
}

/// Entry points of a module of folds, in the order of [`FoldOp`].
const FOLDS: [&CStr; 5] = [c"fold_sum", c"fold_scaled_sum", c"fold_prod", c"fold_min", c"fold_max"];
/// Those of the module of bits, in the order of [`BitOp`].
const BITS: [&CStr; 3] = [c"fold_and", c"fold_or", c"fold_xor"];
/// The entry point of an interpreter of programs.
const INTERPRETER: [&CStr; 1] = [c"program"];

impl EntryPoint {
    /// Its place in the table.
    pub(in crate::device::cuda) fn index(self) -> usize {
        match self {
            EntryPoint::Copy => 0,
            EntryPoint::Bits(op) => 1 + op as usize,
            EntryPoint::Fold(data_type, op) => {
                1 + BITS.len() + usize::from(data_type.code()) * FOLDS.len() + op as usize
            }
        }
    }
}

/// A compiled module: PTX, and machine code by the first number of the compute capability.
struct Image {
    name: &'static str,
    entries: &'static [&'static CStr],
    ptx: &'static [u8],
    code: [(c_int, &'static [u8]); 4],
}

/// The images, in the order of [`EntryPoint::index`].
macro_rules! images {
    ($($name:literal: $entries:expr;)*) => {
        [$(Image {
            name: $name,
            entries: $entries,
            ptx: include_bytes!(concat!("../../../../kernels/compiled/", $name, ".ptx.z")),
            code: [
                (8, include_bytes!(concat!("../../../../kernels/compiled/", $name, ".sm_80.z"))),
                (9, include_bytes!(concat!("../../../../kernels/compiled/", $name, ".sm_90.z"))),
                (10, include_bytes!(concat!("../../../../kernels/compiled/", $name, ".sm_100.z"))),
                (12, include_bytes!(concat!("../../../../kernels/compiled/", $name, ".sm_120.z"))),
            ],
        }),*]
    };
}

static IMAGES: [Image; 14] = images! {
    "copy": &[c"copy"];
    "bits": &BITS;
    "fold_i8": &FOLDS;
    "fold_u8": &FOLDS;
    "fold_i32": &FOLDS;
    "fold_u32": &FOLDS;
    "fold_i64": &FOLDS;
    "fold_u64": &FOLDS;
    "fold_f16": &FOLDS;
    "fold_f32": &FOLDS;
    "fold_f64": &FOLDS;
    "fold_bf16": &FOLDS;
    "fold_f8e4m3": &FOLDS;
    "fold_f8e5m2": &FOLDS;
};

/// Interpreters of programs: one for each element type, and one for operators on bits.
pub(super) const INTERPRETERS: usize = 13;

/// Those of the interpreters, element types in the order of their codes.
static INTERPRETER_IMAGES: [Image; INTERPRETERS] = images! {
    "program_i8": &INTERPRETER;
    "program_u8": &INTERPRETER;
    "program_i32": &INTERPRETER;
    "program_u32": &INTERPRETER;
    "program_i64": &INTERPRETER;
    "program_u64": &INTERPRETER;
    "program_f16": &INTERPRETER;
    "program_f32": &INTERPRETER;
    "program_f64": &INTERPRETER;
    "program_bf16": &INTERPRETER;
    "program_f8e4m3": &INTERPRETER;
    "program_f8e5m2": &INTERPRETER;
    "program_bits": &INTERPRETER;
};

/// The entry points of [`Meets`].
const MEETS: [&CStr; 3] = [c"bring", c"meet", c"leave"];

/// What processes that share a GPU run around a call.
static MEET_IMAGES: [Image; 1] = images! {
    "meet": &MEETS;
};

/// More than any module has when it is decompressed.
const MOST_IMAGE_BYTES: usize = 16 << 20;

/// All kernels in one context.
#[derive(Debug)]
pub(in crate::device::cuda) struct Kernels {
    /// By [`EntryPoint::index`].
    functions: Vec<LoadedKernel>,
    /// What keeps the functions.
    _modules: Vec<Module>,
}

/// A kernel that is loaded.
#[derive(Debug, Clone, Copy)]
pub(in crate::device::cuda) struct LoadedKernel {
    pub(in crate::device::cuda) handle: CUfunction,
    /// Blocks of [`THREADS`] that a multiprocessor holds at once.
    pub(in crate::device::cuda) blocks: u32,
}

// SAFETY: a handle, which the driver lets any thread use.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above.
unsafe impl Sync for LoadedKernel {}

impl Kernels {
    /// Loads them all for a GPU of this compute capability, (9, 0) for instance.
    pub(in crate::device::cuda) fn load(primary: &Arc<Primary>, capability: (c_int, c_int)) -> Result<Kernels> {
        let (functions, _modules) = load(primary, &IMAGES, capability)?;
        Ok(Kernels { functions, _modules })
    }

    #[cfg(test)]
    pub(in crate::device::cuda) fn all(&self) -> &[LoadedKernel] {
        &self.functions
    }

    pub(in crate::device::cuda) fn function(&self, entry: EntryPoint) -> LoadedKernel {
        self.functions[entry.index()]
    }
}

/// The interpreters of programs in one context.
#[derive(Debug)]
pub(in crate::device::cuda) struct Interpreters {
    functions: Vec<LoadedKernel>,
    /// What keeps the functions.
    _modules: Vec<Module>,
}

impl Interpreters {
    /// Loads them all for a GPU of this compute capability.
    pub(in crate::device::cuda) fn load(primary: &Arc<Primary>, capability: (c_int, c_int)) -> Result<Interpreters> {
        let (functions, _modules) = load(primary, &INTERPRETER_IMAGES, capability)?;
        Ok(Interpreters { functions, _modules })
    }

    /// The interpreter of a number: below the last, of the element type with this code.
    pub(in crate::device::cuda) fn function(&self, number: usize) -> LoadedKernel {
        self.functions[number]
    }

    /// Blocks that a multiprocessor holds at once, of whichever interpreter.
    pub(in crate::device::cuda) fn blocks(&self) -> u32 {
        self.functions.iter().map(|function| function.blocks).min().unwrap_or(1)
    }
}

/// The kernels around a call of several processes, in one context.
#[derive(Debug)]
pub(in crate::device::cuda) struct Meets {
    /// Copies a member's input to its stage.
    pub(super) bring: LoadedKernel,
    /// Compares the calls.
    pub(super) meet: CUfunction,
    /// Lets the members go on.
    pub(in crate::device::cuda) leave: CUfunction,
    /// What keeps the functions.
    _modules: Vec<Module>,
}

// SAFETY: handles, which the driver lets any thread use.
unsafe impl Send for Meets {}
// SAFETY: as above.
unsafe impl Sync for Meets {}

impl Meets {
    /// Loads them for a GPU of this compute capability.
    pub(in crate::device::cuda) fn load(primary: &Arc<Primary>, capability: (c_int, c_int)) -> Result<Meets> {
        let (functions, _modules) = load(primary, &MEET_IMAGES, capability)?;
        let [bring, meet, leave] = functions[..] else {
            return Err(Error::internal("the module meet has three functions"));
        };
        Ok(Meets { bring, meet: meet.handle, leave: leave.handle, _modules })
    }
}

/// Loads images, and all of their functions.
fn load(
    primary: &Arc<Primary>,
    images: &[Image],
    capability: (c_int, c_int),
) -> Result<(Vec<LoadedKernel>, Vec<Module>)> {
    let _entered = primary.enter()?;
    let (mut modules, mut functions) = (Vec::with_capacity(images.len()), Vec::new());
    for image in images {
        let module = Module::load(primary, image, capability)?;
        for entry in image.entries {
            functions.push(module.function(entry)?);
        }
        modules.push(module);
    }
    Ok((functions, modules))
}

/// A module that is loaded.
#[derive(Debug)]
struct Module {
    primary: Arc<Primary>,
    handle: CUmodule,
    name: &'static str,
}

// SAFETY: a handle, which the driver lets any thread use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    fn load(primary: &Arc<Primary>, image: &Image, capability: (c_int, c_int)) -> Result<Module> {
        let code = image.code.iter().find(|(major, _)| *major == capability.0).map(|(_, code)| *code);
        let mut loaded = None;
        // Without machine code for this GPU the driver compiles the PTX, which takes a while.
        for bytes in code.into_iter().chain([image.ptx]) {
            let mut bytes = decompress_to_vec_zlib_with_limit(bytes, MOST_IMAGE_BYTES)
                .map_err(|error| Error::internal(format!("the kernels of {}: {error}", image.name)))?;
            // PTX is text that a zero byte ends.
            bytes.push(0);
            let mut handle = std::ptr::null_mut();
            let data = bytes.as_ptr().cast::<c_void>();
            // SAFETY: the place is ours; the image is whole, as the kernels' compiler wrote it, and the driver copies
            // it.
            match unsafe { call!(primary, cuModuleLoadData(&raw mut handle, data)) } {
                Ok(()) => loaded = Some(Module { primary: Arc::clone(primary), handle, name: image.name }),
                Err(failure) if failure.code == NO_BINARY_FOR_GPU => continue,
                Err(failure) => return Err(primary.error(failure)),
            }
            break;
        }
        loaded.ok_or_else(|| {
            let (major, minor) = capability;
            let least = "rsccl's kernels run on GPUs of compute capability 8.0 and newer";
            Error::invalid_usage(format!("GPU {} has compute capability {major}.{minor}: {least}", primary.device()))
        })
    }

    /// The function of a name, loaded as far as the driver can.
    fn function(&self, name: &CStr) -> Result<LoadedKernel> {
        let primary = &self.primary;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module lives, the place is ours, and the name ends in a zero byte.
        let found = unsafe { call!(primary, cuModuleGetFunction(&raw mut handle, self.handle, name.as_ptr())) };
        found.map_err(|failure| self.error(name, primary.error(failure)))?;
        if let Some(load) = primary.functions().cuFuncLoad {
            // SAFETY: the function was found above.
            let loaded = primary.check("cuFuncLoad", unsafe { load(handle) });
            loaded.map_err(|failure| self.error(name, primary.error(failure)))?;
        }
        // Drivers before 12.4 load a function when its attributes are asked.
        let mut registers = 0;
        // SAFETY: the function was found above, and the place is ours.
        let asked = unsafe { call!(primary, cuFuncGetAttribute(&raw mut registers, NUM_REGS, handle)) };
        asked.map_err(|failure| self.error(name, primary.error(failure)))?;
        let (mut blocks, threads) = (0, c_int::try_from(THREADS).expect("a block has at most 1,024"));
        let asked =
            // SAFETY: as above.
            unsafe { call!(primary, cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, handle, threads, 0)) };
        asked.map_err(|failure| self.error(name, primary.error(failure)))?;
        Ok(LoadedKernel { handle, blocks: u32::try_from(blocks).unwrap_or(0).max(1) })
    }

    #[cold]
    fn error(&self, name: &CStr, error: Error) -> Error {
        Error::new(error.kind(), format!("kernel {} of {}: {}", name.to_string_lossy(), self.name, error.message()))
    }
}

/// `CU_FUNC_ATTRIBUTE_NUM_REGS`
const NUM_REGS: c_int = 4;

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is ours, and no launch of its functions is to come.
        self.primary.give_back(|| unsafe { call!(self.primary, cuModuleUnload(self.handle)) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_has_its_place_and_each_place_the_name_of_its_entry() {
        let names: Vec<(&str, &CStr)> =
            IMAGES.iter().flat_map(|image| image.entries.iter().map(|entry| (image.name, *entry))).collect();
        assert_eq!(names[EntryPoint::Copy.index()], ("copy", c"copy"));
        assert_eq!(names[EntryPoint::Bits(BitOp::Xor).index()], ("bits", c"fold_xor"));
        for data_type in DataType::ALL {
            let at = |op| names[EntryPoint::Fold(*data_type, op).index()];
            assert_eq!(at(FoldOp::Sum).1, c"fold_sum");
            assert_eq!(at(FoldOp::Max), (at(FoldOp::Sum).0, c"fold_max"));
        }
        assert_eq!(names[EntryPoint::Fold(DataType::F8E5M2, FoldOp::Max).index()], ("fold_f8e5m2", c"fold_max"));
        assert_eq!(names[EntryPoint::Fold(DataType::I8, FoldOp::ScaledSum).index()], ("fold_i8", c"fold_scaled_sum"));
        assert_eq!(names[EntryPoint::Fold(DataType::BF16, FoldOp::Min).index()], ("fold_bf16", c"fold_min"));
        for data_type in DataType::ALL {
            let fold = names[EntryPoint::Fold(*data_type, FoldOp::Sum).index()].0;
            let interpreter = INTERPRETER_IMAGES[usize::from(data_type.code())].name;
            assert_eq!(fold.strip_prefix("fold"), interpreter.strip_prefix("program"));
        }
        assert_eq!(INTERPRETER_IMAGES[INTERPRETERS - 1].name, "program_bits");
    }

    #[test]
    fn all_images_are_whole_and_small() {
        let mut packed = 0;
        for image in IMAGES.iter().chain(&INTERPRETER_IMAGES).chain(&MEET_IMAGES) {
            let ptx = decompress_to_vec_zlib_with_limit(image.ptx, MOST_IMAGE_BYTES).unwrap();
            assert!(String::from_utf8(ptx).unwrap().contains(".version 8.0"), "{}", image.name);
            for (major, code) in image.code {
                let code = decompress_to_vec_zlib_with_limit(code, MOST_IMAGE_BYTES).unwrap();
                assert_eq!(&code[..4], b"\x7fELF", "{}, {major}", image.name);
            }
            packed += image.ptx.len() + image.code.iter().map(|(_, code)| code.len()).sum::<usize>();
        }
        assert!(packed < 5 << 20, "{packed} bytes of kernels in the program");
    }
}
