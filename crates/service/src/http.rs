// SPDX-License-Identifier: Apache-2.0
//! Answers that every API gives.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use causeway_api::Problem;

/// A refusal.
pub fn problem(code: StatusCode, error: String) -> Response {
    (code, Json(Problem { error })).into_response()
}

/// A page for Prometheus.
pub fn openmetrics(page: String) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], page).into_response()
}
