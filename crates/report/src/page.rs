// SPDX-License-Identifier: Apache-2.0
//! The frame of every HTML page: one file, its charts inside, no external request.
//!
//! A page keeps its own content alone. Right-aligned is the rule in tables, as for
//! numbers; the classes that it may use:
//!
//! - `lead`, `note`, `dim`, `good`, `bad` for text;
//! - `scroll` around a table that may be wider than the screen;
//! - `l` for cells with text, `wrap` for those with sentences;
//! - `stacked` for a table whose rows become paragraphs on narrow screens;
//! - `card` for what belongs together, `grid` for figures side by side, `keys` for
//!   legends.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::{self, Chart};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d1f21;--dim:#5f666d;--paper:#fbfbfa;--card:#fff;--line:#dfe1e3;--good:#00795a;--bad:#b33a00}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--dim:#a3a9af;--paper:#15171a;--card:#1c1f23;--line:#363b41;--good:#4fd1a5;--bad:#ff9a66}}\
*{box-sizing:border-box}\
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:78rem;margin:0 auto;padding:1.6rem 1.1rem 4rem}\
h1{font-size:1.45rem;line-height:1.3;margin:0 0 .4rem}h2{font-size:1.1rem;margin:2.4rem 0 .6rem}h3{font-size:1rem;margin:0 0 .4rem}\
h1,h3{overflow-wrap:anywhere}p{max-width:52rem}\
.lead{font-size:1.1rem}.note{font-size:.9rem}.note,.dim{color:var(--dim)}\
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}\
.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.88rem}\
th,td{padding:.28rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}\
th{font-weight:600;color:var(--dim)}th:first-child,td:first-child,.l{text-align:left}.wrap{white-space:normal;min-width:20rem}\
.card,figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem 1rem;margin:.9rem 0}\
.card figure{border:0;padding:0;margin:0}\
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:.9rem}.grid figure{margin:0}\
figure{container-type:inline-size}figcaption{color:var(--dim);font-size:.88rem;margin-bottom:.5rem}\
.drawn{display:flex;flex-wrap:wrap;gap:.5rem 1.2rem}\
.chart{flex:1 1 30rem;width:100%;max-width:50rem;height:auto}\
.keys{flex:0 1 auto;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.88rem}.card>.keys{margin-top:.6rem}\
.key{display:inline-block;width:1.6em;border-top:3px solid;vertical-align:middle;margin-right:.45em}.key.dashed{border-top-style:dashed}\
@container(max-width:26rem){.chart text{font-size:17px}}\
@container(min-width:44rem){.chart text{font-size:10.5px}.keys{flex-direction:column;max-width:16rem;padding-top:2rem}}\
@media(max-width:40rem){.stacked tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--line)}\
.stacked tr:has(th){display:none}.stacked td{display:block;text-align:left;white-space:normal;min-width:0;border:0;padding:.1rem 0}}";

/// A whole page. The title is the window's; the body has its own heading.
pub fn page(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { (title) }
                style { (PreEscaped(chart::STYLE)) (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
    .into_string()
}

/// A chart under its title, with its legend.
pub fn figure(chart: &Chart) -> Markup {
    html! {
        figure {
            figcaption { (chart.title) }
            div.drawn { (chart.svg()) div.keys { (chart.keys()) } }
        }
    }
}

/// A chart under its title, where the legend stands elsewhere.
pub fn bare_figure(chart: &Chart) -> Markup {
    html! { figure { figcaption { (chart.title) } (chart.svg()) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Scale, Series};

    #[test]
    fn a_page_is_whole_suits_the_dark_and_loads_nothing() {
        let series = vec![Series::new("one", [(0.0, 1.0)])];
        let chart = Chart::new(
            "mean & more",
            (Scale::Linear, "s"),
            (Scale::Log, ""),
            series,
        );
        let page = page("<title>", &html! { h1 { "head" } (figure(&chart)) });
        for text in [
            "<!DOCTYPE html>",
            "width=device-width",
            "prefers-color-scheme:dark",
            "<title>&lt;title&gt;</title>",
            "<figcaption>mean &amp; more</figcaption>",
            "class=\"key c0\"",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        for external in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(external), "{external} loads something");
        }
    }
}
