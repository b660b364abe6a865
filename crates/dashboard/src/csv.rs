//! CSV files that grow while they are read.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use starling_record::Table;

/// A CSV file of a run. Its last row is always known; its columns are read on request, and then kept
/// up to date.
#[derive(Debug)]
pub(crate) struct Csv {
    path: PathBuf,
    file: u64,
    bytes: u64,
    /// Incremented when the file was rewritten, so that rows that were read before may be wrong.
    generation: u32,
    columns: Option<Columns>,
    used: Instant,
}

/// All numbers of a file.
#[derive(Debug, Default)]
struct Columns {
    header: String,
    names: Vec<String>,
    values: Vec<Vec<f64>>,
    rows: usize,
    /// The bytes that these rows take, with the header.
    bytes: u64,
}

/// Some columns of a file, from a row on.
#[derive(Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) generation: u32,
    pub(crate) from: usize,
    pub(crate) rows: usize,
    /// One per name; a column that the file does not have is empty.
    pub(crate) values: Vec<Vec<f64>>,
}

/// Columns without a request during this time are dropped.
const UNUSED: Duration = Duration::from_secs(300);
/// What is read of the end of a file to know its last numbers.
const END: u64 = 1 << 15;

impl Csv {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: 0,
            bytes: 0,
            generation: 0,
            columns: None,
            used: Instant::now(),
        }
    }

    /// Looks whether the file has changed, and reads what is new.
    pub(crate) fn poll(&mut self) -> bool {
        let (file, bytes) = match fs::metadata(&self.path) {
            Ok(found) => (found.ino(), found.len()),
            Err(_) => (0, 0),
        };
        if self.columns.is_some() && self.used.elapsed() > UNUSED {
            self.columns = None;
        }
        if (file, bytes) == (self.file, self.bytes) {
            return false;
        }
        if file != self.file || bytes < self.bytes || self.has_other_header() {
            self.generation += 1;
            self.columns = None;
        }
        (self.file, self.bytes) = (file, bytes);
        self.extend();
        true
    }

    /// The number of a file can be given to the one that replaces it.
    fn has_other_header(&self) -> bool {
        let Some(columns) = &self.columns else {
            return false;
        };
        let found = File::open(&self.path).and_then(|mut file| header(&mut file));
        found.map_or(true, |found| found != columns.header)
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The names of the columns, and the last rows.
    pub(crate) fn end(&self) -> io::Result<Table> {
        let mut file = File::open(&self.path)?;
        let header = header(&mut file)?;
        let first = header.len() as u64;
        let from = first.max(self.bytes.saturating_sub(END));
        // One byte earlier, to see whether a row begins there.
        file.seek(SeekFrom::Start(from.saturating_sub(1)))?;
        let mut rows = Vec::new();
        file.take(END + 1).read_to_end(&mut rows)?;
        let rows = String::from_utf8_lossy(&rows);
        let rows = rows.split_once('\n').map_or("", |(_, rest)| rest);
        Ok(Table::parse(&(header + rows)))
    }

    /// Columns from row `from` on, if what the reader has is of this `generation`; else all rows.
    pub(crate) fn part(&mut self, names: &[&str], generation: u32, from: usize) -> Part {
        self.used = Instant::now();
        if self.columns.is_none() {
            self.columns = Some(Columns::default());
            self.extend();
        }
        let empty = Columns::default();
        let columns = self.columns.as_ref().unwrap_or(&empty);
        let same = generation == self.generation && from <= columns.rows;
        let from = if same { from } else { 0 };
        let values = names.iter().map(|name| {
            let at = columns.names.iter().position(|known| known == name);
            at.map_or_else(Vec::new, |at| columns.values[at][from..].to_vec())
        });
        Part {
            generation: self.generation,
            from,
            rows: columns.rows - from,
            values: values.collect(),
        }
    }

    /// Adds rows that were written since the columns were read. If that fails, the next change
    /// brings them.
    fn extend(&mut self) {
        let Some(columns) = &mut self.columns else {
            return;
        };
        if columns.extend(&self.path, self.file).is_err() {
            self.columns = None;
        }
    }
}

impl Columns {
    fn extend(&mut self, path: &Path, expected: u64) -> io::Result<()> {
        let mut file = File::open(path)?;
        if file.metadata()?.ino() != expected {
            // It was replaced in this moment; the next look at it notices.
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.header.is_empty() {
            self.header = header(&mut file)?;
            self.names = Table::parse(&self.header).columns;
            self.values = vec![Vec::new(); self.names.len()];
            self.bytes = self.header.len() as u64;
        }
        file.seek(SeekFrom::Start(self.bytes))?;
        let mut new = Vec::new();
        file.read_to_end(&mut new)?;
        let complete = new.iter().rposition(|byte| *byte == b'\n');
        new.truncate(complete.map_or(0, |at| at + 1));
        self.bytes += new.len() as u64;
        let table = Table::parse(&(self.header.clone() + &String::from_utf8_lossy(&new)));
        for row in &table.rows {
            for (column, value) in self.values.iter_mut().zip(row) {
                column.push(*value);
            }
        }
        self.rows += table.rows.len();
        Ok(())
    }
}

/// The first line with its end; empty if it is not complete.
fn header(file: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(1 << 16).read_to_end(&mut text)?;
    let end = text.iter().position(|byte| *byte == b'\n');
    text.truncate(end.map_or(0, |at| at + 1));
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn append(path: &Path, text: &str) {
        let mut file = File::options().append(true).create(true).open(path);
        file.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn only_rows_that_are_missing_are_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.csv");
        let mut csv = Csv::new(path.clone());
        assert!(!csv.poll());
        append(&path, "env_steps,a\n1,10\n2,20\n3,3");
        assert!(csv.poll() && !csv.poll());
        let names = ["env_steps", "a", "none"];
        let part = csv.part(&names, 0, 0);
        assert_eq!((part.from, part.rows, part.generation), (0, 2, 1));
        assert_eq!(part.values, [vec![1.0, 2.0], vec![10.0, 20.0], vec![]]);
        // The row that was cut short is completed.
        append(&path, "0\n4,40\n");
        assert!(csv.poll());
        let part = csv.part(&names, 1, 2);
        assert_eq!((part.from, part.rows), (2, 2));
        assert_eq!(part.values[1], [30.0, 40.0]);
        assert_eq!(csv.end().unwrap().column("a").unwrap()[2..], [30.0, 40.0]);
        // Another file in its place, as when a run is resumed: everything is sent again.
        let other = folder.path().join("other");
        append(&other, "env_steps,a,b\n1,10,1\n");
        fs::rename(other, &path).unwrap();
        assert!(csv.poll());
        let part = csv.part(&["b"], 1, 4);
        assert_eq!((part.generation, part.from, part.rows), (2, 0, 1));
    }

    #[test]
    fn the_end_of_a_long_file_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.csv");
        let rows: String = (0..20_000).map(|i| format!("{i},{}\n", i * 2)).collect();
        append(&path, &format!("env_steps,a\n{rows}"));
        let mut csv = Csv::new(path);
        csv.poll();
        let end = csv.end().unwrap();
        assert!(end.rows.len() < 5_000);
        assert_eq!(end.rows.last().unwrap(), &[19_999.0, 39_998.0]);
        assert_eq!(end.rows[0][1], end.rows[0][0] * 2.0);
        assert_eq!(csv.part(&["a"], 0, 0).rows, 20_000);
    }
}
