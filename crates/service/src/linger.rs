// SPDX-License-Identifier: Apache-2.0
//! Connections that close without taking the last answer away: what was received and
//! not read makes the kernel close by a reset, which may overtake the answer at the client.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long what the client still sends is read, and thrown away.
const LINGER: Duration = Duration::from_secs(1);

/// A stream whose shutdown ends its own direction, then reads until the client ends the
/// other one, or for [`LINGER`].
pub(crate) struct Lingering<S> {
    stream: S,
    /// Begun by the shutdown.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl<S> Lingering<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            timeout: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.timeout.is_none() {
            ready!(pin!(&mut this.stream).poll_shutdown(cx))?;
        }
        let timeout = this.timeout.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        loop {
            if timeout.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut room = [0; 4096];
            let mut buffer = ReadBuf::new(&mut room);
            match ready!(pin!(&mut this.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                // Whichever way the client ended: the answer is its own to have taken.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use tokio::io::AsyncWriteExt;

    use super::*;

    /// A client that sends on after the answer reads it all the same.
    #[tokio::test]
    async fn an_answer_arrives_at_a_client_that_sends_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = listener.accept().unwrap().0;
        served.set_nonblocking(true).unwrap();
        let served = tokio::net::TcpStream::from_std(served).unwrap();
        let body = std::thread::spawn(move || {
            client.write_all(&vec![0; 1 << 20]).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).map(|_| answer)
        });
        let mut stream = Lingering::new(served);
        stream.write_all(b"too much").await.unwrap();
        stream.shutdown().await.unwrap();
        drop(stream);
        assert_eq!(body.join().unwrap().unwrap(), "too much");
    }

    /// One that neither ends nor sends holds its place for that long alone.
    #[tokio::test]
    async fn a_client_that_does_nothing_is_left() {
        let (served, _client) = tokio::io::duplex(64);
        Lingering::new(served).shutdown().await.unwrap();
    }
}
