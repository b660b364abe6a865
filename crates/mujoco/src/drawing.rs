//! Pictures of simulations, without OpenGL: the geoms' outlines, seen from the side or from above.

use starling_envs::render::{Canvas, Colour, Picture, Point, colours};

use crate::Simulation;
use crate::layout;

/// How a task is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// From where.
    pub(crate) from: From,
    /// The body that stays in the middle from left to right, or also from top to bottom if seen from
    /// above; none for a view that stands still.
    pub(crate) follow: Option<usize>,
    /// What is in the middle: right and up, in metres from the body that is followed.
    pub(crate) centre: [f64; 2],
    /// Metres from the left edge to the right.
    pub(crate) width: f64,
}

/// From where a task is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// x to the right, z up.
    Side,
    /// x to the right, y up.
    Above,
}

const WIDTH: usize = 480;
const HEIGHT: usize = 360;
/// Behind what is on the ground.
const FLOOR: Colour = [226, 230, 234];
/// Pixels around each geom, so that limbs in front of others can be told apart.
const OUTLINE: f64 = 1.5;

/// A picture of the present state.
pub(crate) fn draw(simulation: &Simulation, view: View) -> Picture {
    let eye = Eye::new(simulation, view);
    let mut canvas = Canvas::new(WIDTH, HEIGHT, colours::PAPER);
    eye.draw_ground(&mut canvas);
    let model = simulation.model();
    let mut geoms: Vec<usize> = (0..model.ngeom()).collect();
    let places = simulation.geom_xpos();
    geoms.sort_by(|a, b| eye.depth(places[*a]).total_cmp(&eye.depth(places[*b])));
    for geom in geoms {
        let colour = match (model.geom_bodies()[geom], model.geom_colours()[geom]) {
            // Transparent ones are helpers.
            (_, [.., alpha]) if alpha < 0.1 => continue,
            (0, _) => colours::GROUND,
            (_, [red, green, blue, _]) => {
                let shade = eye.shade(places[geom]);
                [red, green, blue].map(|part| (255.0 * part * shade).clamp(0.0, 255.0) as u8)
            }
        };
        let outline = eye.outline(simulation, geom);
        eye.fill(&mut canvas, &outline, OUTLINE, colours::INK);
        eye.fill(&mut canvas, &outline, 0.0, colour);
    }
    canvas.finish()
}

/// From places in metres to places on the canvas.
struct Eye {
    from: From,
    centre: [f64; 2],
    /// Pixels per metre.
    scale: f64,
    /// The y position of the body that is followed.
    middle: f64,
}

/// What a geom looks like, in pixels.
enum Outline {
    /// Round ends around a line.
    Line(Point, Point, f64),
    /// The corners of a convex shape.
    Hull(Vec<Point>),
}

impl Eye {
    fn new(simulation: &Simulation, view: View) -> Self {
        let body = view.follow.and_then(|body| simulation.xpos().get(body));
        let [x, y, _] = body.copied().unwrap_or_default();
        let mut centre = view.centre;
        centre[0] += x;
        if view.from == From::Above {
            centre[1] += y;
        }
        Self {
            from: view.from,
            centre,
            scale: WIDTH as f64 / view.width,
            middle: y,
        }
    }

    fn project(&self, [x, y, z]: [f64; 3]) -> Point {
        let up = match self.from {
            From::Side => z,
            From::Above => y,
        };
        [
            WIDTH as f64 / 2.0 + (x - self.centre[0]) * self.scale,
            HEIGHT as f64 / 2.0 - (up - self.centre[1]) * self.scale,
        ]
    }

    /// Larger is nearer to the viewer.
    fn depth(&self, [_, y, z]: [f64; 3]) -> f64 {
        match self.from {
            From::Side => -y,
            From::Above => z,
        }
    }

    /// Limbs on the far side are darker.
    fn shade(&self, place: [f64; 3]) -> f32 {
        let far = self.from == From::Side && place[1] - self.middle > 0.01;
        if far { 0.7 } else { 1.0 }
    }

    /// The floor and a mark at every metre of it, so that movement can be seen.
    fn draw_ground(&self, canvas: &mut Canvas) {
        let half = [WIDTH, HEIGHT].map(|size| size as f64 / 2.0 / self.scale);
        let every = if self.scale > 300.0 { 0.1 } else { 1.0 };
        let marks = |axis: usize| {
            let first = ((self.centre[axis] - half[axis]) / every).floor() as i64;
            let last = ((self.centre[axis] + half[axis]) / every).ceil() as i64;
            (first..=last).map(move |mark| mark as f64 * every)
        };
        let (right, bottom) = (WIDTH as f64, HEIGHT as f64);
        match self.from {
            From::Side => {
                let ground = self.project([0.0; 3])[1];
                canvas.rectangle([0.0, ground], right, (bottom - ground).max(0.0), FLOOR);
                for x in marks(0) {
                    let [x, y] = self.project([x, 0.0, 0.0]);
                    canvas.rectangle([x - 1.0, y], 2.0, 10.0, colours::GROUND);
                }
                canvas.rectangle([0.0, ground], right, 2.0, colours::GROUND);
            }
            From::Above => {
                canvas.rectangle([0.0, 0.0], right, bottom, FLOOR);
                for x in marks(0) {
                    let [x, _] = self.project([x, 0.0, 0.0]);
                    canvas.rectangle([x - 0.5, 0.0], 1.0, bottom, colours::GROUND);
                }
                for y in marks(1) {
                    let [_, y] = self.project([0.0, y, 0.0]);
                    canvas.rectangle([0.0, y - 0.5], right, 1.0, colours::GROUND);
                }
            }
        }
    }

    fn outline(&self, simulation: &Simulation, geom: usize) -> Outline {
        let model = simulation.model();
        let place = simulation.geom_xpos()[geom];
        let turn = simulation.geom_xmat()[geom];
        let size = model.geom_sizes()[geom];
        // From the geom's own axes to the world's.
        let at = |local: [f64; 3]| -> [f64; 3] {
            std::array::from_fn(|row| {
                let turned = (0..3).map(|i| turn[3 * row + i] * local[i]);
                place[row] + turned.sum::<f64>()
            })
        };
        let point = |local| self.project(at(local));
        match model.geom_types()[geom] {
            layout::GEOM_SPHERE => {
                let centre = self.project(place);
                Outline::Line(centre, centre, size[0] * self.scale)
            }
            layout::GEOM_CAPSULE => {
                let (from, to) = (point([0.0, 0.0, -size[1]]), point([0.0, 0.0, size[1]]));
                Outline::Line(from, to, size[0] * self.scale)
            }
            layout::GEOM_CYLINDER => {
                let rim = |i: usize| {
                    let (sin, cos) = angle(i).sin_cos();
                    [-size[1], size[1]].map(|z| point([size[0] * cos, size[0] * sin, z]))
                };
                Outline::Hull(hull((0..32).flat_map(rim).collect()))
            }
            layout::GEOM_ELLIPSOID => {
                let ring = |i: usize| {
                    let (sin, cos) = angle(i).sin_cos();
                    let bend = |j: usize| {
                        let (up, out) = (angle(j) / 2.0 - std::f64::consts::FRAC_PI_2).sin_cos();
                        point([size[0] * cos * out, size[1] * sin * out, size[2] * up])
                    };
                    (0..=32).map(bend).collect::<Vec<Point>>()
                };
                Outline::Hull(hull((0..32).flat_map(ring).collect()))
            }
            layout::GEOM_BOX => {
                let corner = |i: usize| {
                    let sign = |bit: usize| if i >> bit & 1 == 0 { -1.0 } else { 1.0 };
                    point(std::array::from_fn(|axis| sign(axis) * size[axis]))
                };
                Outline::Hull(hull((0..8).map(corner).collect()))
            }
            // A floor is drawn already; other shapes do not occur in these models.
            _ => Outline::Hull(Vec::new()),
        }
    }

    fn fill(&self, canvas: &mut Canvas, outline: &Outline, wider: f64, colour: Colour) {
        match outline {
            Outline::Line(from, to, radius) => {
                canvas.line(*from, *to, 2.0 * (radius.max(1.5) + wider), colour);
            }
            Outline::Hull(corners) => {
                if wider > 0.0 {
                    let next = corners.iter().cycle().skip(1);
                    for (from, to) in corners.iter().zip(next) {
                        canvas.line(*from, *to, 2.0 * wider, colour);
                    }
                }
                canvas.polygon(corners, colour);
            }
        }
    }
}

/// The angle of one of 32 places around a circle.
fn angle(i: usize) -> f64 {
    std::f64::consts::TAU * i as f64 / 32.0
}

/// The corners of the smallest convex shape around points, in order around it.
fn hull(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    let half = |points: &mut dyn Iterator<Item = &Point>| {
        let mut chain: Vec<Point> = Vec::new();
        for point in points {
            while let [.., a, b] = &chain[..] {
                let turn = (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0]);
                if turn > 0.0 {
                    break;
                }
                chain.pop();
            }
            chain.push(*point);
        }
        chain.pop();
        chain
    };
    let mut corners = half(&mut points.iter());
    corners.extend(half(&mut points.iter().rev()));
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hull_leaves_out_what_is_inside() {
        let points = vec![
            [0.0, 0.0],
            [2.0, 0.0],
            [1.0, 0.5],
            [2.0, 2.0],
            [0.0, 2.0],
            [1.0, 0.0],
        ];
        let corners = hull(points);
        assert_eq!(corners, [[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]);
    }
}
