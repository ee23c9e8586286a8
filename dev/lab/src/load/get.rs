// SPDX-License-Identifier: Apache-2.0
//! One request after another on one connection, for clients that are written as a
//! sequence of steps. Many of them share a thread; times are good to a millisecond.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::http::{Response, ResponseParser};
use super::log::ConnectionFault;
use super::socket::{fault_of, reset_on_close};

/// A connection to a service.
pub struct HttpSession {
    stream: TcpStream,
    parser: ResponseParser,
    buffer: Vec<u8>,
    /// The server that answered first: another one later is a fault.
    real: Option<String>,
    /// Longest wait for the next bytes.
    timeout: Duration,
}

impl HttpSession {
    /// Connects; `wait` is the longest wait for this and for every next byte.
    pub async fn open(target: SocketAddr, wait: Duration) -> Result<Self, ConnectionFault> {
        let stream = match timeout(wait, TcpStream::connect(target)).await {
            Ok(connected) => connected.map_err(|error| fault_of(&error))?,
            Err(_) => return Err(ConnectionFault::ConnectTimeout),
        };
        stream.set_nodelay(true).map_err(|error| fault_of(&error))?;
        Ok(Self {
            stream,
            parser: ResponseParser::default(),
            buffer: vec![0; 16 * 1024],
            real: None,
            timeout: wait,
        })
    }

    /// The server at the other end, once it has answered.
    pub fn real(&self) -> Option<&str> {
        self.real.as_deref()
    }

    /// Sends a request for `path` and waits for its whole answer.
    pub async fn get(&mut self, path: &str) -> Result<Response, ConnectionFault> {
        self.request(path, "").await
    }

    /// The same, and has the server close the connection then.
    pub async fn get_last(&mut self, path: &str) -> Result<Response, ConnectionFault> {
        self.request(path, "Connection: close\r\n").await
    }

    /// Has the connection end with a RST when it is dropped.
    pub fn reset_on_close(&self) {
        reset_on_close(&self.stream);
    }

    async fn request(&mut self, path: &str, fields: &str) -> Result<Response, ConnectionFault> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: causeway\r\n{fields}\r\n");
        let sent = self.stream.write_all(request.as_bytes()).await;
        sent.map_err(|error| fault_of(&error))?;
        loop {
            let read = timeout(self.timeout, self.stream.read(&mut self.buffer)).await;
            let count = match read {
                Ok(Ok(0)) => return Err(ConnectionFault::ShortRead),
                Ok(Ok(count)) => count,
                Ok(Err(error)) => return Err(fault_of(&error)),
                Err(_) => return Err(ConnectionFault::ResponseTimeout),
            };
            let mut bytes = &self.buffer[..count];
            let response = self.parser.feed(&mut bytes);
            if let Some(response) = response.map_err(|_| ConnectionFault::BadResponse)? {
                return self.check(response);
            }
        }
    }

    fn check(&mut self, response: Response) -> Result<Response, ConnectionFault> {
        if response.status != 200 {
            return Err(ConnectionFault::BadResponse);
        }
        match &self.real {
            Some(real) if *real != response.real => return Err(ConnectionFault::WrongReal),
            Some(_) => {}
            None => self.real = Some(response.real.clone()),
        }
        Ok(response)
    }
}
