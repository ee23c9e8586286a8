// SPDX-License-Identifier: Apache-2.0
//! Writes the history on a thread of its own, so that a disk that hangs holds up neither the
//! measurement nor a start. The thread has one batch at a time; what comes meanwhile waits in the
//! categories' own memory, which is bounded.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use causeway_service::log_fault;
use tracing::warn;

use super::history::{HistoryFile, Record};

/// A disk that takes longer is told of.
const TIMEOUT_S: u64 = 10;

/// What the thread has done.
#[derive(Debug, PartialEq)]
pub(super) enum Done {
    /// Opened the history: boot and second of its last record.
    Opened(Option<(u64, u64)>),
    /// Written all records up to this second.
    Written(u64),
}

/// What is to be written: up to which second, and what.
type Batch = (u64, Vec<Record>);

/// Threads that were ended and have still to write: of a file there is one writer at a time.
#[derive(Debug, Default)]
pub(super) struct EndedRecorders(Vec<(PathBuf, JoinHandle<()>)>);

impl EndedRecorders {
    /// Ends one: it writes what it was given.
    pub(super) fn add(&mut self, recorder: Recorder) {
        self.0.retain(|(_, thread)| !thread.is_finished());
        self.0.push((recorder.path, recorder.thread));
    }

    fn take(&mut self, path: &Path) -> Vec<JoinHandle<()>> {
        let of_path = self.0.extract_if(.., |(of, _)| of.as_path() == path);
        of_path.map(|(_, thread)| thread).collect()
    }
}

/// Handle of the thread, which ends once this is dropped.
#[derive(Debug)]
pub(super) struct Recorder {
    path: PathBuf,
    thread: JoinHandle<()>,
    batches: SyncSender<Batch>,
    outcomes: Receiver<Result<Done>>,
    is_open: bool,
    /// The second since which the thread is at work; `None`: it waits for a batch.
    busy_since: Option<u64>,
    fault: Option<String>,
}

impl Recorder {
    /// Starts the thread, which opens the history first; `second` is now.
    pub(super) fn start(
        path: &Path,
        bound: u64,
        second: u64,
        ended: &mut EndedRecorders,
    ) -> Result<Self> {
        let (batches, inbox) = sync_channel(1);
        let (told, outcomes) = channel();
        let (of_thread, former) = (path.to_owned(), ended.take(path));
        let thread = thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || {
                for thread in former {
                    // Whichever way it ended, it writes no more.
                    let _ = thread.join();
                }
                run(&of_thread, bound, &inbox, &told);
            })?;
        Ok(Self {
            path: path.to_owned(),
            thread,
            batches,
            outcomes,
            is_open: false,
            busy_since: Some(second),
            fault: None,
        })
    }

    /// What has been done since the last look.
    pub(super) fn look(&mut self, second: u64) -> Option<Done> {
        let since = self.busy_since?;
        let outcome = match self.outcomes.try_recv() {
            Ok(outcome) => {
                self.busy_since = None;
                outcome
            }
            Err(TryRecvError::Empty) if second < since + TIMEOUT_S => return None,
            Err(TryRecvError::Empty) => Err(anyhow!(
                "the disk of the history {} has not answered for {TIMEOUT_S} s",
                self.path.display()
            )),
            Err(TryRecvError::Disconnected) => Err(anyhow!(
                "the thread that writes the history {} has ended; restart the agent",
                self.path.display()
            )),
        };
        let fault = outcome.as_ref().err().map(|error| format!("{error:#}"));
        log_fault!(
            self.fault,
            fault,
            "{}; what clients do is kept, to be written later",
            "the history is written again"
        );
        let done = outcome.ok()?;
        self.is_open = true;
        Some(done)
    }

    /// Whether the history was opened.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the thread waits for a batch.
    pub(super) fn is_free(&self) -> bool {
        self.busy_since.is_none()
    }

    /// Why nothing is written, if nothing is.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Has a free thread write `records`, which are all up to `until`. One that could not open
    /// the history tries that again instead.
    pub(super) fn write(&mut self, second: u64, until: u64, records: Vec<Record>) {
        self.busy_since = Some(second);
        // There is room for one. That the thread has ended shows at the next look.
        let _ = self.batches.try_send((until, records));
    }
}

fn run(path: &Path, bound: u64, batches: &Receiver<Batch>, told: &Sender<Result<Done>>) {
    let mut history = open(path, bound, told);
    while let Ok((until, records)) = batches.recv() {
        match &mut history {
            Some(file) => {
                let written = file.append(&records).map(|()| Done::Written(until));
                // The receiver is gone where the agent ends.
                let _ = told.send(written);
            }
            None => history = open(path, bound, told),
        }
    }
}

fn open(path: &Path, bound: u64, told: &Sender<Result<Done>>) -> Option<HistoryFile> {
    let (outcome, file) = match HistoryFile::open(path, bound) {
        Ok(file) => (Ok(Done::Opened(file.last())), Some(file)),
        Err(error) => (Err(error), None),
    };
    let torn = file.as_ref().map_or(0, HistoryFile::torn);
    if torn > 0 {
        warn!("{torn} bytes at the end of the history were torn by a crash and are cut off");
    }
    let _ = told.send(outcome);
    file
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::super::history::read;
    use super::*;

    fn await_done(recorder: &mut Recorder, second: u64) -> Done {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(done) = recorder.look(second) {
                return done;
            }
            assert!(Instant::now() < deadline, "{recorder:?}");
            // One that failed tries again.
            if recorder.is_free() {
                recorder.write(second, 0, Vec::new());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn record(second: u64) -> Record {
        Record {
            boot: 7,
            second,
            category: "*:80 all eth0".to_owned(),
            offered: 1,
            ..Record::default()
        }
    }

    fn start(path: &Path, bound: u64, second: u64) -> Result<Recorder> {
        Recorder::start(path, bound, second, &mut EndedRecorders::default())
    }

    /// A pipe without a writer stands for a disk that does not answer.
    #[test]
    fn one_writer_of_a_file_waits_for_the_other_and_for_that_of_no_other_file() {
        let place = tempfile::tempdir().unwrap();
        let [path, elsewhere] = ["one", "two"].map(|name| place.path().join(name));
        let former = place.path().join("one.old");
        mkfifo(&former, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let mut ended = EndedRecorders::default();
        // It does not come to open the file.
        ended.add(start(&path, 1 << 20, 100).unwrap());
        let mut other = Recorder::start(&elsewhere, 1 << 20, 100, &mut ended).unwrap();
        assert_eq!(await_done(&mut other, 100), Done::Opened(None));
        let mut again = Recorder::start(&path, 1 << 19, 100, &mut ended).unwrap();
        assert_eq!(again.look(101), None);
        assert!(!again.thread.is_finished() && !again.is_open());
        let writer = fs::OpenOptions::new().write(true).open(&former).unwrap();
        fs::remove_file(&former).unwrap();
        drop(writer);
        assert_eq!(await_done(&mut again, 101), Done::Opened(None));
    }

    /// The same of one alone.
    #[test]
    fn a_disk_that_hangs_is_told_of_and_nobody_waits_for_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        let former = place.path().join("clients.history.old");
        mkfifo(&former, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let mut recorder = start(&path, 1 << 20, 100).unwrap();
        assert_eq!(recorder.look(109), None);
        assert_eq!((recorder.is_free(), recorder.fault()), (false, None));
        for second in 110..113 {
            assert_eq!(recorder.look(second), None);
        }
        let fault = recorder.fault().unwrap();
        assert!(fault.ends_with("has not answered for 10 s"), "{fault}");
        let writer = fs::OpenOptions::new().write(true).open(&former).unwrap();
        fs::remove_file(&former).unwrap();
        drop(writer);
        assert_eq!(await_done(&mut recorder, 113), Done::Opened(None));
        assert!(recorder.is_open() && recorder.is_free());
        assert_eq!(recorder.fault(), None);
        let records = [record(90), record(91)];
        recorder.write(114, 91, records.to_vec());
        assert_eq!(await_done(&mut recorder, 114), Done::Written(91));
        assert_eq!(read(&path).unwrap(), records);
        drop(recorder);
        let mut recorder = start(&path, 1 << 20, 115).unwrap();
        assert_eq!(await_done(&mut recorder, 115), Done::Opened(Some((7, 91))));
    }

    #[test]
    fn a_history_that_cannot_be_opened_is_tried_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("clients.history");
        fs::write(&path, "something else").unwrap();
        let mut recorder = start(&path, 1 << 20, 100).unwrap();
        while !recorder.is_free() {
            assert_eq!(recorder.look(100), None);
        }
        let fault = recorder.fault().unwrap();
        assert!(fault.contains("is not a history of clients"), "{fault}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "something else");
        fs::remove_file(&path).unwrap();
        assert_eq!(await_done(&mut recorder, 101), Done::Opened(None));
    }
}
