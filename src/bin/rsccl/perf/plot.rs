//! Bus bandwidth over size, as an SVG.

use std::path::Path;

use plotters::prelude::*;
use rsccl::{Error, Result};

use super::job::Job;
use super::report::Row;
use super::verify::Op;

/// Draws `rows` to `path`, one line for each collective, type, operator and placement.
///
/// # Errors
/// [`rsccl::error::Kind::InvalidUsage`] where there is nothing to draw, [`rsccl::error::Kind::System`] where the file cannot be
/// written.
pub(crate) fn draw(path: &Path, job: &Job, rows: &[Row]) -> Result<()> {
    let lines = lines(rows);
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let greatest = points().map(|(_, busbw)| *busbw).fold(0.0, f64::max);
    let first = points().map(|(bytes, _)| *bytes).min();
    let last = points().map(|(bytes, _)| *bytes).max();
    let (Some(first), Some(last)) = (first, last) else {
        return Err(Error::invalid_usage("--plot: no size above 0 was timed, so there is nothing to draw"));
    };
    let mut text = String::new();
    draw_lines(&mut text, job, &lines, (first..last.max(first + 1), greatest.max(LEAST_BUSBW)))
        .map_err(|error| Error::internal(format!("drawing {}: {error}", path.display())))?;
    std::fs::write(path, text).map_err(|error| Error::system(format!("writing {}", path.display()), error))
}

/// One line of the drawing.
#[derive(Debug)]
struct Line {
    name: String,
    /// Size in bytes, bus bandwidth in GB/s.
    points: Vec<(u64, f64)>,
}

fn lines(rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        for (in_place, half) in row.halves().filter(|(_, half)| half.time_us > 0.0 && row.bytes > 0) {
            let place = if in_place { "in place" } else { "out of place" };
            let op = row.op.map_or(String::new(), |op: Op| format!(" {}", op.name()));
            let root = row.root.map_or(String::new(), |root| format!(" root {root}"));
            let name = format!("{} {}{op}{root}, {place}", row.program.name(), row.data_type);
            let point = (row.bytes, row.bandwidth(half).1);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name, points: vec![point] }),
            }
        }
    }
    lines
}

fn draw_lines(
    text: &mut String,
    job: &Job,
    lines: &[Line],
    (sizes, greatest): (std::ops::Range<u64>, f64),
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("rsccl perf: {} ranks, {}", job.ranks, job.transport.name());
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes.log_scale().base(2.0), 0.0..greatest * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("size (bytes)")
        .y_desc("bus bandwidth (GB/s)")
        .x_label_formatter(&|bytes| short(*bytes))
        .light_line_style(WHITE)
        .draw()?;
    for (place, line) in lines.iter().enumerate() {
        let color = Palette99::pick(place).to_rgba();
        let series =
            chart.draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)).point_size(3))?;
        let key = move |(x, y): (i32, i32)| PathElement::new(vec![(x, y), (x + KEY_WIDTH, y)], color.stroke_width(2));
        series.label(line.name.as_str()).legend(key);
    }
    let legend = chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw();
    legend?;
    drop(chart);
    area.present()?;
    Ok(())
}

/// A size with K, M or G.
fn short(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

/// Pixels.
const SIZE: (u32, u32) = (960, 600);
/// Pixels of a line in the legend.
const KEY_WIDTH: i32 = 24;
/// An axis needs some height even where nothing moved.
const LEAST_BUSBW: f64 = 1e-3;
