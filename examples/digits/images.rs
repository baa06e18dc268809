//! The images: 1,797 hand-written digits of 8 × 8 pixels, see `examples/data/README.md`.

const TEXT: &str = include_str!("../data/digits.csv");
/// Grey levels of an image, and the constant 1 that carries the bias.
pub(crate) const FEATURES: usize = 8 * 8 + 1;
/// One digit each.
pub(crate) const CLASSES: usize = 10;
/// The greatest grey level in the file.
const WHITE: f32 = 16.0;
/// One image in so many is held out: never trained on.
const HELD_OUT: usize = 5;

/// One image and the digit it shows.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) pixels: [f32; FEATURES],
    pub(crate) digit: usize,
}

/// Every image of the file, in its order: those to train on, and those held out.
///
/// # Panics
/// If the file is not what its README says: it is part of this program.
pub(crate) fn load() -> (Vec<Image>, Vec<Image>) {
    let images = TEXT.lines().map(parse).enumerate();
    let (held_out, training): (Vec<_>, Vec<_>) = images.partition(|(index, _)| index % HELD_OUT == HELD_OUT - 1);
    let strip = |part: Vec<(usize, Image)>| part.into_iter().map(|(_, image)| image).collect();
    (strip(training), strip(held_out))
}

fn parse(line: &str) -> Image {
    let mut pixels = [1.0; FEATURES];
    let mut fields = line.split(',');
    for (pixel, field) in pixels[..FEATURES - 1].iter_mut().zip(&mut fields) {
        *pixel = field.parse::<f32>().expect("a grey level") / WHITE;
    }
    let digit = fields.next().expect("the digit stands last").parse().expect("a digit");
    assert!(digit < CLASSES && fields.next().is_none(), "64 grey levels and a digit: {line}");
    Image { pixels, digit }
}
