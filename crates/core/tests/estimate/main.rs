// SPDX-License-Identifier: Apache-2.0
//! The estimators from outside: golden vectors, and constant latencies that must
//! come out right at any size.

mod clients;
mod constant;
mod golden;
