//! Lines, dots and words on white, as SVG or as the pixels of a PNG.

use std::fmt::Write;

use super::{font, png};

/// Red, green, blue.
pub(super) type Color = (u8, u8, u8);

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pen {
    pub(super) color: Color,
    /// Pixels that are drawn and left out, in turn; empty for a whole line.
    pub(super) dashes: &'static [u8],
}

impl Pen {
    pub(super) const fn solid(color: Color) -> Pen {
        Pen { color, dashes: &[] }
    }

    /// Whether the line is drawn `at` pixels from its beginning.
    fn draws(self, at: f64) -> bool {
        let whole: f64 = self.dashes.iter().copied().map(f64::from).sum();
        let mut rest = if whole > 0.0 { at % whole } else { return true };
        for (place, length) in self.dashes.iter().enumerate() {
            if rest < f64::from(*length) {
                return place % 2 == 0;
            }
            rest -= f64::from(*length);
        }
        true
    }
}

type Point = (f64, f64);

/// Which end of a text its place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// What is drawn, in order.
#[derive(Debug)]
pub(super) struct Scene {
    size: Point,
    shapes: Vec<Shape>,
}

#[derive(Debug)]
enum Shape {
    Line { from: Point, to: Point, pen: Pen },
    Dot { at: Point, color: Color },
    Text { at: Point, anchor: Anchor, upwards: bool, text: String },
}

impl Scene {
    pub(super) fn new(size: Point) -> Scene {
        Scene { size, shapes: Vec::new() }
    }

    pub(super) fn line(&mut self, from: Point, to: Point, pen: Pen) {
        self.shapes.push(Shape::Line { from, to, pen });
    }

    pub(super) fn dot(&mut self, at: Point, color: Color) {
        self.shapes.push(Shape::Dot { at, color });
    }

    /// A text whose base line begins, has its middle or ends at `at`.
    pub(super) fn text(&mut self, at: Point, anchor: Anchor, text: &str) {
        self.shapes.push(Shape::Text { at, anchor, upwards: false, text: text.to_owned() });
    }

    /// A text that runs upwards, with its middle at `at`.
    pub(super) fn vertical_text(&mut self, at: Point, text: &str) {
        self.shapes.push(Shape::Text { at, anchor: Anchor::Middle, upwards: true, text: text.to_owned() });
    }

    pub(super) fn to_svg(&self) -> String {
        let (width, height) = self.size;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for shape in &self.shapes {
            let written = write_shape(&mut out, shape);
            debug_assert!(written.is_ok(), "a String takes everything");
        }
        out.push_str("</svg>\n");
        out
    }

    pub(super) fn to_png(&self) -> Vec<u8> {
        let mut pixels = Pixels::new(self.size);
        for shape in &self.shapes {
            match shape {
                Shape::Line { from, to, pen } => pixels.line(*from, *to, *pen),
                Shape::Dot { at: (x, y), color } => pixels.fill((x - 2.0, y - 2.0), (5, 5), *color),
                Shape::Text { at, anchor, upwards, text } => pixels.text(*at, *anchor, *upwards, text),
            }
        }
        png::encode(pixels.width, &pixels.bytes)
    }
}

fn write_shape(out: &mut String, shape: &Shape) -> std::fmt::Result {
    let paint = |(r, g, b): &Color| format!("#{r:02x}{g:02x}{b:02x}");
    match shape {
        Shape::Line { from: (x1, y1), to: (x2, y2), pen } => {
            let color = paint(&pen.color);
            write!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\"")?;
            if !pen.dashes.is_empty() {
                let dashes: Vec<String> = pen.dashes.iter().map(u8::to_string).collect();
                write!(out, " stroke-dasharray=\"{}\"", dashes.join(" "))?;
            }
            writeln!(out, "/>")
        }
        Shape::Dot { at: (x, y), color } => {
            writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>", paint(color))
        }
        Shape::Text { at: (x, y), anchor, upwards, text } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let turn = if *upwards { format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"") } else { String::new() };
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{turn}>{text}</text>")
        }
    }
}

/// An image in memory: three bytes for each pixel, row by row.
struct Pixels {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

impl Pixels {
    fn new((width, height): Point) -> Pixels {
        let (width, height) = (whole(width), whole(height));
        Pixels { width, height, bytes: vec![255; width * height * 3] }
    }

    /// Paints a rectangle, as far as it lies in the image.
    fn fill(&mut self, (x, y): Point, (columns, rows): (usize, usize), (r, g, b): Color) {
        let (left, top) = (whole(x), whole(y));
        for row in top..(top + rows).min(self.height) {
            for column in left..(left + columns).min(self.width) {
                self.bytes[(row * self.width + column) * 3..][..3].copy_from_slice(&[r, g, b]);
            }
        }
    }

    fn line(&mut self, (x1, y1): Point, (x2, y2): Point, pen: Pen) {
        let steps = (x2 - x1).abs().max((y2 - y1).abs()).ceil().max(1.0);
        let length = (x2 - x1).hypot(y2 - y1);
        let mut step = 0.0;
        while step <= steps {
            let part = step / steps;
            if pen.draws(length * part) {
                self.fill((x1 + (x2 - x1) * part, y1 + (y2 - y1) * part), (1, 1), pen.color);
            }
            step += 1.0;
        }
    }

    fn text(&mut self, (x, y): Point, anchor: Anchor, upwards: bool, text: &str) {
        let length = text.chars().count() as f64 * f64::from(font::ADVANCE);
        let before = match anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => length / 2.0,
            Anchor::End => length,
        };
        for (place, letter) in text.chars().enumerate() {
            let start = place as f64 * f64::from(font::ADVANCE) - before;
            font::dots(letter, |column, row| {
                let (along, up) = (start + f64::from(column), f64::from(font::HEIGHT - row));
                let at = if upwards { (x - up, y - along) } else { (x + along, y - up) };
                self.fill(at, (1, 1), (0, 0, 0));
            });
        }
    }
}

/// A place as a number of pixels.
fn whole(value: f64) -> usize {
    // Places are inside an image of some thousand pixels.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded on both sides")]
    let number = value.clamp(0.0, 65_535.0) as u32;
    number as usize
}
