//! Checkpoints under damage, crashes, full disks and missing permissions.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use starling_record::checkpoint::{best, best_with, latest, latest_with};
use starling_record::{
    Checkpoint, CheckpointWriter, Checkpoints, Damage, Error, Result, Retention,
};

fn open(folder: &Path) -> Checkpoints {
    Checkpoints::open(folder, Retention::default()).unwrap()
}

fn write(checkpoints: &mut Checkpoints, step: u64, score: Option<f64>) -> Result<PathBuf> {
    let mut writer = checkpoints.begin(step)?;
    writer.file("weights.safetensors", &[step as u8; 100])?;
    let mut replay = writer.create("replay.zst").unwrap();
    for piece in 0..40 {
        replay.write_all(&[piece; 5000]).unwrap();
    }
    replay.finish()?;
    commit(writer, score)
}

/// Commits without any warning.
fn commit(writer: CheckpointWriter<'_>, score: Option<f64>) -> Result<PathBuf> {
    let committed = writer.commit(score)?;
    assert!(committed.warnings.is_empty(), "{:?}", committed.warnings);
    Ok(committed.path)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_was_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    let path = write(&mut checkpoints, 20_000, Some(1.5)).unwrap();
    assert_eq!(path, folder.path().join("000000020000"));
    let (checkpoint, damaged) = latest(folder.path()).unwrap();
    assert!(damaged.is_empty());
    assert_eq!((checkpoint.step(), checkpoint.score()), (20_000, Some(1.5)));
    assert_eq!(checkpoint.read("weights.safetensors").unwrap(), [32; 100]);
    assert_eq!(checkpoint.read("replay.zst").unwrap().len(), 200_000);
    let files: Vec<&str> = checkpoint.files().collect();
    assert_eq!(files, ["replay.zst", "weights.safetensors"]);
    let error = checkpoint.read("optimizer").unwrap_err().to_string();
    assert!(error.contains("it has: replay.zst"), "{error}");
}

#[test]
fn equal_contents_give_equal_bytes_whatever_the_times() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut manifests = Vec::new();
    for (run, folder) in folders.iter().enumerate() {
        let mut checkpoints = open(folder.path());
        let mut writer = checkpoints.begin(7).unwrap();
        writer.file("b", b"two").unwrap();
        writer.times(&json!({ "seconds": run })).unwrap();
        writer.file("a", b"one").unwrap();
        let path = commit(writer, Some(0.1 + 0.2)).unwrap();
        manifests.push(fs::read_to_string(path.join("manifest.json")).unwrap());
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.times(), Some(json!({ "seconds": run })));
        assert_eq!(names(&path), ["a", "b", "manifest.json", "times.json"]);
    }
    assert_eq!(manifests[0], manifests[1]);
    // The checksums are those of CRC-32C, worked out with another program.
    assert!(
        manifests[0].contains("\"crc32c\": \"2a94b2e9\""),
        "{}",
        manifests[0]
    );
}

/// Writes a checkpoint that takes over the replay of an earlier one.
fn write_linked(checkpoints: &mut Checkpoints, step: u64, earlier: &Path) -> Result<PathBuf> {
    let mut writer = checkpoints.begin(step)?;
    writer.file("weights.safetensors", &[step as u8; 100])?;
    writer.link(earlier, "replay.zst")?;
    commit(writer, None)
}

/// The bytes are on disk once, and stay until the last checkpoint that names them is gone.
#[cfg(unix)]
#[test]
fn a_file_taken_over_is_stored_once_and_outlives_its_first_checkpoint() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir().unwrap();
    let retention = Retention {
        keep_last: 2,
        milestone_steps: None,
    };
    let mut checkpoints = Checkpoints::open(folder.path(), retention).unwrap();
    let mut last = write(&mut checkpoints, 1, None).unwrap();
    for step in 2..=4 {
        last = write_linked(&mut checkpoints, step, &last).unwrap();
    }
    let (checkpoint, damaged) = latest(folder.path()).unwrap();
    assert_eq!((checkpoint.step(), damaged.len()), (4, 0));
    assert_eq!(checkpoint.read("replay.zst").unwrap().len(), 200_000);
    assert_eq!(names(folder.path()), ["000000000003", "000000000004"]);
    let links = |path: &Path| fs::metadata(path.join("replay.zst")).unwrap().nlink();
    assert_eq!(links(&last), 2);
    // A checkpoint that does not take it over lets go of it.
    write(&mut checkpoints, 5, None).unwrap();
    assert_eq!(links(&last), 1);
    write(&mut checkpoints, 6, None).unwrap();
    assert!(!last.exists());
}

/// Where the earlier checkpoint is on another file system, links are impossible.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_linked_is_copied_and_checked() {
    use std::os::unix::fs::MetadataExt as _;
    let (here, there) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir_in("/dev/shm").unwrap(),
    );
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(here.path()), device(there.path()));
    let earlier = write(&mut open(there.path()), 1, None).unwrap();
    let mut checkpoints = open(here.path());
    write_linked(&mut checkpoints, 2, &earlier).unwrap();
    let (checkpoint, _) = latest(here.path()).unwrap();
    assert_eq!(checkpoint.read("replay.zst").unwrap().len(), 200_000);
    change(&earlier.join("replay.zst"), |bytes| bytes[77] ^= 1);
    let error = write_linked(&mut checkpoints, 3, &earlier).unwrap_err();
    assert!(error.to_string().contains("replay.zst has changed"));
    assert_eq!(latest(here.path()).unwrap().0.step(), 2);
}

#[test]
fn only_what_is_there_and_whole_can_be_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    let earlier = write(&mut checkpoints, 1, None).unwrap();
    let mut writer = checkpoints.begin(2).unwrap();
    let error = writer.link(&earlier, "optimizer").unwrap_err();
    assert!(
        error.to_string().contains("optimizer is missing"),
        "{error}"
    );
    writer.link(&earlier, "replay.zst").unwrap();
    let error = writer.link(&earlier, "replay.zst").unwrap_err();
    assert!(matches!(error, Error::BadName { .. }), "{error}");
    drop(writer);
    // A link that is dropped leaves the original alone.
    assert!(Checkpoint::open(&earlier).is_ok());
    change(&earlier.join("replay.zst"), |bytes| bytes.truncate(9));
    let error = write_linked(&mut checkpoints, 2, &earlier).unwrap_err();
    assert!(error.to_string().contains("9 bytes instead of 200000"));
}

/// Whatever happened to the earlier file, the caller learns that it is of no use, and can write
/// the file again into the same checkpoint.
#[test]
fn a_file_that_cannot_be_taken_over_can_be_written_again() {
    type Harm = fn(&Path);
    let harms: [Harm; 6] = [
        |earlier| change(&earlier.join("replay.zst"), |bytes| bytes[9] ^= 1),
        |earlier| change(&earlier.join("replay.zst"), |bytes| bytes.truncate(9)),
        |earlier| fs::remove_file(earlier.join("replay.zst")).unwrap(),
        |earlier| change(&earlier.join("manifest.json"), |bytes| bytes[9] ^= 1),
        |earlier| fs::remove_file(earlier.join("manifest.json")).unwrap(),
        |earlier| fs::remove_dir_all(earlier).unwrap(),
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoints = open(folder.path());
        let earlier = write(&mut checkpoints, 1, None).unwrap();
        harm(&earlier);
        let before = fs::read(earlier.join("replay.zst")).ok();
        let mut writer = checkpoints.begin(2).unwrap();
        let error = writer.link(&earlier, "replay.zst").unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{number}: {error}");
        writer.file("replay.zst", b"everything").unwrap();
        let path = commit(writer, None).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.read("replay.zst").unwrap(), b"everything");
        // The earlier file was not written to.
        assert_eq!(
            fs::read(earlier.join("replay.zst")).ok(),
            before,
            "{number}"
        );
    }
}

/// Bytes that changed on disk are not committed a second time, whether this process wrote them,
/// found them whole when it started, or never looked at them.
#[test]
fn a_changed_file_is_not_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut writing = open(folder.path());
    let earlier = write(&mut writing, 1, None).unwrap();
    let later = write_linked(&mut writing, 2, &earlier).unwrap();
    let mut resumed = open(folder.path());
    assert_eq!(resumed.latest().unwrap().0.step(), 2);
    let mut fresh = open(folder.path());
    change(&later.join("replay.zst"), |bytes| bytes[123_456] ^= 1);
    for checkpoints in [&mut writing, &mut resumed, &mut fresh] {
        let error = write_linked(checkpoints, 3, &later).unwrap_err();
        assert!(
            error.to_string().contains("replay.zst has changed"),
            "{error}"
        );
    }
}

/// One damaged file does not keep the others from being used.
#[test]
fn only_what_is_needed_has_to_be_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    let first = write(&mut checkpoints, 1, Some(1.0)).unwrap();
    let mut newest = first.clone();
    for step in [2, 3] {
        newest = write_linked(&mut checkpoints, step, &newest).unwrap();
    }
    // One file by three names.
    change(&newest.join("replay.zst"), |bytes| bytes[5] ^= 1);
    assert!(latest(folder.path()).is_err());
    let weights = |name: &str| name == "weights.safetensors";
    let (mut found, damaged) = latest_with(folder.path(), weights).unwrap();
    assert_eq!((found.step(), damaged.len()), (3, 0));
    assert_eq!(found.read("weights.safetensors").unwrap(), [3; 100]);
    let changed = Damage::Checksum("replay.zst".to_owned());
    assert_eq!(
        found.damaged_files(|_| true),
        [("replay.zst".to_owned(), changed)]
    );
    // What was not checked is checked when it is read.
    for error in [
        found.read("replay.zst").unwrap_err(),
        found.reader("replay.zst").unwrap_err(),
    ] {
        assert!(matches!(error, Error::Damaged(_)), "{error}");
    }
    assert!(best(folder.path()).is_err());
    assert_eq!(
        best_with(folder.path(), weights).unwrap().unwrap().step(),
        1
    );

    fs::remove_file(newest.join("weights.safetensors")).unwrap();
    let (found, damaged) = checkpoints.latest_with(weights).unwrap();
    assert_eq!((found.step(), damaged.len()), (2, 1));
}

/// Damages the newest of two checkpoints, and checks that it is named and the older one used.
fn damaged_newest(damage: impl FnOnce(&Path)) -> Damage {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    write(&mut checkpoints, 100, None).unwrap();
    let newest = write(&mut checkpoints, 200, None).unwrap();
    damage(&newest);
    let (checkpoint, damaged) = checkpoints.latest().unwrap();
    assert_eq!(checkpoint.step(), 100);
    assert_eq!(damaged.len(), 1);
    assert_eq!(damaged[0].path, newest);
    assert!(
        damaged[0]
            .to_string()
            .contains("000000000200 cannot be used")
    );
    damaged.into_iter().next().unwrap().reason
}

#[test]
fn damage_is_named_and_the_previous_one_is_used() {
    let truncated = damaged_newest(|path| {
        change(&path.join("replay.zst"), |bytes| bytes.truncate(150_000));
    });
    let (name, found, expected) = ("replay.zst".to_owned(), 150_000, 200_000);
    assert_eq!(
        truncated,
        Damage::Length {
            name,
            found,
            expected
        }
    );

    let flipped = damaged_newest(|path| {
        change(&path.join("replay.zst"), |bytes| bytes[123_456] ^= 1);
    });
    assert_eq!(flipped, Damage::Checksum("replay.zst".to_owned()));

    let missing = damaged_newest(|path| fs::remove_file(path.join("replay.zst")).unwrap());
    assert_eq!(missing, Damage::MissingFile("replay.zst".to_owned()));

    let headless = damaged_newest(|path| fs::remove_file(path.join("manifest.json")).unwrap());
    assert_eq!(headless, Damage::NoManifest);

    let cut = damaged_newest(|path| {
        change(&path.join("manifest.json"), |bytes| bytes.truncate(40));
    });
    assert!(matches!(cut, Damage::BadManifest(_)), "{cut}");

    let renamed = damaged_newest(|path| {
        let older = path.with_file_name("000000000100");
        fs::copy(older.join("manifest.json"), path.join("manifest.json")).unwrap();
    });
    assert_eq!(
        renamed,
        Damage::BadManifest("it is that of step 100".to_owned())
    );

    let newer = damaged_newest(|path| {
        fs::write(path.join("manifest.json"), r#"{"format": 2, "parts": []}"#).unwrap();
    });
    assert_eq!(newer, Damage::NewerFormat(2));
}

#[test]
fn no_bit_of_the_manifest_can_flip_unnoticed() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    let mut writer = checkpoints.begin(1).unwrap();
    writer.file("a", b"1").unwrap();
    let path = commit(writer, Some(12.5)).unwrap();
    let manifest = path.join("manifest.json");
    let whole = fs::read(&manifest).unwrap();
    let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    for at in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        fs::write(&manifest, &flipped).unwrap();
        // White space that turned into other white space means the same.
        let harmless = value(&flipped) == value(&whole);
        assert_eq!(Checkpoint::open(&path).is_ok(), harmless, "bit {at}");
    }
}

#[test]
fn without_a_whole_one_the_error_names_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    assert!(matches!(
        checkpoints.latest(),
        Err(Error::NoCheckpoint { .. })
    ));
    for step in [1, 2] {
        let path = write(&mut checkpoints, step, None).unwrap();
        fs::remove_file(path.join("weights.safetensors")).unwrap();
    }
    let error = checkpoints.latest().unwrap_err().to_string();
    assert!(
        error.contains("000000000001") && error.contains("000000000002"),
        "{error}"
    );
    assert!(latest(&folder.path().join("nowhere")).is_err());
}

#[test]
fn a_crash_before_the_end_leaves_the_previous_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    write(&mut checkpoints, 100, None).unwrap();
    let mut writer = checkpoints.begin(200).unwrap();
    writer.file("weights.safetensors", b"new").unwrap();
    // As if the process had been killed: nothing is tidied up.
    std::mem::forget(writer);
    assert_eq!(
        names(folder.path()),
        [".writing-000000000200", "000000000100"]
    );
    let (checkpoint, damaged) = latest(folder.path()).unwrap();
    assert_eq!((checkpoint.step(), damaged.len()), (100, 0));
    open(folder.path());
    assert_eq!(names(folder.path()), ["000000000100"]);
}

#[test]
fn a_crash_while_one_is_replaced_or_removed_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    for step in [1, 2, 3] {
        write(&mut checkpoints, step, None).unwrap();
    }
    let at = |name: &str| folder.path().join(name);
    fs::rename(at("000000000003"), at(".replaced-000000000003")).unwrap();
    fs::rename(at("000000000001"), at(".removed-000000000001")).unwrap();
    open(folder.path());
    assert_eq!(names(folder.path()), ["000000000002", "000000000003"]);
    assert_eq!(latest(folder.path()).unwrap().0.step(), 3);
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    let mut writer = checkpoints.begin(200).unwrap();
    writer.file("weights.safetensors", b"new").unwrap();
    drop(writer);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_unfinished_file_is_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    let mut writer = checkpoints.begin(200).unwrap();
    writer
        .create("replay.zst")
        .unwrap()
        .write_all(b"half")
        .unwrap();
    assert!(matches!(writer.commit(None), Err(Error::Unfinished { .. })));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn file_names_that_lead_elsewhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    let mut writer = checkpoints.begin(1).unwrap();
    writer.file("a", b"").unwrap();
    for name in ["", "..", "../x", "a/b", "manifest.json", "times.json", "a"] {
        let error = writer.file(name, b"").unwrap_err();
        assert!(matches!(error, Error::BadName { .. }), "{name}: {error}");
    }
}

#[test]
fn the_last_three_the_best_and_milestones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let retention = Retention {
        keep_last: 3,
        milestone_steps: Some(1000),
    };
    let mut checkpoints = Checkpoints::open(folder.path(), retention).unwrap();
    let scores = [1.0, 9.0, 2.0, f64::NAN, 9.0, 4.0, 5.0, 6.0, 7.0];
    for (index, score) in scores.into_iter().enumerate() {
        let step = 300 * (index as u64 + 1);
        write(&mut checkpoints, step, Some(score)).unwrap();
    }
    // 600 scored 9 first; 1200 is the first from 1000 on, 2100 from 2000 on; then the last 3.
    let expected = [600, 1200, 2100, 2400, 2700].map(|step| format!("{step:012}"));
    assert_eq!(names(folder.path())[..5], expected);
    assert_eq!(names(folder.path())[5..], ["best"]);
    assert_eq!(best(folder.path()).unwrap().unwrap().step(), 600);
    let marker = fs::read_to_string(folder.path().join("best")).unwrap();
    assert_eq!(marker, "000000000600\n");
    write(&mut checkpoints, 3000, Some(10.0)).unwrap();
    assert_eq!(best(folder.path()).unwrap().unwrap().step(), 3000);
    let expected = [1200, 2100, 2400, 2700, 3000].map(|step| format!("{step:012}"));
    assert_eq!(names(folder.path())[..5], expected);
}

#[test]
fn damaged_ones_do_not_push_good_ones_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    write(&mut checkpoints, 100, None).unwrap();
    for step in [200, 300] {
        let path = write(&mut checkpoints, step, None).unwrap();
        change(&path.join("replay.zst"), |bytes| bytes[0] ^= 1);
    }
    let mut resumed = open(folder.path());
    assert_eq!(resumed.latest().unwrap().0.step(), 100);
    for step in [150, 175] {
        write(&mut resumed, step, None).unwrap();
    }
    assert_eq!(resumed.latest().unwrap().0.step(), 175);
    assert!(Checkpoint::open(&folder.path().join("000000000100")).is_ok());
    // The damaged one is replaced when its step comes again.
    write(&mut resumed, 200, None).unwrap();
    let (newest, damaged) = resumed.latest().unwrap();
    assert_eq!((newest.step(), damaged.len()), (200, 1));
}

/// With the last three kept and two of them passed over, the next three usable ones stay.
#[test]
fn ones_whose_content_is_unusable_do_not_push_good_ones_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    for step in [100, 200, 300] {
        write(&mut checkpoints, step, None).unwrap();
    }
    for step in [200, 300] {
        checkpoints.pass_over(step);
    }
    for step in [150, 175] {
        write(&mut checkpoints, step, None).unwrap();
    }
    let kept = [100, 150, 175, 200, 300].map(|step| format!("{step:012}"));
    assert_eq!(names(folder.path()), kept);
    // Written again, they count.
    write(&mut checkpoints, 200, None).unwrap();
    let kept = [150, 175, 200, 300].map(|step| format!("{step:012}"));
    assert_eq!(names(folder.path()), kept);
}

#[test]
fn a_folder_that_was_deleted_is_named() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("checkpoints");
    let mut checkpoints = open(&folder);
    fs::remove_dir_all(&folder).unwrap();
    let error = write(&mut checkpoints, 100, None).unwrap_err();
    assert!(
        matches!(&error, Error::Gone { path } if *path == folder),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_the_previous_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = open(folder.path());
    write(&mut checkpoints, 100, None).unwrap();
    let mut writer = checkpoints.begin(200).unwrap();
    let aside = folder.path().join(".writing-000000000200/weights");
    std::os::unix::fs::symlink("/dev/full", aside).unwrap();
    let error = writer.file("weights", &[1; 10]).unwrap_err().to_string();
    assert!(
        error.contains("weights") && error.contains("Free some disk space"),
        "{error}"
    );
    assert!(matches!(writer.commit(None), Err(Error::Unfinished { .. })));
    assert_eq!(names(folder.path()), ["000000000100"]);
    assert_eq!(latest(folder.path()).unwrap().0.step(), 100);
}

/// Network file systems keep a folder as long as somebody has a file of it open. Here something
/// is in the way that cannot be removed as a folder.
#[test]
fn an_old_one_that_cannot_be_removed_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let retention = Retention {
        keep_last: 1,
        milestone_steps: None,
    };
    let mut checkpoints = Checkpoints::open(folder.path(), retention).unwrap();
    let first = write(&mut checkpoints, 1, None).unwrap();
    let blocked = folder.path().join(".removed-000000000001");
    fs::write(&blocked, "").unwrap();
    let mut writer = checkpoints.begin(2).unwrap();
    writer.file("weights.safetensors", b"2").unwrap();
    let committed = writer.commit(None).unwrap();
    // The old one could not be renamed, and what is in the way could not be removed.
    assert_eq!(committed.warnings.len(), 2, "{:?}", committed.warnings);
    for warning in &committed.warnings {
        assert!(warning.contains("cannot remove"), "{warning}");
    }
    assert_eq!(latest(folder.path()).unwrap().0.step(), 2);
    assert!(first.exists());
    // The next one tries again.
    fs::remove_file(&blocked).unwrap();
    write(&mut checkpoints, 3, None).unwrap();
    assert_eq!(names(folder.path()), ["000000000003"]);
}

/// A checkpoint from elsewhere cannot make this program read other files, or read forever.
#[cfg(target_os = "linux")]
#[test]
fn a_manifest_cannot_lead_elsewhere() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let path = write(&mut open(folder.path()), 1, None).unwrap();
    let manifest = path.join("manifest.json");
    let whole = fs::read(&manifest).unwrap();
    let damage = || match Checkpoint::open(&path).unwrap_err() {
        Error::Damaged(damaged) => damaged.reason.to_string(),
        other => panic!("{other}"),
    };
    fs::write(folder.path().join("secret"), "").unwrap();
    for name in ["../secret", "/dev/zero", "", "manifest.json", ".."] {
        let text = |check: &str| {
            format!(
                "{{\"format\":1,\"step\":1,\"score\":null,\"files\":[{{\"name\":\"{name}\",\
                 \"bytes\":0,\"crc32c\":\"00000000\"}}],\"check\":\"{check}\"}}"
            )
        };
        let check = format!("{:08x}", crc32c::crc32c(text("").as_bytes()));
        fs::write(&manifest, text(&check)).unwrap();
        assert!(damage().contains("not a plain file name"), "{}", damage());
    }
    fs::remove_file(&manifest).unwrap();
    symlink("/dev/zero", &manifest).unwrap();
    assert!(damage().contains("not a regular file"), "{}", damage());
    fs::remove_file(&manifest).unwrap();
    fs::write(&manifest, vec![b' '; 20_000_000]).unwrap();
    assert!(
        damage().contains("more than 16777216 bytes"),
        "{}",
        damage()
    );

    fs::write(&manifest, whole).unwrap();
    let pipe = |name: &str| {
        let _ = fs::remove_file(path.join(name));
        let made = std::process::Command::new("mkfifo")
            .arg(path.join(name))
            .status();
        assert!(made.unwrap().success());
    };
    pipe("times.json");
    assert_eq!(Checkpoint::open(&path).unwrap().times(), None);
    pipe("weights.safetensors");
    assert!(damage().contains("not a regular file"), "{}", damage());

    for name in ["/etc", "../checkpoints/000000000001", "1", "best"] {
        fs::write(folder.path().join("best"), name).unwrap();
        let error = best(folder.path()).unwrap_err();
        assert!(error.to_string().contains("not the name of a checkpoint"));
    }
}

#[test]
fn what_a_kill_left_beside_the_checkpoints_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("a/b/checkpoints");
    write(&mut open(&folder), 1, Some(1.0)).unwrap();
    fs::write(folder.join(".best.new"), "0000").unwrap();
    open(&folder);
    assert_eq!(names(&folder), ["000000000001", "best"]);
}
