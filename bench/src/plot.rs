//! Plots as SVG: lines, distributions of samples, and horizontal bars. The colours of paper, ink and grid are known to
//! `page.html`, which replaces them on dark screens. Logarithmic axes show powers of two up to 1024, else of ten.

use std::fmt::Display;

use anyhow::{Result, anyhow};
use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, Palette, RGBColor, TextStyle};

use crate::statistics::Samples;

const PAPER: RGBColor = RGBColor(0xfd, 0xfd, 0xfc);
const INK: RGBColor = RGBColor(0x22, 0x24, 0x28);
const GRID: RGBColor = RGBColor(0xdc, 0xde, 0xe2);
/// Distinct for all eyes, readable on light and dark paper.
struct Colours;

impl Palette for Colours {
    const COLORS: &'static [(u8, u8, u8)] = &[
        (0x1f, 0x8a, 0xc9),
        (0xe0, 0x6c, 0x1a),
        (0x1c, 0x9e, 0x77),
        (0xc9, 0x5c, 0xa8),
        (0xb8, 0x95, 0x0b),
        (0x7a, 0x74, 0xd6),
        (0xd6, 0x45, 0x4b),
        (0x7d, 0x87, 0x8f),
        (0x5e, 0xa0, 0x2c),
        (0x9c, 0x6a, 0x3f),
    ];
}

/// Sizes in pixels.
const WIDTH: u32 = 900;
const LINES_HEIGHT: u32 = 430;
const BAR: u32 = 17;
const MARGINS: u32 = 110;
const LEGEND_STEP: u32 = 21;
const FONT: f64 = 13.0;
const LABELS: usize = 8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

#[derive(Debug, Clone)]
enum Data {
    Lines(Vec<Line>),
    Bars(Vec<Bar>),
}

#[derive(Debug, Clone)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    /// Whether points are drawn; a distribution has too many.
    has_points: bool,
}

#[derive(Debug, Clone)]
struct Bar {
    group: String,
    name: String,
    /// Value, minimum, maximum.
    values: [f64; 3],
}

#[derive(Debug, Clone)]
pub(crate) struct Plot {
    title: String,
    x_label: String,
    y_label: String,
    is_log_x: bool,
    is_log_y: bool,
    data: Data,
}

impl Plot {
    pub(crate) fn lines(title: impl Into<String>, x_label: &str, y_label: &str) -> Self {
        let (x_label, y_label) = (x_label.to_owned(), y_label.to_owned());
        let (is_log_x, is_log_y, data) = (false, false, Data::Lines(Vec::new()));
        Self { title: title.into(), x_label, y_label, is_log_x, is_log_y, data }
    }

    /// The share of samples up to each value.
    pub(crate) fn cdf(title: impl Into<String>, x_label: &str) -> Self {
        Self::lines(title, x_label, "share of samples, %")
    }

    /// Horizontal bars, so that long names of groups can be read.
    pub(crate) fn bars(title: impl Into<String>, label: &str) -> Self {
        Self { data: Data::Bars(Vec::new()), ..Self::lines(title, label, "") }
    }

    /// Values that are not above zero are left out then.
    pub(crate) fn log_x(self) -> Self {
        Self { is_log_x: true, ..self }
    }

    pub(crate) fn log_y(self) -> Self {
        Self { is_log_y: true, ..self }
    }

    pub(crate) fn line(&mut self, name: impl Into<String>, points: Vec<(f64, f64)>) {
        self.push(Line { name: name.into(), points, has_points: true });
    }

    /// Adds the distribution of samples.
    pub(crate) fn samples(&mut self, name: impl Into<String>, samples: &Samples) {
        let share = |index: usize| index as f64 / samples.len() as f64 * 100.0;
        let sorted = samples.sorted().into_iter().enumerate();
        let steps = sorted.flat_map(|(at, value)| [(value, share(at)), (value, share(at + 1))]);
        self.push(Line { name: name.into(), points: steps.collect(), has_points: false });
    }

    fn push(&mut self, line: Line) {
        if let Data::Lines(lines) = &mut self.data {
            lines.push(line);
        }
    }

    /// Adds a bar to a group: value, minimum and maximum. Equal names of different groups share a colour.
    pub(crate) fn bar(
        &mut self,
        group: impl Into<String>,
        name: impl Into<String>,
        values: [f64; 3],
    ) {
        if let Data::Bars(bars) = &mut self.data {
            bars.push(Bar { group: group.into(), name: name.into(), values });
        }
    }

    /// A bar of the median.
    pub(crate) fn median_bar(
        &mut self,
        group: impl Into<String>,
        name: impl Into<String>,
        samples: &Samples,
    ) {
        let summary = samples.summary();
        self.bar(group, name, [summary.median, summary.minimum, summary.maximum]);
    }

    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        match &self.data {
            Data::Lines(lines) => self.draw_lines(lines, &mut svg),
            Data::Bars(bars) => self.draw_bars(bars, &mut svg),
        }
        .map_err(|error| anyhow!("drawing {}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw_lines(
        &self,
        lines: &[Line],
        svg: &mut String,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        let root = SVGBackend::with_string(svg, (WIDTH, LINES_HEIGHT)).into_drawing_area();
        let area = with_legend(&root, &names)?;
        let points = || lines.iter().flat_map(|line| &line.points);
        let x = Axis::of(points().map(|point| point.0), self.is_log_x);
        let y = Axis::of(points().map(|point| point.1), self.is_log_y);
        let mut builder = ChartBuilder::on(&area);
        builder.caption(&self.title, ("sans-serif", 16.0).into_font().color(&INK)).margin(10);
        builder.x_label_area_size(45).y_label_area_size(60);
        let mut chart = builder.build_cartesian_2d(x.range(), y.range())?;
        self.mesh(&mut chart, [&x, &y], LABELS)?;
        for (index, line) in lines.iter().enumerate() {
            let colour = Colours::pick(index);
            let places = line.points.iter().filter_map(|&(a, b)| Some((x.place(a)?, y.place(b)?)));
            let places: Vec<_> = places.collect();
            if line.has_points {
                let circle = |&place| Circle::new(place, 3, colour.filled());
                chart.draw_series(places.iter().map(circle))?;
            }
            let path = PathElement::new(places, colour.stroke_width(2));
            chart.draw_series(std::iter::once(path))?;
        }
        Ok(root.present()?)
    }

    fn draw_bars(&self, bars: &[Bar], svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let groups = distinct(bars.iter().map(|bar| bar.group.as_str()));
        let names = distinct(bars.iter().map(|bar| bar.name.as_str()));
        let rows = bars.len() + groups.len();
        let height =
            MARGINS + (u32::try_from(rows)? * BAR).max(u32::try_from(names.len())? * LEGEND_STEP);
        let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
        let area = with_legend(&root, &names)?;
        let x = Axis::of(bars.iter().flat_map(|bar| [bar.values[0], bar.values[2]]), self.is_log_y);
        let y = Axis { base: None, from: -(rows.max(1) as f64), to: 0.0 };
        let mut builder = ChartBuilder::on(&area);
        builder.caption(&self.title, ("sans-serif", 16.0).into_font().color(&INK)).margin(10);
        let widest = groups.iter().map(|group| width_of(group)).max().unwrap_or(0);
        builder.x_label_area_size(45).y_label_area_size(widest + 10).margin_right(60);
        let mut chart = builder.build_cartesian_2d(x.range(), y.range())?;
        self.mesh(&mut chart, [&x, &y], 0)?;
        let mut top = -0.5;
        for group in groups {
            let of_group: Vec<&Bar> = bars.iter().filter(|bar| bar.group == group).collect();
            let (left, middle) = chart.backend_coord(&(x.from, top - of_group.len() as f64 / 2.0));
            root.draw(&Text::new(group, (left - 8, middle), style(HPos::Right, VPos::Center)))?;
            for bar in of_group {
                let name = names.iter().position(|name| *name == bar.name);
                let colour = Colours::pick(name.unwrap_or(0));
                let [value, min, max] = bar.values.map(|value| x.place(value));
                let start = if x.base.is_some() { x.from } else { 0.0 };
                let end = value.unwrap_or(start);
                let corners = [(start, top - 0.1), (end, top - 0.9)];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                let reach = min.zip(max).filter(|(min, max)| min < max);
                if let Some((min, max)) = reach {
                    let line = vec![(min, top - 0.5), (max, top - 0.5)];
                    chart.draw_series([PathElement::new(line, INK.stroke_width(1))])?;
                }
                let text = value.map_or("none".to_owned(), |_| number(bar.values[0]));
                let right = reach.map_or(end, |(_, max)| max.max(end));
                let (right, middle) = chart.backend_coord(&(right, top - 0.5));
                let text_style = style(HPos::Left, VPos::Center);
                root.draw(&Text::new(text, (right + 6, middle), text_style))?;
                top -= 1.0;
            }
            top -= 1.0;
        }
        Ok(root.present()?)
    }

    fn mesh(
        &self,
        chart: &mut Chart<'_, '_>,
        [x, y]: [&Axis; 2],
        y_labels: usize,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let (x_text, y_text) = (|place: &f64| x.text(*place), |place: &f64| y.text(*place));
        let mut mesh = chart.configure_mesh();
        mesh.x_labels(LABELS).y_labels(y_labels).x_desc(&self.x_label).y_desc(&self.y_label);
        mesh.axis_style(INK).bold_line_style(GRID).light_line_style(PAPER).max_light_lines(0);
        mesh.label_style(style(HPos::Center, VPos::Center));
        mesh.x_label_formatter(&x_text).y_label_formatter(&y_text);
        if y_labels == 0 {
            mesh.disable_y_mesh();
        }
        Ok(mesh.draw()?)
    }
}

fn style(h: HPos, v: VPos) -> TextStyle<'static> {
    ("sans-serif", FONT).into_font().color(&INK).pos(Pos::new(h, v))
}

fn width_of(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(0) * 73 / 10
}

fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

/// Draws the names at the right and answers the area that is left.
fn with_legend<'a>(
    root: &Area<'a>,
    names: &[&str],
) -> Result<Area<'a>, Box<dyn std::error::Error>> {
    root.fill(&PAPER)?;
    let widest = names.iter().map(|name| width_of(name)).max().unwrap_or(0);
    let legend_width = if widest == 0 { 0 } else { (widest + 40).min(WIDTH / 2) };
    let (area, legend) = root.split_horizontally(WIDTH - legend_width);
    for (index, (name, row)) in names.iter().zip(0..).enumerate() {
        if !name.is_empty() {
            let y = 44 + 21 * row;
            let colour = Colours::pick(index);
            legend.draw(&Rectangle::new([(0, y - 5), (14, y + 5)], colour.filled()))?;
            legend.draw(&Text::new(*name, (20, y), style(HPos::Left, VPos::Center)))?;
        }
    }
    Ok(area)
}

/// The range of an axis. Places on a logarithmic axis are logarithms.
#[derive(Debug, Clone, PartialEq)]
struct Axis {
    /// Of the logarithm.
    base: Option<f64>,
    from: f64,
    to: f64,
}

impl Axis {
    /// A linear axis begins at zero unless values are below.
    fn of(values: impl Iterator<Item = f64>, is_log: bool) -> Self {
        let usable = values.filter(|value| value.is_finite() && !(is_log && *value <= 0.0));
        let (least, most) = usable
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
                (value.min(least), value.max(most))
            });
        match (is_log, least <= most) {
            (false, true) => Self { base: None, from: least.min(0.0), to: most.max(1e-9) * 1.05 },
            (false, false) => Self { base: None, from: 0.0, to: 1.0 },
            (true, false) => Self { base: Some(10.0), from: 0.0, to: 1.0 },
            (true, true) => {
                let base: f64 = if most <= 1024.0 && least >= 1.0 { 2.0 } else { 10.0 };
                // Rounding must not cost a whole step.
                let from = (least.log(base) + 1e-9).floor();
                let to = (most.log(base) - 1e-9).ceil().max(from + 1.0);
                Self { base: Some(base), from, to }
            }
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }

    /// None if the axis has no place for the value.
    fn place(&self, value: f64) -> Option<f64> {
        let place = self.base.map_or(value, |base| value.log(base));
        place.is_finite().then_some(place)
    }

    fn text(&self, place: f64) -> String {
        number(self.base.map_or(place, |base| base.powf(place)))
    }
}

/// A number with three significant digits at most.
fn number(value: f64) -> String {
    let scaled = |factor: f64, unit: &dyn Display| format!("{}{unit}", number(value / factor));
    if value.abs() >= 1e6 {
        return scaled(1e6, &'M');
    }
    if value.abs() >= 1e4 {
        return scaled(1e3, &'k');
    }
    let digits = [100.0, 10.0, 1.0, 0.1, 0.01].iter().position(|limit| value.abs() >= *limit);
    let text = format!("{value:.*}", digits.unwrap_or(if value == 0.0 { 0 } else { 5 }));
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Plot, number};
    use crate::statistics::Samples;

    #[test]
    fn lines_are_drawn_under_their_names_and_without_links() {
        let mut plot = Plot::lines("Throughput", "threads", "GB/s").log_x();
        plot.line("ours <&>", vec![(1.0, 0.5), (64.0, 0.6)]);
        plot.line("rayon", vec![(1.0, 0.3), (64.0, 0.2)]);
        let svg = plot.svg().unwrap();
        for text in ["Throughput", "threads", "GB/s", "ours &lt;&amp;&gt;", "rayon", ">\n64\n<"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        assert!(!svg.replace("http://www.w3.org/2000/svg", "").contains("http"), "{svg}");
        assert_eq!(svg.matches("stroke-width=\"2\"").count(), 2, "{svg}");
    }

    #[test]
    fn a_distribution_ends_at_all_samples() {
        let mut plot = Plot::cdf("Latency", "us").log_x();
        plot.samples("ours", &Samples::from_iter([10.0, 1.0, 100.0]));
        let svg = plot.svg().unwrap();
        assert!(svg.contains("share of samples, %") && svg.contains(">\n100\n<"), "{svg}");
    }

    #[test]
    fn bars_show_their_values_and_missing_ones() {
        let mut plot = Plot::bars("Extract", "seconds");
        plot.bar("lz4", "ours", [1.25, 1.0, 1.5]);
        plot.bar("lz4", "fsck.erofs", [f64::NAN; 3]);
        let svg = plot.svg().unwrap();
        for text in ["seconds", "1.25", "fsck.erofs", ">\nnone\n<"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn an_empty_plot_is_drawn() {
        for plot in [Plot::lines("t", "x", "y").log_x().log_y(), Plot::bars("t", "y").log_y()] {
            assert!(plot.svg().unwrap().contains("</svg>"));
        }
    }

    #[test]
    fn axes_hold_their_values() {
        let axis = |values: &[f64], is_log| Axis::of(values.iter().copied(), is_log);
        let times = axis(&[0.3, 40_000.0], true);
        assert_eq!((times.from, times.to, times.base), (-1.0, 5.0, Some(10.0)));
        assert_eq!(axis(&[1.0, 64.0], true).place(8.0), Some(3.0));
        assert!(axis(&[-30.0, 60.0], false).from <= -30.0);
        let none = axis(&[0.0, -1.0, f64::NAN], true);
        assert_eq!((none.place(0.0), none.place(f64::NAN)), (None, None));
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.25, 1.0, 1.256, 12.34, 1234.5, -80.0, 10_000.0, 123_456.0].map(number);
        assert_eq!(texts, ["0", "0.25", "1", "1.26", "12.3", "1234", "-80", "10k", "123k"]);
        assert_eq!(number(2_500_000.0), "2.5M");
    }
}
