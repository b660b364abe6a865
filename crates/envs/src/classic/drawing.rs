//! Pictures of the classic tasks.

use std::f64::consts::PI;

use crate::render::colours::{AGENT, GOAL, GROUND, INK, JOINT, PAPER};
use crate::render::{Canvas, Picture, Point};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 400.0;

/// A cart at a position, with a pole at an angle (0 is upright). The track ends at `limit`.
pub(super) fn cart_pole(position: f64, angle: f64, limit: f64) -> Picture {
    const METRE: f64 = 115.0;
    const POLE: f64 = 1.0;
    let mut canvas = paper();
    let track = 300.0;
    let x = |position: f64| WIDTH / 2.0 + METRE * position;
    canvas.line([0.0, track], [WIDTH, track], 3.0, GROUND);
    for end in [-limit, limit] {
        canvas.line([x(end), track - 12.0], [x(end), track + 12.0], 3.0, GROUND);
    }
    let middle = x(position);
    canvas.rectangle([middle - 36.0, track - 34.0], 72.0, 26.0, INK);
    for wheel in [-22.0, 22.0] {
        canvas.circle([middle + wheel, track - 8.0], 8.0, INK);
        canvas.circle([middle + wheel, track - 8.0], 3.5, PAPER);
    }
    let joint = [middle, track - 34.0];
    let tip = [
        joint[0] + METRE * POLE * angle.sin(),
        joint[1] - METRE * POLE * angle.cos(),
    ];
    canvas.line(joint, tip, 11.0, AGENT);
    canvas.circle(joint, 5.0, JOINT);
    canvas.finish()
}

/// A car in a valley, with a flag at the goal. The land is from `least` to `most`.
pub(super) fn mountain_car(position: f64, goal: f64, least: f64, most: f64) -> Picture {
    let mut canvas = paper();
    let scale = WIDTH / (most - least);
    let at = |position: f64| -> Point {
        let height = 0.45 * (3.0 * position).sin() + 0.55;
        [
            scale * (position - least),
            HEIGHT - 30.0 - 0.85 * scale * height,
        ]
    };
    let ridge = (0..=120).map(|i| at(least + (most - least) * f64::from(i) / 120.0));
    let mut land: Vec<Point> = ridge.collect();
    for pair in land.windows(2) {
        canvas.line(pair[0], pair[1], 4.0, INK);
    }
    land.extend([[WIDTH, HEIGHT], [0.0, HEIGHT]]);
    canvas.polygon(&land, GROUND);
    let foot = at(goal);
    let top = [foot[0], foot[1] - 56.0];
    canvas.line(foot, top, 3.0, INK);
    canvas.polygon(
        &[top, [top[0] + 28.0, top[1] + 9.0], [top[0], top[1] + 18.0]],
        GOAL,
    );
    // The car stands on the slope: ahead and above are turned with it.
    let (here, next) = (at(position), at(position + 0.001));
    let turn = (next[1] - here[1]).atan2(next[0] - here[0]);
    let placed = |ahead: f64, above: f64| -> Point {
        [
            here[0] + ahead * turn.cos() + above * turn.sin(),
            here[1] + ahead * turn.sin() - above * turn.cos(),
        ]
    };
    let body = [
        placed(-26.0, 7.0),
        placed(26.0, 7.0),
        placed(26.0, 18.0),
        placed(13.0, 19.0),
        placed(7.0, 29.0),
        placed(-13.0, 29.0),
        placed(-18.0, 19.0),
        placed(-26.0, 18.0),
    ];
    canvas.polygon(&body, AGENT);
    for wheel in [-15.0, 15.0] {
        canvas.circle(placed(wheel, 7.0), 7.5, INK);
        canvas.circle(placed(wheel, 7.0), 3.0, PAPER);
    }
    canvas.finish()
}

/// Two links that hang from a joint, and the height that their end is to reach. The second angle is
/// relative to the first; 0 hangs down.
pub(super) fn acrobot(first: f64, second: f64) -> Picture {
    const LINK: f64 = 85.0;
    let mut canvas = paper();
    let top = [WIDTH / 2.0, HEIGHT / 2.0 + 10.0];
    let goal = top[1] - LINK;
    canvas.line([0.0, goal], [WIDTH, goal], 3.0, GOAL);
    let end =
        |from: Point, angle: f64| [from[0] + LINK * angle.sin(), from[1] + LINK * angle.cos()];
    let middle = end(top, first);
    canvas.line(top, middle, 16.0, INK);
    canvas.line(middle, end(middle, first + second), 16.0, AGENT);
    canvas.circle(top, 5.0, PAPER);
    canvas.circle(middle, 5.0, PAPER);
    canvas.finish()
}

/// A rod at an angle; 0 is upright.
pub(super) fn pendulum(angle: f64) -> Picture {
    const ROD: f64 = 140.0;
    let mut canvas = paper();
    let pivot = [WIDTH / 2.0, HEIGHT / 2.0];
    // Where it is to stand.
    canvas.line(
        [pivot[0], pivot[1]],
        [pivot[0], pivot[1] - ROD],
        3.0,
        GROUND,
    );
    canvas.circle([pivot[0], pivot[1] - ROD], 5.0, GOAL);
    // Angles grow against the clock.
    let heading = angle + PI / 2.0;
    let tip = [
        pivot[0] + ROD * heading.cos(),
        pivot[1] - ROD * heading.sin(),
    ];
    canvas.line(pivot, tip, 24.0, AGENT);
    canvas.circle(pivot, 7.0, INK);
    canvas.finish()
}

fn paper() -> Canvas {
    Canvas::new(WIDTH as usize, HEIGHT as usize, PAPER)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pole leans to the right for positive angles, and the cart moves with its position.
    #[test]
    fn a_pole_leans_where_its_angle_says() {
        let picture = cart_pole(0.0, 0.2, 2.4);
        // 60 pixels up the pole from its joint at (300, 266).
        let (x, y) = (300 + (60.0 * 0.2f64.sin()) as usize, 266 - 58);
        assert_eq!(picture.pixel(x, y), AGENT);
        assert_eq!(picture.pixel(600 - x, y), PAPER);
        assert_eq!(cart_pole(1.0, 0.0, 2.4).pixel(415, 280), INK);
        assert_eq!(picture.pixel(415, 280), PAPER);
    }

    /// A swing upwards by half a turn brings the end of the acrobot over its goal.
    #[test]
    fn links_point_where_their_angles_say() {
        let hanging = acrobot(0.0, 0.0);
        assert_eq!(hanging.pixel(300, 250), INK);
        assert_eq!(hanging.pixel(300, 350), AGENT);
        let up = acrobot(PI, 0.0);
        assert_eq!(up.pixel(300, 60), AGENT);
        let folded = acrobot(0.0, PI / 2.0);
        assert_eq!(folded.pixel(350, 295), AGENT);
    }

    #[test]
    fn a_pendulum_turns_against_the_clock() {
        assert_eq!(pendulum(0.0).pixel(300, 100), AGENT);
        assert_eq!(pendulum(PI / 2.0).pixel(200, 200), AGENT);
        assert_eq!(pendulum(PI).pixel(300, 300), AGENT);
    }

    /// The valley's lowest point is at −π/6, the flag at the goal.
    #[test]
    fn the_car_is_in_the_valley_and_the_flag_on_the_hill() {
        let picture = mountain_car(-PI / 6.0, 0.5, -1.2, 0.6);
        let x = (600.0 / 1.8 * (1.2 - PI / 6.0)) as usize;
        assert_eq!(picture.pixel(x, 325), AGENT);
        assert_eq!(picture.pixel(x, 390), GROUND);
        assert_eq!(picture.pixel(x, 200), PAPER);
    }
}
