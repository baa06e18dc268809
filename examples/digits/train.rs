//! The training on the ranks of a communicator, however they came to be.
#![expect(clippy::disallowed_methods, reason = "the rule on the clock is the library's")]

use std::time::{Duration, Instant};

use rsccl::{Communicator, ReduceOp};

use super::gradients::Gradients;
use super::images;
use super::model::{self, EPOCHS, Share, WEIGHTS};

/// The least share of held-out images that a trained model must read rightly, in per cent.
const REQUIRED_ACCURACY: f64 = 95.0;
const EPOCHS_BETWEEN_REPORTS: usize = 10;

/// Trains with each rank's share of the images, and adds up where `gradients` says. Rank 0 reports.
///
/// # Panics
/// If the model reads too few of the held-out images, or ranks end with different weights.
pub(crate) fn train(comm: &Communicator, gradients: &mut Gradients) -> rsccl::Result<()> {
    let (training, held_out) = images::load();
    let share = Share { rank: comm.rank() as usize, world: comm.size() as usize };
    let mut weights = if share.rank == 0 { first_weights() } else { vec![0.0; WEIGHTS] };
    comm.broadcast(&mut weights, 0)?;
    let mut velocity = vec![0.0; WEIGHTS];
    let (mut bytes, mut in_collectives) = (0, Duration::ZERO);
    for epoch in 1..=EPOCHS {
        let loss = model::train_epoch(&mut weights, &mut velocity, &training, share, |gradient| {
            let started = Instant::now();
            gradients.add_up(comm, gradient)?;
            in_collectives += started.elapsed();
            bytes += size_of_val(gradient);
            Ok::<_, rsccl::Error>(())
        })?;
        if share.rank == 0 && epoch % EPOCHS_BETWEEN_REPORTS == 0 {
            println!("epoch {epoch:3}  loss {loss:.4}");
        }
    }
    let right = check_together(comm, &weights, model::count_right(&weights, &held_out, share))?;
    let accuracy = 100.0 * right as f64 / held_out.len() as f64;
    if share.rank == 0 {
        println!("{right} of {} held-out images read rightly: {accuracy:.1} %", held_out.len());
        println!("{bytes} bytes reduced by each of {} ranks, {in_collectives:.1?} in collectives", share.world);
        println!("weights {:016x}", hash(&weights));
    }
    assert!(accuracy >= REQUIRED_ACCURACY, "accuracy {accuracy:.1} %, required {REQUIRED_ACCURACY} %");
    Ok(())
}

/// Adds up how many images were read rightly, and makes sure that all ranks have the same weights.
fn check_together(comm: &Communicator, weights: &[f32], right: usize) -> rsccl::Result<u64> {
    let mut total = [right as u64];
    comm.all_reduce_in_place(&mut total, ReduceOp::Sum)?;
    let mine = hash(weights);
    let (mut least, mut greatest) = ([mine], [mine]);
    comm.all_reduce_in_place(&mut least, ReduceOp::Min)?;
    comm.all_reduce_in_place(&mut greatest, ReduceOp::Max)?;
    assert_eq!(least, greatest, "ranks ended with different weights");
    Ok(total[0])
}

/// Small and all different; only rank 0 makes them, the others take them over.
fn first_weights() -> Vec<f32> {
    (0..WEIGHTS).map(|index| ((index * 7919 % 101) as f32 / 101.0 - 0.5) * 0.02).collect()
}

/// FNV-1a over the bits of the weights.
fn hash(weights: &[f32]) -> u64 {
    let bytes = weights.iter().flat_map(|weight| weight.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
