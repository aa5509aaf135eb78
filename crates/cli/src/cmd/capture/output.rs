//! The files of a capture: one, or a ring of them; names as `tcpdump` gives them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use pcap_file::pcapng::PcapNgWriter;
use vmlane_capture::{Reader, Record, wall_clock};

use super::file::{self, Point, plain};

/// Which files are written.
#[derive(Clone, Debug)]
pub struct Files {
    pub path: PathBuf,
    /// Bytes of each, about.
    pub size: Option<u64>,
    /// How many, before the first one is written again.
    pub count: Option<u32>,
}

impl Files {
    fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }

    /// The name of file `number`: the first of an endless row has none, those of a ring have as many digits
    /// as the last.
    pub fn name(&self, number: u64) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        match self.count {
            Some(count) if count > 1 => {
                let digits = (count - 1).to_string().len();
                name.push(format!("{:0digits$}", number % u64::from(count)));
            }
            None if number > 0 => name.push(number.to_string()),
            _ => {}
        }
        name.into()
    }
}

type Writer = PcapNgWriter<BufWriter<Box<dyn Write>>>;

/// Where records go.
pub struct Output {
    files: Files,
    points: Vec<Point>,
    snap: u32,
    /// The file that is open, which it is, and bytes in it. None: its reader is gone.
    writer: Option<Writer>,
    number: u64,
    bytes: u64,
    written: u64,
}

fn create(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    Ok(Box::new(file))
}

/// A reader of standard output that is gone ends the capture without an error.
fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl Output {
    pub fn new(files: Files, points: Vec<Point>, snap: u32) -> anyhow::Result<Output> {
        let mut output = Output { files, points, snap, writer: None, number: 0, bytes: 0, written: 0 };
        output.open()?;
        Ok(output)
    }

    fn open(&mut self) -> anyhow::Result<()> {
        let to: Box<dyn Write> = if self.files.is_stdout() {
            Box::new(io::stdout())
        } else {
            create(&self.files.name(self.number))?
        };
        let begun = file::begin(BufWriter::with_capacity(1 << 16, to), &self.points, self.snap);
        self.writer = Some(begun.map_err(plain)?);
        self.bytes = 0;
        Ok(())
    }

    /// Adds a record. False: there is no one to read it.
    pub fn add(&mut self, record: &Record) -> anyhow::Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        match file::add(writer, &mut self.points, record) {
            Ok(bytes) => self.bytes += bytes as u64,
            Err(error) if is_gone(&error) => {
                self.writer = None;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.written += 1;
        if self.files.size.is_some_and(|size| self.bytes >= size) && !self.files.is_stdout() {
            self.close()?;
            self.number += 1;
            self.open()?;
        }
        Ok(true)
    }

    /// What the reader of the file may see by now. False: it is gone.
    pub fn flush(&mut self) -> anyhow::Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        match writer.get_mut().flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.writer = None;
                Ok(false)
            }
            flushed => Ok(flushed.map(|()| true)?),
        }
    }

    fn close(&mut self) -> anyhow::Result<()> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        let ended = file::end(&mut writer, &self.points, wall_clock()).map_err(plain);
        let ended = ended.and_then(|()| Ok(writer.get_mut().flush()?));
        match ended {
            Err(error) if is_gone(&error) => Ok(()),
            ended => ended,
        }
    }

    /// Writes the counts and closes the file.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        self.close()
    }

    /// Takes over what the daemon has counted, and reports which points came or went.
    pub fn count(&mut self, ring: &Reader) {
        for (number, point) in (0..).zip(&mut self.points) {
            let counts = ring.counts(number);
            (point.recorded[1], point.lost[1]) = (counts.recorded, counts.lost);
            if point.present != counts.present {
                let what = if counts.present {
                    "is there again"
                } else {
                    "is gone; it is captured again when it is back"
                };
                eprintln!("vmlane: {} {what}", point.name);
                point.present = counts.present;
            }
        }
    }

    /// Another daemon counts from the beginning.
    pub fn begin_anew(&mut self) {
        for point in &mut self.points {
            for counted in [&mut point.recorded, &mut point.lost] {
                *counted = [counted[0] + counted[1], 0];
            }
        }
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// Where it goes, for messages.
    pub fn place(&self) -> String {
        if self.files.is_stdout() {
            "standard output".into()
        } else {
            self.files.name(self.number).display().to_string()
        }
    }

    pub fn counts(&self) -> String {
        let lost: u64 = self.points.iter().map(Point::all_lost).sum();
        format!("{} captured, {lost} lost", self.written)
    }
}

#[cfg(test)]
mod tests;
