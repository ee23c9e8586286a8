// SPDX-License-Identifier: Apache-2.0
//! The controller at work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use causeway_api::Moment;
use causeway_service::{notify, replace_file};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::actions::{Situation, Told};
use crate::admit::admit;
use crate::balancer::BalancerError;
use crate::claims::{Refusal, claims};
use crate::cluster::{Cluster, Heard};
use crate::file::BaseFile;
use crate::objects::{ClusterNode, ClusterService, EndpointSlice, ObjectKey};
use crate::settings::KubernetesSettings;
use crate::speaker::{self, Leads};
use crate::wanted::{InForce, Planner, WantedVip};
use crate::watch::follow;

/// What is told in so short a time is acted on at once.
const GATHER: Duration = Duration::from_millis(250);
/// How late a change of the base file or of the balancer is noticed.
const LOOK: Duration = Duration::from_secs(5);
/// How soon after a failure to try again.
const RETRY: Duration = Duration::from_secs(2);
/// Before a balancer that lacks a VIP, or has refused some, is asked once more.
const AGAIN_NS: u64 = 10_000_000_000;
/// Characters of what the balancer says that go into an Event.
const SENTENCE_MAX: usize = 200;

/// What the watches tell.
enum News {
    Services(Heard<ClusterService>),
    Slices(Heard<EndpointSlice>),
    Nodes(Heard<ClusterNode>),
}

/// Runs until SIGTERM or SIGINT.
pub fn run(settings: KubernetesSettings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = work(Arc::new(settings)) => {}
        }
        notify::stopping();
        Ok(())
    })
}

/// Works for as long as it is polled.
async fn work(settings: Arc<KubernetesSettings>) {
    let (news, mut heard) = mpsc::unbounded_channel();
    let services = {
        let news = news.clone();
        follow(&settings.server, move |of| {
            news.send(News::Services(of)).is_ok()
        })
    };
    let slices = {
        let news = news.clone();
        follow(&settings.server, move |of| {
            news.send(News::Slices(of)).is_ok()
        })
    };
    let nodes = follow(&settings.server, move |of| {
        news.send(News::Nodes(of)).is_ok()
    });
    let leads = Leads::default();
    let election = speaker::take_part(&settings.server, &settings.lease, &settings.member, &leads);
    let mut controller = Controller::new(&settings, &leads);
    let control = async {
        notify::ready();
        controller.begin();
        let mut cluster = Cluster::default();
        loop {
            let next = controller.step(&cluster).await;
            tokio::select! {
                () = sleep(next) => {}
                Some(first) = heard.recv() => {
                    take(&mut cluster, first);
                    sleep(GATHER).await;
                    while let Ok(more) = heard.try_recv() {
                        take(&mut cluster, more);
                    }
                }
            }
        }
    };
    tokio::join!(services, slices, nodes, election, control);
}

fn take(cluster: &mut Cluster, news: News) {
    match news {
        News::Services(of) => cluster.handle_services(of),
        News::Slices(of) => cluster.handle_slices(of),
        News::Nodes(of) => cluster.handle_nodes(of),
    }
}

/// What the balancer was last asked whether it takes it.
#[derive(Debug)]
struct Checked {
    base: BaseFile,
    vips: Vec<WantedVip>,
    refused: BTreeMap<ObjectKey, String>,
    at_ns: u64,
}

/// Brings cluster and balancer together.
struct Controller<'a> {
    settings: &'a KubernetesSettings,
    leads: &'a Leads,
    planner: Planner,
    told: Told,
    checked: Option<Checked>,
    /// The text that it took last.
    taken: Option<String>,
    /// When it was asked to read its file.
    asked_ns: u64,
    /// What is wrong, to say it once.
    trouble: Option<String>,
}

impl<'a> Controller<'a> {
    fn new(settings: &'a KubernetesSettings, leads: &'a Leads) -> Self {
        Self {
            settings,
            leads,
            planner: Planner::default(),
            told: Told::default(),
            checked: None,
            taken: None,
            asked_ns: 0,
            trouble: None,
        }
    }

    /// Makes the file that a balancer needs to start, where there has never been one.
    fn begin(&self) {
        let file = &self.settings.file;
        if file.exists() {
            return;
        }
        let made = read_base(&self.settings.base).and_then(|base| write(file, &base.with([])));
        if let Err(error) = made {
            warn!("{error}");
        }
    }

    /// Does all that there is to do; gives when to do so again.
    async fn step(&mut self, cluster: &Cluster) -> Duration {
        if !cluster.is_known() {
            return LOOK;
        }
        match self.try_step(cluster).await {
            Ok(next) => {
                if self.trouble.take().is_some() {
                    info!("the balancer follows the cluster again");
                }
                next
            }
            Err(error) => {
                if self.trouble.as_ref() != Some(&error) {
                    warn!("the balancer does not follow the cluster: {error}");
                }
                self.trouble = Some(error);
                RETRY
            }
        }
    }

    async fn try_step(&mut self, cluster: &Cluster) -> Result<Duration, String> {
        let settings = self.settings;
        let balancer = &settings.balancer;
        let base = read_base(&settings.base)?;
        let mut in_force = balancer
            .in_force()
            .await
            .map_err(|error| error.to_string())?;
        let now_ns = Moment::now().monotonic_ns;
        let (claims, mut refusals) = claims(cluster, &settings.claims, base.reserved());
        let (mut vips, next_ns, more) =
            self.planner
                .plan(now_ns, cluster, &claims, &in_force, &settings.nodes);
        refusals.extend(more);
        let refused = self.admit(now_ns, &base, &vips, &in_force).await;
        let refused = refused.map_err(|error| error.to_string())?;
        for (service, sentence) in &refused {
            // Of several faults the first; an Event has 1024 octets at most.
            let sentence = sentence.lines().next().unwrap_or_default();
            let sentence: String = sentence.chars().take(SENTENCE_MAX).collect();
            refusals.push(Refusal {
                service: service.clone(),
                reason: "Refused",
                message: format!("the balancer does not take it: {sentence}"),
            });
        }
        let refused: BTreeSet<ObjectKey> = refused.into_keys().collect();
        vips.retain(|vip| !refused.contains(&vip.service));
        self.bring(now_ns, &base.with(&vips), &vips, &mut in_force)
            .await?;
        if self.leads.now(Moment::now().monotonic_ns) {
            let situation = Situation {
                cluster,
                rules: &settings.claims,
                claims: &claims,
                vips: &vips,
                in_force: &in_force,
                refusals: &refusals,
                refused: &refused,
            };
            for (key, action) in situation.actions(now_ns, &mut self.told) {
                let Some(service) = cluster.service(&key) else {
                    continue;
                };
                // A reload may have taken longer than the lease.
                if !self.leads.now(Moment::now().monotonic_ns) {
                    break;
                }
                info!("{key}: {action}");
                let said = speaker::say(&settings.server, &settings.member, service, &action).await;
                match said {
                    // The watch brings what is new, and with it the next decision.
                    Err(error) if error.is(409) || error.is(404) => debug!("{key}: {error}"),
                    Err(error) => return Err(format!("{key} cannot be written: {error}")),
                    Ok(()) => {}
                }
            }
        }
        let drained = next_ns.map(|ns| Duration::from_nanos(ns.saturating_sub(now_ns)));
        Ok(drained.map_or(LOOK, |next| next.min(LOOK)))
    }

    /// Services whose VIPs the balancer refuses.
    async fn admit(
        &mut self,
        now_ns: u64,
        base: &BaseFile,
        vips: &[WantedVip],
        in_force: &InForce,
    ) -> Result<BTreeMap<ObjectKey, String>, BalancerError> {
        if let Some(checked) = &self.checked {
            let is_old = now_ns.saturating_sub(checked.at_ns) >= AGAIN_NS;
            let is_due = is_old && !checked.refused.is_empty();
            if &checked.base == base && checked.vips == vips && !is_due {
                return Ok(checked.refused.clone());
            }
        }
        let mut services: Vec<ObjectKey> = vips.iter().map(|vip| vip.service.clone()).collect();
        services.dedup();
        let has = |service: &ObjectKey| {
            let mut of = vips.iter().filter(|vip| vip.service == *service);
            of.any(|vip| in_force.contains_key(&vip.name))
        };
        services.sort_by_cached_key(|service| (!has(service), service.clone()));
        services.dedup();
        let balancer = &self.settings.balancer;
        let refused = admit(services, async |of: &[ObjectKey]| {
            let of: BTreeSet<&ObjectKey> = of.iter().collect();
            let vips = vips.iter().filter(|vip| of.contains(&vip.service));
            balancer.check(base.with(vips)).await
        });
        let refused = refused.await?;
        self.checked = Some(Checked {
            base: base.clone(),
            vips: vips.to_vec(),
            refused: refused.clone(),
            at_ns: now_ns,
        });
        Ok(refused)
    }

    /// Brings a file's text into force, and reads what then is.
    async fn bring(
        &mut self,
        now_ns: u64,
        text: &str,
        vips: &[WantedVip],
        in_force: &mut InForce,
    ) -> Result<(), String> {
        let file = &self.settings.file;
        let is_written = fs::read_to_string(file).is_ok_and(|known| known == text);
        // A controller that starts does not know whether the one before came so far as to ask.
        let is_taken = self.taken.as_deref() == Some(text);
        let is_soon = now_ns.saturating_sub(self.asked_ns) < AGAIN_NS;
        if is_written && is_taken && (is_soon || has_all(vips, in_force)) {
            return Ok(());
        }
        let balancer = &self.settings.balancer;
        let failed = |error: BalancerError| error.to_string();
        let goes_by = balancer.config_file().await.map_err(failed)?;
        if goes_by != *file {
            return Err(format!(
                "it goes by {}, not by {}; start it with `causeway lb -c {}`",
                goes_by.display(),
                file.display(),
                file.display()
            ));
        }
        if !is_written {
            write(file, text)?;
        }
        self.taken = None;
        self.asked_ns = now_ns;
        let summary = balancer.reload().await.map_err(failed)?;
        self.taken = Some(text.to_owned());
        *in_force = balancer.in_force().await.map_err(failed)?;
        match is_taken {
            // In a fleet, it may come later.
            true => debug!("the balancer still has {summary}"),
            false => info!("the balancer has {summary}"),
        }
        Ok(())
    }
}

/// Whether the balancer has these VIPs with these reals.
fn has_all(vips: &[WantedVip], in_force: &InForce) -> bool {
    vips.iter().all(|vip| {
        let reals = in_force.get(&vip.name);
        reals.is_some_and(|reals| vip.reals.keys().all(|real| reals.contains(real)))
    })
}

fn read_base(path: &Path) -> Result<BaseFile, String> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    BaseFile::parse(text).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    let written = replace_file(file, Path::new(&new), text.as_bytes());
    written.map_err(|error| format!("{} cannot be written: {error}", file.display()))
}
