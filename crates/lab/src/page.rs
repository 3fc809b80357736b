//! One self-contained page with every result of a folder.

use crate::plot::{self, BUFFERED, SERIES, Series};
use crate::results::{Cell, Results, Row, Spread};
use crate::search::AtLoad;
use crate::stages::Stages;
use crate::table::{STAGES, significant};
use anyhow::Result;
use std::fmt::Write;

const HEAD: &str = r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Weft: measurements</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
svg { width: 100%; max-width: 33rem; height: auto; display: block; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 0 1.5rem; }
figure { margin: .5rem 0; }
.legend span { display: inline-block; margin-right: 1rem; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { padding: .15rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child, .names td:nth-child(2), .names th:nth-child(2) { text-align: left; }
.names td:first-child { white-space: normal; min-width: 9rem; }
th.case { padding-top: .7rem; position: sticky; left: 0; } th.case small { font-weight: 400; }
tr.weft td { background: #e8f3fa; } tr.paper td { color: #555; } td.loss { color: #a00; font-weight: 600; }
.notice { background: #fff4d6; padding: .5rem .8rem; border-left: 4px solid #e69f00; }
small { color: #555; }
@media (max-width: 45rem) {
  .wide::before { content: "The table goes on to the right: swipe."; font-size: .8rem; color: #555; }
  th, td { padding: .15rem .35rem; } th.case { max-width: 20rem; }
}
</style></head><body>
"#;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The page.
///
/// # Errors
/// The plotting library's.
pub fn page(all: &[Results]) -> Result<String> {
    let mut out = String::from(HEAD);
    out.push_str("<h1>Weft beside OVS-DPDK and testpmd</h1>\n<p>Medians of interleaved runs on identical ports, one \
                  forwarding core. Plots show million packets per second of that core's time; testpmd, which forwards \
                  without looking, is in the tables. Where a figure is red, Weft is slower than the best OVS-DPDK.</p>\n");
    for results in all {
        section(&mut out, results)?;
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

fn section(out: &mut String, results: &Results) -> Result<()> {
    let _ = writeln!(
        out,
        "<h2 id=\"{0}\">{1} <small>({0})</small></h2>",
        results.experiment,
        escape(&results.title)
    );
    let noise = results.noise();
    if !noise.is_empty() {
        let _ = writeln!(out, "<p class=\"notice\">Take care: {}.</p>", escape(&noise.join("; ")));
    }
    if !results.about.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escape(&results.about));
    }
    // With and without transmit buffering, where that was measured.
    let flush = |r: &Row| r.systems.iter().any(|c| c.system == "weft-flush");
    let series = if results.rows.iter().any(flush) { BUFFERED } else { SERIES };
    legend(out, results, series);
    let all: Vec<&Row> = results.rows.iter().collect();
    // A single point is no line.
    let (lines, plain): (Vec<&[&Row]>, Vec<&[&Row]>) =
        all.chunk_by(|a, b| a.group == b.group).partition(|rows| rows.len() > 1);
    out.push_str("<div class=\"plots\">\n");
    for rows in lines {
        if let Some(svg) = plot::lines(rows, series)? {
            let group = escape(&rows[0].group);
            let _ =
                writeln!(out, "<figure><figcaption><b>{group}</b></figcaption>\n{svg}</figure>");
        }
    }
    if let Some(svg) = plot::bars(&plain.concat(), series)? {
        let _ = writeln!(out, "<figure>{svg}</figure>");
    }
    out.push_str("</div>\n");
    table(out, results);
    stages(out, results);
    found(out, results);
    let text = results.circumstances().replace("**", "");
    let first = results.saturated().into_iter().chain(results.unsettled());
    for text in first.chain([results.about_spread(), text]) {
        let _ = writeln!(out, "<p><small>{}</small></p>", escape(&text));
    }
    Ok(())
}

/// The series that have a value.
fn legend(out: &mut String, results: &Results, series: &[Series]) {
    out.push_str("<p class=\"legend\">");
    for s in series.iter().filter(|s| results.rows.iter().any(|r| s.has(r))) {
        let plotters::style::RGBColor(r, g, b) = s.color;
        let _ = write!(out, "<span><i style=\"background:rgb({r},{g},{b})\"></i>{}</span>", s.name);
    }
    out.push_str("</p>\n");
}

/// "1 mask", "2 masks".
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn table(out: &mut String, results: &Results) {
    out.push_str(
        "<div class=\"wide\"><table><tr><th>system</th><th>cycles</th><th>Mpps</th><th>ratio to best OVS</th><th>spread of cycles</th>\
         <th>added to testpmd</th><th>delivered</th><th>megaflows / masks</th></tr>\n",
    );
    for row in &results.rows {
        let (case, [rules, masks]) = (escape(&row.case), row.rules);
        let _ = writeln!(
            out,
            "<tr><th colspan=\"8\" class=\"case\">{case} <small>{}, {}</small></th></tr>",
            counted(rules, "rule"),
            counted(masks, "mask")
        );
        let floor = row.cell("testpmd-io").and_then(Cell::cycles);
        let peer = row.peer_cycles();
        row.systems.iter().for_each(|cell| line(out, cell, floor, peer, results.drift()));
        for (who, mpps) in row.paper.iter().filter_map(|(who, v)| Some((who, v.first()?))) {
            let _ = writeln!(
                out,
                "<tr class=\"paper\"><td>{}</td><td></td><td>{}</td><td colspan=\"5\"></td></tr>",
                escape(who),
                significant(*mpps)
            );
        }
    }
    out.push_str("</table></div>\n");
}

/// One system's line; `floor` is testpmd's, `peer` the cycles of the best OVS
/// ([`Row::peer_cycles`](crate::results::Row::peer_cycles)).
fn line(out: &mut String, cell: &Cell, floor: Option<Spread>, peer: Option<f64>, drift: f64) {
    let Some((cycles, mpps)) = cell.cycles().zip(cell.mpps()) else { return };
    let spread = cell.spread(drift).unwrap_or(cycles);
    let ratio = peer.filter(|_| !cell.ceiling).map(|peer| peer / cycles.median);
    let weft = cell.system.starts_with("weft");
    let loss = weft && ratio.is_some_and(|r| r < 1.0);
    let counts = cell.samples.iter().rev().find_map(|s| s.cached);
    let _ = writeln!(
        out,
        "<tr{}><td>{}</td><td>{}</td><td>{}</td><td{}>{}</td><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td></tr>",
        if weft { " class=\"weft\"" } else { "" },
        cell.system,
        significant(cycles.median),
        significant(mpps.median),
        if loss { " class=\"loss\"" } else { "" },
        ratio.map_or_else(String::new, |r| format!("{r:.2}")),
        match cell.samples.len() {
            1 => "one run".into(),
            _ => format!("{} to {}", significant(spread.min), significant(spread.max)),
        },
        floor.map_or_else(String::new, |f| format!("{:.1}", cycles.median - f.median)),
        cell.delivered(),
        counts.map_or_else(String::new, |c| format!("{} / {}", c.megaflows, c.masks)),
    );
}

/// Cycles per stage, where they are known.
fn stages(out: &mut String, results: &Results) {
    if results.having(Cell::stages).next().is_none() {
        return;
    }
    let _ = writeln!(
        out,
        "<details><summary><b>Cycles per stage</b></summary>\n<p><small>{}</small></p>\n\
         <div class=\"wide\"><table class=\"names\"><tr><th>case</th><th>system</th><th>{}</th></tr>",
        escape(&STAGES.replace('`', "")),
        Stages::NAMES.join("</th><th>")
    );
    for (row, cell, stages) in results.having(Cell::stages) {
        let (case, stages) =
            (escape(&row.case), stages.map(|c| format!("{c:.1}")).join("</td><td>"));
        let _ = writeln!(out, "<tr><td>{case}</td><td>{}</td><td>{stages}</td></tr>", cell.system);
    }
    out.push_str("</table></div></details>\n");
}

/// Rates without loss and latency, and confirmed rule changes, where they were measured.
fn found(out: &mut String, results: &Results) {
    if results.having(Cell::found).next().is_some() {
        out.push_str(
            "<p><b>Rates without loss (Mpps of wall time), latency at half and at 90 % of the 0.01 % rate</b></p>\n\
             <div class=\"wide\"><table class=\"names\"><tr><th>case</th><th>system</th><th>no loss</th><th>0.01 %</th><th>0.1 %</th>\
             <th>half: p50 / p99 / p99.9, us</th><th>90 %</th></tr>\n",
        );
        for (row, cell, f) in results.having(Cell::found) {
            let [lax, paper, none] = f.mpps.map(significant);
            let [half, most] = f.latency_us.map(|l| l.map(|us| format!("{us:.0}")).join(" / "));
            let (case, system) = (escape(&row.case), &cell.system);
            let _ = writeln!(
                out,
                "<tr><td>{case}</td><td>{system}</td><td>{none}</td><td>{paper}</td><td>{lax}</td><td>{half}</td><td>{most}</td></tr>"
            );
        }
        out.push_str("</table></div>\n");
    }
    at_loads(out, results);
    for (row, cell, changes) in results.having(Cell::changes) {
        let (case, system) = (escape(&row.case), &cell.system);
        let _ = writeln!(
            out,
            "<p>{case}, {system}: {changes:.0} rule changes per second were confirmed.</p>"
        );
    }
}

/// Latency at the same loads for every system, where it was measured.
fn at_loads(out: &mut String, results: &Results) {
    if results.having(Cell::at_loads).next().is_none() {
        return;
    }
    out.push_str(
        "<p><b>Latency at equal loads</b></p>\n<div class=\"wide\"><table class=\"names\"><tr><th>case</th><th>system</th>\
         <th>Mpps offered</th><th>p50 / p99 / p99.9, us</th><th>p50 / p99 of the middle ms</th><th>lost</th></tr>\n",
    );
    for (row, cell, loads) in results.having(Cell::at_loads) {
        for AtLoad { mpps, loss, latency_us, middle_us } in loads {
            let (case, system) = (escape(&row.case), &cell.system);
            let latency = latency_us.map(|us| format!("{us:.1}")).join(" / ");
            let middle = middle_us.map(|us| format!("{us:.1}")).join(" / ");
            let _ = writeln!(
                out,
                "<tr><td>{case}</td><td>{system}</td><td>{mpps}</td><td>{latency}</td><td>{middle}</td><td>{:.2} %</td></tr>",
                100.0 * loss
            );
        }
    }
    out.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_self_contained_and_has_plot_and_table() {
        let page = super::page(&[crate::results::tests::results()]).unwrap();
        assert!(page.contains("<svg") && page.contains("c &lt;1&gt;") && !page.contains("c <1>"));
        assert!(page.contains("Take care"));
        assert!(page.contains("<td>papers/002</td><td></td><td>4.80</td>"));
        assert!(page.contains("<td>weft</td><td>30.0</td><td>10.0</td><td>40.0</td><td>5.0</td>"));
        assert!(page.contains(
            "<td>weft</td><td>2</td><td>1.0 / 125.0 / 9.0</td><td>0.9 / 1.5</td><td>1.00 %</td>"
        ));
        assert!(page.contains("<p>a &amp; b</p>"));
        // Of one figure there is a best and no least.
        assert!(page.contains("the paper's best") && !page.contains("the paper's least"));
        for outside in ["src=", "href=\"http", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
