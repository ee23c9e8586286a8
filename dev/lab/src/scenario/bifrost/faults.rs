// SPDX-License-Identifier: Apache-2.0
//! What must not stop a tunnel: loss, a path that goes down, the other end restarted,
//! all paths down, keys changed, hostile datagrams, paths that come and go. Traffic runs
//! all the while; no figure is judged here but that it goes on.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::hostile::Hostile;
use super::latencies::RequestTimes;
use super::loads::{self, Ends, Pace};
use super::runs::guests;
use super::tunnel::{Setting, Tunnel};
use super::world::{LossPoint, TunnelShape, TunnelWorld};
use super::{Context, Scenario, param};
use crate::background::joined;
use crate::clock::until;

const ECHO: u16 = 7777;
const PATHS: usize = 3;
/// How long messages are sent at least while keys change, and how many go before each change.
const ROTATION: Duration = Duration::from_secs(3);
const MESSAGES: u64 = 10;

pub(crate) const BIFROST_FAULTS: Scenario = Scenario {
    name: "bifrost-faults",
    about: "a tunnel through loss, dead paths, restarts, key rotation and hostile datagrams",
    params: &[
        param("seconds", "3", "length of each step"),
        param("cut_s", "5", "how long all paths are down"),
        param("threads", "1", "threads of each end"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let shape = TunnelShape {
        paths: PATHS,
        rate_mbit: None,
        offloads: false,
        mtu: 1500,
    };
    let world = TunnelWorld::build(context.sandbox, "faults", shape, "bbr")?;
    let mut setting = Setting::plain(PATHS);
    setting.threads = context.param("threads")?;
    setting.lines = vec!["persist = true".to_owned()];
    setting.keys = Some(keys(1, &[1]));
    let tunnel = Tunnel::start(&world, &context.binary, &setting)?;
    let seconds = |name| Ok::<_, anyhow::Error>(Duration::from_secs_f64(context.param(name)?));
    let mut steps = Steps {
        context,
        ends: guests(&world),
        world,
        tunnel,
        setting,
        lasts: seconds("seconds")?,
        cut: seconds("cut_s")?,
        results: serde_json::Map::new(),
    };
    steps.loss()?;
    steps.path_down()?;
    steps.restart()?;
    steps.cut()?;
    steps.rotation()?;
    steps.hostile()?;
    steps.paths()?;
    steps.end()?;
    Ok(Value::Object(steps.results))
}

struct Steps<'a> {
    context: &'a Context,
    world: TunnelWorld,
    ends: Ends,
    tunnel: Tunnel,
    setting: Setting,
    lasts: Duration,
    cut: Duration,
    results: serde_json::Map<String, Value>,
}

impl Steps<'_> {
    /// Ping-pong for a while; every message must be answered.
    fn traffic(&self) -> Result<RequestTimes> {
        let pace = Pace {
            rate: 200.0,
            clients: 4,
            lasts: self.lasts,
        };
        let times = loads::ping_pong(&self.ends, ECHO, pace)?;
        ensure!(
            times.failed == 0,
            "{} of {} messages were not answered",
            times.failed,
            times.requests
        );
        Ok(times)
    }

    fn done(&mut self, step: &str, times: &RequestTimes, more: Value) {
        self.context.say(format!(
            "{step:<12} {} messages, p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms  {more}",
            times.requests, times.p50_ms, times.p99_ms, times.max_ms
        ));
        let value = json!({ "times": times, "more": more });
        self.results.insert(step.to_owned(), value);
    }

    fn loss(&mut self) -> Result<()> {
        let losses = self
            .world
            .lose(0.02, LossPoint::Network, self.context.seed)?;
        let times = self.traffic()?;
        let (lost, resent) = (
            losses.counts().lost,
            self.tunnel.total(|of| of.chunks_retransmitted)?,
        );
        ensure!(
            lost > 0 && resent > 0,
            "{lost} packets lost, {resent} chunks retransmitted"
        );
        self.done("loss", &times, json!({ "lost": lost, "resent": resent }));
        Ok(())
    }

    fn path_down(&mut self) -> Result<()> {
        let down = self.world.path_down(0)?;
        let times = self.traffic()?;
        self.tunnel.wait_dead(1)?;
        let lost = down.counts().lost_down;
        drop(down);
        self.tunnel.wait_alive(PATHS)?;
        self.done("path_down", &times, json!({ "lost": lost }));
        Ok(())
    }

    /// One end is killed and started again while a connection runs.
    fn restart(&mut self) -> Result<()> {
        let before = self.tunnel.ends[0].conversations()?;
        let ends = self.ends.clone();
        let pace = Pace {
            rate: 100.0,
            clients: 2,
            lasts: self.lasts,
        };
        let traffic = std::thread::spawn(move || loads::ping_pong(&ends, ECHO, pace));
        std::thread::sleep(self.lasts / 3);
        self.tunnel.ends[1].restart()?;
        let times = joined(traffic)?;
        ensure!(
            times.failed == 0,
            "{} messages were not answered",
            times.failed
        );
        self.tunnel.wait_alive(PATHS)?;
        let after = self.tunnel.ends[0].conversations()?;
        ensure!(after > before, "the other end has not noticed");
        self.done("restart", &times, json!({ "conversations": after }));
        Ok(())
    }

    /// All paths down: connections wait, and go on.
    fn cut(&mut self) -> Result<()> {
        let ends = self.ends.clone();
        let pace = Pace {
            rate: 100.0,
            clients: 2,
            lasts: self.cut + self.lasts,
        };
        let traffic = std::thread::spawn(move || loads::ping_pong(&ends, ECHO, pace));
        std::thread::sleep(self.lasts / 3);
        let cut = self.world.cut()?;
        std::thread::sleep(self.cut);
        let lost = cut.counts().lost;
        drop(cut);
        let times = joined(traffic)?;
        ensure!(
            times.failed == 0,
            "{} messages were not answered",
            times.failed
        );
        ensure!(
            lost > 0 && times.max_ms >= 1e3 * self.cut.as_secs_f64() / 2.0,
            "{lost} packets were lost in the cut, and no message took longer than {} ms",
            times.max_ms
        );
        self.tunnel.wait_alive(PATHS)?;
        let after = self.traffic()?;
        self.done(
            "cut",
            &after,
            json!({ "lost": lost, "longest_ms": times.max_ms }),
        );
        Ok(())
    }

    /// A new key, in the order that docs/design/bifrost.md gives.
    fn rotation(&mut self) -> Result<()> {
        let ends = self.ends.clone();
        let pace = Pace {
            rate: 200.0,
            clients: 4,
            lasts: self.lasts.max(ROTATION),
        };
        let before = self.refusals()?;
        let traffic = std::thread::spawn(move || loads::ping_pong(&ends, ECHO, pace));
        for (send, known) in [(1, &[1, 2][..]), (2, &[1, 2]), (2, &[2])] {
            self.wait_messages()?;
            self.setting.keys = Some(keys(send, known));
            self.tunnel.reload(&self.setting)?;
        }
        let times = joined(traffic)?;
        ensure!(
            times.failed == 0,
            "{} messages were not answered",
            times.failed
        );
        let refused = self.refusals()? - before;
        ensure!(
            refused == 0,
            "{refused} datagrams were refused in the rotation"
        );
        for end in &self.tunnel.ends {
            ensure!(end.status()?.key == 2, "the new key is not in use");
        }
        self.done("rotation", &times, json!({}));
        Ok(())
    }

    /// Waits until messages go through the tunnel.
    fn wait_messages(&self) -> Result<()> {
        let sent = || self.tunnel.total(|of| of.chunks_sent);
        let before = sent()?;
        let more = until(
            ROTATION,
            || Ok((sent()? >= before + MESSAGES).then_some(())),
        )?;
        more.context("no messages go through the tunnel")
    }

    fn refusals(&self) -> Result<u64> {
        Ok(self.tunnel.refused("key")? + self.tunnel.refused("forged")?)
    }

    fn hostile(&mut self) -> Result<()> {
        let memory = self.tunnel.ends[1].memory()?;
        let before = self.all_refused()?;
        let hostile = Hostile::start(&self.world, self.context.seed)?;
        let times = self.traffic()?;
        let sent = hostile.stop()?;
        let refused = self.all_refused()? - before;
        ensure!(
            refused > sent / 100 && refused > 0,
            "{sent} hostile datagrams were sent, {refused} refused"
        );
        let grown = self.tunnel.ends[1].memory()?.saturating_sub(memory);
        ensure!(grown < 64 << 20, "memory has grown by {grown} bytes");
        self.done(
            "hostile",
            &times,
            json!({ "sent": sent, "refused": refused, "memory_grown_bytes": grown }),
        );
        Ok(())
    }

    fn all_refused(&self) -> Result<u64> {
        let mut sum = 0;
        for reason in [
            "path",
            "address",
            "epoch",
            "key",
            "forged",
            "version",
            "malformed",
            "flood",
        ] {
            sum += self.tunnel.refused(reason)?;
        }
        Ok(sum)
    }

    /// A path goes and comes back by configuration.
    fn paths(&mut self) -> Result<()> {
        let all = self.setting.paths.clone();
        self.setting.paths = vec![0, 2];
        self.tunnel.reload(&self.setting)?;
        self.tunnel.wait_alive(2)?;
        let times = self.traffic()?;
        self.setting.paths = all;
        self.tunnel.reload(&self.setting)?;
        self.tunnel.wait_alive(PATHS)?;
        self.done("paths", &times, json!({}));
        Ok(())
    }

    /// At the end nothing is held and nothing is under way.
    fn end(&mut self) -> Result<()> {
        let times = self.traffic()?;
        let is_empty = || {
            let held = self.tunnel.total(|of| of.chunks_held)?;
            let frames = self.tunnel.total(|of| of.frames_held)?;
            Ok((held == 0 && frames == 0).then_some(()))
        };
        until(Duration::from_secs(60), is_empty)?.context("chunks or frames are held for ever")?;
        self.done("end", &times, json!({}));
        Ok(())
    }
}

/// A keys file.
fn keys(send: u8, known: &[u8]) -> String {
    let mut text = format!("send = {send}\n[keys]\n");
    for id in known {
        text += &format!("{id} = \"{}\"\n", format!("{id:02x}").repeat(32));
    }
    text
}
