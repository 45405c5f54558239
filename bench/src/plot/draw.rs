//! Draws a plot: the paper, a frame of axes, what is on them, and the names at the right, where nothing lies under
//! them.

use anyhow::{Result, anyhow};
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{
    Color, FontTransform, IntoFont, IntoTextStyle, RGBColor, ShapeStyle, TextStyle,
};

use super::axis::{Axis, number};
use super::{Bar, Line, Plot, Shape};

/// Colours that `page` exchanges in the dark.
const PAPER: RGBColor = RGBColor(0xfd, 0xfd, 0xfc);
const INK: RGBColor = RGBColor(0x22, 0x24, 0x28);
const GRID: RGBColor = RGBColor(0xdc, 0xde, 0xe2);
/// Colours of names, apart for all eyes and readable on light and dark paper.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0x1f, 0x8a, 0xc9),
    RGBColor(0xe0, 0x6c, 0x1a),
    RGBColor(0x1c, 0x9e, 0x77),
    RGBColor(0xc9, 0x5c, 0xa8),
    RGBColor(0xb8, 0x95, 0x0b),
    RGBColor(0x7a, 0x74, 0xd6),
    RGBColor(0xd6, 0x45, 0x4b),
    RGBColor(0x7d, 0x87, 0x8f),
    RGBColor(0x5e, 0xa0, 0x2c),
    RGBColor(0x9c, 0x6a, 0x3f),
];

/// Sizes in pixels.
const WIDTH: u32 = 900;
const LINES_HEIGHT: u32 = 430;
const TOP: i32 = 44;
const BOTTOM: i32 = 58;
const LEFT: i32 = 78;
const RIGHT: i32 = 24;
const BAR: i32 = 17;
const BETWEEN_GROUPS: i32 = 12;
const FONT: f64 = 13.0;
const TITLE_FONT: f64 = 16.0;
/// What a letter takes on average; there is no font to ask.
const LETTER: f64 = 0.56;
const LEGEND_STEP: i32 = 21;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The rectangle that the axes span.
#[derive(Debug, Clone, Copy)]
struct Frame {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
}

impl Frame {
    fn x(&self, share: f64) -> i32 {
        self.left + pixels(share * f64::from(self.right - self.left))
    }

    fn y(&self, share: f64) -> i32 {
        self.bottom - pixels(share * f64::from(self.bottom - self.top))
    }
}

/// A place on a drawing; what lies outside is put to its edge.
fn pixels(value: f64) -> i32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`as` saturates, and so far is off the paper"
    )]
    let rounded = value.round() as i32;
    rounded
}

fn text_width(text: &str) -> i32 {
    pixels(text.chars().count() as f64 * FONT * LETTER)
}

/// An SVG of the plot.
pub(super) fn draw(plot: &Plot) -> Result<String> {
    let mut svg = String::new();
    match &plot.shape {
        Shape::Lines(lines) => draw_lines(plot, lines, &mut svg)?,
        Shape::Bars(bars) => draw_bars(plot, bars, &mut svg)?,
    }
    Ok(svg)
}

fn draw_lines(plot: &Plot, lines: &[Line], svg: &mut String) -> Result<()> {
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    let area = SVGBackend::with_string(svg, (WIDTH, LINES_HEIGHT)).into_drawing_area();
    let canvas = Canvas::new(&area, &plot.title, LINES_HEIGHT)?;
    let frame = Frame {
        left: LEFT,
        right: canvas.width - RIGHT - legend_width(&names),
        top: TOP,
        bottom: canvas.height - BOTTOM,
    };
    let points = lines.iter().flat_map(|line| &line.points);
    let x = Axis::of(points.clone().map(|point| point.0), plot.is_log_x);
    let y = Axis::of(points.map(|point| point.1), plot.is_log_y);
    canvas.x_axis(frame, &x, &plot.x_label)?;
    canvas.y_axis(frame, &y, &plot.y_label)?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let known = line.points.iter().filter(|point| x.has(point.0) && y.has(point.1));
        let places: Vec<(i32, i32)> =
            known.map(|point| (frame.x(x.share(point.0)), frame.y(y.share(point.1)))).collect();
        let places = if line.has_marks { places } else { corners(places) };
        if line.has_marks {
            for &place in &places {
                canvas.put(&Circle::new(place, 3, colour.filled()))?;
            }
        }
        if places.len() > 1 {
            canvas.put(&PathElement::new(places, colour.stroke_width(2)))?;
        }
    }
    canvas.legend(frame, &names)?;
    canvas.end()
}

/// Of a line that only ever goes right and up, the places where it turns: thousands of samples are hundreds of pixels.
fn corners(places: Vec<(i32, i32)>) -> Vec<(i32, i32)> {
    let mut corners: Vec<(i32, i32)> = Vec::new();
    for place in places {
        if let [.., first, middle] = corners.as_mut_slice() {
            let is_upright = first.0 == middle.0 && middle.0 == place.0;
            let is_level = first.1 == middle.1 && middle.1 == place.1;
            if is_upright || is_level {
                *middle = place;
                continue;
            }
        }
        corners.push(place);
    }
    corners
}

fn draw_bars(plot: &Plot, bars: &[Bar], svg: &mut String) -> Result<()> {
    let (groups, names) = (first_of(bars, |bar| &bar.group), first_of(bars, |bar| &bar.name));
    let bars_height = i32::try_from(bars.len())? * BAR;
    let gaps = i32::try_from(groups.len())? * BETWEEN_GROUPS;
    let legend = i32::try_from(names.len())? * LEGEND_STEP;
    let height = TOP + BOTTOM + (bars_height + gaps).max(legend);
    let height = u32::try_from(height)?;
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    let canvas = Canvas::new(&area, &plot.title, height)?;
    let widest = groups.iter().map(|group| text_width(group)).max().unwrap_or(0);
    let frame = Frame {
        left: 20 + widest,
        // The value of the longest bar stands behind it.
        right: canvas.width - RIGHT - legend_width(&names) - 48,
        top: TOP,
        bottom: canvas.height - BOTTOM,
    };
    let axis = Axis::of(bars.iter().flat_map(|bar| [bar.value, bar.max]), plot.is_log_y);
    canvas.x_axis(frame, &axis, &plot.y_label)?;
    let mut y = TOP;
    for group in groups {
        y += BETWEEN_GROUPS / 2;
        let of_group: Vec<&Bar> = bars.iter().filter(|bar| bar.group == group).collect();
        let middle = y + i32::try_from(of_group.len())? * BAR / 2;
        let style = canvas.style(HPos::Right, VPos::Center);
        canvas.text(group, (frame.left - 8, middle), &style)?;
        for bar in of_group {
            let colour = names.iter().position(|name| *name == bar.name).unwrap_or(0);
            canvas.bar((frame, &axis), bar, y, COLOURS[colour % COLOURS.len()])?;
            y += BAR;
        }
        y += BETWEEN_GROUPS / 2;
    }
    canvas.legend(frame, &names)?;
    canvas.end()
}

/// Each once, in the order in which they come first.
fn first_of<'a>(bars: &'a [Bar], of: impl Fn(&'a Bar) -> &'a String) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for text in bars.iter().map(of) {
        if !found.contains(&text.as_str()) {
            found.push(text);
        }
    }
    found
}

/// A single name would say nothing that the title does not.
fn legend_width(names: &[&str]) -> i32 {
    let widest = names.iter().map(|name| text_width(name)).max().unwrap_or(0);
    if widest == 0 { 0 } else { widest + 40 }
}

/// Paper under a title.
struct Canvas<'a, 'b> {
    area: &'a Area<'b>,
    width: i32,
    height: i32,
}

impl<'a, 'b> Canvas<'a, 'b> {
    fn new(area: &'a Area<'b>, title: &str, height: u32) -> Result<Self> {
        area.fill(&PAPER).map_err(|error| anyhow!("{error}"))?;
        let canvas = Self { area, width: i32::try_from(WIDTH)?, height: i32::try_from(height)? };
        let style = ("sans-serif", TITLE_FONT).into_font().color(&INK);
        canvas.text(title, (20, 24), &style.pos(Pos::new(HPos::Left, VPos::Center)))?;
        Ok(canvas)
    }

    fn put<'e, E>(&self, element: &'e E) -> Result<()>
    where
        &'e E: plotters::element::PointCollection<'e, (i32, i32)>,
        E: plotters::element::Drawable<SVGBackend<'b>>,
    {
        self.area.draw(element).map_err(|error| anyhow!("{error}"))
    }

    fn text(&self, text: &str, place: (i32, i32), style: &TextStyle<'_>) -> Result<()> {
        self.put(&Text::new(text.to_owned(), place, style.clone()))
    }

    fn style(&self, h: HPos, v: VPos) -> TextStyle<'static> {
        let style = ("sans-serif", FONT).into_text_style(self.area);
        style.color(&INK).pos(Pos::new(h, v))
    }

    fn line(&self, from: (i32, i32), to: (i32, i32), style: ShapeStyle) -> Result<()> {
        self.put(&PathElement::new(vec![from, to], style))
    }

    fn x_axis(&self, frame: Frame, axis: &Axis, label: &str) -> Result<()> {
        let style = self.style(HPos::Center, VPos::Top);
        for &tick in &axis.ticks {
            let x = frame.x(axis.share(tick));
            self.line((x, frame.top), (x, frame.bottom), GRID.stroke_width(1))?;
            self.text(&number(tick), (x, frame.bottom + 7), &style)?;
        }
        self.line((frame.left, frame.bottom), (frame.right, frame.bottom), INK.stroke_width(1))?;
        let middle = i32::midpoint(frame.left, frame.right);
        self.text(label, (middle, frame.bottom + 30), &style)
    }

    fn y_axis(&self, frame: Frame, axis: &Axis, label: &str) -> Result<()> {
        let style = self.style(HPos::Right, VPos::Center);
        for &tick in &axis.ticks {
            let y = frame.y(axis.share(tick));
            self.line((frame.left, y), (frame.right, y), GRID.stroke_width(1))?;
            self.text(&number(tick), (frame.left - 8, y), &style)?;
        }
        self.line((frame.left, frame.top), (frame.left, frame.bottom), INK.stroke_width(1))?;
        let font = ("sans-serif", FONT).into_font().transform(FontTransform::Rotate270);
        let style = font.color(&INK).pos(Pos::new(HPos::Center, VPos::Top));
        self.text(label, (14, i32::midpoint(frame.top, frame.bottom)), &style)
    }

    fn bar(
        &self,
        (frame, axis): (Frame, &Axis),
        bar: &Bar,
        y: i32,
        colour: RGBColor,
    ) -> Result<()> {
        let zero = if axis.is_log { frame.left } else { frame.x(axis.share(0.0)) };
        let style = self.style(HPos::Left, VPos::Center);
        let middle = y + BAR / 2;
        if !axis.has(bar.value) {
            return self.text("none", (zero + 6, middle), &style);
        }
        let end = frame.x(axis.share(bar.value));
        let corners = [(zero.min(end), y + 2), (zero.max(end), y + BAR - 2)];
        self.put(&Rectangle::new(corners, colour.filled()))?;
        let mut right = end.max(zero);
        if axis.has(bar.min) && axis.has(bar.max) && bar.min < bar.max {
            let (from, to) = (frame.x(axis.share(bar.min)), frame.x(axis.share(bar.max)));
            self.line((from, middle), (to, middle), INK.stroke_width(1))?;
            for x in [from, to] {
                self.line((x, middle - 3), (x, middle + 3), INK.stroke_width(1))?;
            }
            right = right.max(to);
        }
        self.text(&number(bar.value), (right + 6, middle), &style)
    }

    fn legend(&self, frame: Frame, names: &[&str]) -> Result<()> {
        let left = self.width - RIGHT + 12 - legend_width(names);
        let style = self.style(HPos::Left, VPos::Center);
        let mut y = frame.top + LEGEND_STEP / 2;
        for (name, colour) in names.iter().zip(COLOURS.iter().cycle()) {
            if !name.is_empty() {
                self.put(&Rectangle::new([(left, y - 5), (left + 14, y + 5)], colour.filled()))?;
                self.text(name, (left + 20, y), &style)?;
            }
            y += LEGEND_STEP;
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        self.area.present().map_err(|error| anyhow!("{error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::corners;

    #[test]
    fn a_line_of_steps_is_drawn_by_its_corners() {
        let steps = vec![(0, 9), (0, 8), (0, 7), (1, 7), (5, 7), (6, 7), (6, 2), (7, 2)];
        assert_eq!(corners(steps), [(0, 9), (0, 7), (6, 7), (6, 2), (7, 2)]);
        assert_eq!(corners(vec![(3, 3)]), [(3, 3)]);
    }
}
