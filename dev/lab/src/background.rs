// SPDX-License-Identifier: Apache-2.0
//! Threads and processes that end with what owns them.

use std::net::{Ipv4Addr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::runtime::Runtime;

use crate::clock::until;
use crate::netns::Netns;

/// A thread that works until it is asked to stop; dropping it asks and joins it.
#[derive(Debug)]
pub struct Background<T = ()> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts `body`, which looks at its argument now and then and returns once it is set.
    pub fn spawn(body: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static) -> Self {
        Self::start(|stop| std::thread::spawn(move || body(&stop)))
    }

    /// The same inside a network namespace.
    pub fn spawn_in(
        netns: &Netns,
        body: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static,
    ) -> Self {
        Self::start(|stop| netns.thread(move || body(&stop)))
    }

    fn start(spawn: impl FnOnce(Arc<AtomicBool>) -> JoinHandle<Result<T>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        Self {
            thread: Some(spawn(stop.clone())),
            stop,
        }
    }

    /// Stops it; what it returned.
    pub fn finish(mut self) -> Result<T> {
        self.stop.store(true, Ordering::Relaxed);
        joined(self.thread.take().context("the thread has ended")?)
    }
}

impl Background {
    pub fn run_tasks(runtime: Runtime) -> Self {
        Self::spawn(move |stop| {
            runtime.block_on(stopped(stop));
            runtime.shutdown_background();
            Ok(())
        })
    }
}

/// Waits until `stop` is set.
async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

/// What a thread returned.
///
/// # Errors
/// Its own, or that it panicked.
pub fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    let result = thread.join();
    result.unwrap_or_else(|_| bail!("a thread panicked"))
}

/// A runtime that works on the calling thread alone.
pub fn own_runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Starts a server in a namespace and waits until it accepts connections to `port`.
pub fn serve(netns: &Netns, command: &mut Command, port: u16) -> Result<KilledOnDrop> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut child = KilledOnDrop(child);
    let accepts = until(Duration::from_secs(60), || {
        if let Some(status) = child.try_wait()? {
            bail!("{program} ended at its start: {status}");
        }
        let connected =
            netns.run(move || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()))?;
        Ok(connected.then_some(()))
    })?;
    accepts.with_context(|| format!("{program} does not accept connections"))?;
    Ok(child)
}

/// Runs a command to its end; its standard output.
///
/// # Errors
/// It failed: what was run, and what it said.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A child process; dropped, it is killed.
#[derive(Debug)]
pub struct KilledOnDrop(pub Child);

impl KilledOnDrop {
    /// SIGKILL, and waits for its end.
    pub fn kill_and_wait(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Deref for KilledOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KilledOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill_and_wait();
    }
}
