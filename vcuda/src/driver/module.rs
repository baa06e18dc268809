//! Modules from PTX text, their functions and variables. A function is loaded at its first use unless the program asks for
//! eager loading, and loading waits for the context's running kernels: the deadlock that lazy loading brings is real here.

use std::collections::HashMap;
use std::sync::Arc;

use super::{CUresult, Current, Driver, Outcome};
use crate::ptx;
use crate::schedule::Occupancy;
use crate::simt::ModuleGlobals;
use crate::space::state::{Kind, Record, RecordId};
use crate::space::{Owner, Whose};

/// A loaded module.
#[derive(Debug)]
pub(super) struct Module {
    context: u64,
    program: ptx::Module,
    globals: Arc<ModuleGlobals>,
    /// Function handles by name.
    functions: HashMap<String, u64>,
    record: RecordId,
}

/// A kernel by handle.
#[derive(Debug, Clone)]
pub(super) struct Function {
    pub(super) context: u64,
    pub(super) gpu: u32,
    pub(super) module: u64,
    pub(super) function: Arc<ptx::Function>,
    pub(super) globals: Arc<ModuleGlobals>,
    pub(super) loaded: bool,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`, where it was set.
    pub(super) dynamic_limit: Option<u32>,
    version: (u32, u32),
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: i32 = 8;

impl Driver {
    /// `cuModuleLoadData` with PTX text.
    pub fn module_load(&self, text: &str) -> Outcome<u64> {
        let current = self.current()?;
        self.guard_capture()?;
        self.wait_for_kernels(current)?;
        let program = ptx::Module::parse(text).map_err(|error| {
            eprintln!("vcuda: {error}");
            CUresult::INVALID_PTX
        })?;
        self.check_target(current, &program)?;
        let globals = Arc::new(self.place_globals(current, &program)?);
        let state = self.space.state();
        let record = self
            .space
            .record(Record { gpu: current.gpu, ..Record::new(Kind::Module, state.pid(), state.next_id()) })?;
        let handle = self.engine.lock().new_handle();
        let module = Module { context: current.context, program, globals, functions: HashMap::new(), record };
        self.tables().modules.insert(handle, module);
        Ok(handle)
    }

    fn check_target(&self, current: Current, program: &ptx::Module) -> Outcome {
        // CUDA 12.0 reads PTX 8.0, 12.8 reads 8.7 and so on; newer text is refused.
        let (major, minor) = (self.machine.driver_version / 1000, self.machine.driver_version % 1000 / 10);
        let newest = if major >= 13 { (9, minor) } else { (8, minor.saturating_sub(u32::from(minor > 6))) };
        if program.version > newest {
            return Err(CUresult::UNSUPPORTED_PTX_VERSION);
        }
        let digits: String = program.target.chars().filter(char::is_ascii_digit).collect();
        let (major, minor) = self.machine.gpus[current.gpu as usize].capability;
        let own_only = program.target.ends_with('a') && digits != format!("{major}{minor}");
        match digits.parse::<u32>() {
            Ok(target) if target <= major * 10 + minor && !own_only => Ok(()),
            _ => Err(CUresult::NO_BINARY_FOR_GPU),
        }
    }

    /// Allocates a module's variables and fills them.
    fn place_globals(&self, current: Current, program: &ptx::Module) -> Outcome<ModuleGlobals> {
        let mut globals = ModuleGlobals::default();
        let owner = Owner { context: current.context, pool: 0, gpu: current.gpu };
        for global in program.globals.iter().filter(|global| global.bytes > 0) {
            let address = self.space.allocate(owner, global.bytes, Whose::Driver)?;
            globals.addresses.insert(global.name.clone(), address);
        }
        for global in &program.globals {
            let Some(address) = globals.addresses.get(&global.name) else { continue };
            let mut bytes = vec![0_u8; crate::space::size(global.bytes)];
            let given = global.init.len().min(bytes.len());
            bytes[..given].copy_from_slice(&global.init[..given]);
            for (offset, name, addend) in &global.addresses {
                let target = globals.addresses.get(name).copied().unwrap_or(0).wrapping_add_signed(*addend);
                let at = crate::space::size(*offset);
                bytes[at..at + 8].copy_from_slice(&target.to_le_bytes());
            }
            let source = bytes.as_ptr().expose_provenance() as u64;
            let copied = self.space.copy(current.agent(), *address, source, global.bytes);
            copied.map_err(|_| CUresult::UNKNOWN)?;
        }
        Ok(globals)
    }

    /// `cuModuleUnload`: waits for all work of the context.
    pub fn module_unload(&self, handle: u64) -> Outcome {
        let current = self.current()?;
        self.guard_capture()?;
        if !self.tables().modules.contains_key(&handle) {
            return Err(CUresult::INVALID_HANDLE);
        }
        self.wait_for_all(current, crate::schedule::Reason::Implicit)?;
        self.drop_module(handle);
        self.tidy_memory();
        Ok(())
    }

    fn drop_module(&self, handle: u64) {
        let mut tables = self.tables();
        tables.functions.retain(|_, function| function.module != handle);
        let Some(module) = tables.modules.remove(&handle) else { return };
        drop(tables);
        for address in module.globals.addresses.values() {
            self.space.free(*address);
        }
        self.space.state().lock().remove(module.record);
    }

    /// Unloads all modules of a context that is going.
    pub(super) fn drop_modules(&self, context: u64) {
        let of_context = |entry: (&u64, &Module)| (entry.1.context == context).then_some(*entry.0);
        let modules: Vec<u64> = self.tables().modules.iter().filter_map(of_context).collect();
        for module in modules {
            self.drop_module(module);
        }
    }

    /// `cuModuleGetFunction`.
    pub fn module_function(&self, handle: u64, name: &str) -> Outcome<u64> {
        let current = self.current()?;
        let mut tables = self.tables();
        let module = tables.modules.get(&handle).ok_or(CUresult::INVALID_HANDLE)?;
        if let Some(function) = module.functions.get(name) {
            return Ok(*function);
        }
        let function = Arc::clone(module.program.function(name).ok_or(CUresult::NOT_FOUND)?);
        let entry = Function {
            context: module.context,
            gpu: current.gpu,
            module: handle,
            function,
            globals: Arc::clone(&module.globals),
            loaded: self.settings.eager_loading,
            dynamic_limit: None,
            version: module.program.version,
        };
        let made = self.engine.lock().new_handle();
        tables.functions.insert(made, entry);
        if let Some(module) = tables.modules.get_mut(&handle) {
            module.functions.insert(name.to_owned(), made);
        }
        Ok(made)
    }

    /// `cuModuleGetGlobal`: address and size of a variable.
    pub fn module_global(&self, handle: u64, name: &str) -> Outcome<(u64, u64)> {
        self.current()?;
        let tables = self.tables();
        let module = tables.modules.get(&handle).ok_or(CUresult::INVALID_HANDLE)?;
        let address = module.globals.addresses.get(name).copied().ok_or(CUresult::NOT_FOUND)?;
        let global = module.program.globals.iter().find(|global| global.name == name).ok_or(CUresult::NOT_FOUND)?;
        Ok((address, global.bytes))
    }

    /// `cuModuleGetLoadingMode`: 1 eager, 2 lazy.
    pub fn loading_mode(&self) -> u32 {
        if self.settings.eager_loading { 1 } else { 2 }
    }

    pub(super) fn function(&self, handle: u64) -> Outcome<Function> {
        self.tables().functions.get(&handle).cloned().ok_or(CUresult::INVALID_HANDLE)
    }

    /// Loads a function that is not loaded: that waits for the context's running kernels.
    pub fn function_load(&self, handle: u64) -> Outcome {
        let function = self.function(handle)?;
        if function.loaded {
            return Ok(());
        }
        self.wait_for_kernels(Current { context: function.context, gpu: function.gpu })?;
        if let Some(function) = self.tables().functions.get_mut(&handle) {
            function.loaded = true;
        }
        Ok(())
    }

    /// `cuFuncIsLoaded`.
    pub fn function_is_loaded(&self, handle: u64) -> Outcome<bool> {
        self.function(handle).map(|function| function.loaded)
    }

    /// `cuFuncGetName`.
    pub fn function_name(&self, handle: u64) -> Outcome<String> {
        self.function(handle).map(|function| function.function.name.clone())
    }

    /// `cuFuncGetModule`.
    pub fn function_module(&self, handle: u64) -> Outcome<u64> {
        self.function(handle).map(|function| function.module)
    }

    /// Where a function's parameters lie in its block of parameters: offset and size.
    pub fn function_parameters(&self, handle: u64) -> Outcome<Vec<(u32, u32)>> {
        let function = self.function(handle)?;
        Ok(function.function.parameters.iter().map(|one| (one.offset, one.bytes)).collect())
    }

    /// `cuFuncGetAttribute`; it loads the function.
    pub fn function_attribute(&self, handle: u64, attribute: i32) -> Outcome<i32> {
        self.function_load(handle)?;
        let function = self.function(handle)?;
        let gpu = &self.machine.gpus[function.gpu as usize];
        let (code, kernel) = (gpu.capability.0 * 10 + gpu.capability.1, &function.function);
        let value = match attribute {
            0 => kernel.max_threads,
            1 => kernel.static_shared_bytes,
            2 => kernel.constant_bytes,
            3 => kernel.local_bytes,
            4 => kernel.registers_on(gpu.capability),
            5 => function.version.0 * 10 + function.version.1,
            6 => code,
            7 | 10..=14 | 16 => 0,
            MAX_DYNAMIC_SHARED => self.dynamic_limit(&function),
            9 => return Ok(-1),
            _ => return Err(CUresult::INVALID_VALUE),
        };
        i32::try_from(value).map_err(|_| CUresult::INVALID_VALUE)
    }

    /// `cuFuncSetAttribute`.
    pub fn set_function_attribute(&self, handle: u64, attribute: i32, value: i32) -> Outcome {
        let function = self.function(handle)?;
        match attribute {
            MAX_DYNAMIC_SHARED => {
                let limit = self.machine.gpus[function.gpu as usize].limits.shared_bytes_per_block_optin;
                let bytes = u32::try_from(value).map_err(|_| CUresult::INVALID_VALUE)?;
                if bytes.saturating_add(function.function.static_shared_bytes) > limit {
                    return Err(CUresult::INVALID_VALUE);
                }
                if let Some(function) = self.tables().functions.get_mut(&handle) {
                    function.dynamic_limit = Some(bytes);
                }
                Ok(())
            }
            9 if (-1..=100).contains(&value) => Ok(()),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    /// Dynamic shared memory that a launch of the function may ask for.
    pub(super) fn dynamic_limit(&self, function: &Function) -> u32 {
        let usual = self.machine.gpus[function.gpu as usize].limits.shared_bytes_per_block;
        function.dynamic_limit.unwrap_or_else(|| usual.saturating_sub(function.function.static_shared_bytes))
    }

    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
    pub fn occupancy(&self, handle: u64, block_threads: i32, dynamic_bytes: u64) -> Outcome<i32> {
        let function = self.function(handle)?;
        let threads = u32::try_from(block_threads).map_err(|_| CUresult::INVALID_VALUE)?;
        let dynamic = u32::try_from(dynamic_bytes).map_err(|_| CUresult::INVALID_VALUE)?;
        if threads == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if threads > function.function.max_threads {
            return Ok(0);
        }
        let blocks = self.blocks_per_sm(&function, threads, dynamic);
        i32::try_from(blocks).map_err(|_| CUresult::INVALID_VALUE)
    }

    pub(super) fn blocks_per_sm(&self, function: &Function, threads: u32, dynamic: u32) -> u32 {
        let model = &self.machine.gpus[function.gpu as usize];
        let limits = &model.limits;
        let shared = function.function.static_shared_bytes.saturating_add(dynamic);
        if shared > limits.shared_bytes_per_block_optin {
            return 0;
        }
        let occupancy = Occupancy(limits);
        let registers = function.function.registers_on(model.capability);
        occupancy.blocks(occupancy.need(threads, registers, shared))
    }

    /// `cuOccupancyMaxPotentialBlockSize`: the grid that fills the GPU, and threads a block.
    pub fn best_block(&self, handle: u64, dynamic: &dyn Fn(i32) -> u64, limit: i32) -> Outcome<(i32, i32)> {
        let function = self.function(handle)?;
        let most = i32::try_from(function.function.max_threads.min(1024)).map_err(|_| CUresult::INVALID_VALUE)?;
        let most = if limit > 0 { most.min(limit) } else { most };
        let mut best = (0, 0, 0);
        let mut threads = most;
        while threads > 0 {
            let blocks = self.occupancy(handle, threads, dynamic(threads))?;
            if blocks * threads > best.0 {
                best = (blocks * threads, blocks, threads);
            }
            threads = if threads % 32 == 0 { threads - 32 } else { threads / 32 * 32 };
        }
        let sms = i32::try_from(self.machine.gpus[function.gpu as usize].sms).unwrap_or(1);
        Ok((best.1 * sms, best.2))
    }
}
