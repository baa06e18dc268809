//! A program on cudarc's own safe API, as its users write one: two streams, an event between them, and the null stream.

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::driver::{Driver, image};

const VECTOR_ADD: &[u8] = include_bytes!("../samples/compiled/vector_add.ptx.z");
const COUNT: u16 = 5_000;

pub(crate) fn safe_api(driver: &Driver) -> Result<(), String> {
    let mut text = image(VECTOR_ADD)?;
    // cudarc puts its own zero byte behind it.
    text.pop();
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    for device in 0..driver.count()? {
        let device = usize::try_from(device).map_err(|error| error.to_string())?;
        let sums = add(device, &text).map_err(|error| format!("safe_api on GPU {device}: {error}"))?;
        // Both halves are added up: i + 2 i, and then the same again.
        if let Some(i) = (0..COUNT).find(|i| sums[usize::from(*i)].to_bits() != (f32::from(*i) * 6.0).to_bits()) {
            return Err(format!("safe_api on GPU {device}: element {i} is {}", sums[usize::from(i)]));
        }
    }
    println!("safe_api: right");
    Ok(())
}

fn add(device: usize, text: &str) -> Result<Vec<f32>, DriverError> {
    let context = CudaContext::new(device)?;
    let module = context.load_module(Ptx::from_src(text))?;
    let vector_add = module.load_function("vector_add")?;
    let (first, second) = (context.new_stream()?, context.default_stream());
    let values: Vec<f32> = (0..COUNT).map(f32::from).collect();
    let twice: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
    let (a, b) = (first.clone_htod(&values)?, first.clone_htod(&twice)?);
    let mut sum = first.alloc_zeros::<f32>(usize::from(COUNT))?;
    let (count, shape) = (u64::from(COUNT), LaunchConfig::for_num_elems(u32::from(COUNT)));
    let mut launch = first.launch_builder(&vector_add);
    launch.arg(&a).arg(&b).arg(&mut sum).arg(&count);
    // SAFETY: the kernel takes two sources, a target and a count of 64 bits, and all three have so many elements.
    unsafe { launch.launch(shape) }?;
    second.wait(&first.record_event(None)?)?;
    let mut again = second.alloc_zeros::<f32>(usize::from(COUNT))?;
    let mut launch = second.launch_builder(&vector_add);
    launch.arg(&sum).arg(&sum).arg(&mut again).arg(&count);
    // SAFETY: as above.
    unsafe { launch.launch(shape) }?;
    let found = second.clone_dtoh(&again)?;
    second.synchronize()?;
    Ok(found)
}
