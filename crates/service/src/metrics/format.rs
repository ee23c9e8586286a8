// SPDX-License-Identifier: Apache-2.0
//! Formats of a page of metrics, and which one a request asks for.

use axum::http::{HeaderMap, header};

/// How a page is written; the best of what is wanted equally comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    /// Prometheus' text format, for who asks for nothing else.
    Text,
    OpenMetrics,
    /// The only one that has native histograms.
    Protobuf,
}

impl Format {
    /// What a request wants most of those that we can write.
    pub(super) fn asked(headers: &HeaderMap) -> Self {
        let asked = headers.get_all(header::ACCEPT).iter();
        let asked = asked.filter_map(|value| value.to_str().ok());
        let kinds = asked.flat_map(|value| value.split(','));
        let wanted = kinds.filter_map(Self::wanted).filter(|(q, _)| *q > 0.0);
        let best = wanted.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        best.map_or(Self::Text, |(_, format)| format)
    }

    /// One of the kinds of `Accept`, with how much it is wanted (RFC 9110, 12.5.1).
    fn wanted(kind: &str) -> Option<(f64, Self)> {
        let mut words = kind.split(';').map(str::trim);
        let name = words.next()?.to_ascii_lowercase();
        let parameters: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
        let parameter = |name: &str| {
            let found = parameters.iter().find(|of| of.0.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim_matches('"'))
        };
        let format = match name.as_str() {
            "application/vnd.google.protobuf" => {
                let is_ours = parameter("proto") == Some("io.prometheus.client.MetricFamily")
                    && parameter("encoding") == Some("delimited");
                is_ours.then_some(Self::Protobuf)
            }
            "application/openmetrics-text" => Some(Self::OpenMetrics),
            "text/plain" => Some(Self::Text),
            _ => None,
        };
        Some((
            parameter("q").map_or(Some(1.0), |q| q.parse().ok())?,
            format?,
        ))
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// OpenMetrics in Prometheus' text format: a counter's family is called as its samples are, and
/// there are neither units nor an end.
pub(super) fn text_format(page: &str) -> String {
    let mut lines = page.lines().peekable();
    let mut text = String::with_capacity(page.len());
    while let Some(line) = lines.next() {
        let is_counter = |line: &&str| line.ends_with(" counter");
        let words = line
            .strip_prefix("# ")
            .and_then(|line| line.split_once(' '));
        match words {
            None if line == "# EOF" => continue,
            Some(("UNIT", _)) => continue,
            Some(("HELP", rest)) if lines.peek().is_some_and(is_counter) => {
                let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
                text += &format!("# HELP {name}_total {help}");
            }
            Some(("TYPE", rest)) if is_counter(&line) => {
                let name = rest.trim_end_matches(" counter");
                text += &format!("# TYPE {name}_total counter");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_in_the_format_that_is_asked_for() {
        let asked = |accept: &[&'static str]| {
            let accept = accept.iter();
            let accept = accept.map(|kinds| (header::ACCEPT, kinds.parse().expect("a value")));
            Format::asked(&accept.collect())
        };
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let text = "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        // As Prometheus asks, with native histograms and without.
        assert_eq!(asked(&[protobuf, text]), Format::Protobuf);
        assert_eq!(asked(&[text]), Format::OpenMetrics);
        let one_line = format!("{text}, {protobuf};q=0.9");
        assert_eq!(asked(&[one_line.leak()]), Format::Protobuf);
        for (accept, format) in [
            ("*/*", Format::Text),
            ("text/plain;version=0.0.4", Format::Text),
            (
                "text/plain;q=0.4, application/openmetrics-text;q=0.5",
                Format::OpenMetrics,
            ),
            (
                "text/plain;q=0.5, application/openmetrics-text;q=0.4",
                Format::Text,
            ),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=high", Format::Text),
            // Another message, and as text.
            ("application/vnd.google.protobuf;proto=other", Format::Text),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
                Format::Text,
            ),
        ] {
            assert_eq!(asked(&[accept]), format, "{accept}");
        }
        assert_eq!(asked(&[]), Format::Text);
    }

    #[test]
    fn the_text_format_has_the_names_of_samples() {
        let page = "# HELP x_seconds Help.\n# TYPE x_seconds counter\n# UNIT x_seconds seconds\n\
                    x_seconds_total{a=\"b c\"} 1\n# HELP y Gauge of # EOF\n# TYPE y gauge\ny 2\n# EOF\n";
        assert_eq!(
            text_format(page),
            "# HELP x_seconds_total Help.\n# TYPE x_seconds_total counter\n\
             x_seconds_total{a=\"b c\"} 1\n# HELP y Gauge of # EOF\n# TYPE y gauge\ny 2\n"
        );
    }
}
