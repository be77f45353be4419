//! The report: a self-contained HTML file.

use super::charts::{Chart, Series};
use super::{Report, Reproduced};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:75em;\
padding:0 1em;color:#222}table{border-collapse:collapse;width:100%}td,th{padding:.25em .6em;\
border-bottom:1px solid #ddd;text-align:left;vertical-align:top}td.n{text-align:right;overflow-wrap:anywhere;\
min-width:6em;font-variant-numeric:tabular-nums}.error{white-space:nowrap}.pass{color:#0a6b2d}\
.FAIL{color:#b00020;font-weight:600}\
.not{color:#777}.note{color:#666;font-size:.9em}figure{display:inline-block;margin:1em 1em 1em 0}\
figcaption{font-weight:600;margin-bottom:.3em}";

const COLOURS: [&str; 5] = ["#1f6fb2", "#c4581a", "#2d8a3e", "#8147b5", "#7a6a10"];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The whole report.
pub fn html(report: &Report, charts: &[Chart]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <title>Troika: tables of papers, made again</title><style>{STYLE}</style>\
         <h1>Tables of papers, made again</h1>\
         <p>All figures but those of H30, H32, L27 and L28 are <b>virtual</b>: modelled times of the engine on \
         virtual systems on a chip, not measurements of a phone. CAL: constants were chosen by it. HO: it was held out. \
         STR: nothing is fitted, it must hold.</p><ul>"
    );
    for sentence in report.sentences() {
        out.push_str(&format!("<li>{}</li>", escaped(&sentence)));
    }
    out.push_str("</ul><table><tr><th>id<th><th>claim<th>what<th>printed<th>ours<th>error<th>tolerance<th></tr>");
    report.results.iter().for_each(|r| rows(r, &mut out));
    out.push_str("</table>");
    charts.iter().for_each(|chart| figure(chart, &mut out));
    out.push_str("</html>\n");
    out
}

fn rows(r: &Reproduced, out: &mut String) {
    let (t, o) = (&r.target, &r.outcome);
    let lines = o.lines();
    let span = lines.len().max(1);
    for (i, [what, printed, ours, error]) in lines.iter().enumerate() {
        out.push_str("<tr>");
        if i == 0 {
            let note = match o.note.is_empty() {
                true => String::new(),
                false => format!("<div class=\"note\">{}</div>", escaped(&o.note)),
            };
            let cell = |text: &str| format!("<td rowspan=\"{span}\">{text}");
            out.push_str(&cell(t.id));
            out.push_str(&cell(r.kind.name()));
            out.push_str(&cell(&(escaped(t.claim) + &note)));
        }
        let cells = [what, printed, ours, error].map(|c| escaped(c));
        let [what, printed, ours, error] = cells;
        out.push_str(&format!(
            "<td>{what}<td class=\"n\">{printed}<td class=\"n\">{ours}<td class=\"n error\">{error}"
        ));
        if i == 0 {
            let word = o.word();
            out.push_str(&format!(
                "<td rowspan=\"{span}\">{}<td rowspan=\"{span}\" class=\"{word}\">{word}",
                escaped(t.tolerance)
            ));
        }
    }
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 52.0;
/// Space for the name of the axis and half of the last number.
const TOP: f64 = 26.0;
const RIGHT: f64 = 18.0;

fn figure(chart: &Chart, out: &mut String) {
    let points = || chart.series.iter().flat_map(|s| &s.points);
    let most_x = points().map(|p| p.0).fold(0.0, f64::max);
    let most_y = points().map(|p| p.1).fold(0.0, f64::max) * 1.05;
    let x = |v: f64| MARGIN + v / most_x * (WIDTH - MARGIN - RIGHT);
    let y = |v: f64| HEIGHT - MARGIN - v / most_y * (HEIGHT - MARGIN - TOP);
    out.push_str(&format!(
        "<figure><figcaption>{}</figcaption><svg width=\"{WIDTH}\" height=\"{}\" \
         font-size=\"12\" font-family=\"system-ui\">",
        escaped(chart.title),
        HEIGHT + 18.0 * chart.series.len() as f64
    ));
    for i in 0..=4 {
        let (vx, vy) = (most_x * f64::from(i) / 4.0, most_y * f64::from(i) / 4.0);
        let (bottom, left) = (y(0.0), x(0.0));
        out.push_str(&format!(
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{1}\" y2=\"{1}\" stroke=\"#ddd\"/>\
             <text x=\"{2}\" y=\"{3}\" text-anchor=\"end\">{4}</text>\
             <text x=\"{5}\" y=\"{6}\" text-anchor=\"middle\">{7}</text>",
            WIDTH - RIGHT,
            y(vy),
            left - 5.0,
            y(vy) + 4.0,
            short(vy),
            x(vx),
            bottom + 16.0,
            short(vx),
        ));
    }
    let [right, up] = chart.axes;
    out.push_str(&format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><text x=\"4\" y=\"12\">{}</text>",
        WIDTH - RIGHT,
        y(0.0) + 32.0,
        escaped(right),
        escaped(up)
    ));
    for (i, series) in chart.series.iter().enumerate() {
        let colour = if series.printed { "#000" } else { COLOURS[i % COLOURS.len()] };
        draw(series, colour, &x, &y, out);
        let at = HEIGHT + 18.0 * i as f64;
        out.push_str(&format!(
            "<rect x=\"{MARGIN}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{at}\">{}</text>",
            at - 6.0,
            MARGIN + 18.0,
            escaped(&series.name)
        ));
    }
    out.push_str("</svg></figure>");
}

type Scale<'a> = &'a dyn Fn(f64) -> f64;

fn draw(series: &Series, colour: &str, x: Scale<'_>, y: Scale<'_>, out: &mut String) {
    if series.printed {
        for (px, py) in &series.points {
            let (px, py) = (x(*px), y(*py));
            out.push_str(&format!(
                "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"4\" fill=\"{colour}\"/>"
            ));
        }
        return;
    }
    let points: Vec<String> =
        series.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
    out.push_str(&format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>",
        points.join(" ")
    ));
}

fn short(v: f64) -> String {
    if v >= 100.0 {
        format!("{v:.0}")
    } else {
        format!("{:.2}", v).trim_end_matches('0').trim_end_matches('.').to_string()
    }
}
