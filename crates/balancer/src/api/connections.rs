// SPDX-License-Identifier: Apache-2.0
//! Connections of stateful VIPs.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use causeway_api::balancer::{Connections, MoveConnection};
use causeway_dataplane::RealId;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Api, Daemon, parse_json};
use crate::engine::{Engine, EngineError};
use crate::pool::Pool;
use crate::shared::Shared;
use crate::slots::{ConnectionSlots, HEAVIEST_MAX};

/// The routes of this part.
pub(super) fn routes() -> OpenApiRouter<Daemon> {
    OpenApiRouter::new()
        .routes(routes!(connections))
        .routes(routes!(move_connection))
}

/// How many of the heaviest senders to name, and how long to watch for them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct Heaviest {
    /// Most that are named; 20, and no more than 1000.
    count: usize,
    /// Milliseconds between the two looks; 1000.
    ms: u64,
}

impl Default for Heaviest {
    fn default() -> Self {
        Self {
            count: 20,
            ms: 1000,
        }
    }
}

/// The connections of stateful VIPs that send most
#[utoipa::path(
    get, path = "/v1/connections",
    params(Heaviest),
    responses((status = 200, body = Connections)),
)]
async fn connections(State(daemon): Api, Query(wanted): Query<Heaviest>) -> Answer<Connections> {
    let apart = Duration::from_millis(wanted.ms);
    if wanted.count > HEAVIEST_MAX {
        return Err(EngineError::Invalid(format!(
            "count {} is out of range; at most {HEAVIEST_MAX} are named",
            wanted.count
        )));
    }
    let report = daemon.shared(move |shared| {
        let heaviest = slots_of(shared)?.heaviest(wanted.count, apart);
        let mut report = heaviest.ok_or_else(|| {
            EngineError::Conflict(
                "another request looks at the connections; ask again when it has ended".to_owned(),
            )
        })?;
        let engine = shared.engine();
        for sender in &mut report.heaviest {
            let mut members = engine.pools().iter().flat_map(Pool::members);
            let real = members.find(|(_, member)| member.id == sender.real_id);
            sender.real = real.map_or_else(String::new, |(real, _)| real.address.to_string());
        }
        Ok(report)
    });
    report.await.map(Json)
}

/// Sends a connection of a stateful VIP to another real
#[utoipa::path(
    post, path = "/v1/connections/move",
    request_body(content = MoveConnection),
    responses((status = 204)),
)]
async fn move_connection(State(daemon): Api, body: String) -> Result<StatusCode, EngineError> {
    let wanted: MoveConnection = parse_json(&body)?;
    let moved = daemon.shared(move |shared| {
        let slots = slots_of(shared)?;
        let real = real_of(&shared.engine(), &wanted)?;
        let moved = slots.move_to(wanted.client, wanted.vip, real);
        moved.map_err(|error| EngineError::Plane(error.into()))
    });
    match moved.await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(EngineError::NotFound(format!(
            "{} has no connection to {} with a slot here; `causeway conns top` shows some that have",
            wanted.client, wanted.vip
        ))),
    }
}

/// The real that a connection is to go to: one of the VIP's own.
fn real_of(engine: &Engine, wanted: &MoveConnection) -> Result<RealId, EngineError> {
    let of = |port: u16| {
        let mut pools = engine.pools().iter().filter(|pool| pool.vip().stateful);
        pools.find(|pool| pool.vip().address == wanted.vip.ip() && pool.vip().port == port)
    };
    let pool = of(wanted.vip.port()).or_else(|| of(0)).ok_or_else(|| {
        EngineError::NotFound(format!("{} is not a stateful vip here", wanted.vip))
    })?;
    let mut members = pool.members();
    let found = members.find(|(real, _)| real.address == wanted.real);
    found.map(|(_, member)| member.id).ok_or_else(|| {
        EngineError::NotFound(format!(
            "{} is not a real of vip {}; add it with weight 0 first",
            wanted.real,
            pool.vip().name
        ))
    })
}

fn slots_of(shared: &Shared) -> Result<ConnectionSlots, EngineError> {
    let none = || "no vip is stateful here, so that connections have no slots".to_owned();
    shared.slots().ok_or_else(|| EngineError::NotFound(none()))
}
