//! Trains a classifier of hand-written digits on several ranks, each with its share of the images; one all-reduce a
//! step adds the gradients up. The main job of the README.
//!
//!     cargo run --release --example digits
//!
//! Rank 0 prints loss and accuracy, the bytes reduced and the time in collectives. The example fails unless at least
//! 95 % of the held-out images are read rightly and every rank ends with the same weights, bit for bit.

#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]
#![expect(clippy::disallowed_methods, reason = "the rule on clocks is the library's; this program times its calls")]

mod images;
mod model;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use model::{EPOCHS, Share, WEIGHTS};

/// The least share of held-out images that a trained model must read rightly, in per cent.
const REQUIRED_ACCURACY: f64 = 95.0;
const EPOCHS_BETWEEN_REPORTS: usize = 10;

/// What training needs of the other ranks.
trait Ranks {
    type Error: std::fmt::Debug;
    fn share(&self) -> Share;
    fn sum(&mut self, values: &mut [f32]) -> Result<(), Self::Error>;
    fn sum_counts(&mut self, values: &mut [u64]) -> Result<(), Self::Error>;
    fn take_from_first(&mut self, values: &mut [f32]) -> Result<(), Self::Error>;
}

/// A world of one.
struct Alone;

impl Ranks for Alone {
    type Error = Infallible;

    fn share(&self) -> Share {
        Share { rank: 0, world: 1 }
    }
    fn sum(&mut self, _: &mut [f32]) -> Result<(), Infallible> {
        Ok(())
    }
    fn sum_counts(&mut self, _: &mut [u64]) -> Result<(), Infallible> {
        Ok(())
    }
    fn take_from_first(&mut self, _: &mut [f32]) -> Result<(), Infallible> {
        Ok(())
    }
}

fn main() {
    train(&mut Alone).expect("a world of one cannot fail");
}

fn train<R: Ranks>(ranks: &mut R) -> Result<(), R::Error> {
    let (training, held_out) = images::load();
    let share = ranks.share();
    let mut weights = if share.rank == 0 { first_weights() } else { vec![0.0; WEIGHTS] };
    ranks.take_from_first(&mut weights)?;
    let mut velocity = vec![0.0; WEIGHTS];
    let (mut bytes, mut in_collectives) = (0, Duration::ZERO);
    for epoch in 1..=EPOCHS {
        let loss = model::train_epoch(&mut weights, &mut velocity, &training, share, |gradient| {
            let started = Instant::now();
            ranks.sum(gradient)?;
            in_collectives += started.elapsed();
            bytes += size_of_val(gradient);
            Ok(())
        })?;
        if share.rank == 0 && epoch % EPOCHS_BETWEEN_REPORTS == 0 {
            println!("epoch {epoch:3}  loss {loss:.4}");
        }
    }
    let mine = hash(&weights);
    let mut answer = [model::count_right(&weights, &held_out, share) as u64, mine >> 32, mine & 0xffff_ffff];
    ranks.sum_counts(&mut answer)?;
    let [right, high, low] = answer;
    let world = share.world as u64;
    assert_eq!((high, low), ((mine >> 32) * world, (mine & 0xffff_ffff) * world), "ranks ended with different weights");
    let accuracy = 100.0 * right as f64 / held_out.len() as f64;
    if share.rank == 0 {
        println!("{right} of {} held-out images read rightly: {accuracy:.1} %", held_out.len());
        println!("{bytes} bytes reduced by each of {world} ranks, {in_collectives:.1?} in collectives");
        println!("weights {mine:016x}");
    }
    assert!(accuracy >= REQUIRED_ACCURACY, "accuracy {accuracy:.1} %, required {REQUIRED_ACCURACY} %");
    Ok(())
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
