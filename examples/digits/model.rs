//! A softmax classifier and its training by momentum. What the ranks must add up goes through a closure, so this
//! file knows nothing of communication: with one rank the closure does nothing.

use super::images::{CLASSES, FEATURES, Image};

pub(crate) const WEIGHTS: usize = CLASSES * FEATURES;
/// Images of a step, over all ranks.
pub(crate) const BATCH: usize = 240;
pub(crate) const EPOCHS: usize = 60;
const LEARNING_RATE: f32 = 0.3;
const MOMENTUM: f32 = 0.9;

/// Which part of the work is mine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: usize,
    pub(crate) world: usize,
}

impl Share {
    /// Every `world`-th of `items`, beginning with the `rank`-th.
    pub(crate) fn of<T>(self, items: &[T]) -> impl Iterator<Item = &T> {
        items.iter().skip(self.rank).step_by(self.world)
    }
}

/// Trains `weights` for one pass over `images`. `sum` adds its argument up over all ranks, in place.
/// Returns the mean loss. Every rank must pass the same weights and images, and gets the same weights.
pub(crate) fn train_epoch<E>(
    weights: &mut [f32],
    velocity: &mut [f32],
    images: &[Image],
    share: Share,
    mut sum: impl FnMut(&mut [f32]) -> Result<(), E>,
) -> Result<f32, E> {
    let mut total_loss = 0.0;
    for batch in images.chunks(BATCH) {
        // The gradient, and behind it the loss: one message carries both.
        let mut gradient = [0.0; WEIGHTS + 1];
        for image in share.of(batch) {
            gradient[WEIGHTS] += add_gradient(weights, image, &mut gradient);
        }
        sum(&mut gradient)?;
        total_loss += gradient[WEIGHTS];
        let step = LEARNING_RATE / batch.len() as f32;
        for ((weight, velocity), gradient) in weights.iter_mut().zip(velocity.iter_mut()).zip(gradient) {
            *velocity = MOMENTUM * *velocity - step * gradient;
            *weight += *velocity;
        }
    }
    Ok(total_loss / images.len() as f32)
}

/// Adds the image's gradient to `gradient` and returns its loss.
fn add_gradient(weights: &[f32], image: &Image, gradient: &mut [f32]) -> f32 {
    let probabilities = predict(weights, image);
    for (class, probability) in probabilities.iter().enumerate() {
        let error = probability - if class == image.digit { 1.0 } else { 0.0 };
        let row = &mut gradient[class * FEATURES..][..FEATURES];
        row.iter_mut().zip(image.pixels).for_each(|(value, pixel)| *value += error * pixel);
    }
    -probabilities[image.digit].max(f32::MIN_POSITIVE).ln()
}

/// How probable each digit is.
fn predict(weights: &[f32], image: &Image) -> [f32; CLASSES] {
    let mut scores = [0.0; CLASSES];
    for (score, row) in scores.iter_mut().zip(weights.chunks_exact(FEATURES)) {
        *score = row.iter().zip(image.pixels).map(|(weight, pixel)| weight * pixel).sum();
    }
    let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = scores.map(|score| (score - greatest).exp());
    let total: f32 = powers.iter().sum();
    powers.map(|power| power / total)
}

/// How many of my share of `images` the model reads rightly.
pub(crate) fn count_right(weights: &[f32], images: &[Image], share: Share) -> usize {
    let is_right = |image: &&Image| {
        let probabilities = predict(weights, image);
        let best = (0..CLASSES).max_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
        best == Some(image.digit)
    };
    share.of(images).filter(is_right).count()
}
