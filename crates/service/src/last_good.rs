// SPDX-License-Identifier: Apache-2.0
//! The copy of a daemon's configuration file as it was last in force, and a start by it: a file
//! that was broken on the disk meanwhile must keep no daemon down.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::error;

use super::api::{RawApi, no_api_files};
use super::config::{self, ConfigErrors};
use super::keep_file;
use super::log_fault;
use super::process::Process;

/// Where state is kept unless a file says otherwise.
pub const STATE_DIR: &str = "/var/lib/causeway";

/// What a daemon's copies are called, and where its files say in which directory they are.
#[derive(Debug, Clone, Copy)]
pub struct CopyName {
    /// The copy's name: the daemons of a machine have one directory.
    pub name: &'static str,
    /// The tables and the key of the directory in a configuration file.
    pub key: &'static [&'static str],
}

/// The copy of one file.
#[derive(Debug)]
pub struct LastGood {
    file: PathBuf,
    path: PathBuf,
}

impl LastGood {
    /// The copy of `file` in `dir`.
    pub fn new(named: CopyName, file: &Path, dir: &Path) -> Self {
        Self {
            file: file.to_owned(),
            path: dir.join(named.name),
        }
    }

    /// The copy of a file with this text, which may be broken.
    fn of_text(named: CopyName, file: &Path, text: &str) -> Self {
        let dir = config::text_at(text, named.key);
        let dir = dir.unwrap_or_else(|| STATE_DIR.to_owned());
        Self::new(named, file, Path::new(&dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the file, without the line that says whose copy it is, which is no JSON; `None`
    /// if there is none of that file.
    pub fn read(&self) -> Option<String> {
        let text = fs::read_to_string(&self.path).ok()?;
        text.strip_prefix(&self.first_line()).map(str::to_owned)
    }

    /// Keeps the text of the file, which has just been taken into force.
    pub fn save(&self, text: &str) -> Result<(), String> {
        let text = format!("{}{text}", self.first_line());
        keep_file(&self.path, text.as_bytes())
            .map_err(|error| format!("{}: cannot be written ({error})", self.path.display()))
    }

    /// Removes the copy.
    pub fn forget(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// A file that is tried out must not start another's configuration.
    fn first_line(&self) -> String {
        let file = std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone());
        format!("# {} as it was last in force\n", file.display())
    }
}

/// The copy as a running daemon keeps it.
#[derive(Debug)]
pub struct CopyKeeper {
    copy: LastGood,
    /// The text of a file in force whose copy could not be written.
    unsaved: Mutex<Option<String>>,
    error: Mutex<Option<String>>,
}

impl CopyKeeper {
    /// Of this copy.
    pub fn new(copy: LastGood) -> Self {
        Self {
            copy,
            unsaved: Mutex::default(),
            error: Mutex::default(),
        }
    }

    /// Keeps the text of the file that has been taken into force. A failure to write is logged; the
    /// daemon goes on.
    pub fn keep(&self, text: String) {
        *lock(&self.unsaved) = Some(text);
        self.keep_again();
    }

    /// Tries again what could not be written, if anything.
    pub fn keep_again(&self) {
        let mut unsaved = lock(&self.unsaved);
        let Some(text) = unsaved.as_ref() else {
            return;
        };
        let fault = self.copy.save(text).err();
        if fault.is_none() {
            *unsaved = None;
        }
        log_fault!(
            *lock(&self.error),
            fault,
            "the last good configuration would not outlive the daemon: {}",
            "the last good configuration is kept again"
        );
    }

    /// Why the copy is not that of the file in force, if so.
    pub fn error(&self) -> Option<String> {
        lock(&self.error).clone()
    }
}

/// What the locks guard is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A configuration to start with.
#[derive(Debug)]
pub struct StartConfig<C> {
    /// What to put in force.
    pub config: C,
    /// The file's text; if the file was refused, why: its last good copy is here instead.
    pub text: Result<String, ConfigErrors>,
    /// What is wrong with files of `[api]`, which it does without.
    pub api_errors: Option<ConfigErrors>,
}

/// What a text to start with says. Where nothing but files of `[api]` is wrong, it is done
/// without them, as without a port that cannot be had: packets need the daemon, other hosts may
/// wait.
pub fn or_without_api_files<C>(
    whole: Result<C, ConfigErrors>,
    without: impl FnOnce() -> Result<C, ConfigErrors>,
) -> Result<(C, Option<ConfigErrors>), ConfigErrors> {
    let errors = match whole {
        Ok(config) => return Ok((config, None)),
        Err(errors) => errors,
    };
    match without() {
        Ok(config) => Ok((config, Some(errors))),
        Err(_) => Err(errors),
    }
}

impl<C> StartConfig<C> {
    /// Reads a file by `read`. If it is refused, there may be a copy of how it was last in force.
    pub fn load(
        named: CopyName,
        file: &Path,
        mut read: impl FnMut(&Path, &str) -> Result<(C, Option<ConfigErrors>), ConfigErrors>,
    ) -> Result<Self, ConfigErrors> {
        let text = config::read(file);
        let parsed = text.as_ref().map_err(Clone::clone);
        match parsed.and_then(|text| read(file, text)) {
            Ok((config, api_errors)) => Ok(Self {
                config,
                text,
                api_errors,
            }),
            Err(errors) => Self::of_copy(named, file, text, errors, read),
        }
    }

    /// The copy of a file with this text that is refused for `errors`; these, if there is none that
    /// can be read. A copy of the very text is no refusal: whatever the errors are, the text is what
    /// was in force.
    pub fn of_copy(
        named: CopyName,
        file: &Path,
        text: Result<String, ConfigErrors>,
        errors: ConfigErrors,
        read: impl FnOnce(&Path, &str) -> Result<(C, Option<ConfigErrors>), ConfigErrors>,
    ) -> Result<Self, ConfigErrors> {
        let copy = LastGood::of_text(named, file, text.as_deref().unwrap_or_default());
        let Some(kept) = copy.read() else {
            return Err(errors);
        };
        match read(copy.path(), &kept) {
            Ok((config, api_errors)) => Ok(Self {
                config,
                text: match text {
                    Ok(text) if text == kept => Ok(text),
                    _ => Err(errors),
                },
                api_errors,
            }),
            Err(_) => Err(errors),
        }
    }

    /// The copy of a file that cannot be put in force for `error`, unless it is what was tried.
    pub fn instead(
        named: CopyName,
        file: &Path,
        error: String,
        read: impl FnOnce(&Path, &str) -> Result<(C, Option<ConfigErrors>), ConfigErrors>,
    ) -> Option<Self> {
        let errors = ConfigErrors::of_file(file, error);
        let copy = Self::of_copy(named, file, config::read(file), errors, read);
        copy.ok().filter(|copy| copy.text.is_err())
    }

    /// Why the file was refused, or is in force without files of `[api]`, if so: what status
    /// and metrics tell until a reload.
    pub fn refusal(&self) -> Option<String> {
        let refused = self.text.as_ref().err().map(ToString::to_string);
        refused.or_else(|| self.api_errors.as_ref().map(no_api_files))
    }

    /// Logs that the file was refused, if it was.
    pub fn log_refusal(&self, file: &Path) {
        if let Err(errors) = &self.text {
            error!(
                "{} is refused, and the copy of how it was last in force is used: correct it and reload\n{errors}",
                file.display()
            );
        }
    }

    /// Logs what it does without, if anything.
    pub fn log_api_errors(&self) {
        if let Some(errors) = &self.api_errors {
            error!("{}", no_api_files(errors));
        }
    }
}

/// The configuration of a daemon that starts with the copy of its file where that was broken.
pub trait StartsByCopy: Sized {
    /// What the copies are called.
    const COPY: CopyName;

    /// The directory that its copy is in.
    fn state_dir(&self) -> &Path;

    /// Validates the text of a file, as `of_api` changes its table `api`; `path` only names it in
    /// messages.
    fn parse_with(path: &Path, text: &str, of_api: fn(&mut RawApi)) -> Result<Self, ConfigErrors>;

    /// The copy of its file.
    fn copy_of(&self, file: &Path) -> LastGood {
        LastGood::new(Self::COPY, file, self.state_dir())
    }

    /// Reads and validates a file to start with, or the copy of how it was last in force. What is
    /// wrong with files of the table `api` alone keeps other hosts out until a reload.
    fn load_to_start(file: &Path) -> Result<StartConfig<Self>, ConfigErrors> {
        StartConfig::load(Self::COPY, file, read_to_start)
    }

    /// Serves by what was loaded, or by the copy of a file that cannot be put in force.
    fn serve(
        process: Process,
        file: &Path,
        start: StartConfig<Self>,
        mut attempt: impl FnMut(Process, &Path, StartConfig<Self>) -> anyhow::Result<Attempt>,
    ) -> anyhow::Result<()> {
        let copy = |error| StartConfig::instead(Self::COPY, file, error, read_to_start);
        let copy = start.text.is_ok().then_some(copy);
        serve_or_by_copy(process, start, copy, |process, start| {
            start.log_refusal(file);
            start.log_api_errors();
            attempt(process, file, start)
        })
    }
}

fn read_to_start<C: StartsByCopy>(
    path: &Path,
    text: &str,
) -> Result<(C, Option<ConfigErrors>), ConfigErrors> {
    or_without_api_files(C::parse_with(path, text, |_| ()), || {
        C::parse_with(path, text, RawApi::excuse_files)
    })
}

/// How an attempt to serve ended.
pub enum Attempt {
    /// By a signal.
    Stopped,
    /// Before it served: what the configuration says cannot be put in force.
    Refused(Process, anyhow::Error),
}

/// Serves by what was loaded, and, where that cannot be put in force for an error, by what `copy`
/// has: what a reload would have refused must keep no daemon down.
pub fn serve_or_by_copy<L>(
    process: Process,
    loaded: L,
    copy: Option<impl FnOnce(String) -> Option<L>>,
    mut attempt: impl FnMut(Process, L) -> anyhow::Result<Attempt>,
) -> anyhow::Result<()> {
    let (process, error) = match attempt(process, loaded)? {
        Attempt::Stopped => return Ok(()),
        Attempt::Refused(process, error) => (process, error),
    };
    let Some(copy) = copy.and_then(|copy| copy(format!("{error:#}"))) else {
        return Err(error);
    };
    match attempt(process, copy)? {
        Attempt::Stopped => Ok(()),
        Attempt::Refused(..) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMED: CopyName = CopyName {
        name: "x.toml",
        key: &["agent", "state_dir"],
    };

    #[test]
    fn a_copy_is_of_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let of = |file| LastGood::new(NAMED, Path::new(file), dir.path());
        of("/a.toml").save("x = 1\n").unwrap();
        assert_eq!(of("/a.toml").read().unwrap(), "x = 1\n");
        assert_eq!(of("/b.toml").read(), None);
        of("/a.toml").forget().unwrap();
        of("/a.toml").forget().unwrap();
        assert_eq!(of("/a.toml").read(), None);
    }

    #[test]
    fn a_copy_that_cannot_be_written_is_told_and_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let (file, place) = (Path::new("/a.toml"), dir.path().join("state"));
        let keeper = CopyKeeper::new(LastGood::new(NAMED, file, &place));
        fs::write(&place, "no directory").unwrap();
        keeper.keep("x = 1\n".to_owned());
        assert!(keeper.error().unwrap().contains("cannot be written"));
        keeper.keep_again();
        assert!(keeper.error().is_some());
        fs::remove_file(&place).unwrap();
        keeper.keep_again();
        assert_eq!(keeper.error(), None);
        assert!(LastGood::new(NAMED, file, &place).read().is_some());
    }

    #[test]
    fn a_start_uses_the_copy_of_a_broken_file_and_of_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("a.toml"), dir.path().join("b.toml"));
        let text = |rest: &str| format!("[agent]\nstate_dir = {:?}\n{rest}\n", dir.path());
        let load = |file: &Path| {
            StartConfig::load(NAMED, file, |path, text| {
                if config::is_readable(text) && text.contains("good") {
                    return Ok((text.to_owned(), None));
                }
                Err(ConfigErrors::of_file(path, "is bad".to_owned()))
            })
        };
        fs::write(&file, text("good = 1")).unwrap();
        let loaded = load(&file).unwrap();
        assert_eq!(loaded.refusal(), None);
        let copy = LastGood::new(NAMED, &file, dir.path());
        copy.save(&loaded.text.unwrap()).unwrap();
        for broken in ["[broken", "good =", "bad = 1"] {
            fs::write(&file, text(broken)).unwrap();
            fs::write(&other, text(broken)).unwrap();
            let loaded = load(&file).unwrap();
            assert!(loaded.config.ends_with("good = 1\n"), "{broken}");
            let told = loaded.refusal().unwrap();
            assert!(told.ends_with("a.toml: is bad"), "{told}");
            assert!(load(&other).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_start_uses_the_copy_of_a_file_in_json() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        let load = || {
            StartConfig::load(NAMED, &file, |path, text| {
                if config::is_readable(text) {
                    return Ok((text.to_owned(), None));
                }
                Err(ConfigErrors::of_file(path, "is bad".to_owned()))
            })
        };
        let good = format!("{{\"agent\": {{\"state_dir\": {:?}}}}}\n", dir.path());
        fs::write(&file, &good).unwrap();
        let copy = LastGood::new(NAMED, &file, dir.path());
        copy.save(&load().unwrap().text.unwrap()).unwrap();
        fs::write(&file, format!("{good}{{ broken")).unwrap();
        let loaded = load().unwrap();
        assert_eq!(loaded.config, good);
        assert!(loaded.refusal().is_some());
    }
}
