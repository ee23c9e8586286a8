// SPDX-License-Identifier: Apache-2.0
//! Times as the API writes them.

use causeway_api::date_time;

/// RFC 3339 in UTC with microseconds, of nanoseconds since 1970: a MicroTime of the API.
pub(crate) fn micro_time(realtime_ns: u64) -> String {
    let seconds = realtime_ns / 1_000_000_000;
    let micros = realtime_ns % 1_000_000_000 / 1000;
    format!("{}.{micros:06}Z", date_time(seconds))
}

/// The same in whole seconds: a Time of the API.
pub(crate) fn time(realtime_ns: u64) -> String {
    format!("{}Z", date_time(realtime_ns / 1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(seconds * 1_000_000_000), expected);
        }
        assert_eq!(micro_time(1_234_567), "1970-01-01T00:00:00.001234Z");
    }
}
