// SPDX-License-Identifier: Apache-2.0
//! The estimators from outside: golden vectors, constant latencies that must come
//! out right at any size, and a slow oracle on random workloads.

mod against_oracle;
mod clients;
mod constant;
mod datagrams;
mod everyday;
mod evidence;
mod golden;
mod hours;
mod oracle;
mod percentiles;
mod undated;
mod upload;
mod workload;
