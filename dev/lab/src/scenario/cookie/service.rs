// SPDX-License-Identifier: Apache-2.0
//! A service that does what a line asks, and clients that notice which server they talk to:
//! connections that live long, which HTTP load generators do not have.
//!
//! `id` answers the server's name; `get N` N bytes; `put N` takes N bytes and answers it;
//! `chat N` also answers a few bytes to whatever it reads of them; `tick N MS` a byte every
//! MS milliseconds, N times; `later MS` a byte after that; `keepalive S` turns probes on;
//! `close` ends the connection from the server's side.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Netns;

/// Port of the service.
pub(super) const PORT: u16 = 80;
/// The same service on the same way, without cookies.
pub(super) const PLAIN_PORT: u16 = 81;
/// How long an answer may take: longer than a few retransmission timeouts.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The port of the VIPs that is one server's alone, for subflows to join it.
pub(super) fn join_port(server: usize) -> u16 {
    10_000 + server as u16
}

/// Serves on these addresses of a namespace until the sandbox ends; with `multipath` to
/// clients of MPTCP, too.
pub(super) fn serve(
    netns: &Netns,
    name: &str,
    addresses: &[IpAddr],
    multipath: bool,
) -> Result<()> {
    let ports = [PORT, PLAIN_PORT];
    for (address, port) in addresses.iter().flat_map(|a| ports.map(|port| (a, port))) {
        let target = SocketAddr::new(*address, port);
        let listener = netns.run(move || listen(target, multipath))?;
        let name = name.to_owned();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let name = name.clone();
                // A client that goes away is the client's business.
                thread::spawn(move || answer(stream, &name).is_ok());
            }
        });
    }
    Ok(())
}

/// On a busy machine the kernel takes its time to make an IPv6 address usable.
fn listen(target: SocketAddr, multipath: bool) -> Result<TcpListener> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let socket = socket(target, multipath)?;
        socket.set_reuse_address(true)?;
        match socket.bind(&target.into()) {
            Err(e) if e.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            bound => {
                bound.with_context(|| format!("cannot listen on {target}"))?;
                socket.listen(1024)?;
                return Ok(socket.into());
            }
        }
    }
}

fn socket(target: SocketAddr, multipath: bool) -> Result<Socket> {
    let protocol = match multipath {
        true => Protocol::MPTCP,
        false => Protocol::TCP,
    };
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(protocol));
    socket.with_context(|| match multipath {
        true => "this kernel has no MPTCP (CONFIG_MPTCP, net.mptcp.enabled)",
        false => "no TCP socket",
    })
}

fn answer(stream: TcpStream, name: &str) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(&stream);
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let command = std::mem::take(&mut line);
        let mut words = command.trim_end().split(' ');
        let command = words.next().unwrap_or_default();
        let mut number = || {
            words
                .next()
                .and_then(|w| w.parse::<u64>().ok())
                .unwrap_or(0)
        };
        match command {
            "id" => writeln!(out, "{name}")?,
            "get" => send(&mut out, number())?,
            "put" => {
                let count = number();
                let taken = std::io::copy(&mut (&mut input).take(count), &mut std::io::sink())?;
                ensure!(taken == count, "{taken} of {count} bytes came");
                writeln!(out, "{name}")?;
            }
            "chat" => {
                chat(&mut input, &mut out, number())?;
                writeln!(out, "{name}")?;
            }
            "tick" => {
                let (count, pause) = (number(), Duration::from_millis(number()));
                for _ in 0..count {
                    out.write_all(b".")?;
                    thread::sleep(pause);
                }
            }
            "later" => {
                thread::sleep(Duration::from_millis(number()));
                writeln!(out, "{name}")?;
            }
            "keepalive" => {
                keepalive(&stream, number() as i32)?;
                writeln!(out, "{name}")?;
            }
            "close" => {
                stream.shutdown(Shutdown::Write)?;
                return Ok(());
            }
            _ => bail!("no command {command:?}"),
        }
    }
    Ok(())
}

/// Takes this many bytes, and answers each part of them at once.
fn chat(input: &mut impl Read, out: &mut TcpStream, mut bytes: u64) -> Result<()> {
    let mut block = vec![0; 65536];
    while bytes > 0 {
        let most = bytes.min(block.len() as u64) as usize;
        let read = input.read(&mut block[..most])?;
        ensure!(read > 0, "{bytes} bytes did not come");
        bytes -= read as u64;
        out.write_all(&[b'.'; 100])?;
    }
    Ok(())
}

fn send(out: &mut TcpStream, mut bytes: u64) -> Result<()> {
    let block = [b'x'; 65536];
    while bytes > 0 {
        let now = bytes.min(block.len() as u64) as usize;
        out.write_all(&block[..now])?;
        bytes -= now as u64;
    }
    Ok(())
}

fn keepalive(stream: &TcpStream, seconds: i32) -> Result<()> {
    set(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds)?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds)
}

fn set(stream: &TcpStream, level: i32, option: i32, value: i32) -> Result<()> {
    // SAFETY: an open socket and an int of the given length.
    let ret = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as u32,
        )
    };
    ensure!(ret == 0, "setsockopt: {}", std::io::Error::last_os_error());
    Ok(())
}

/// A client's connection and the server that it began with.
#[derive(Debug)]
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    /// The VIP's address.
    pub vip: IpAddr,
    /// Name of the server.
    pub server: String,
}

impl Connection {
    /// Connects from a client's namespace and asks who answers.
    pub(super) fn open(client: &Netns, vip: IpAddr) -> Result<Self> {
        Self::connect(client, (vip, PORT).into(), false)
    }

    /// The same without cookies.
    pub(super) fn open_plain(client: &Netns, vip: IpAddr) -> Result<Self> {
        Self::connect(client, (vip, PLAIN_PORT).into(), false)
    }

    /// The same by MPTCP.
    pub(super) fn open_multipath(client: &Netns, vip: IpAddr) -> Result<Self> {
        Self::connect(client, (vip, PORT).into(), true)
    }

    fn connect(client: &Netns, target: SocketAddr, multipath: bool) -> Result<Self> {
        let stream = client.run(move || {
            let socket = socket(target, multipath)?;
            socket.connect_timeout(&target.into(), TIMEOUT)?;
            Ok(TcpStream::from(socket))
        })?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream: BufReader::new(stream),
            vip: target.ip(),
            server: String::new(),
        };
        connection.server = connection.line("id")?;
        Ok(connection)
    }

    /// Sends a command and reads the line that answers.
    pub(super) fn line(&mut self, command: &str) -> Result<String> {
        writeln!(self.stream.get_mut(), "{command}")?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "the connection ended");
        Ok(line.trim_end().to_owned())
    }

    /// How long an answer may take from now on.
    pub(super) fn set_timeout(&self, timeout: Duration) -> Result<()> {
        Ok(self.stream.get_ref().set_read_timeout(Some(timeout))?)
    }

    /// Whether the same server still answers.
    pub(super) fn is_whole(&mut self) -> bool {
        self.line("id").is_ok_and(|line| line == self.server)
    }

    /// Sends a command and reads `bytes` of answer; the longest time without any.
    pub(super) fn read(&mut self, command: &str, bytes: usize) -> Result<Duration> {
        writeln!(self.stream.get_mut(), "{command}")?;
        let (mut left, mut last, mut longest) = (bytes, Instant::now(), Duration::ZERO);
        let mut block = vec![0; 65536];
        while left > 0 {
            let most = left.min(block.len());
            let read = self.stream.read(&mut block[..most])?;
            ensure!(read > 0, "the connection ended with {left} bytes missing");
            left -= read;
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        Ok(longest)
    }

    /// Sends `bytes` and waits until the server has taken them.
    pub(super) fn put(&mut self, bytes: usize) -> Result<()> {
        writeln!(self.stream.get_mut(), "put {bytes}")?;
        send(self.stream.get_mut(), bytes as u64)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line.trim_end() == self.server, "the answer was {line:?}");
        Ok(())
    }

    /// The same while the server answers all the time.
    pub(super) fn chat(&mut self, bytes: usize) -> Result<()> {
        writeln!(self.stream.get_mut(), "chat {bytes}")?;
        let mut out = self.stream.get_ref().try_clone()?;
        let sender = thread::spawn(move || send(&mut out, bytes as u64));
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        sent?;
        let name = line.trim_start_matches('.').trim_end();
        ensure!(name == self.server, "the answer was {line:?}");
        Ok(())
    }

    /// Ends the connection with a RST.
    pub(super) fn reset(self) -> Result<()> {
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        // SAFETY: an open socket and a linger of the given length.
        let ret = unsafe {
            libc::setsockopt(
                self.stream.get_ref().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                std::ptr::from_ref(&linger).cast(),
                size_of_val(&linger) as u32,
            )
        };
        ensure!(ret == 0, "SO_LINGER: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Reads until the server has ended the connection.
    pub(super) fn end_of_server(&mut self) -> Result<()> {
        writeln!(self.stream.get_mut(), "close")?;
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(0) => Ok(()),
            Ok(_) => bail!("bytes that nobody asked for"),
            Err(e) if e.kind() == ErrorKind::WouldBlock => bail!("the server's FIN never came"),
            Err(e) => Err(e.into()),
        }
    }
}
