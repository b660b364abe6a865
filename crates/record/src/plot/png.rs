//! The chart as a PNG.

use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash,
    Transform,
};
use ttf_parser::{Face, OutlineBuilder};

use super::axis::Axis;
use super::{COLOURS, Chart, Curve};
use crate::error::{Error, Result};

const WIDTH: u32 = 1280;
const HEIGHT: u32 = 800;
const LEFT: f32 = 120.0;
const RIGHT: f32 = 1240.0;
const BOTTOM: f32 = 690.0;
const FONT: &[u8] = include_bytes!("../../vendor/roboto/Roboto-Regular-latin.ttf");

impl Chart {
    /// The chart as a PNG file of 1280 by 800 pixels.
    pub fn to_png(&self, dark: bool) -> Result<Vec<u8>> {
        let impossible = |reason: &dyn std::fmt::Display| Error::NothingToPlot {
            reason: format!("the picture cannot be drawn: {reason}"),
        };
        let face = Face::parse(FONT, 0).map_err(|error| impossible(&error))?;
        let pixmap =
            Pixmap::new(WIDTH, HEIGHT).ok_or_else(|| impossible(&"there is no memory for it"))?;
        let mut canvas = Canvas {
            pixmap,
            face,
            text: if dark { rgb("#e6e6e6") } else { rgb("#222222") },
            faint: if dark { rgb("#3a3d42") } else { rgb("#dddddd") },
        };
        canvas
            .pixmap
            .fill(if dark { rgb("#16181c") } else { Color::WHITE });
        canvas.draw(self);
        canvas
            .pixmap
            .encode_png()
            .map_err(|error| impossible(&error))
    }
}

struct Canvas {
    pixmap: Pixmap,
    face: Face<'static>,
    text: Color,
    faint: Color,
}

#[derive(Clone, Copy)]
enum Align {
    Left,
    Centre,
    Right,
}

/// Maps numbers to pixels.
struct Frame {
    x: Axis,
    y: Axis,
    top: f32,
}

impl Frame {
    fn x(&self, value: f64) -> f32 {
        LEFT + (RIGHT - LEFT) * self.x.position(value) as f32
    }

    fn y(&self, value: f64) -> f32 {
        BOTTOM - (BOTTOM - self.top) * self.y.position(value) as f32
    }
}

impl Canvas {
    fn draw(&mut self, chart: &Chart) {
        let room = RIGHT - LEFT;
        let title_size = 30.0 * (room / self.width(&chart.title, 30.0)).min(1.0);
        self.write(&chart.title, LEFT, 52.0, title_size, Align::Left, self.text);
        let top = self.legend(chart) + 30.0;
        let (low, high) = chart.y_range();
        let first = chart.x.first().copied().unwrap_or(0.0);
        let last = chart.x.last().copied().unwrap_or(1.0);
        let frame = Frame {
            x: Axis::exact(first.min(0.0), last, 8),
            y: Axis::rounded(low, high, 6),
            top,
        };
        self.axes(chart, &frame);
        for (index, curve) in chart.curves.iter().enumerate() {
            let colour = rgb(COLOURS[index % COLOURS.len()]);
            let dashed = index >= COLOURS.len() || curve.is_reference();
            for piece in pieces(curve) {
                self.band(chart, curve, piece.clone(), &frame, colour);
                self.line(chart, curve, piece, &frame, colour, dashed);
            }
        }
    }

    /// Draws the legend below the title, in as many rows as it needs, and returns where it ends.
    fn legend(&mut self, chart: &Chart) -> f32 {
        let size = 21.0;
        let (mut x, mut y) = (LEFT, 94.0);
        for (index, curve) in chart.curves.iter().enumerate() {
            let name = curve.legend();
            let width = 44.0 + self.width(&name, size);
            if x > LEFT && x + width > RIGHT {
                x = LEFT;
                y += 30.0;
            }
            let mut path = PathBuilder::new();
            path.move_to(x, y - 7.0);
            path.line_to(x + 32.0, y - 7.0);
            let colour = rgb(COLOURS[index % COLOURS.len()]);
            self.stroke(path, colour, 4.0, index >= COLOURS.len());
            self.write(&name, x + 44.0, y, size, Align::Left, self.text);
            x += width + 32.0;
        }
        y
    }

    fn axes(&mut self, chart: &Chart, frame: &Frame) {
        let size = 20.0;
        for &tick in &frame.y.ticks {
            let y = frame.y(tick);
            self.rule(LEFT, y, RIGHT, y, self.faint);
            let label = frame.y.label(tick);
            self.write(&label, LEFT - 12.0, y + 7.0, size, Align::Right, self.text);
        }
        for &tick in &frame.x.ticks {
            let x = frame.x(tick);
            self.rule(x, frame.top, x, BOTTOM, self.faint);
            let label = frame.x.label(tick);
            self.write(&label, x, BOTTOM + 30.0, size, Align::Centre, self.text);
        }
        self.rule(LEFT, BOTTOM, RIGHT, BOTTOM, self.text);
        let middle = (LEFT + RIGHT) / 2.0;
        let (x_label, below) = (&chart.x_label, BOTTOM + 64.0);
        self.write(x_label, middle, below, 22.0, Align::Centre, self.text);
        self.write(
            &chart.note,
            LEFT,
            BOTTOM + 94.0,
            17.0,
            Align::Left,
            self.text,
        );
        let turned = Transform::from_rotate_at(-90.0, 38.0, (frame.top + BOTTOM) / 2.0);
        let centre = (frame.top + BOTTOM) / 2.0;
        let label = &chart.y_label;
        self.write_turned(label, 38.0, centre, 22.0, Align::Centre, self.text, turned);
    }

    fn band(
        &mut self,
        chart: &Chart,
        curve: &Curve,
        piece: std::ops::Range<usize>,
        frame: &Frame,
        colour: Color,
    ) {
        if curve.runs < 2 || piece.len() < 2 {
            return;
        }
        let mut path = PathBuilder::new();
        let upper = piece.clone().map(|i| (chart.x[i], curve.high[i]));
        let lower = piece.rev().map(|i| (chart.x[i], curve.low[i]));
        for (x, y) in upper.chain(lower) {
            line_on(&mut path, frame.x(x), frame.y(y));
        }
        path.close();
        let mut faint = colour;
        faint.set_alpha(0.2);
        if let Some(path) = path.finish() {
            self.fill(&path, faint, Transform::identity());
        }
    }

    fn line(
        &mut self,
        chart: &Chart,
        curve: &Curve,
        piece: std::ops::Range<usize>,
        frame: &Frame,
        colour: Color,
        dashed: bool,
    ) {
        let mut path = PathBuilder::new();
        for i in piece.clone() {
            line_on(&mut path, frame.x(chart.x[i]), frame.y(curve.mean[i]));
        }
        if piece.len() == 1 {
            let (x, y) = (
                frame.x(chart.x[piece.start]),
                frame.y(curve.mean[piece.start]),
            );
            if let Some(dot) = PathBuilder::from_circle(x, y, 4.0) {
                self.fill(&dot, colour, Transform::identity());
            }
        }
        self.stroke(path, colour, 3.0, dashed);
    }

    fn rule(&mut self, x0: f32, y0: f32, x1: f32, y1: f32, colour: Color) {
        // On whole pixels, so that thin lines are sharp.
        let width = (x1 - x0).max(1.0);
        let height = (y1 - y0).max(1.0);
        if let Some(rect) = Rect::from_xywh(x0.round(), y0.round(), width, height) {
            let paint = paint(colour);
            self.pixmap
                .fill_rect(rect, &paint, Transform::identity(), None);
        }
    }

    fn stroke(&mut self, path: PathBuilder, colour: Color, width: f32, dashed: bool) {
        let Some(path) = path.finish() else {
            return;
        };
        let stroke = Stroke {
            width,
            line_cap: LineCap::Round,
            line_join: LineJoin::Round,
            dash: if dashed {
                StrokeDash::new(vec![9.0, 7.0], 0.0)
            } else {
                None
            },
            ..Stroke::default()
        };
        let paint = paint(colour);
        self.pixmap
            .stroke_path(&path, &paint, &stroke, Transform::identity(), None);
    }

    fn fill(&mut self, path: &Path, colour: Color, transform: Transform) {
        let paint = paint(colour);
        self.pixmap
            .fill_path(path, &paint, FillRule::Winding, transform, None);
    }

    fn write(&mut self, text: &str, x: f32, y: f32, size: f32, align: Align, colour: Color) {
        self.write_turned(text, x, y, size, align, colour, Transform::identity());
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "each is a different property of the text"
    )]
    fn write_turned(
        &mut self,
        text: &str,
        x: f32,
        y: f32,
        size: f32,
        align: Align,
        colour: Color,
        transform: Transform,
    ) {
        let scale = size / f32::from(self.face.units_per_em());
        let mut x = match align {
            Align::Left => x,
            Align::Centre => x - self.width(text, size) / 2.0,
            Align::Right => x - self.width(text, size),
        };
        let mut outline = Outline(PathBuilder::new(), Transform::identity());
        for c in text.chars() {
            // A sign that the font lacks has glyph 0, an empty box.
            let glyph = self.face.glyph_index(c).unwrap_or_default();
            outline.1 = Transform::from_row(scale, 0.0, 0.0, -scale, x, y);
            self.face.outline_glyph(glyph, &mut outline);
            x += scale * f32::from(self.face.glyph_hor_advance(glyph).unwrap_or(0));
        }
        if let Some(path) = outline.0.finish() {
            self.fill(&path, colour, transform);
        }
    }

    fn width(&self, text: &str, size: f32) -> f32 {
        let scale = size / f32::from(self.face.units_per_em());
        let advance = |c| {
            let glyph = self.face.glyph_index(c).unwrap_or_default();
            f32::from(self.face.glyph_hor_advance(glyph).unwrap_or(0))
        };
        text.chars().map(advance).sum::<f32>() * scale
    }
}

/// Takes the outline of a letter from the font into a path, where the letter belongs.
struct Outline(PathBuilder, Transform);

impl Outline {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.1.sx * x + self.1.tx, self.1.sy * y + self.1.ty)
    }
}

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.0.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.0.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.0.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.0.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.0.close();
    }
}

/// The stretches over which a curve is known.
fn pieces(curve: &Curve) -> Vec<std::ops::Range<usize>> {
    let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
    for (i, value) in curve.mean.iter().enumerate() {
        if value.is_nan() {
            continue;
        }
        match pieces.last_mut() {
            Some(piece) if piece.end == i => piece.end = i + 1,
            _ => pieces.push(i..i + 1),
        }
    }
    pieces
}

fn line_on(path: &mut PathBuilder, x: f32, y: f32) {
    if path.is_empty() {
        path.move_to(x, y);
    } else {
        path.line_to(x, y);
    }
}

fn paint(colour: Color) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color(colour);
    paint
}

/// A colour from `#rrggbb`, as all colours in this crate are written.
fn rgb(text: &str) -> Color {
    let part = |from: usize| {
        let digits = text.get(from..from + 2).unwrap_or("00");
        u8::from_str_radix(digits, 16).unwrap_or(0)
    };
    Color::from_rgba8(part(1), part(3), part(5), 255)
}
