// SPDX-License-Identifier: Apache-2.0
//! A real nginx per server, with a service time that the client's URL asks for
//! and a factor that we can change while it runs.
//!
//! `GET /r/SIZE/SERVICE_US` answers `SIZE` bytes after `SERVICE_US` x factor
//! microseconds. The demand stands in the URL, so that it comes from the
//! client's seed and is the same in every run; the factor is what makes one
//! server slow. nginx's timers count milliseconds. Requests that wait on one
//! connection are served one after another, as HTTP/1.1 demands.
//!
//! `GET /b/SIZE/SERVICE_US` does the same and keeps its worker meanwhile.
//! `POST /up` answers the number of bytes it received; every response names its
//! server in `X-Real`.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::cgroup::Cgroup;
use crate::clock::until;
use crate::netns::Netns;

const LUA_MODULES: [&str; 2] = ["ndk_http_module.so", "ngx_http_lua_module.so"];
const MODULE_DIR: &str = "/usr/lib/nginx/modules";

/// A running nginx; dropped, it is killed and its directory removed.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    directory: TempDir,
    workers: Vec<u32>,
}

impl Nginx {
    /// Starts nginx in `netns` under the name `real` (the value of `X-Real`),
    /// listening on `port` on all addresses, and waits until it accepts.
    pub fn start(netns: &Netns, real: &str, port: u16, workers: u32) -> Result<Self> {
        Self::start_with(netns, real, port, workers, "reuseport backlog=4096", "")
    }

    /// The same with other parameters of `listen` (without `reuseport` all workers share
    /// one accept queue) and `more` directives of the server.
    pub fn start_with(
        netns: &Netns,
        real: &str,
        port: u16,
        workers: u32,
        listen: &str,
        more: &str,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("nginx-").tempdir()?;
        let path = directory.path();
        let config = config(path, real, port, workers, (listen, more));
        fs::write(path.join("nginx.conf"), config)?;
        let child = netns
            .command("nginx")
            .arg("-p")
            .arg(path)
            .arg("-c")
            .arg(path.join("nginx.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(path.join("stderr.log"))?)
            .spawn()
            .context("cannot run nginx (Debian packages nginx, libnginx-mod-http-lua)")?;
        let mut nginx = Self {
            child,
            directory,
            workers: Vec::new(),
        };
        nginx.wait_ready(workers)?;
        Ok(nginx)
    }

    /// Multiplies every service time from now on; 1.0 is normal.
    pub fn set_factor(&self, factor: f64) -> Result<()> {
        let answer = self.control(&format!("/factor?v={factor}"))?;
        anyhow::ensure!(
            answer.starts_with("HTTP/1.1 200"),
            "nginx control: {answer}"
        );
        Ok(())
    }

    /// Has requests burn the CPU time that they ask for, instead of waiting for so long:
    /// then requests queue for the CPU, and a quota slows them down.
    pub fn set_burning(&self, burns: bool) -> Result<()> {
        let answer = self.control(&format!("/burn?v={}", u8::from(burns)))?;
        anyhow::ensure!(
            answer.starts_with("HTTP/1.1 200"),
            "nginx control: {answer}"
        );
        Ok(())
    }

    /// Moves master and workers into a control group.
    pub fn join(&self, cgroup: &Cgroup) -> Result<()> {
        cgroup.add(self.child.id())?;
        self.workers.iter().try_for_each(|&pid| cgroup.add(pid))
    }

    /// What `GET /b/SIZE/SERVICE_US` has answered so far, which keeps its worker until the
    /// answer, as a program does that serves one client at a time: when by the time of day,
    /// seconds, and after how many seconds.
    pub fn blocking_log(&self) -> Result<Vec<(f64, f64)>> {
        let path = self.directory.path().join("blocking.log");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let line = |line: &str| -> Option<(f64, f64)> {
            let (at, took) = line.split_once(' ')?;
            Some((at.parse().ok()?, took.parse().ok()?))
        };
        let lines = text.lines().map(line);
        lines
            .collect::<Option<Vec<_>>>()
            .with_context(|| format!("{} has a line of another form", path.display()))
    }

    /// CPU time used so far by the workers.
    pub fn cpu_time(&self) -> Duration {
        self.workers
            .iter()
            .filter_map(|&pid| crate::cpu::process_time(pid))
            .sum()
    }

    fn control(&self, path: &str) -> Result<String> {
        let mut stream = UnixStream::connect(self.directory.path().join("control.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: control\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn wait_ready(&mut self, workers: u32) -> Result<()> {
        let ready = until(Duration::from_secs(60), || {
            if let Some(status) = self.child.try_wait()? {
                bail!("nginx ended at its start ({status}): {}", self.messages());
            }
            if self.control("/ready").is_ok() {
                self.workers = crate::cpu::children(self.child.id());
            }
            Ok((self.workers.len() == workers as usize).then_some(()))
        })?;
        ready.with_context(|| format!("nginx did not become ready: {}", self.messages()))
    }

    fn messages(&self) -> String {
        ["stderr.log", "error.log"]
            .iter()
            .filter_map(|f| fs::read_to_string(self.directory.path().join(f)).ok())
            .collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM makes the master end its workers; the sandbox catches the rest.
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let ended = until(Duration::from_secs(2), || Ok(self.child.try_wait()?));
        if matches!(ended, Ok(Some(_))) {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether nginx and its Lua module are installed; the reason if not.
pub fn available() -> Result<()> {
    let missing: Vec<PathBuf> = LUA_MODULES
        .iter()
        .map(|m| Path::new(MODULE_DIR).join(m))
        .filter(|p| !p.exists())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("missing {missing:?}: install the Debian packages nginx and libnginx-mod-http-lua")
}

fn config(
    directory: &Path,
    real: &str,
    port: u16,
    workers: u32,
    (listen, more): (&str, &str),
) -> String {
    let at = directory.display();
    let [ndk, lua] = LUA_MODULES;
    format!(
        r#"
load_module {MODULE_DIR}/{ndk};
load_module {MODULE_DIR}/{lua};
daemon off;
user root;
worker_processes {workers};
pid {at}/nginx.pid;
error_log {at}/error.log error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  default_type application/octet-stream;
  server_tokens off;
  tcp_nodelay on;
  keepalive_timeout 120s;
  keepalive_requests 1000000000;
  keepalive_time 240h;
  client_max_body_size 0;
  client_body_temp_path {at}/body;
  proxy_temp_path {at}/proxy;
  fastcgi_temp_path {at}/fastcgi;
  uwsgi_temp_path {at}/uwsgi;
  scgi_temp_path {at}/scgi;
  lua_shared_dict control 64k;
  log_format blocking "$msec $request_time";
  init_by_lua_block {{
    local ffi = require "ffi"
    ffi.cdef "int usleep(unsigned int us);"
    blocking = ffi.C
    filler = string.rep("causeway", 131072)
    bodies = {{}}
    function body_of(n)
      local b = bodies[n]
      if not b then
        b = string.sub(filler, 1, n)
        bodies[n] = b
      end
      return b
    end
  }}
  server {{
    listen unix:{at}/control.sock;
    location = /ready {{ return 200; }}
    location = /factor {{
      content_by_lua_block {{
        ngx.shared.control:set("factor", tonumber(ngx.var.arg_v))
        ngx.say("ok")
      }}
    }}
    location = /burn {{
      content_by_lua_block {{
        ngx.shared.control:set("burn", ngx.var.arg_v == "1")
        ngx.say("ok")
      }}
    }}
  }}
  server {{
    listen {port} {listen};
    listen [::]:{port} {listen};
    add_header X-Real {real} always;
    location = /who {{ return 200 "{real}\n"; }}
    {more}
    location ~ ^/r/(\d+)/(\d+)$ {{
      content_by_lua_block {{
        local size = math.min(tonumber(ngx.var[1]), 1048576)
        local us = tonumber(ngx.var[2]) * (ngx.shared.control:get("factor") or 1)
        if us > 0 then
          if ngx.shared.control:get("burn") then
            local done = os.clock() + us / 1e6
            while os.clock() < done do end
          else
            ngx.sleep(us / 1e6)
          end
        end
        ngx.header.content_length = size
        ngx.print(body_of(size))
      }}
    }}
    location ~ ^/b/(\d+)/(\d+)$ {{
      access_log {at}/blocking.log blocking;
      content_by_lua_block {{
        blocking.usleep(tonumber(ngx.var[2]))
        -- What nginx takes for now is as old as its last event.
        ngx.update_time()
        ngx.header.content_length = tonumber(ngx.var[1])
        ngx.print(body_of(tonumber(ngx.var[1])))
      }}
    }}
    location = /up {{
      content_by_lua_block {{
        ngx.req.read_body()
        local body = ngx.req.get_body_data()
        local n = body and #body or 0
        local path = ngx.req.get_body_file()
        if path then
          local file = io.open(path, "rb")
          n = file:seek("end")
          file:close()
        end
        ngx.say(n)
      }}
    }}
  }}
}}
"#
    )
}
