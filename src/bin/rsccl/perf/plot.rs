//! Time and bus bandwidth over size, both axes logarithmic: as SVG, or as PNG where the file's name ends so.

mod font;
mod png;
mod scene;

use std::path::Path;

use rsccl::{Error, Result};

use super::job::Job;
use super::report::Row;
use super::verify::Op;
use scene::{Anchor, Pen, Scene};

/// What a plot's file can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Svg,
    Png,
}

impl Format {
    /// The format that a file's name asks for.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::InvalidArgument`] for any other name.
    pub(crate) fn of(path: &Path) -> Result<Format> {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        match ending.to_str() {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => Err(Error::invalid_argument(format!("--plot {}: the name must end in .svg or .png", path.display()))),
        }
    }
}

/// The drawing of `rows`, as the bytes of its file: one line for each collective, type, operator, root and placement.
///
/// # Errors
/// [`rsccl::error::Kind::InvalidUsage`] where there is nothing to draw.
pub(crate) fn draw(format: Format, job: &Job, rows: &[Row]) -> Result<Vec<u8>> {
    let lines = lines(rows);
    if lines.is_empty() {
        return Err(Error::invalid_usage("--plot: no size above 0 was timed, so there is nothing to draw"));
    }
    // What the legend takes is added: charts stay as high as they are.
    let height = CHART_HEIGHT;
    let whole = HEAD + 2.0 * height + LEGEND * (lines.len() as f64 + 1.0);
    if whole > MOST_HEIGHT {
        return Err(Error::invalid_usage(format!(
            "--plot: {} lines do not fit into one picture: choose fewer collectives, types or operators",
            lines.len()
        )));
    }
    let mut scene = Scene::new((WIDTH, whole));
    let title = format!("rsccl perf: {} ranks, {}", job.ranks, job.transport.name());
    scene.text((WIDTH / 2.0, 24.0), Anchor::Middle, &title);
    chart(&mut scene, (HEAD, height), "time (us)", &lines, |point| point.time_us);
    chart(&mut scene, (HEAD + height, height), "bus bandwidth (GB/s)", &lines, |point| point.busbw);
    for (place, line) in lines.iter().enumerate() {
        let y = HEAD + 2.0 * height + LEGEND * (place as f64 + 0.5);
        scene.line((LEFT, y), (LEFT + 40.0, y), pen(place));
        scene.text((LEFT + 48.0, y + 4.0), Anchor::Start, &line.name);
    }
    Ok(match format {
        Format::Svg => scene.to_svg().into_bytes(),
        Format::Png => scene.to_png(),
    })
}

/// One line of the drawing.
#[derive(Debug)]
struct Line {
    name: String,
    points: Vec<Point>,
}

#[derive(Debug, Clone, Copy)]
struct Point {
    bytes: f64,
    time_us: f64,
    busbw: f64,
}

fn lines(rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows.iter().filter(|row| row.bytes > 0) {
        for (in_place, half) in row.halves() {
            let (Some(time_us), Some((_, busbw))) = (half.time_us, row.bandwidth(half)) else { continue };
            let place = if in_place { "in place" } else { "out of place" };
            let op = row.op.map_or(String::new(), |op: Op| format!(" {}", op.name()));
            let root = row.root.map_or(String::new(), |root| format!(" root {root}"));
            let name = format!("{} {}{op}{root}, {place}", row.program.name(), row.data_type);
            let point = Point { bytes: row.bytes as f64, time_us, busbw };
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name, points: vec![point] }),
            }
        }
    }
    lines
}

/// One chart, from `top` down, as high as `height`.
fn chart(scene: &mut Scene, (top, height): (f64, f64), name: &str, lines: &[Line], value: impl Fn(&Point) -> f64) {
    let points = || lines.iter().flat_map(|line| &line.points).filter(|point| value(point) > 0.0);
    let (from, to) = (top + 12.0, top + height - 44.0);
    let x = Axis::over(points().map(|point| point.bytes), 2.0, (LEFT, WIDTH - 24.0));
    let y = Axis::over(points().map(&value), 10.0, (to, from));
    for (tick, at) in x.ticks(MOST_X_TICKS) {
        scene.line((at, from), (at, to), GRID);
        scene.text((at, to + 16.0), Anchor::Middle, &bytes(tick));
    }
    for (tick, at) in y.ticks(MOST_Y_TICKS) {
        scene.line((LEFT, at), (WIDTH - 24.0, at), GRID);
        scene.text((LEFT - 8.0, at + 4.0), Anchor::End, &number(tick));
    }
    scene.line((LEFT, from), (LEFT, to), BLACK);
    scene.line((LEFT, to), (WIDTH - 24.0, to), BLACK);
    scene.text(((LEFT + WIDTH - 24.0) / 2.0, to + 34.0), Anchor::Middle, "size (bytes)");
    scene.vertical_text((16.0, f64::midpoint(from, to)), name);
    for (place, line) in lines.iter().enumerate() {
        let drawn: Vec<(f64, f64)> = line
            .points
            .iter()
            .filter(|point| value(point) > 0.0)
            .map(|point| (x.place(point.bytes), y.place(value(point))))
            .collect();
        for pair in drawn.windows(2) {
            scene.line(pair[0], pair[1], pen(place));
        }
        drawn.iter().for_each(|point| scene.dot(*point, pen(place).color));
    }
}

/// A logarithmic axis: whole powers of `base` from one end to the other.
struct Axis {
    base: f64,
    first: f64,
    last: f64,
    /// Where the ends lie.
    places: (f64, f64),
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, base: f64, places: (f64, f64)) -> Axis {
        let (least, greatest) =
            values.fold((f64::INFINITY, 0f64), |(least, greatest), value| (least.min(value), greatest.max(value)));
        if greatest == 0.0 {
            return Axis { base, first: 0.0, last: 1.0, places };
        }
        let first = least.log(base).floor();
        // Powers that are whole numbers but for rounding stay what they are.
        let last = (greatest.log(base) - 1e-9).ceil().max(first + 1.0);
        Axis { base, first, last, places }
    }

    fn place(&self, value: f64) -> f64 {
        let (start, end) = self.places;
        start + (end - start) * (value.log(self.base) - self.first) / (self.last - self.first)
    }

    /// Powers and their places, at most about `most`.
    fn ticks(&self, most: f64) -> Vec<(f64, f64)> {
        let step = ((self.last - self.first) / most).ceil().max(1.0);
        let powers = std::iter::successors(Some(self.first), |power| Some(power + step));
        let values = powers.take_while(|power| *power <= self.last).map(|power| self.base.powf(power));
        values.map(|value| (value, self.place(value))).collect()
    }
}

/// A size with K, M or G.
fn bytes(size: f64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| size >= f64::from(1 << shift));
    unit.map_or_else(|| number(size), |(shift, name)| format!("{}{name}", size / f64::from(1 << shift)))
}

/// A power of ten, as short as it can be read.
fn number(value: f64) -> String {
    if (1e-3..1e5).contains(&value) { format!("{value}") } else { format!("{value:e}") }
}

/// The pen of a line, which no other line has: the colours that are told apart best, then others, and whole or dashed
/// lines in turn.
fn pen(place: usize) -> Pen {
    let round = place / COLORS.len();
    let color = if round < DASHES.len() { COLORS[place % COLORS.len()] } else { further_color(place) };
    Pen { color, dashes: DASHES[round % DASHES.len()] }
}

/// Hues that are far from those before: each is the golden angle on from the last, in three lightnesses.
fn further_color(place: usize) -> scene::Color {
    let hue = (place as f64 * GOLDEN_DEGREES) % 360.0;
    let lightness = [0.35, 0.5, 0.65][place % 3];
    let reach = 0.65 * f64::min(lightness, 1.0 - lightness);
    let part = |shift: f64| {
        let turn = (shift + hue / 30.0) % 12.0;
        let value = lightness - reach * (turn - 3.0).min(9.0 - turn).clamp(-1.0, 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
        let byte = (value.clamp(0.0, 1.0) * 255.0).round() as u8;
        byte
    };
    (part(0.0), part(8.0), part(4.0))
}

/// Pixels.
const WIDTH: f64 = 960.0;
/// The title.
const HEAD: f64 = 48.0;
const CHART_HEIGHT: f64 = 400.0;
/// The most that readers of pictures take.
const MOST_HEIGHT: f64 = 32_000.0;
/// Where the axes of values stand.
const LEFT: f64 = 88.0;
/// The height of a line of the legend.
const LEGEND: f64 = 18.0;
const MOST_X_TICKS: f64 = 16.0;
const MOST_Y_TICKS: f64 = 8.0;
const BLACK: Pen = Pen::solid((0, 0, 0));
const GRID: Pen = Pen::solid((224, 224, 224));
const GOLDEN_DEGREES: f64 = 137.508;
/// Pixels that are drawn and left out, in turn.
const DASHES: [&[u8]; 4] = [&[], &[8, 4], &[2, 3], &[10, 3, 2, 3]];
const COLORS: [scene::Color; 8] = [
    (31, 119, 180),
    (255, 127, 14),
    (44, 160, 44),
    (214, 39, 40),
    (148, 103, 189),
    (140, 86, 75),
    (227, 119, 194),
    (127, 127, 127),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_lines_are_drawn_alike() {
        let mut pens: Vec<Pen> = (0..1000).map(pen).collect();
        pens.sort_unstable();
        pens.dedup();
        assert_eq!(pens.len(), 1000);
        // Nothing is drawn in white.
        assert!(pens.iter().all(|pen| u32::from(pen.color.0) + u32::from(pen.color.1) + u32::from(pen.color.2) < 690));
    }

    #[test]
    fn axes_hold_all_values_between_whole_powers() {
        let axis = Axis::over([64.0, 4096.0].into_iter(), 2.0, (0.0, 100.0));
        assert_eq!((axis.place(64.0), axis.place(512.0), axis.place(4096.0)), (0.0, 50.0, 100.0));
        assert_eq!(axis.ticks(3.0).iter().map(|tick| tick.0).collect::<Vec<_>>(), [64.0, 256.0, 1024.0, 4096.0]);
        let flat = Axis::over([10.0].into_iter(), 10.0, (0.0, 1.0));
        assert_eq!((flat.first, flat.last), (1.0, 2.0));
        assert_eq!(
            (bytes(512.0), bytes(2048.0), number(0.01), number(1e6)),
            ("512".into(), "2K".into(), "0.01".into(), "1e6".into())
        );
    }
}
