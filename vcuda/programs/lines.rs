//! LL and LL128: data that carries its own flag, from one GPU to another. LL is sound everywhere; LL128 where a warp's line
//! arrives whole, which is over NVLink and inside a GPU.

use crate::driver::{Driver, Gpu, Shape};
use crate::two::{reached, two_gpus};

const LINES: &[u8] = include_bytes!("../samples/compiled/lines.ptx.z");
const LL_WORDS: u32 = 1_000;
/// Of 15 words of data and one of flag.
const LL128_LINES: u64 = 64;

pub(crate) fn lines(driver: &Driver) -> Result<(), String> {
    let (receiver, sender, reach) = two_gpus(driver)?;
    ll(&receiver, &sender, reach)?;
    println!("ll: right");
    if reach {
        ll128(&receiver, &sender)?;
        println!("ll128: right");
    } else {
        println!("ll128: no path that keeps lines whole");
    }
    Ok(())
}

fn ll(receiver: &Gpu<'_>, sender: &Gpu<'_>, reach: bool) -> Result<(), String> {
    let data: Vec<u32> = (0..LL_WORDS).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let (sending, receiving) = (sender.module(LINES)?, receiver.module(LINES)?);
    let (send, receive) = (sending.function("ll_send")?, receiving.function("ll_receive")?);
    send.finish_loading()?;
    receive.finish_loading()?;
    let line = reached(receiver, reach, 8_000)?;
    let (source, target) = (sender.holding(&data)?, receiver.zeroed(4_000)?);
    let (inlet, outlet) = (receiver.stream()?, sender.stream()?);
    receive.launch(Some(&inlet), Shape::new(2, 64), &[line.address, target.address, u64::from(LL_WORDS), 7])?;
    send.launch(Some(&outlet), Shape::new(2, 64), &[line.address, source.address, u64::from(LL_WORDS), 7])?;
    outlet.synchronize()?;
    inlet.synchronize()?;
    if target.read::<u32>()? == data { Ok(()) } else { Err("ll: the data is wrong".to_owned()) }
}

fn ll128(receiver: &Gpu<'_>, sender: &Gpu<'_>) -> Result<(), String> {
    let data: Vec<u64> = (0..LL128_LINES * 15).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let (sending, receiving) = (sender.module(LINES)?, receiver.module(LINES)?);
    let (send, receive) = (sending.function("ll128_send")?, receiving.function("ll128_receive")?);
    send.finish_loading()?;
    receive.finish_loading()?;
    let lines = receiver.zeroed(usize::try_from(LL128_LINES * 128).unwrap_or(0))?;
    let (source, target) = (sender.holding(&data)?, receiver.zeroed(size_of_val(&data[..]))?);
    let (inlet, outlet) = (receiver.stream()?, sender.stream()?);
    let flag = 0x1_0000_0001;
    receive.launch(Some(&inlet), Shape::new(2, 32), &[lines.address, target.address, LL128_LINES, flag])?;
    send.launch(Some(&outlet), Shape::new(2, 32), &[lines.address, source.address, LL128_LINES, flag])?;
    outlet.synchronize()?;
    inlet.synchronize()?;
    if target.read::<u64>()? == data { Ok(()) } else { Err("ll128: the data is wrong".to_owned()) }
}
