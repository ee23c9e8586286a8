// SPDX-License-Identifier: Apache-2.0
//! The fleet, and other balancers of the same VIPs.

use axum::Json;
use axum::extract::State;
use causeway_api::Moment;
use causeway_api::fleet::{
    Agreement, FleetPush, FleetPushed, FleetRollback, FleetTokenOrder, FleetView, PassBy, PeersView,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Api, Daemon, parse_json};
use crate::agreement;
use crate::fleet::FleetOrder;
use crate::fleet::no_fleet;

/// The routes of this part.
pub(super) fn routes() -> OpenApiRouter<Daemon> {
    OpenApiRouter::new()
        .routes(routes!(agreement))
        .routes(routes!(fleet))
        .routes(routes!(found_fleet))
        .routes(routes!(join_fleet))
        .routes(routes!(leave_fleet))
        .routes(routes!(pass_member_by))
        .routes(routes!(make_token))
        .routes(routes!(push_to_fleet))
        .routes(routes!(roll_fleet_back))
        .routes(routes!(peers))
}

/// What balancers of the same VIPs must have alike, as digests to compare
#[utoipa::path(get, path = "/v1/agreement", responses((status = 200, body = Agreement)))]
async fn agreement(State(daemon): Api) -> Answer<Agreement> {
    let agreement = daemon.engine(|engine| Ok(agreement::agreement(engine)?));
    agreement.await.map(Json)
}

/// How the fleet stands, as this balancer sees it
#[utoipa::path(get, path = "/v1/fleet", responses((status = 200, body = FleetView)))]
async fn fleet(State(daemon): Api) -> Answer<FleetView> {
    let view = daemon.engine(|engine| {
        let fleet = engine.fleet.as_ref().ok_or_else(no_fleet)?;
        Ok(fleet.view.clone())
    });
    view.await.map(Json)
}

/// Founds the fleet with what runs here, or puts its book back into a store that has lost it
#[utoipa::path(
    post, path = "/v1/fleet/found",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn found_fleet(State(daemon): Api) -> Answer<String> {
    ordered(daemon, FleetOrder::Found).await
}

/// Brings this balancer back after it left
#[utoipa::path(
    post, path = "/v1/fleet/join",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn join_fleet(State(daemon): Api) -> Answer<String> {
    ordered(daemon, FleetOrder::Join).await
}

/// Withdraws this balancer's routes, and has the fleet go on without it
#[utoipa::path(
    post, path = "/v1/fleet/leave",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn leave_fleet(State(daemon): Api) -> Answer<String> {
    ordered(daemon, FleetOrder::Leave).await
}

/// Has the fleet go on without another member, of which an operator knows that it gets no packets
#[utoipa::path(
    post, path = "/v1/fleet/pass-by",
    request_body(content = PassBy),
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn pass_member_by(State(daemon): Api, body: String) -> Answer<String> {
    let PassBy { member } = parse_json(&body)?;
    ordered(daemon, FleetOrder::PassBy(member)).await
}

/// Makes a token by which the agent of a new server gets that server's keys file, once
///
/// The token is a secret.
#[utoipa::path(
    post, path = "/v1/fleet/token",
    request_body(content = FleetTokenOrder),
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn make_token(State(daemon): Api, body: String) -> Answer<String> {
    let order = parse_json(&body)?;
    ordered(daemon, FleetOrder::Token(order)).await
}

/// Gives an order to this member, and waits for its answer.
async fn ordered(daemon: Daemon, order: FleetOrder) -> Answer<String> {
    let done = daemon.shared(|shared| shared.order(order));
    done.await.map(Json)
}

/// Reads the configuration again, and has the fleet have its VIPs and reals, and no others
#[utoipa::path(
    post, path = "/v1/fleet/push",
    request_body(content = FleetPush),
    responses((status = 200, body = FleetPushed)),
)]
async fn push_to_fleet(State(daemon): Api, body: String) -> Answer<FleetPushed> {
    let order = parse_json(&body)?;
    let done = daemon.shared(|shared| shared.push(order));
    done.await.map(Json)
}

/// Has the fleet have the VIPs and reals of a former revision
#[utoipa::path(
    post, path = "/v1/fleet/rollback",
    request_body(content = FleetRollback),
    responses((status = 200, body = FleetPushed)),
)]
async fn roll_fleet_back(State(daemon): Api, body: String) -> Answer<FleetPushed> {
    let order = parse_json(&body)?;
    let done = daemon.shared(|shared| shared.rollback(order));
    done.await.map(Json)
}

/// How the exchange with the balancers of the same VIPs stands
#[utoipa::path(get, path = "/v1/peers", responses((status = 200, body = PeersView)))]
async fn peers(State(daemon): Api) -> Answer<PeersView> {
    let view = daemon.engine(|engine| Ok(engine.peers_view(Moment::now().monotonic_ns)));
    view.await.map(Json)
}
