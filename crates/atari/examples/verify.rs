//! Compares the console with traces of the Arcade Learning Environment.
//!
//! usage: verify ROM_FOLDER TRACE...
use std::path::Path;
use std::sync::Arc;

use starling_atari::cartridge::Rom;
use starling_atari::verify::{Trace, verify};

#[expect(clippy::print_stdout, reason = "this is a command")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let roms = arguments
        .next()
        .ok_or("usage: verify ROM_FOLDER TRACE...")?;
    let (mut equal, mut all) = (0, 0);
    for path in arguments {
        let trace = Trace::parse(&std::fs::read(&path)?)?;
        let rom = std::fs::read(Path::new(&roms).join(format!("{}.bin", trace.game)))?;
        let report = verify(Arc::new(Rom::new(&rom)?), &trace)?;
        all += 1;
        equal += usize::from(report.equal());
        let verdict = if report.equal() {
            "equal"
        } else if report.machine_equal() {
            "RULES"
        } else {
            "DIFFERS"
        };
        let game = &trace.game;
        println!("{verdict:8} {game:20} {report:?}");
    }
    println!("{equal} of {all} traces equal");
    Ok(())
}
