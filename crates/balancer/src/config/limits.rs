// SPDX-License-Identifier: Apache-2.0
//! Validation of `[limits]`, and of what the file holds against them.

use std::ops::RangeInclusive;

use causeway_dataplane::TableLimits;
use causeway_service::config::{CountValue, Faults, Spanned, count, within};

use super::SharedVip;
use super::raw::RawLimits;

/// A key, its most and how that is written.
type Bound = (&'static str, u32, &'static str);

const VIPS: Bound = ("vips", TableLimits::VIPS_MAX, "64Ki");
const REALS: Bound = ("reals", TableLimits::REALS_MAX, "1Mi");
const HISTOGRAMS: Bound = ("histograms", TableLimits::REALS_MAX, "1Mi");
const COOKIE_VIPS: Bound = ("cookie_vips", TableLimits::VIPS_MAX, "64Ki");

pub(super) fn limits(raw: &RawLimits, faults: &mut Faults<'_>) -> TableLimits {
    let default = TableLimits::default();
    let mut limit =
        |value: Option<&Spanned<CountValue>>, bound, default| limit(value, bound, default, faults);
    let reals = limit(raw.reals.as_ref(), REALS, default.reals);
    TableLimits {
        vips: limit(raw.vips.as_ref(), VIPS, default.vips),
        reals,
        histograms: limit(raw.histograms.as_ref(), HISTOGRAMS, reals).min(reals),
        cookie_vips: limit(raw.cookie_vips.as_ref(), COOKIE_VIPS, default.cookie_vips),
    }
}

fn limit(
    value: Option<&Spanned<CountValue>>,
    (key, most, shown): Bound,
    default: u32,
    faults: &mut Faults<'_>,
) -> u32 {
    let Some(value) = value else { return default };
    let range: RangeInclusive<u64> = 1..=u64::from(most);
    let checked = count(value.as_ref())
        .and_then(|count| within(count, &range, &format!("limits.{key}"), "1", shown))
        .and_then(|count| u32::try_from(count).map_err(|error| error.to_string()));
    checked.unwrap_or_else(|message| {
        faults.at(value.span(), message);
        default
    })
}

/// Refuses VIPs beyond the limits: the data plane would do so half-way.
pub(super) fn check(vips: &[SharedVip], limits: &TableLimits, faults: &mut Faults<'_>) {
    let with_ids = |vip: &&SharedVip| vip.cookie.is_some() || !vip.quic.is_empty();
    let held = [
        ("VIPs", vips.len(), "vips", limits.vips),
        (
            "reals of all VIPs",
            vips.iter().map(|vip| vip.reals.len()).sum(),
            "reals",
            limits.reals,
        ),
        (
            "VIPs with cookies or connection ids",
            vips.iter().filter(with_ids).count(),
            "cookie_vips",
            limits.cookie_vips,
        ),
    ];
    for (what, has, key, most) in held {
        if has > most as usize {
            faults.file(format!(
                "{has} {what} are more than limits.{key} = {most}; raise {key} under [limits], whose memory `causeway config check` prints"
            ));
        }
    }
}
