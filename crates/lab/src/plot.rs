//! Plots as SVG: bars per case, lines per packet size. Narrow enough for a phone.

use crate::results::{Cell, Row};
use crate::table::significant;
use anyhow::{Result, anyhow};
use plotters::prelude::*;

const WIDTH: u32 = 380;
const BAR: i32 = 16;
const TITLE: i32 = 20;

/// A series: its name and colour, and how its Mpps are found in a row.
pub struct Series {
    /// As the legend says it.
    pub name: &'static str,
    /// Chosen so that people who do not see red and green tell them apart (Okabe and Ito).
    pub color: RGBColor,
    value: fn(&Row) -> Option<f64>,
}

impl Series {
    /// True if the row was measured elsewhere; its lines are dashed.
    fn is_foreign(&self) -> bool {
        self.name.starts_with("the paper")
    }

    /// True if the row has a value of this figure.
    pub fn has(&self, row: &Row) -> bool {
        (self.value)(row).is_some()
    }
}

fn mpps(cell: Option<&Cell>) -> Option<f64> {
    Some(cell?.mpps()?.median)
}

/// Weft, both builds of OVS at their best, what the paper's machine did; testpmd is a line in the
/// tables, since it would dwarf the others.
pub const SERIES: &[Series] = &[
    Series { name: "Weft", color: RGBColor(0, 114, 178), value: |r| mpps(r.cell("weft")) },
    Series {
        name: "OVS-DPDK, native build",
        color: RGBColor(230, 159, 0),
        value: |r| mpps(r.best(|c| c.system.starts_with("ovs-native"))),
    },
    Series {
        name: "OVS-DPDK, Debian's",
        color: RGBColor(213, 94, 0),
        value: |r| mpps(r.best(|c| c.is_peer() && !c.system.starts_with("ovs-native"))),
    },
    Series {
        name: "the paper's best, its machine",
        color: RGBColor(90, 90, 90),
        value: |r| papers(r).reduce(f64::max),
    },
    Series {
        name: "the paper's least, its machine",
        color: RGBColor(170, 170, 170),
        value: |r| papers(r).reduce(f64::min).filter(|_| r.paper.len() > 1),
    },
];

/// The paper's figures of a row.
fn papers(row: &Row) -> impl Iterator<Item = f64> {
    row.paper.values().filter_map(|v| v.first().copied())
}

/// The series where transmit buffering (`tx-flush-interval`) is the question.
pub const BUFFERED: &[Series] = &[
    Series { name: "Weft", color: RGBColor(0, 114, 178), value: |r| mpps(r.cell("weft")) },
    Series {
        name: "Weft, buffering",
        color: RGBColor(86, 180, 233),
        value: |r| mpps(r.cell("weft-flush")),
    },
    Series {
        name: "OVS-DPDK, its best build",
        color: RGBColor(213, 94, 0),
        value: |r| mpps(r.best(|c| c.is_peer() && !c.system.ends_with("flush"))),
    },
    Series {
        name: "OVS-DPDK, buffering",
        color: RGBColor(230, 159, 0),
        value: |r| mpps(r.best(|c| c.is_peer() && c.system.ends_with("flush"))),
    },
];

fn svg(
    height: u32,
    draw: impl FnOnce(&DrawingArea<SVGBackend, plotters::coord::Shift>) -> Result<()>,
) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&root)?;
        root.present().map_err(|e| anyhow!("{e}"))?;
    }
    Ok(text)
}

/// A group of horizontal bars per row: Mpps. The scale is logarithmic when the values differ by
/// more than a hundred.
///
/// # Errors
/// The library's.
pub fn bars(rows: &[&Row], series: &[Series]) -> Result<Option<String>> {
    let values =
        |r: &Row| series.iter().filter_map(|s| Some((s, (s.value)(r)?))).collect::<Vec<_>>();
    let all: Vec<f64> = rows.iter().flat_map(|r| values(r)).map(|(_, v)| v).collect();
    let most = all.iter().copied().fold(0.0, f64::max);
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    if most <= 0.0 || least <= 0.0 {
        return Ok(None);
    }
    let logarithmic = most / least > 100.0;
    let room = f64::from(WIDTH) - 70.0;
    let length = |v: f64| match logarithmic {
        true => room * (v / least * 1.5).ln() / (most / least * 1.5).ln(),
        false => room * v / most,
    };
    let height: i32 = rows.iter().map(|r| TITLE + BAR * values(r).len() as i32 + 8).sum();
    let text = svg(height as u32 + 20, |root| {
        let say = |text: String, x, y, size: i32| {
            let style = ("sans-serif", size).into_font().color(&RGBColor(60, 60, 60));
            root.draw(&Text::new(text, (x, y), style)).map_err(|e| anyhow!("{e}"))
        };
        let mut y = 0;
        for row in rows {
            say(row.case.clone(), 0, y + 3, 13)?;
            y += TITLE;
            for (series, value) in values(row) {
                let end = length(value).max(2.0) as i32;
                let bar = Rectangle::new([(0, y), (end, y + BAR - 3)], series.color.filled());
                root.draw(&bar).map_err(|e| anyhow!("{e}"))?;
                say(significant(value), end + 4, y, 12)?;
                y += BAR;
            }
            y += 8;
        }
        let scale =
            if logarithmic { "million packets/s, logarithmic" } else { "million packets/s" };
        say(scale.into(), 0, y, 12)
    })?;
    Ok(Some(text))
}

/// One line per series over packet sizes or numbers of guests: Mpps.
///
/// # Errors
/// The library's.
pub fn lines(rows: &[&Row], series: &[Series]) -> Result<Option<String>> {
    let x = |r: &Row| r.size.or(r.guests);
    let points = |s: &Series| {
        rows.iter().filter_map(|r| Some((f64::from(x(r)?), (s.value)(r)?))).collect::<Vec<_>>()
    };
    let most = series.iter().flat_map(points).map(|p| p.1).fold(0.0, f64::max);
    let widest = rows.iter().filter_map(|r| x(r)).max().unwrap_or(0);
    let guests = rows.iter().any(|r| r.guests.is_some());
    if most <= 0.0 {
        return Ok(None);
    }
    let text = svg(260, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(40)
            .build_cartesian_2d(0.0..f64::from(widest) * 1.05, 0.0..most * 1.1)?;
        let style = ("sans-serif", 12);
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(7)
            .x_label_formatter(&|v| format!("{v:.0}"))
            .y_label_formatter(&|v| format!("{v:.1}"))
            .x_desc(if guests { "guests" } else { "packet size, bytes" })
            .y_desc("Mpps")
            .label_style(style)
            .axis_desc_style(style)
            .draw()?;
        for one in series {
            let line = points(one);
            let style = one.color.stroke_width(2);
            if one.is_foreign() {
                chart.draw_series(DashedLineSeries::new(line.clone(), 6, 4, style))?;
            } else {
                chart.draw_series(LineSeries::new(line.clone(), style))?;
            }
            let dot = |p: &(f64, f64)| Circle::new(*p, 3, one.color.filled());
            chart.draw_series(line.iter().map(dot))?;
        }
        Ok(())
    })?;
    Ok(Some(text))
}
