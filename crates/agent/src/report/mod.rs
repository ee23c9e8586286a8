// SPDX-License-Identifier: Apache-2.0
//! Reports to balancers (`[agent.report]`): one task, which sends whatever is due.

mod connections;
mod load;
mod sockets;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use causeway_core::agent_report::{
    Body, BookPart, BookParts, ConnectionNotice, NOTICES_MAX, Question, ReportSender,
};
use causeway_dataplane::ConnTokens;
use causeway_netio::monotonic_ns;
use tracing::{info, warn};

use crate::agent::{Agent, ReportPlan};
use connections::Connections;
use load::LoadReader;
use sockets::Sockets;

/// Longest time from a connection's end to its notice, from a second's end to what its
/// clients waited for, and from a question to its answer.
const TICK: Duration = Duration::from_millis(50);
/// Time between two signs of life, where nothing else is sent.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Datagrams in one go, then a pause: a receiver's buffer holds more.
const BURST: usize = 8;
const PAUSE: Duration = Duration::from_millis(1);

/// Reports from now on, on a thread that ends with the process, if the file says so.
pub(crate) fn start(agent: Arc<Agent>) -> anyhow::Result<()> {
    let Some(plan) = agent.report_plan() else {
        return Ok(());
    };
    let tokens = plan
        .report
        .connections
        .then(|| agent.tokens())
        .transpose()?;
    thread::Builder::new()
        .name("reports".to_owned())
        .spawn(move || Reporter::new(&agent, tokens).run())?;
    Ok(())
}

struct Reporter<'a> {
    agent: &'a Agent,
    sender: ReportSender,
    sockets: Sockets,
    load: LoadReader,
    load_at: Instant,
    connections: Option<Connections<'a>>,
    sent_at: Option<Instant>,
    /// Parts of the fleet's book, and when it was last said what of it is followed.
    parts: BookParts,
    followed_at: Option<Instant>,
    fault: Option<String>,
}

/// What a balancer says to an agent.
enum Answer {
    Question(Question),
    Book(IpAddr, BookPart),
}

impl<'a> Reporter<'a> {
    fn new(agent: &'a Agent, tokens: Option<ConnTokens>) -> Self {
        let connections = tokens.map(|tokens| Connections::start(agent, tokens));
        let connections = connections.transpose().unwrap_or_else(|error| {
            warn!("balancers will not hear of connections' ends: {error}");
            None
        });
        Self {
            agent,
            sender: ReportSender::new(load::boot(), monotonic_ns()),
            sockets: Sockets::default(),
            load: LoadReader::default(),
            load_at: Instant::now(),
            connections,
            sent_at: None,
            parts: BookParts::default(),
            followed_at: None,
            fault: None,
        }
    }

    /// A reload may change where to report, not what.
    fn run(mut self) {
        while let Some(plan) = self.agent.report_plan() {
            self.wait(&plan);
            let asked = self.receive(&plan);
            self.report_book(&plan);
            self.report_state(&plan);
            self.report_connections(&plan, &asked);
            if self.sent_at.is_none_or(|at| at.elapsed() >= ALIVE_EVERY) {
                self.send(&plan, &plan.report.to, &[]);
            }
        }
    }

    fn wait(&mut self, plan: &ReportPlan) {
        let until_load = self.load_at.saturating_duration_since(Instant::now());
        let timeout = match plan.report.load {
            Some(_) => until_load.min(TICK),
            None => TICK,
        };
        match &mut self.connections {
            Some(connections) => connections.wait(timeout),
            None => thread::sleep(timeout),
        }
    }

    /// Where this server stands in the fleet's book, once a second and after each step of it:
    /// balancers that are ahead send it more.
    fn report_book(&mut self, plan: &ReportPlan) {
        let lately = self
            .followed_at
            .is_some_and(|at| at.elapsed() < ALIVE_EVERY);
        if !plan.report.book || lately {
            return;
        }
        for server in &plan.servers {
            let bodies = vec![Body::Follows(self.agent.follows(*server))];
            let datagram = self.sender.datagram(*server, bodies, &plan.report.keys);
            self.sockets.send(&plan.report.to, &datagram);
        }
        self.followed_at = Some(Instant::now());
        self.sent_at = self.followed_at;
    }

    /// Takes a part of the book; with the last one, the book.
    fn take_part(&mut self, plan: &ReportPlan, server: IpAddr, part: BookPart) {
        let Some(orders) = self.parts.take(server, part, &plan.report.keys) else {
            return;
        };
        let position = orders.position;
        let fault = match self.agent.handle_orders(server, orders) {
            Ok(false) => return,
            Ok(true) => {
                self.followed_at = None;
                info!(
                    "{server} goes by book {}.{} of the fleet",
                    position.generation.count, position.revision
                );
                None
            }
            Err(error) => Some(format!("{error:#}")),
        };
        if let (Some(fault), false) = (&fault, fault == self.fault) {
            warn!("the fleet's book cannot be followed, and the last good one holds: {fault}");
        }
        self.fault = fault;
    }

    /// Load and latency, when they are due.
    fn report_state(&mut self, plan: &ReportPlan) {
        let mut bodies = Vec::new();
        let interval = plan.report.load;
        if let Some(interval) = interval.filter(|_| self.load_at <= Instant::now()) {
            self.load_at = (self.load_at + interval).max(Instant::now());
            if let Some(load) = self.load.read(&plan.vips) {
                self.agent.set_load(load);
                bodies.push(Body::Load(load));
            }
        }
        let latencies = self.agent.take_latencies();
        bodies.extend(latencies.map(Body::Latency));
        if bodies.is_empty() {
            return;
        }
        self.send(plan, &plan.report.to, &bodies);
    }

    fn report_connections(&mut self, plan: &ReportPlan, asked: &[SocketAddr]) {
        let Some(connections) = &mut self.connections else {
            return;
        };
        let (opened, closed) = connections.take_changes();
        let learning = connections.learning();
        self.notify(plan, &learning, &opened, Body::Opened);
        self.notify(plan, &plan.report.to, &closed, Body::Closed);
        for balancer in asked {
            let connections = self.connections.as_mut();
            let open = connections.map(|connections| connections.answer(*balancer));
            self.notify(plan, &[*balancer], &open.unwrap_or_default(), Body::Opened);
        }
    }

    /// Each datagram is signed once, for all that it goes to.
    fn notify(
        &mut self,
        plan: &ReportPlan,
        to: &[SocketAddr],
        notices: &[ConnectionNotice],
        body: impl Fn(Vec<ConnectionNotice>) -> Body,
    ) {
        if to.is_empty() {
            return;
        }
        for (count, some) in notices.chunks(NOTICES_MAX).enumerate() {
            if count % BURST == BURST - 1 {
                thread::sleep(PAUSE);
            }
            self.send(plan, to, &[body(some.to_vec())]);
        }
    }

    /// In the name of each address that balancers may know this server by: one of them is a
    /// VIP's real, and that one's word counts there.
    fn send(&mut self, plan: &ReportPlan, to: &[SocketAddr], bodies: &[Body]) {
        for server in &plan.servers {
            let bodies = bodies.to_vec();
            let datagram = self.sender.datagram(*server, bodies, &plan.report.keys);
            self.sockets.send(to, &datagram);
        }
        self.sent_at = Some(Instant::now());
    }

    /// Takes what balancers have said: shows them that this boot is alive, follows the book. Gives
    /// those that ask what is open.
    fn receive(&mut self, plan: &ReportPlan) -> Vec<SocketAddr> {
        let (sender, keys) = (&mut self.sender, &plan.report.keys);
        let servers: &[IpAddr] = &plan.servers;
        let read = |datagram: &[u8], balancer| {
            let part = sender.book_part(datagram, servers, keys);
            let part = part.filter(|_| plan.report.book);
            let told = part.map(|(server, part)| Answer::Book(server, part));
            told.or_else(|| {
                let question = sender.question(datagram, balancer, servers, keys);
                question.map(Answer::Question)
            })
        };
        let answers = self.sockets.answers(&plan.report.to, read);
        let mut asked = Vec::new();
        for (balancer, answer) in answers {
            match answer {
                Answer::Question(Question::Open) if !asked.contains(&balancer) => {
                    asked.push(balancer);
                }
                Answer::Question(Question::Open) => {}
                Answer::Question(Question::Challenge(server, number)) => {
                    let response = vec![Body::Response(number)];
                    let datagram = self.sender.datagram(server, response, keys);
                    self.sockets.send(&[balancer], &datagram);
                    // That balancer has not taken our position yet.
                    self.followed_at = None;
                }
                Answer::Book(server, part) => self.take_part(plan, server, part),
            }
        }
        asked
    }
}
