// SPDX-License-Identifier: Apache-2.0
//! The history on disk: what each category did in each second, append-only.
//!
//! A file is a line that names the format, then records: length, checksum, body. A
//! crash can only tear the last one; opening cuts off what does not check. When the
//! file has half of its allowance it becomes the older file (`.old`), in the place of
//! the one before, so that both together keep within the bound.
//!
//! Records are ordered by boot and monotonic second. The time of day is for people: it
//! may step.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use causeway_core::certes::Estimate;
use causeway_service::beside;

const FORMAT: &[u8] = b"causeway clients 1\n";
/// Longer ones were never written.
const RECORD_MAX: usize = 4096;

/// What one category did in one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// Stands for the boot of the machine.
    pub boot: u64,
    /// CLOCK_MONOTONIC, whole seconds.
    pub second: u64,
    /// Time of day of its begin, milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Service, clients and device, separated by blanks.
    pub category: String,
    /// SYNs that came and had not been answered.
    pub offered: u64,
    /// Of those the ones that were.
    pub accepted: u64,
    /// By the tracker.
    pub exact: Estimate,
    pub model: Estimate,
    /// Share of first SYNs that is taken for a flood.
    pub flood: f64,
    /// Odds of a retry's drop over a first SYN's; 0: unknown.
    pub odds_ratio: f64,
}

const NUMBERS: usize = 2 + 8 + 3 + 2;

impl Record {
    fn numbers(&self) -> [f64; NUMBERS] {
        let (exact, model) = (&self.exact, &self.model);
        [
            self.offered as f64,
            self.accepted as f64,
            exact.completed,
            exact.gave_up,
            exact.give_up_s,
            exact.stalled,
            exact.stalled_s,
            exact.conn_fail_s,
            exact.syn_to_end_s,
            exact.rtt_s,
            model.gave_up,
            model.give_up_s,
            model.conn_fail_s,
            self.flood,
            self.odds_ratio,
        ]
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(160);
        for word in [self.boot, self.second, self.unix_ms] {
            body.extend(word.to_le_bytes());
        }
        for number in self.numbers() {
            body.extend(number.to_le_bytes());
        }
        body.extend(self.category.as_bytes());
        let mut record = Vec::with_capacity(body.len() + 8);
        record.extend((body.len() as u32).to_le_bytes());
        record.extend(crc32fast::hash(&body).to_le_bytes());
        record.extend(body);
        record
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let (words, rest) = body.split_at_checked(24)?;
        let (numbers, category) = rest.split_at_checked(8 * NUMBERS)?;
        let word = |at: usize| Some(u64::from_le_bytes(*words[8 * at..].first_chunk()?));
        let mut values = [0.0; NUMBERS];
        for (value, bytes) in values.iter_mut().zip(numbers.chunks_exact(8)) {
            *value = f64::from_le_bytes(*bytes.first_chunk()?);
        }
        let exact = Estimate {
            completed: values[2],
            gave_up: values[3],
            give_up_s: values[4],
            stalled: values[5],
            stalled_s: values[6],
            conn_fail_s: values[7],
            syn_to_end_s: values[8],
            rtt_s: values[9],
            // Of these the file has nothing.
            ..Estimate::default()
        };
        Some(Self {
            boot: word(0)?,
            second: word(1)?,
            unix_ms: word(2)?,
            category: String::from_utf8(category.to_vec()).ok()?,
            offered: values[0] as u64,
            accepted: values[1] as u64,
            model: Estimate {
                gave_up: values[10],
                give_up_s: values[11],
                conn_fail_s: values[12],
                ..exact
            },
            exact,
            flood: values[13],
            odds_ratio: values[14],
        })
    }
}

/// The file that is written.
#[derive(Debug)]
pub struct HistoryFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// Of both files together.
    bound: u64,
    last: Option<(u64, u64)>,
    torn: u64,
}

impl HistoryFile {
    /// Opens the history at `path`, or begins one. What a crash tore is cut off.
    pub fn open(path: &Path, bound: u64) -> Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot make {} for the history", parent.display()))?;
        }
        let doing = || format!("cannot open the history {}", path.display());
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .clone();
        let mut file = options.open(path).with_context(doing)?;
        let all = file.metadata().with_context(doing)?.len();
        let mut last = None;
        let mut find_last = |record: Record| last = Some((record.boot, record.second));
        let sound = scan(&mut file, &mut find_last).with_context(doing)?;
        let sound = sound.with_context(|| foreign(path))?;
        if sound <= FORMAT.len() as u64 {
            read_file(&older(path), &mut find_last)?;
        }
        file.set_len(sound).with_context(doing)?;
        file.seek(SeekFrom::End(0)).with_context(doing)?;
        let mut history = Self {
            path: path.to_owned(),
            file,
            length: sound,
            bound,
            last,
            torn: all - sound,
        };
        if sound == 0 {
            history.begin()?;
        }
        Ok(history)
    }

    /// Boot and second of the last record.
    pub fn last(&self) -> Option<(u64, u64)> {
        self.last
    }

    /// Bytes that opening cut off.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// Adds records, which are on their way to the disk then; a crash of the machine
    /// may take the last seconds, one of the agent takes none.
    pub fn append(&mut self, records: &[Record]) -> Result<()> {
        let Some(last) = records.last() else {
            return Ok(());
        };
        // What waited for the disk may be more than a file may hold: the newest stay.
        let room = (self.bound / 2) as usize - FORMAT.len();
        let mut encoded: Vec<Vec<u8>> = Vec::new();
        let mut length = 0;
        for record in records.iter().rev() {
            let bytes = record.encode();
            length += bytes.len();
            if length > room {
                break;
            }
            encoded.push(bytes);
        }
        let bytes: Vec<u8> = encoded.into_iter().rev().flatten().collect();
        if self.length + bytes.len() as u64 > self.bound / 2 {
            self.turn_over()?;
        }
        if let Err(error) = self.file.write_all(&bytes) {
            // Behind a part of a record no reader finds the next one. What cannot be cut
            // off now is when the agent starts again.
            let _ = self.file.set_len(self.length);
            let _ = self.file.seek(SeekFrom::Start(self.length));
            return Err(error)
                .with_context(|| format!("cannot write the history {}", self.path.display()));
        }
        self.length += bytes.len() as u64;
        self.last = Some((last.boot, last.second));
        Ok(())
    }

    /// The next file is complete before it replaces this one: on a full disk this one stays.
    fn turn_over(&mut self) -> Result<()> {
        let doing = || format!("cannot turn the history {} over", self.path.display());
        let next = beside(&self.path, ".new");
        let mut file = File::create(&next).with_context(doing)?;
        file.write_all(FORMAT).with_context(doing)?;
        match fs::rename(&self.path, older(&self.path)) {
            // It was removed.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            renamed => renamed.with_context(doing)?,
        }
        fs::rename(&next, &self.path).with_context(doing)?;
        (self.file, self.length) = (file, FORMAT.len() as u64);
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.file
            .write_all(FORMAT)
            .with_context(|| format!("cannot write the history {}", self.path.display()))?;
        self.length = FORMAT.len() as u64;
        Ok(())
    }
}

fn older(path: &Path) -> PathBuf {
    beside(path, ".old")
}

/// All records at `path`, the older file's first; what is torn is left out.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut keep = |record| records.push(record);
    let is_old = read_file(&older(path), &mut keep)?;
    if !read_file(path, &mut keep)? && !is_old {
        bail!(
            "there is no history {}; name the file that `history` under [agent.clients] names",
            path.display()
        );
    }
    Ok(records)
}

/// Whether there is such a file.
fn read_file(path: &Path, visit: &mut impl FnMut(Record)) -> Result<bool> {
    let doing = || format!("cannot read the history {}", path.display());
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened.with_context(doing)?,
    };
    let sound = scan(&mut file, visit).with_context(doing)?;
    sound.with_context(|| foreign(path))?;
    Ok(true)
}

fn foreign(path: &Path) -> String {
    format!(
        "{} is not a history of clients, or is one of another version; name another file, or move it away",
        path.display()
    )
}

/// Shows the sound records from the begin on, and says where they end; `None` for a file of
/// something else. One whose first line was torn ends at its begin.
fn scan(file: &mut File, visit: &mut impl FnMut(Record)) -> std::io::Result<Option<u64>> {
    file.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::new(file);
    let mut format = Vec::new();
    reader
        .by_ref()
        .take(FORMAT.len() as u64)
        .read_to_end(&mut format)?;
    if format != FORMAT {
        return Ok(FORMAT.starts_with(&format).then_some(0));
    }
    let mut sound = FORMAT.len() as u64;
    let mut head = [0; 8];
    while read_whole(&mut reader, &mut head)? {
        let [l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let mut body = vec![0; length.min(RECORD_MAX)];
        if length > RECORD_MAX
            || !read_whole(&mut reader, &mut body)?
            || crc32fast::hash(&body) != u32::from_le_bytes([c0, c1, c2, c3])
        {
            break;
        }
        let Some(record) = Record::decode(&body) else {
            break;
        };
        visit(record);
        sound += (head.len() + body.len()) as u64;
    }
    Ok(Some(sound))
}

/// Whether there was enough to fill `buffer`.
fn read_whole(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn record(second: u64) -> Record {
        let exact = Estimate {
            completed: 3.0,
            gave_up: 1.0,
            give_up_s: 9.0,
            stalled: 2.0,
            stalled_s: 12.5,
            conn_fail_s: 4.25,
            syn_to_end_s: 1.5,
            rtt_s: 0.03,
            ..Estimate::default()
        };
        Record {
            boot: 77,
            second,
            unix_ms: 1_700_000_000_000 + second,
            category: "192.0.2.1:80 all eth0".to_owned(),
            offered: 12,
            accepted: 7,
            model: Estimate {
                conn_fail_s: 4.0,
                gave_up: 1.5,
                give_up_s: 13.5,
                ..exact
            },
            exact,
            flood: 0.25,
            odds_ratio: 1.5,
        }
    }

    #[test]
    fn records_come_back_as_they_were_written() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("deep/clients.history");
        let records: Vec<Record> = (0..50).map(record).collect();
        let mut history = HistoryFile::open(&path, 1 << 20).unwrap();
        assert_eq!(history.last(), None);
        history.append(&records[..20]).unwrap();
        drop(history);
        let mut history = HistoryFile::open(&path, 1 << 20).unwrap();
        assert_eq!((history.last(), history.torn()), (Some((77, 19)), 0));
        history.append(&records[20..]).unwrap();
        assert_eq!(read(&path).unwrap(), records);
    }

    /// Wherever a crash cuts, all records before the cut are there, and writing goes on.
    #[test]
    fn a_torn_tail_is_cut_off_at_every_length() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        let records: Vec<Record> = (0..3).map(record).collect();
        HistoryFile::open(&path, 1 << 20)
            .unwrap()
            .append(&records)
            .unwrap();
        let whole = fs::read(&path).unwrap();
        let one = records[0].encode().len();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let left = cut.saturating_sub(FORMAT.len()) / one;
            let mut history = HistoryFile::open(&path, 1 << 20).unwrap();
            history.append(&[record(9)]).unwrap();
            let mut expected = records[..left].to_vec();
            expected.push(record(9));
            assert_eq!(read(&path).unwrap(), expected, "cut at {cut}");
        }
    }

    /// A typing mistake in the configuration must not destroy a file.
    #[test]
    fn a_file_of_something_else_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        for text in [
            "root:x:0:0:root:/root:/bin/sh\n",
            "causeway clients 9\n",
            "x",
        ] {
            fs::write(&path, text).unwrap();
            let opened = HistoryFile::open(&path, 1 << 20).map(drop);
            for outcome in [opened, read(&path).map(drop)] {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains("is not a history of clients"), "{error}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_history_before_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        let records: Vec<Record> = (0..3).map(record).collect();
        HistoryFile::open(&path, 1 << 20)
            .unwrap()
            .append(&records)
            .unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let second = FORMAT.len() + records[0].encode().len();
        bytes[second + 20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&path).unwrap(), records[..1]);
        assert!(HistoryFile::open(&path, 1 << 20).unwrap().torn() > 0);
    }

    /// A file that cannot grow stands for a full disk: it takes the first pages of what
    /// is written, and no more.
    #[test]
    fn what_cannot_be_written_whole_is_cut_off() {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::memfd::{MFdFlags, memfd_create};
        let disk = File::from(memfd_create("history", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        let path = PathBuf::from(format!("/proc/self/fd/{}", disk.as_raw_fd()));
        let mut history = HistoryFile::open(&path, 1 << 20).unwrap();
        history.append(&[record(0), record(1)]).unwrap();
        let sound = history.length;
        disk.set_len(2 * 4096).unwrap();
        fcntl(&disk, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
        let many: Vec<Record> = (2..100).map(record).collect();
        assert!(history.append(&many).is_err(), "there was no room");
        assert_eq!(history.last(), Some((77, 1)));
        assert_eq!(disk.metadata().unwrap().len(), sound);
        assert_eq!(history.file.stream_position().unwrap(), sound);
        assert_eq!(read(&path).unwrap(), [record(0), record(1)]);
    }

    #[test]
    fn a_file_that_somebody_took_away_is_begun_anew() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        let mut history = HistoryFile::open(&path, 2_000).unwrap();
        history.append(&[record(0)]).unwrap();
        fs::remove_file(&path).unwrap();
        for second in 1..20 {
            history.append(&[record(second)]).unwrap();
        }
        let kept = read(&path).unwrap();
        assert_eq!(kept.last().map(|last| last.second), Some(19));
    }

    #[test]
    fn both_files_keep_within_the_bound() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        let bound = 10_000;
        let mut history = HistoryFile::open(&path, bound).unwrap();
        for second in 0..500 {
            history.append(&[record(second)]).unwrap();
            let size = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
            assert!(size(&path) + size(&older(&path)) <= bound);
        }
        // What waited for a disk comes at once.
        let waited: Vec<Record> = (500..1000).map(record).collect();
        history.append(&waited).unwrap();
        let sizes = [&path, &older(&path)].map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes.iter().sum::<u64>() <= bound, "{sizes:?}");
        let newest = read(&path).unwrap().last().map(|last| last.second);
        assert_eq!(newest, Some(999));
    }

    #[test]
    fn the_newest_stay() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        let mut history = HistoryFile::open(&path, 10_000).unwrap();
        for second in 0..500 {
            history.append(&[record(second)]).unwrap();
        }
        let kept = read(&path).unwrap();
        assert!(kept.len() > 25, "{}", kept.len());
        let seconds: Vec<u64> = kept.iter().map(|record| record.second).collect();
        assert_eq!(seconds, (500 - kept.len() as u64..500).collect::<Vec<_>>());
    }
}
