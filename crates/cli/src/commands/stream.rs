//! `play --stream`: the latest agent of a run plays until its output is closed. The dashboard reads the
//! pictures; `Player` in the crate `dashboard` says how they are written.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engine::{Filmed, Played};
use crate::envs::render::Picture;

use super::play;

/// Pictures per second that are shown at most.
const FPS: f64 = 15.0;
/// An episode is shown no longer than this; the next one has the newest checkpoint.
const EPISODE: Duration = Duration::from_secs(120);
/// The last picture of an episode stays this long.
const PAUSE: Duration = Duration::from_millis(800);
/// How much the process gives way to training.
const NICE: i32 = 19;

/// Plays episode after episode.
pub(super) fn run(run: &Path) -> anyhow::Result<ExitCode> {
    // That the priority cannot be lowered is no reason not to play.
    let _ = rustix::process::nice(NICE);
    starling_nets::set_threads(1);
    let mut out = io::stdout().lock();
    for episode in 1.. {
        match play(run, episode, &mut out) {
            Ok(()) => {}
            // The viewer is gone.
            Err(error) if super::is_broken_pipe(&error) => break,
            Err(error) => {
                let text = super::explain(&error);
                write(&mut out, &json!({ "error": text }), &[])?;
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn play(run: &Path, episode: u64, out: &mut impl Write) -> anyhow::Result<()> {
    // On the CPU: the memory of a GPU belongs to the training.
    let (config, agent, checkpoint) = play::agent(run, Some("cpu"))?;
    let spec = config.env_spec()?;
    super::roms::ensure(spec.id)?;
    let options = (spec.for_evaluation)(&config.env);
    let roles = ["play", "play-policy"];
    let mut player = Filmed::new(spec, &options, Some(agent), roles, episode)?;
    // Every picture, or every second, third, … one, at the speed that it is meant for.
    let steps = (player.fps() / FPS).ceil().max(1.0);
    let pause = Duration::from_secs_f64(steps / player.fps());
    let mut played = Played::default();
    player.begin()?;
    let began = Instant::now();
    let mut due = began;
    let mut ended = false;
    while !ended && began.elapsed() < EPISODE {
        show(&mut player, played, (episode, checkpoint), false, out)?;
        for _ in 0..steps as u64 {
            let step = player.step()?;
            played.return_ += f64::from(step.reward);
            played.steps += 1;
            ended = step.done();
            if ended {
                break;
            }
        }
        // Where a step takes longer than it should, what is late is not caught up.
        due = (due + pause).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    show(&mut player, played, (episode, checkpoint), ended, out)?;
    std::thread::sleep(PAUSE);
    Ok(())
}

fn show(
    player: &mut Filmed,
    played: Played,
    (episode, checkpoint): (u64, u64),
    ended: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let picture = player.picture()?;
    let described = json!({
        "episode": episode,
        "checkpoint": checkpoint,
        "step": played.steps,
        "return": played.return_,
        "ended": ended,
    });
    write(out, &described, &png(&picture)?)
}

fn write(out: &mut impl Write, described: &Value, png: &[u8]) -> anyhow::Result<()> {
    let text = described.to_string();
    for length in [text.len(), png.len()] {
        out.write_all(&u32::try_from(length)?.to_le_bytes())?;
    }
    out.write_all(text.as_bytes())?;
    out.write_all(png)?;
    Ok(out.flush()?)
}

fn png(picture: &Picture) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let (width, height) = (picture.width.try_into()?, picture.height.try_into()?);
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header()?.write_image_data(&picture.rgb)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::render::cells;

    #[test]
    fn a_picture_is_written_as_it_is() {
        let picture = cells(2, 3, 5, |row, column| {
            (row == column).then_some([200, 0, 7])
        });
        let mut out = Vec::new();
        write(&mut out, &json!({"step": 3}), &png(&picture).unwrap()).unwrap();
        let length = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap()) as usize;
        let (text, image) = (length(0), length(4));
        assert_eq!(&out[8..8 + text], br#"{"step":3}"#);
        assert_eq!(out.len(), 8 + text + image);
        let decoder = png::Decoder::new(io::Cursor::new(&out[8 + text..]));
        let mut reader = decoder.read_info().unwrap();
        let mut rgb = vec![0; picture.rgb.len()];
        reader.next_frame(&mut rgb).unwrap();
        assert_eq!(rgb, picture.rgb);
    }
}
