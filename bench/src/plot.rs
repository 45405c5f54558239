//! A plot, drawn as SVG: lines, the distribution of samples, or bars. Experiments fill it; `report` writes it
//! beside the tables. It names no font file, since text stays text, and its few colours for paper, ink and grid
//! are known to `page`, which exchanges them in the dark.

mod axis;
mod draw;

use anyhow::Result;

use crate::statistics::Samples;

/// What is drawn over the axes.
#[derive(Debug, Clone)]
enum Shape {
    /// Points that belong together.
    Lines(Vec<Line>),
    /// Bars that lie, in groups.
    Bars(Vec<Bar>),
}

/// Points under a name, from left to right.
#[derive(Debug, Clone)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    /// Whether points were measured, and are marked; a distribution has too many.
    has_marks: bool,
}

/// A value, between the least and the most that were measured.
#[derive(Debug, Clone)]
struct Bar {
    group: String,
    name: String,
    value: f64,
    min: f64,
    max: f64,
}

/// A plot under a title.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    title: String,
    x_label: String,
    y_label: String,
    is_log_x: bool,
    is_log_y: bool,
    shape: Shape,
}

impl Plot {
    /// A plot of lines.
    pub(crate) fn lines(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            is_log_x: false,
            is_log_y: false,
            shape: Shape::Lines(Vec::new()),
        }
    }

    /// A plot of which share of the samples is at most so large.
    pub(crate) fn cdf(title: impl Into<String>, x_label: impl Into<String>) -> Self {
        Self::lines(title, x_label, "share of samples, %")
    }

    /// A plot of bars. They lie, so that long names of groups can be read: the label is that of their length.
    pub(crate) fn bars(title: impl Into<String>, y_label: impl Into<String>) -> Self {
        Self { shape: Shape::Bars(Vec::new()), ..Self::lines(title, "", y_label) }
    }

    /// Makes equal distances of x equal ratios. What is not above zero is then left out.
    pub(crate) fn log_x(mut self) -> Self {
        self.is_log_x = true;
        self
    }

    /// The same of y, or of the length of bars.
    pub(crate) fn log_y(mut self) -> Self {
        self.is_log_y = true;
        self
    }

    /// Adds a line.
    pub(crate) fn add_line(&mut self, name: impl Into<String>, points: Vec<(f64, f64)>) {
        self.push_line(name.into(), points, true);
    }

    /// Adds the distribution of samples.
    pub(crate) fn add_samples(&mut self, name: impl Into<String>, samples: &Samples) {
        let mut sorted: Vec<f64> = samples.values().collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let share = |index: usize| index as f64 / count * 100.0;
        let steps = sorted.iter().enumerate();
        let steps =
            steps.flat_map(|(index, &value)| [(value, share(index)), (value, share(index + 1))]);
        self.push_line(name.into(), steps.collect(), false);
    }

    fn push_line(&mut self, name: String, points: Vec<(f64, f64)>, has_marks: bool) {
        if let Shape::Lines(lines) = &mut self.shape {
            lines.push(Line { name, points, has_marks });
        }
    }

    /// Adds a bar to a group; equal names of different groups share a colour.
    #[expect(clippy::too_many_arguments, reason = "a bar is that many plain values")]
    pub(crate) fn add_bar(
        &mut self,
        group: impl Into<String>,
        name: impl Into<String>,
        value: f64,
        min: f64,
        max: f64,
    ) {
        if let Shape::Bars(bars) = &mut self.shape {
            bars.push(Bar { group: group.into(), name: name.into(), value, min, max });
        }
    }

    /// Draws it.
    ///
    /// # Errors
    /// When a scale cannot be made.
    pub(crate) fn to_svg(&self) -> Result<String> {
        draw::draw(self)
    }
}

#[cfg(test)]
mod tests {
    use super::Plot;
    use crate::statistics::Samples;

    #[test]
    fn lines_are_drawn_under_their_names_and_without_fonts_or_links() {
        let mut plot = Plot::lines("Throughput", "threads", "GB/s").log_x();
        plot.add_line("ours <&>", vec![(1.0, 0.5), (64.0, 0.6)]);
        plot.add_line("rayon", vec![(1.0, 0.3), (64.0, 0.2)]);
        let svg = plot.to_svg().unwrap();
        for text in ["Throughput", "threads", "GB/s", "ours &lt;&amp;&gt;", "rayon", ">\n64\n<"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        let without_namespace = svg.replace("http://www.w3.org/2000/svg", "");
        assert!(!without_namespace.contains("http"), "{svg}");
        assert_eq!(svg.matches("stroke-width=\"2\"").count(), 2, "{svg}");
    }

    #[test]
    fn a_distribution_ends_at_all_samples() {
        let mut plot = Plot::cdf("Latency", "us").log_x();
        plot.add_samples("ours", &Samples::from_iter([10.0, 1.0, 100.0]));
        let svg = plot.to_svg().unwrap();
        assert!(svg.contains("share of samples, %") && svg.contains(">\n100\n<"), "{svg}");
    }

    #[test]
    fn bars_show_their_values_and_those_without_any_say_so() {
        let mut plot = Plot::bars("Extract", "seconds");
        plot.add_bar("lz4", "ours", 1.25, 1.0, 1.5);
        plot.add_bar("lz4", "fsck.erofs", f64::NAN, f64::NAN, f64::NAN);
        let svg = plot.to_svg().unwrap();
        for text in ["seconds", "1.25", "fsck.erofs", ">\nnone\n<"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn a_plot_of_nothing_is_drawn_too() {
        for plot in [Plot::lines("t", "x", "y").log_x().log_y(), Plot::bars("t", "y").log_y()] {
            assert!(plot.to_svg().unwrap().contains("</svg>"));
        }
    }
}
