use super::*;
use std::fs::File;

/// A picture of 40 × 20 with cells of 10, of which one of the second row is lit.
fn board(lit: usize) -> Vec<u8> {
    let mut rgb = vec![30; 3 * 40 * 20];
    for y in 11..19 {
        for x in 10 * lit + 1..10 * lit + 9 {
            rgb[3 * (y * 40 + x)..][..3].copy_from_slice(&[200, 0, 0]);
        }
    }
    rgb
}

#[test]
fn only_what_changes_is_written() {
    assert_eq!(gif::changed(&board(0), &board(0), 40), [0, 0, 1, 1]);
    // The inner parts of cells 1 and 2 of the second row.
    assert_eq!(gif::changed(&board(1), &board(2), 40), [11, 11, 29, 19]);
}

#[test]
fn a_gif_shows_the_pictures_that_were_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gif");
    let mut video = Video::create(&path, (40, 20), 10.0).unwrap();
    for lit in [0, 1, 1, 3] {
        video.add(&board(lit)).unwrap();
    }
    video.finish().unwrap();
    let mut options = ::gif::DecodeOptions::new();
    options.set_color_output(::gif::ColorOutput::RGBA);
    let mut read = options.read_info(File::open(&path).unwrap()).unwrap();
    let mut shown = vec![0; 3 * 40 * 20];
    let mut pictures = Vec::new();
    while let Some(frame) = read.read_next_frame().unwrap() {
        assert_eq!(frame.delay, 10);
        for (i, pixel) in frame.buffer.chunks_exact(4).enumerate() {
            let width = usize::from(frame.width);
            let (x, y) = (
                usize::from(frame.left) + i % width,
                usize::from(frame.top) + i / width,
            );
            shown[3 * (y * 40 + x)..][..3].copy_from_slice(&pixel[..3]);
        }
        pictures.push(shown.clone());
    }
    assert_eq!(pictures, [0, 1, 1, 3].map(board));
}

#[test]
fn many_colours_become_a_palette() {
    let grey = |value: u32| [value as u8, (value / 3) as u8, 7];
    let few: Vec<[u8; 3]> = (0..200).map(grey).collect();
    let (palette, buffer) = gif::indexed(&few);
    assert_eq!((palette.len(), buffer.len()), (600, 200));
    let at = 3 * usize::from(buffer[100]);
    assert_eq!(palette[at..at + 3], grey(100));
    let many: Vec<[u8; 3]> = (0..4096u32)
        .map(|i| [(i / 16) as u8, (16 * (i % 16)) as u8, 9])
        .collect();
    let (palette, buffer) = gif::indexed(&many);
    assert!(palette.len() <= 768 && buffer.len() == 4096);
    for (colour, place) in many.iter().zip(buffer) {
        let shown = &palette[3 * usize::from(place)..][..3];
        let off = colour.iter().zip(shown).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(off < Some(32), "{colour:?} {shown:?}");
    }
}

/// Decoded again, the pictures are those that were added, up to what H.264 loses.
#[test]
fn an_mp4_shows_the_pictures_that_were_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mp4");
    // An odd size, which H.264 does not have.
    let (width, height) = (41, 35);
    let picture = |step: usize| {
        let mut rgb = vec![40; 3 * width * height];
        for y in 8..24 {
            for x in step..step + 16 {
                rgb[3 * (y * width + x)..][..3].copy_from_slice(&[220, 220, 60]);
            }
        }
        rgb
    };
    let mut video = Video::create(&path, (width, height), 30.0).unwrap();
    for step in 0..20 {
        video.add(&picture(step)).unwrap();
    }
    assert!(video.add(&[0; 3]).is_err());
    video.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(&bytes[4..8], b"ftyp");
    let frames = decoded(&bytes);
    assert_eq!(frames.len(), 20);
    for (step, frame) in frames.iter().enumerate() {
        let expected = picture(step);
        let mut total = 0;
        for y in 0..height {
            for x in 0..width {
                let (at, own) = (3 * (y * 42 + x), 3 * (y * width + x));
                let pairs = frame[at..at + 3].iter().zip(&expected[own..own + 3]);
                total += pairs.map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>();
            }
        }
        let mean = total as f64 / expected.len() as f64;
        assert!(mean < 12.0, "picture {step} is off by {mean} on average");
    }
}

/// The pictures of an MP4, 42 × 36 each, by OpenH264's decoder.
fn decoded(mp4: &[u8]) -> Vec<Vec<u8>> {
    use openh264::formats::YUVSource as _;
    let find = |name: &[u8]| mp4.windows(4).position(|window| window == name).unwrap();
    // Parameter sets come from the box avcC, samples with their lengths from mdat.
    let number = |at: usize, size: usize| {
        mp4[at..at + size]
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let start = [0u8, 0, 0, 1];
    let avcc = find(b"avcC") + 4;
    let sps = number(avcc + 6, 2);
    let pps_at = avcc + 8 + sps + 1;
    let pps = number(pps_at, 2);
    let sets = [&mp4[avcc + 8..][..sps], &mp4[pps_at + 2..][..pps]];
    let mut decoder = openh264::decoder::Decoder::new().unwrap();
    for set in sets {
        let _ = decoder.decode(&[&start, set].concat());
    }
    let mdat = find(b"mdat");
    let end = mdat - 4 + number(mdat - 4, 4);
    let mut at = mdat + 4;
    let mut frames = Vec::new();
    while at + 4 < end {
        let size = number(at, 4);
        let unit = [&start, &mp4[at + 4..at + 4 + size]].concat();
        if let Ok(Some(frame)) = decoder.decode(&unit) {
            let mut rgb = vec![0; 3 * 42 * 36];
            assert_eq!(frame.dimensions(), (42, 36));
            frame.write_rgb8(&mut rgb);
            frames.push(rgb);
        }
        at += 4 + size;
    }
    for frame in decoder.flush_remaining().unwrap() {
        let mut rgb = vec![0; 3 * 42 * 36];
        frame.write_rgb8(&mut rgb);
        frames.push(rgb);
    }
    frames
}

#[test]
fn what_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, size, reason) in [
        ("a.avi", (64, 64), "ends in .mp4 or .gif"),
        ("a", (64, 64), "ends in .mp4 or .gif"),
        ("a.mp4", (8, 64), "16 × 16 to 3,840 × 2,160"),
        ("a.gif", (70_000, 2), "65,535"),
    ] {
        let error = Video::create(&folder.path().join(name), size, 30.0).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    // Nothing is left of a video that was not finished.
    let mut video = Video::create(&folder.path().join("a.gif"), (40, 20), 10.0).unwrap();
    video.add(&board(1)).unwrap();
    drop(video);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
