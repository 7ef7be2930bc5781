//! Small line charts as SVG, by hand: a few lines over a few named points.
use std::fmt::Write as _;

/// One line, or circles alone.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub colour: &'static str,
    pub dashed: bool,
    pub circles: bool,
    /// One a label.
    pub values: Vec<Option<f64>>,
}

/// Lines over labels that are equally far apart.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub axis: String,
    pub labels: Vec<String>,
    pub series: Vec<Series>,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 30.0;
const RIGHT: f64 = 170.0;
const BOTTOM: f64 = 44.0;

impl Chart {
    /// The picture.
    pub fn svg(&self) -> String {
        let values: Vec<f64> = self.series.iter().flat_map(|series| series.values.iter().flatten().copied()).collect();
        let step = step(values.iter().copied().fold(1.0, f64::max) - values.iter().copied().fold(0.0, f64::min));
        let low = (values.iter().copied().fold(0.0, f64::min) / step).floor() * step;
        let high = (values.iter().copied().fold(1.0, f64::max) / step).ceil() * step;
        let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low);
        let apart = (WIDTH - LEFT - RIGHT) / self.labels.len().max(1) as f64;
        let x = |at: usize| LEFT + apart * (at as f64 + 0.5);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"11\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
        );
        text(&mut svg, LEFT, 16.0, "start", &self.title);
        let mut line = low;
        while line <= high + step / 2.0 {
            let (at, end) = (y(line), WIDTH - RIGHT);
            let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{end}\" stroke=\"#ddd\"/>");
            text(&mut svg, LEFT - 6.0, at + 4.0, "end", &line.to_string());
            line += step;
        }
        for (at, label) in self.labels.iter().enumerate() {
            text(&mut svg, x(at), HEIGHT - BOTTOM + 16.0, "middle", label);
        }
        text(&mut svg, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, HEIGHT - 10.0, "middle", &self.axis);
        for (number, series) in self.series.iter().enumerate() {
            let at = TOP + 12.0 + 18.0 * number as f64;
            let points: Vec<(f64, f64)> =
                series.values.iter().enumerate().filter_map(|(i, v)| Some((x(i), y((*v)?)))).collect();
            draw(&mut svg, series, &points);
            let start = WIDTH - RIGHT + 10.0;
            let key = if series.circles { vec![(start + 10.0, at)] } else { vec![(start, at), (start + 20.0, at)] };
            draw(&mut svg, series, &key);
            text(&mut svg, start + 26.0, at + 4.0, "start", &series.name);
        }
        svg + "</svg>\n"
    }
}

fn draw(svg: &mut String, series: &Series, points: &[(f64, f64)]) {
    let colour = series.colour;
    if series.circles {
        for (x, y) in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
        }
        return;
    }
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let dashes = if series.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    let path = path.join("L");
    let _ = writeln!(svg, "<path d=\"M{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// A round distance of lines, of which four to ten fit.
fn step(range: f64) -> f64 {
    let unit = 10f64.powf((range / 4.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|times| times * unit).find(|step| range / step >= 4.0).unwrap_or(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture would not open, or leave its frame.
    #[test]
    fn a_chart_is_well_formed_and_within_its_frame() {
        let series = |values: Vec<Option<f64>>, circles: bool| Series {
            name: "a < b & c".to_string(),
            colour: "#000",
            dashed: !circles,
            circles,
            values,
        };
        let series = vec![series(vec![Some(-12.0), Some(165.0)], false), series(vec![None, Some(70.0)], true)];
        let chart = Chart { title: "t".into(), axis: "k".into(), labels: vec!["1".into(), "2".into()], series };
        let svg = chart.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains(">-20<") && svg.contains(">180<"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        for part in svg.split("cy=\"").skip(1) {
            let y: f64 = part.split('"').next().and_then(|y| y.parse().ok()).expect("a number");
            assert!((TOP..HEIGHT - BOTTOM).contains(&y), "{y}");
        }
        assert_eq!([4.0, 39.0, 177.0, 1.0].map(step), [1.0, 5.0, 20.0, 0.2]);
    }
}
