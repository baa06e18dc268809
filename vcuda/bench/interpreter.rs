//! How many thread instructions a second the interpreter runs on one core: `cargo bench -p vcuda --bench interpreter`.
//!
//! The kernel is a fold of two inputs as compilers emit it (`tests/ptx/kernels.cu`), and the reduction of a block by
//! shuffles and shared memory. Goals: 50 million with bounds checks only, 10 million with weak memory and every check.

#[path = "../tests/flat/mod.rs"]
mod flat;

use flat::{Flat, Parameters, config};
use std::sync::Arc;
use std::time::Instant;
use vcuda::ptx::Module;
use vcuda::simt::{GpuStores, LaunchConfig, Step};

fn main() {
    let module = Module::parse(include_str!("../tests/ptx/kernels.ptx")).expect("NVRTC's text loads");
    for (what, watched) in [("bounds checks only", false), ("weak memory and every check", true)] {
        for kernel in ["fold_f32", "reduce_shfl"] {
            let memory = Flat::new(watched);
            let mut launch = prepared(kernel, &memory);
            (launch.weak, launch.checks) = (watched, watched);
            let rate = measure(&module, kernel, &launch, &memory);
            report(what, kernel, rate);
        }
    }
}

#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn report(what: &str, kernel: &str, rate: f64) {
    println!("{kernel:12} {what:28} {rate:8.1} million thread instructions a second");
}

fn prepared(kernel: &str, memory: &Flat) -> LaunchConfig {
    let count = 1 << 16;
    let bytes = 4 * count;
    let address: Vec<u64> = (0..3).map(|_| memory.allocate(Some(0), bytes)).collect();
    address.iter().for_each(|address| memory.write(*address, &vec![0; bytes]));
    if kernel == "reduce_shfl" {
        let elements = u32::try_from(count).expect("fits");
        return config(1, 512, Parameters::default().long(address[0]).long(address[1]).word(elements));
    }
    let sources = [address[0], address[1], 0, 0, 0, 0, 0, 0];
    let parameters = sources.iter().fold(Parameters::default(), |parameters, address| parameters.long(*address));
    config(4, 256, parameters.long(address[2]).long(count as u64).word(2).word(0))
}

/// Millions of thread instructions a second: warp instructions times 32, as all lanes are on in these kernels.
fn measure(module: &Module, kernel: &str, config: &LaunchConfig, memory: &Arc<Flat>) -> f64 {
    const BUDGET: u32 = 4096;
    let stores = Arc::new(GpuStores::new());
    let begin = Instant::now();
    let mut instructions = 0.0;
    while begin.elapsed().as_secs_f64() < 1.0 {
        let mut blocks = flat::blocks(module, kernel, config.clone(), memory, &stores);
        while let Some(block) = blocks.last_mut() {
            match block.step(BUDGET) {
                Step::Done => {
                    instructions += f64::from(block.instructions());
                    blocks.pop();
                }
                Step::Fault(fault) => panic!("{fault}"),
                Step::Ran | Step::Sleeping { .. } => {}
            }
        }
    }
    instructions * 32.0 / begin.elapsed().as_secs_f64() / 1e6
}
