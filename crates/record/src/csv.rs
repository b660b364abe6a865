//! Tables of numbers as CSV: a writer whose header may grow, and a forgiving reader.
//!
//! Read first: [`CsvFile`] (the writer), [`Table`] (what was written, read back).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::durable::replace_file;
use crate::error::{Context, Error, Result};

/// A CSV file that rows are appended to.
///
/// A row may bring columns the file did not have: they are added at the right, and older rows
/// get `nan` there. A row that lacks a column gets `nan` too. [`CsvFile::append`] hands every row
/// to the operating system before it returns.
#[derive(Debug)]
pub struct CsvFile {
    path: PathBuf,
    /// Open as soon as there is a header; a file without columns is not created.
    file: Option<File>,
    columns: Vec<String>,
    rows: usize,
    bytes: u64,
}

/// How far a [`CsvFile`] had got: with it a resumed run continues the file exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsvState {
    /// Rows written, the header not counted.
    pub rows: usize,
    /// Columns in the header.
    pub columns: usize,
}

impl CsvFile {
    /// A new file, which appears with its first row and replaces one that was there.
    pub fn create(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            columns: Vec::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// Continues a file as it was at `state`: rows and columns that came later are removed, and
    /// cells that are no longer text become `nan`.
    ///
    /// If the file is gone, a new one is started.
    ///
    /// # Errors
    /// [`Error::CsvShort`] if the file holds less than it did at `state`; [`Error::Malformed`] if
    /// the names of its columns are damaged.
    pub fn resume(path: PathBuf, state: CsvState) -> Result<Self> {
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::create(path)),
            Err(error) => return Err(error).doing("read", &path),
        };
        if state.columns == 0 {
            // Whatever is there was written after the checkpoint.
            fs::remove_file(&path).doing("remove", &path)?;
            return Ok(Self::create(path));
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = complete_lines(&text);
        let mut columns = lines.next().map(split_header).unwrap_or_default();
        if columns
            .iter()
            .take(state.columns)
            .any(|name| is_damaged(name))
        {
            return Err(Error::Malformed {
                path,
                reason: "the names of its columns are damaged. Restore the original file, or move \
                         this one away to start a new one"
                    .to_owned(),
            });
        }
        let found = lines.clone().count();
        if found < state.rows || columns.len() < state.columns {
            return Err(Error::CsvShort {
                path,
                found,
                columns: columns.len(),
                expected: state.rows,
                expected_columns: state.columns,
            });
        }
        columns.truncate(state.columns);
        let mut kept = header_line(&columns);
        for line in lines.take(state.rows) {
            let cells = line.split(',').take(state.columns);
            let cells = cells.map(|cell| if is_damaged(cell) { "nan" } else { cell });
            let cells: Vec<&str> = cells.collect();
            kept.push_str(&cells.join(","));
            kept.push('\n');
        }
        if kept.as_bytes() != bytes {
            replace_file(&path, kept.as_bytes())?;
        }
        Ok(Self {
            file: Some(open_to_append(&path)?),
            path,
            columns,
            rows: state.rows,
            bytes: kept.len() as u64,
        })
    }

    /// Appends one row. If that fails, the file is as it was before.
    pub fn append<K: AsRef<str>>(&mut self, row: &[(K, f64)]) -> Result<()> {
        let new = self.new_columns(row)?;
        let mut values = vec![f64::NAN; self.columns.len() + new.len()];
        for (key, value) in row {
            let known = self.columns.iter().chain(&new);
            // Every key is among the known columns or the new ones, by the lines above.
            if let Some(at) = known.clone().position(|column| column == key.as_ref()) {
                values[at] = *value;
            }
        }
        let cells: Vec<String> = values.iter().map(|value| format_number(*value)).collect();
        let mut line = cells.join(",");
        line.push('\n');
        if new.is_empty() && self.file.is_some() {
            self.append_line(&line)?;
        } else {
            self.grow(new, &line)?;
        }
        self.rows += 1;
        Ok(())
    }

    /// How far the file has got.
    pub fn state(&self) -> CsvState {
        CsvState {
            rows: self.rows,
            columns: self.columns.len(),
        }
    }

    /// The file and its path, to be synced elsewhere; none before the first row.
    pub(crate) fn handle(&self) -> Result<Option<(File, PathBuf)>> {
        let clone = |file: &File| file.try_clone().doing("sync", &self.path);
        let file = self.file.as_ref().map(clone).transpose()?;
        Ok(file.map(|file| (file, self.path.clone())))
    }

    fn new_columns<K: AsRef<str>>(&self, row: &[(K, f64)]) -> Result<Vec<String>> {
        let mut new = Vec::new();
        for (index, (key, _)) in row.iter().enumerate() {
            let key = key.as_ref();
            let bad = |reason| {
                Err(Error::BadName {
                    what: "metric",
                    name: key.to_owned(),
                    reason,
                })
            };
            if key.is_empty() || key.contains(['\n', '\r']) {
                return bad("a metric's name is one line of text");
            }
            if row[..index].iter().any(|(other, _)| other.as_ref() == key) {
                return bad("the row has it twice");
            }
            if !self.columns.iter().any(|column| column == key) {
                new.push(key.to_owned());
            }
        }
        Ok(new)
    }

    fn append_line(&mut self, line: &str) -> Result<()> {
        // `append` only comes here with an open file.
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if let Err(error) = file.write_all(line.as_bytes()) {
            // A full disk may have taken half of the row. Without it the file is whole again.
            let _ = file.set_len(self.bytes);
            return Err(error).doing("write", &self.path);
        }
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Rewrites the file with more columns, the older rows padded, and the row `line`.
    fn grow(&mut self, new: Vec<String>, line: &str) -> Result<()> {
        let padding = ",nan".repeat(new.len());
        let mut columns = self.columns.clone();
        columns.extend(new);
        let mut text = header_line(&columns);
        if self.file.is_some() {
            let old = fs::read(&self.path).doing("read", &self.path)?;
            let old = String::from_utf8_lossy(&old);
            for row in complete_lines(&old).skip(1) {
                text.push_str(row);
                text.push_str(&padding);
                text.push('\n');
            }
        }
        text.push_str(line);
        replace_file(&self.path, text.as_bytes())?;
        self.file = Some(open_to_append(&self.path)?);
        self.columns = columns;
        self.bytes = text.len() as u64;
        Ok(())
    }
}

/// A CSV file read back: every row has one number per column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows. What was missing or is no number is NaN.
    pub rows: Vec<Vec<f64>>,
}

impl Table {
    /// Reads a file, also while it is being written: a last line that is cut short is left out.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).doing("read", path)?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Self {
        let mut lines = complete_lines(text);
        let columns = lines.next().map(split_header).unwrap_or_default();
        let parse = |cell: &str| cell.trim().parse().unwrap_or(f64::NAN);
        let rows = lines
            .map(|line| {
                let mut row: Vec<f64> = line.split(',').map(parse).collect();
                row.resize(columns.len(), f64::NAN);
                row
            })
            .collect();
        Self { columns, rows }
    }

    /// The values of one column, top to bottom.
    pub fn column(&self, name: &str) -> Option<Vec<f64>> {
        let at = self.columns.iter().position(|column| column == name)?;
        Some(self.rows.iter().map(|row| row[at]).collect())
    }
}

/// The shortest text that reads back as the same number; very large and very small numbers with
/// an exponent.
pub fn format_number(value: f64) -> String {
    let size = value.abs();
    if value.is_nan() {
        "nan".to_owned()
    } else if size == 0.0 || (1e-5..1e16).contains(&size) || size.is_infinite() {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

fn open_to_append(path: &Path) -> Result<File> {
    OpenOptions::new()
        .append(true)
        .open(path)
        .doing("open", path)
}

/// Whether text was read from bytes that are not text: a number has no such character.
fn is_damaged(text: &str) -> bool {
    text.contains(char::REPLACEMENT_CHARACTER)
}

/// The lines that end: one that was cut short by a crash has no newline.
fn complete_lines(text: &str) -> impl Iterator<Item = &str> + Clone {
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
}

fn header_line(columns: &[String]) -> String {
    let quoted: Vec<String> = columns
        .iter()
        .map(|name| {
            if name.contains([',', '"']) {
                format!("\"{}\"", name.replace('"', "\"\""))
            } else {
                name.clone()
            }
        })
        .collect();
    quoted.join(",") + "\n"
}

fn split_header(line: &str) -> Vec<String> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                push_char(&mut columns, '"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            c => push_char(&mut columns, c),
        }
    }
    columns
}

fn push_char(columns: &mut [String], c: char) {
    if let Some(last) = columns.last_mut() {
        last.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_header_grows_and_older_rows_are_padded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.csv");
        let mut csv = CsvFile::create(path.clone());
        csv.append(&[("a", 1.0), ("b", 0.5)]).unwrap();
        csv.append(&[("b", 2.0)]).unwrap();
        csv.append(&[("c, d", 1e-7), ("a", f64::INFINITY)]).unwrap();
        assert_eq!(
            text(&path),
            "a,b,\"c, d\"\n1,0.5,nan\nnan,2,nan\ninf,nan,1e-7\n"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let table = Table::read(&path).unwrap();
        assert_eq!(table.columns, ["a", "b", "c, d"]);
        assert_eq!(table.column("c, d").unwrap()[2], 1e-7);
    }

    #[test]
    fn a_resumed_file_equals_an_uninterrupted_one() {
        let folder = tempfile::tempdir().unwrap();
        let rows: Vec<Vec<(&str, f64)>> = vec![
            vec![("step", 1.0), ("x", 0.1)],
            vec![("step", 2.0), ("x", 0.2)],
            vec![("step", 3.0), ("late", 7.0), ("x", 0.3)],
            vec![("step", 4.0), ("later", 8.0)],
        ];
        let whole = folder.path().join("whole.csv");
        let mut csv = CsvFile::create(whole.clone());
        let mut states = vec![csv.state()];
        for row in &rows {
            csv.append(row).unwrap();
            states.push(csv.state());
        }
        for (taken, state) in states.iter().enumerate() {
            let path = folder.path().join("cut.csv");
            // The first run went on after its checkpoint, with other columns, and was killed
            // in the middle of a row.
            fs::copy(&whole, &path).unwrap();
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(b"5,0.").unwrap();
            let mut resumed = CsvFile::resume(path.clone(), *state).unwrap();
            assert_eq!(resumed.state(), *state);
            for row in &rows[taken..] {
                resumed.append(row).unwrap();
            }
            assert_eq!(text(&path), text(&whole), "resumed after {taken} rows");
            assert_eq!(resumed.state(), csv.state());
        }
    }

    #[test]
    fn a_file_that_lost_rows_is_refused_and_a_lost_file_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        fs::write(&path, "a,b\n1,2\n3,").unwrap();
        let state = CsvState {
            rows: 2,
            columns: 2,
        };
        let error = CsvFile::resume(path.clone(), state).unwrap_err();
        assert!(
            error.to_string().contains("holds 1 complete rows"),
            "{error}"
        );
        assert_eq!(text(&path), "a,b\n1,2\n3,");
        fs::remove_file(&path).unwrap();
        let mut csv = CsvFile::resume(path.clone(), state).unwrap();
        csv.append(&[("a", 5.0)]).unwrap();
        assert_eq!(text(&path), "a\n5\n");
    }

    /// One flipped bit in a table does not keep a run from continuing.
    #[test]
    fn bytes_that_are_not_text_cost_their_cell_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        let state = CsvState {
            rows: 2,
            columns: 2,
        };
        // The second cell is damaged, and so is a row after the checkpoint.
        fs::write(&path, b"a,b\n1,\xb2\n3,4\n\xff,6\n").unwrap();
        let mut csv = CsvFile::resume(path.clone(), state).unwrap();
        assert_eq!(text(&path), "a,b\n1,nan\n3,4\n");
        csv.append(&[("b", 5.0)]).unwrap();
        assert_eq!(text(&path), "a,b\n1,nan\n3,4\nnan,5\n");
        // Damaged while the run writes: a new column still finds its place.
        fs::write(&path, b"a,b\n1,\xb2\n3,4\nnan,5\n").unwrap();
        csv.append(&[("c", 6.0)]).unwrap();
        assert_eq!(Table::read(&path).unwrap().rows[3][2], 6.0);

        let damaged = b"a,\xe2\n1,2\n3,4\n";
        fs::write(&path, damaged).unwrap();
        let error = CsvFile::resume(path.clone(), state).unwrap_err();
        assert!(
            error.to_string().contains("Restore the original file"),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), damaged);
    }

    #[test]
    fn bad_keys_are_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        let mut csv = CsvFile::create(path.clone());
        for row in [
            vec![("", 0.0)],
            vec![("a\nb", 0.0)],
            vec![("a", 0.0), ("a", 1.0)],
        ] {
            assert!(matches!(csv.append(&row), Err(Error::BadName { .. })));
        }
        assert!(!path.exists());
    }

    #[test]
    fn the_reader_forgives() {
        let table = Table::parse("a,b,c\r\n1,2\r\n-,NaN,3,4\r\n5,6,7");
        assert_eq!(table.rows.len(), 2);
        assert_eq!(table.rows[0][..2], [1.0, 2.0]);
        assert!(table.rows[0][2].is_nan() && table.rows[1][0].is_nan());
        assert_eq!(table.column("c").unwrap()[1], 3.0);
        assert_eq!(Table::parse(""), Table::default());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        let mut csv = CsvFile::create(path.clone());
        csv.append(&[("a", 1.0)]).unwrap();
        csv.file = Some(open_to_append(Path::new("/dev/full")).unwrap());
        let error = csv.append(&[("a", 2.0)]).unwrap_err().to_string();
        assert!(
            error.contains("p.csv") && error.contains("Free some disk space"),
            "{error}"
        );
        assert_eq!(csv.state().rows, 1);
        assert_eq!(text(&path), "a\n1\n");
    }

    proptest! {
        #[test]
        fn numbers_round_trip(bits: u64) {
            let value = f64::from_bits(bits);
            let back: f64 = format_number(value).parse().unwrap();
            prop_assert!(back.to_bits() == bits || (back.is_nan() && value.is_nan()));
            prop_assert!(format_number(value).len() <= 25);
        }

        #[test]
        fn headers_round_trip(columns in prop::collection::vec("[a-z,\" ]{1,6}", 1..5)) {
            let line = header_line(&columns);
            prop_assert_eq!(split_header(line.trim_end_matches('\n')), columns);
        }
    }
}
