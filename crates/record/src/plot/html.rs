//! The chart as an HTML page that works offline: uPlot, the data and a small script in one file.

use serde_json::json;

use super::{COLOURS, Chart};

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("../../vendor/uplot/uPlot.iife.min.js");
const STYLE: &str = include_str!("../../vendor/uplot/uPlot.min.css");
const LICENCE: &str = include_str!("../../vendor/uplot/LICENSE");

impl Chart {
    /// The chart as one self-contained HTML page: drag to zoom, click a name to hide its curve.
    pub fn to_html(&self) -> String {
        // The x axis starts at 0 or at a point before: a point without values sees to that.
        let start = self.x.first().is_some_and(|first| *first > 0.0);
        let from_start = |first: f64, values: &[f64]| {
            let first = start.then_some(first).into_iter();
            first.chain(values.iter().copied()).collect::<Vec<f64>>()
        };
        let curves: Vec<_> = self
            .curves
            .iter()
            .enumerate()
            .map(|(index, curve)| {
                json!({
                    "label": curve.legend(),
                    "colour": COLOURS[index % COLOURS.len()],
                    "dashed": index >= COLOURS.len() || curve.is_reference(),
                    "band": curve.runs > 1,
                    // JSON has no NaN: serde_json writes null, which uPlot takes as a gap.
                    "mean": from_start(f64::NAN, &curve.mean),
                    "low": from_start(f64::NAN, &curve.low),
                    "high": from_start(f64::NAN, &curve.high),
                })
            })
            .collect();
        let data = json!({
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "note": self.note,
            "x": from_start(0.0, &self.x),
            "curves": curves,
        });
        // Inside a script element only `<` could end it.
        let data = data.to_string().replace('<', "\\u003c");
        // The data comes last, so that nothing in it is taken for a place to fill.
        PAGE.replace("{{title}}", &escape(&self.title))
            .replace("{{licence}}", LICENCE.trim())
            .replace("{{style}}", STYLE.trim())
            .replace("{{script}}", SCRIPT.trim())
            .replace("{{data}}", &data)
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('{', "&#123;")
}
