//! Plots as SVG: lines, distributions of samples, and horizontal bars. The colours of paper, ink and grid are known to
//! `page.html`, which replaces them on dark screens.

use std::error::Error;

use anyhow::{Result, anyhow};
use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::IntoDrawingArea;
use plotters::element::{Circle, EmptyElement, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, Palette, RGBColor, TextStyle};
use serde::Deserialize;

use crate::statistics::{Samples, Statistic};

const PAPER: RGBColor = RGBColor(0xfd, 0xfd, 0xfc);
const INK: RGBColor = RGBColor(0x22, 0x24, 0x28);
const GRID: RGBColor = RGBColor(0xdc, 0xde, 0xe2);
/// Distinct for all eyes, readable on light and dark paper.
struct Colours;

impl Palette for Colours {
    #[rustfmt::skip]
    const COLORS: &'static [(u8, u8, u8)] = &[
        (0x1f, 0x8a, 0xc9), (0xe0, 0x6c, 0x1a), (0x1c, 0x9e, 0x77), (0xc9, 0x5c, 0xa8), (0xb8, 0x95, 0x0b),
        (0x7a, 0x74, 0xd6), (0xd6, 0x45, 0x4b), (0x7d, 0x87, 0x8f), (0x5e, 0xa0, 0x2c), (0x9c, 0x6a, 0x3f),
    ];
}

/// Sizes in pixels.
const WIDTH: u32 = 900;
const LINES_HEIGHT: u32 = 430;
const BAR: u32 = 17;
const MARGINS: u32 = 110;
const LEGEND_STEP: i32 = 21;
const FONT: f64 = 13.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlotKind {
    /// Horizontal bars, so that long names can be read: a group for each case, with least and most.
    Bars,
    BarsLog,
    /// The share of samples up to each value.
    Cdf,
    CdfLog,
    /// Over cases that are numbers, on a logarithmic axis; a line for each candidate.
    Lines,
    LinesLog,
}

impl PlotKind {
    /// Whether it shows bars, and whether it shows a distribution.
    const fn shape(self) -> (bool, bool) {
        let is_bars = matches!(self, Self::Bars | Self::BarsLog);
        (is_bars, matches!(self, Self::Cdf | Self::CdfLog))
    }
}

/// A line, or the bars of one colour: value, least and most at the place of a bar.
#[derive(Debug, Clone, Default)]
struct PlotSeries {
    name: String,
    points: Vec<(f64, f64)>,
    bars: Vec<(usize, [f64; 3])>,
}

#[derive(Debug, Clone)]
pub(crate) struct Plot {
    kind: PlotKind,
    title: String,
    /// Of the values: the figure and its unit.
    pub(crate) label: String,
    series: Vec<PlotSeries>,
    /// The first row and the name of each group of bars.
    groups: Vec<(usize, String)>,
}

impl Plot {
    pub(crate) fn new(kind: PlotKind, title: &str) -> Self {
        let (title, label) = (title.to_owned(), String::new());
        Self { kind, title, label, series: Vec::new(), groups: Vec::new() }
    }

    /// Adds the samples of a candidate. Without a case its own name stands first.
    pub(crate) fn add(&mut self, names: [&str; 2], samples: &Samples, statistic: Statistic) {
        let ([first, second], (is_bars, is_cdf)) = (names, self.kind.shape());
        let name = if is_cdf && second.is_empty() { first } else { second };
        let rows: usize = self.series.iter().map(|series| series.bars.len()).sum();
        let place = self.series.iter().position(|series| series.name == name);
        let place = place.unwrap_or_else(|| {
            self.series.push(PlotSeries { name: name.to_owned(), ..PlotSeries::default() });
            self.series.len() - 1
        });
        let (series, number) = (&mut self.series[place], samples.number(statistic));
        if is_cdf {
            let share = |count: usize| count as f64 / samples.0.len() as f64 * 100.0;
            let sorted = samples.sorted().into_iter().enumerate();
            let steps = sorted.flat_map(|(at, value)| [(value, share(at)), (value, share(at + 1))]);
            series.points.extend(steps);
        } else if is_bars {
            if self.groups.last().is_none_or(|(_, last)| last != first) {
                self.groups.push((rows + self.groups.len(), first.to_owned()));
            }
            let ends = [Statistic::Least, Statistic::Most].map(|end| samples.number(end));
            series.bars.push((rows + self.groups.len() - 1, [number, ends[0], ends[1]]));
        } else {
            series.points.extend(first.parse().ok().map(|x: f64| (x, number)));
        }
    }

    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| anyhow!("drawing {}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let (is_bars, is_cdf) = self.kind.shape();
        let bars = || self.series.iter().flat_map(|series| &series.bars);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let ends = bars().flat_map(|(_, [_, min, max])| [*min, *max]);
        let is_log_x = !matches!(self.kind, PlotKind::Bars | PlotKind::Cdf);
        let x = Axis::of(points().map(|point| point.0).chain(ends), is_log_x);
        let mut y = Axis::of(points().map(|point| point.1), self.kind == PlotKind::LinesLog);
        let (mut height, mut left) = (LINES_HEIGHT, 60);
        if is_bars {
            let rows = (bars().count() + self.groups.len()).max(1);
            y = Axis { base: None, from: -(rows as f64), to: 0.0 };
            let names = u32::try_from(self.series.len())? * LEGEND_STEP.unsigned_abs();
            height = MARGINS + (u32::try_from(rows)? * BAR).max(names);
            left = self.groups.iter().map(|(_, name)| width_of(name)).max().unwrap_or(0) + 10;
        }
        let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
        root.fill(&PAPER)?;
        let widest = self.series.iter().map(|series| width_of(&series.name)).max().unwrap_or(0);
        let legend = (widest + 30).min(WIDTH / 2);
        let mut builder = ChartBuilder::on(&root);
        builder.caption(&self.title, ("sans-serif", 16.0).into_font().color(&INK)).margin(10);
        builder.x_label_area_size(45).y_label_area_size(left);
        builder.margin_right(legend + if is_bars { 60 } else { 20 });
        let mut chart = builder.build_cartesian_2d(x.from..x.to, y.from..y.to)?;
        let texts = (|place: &f64| x.text(*place), |place: &f64| y.text(*place));
        let mut mesh = chart.configure_mesh();
        mesh.axis_style(INK).bold_line_style(GRID).max_light_lines(0);
        mesh.label_style(text_style(HPos::Center)).x_labels(8).y_labels(8);
        mesh.x_label_formatter(&texts.0).y_label_formatter(&texts.1);
        let label = self.label.trim_end_matches(", ");
        match (is_bars, is_cdf) {
            (true, _) => mesh.x_desc(label).disable_y_mesh().y_labels(0),
            (_, true) => mesh.x_desc(label).y_desc("share of samples, %"),
            _ => mesh.y_desc(label),
        };
        mesh.draw()?;
        for (row, name) in &self.groups {
            let place = (x.from, -(*row as f64) - 0.5);
            let text = Text::new(name.clone(), (-8, 0), text_style(HPos::Right));
            chart.draw_series([EmptyElement::at(place) + text])?;
        }
        for ((index, series), row) in self.series.iter().enumerate().zip(0..) {
            let colour = Colours::pick(index);
            draw_bars(&mut chart, series, &x, &colour)?;
            let places =
                series.points.iter().filter_map(|&(a, b)| Some((x.place(a)?, y.place(b)?)));
            let places: Vec<_> = places.collect();
            let circles = places.iter().filter(|_| !is_cdf);
            chart.draw_series(circles.map(|&place| Circle::new(place, 3, colour.filled())))?;
            chart.draw_series([PathElement::new(places.clone(), colour.stroke_width(2))])?;
            if !series.name.is_empty() {
                let (left, middle) = (i32::try_from(WIDTH - legend)?, 44 + LEGEND_STEP * row);
                let corners = [(left, middle - 5), (left + 14, middle + 5)];
                root.draw(&Rectangle::new(corners, colour.filled()))?;
                let name = series.name.as_str();
                root.draw(&Text::new(name, (left + 20, middle), text_style(HPos::Left)))?;
            }
        }
        Ok(root.present()?)
    }
}

/// What plotters answers.
type Drawn = Result<(), Box<dyn Error>>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Bars from zero, or from the end of a logarithmic axis, with a line from the least to the most, and the number.
fn draw_bars(
    chart: &mut Chart<'_, '_>,
    series: &PlotSeries,
    x: &Axis,
    colour: &impl Color,
) -> Drawn {
    for (row, numbers) in &series.bars {
        let [value, min, max] = numbers.map(|number| x.place(number));
        let (top, start) = (-(*row as f64), if x.base.is_some() { x.from } else { 0.0 });
        let end = value.unwrap_or(start);
        chart.draw_series([Rectangle::new(
            [(start, top - 0.1), (end, top - 0.9)],
            colour.filled(),
        )])?;
        let reach = min.zip(max).filter(|(min, max)| min < max);
        let line = reach.map(|(min, max)| vec![(min, top - 0.5), (max, top - 0.5)]);
        chart.draw_series(line.map(|line| PathElement::new(line, INK.stroke_width(1))))?;
        let text = value.map_or("none".to_owned(), |place| x.text(place));
        let text = Text::new(text, (6, 0), text_style(HPos::Left));
        let right = reach.map_or(end, |(_, max)| max.max(end));
        chart.draw_series([EmptyElement::at((right, top - 0.5)) + text])?;
    }
    Ok(())
}

fn text_style(position: HPos) -> TextStyle<'static> {
    ("sans-serif", FONT).into_font().color(&INK).pos(Pos::new(position, VPos::Center))
}

fn width_of(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(0) * 73 / 10
}

/// The range of an axis. Places on a logarithmic axis are logarithms: of two up to 1024, else of ten.
#[derive(Debug, Clone, PartialEq)]
struct Axis {
    /// Of the logarithm.
    base: Option<f64>,
    from: f64,
    to: f64,
}

impl Axis {
    /// A linear axis begins at zero unless values are below. A logarithmic one leaves out what is not above zero.
    fn of(values: impl Iterator<Item = f64>, is_log: bool) -> Self {
        let usable = values.filter(|value| value.is_finite() && !(is_log && *value <= 0.0));
        let usable: Samples = usable.collect();
        let [min, max] = [Statistic::Least, Statistic::Most].map(|end| usable.number(end));
        if usable.0.is_empty() {
            return Self { base: is_log.then_some(10.0), from: 0.0, to: 1.0 };
        }
        if !is_log {
            return Self { base: None, from: min.min(0.0), to: max.max(1e-9) * 1.05 };
        }
        let base: f64 = if max <= 1024.0 && min >= 1.0 { 2.0 } else { 10.0 };
        // Rounding must not cost a whole step.
        let from = (min.log(base) + 1e-9).floor();
        Self { base: Some(base), from, to: (max.log(base) - 1e-9).ceil().max(from + 1.0) }
    }

    /// None if the axis has no place for the value.
    fn place(&self, value: f64) -> Option<f64> {
        let place = self.base.map_or(value, |base| value.log(base));
        place.is_finite().then_some(place)
    }

    /// Three significant digits at most.
    fn text(&self, place: f64) -> String {
        let value = self.base.map_or(place, |base| base.powf(place));
        let (scaled, unit) = match value.abs() {
            1e6.. => (value / 1e6, "M"),
            1e4.. => (value / 1e3, "k"),
            _ => (value, ""),
        };
        let digits = [100.0, 10.0, 1.0, 0.1, 0.01].iter().position(|limit| scaled.abs() >= *limit);
        let text = format!("{scaled:.*}", digits.unwrap_or(5));
        let is_fraction = text.contains('.');
        let short = text.trim_end_matches('0').trim_end_matches('.');
        format!("{}{unit}", if is_fraction { short } else { &text })
    }
}

#[cfg(test)]
mod tests {
    use super::PlotKind::{Bars, BarsLog, CdfLog, Lines};
    use super::*;

    #[test]
    fn every_kind_shows_its_names_and_numbers_and_nothing_of_a_network() {
        for (kind, names, values, texts) in [
            (Lines, ["64", "ours <&>"], &[0.5][..], &["ours &lt;&amp;&gt;", ">\n64\n<"][..]),
            (CdfLog, ["ours", ""], &[10.0, 1.0, 100.0], &["share of samples, %", ">\n100\n<"]),
            (Bars, ["lz4", "ours"], &[1.25, 1.0, 1.5], &[">\n1.25\n<", "lz4"]),
            (BarsLog, ["lz4", "fsck.erofs"], &[], &[">\nnone\n<", "fsck.erofs"]),
        ] {
            let mut plot = Plot::new(kind, "The title");
            assert!(plot.svg().unwrap().contains("</svg>"), "{kind:?}: an empty plot is drawn");
            plot.add(names, &Samples(values.to_vec()), Statistic::Median);
            let svg = plot.svg().unwrap();
            for text in texts.iter().chain(&["The title"]) {
                assert!(svg.contains(text), "{text} is missing in {svg}");
            }
            assert!(!svg.replace("http://www.w3.org/2000/svg", "").contains("http"), "{svg}");
        }
    }

    #[test]
    fn axes_hold_their_values_and_show_short_numbers() {
        let axis = |values: &[f64], is_log| Axis::of(values.iter().copied(), is_log);
        let times = axis(&[0.3, 40_000.0], true);
        assert_eq!((times.from, times.to, times.base), (-1.0, 5.0, Some(10.0)));
        assert_eq!(axis(&[1.0, 64.0], true).place(8.0), Some(3.0));
        assert!(axis(&[-30.0, 60.0], false).from <= -30.0);
        let none = axis(&[0.0, -1.0, f64::NAN], true);
        assert_eq!((none.place(0.0), none.place(f64::NAN)), (None, None));
        let linear = axis(&[0.0], false);
        let texts = [0.0, 0.25, 1.256, 12.34, 1234.5, -80.0, 10_000.0, 123_456.0, 2_500_000.0];
        let wanted = ["0", "0.25", "1.26", "12.3", "1234", "-80", "10k", "123k", "2.5M"];
        assert_eq!(texts.map(|number| linear.text(number)), wanted);
    }
}
