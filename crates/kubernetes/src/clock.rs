// SPDX-License-Identifier: Apache-2.0
//! Times as the API writes them.

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

fn date_time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have the leap day at their end (Hinnant, civil_from_days).
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
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
