// SPDX-License-Identifier: Apache-2.0
//! A balancer's statistics as HAProxy shows its own (`show stat`), for programs that read those.
//!
//! Columns are those of section 9.1 of HAProxy's management guide; what a balancer that sees requests
//! alone cannot know is empty.

use crate::balancer::{HealthView, RealState, RealView, Stats, VipView};

/// The columns, in HAProxy's order.
const COLUMNS: &str = "pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,dreq,dresp,ereq,econ,eresp,wretr,wredis,status,weight,act,bck,chkfail,chkdown,lastchg,downtime,qlimit,pid,iid,sid,throttle,lbtot,tracked,type,rate,rate_lim,rate_max,check_status,check_code,check_duration,hrsp_1xx,hrsp_2xx,hrsp_3xx,hrsp_4xx,hrsp_5xx,hrsp_other,hanafail,req_rate,req_rate_max,req_tot,cli_abrt,srv_abrt,comp_in,comp_out,comp_byp,comp_rsp,lastsess,last_chk,last_agt,qtime,ctime,rtime,ttime,agent_status,agent_code,agent_duration,check_desc,agent_desc,check_rise,check_fall,check_health,agent_rise,agent_fall,agent_health,addr,cookie,mode,algo,conn_rate,conn_rate_max,conn_tot,intercepted,dcon,dses,wrew,connect,reuse,cache_lookups,cache_hits,srv_icur,src_ilim,qtime_max,ctime_max,rtime_max,ttime_max,eint,idle_conn_cur,safe_conn_cur,used_conn_cur,need_conn_est,uweight";

/// A row under construction: cells by column.
struct Row(Vec<(&'static str, String)>);

impl Row {
    /// Of a VIP with this number: its name, and what the row is of.
    fn of(vip: &VipView, iid: usize, name: &str, kind: u8) -> Self {
        let mut row = Self(Vec::new());
        row.set("pxname", &vip.name);
        row.set("svname", name);
        row.set("pid", 1);
        row.set("iid", iid);
        row.set("type", kind);
        row.set("mode", &vip.protocol);
        row
    }

    fn set(&mut self, column: &'static str, value: impl ToString) {
        self.0.push((column, value.to_string()));
    }

    /// HAProxy ends each cell with a comma.
    fn line(self) -> String {
        let cell = |column: &str| {
            let found = self.0.iter().find(|(name, _)| *name == column);
            found.map_or(String::new(), |(_, value)| quoted(value)) + ","
        };
        COLUMNS.split(',').map(cell).collect::<String>() + "\n"
    }
}

/// RFC 4180.
fn quoted(value: &str) -> String {
    match value.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.to_owned(),
    }
}

/// The header, then for each VIP a row for its frontend, its reals and its backend.
pub fn csv(stats: &Stats) -> String {
    let mut text = format!("# {COLUMNS},\n");
    for (place, vip) in stats.vips.iter().enumerate() {
        let part = stats.part.as_ref().map_or(0, |part| part.from);
        let iid = part + place + 1;
        text += &frontend(vip, iid).line();
        for (sid, real) in vip.reals.iter().enumerate() {
            text += &server(vip, real, (iid, sid + 1), stats.at.monotonic_ns).line();
        }
        text += &backend(vip, iid).line();
    }
    text
}

/// The sum over a VIP's reals.
fn sum(vip: &VipView, of: impl Fn(&RealView) -> u64) -> u64 {
    vip.reals.iter().map(of).sum()
}

fn frontend(vip: &VipView, iid: usize) -> Row {
    let mut row = Row::of(vip, iid, "FRONTEND", 0);
    let opened = sum(vip, |real| real.connections_opened);
    row.set("sid", 0);
    row.set("status", "OPEN");
    row.set("scur", sum(vip, |real| real.connections_active));
    row.set("stot", opened);
    row.set("conn_tot", opened);
    row.set("req_tot", sum(vip, |real| real.requests));
    row.set("bin", vip.bytes);
    row
}

fn server(vip: &VipView, real: &RealView, (iid, sid): (usize, usize), now_ns: u64) -> Row {
    let mut row = Row::of(vip, iid, &real.address, 2);
    row.set("sid", sid);
    row.set(
        "status",
        status(RealState::of(&real.state), real.health.is_some()),
    );
    row.set("scur", real.connections_active);
    row.set("stot", real.connections_opened);
    row.set("lbtot", real.connections_opened);
    row.set("bin", real.bytes);
    row.set("weight", whole(real.effective_weight));
    row.set("uweight", real.weight);
    let is_primary = real.role == "primary";
    row.set("act", u8::from(is_primary));
    row.set("bck", u8::from(!is_primary));
    let address = match real.address.contains(':') {
        true => format!("[{}]", real.address),
        false => real.address.clone(),
    };
    row.set("addr", format!("{address}:{}", vip.port));
    if let Some(mean_us) = real.latency.mean_us {
        row.set("rtime", (mean_us / 1e3).round());
    }
    if let Some(health) = &real.health {
        row.set("chkfail", health.failed);
        row.set("lastchg", since_s(health, now_ns));
        row.set("last_chk", &health.reason);
    }
    row
}

fn backend(vip: &VipView, iid: usize) -> Row {
    let mut row = Row::of(vip, iid, "BACKEND", 1);
    let opened = sum(vip, |real| real.connections_opened);
    let gets_new = |real: &&RealView| real.is(&[RealState::Active]);
    let (primary, other): (Vec<_>, Vec<_>) = vip
        .reals
        .iter()
        .filter(|real| real.is(&[RealState::Active, RealState::Standby]))
        .partition(|real| real.role == "primary");
    let weights = vip.reals.iter().filter(gets_new);
    row.set("sid", 0);
    row.set("status", if vip.reals_active > 0 { "UP" } else { "DOWN" });
    row.set("scur", sum(vip, |real| real.connections_active));
    row.set("stot", opened);
    row.set("lbtot", opened);
    row.set("bin", vip.bytes);
    row.set(
        "weight",
        weights
            .map(|real| whole(real.effective_weight))
            .sum::<u64>(),
    );
    row.set("uweight", sum(vip, |real| real.weight.into()));
    row.set("act", primary.len());
    row.set("bck", other.len());
    row.set("algo", &vip.scheduler);
    row
}

/// HAProxy's words; what it calls `no check` gets connections unprobed. One that waits for its first
/// probe gets none.
fn status(state: Option<RealState>, is_probed: bool) -> &'static str {
    match state {
        Some(RealState::Maintenance) => "MAINT",
        Some(RealState::Drain) => "DRAIN",
        Some(RealState::Down | RealState::Waiting) => "DOWN",
        _ if !is_probed => "no check",
        _ => "UP",
    }
}

/// HAProxy's weights are whole, and 0 is that of a server without new connections.
fn whole(weight: f64) -> u64 {
    match weight > 0.0 {
        true => (weight.round() as u64).max(1),
        false => 0,
    }
}

fn since_s(health: &HealthView, now_ns: u64) -> u64 {
    now_ns.saturating_sub(health.since_monotonic_ns) / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_where_it_must_be() {
        assert_eq!(quoted("10.0.0.1"), "10.0.0.1");
        assert_eq!(quoted("said \"no\", twice"), "\"said \"\"no\"\", twice\"");
    }

    #[test]
    fn up_is_what_gets_connections_or_stands_by() {
        let probed = [
            "active",
            "standby",
            "waiting",
            "down",
            "drain",
            "maintenance",
        ];
        assert_eq!(
            probed.map(|state| status(RealState::of(state), true)),
            ["UP", "UP", "DOWN", "DOWN", "DRAIN", "MAINT"]
        );
        assert_eq!(status(Some(RealState::Active), false), "no check");
    }

    #[test]
    fn a_weight_of_little_is_not_none() {
        assert_eq!([0.0, 0.02, 1.4, 255.6].map(whole), [0, 1, 1, 256]);
    }
}
