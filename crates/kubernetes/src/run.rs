// SPDX-License-Identifier: Apache-2.0
//! The controller at work.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use causeway_api::Moment;
use causeway_service::{FileRights, beside, log_fault, notify, replace_beside};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use crate::actions::{Situation, Told};
use crate::admit::{Admitted, admit};
use crate::api_server::ApiError;
use crate::balancer::BalancerError;
use crate::claims::{Refusal, claims};
use crate::cluster::Cluster;
use crate::file::{self, BaseFile};
use crate::news::News;
use crate::objects::ObjectKey;
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
/// What the name of the copy of what the balancer took last ends with.
const TAKEN: &str = ".taken";
/// Characters of what the balancer says that go into an Event.
const SENTENCE_MAX: usize = 200;

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
        // A balancer that waits for this one needs the file.
        if let Err(error) = controller.begin() {
            warn!("{error}");
        }
        notify::ready();
        let mut cluster = Cluster::default();
        loop {
            let next = controller.step(&cluster).await;
            let due = Instant::now() + next;
            let mut matters = false;
            let mut take = |news: News| {
                matters |= news.matters(&cluster, &settings.claims);
                news.tell(&mut cluster);
                matters
            };
            loop {
                tokio::select! {
                    () = sleep_until(due) => break,
                    Some(news) = heard.recv() => if take(news) {
                        sleep(GATHER).await;
                        break;
                    }
                }
            }
            while let Ok(more) = heard.try_recv() {
                take(more);
            }
        }
    };
    tokio::join!(services, slices, nodes, election, control);
}

/// What the balancer was last asked whether it takes it.
#[derive(Debug)]
struct Checked {
    base: BaseFile,
    vips: Vec<WantedVip>,
    admitted: Admitted,
    at_ns: u64,
}

/// A base of which the balancer was asked whether a reload brings it into force.
#[derive(Debug)]
struct AskedBase {
    base: BaseFile,
    /// Why only a start does.
    waits: Option<String>,
    at_ns: u64,
}

/// What the balancer took last.
#[derive(Debug)]
struct TakenFile {
    base: BaseFile,
    vips: Vec<WantedVip>,
}

impl TakenFile {
    /// As the controller before has left it.
    fn read(settings: &KubernetesSettings) -> Option<Self> {
        let copy = fs::read_to_string(beside(&settings.file, TAKEN));
        let text = copy.or_else(|_| fs::read_to_string(&settings.file)).ok()?;
        let (base, vips) = file::parts(&text)?;
        Some(Self { base, vips })
    }
}

/// Brings cluster and balancer together.
struct Controller<'a> {
    settings: &'a KubernetesSettings,
    leads: &'a Leads,
    planner: Planner,
    told: Told,
    checked: Option<Checked>,
    asked_base: Option<AskedBase>,
    last: Option<TakenFile>,
    /// The text that it took last of this controller.
    taken: Option<String>,
    /// Whether a copy of that has still to be written.
    unsaved: bool,
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
            asked_base: None,
            last: TakenFile::read(settings),
            taken: None,
            unsaved: false,
            asked_ns: 0,
            trouble: None,
        }
    }

    /// Makes the file that a balancer needs to start, where there is none.
    fn begin(&self) -> Result<(), String> {
        let file = &self.settings.file;
        match file.exists() {
            true => Ok(()),
            false => write(file, &read_base(&self.settings.base)?.alone()),
        }
    }

    /// Does all that there is to do; gives when to do so again.
    async fn step(&mut self, cluster: &Cluster) -> Duration {
        if !cluster.is_known() {
            return LOOK;
        }
        let (next, trouble) = match self.try_step(cluster).await {
            Ok(next) => (next, None),
            Err(error) => (RETRY, Some(error)),
        };
        log_fault!(
            self.trouble,
            trouble,
            "the balancer does not follow the cluster: {}",
            "the balancer follows the cluster again"
        );
        next
    }

    async fn try_step(&mut self, cluster: &Cluster) -> Result<Duration, String> {
        let settings = self.settings;
        let balancer = &settings.balancer;
        let told = |error: BalancerError| error.to_string();
        self.begin()?;
        let newest = read_base(&settings.base)?;
        let mut in_force = balancer.in_force().await.map_err(told)?;
        let now_ns = Moment::now().monotonic_ns;
        let waits = self.waits_for_start(now_ns, &newest).await.map_err(told)?;
        let base = match &self.last {
            Some(last) if waits => {
                // Whatever else fails: a start is to find it.
                let stays = newest.with(&last.vips);
                if !is_text_of(&settings.file, &stays) {
                    write(&settings.file, &stays)?;
                }
                last.base.clone()
            }
            _ => newest.clone(),
        };
        let reserved = base.reserved() | newest.reserved();
        let (claims, mut refusals) = claims(cluster, &settings.claims, &reserved);
        let (wanted, next_ns, more) =
            self.planner
                .plan(now_ns, cluster, &claims, &in_force, &settings.nodes);
        refusals.extend(more);
        let kept = self.kept(&in_force);
        let admitted = self.admit(now_ns, &base, &wanted, &kept).await;
        let Admitted {
            refused,
            kept: keep,
        } = admitted.map_err(|error| {
            // It may have been started with another base.
            self.asked_base = None;
            error.to_string()
        })?;
        for (service, sentence) in &refused {
            // Of several faults the first; an Event has 1024 octets at most.
            let sentence = sentence.lines().next().unwrap_or_default();
            let sentence: String = sentence.chars().take(SENTENCE_MAX).collect();
            let what = match keep.contains(service) {
                true => "its change, and goes on with what it has",
                false => "it",
            };
            refusals.push(Refusal {
                service: service.clone(),
                reason: "Refused",
                message: format!("the balancer does not take {what}: {sentence}"),
            });
        }
        let taken = wanted.into_iter();
        let taken = taken.filter(|vip| !refused.contains_key(&vip.service));
        let kept = kept.into_iter().filter(|vip| keep.contains(&vip.service));
        let mut vips: Vec<WantedVip> = taken.chain(kept).collect();
        vips.sort_by(|a, b| a.name.cmp(&b.name));
        self.bring(now_ns, base, vips.clone(), &newest, &mut in_force)
            .await?;
        let saved = self.save();
        let lost = refused.into_keys().filter(|of| !keep.contains(of));
        let lost: BTreeSet<ObjectKey> = lost.collect();
        let situation = Situation {
            cluster,
            rules: &settings.claims,
            claims: &claims,
            vips: &vips,
            in_force: &in_force,
            refusals: &refusals,
            refused: &lost,
        };
        self.leads.note_followed(Moment::now().monotonic_ns);
        self.write(now_ns, &situation).await?;
        saved?;
        let drained = next_ns.map(|ns| Duration::from_nanos(ns.saturating_sub(now_ns)));
        Ok(drained.map_or(LOOK, |next| next.min(LOOK)))
    }

    /// Writes to the cluster what there is to write, if it is for this controller. What the API server
    /// refuses of one Service does not hinder the others; gives the first such error.
    async fn write(&mut self, now_ns: u64, situation: &Situation<'_>) -> Result<(), String> {
        let mut refused = None;
        if !self.leads.now(Moment::now().monotonic_ns) {
            return Ok(());
        }
        for (key, action) in situation.actions(now_ns, &mut self.told) {
            let Some(service) = situation.cluster.service(&key) else {
                continue;
            };
            let begun_ns = Moment::now().monotonic_ns;
            // A reload may have taken longer than the lease.
            if !self.leads.now(begun_ns) {
                break;
            }
            self.leads.note_followed(begun_ns);
            info!("{key}: {action}");
            let settings = self.settings;
            let said = speaker::say(&settings.server, &settings.member, service, &action).await;
            match said {
                // The watch brings what is new, and with it the next decision.
                Err(error) if error.is(409) || error.is(404) => debug!("{key}: {error}"),
                Err(error) => {
                    let is_reached = matches!(error, ApiError::Refused { .. });
                    let error = format!("{key} cannot be written: {error}");
                    if !is_reached {
                        return Err(error);
                    }
                    refused.get_or_insert(error);
                }
                Ok(()) => self.told.handle_written(now_ns, &service.metadata, &action),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Whether this base can come into force at the balancer's next start only. Until then, the one that
    /// is in force stays, and the file has the new one.
    async fn waits_for_start(
        &mut self,
        now_ns: u64,
        base: &BaseFile,
    ) -> Result<bool, BalancerError> {
        let asked = self.asked_base.take().filter(|asked| asked.base == *base);
        let is_known = |asked: &AskedBase| {
            asked.waits.is_none() || now_ns.saturating_sub(asked.at_ns) < AGAIN_NS
        };
        let asked = match asked {
            Some(asked) if is_known(&asked) => asked,
            before => {
                // Without VIPs: of them, admission is to say what is refused.
                let balancer = &self.settings.balancer;
                let waits = balancer.waits_for_start(base.alone()).await?;
                let told = before.and_then(|asked| asked.waits);
                if let Some(why) = waits.as_ref().filter(|why| told.as_ref() != Some(*why)) {
                    warn!(
                        "{why}; until then the balancer follows the cluster by the file as it was"
                    );
                }
                AskedBase {
                    base: base.clone(),
                    waits,
                    at_ns: now_ns,
                }
            }
        };
        let waits = asked.waits.is_some();
        self.asked_base = Some(asked);
        Ok(waits)
    }

    /// The VIPs that are in force, as the file has them.
    fn kept(&self, in_force: &InForce) -> Vec<WantedVip> {
        let known = self.last.iter().flat_map(|last| &last.vips);
        let kept = known.filter(|vip| in_force.contains_key(&vip.name));
        kept.cloned().collect()
    }

    /// Services whose VIPs the balancer refuses, and which of them keep those of `kept`.
    async fn admit(
        &mut self,
        now_ns: u64,
        base: &BaseFile,
        vips: &[WantedVip],
        kept: &[WantedVip],
    ) -> Result<Admitted, BalancerError> {
        if let Some(checked) = &self.checked {
            let is_old = now_ns.saturating_sub(checked.at_ns) >= AGAIN_NS;
            let is_due = is_old && !checked.admitted.refused.is_empty();
            if &checked.base == base && checked.vips == vips && !is_due {
                return Ok(checked.admitted.clone());
            }
        }
        let of = |vips: &[WantedVip]| -> BTreeSet<ObjectKey> {
            vips.iter().map(|vip| vip.service.clone()).collect()
        };
        let services = of(vips);
        let has = &of(kept) & &services;
        let mut services: Vec<ObjectKey> = services.into_iter().collect();
        services.sort_by_key(|service| !has.contains(service));
        let balancer = &self.settings.balancer;
        let admitted = admit(
            services,
            has,
            async |wanted: &[ObjectKey], keep: &BTreeSet<ObjectKey>| {
                let wanted: BTreeSet<&ObjectKey> = wanted.iter().collect();
                let of_wanted = vips.iter().filter(|vip| wanted.contains(&vip.service));
                let is_kept = |vip: &&WantedVip| {
                    keep.contains(&vip.service) && !wanted.contains(&vip.service)
                };
                let of_kept = kept.iter().filter(is_kept);
                balancer.check(base.with(of_wanted.chain(of_kept))).await
            },
        );
        let admitted = admitted.await?;
        self.checked = Some(Checked {
            base: base.clone(),
            vips: vips.to_vec(),
            admitted: admitted.clone(),
            at_ns: now_ns,
        });
        Ok(admitted)
    }

    /// Brings these VIPs behind `base` into force, and reads what then is. In the file, they stand
    /// behind the newest base, which is the same unless it waits for a start.
    async fn bring(
        &mut self,
        now_ns: u64,
        base: BaseFile,
        vips: Vec<WantedVip>,
        newest: &BaseFile,
        in_force: &mut InForce,
    ) -> Result<(), String> {
        let file = &self.settings.file;
        let (text, stays) = (base.with(&vips), newest.with(&vips));
        // A controller that starts does not know whether the one before came so far as to ask.
        let is_taken = self.taken.as_deref() == Some(text.as_str());
        let is_soon = now_ns.saturating_sub(self.asked_ns) < AGAIN_NS;
        let is_written = is_text_of(file, &stays);
        if is_written && is_taken && (is_soon || has_all(&vips, in_force)) {
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
        if stays != text || !is_written {
            write(file, &text)?;
        }
        self.taken = None;
        self.asked_ns = now_ns;
        let reloaded = balancer.reload().await;
        if stays != text {
            write(file, &stays)?;
        }
        let summary = reloaded.map_err(failed)?;
        self.last = Some(TakenFile { base, vips });
        *in_force = balancer.in_force().await.map_err(failed)?;
        match is_taken {
            // In a fleet, it may come later.
            true => debug!("the balancer still has {summary}"),
            false => info!("the balancer has {summary}"),
        }
        (self.taken, self.unsaved) = (Some(text), true);
        Ok(())
    }

    /// Writes the copy of what the balancer has taken, and tries that again at each step.
    fn save(&mut self) -> Result<(), String> {
        if let Some(text) = self.taken.as_ref().filter(|_| self.unsaved) {
            write(&beside(&self.settings.file, TAKEN), text)?;
            self.unsaved = false;
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

fn is_text_of(file: &Path, text: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|known| known == text)
}

fn read_base(path: &Path) -> Result<BaseFile, String> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    BaseFile::parse(text).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let written = replace_beside(file, text.as_bytes(), FileRights::PRIVATE);
    written.map_err(|error| format!("{} cannot be written: {error}", file.display()))
}
