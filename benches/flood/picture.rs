//! The picture of a flood, with the gateway and without: an SVG that needs nothing else, on
//! a ground of its own and legible on a light page and a dark one.

use crate::judge::{self, BASELINE, Kind, ONSET, RECOVERY, STEADY};
use crate::record::{Class, Counts, Run};
use std::fmt::Write as _;

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 530.0;
/// The panels of a column: from the left edge, how wide, and the rows' places.
const LEFT: [f64; 2] = [64.0, 498.0];
const PANEL_WIDTH: f64 = 358.0;
const SHARE_TOP: f64 = 144.0;
const TIME_TOP: f64 = 336.0;
const PANEL_HEIGHT: f64 = 150.0;
/// Response times from and to, on a logarithmic scale.
const TIME_MS: (f64, f64) = (10.0, 10_000.0);
/// Each point is the mean of so many seconds: one second of few requests is noise.
const STEP_S: usize = 2;

const STYLE: &str = "
  .ground { fill: #ffffff; stroke: #d1d9e0; }
  .flood { fill: #cf222e; fill-opacity: 0.07; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .axis { stroke: #818b98; stroke-width: 1; }
  text { font: 12px -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif; fill: #59636e; }
  .title { font-size: 17px; font-weight: 600; fill: #1f2328; }
  .head { font-size: 14px; font-weight: 600; fill: #1f2328; }
  .warn { fill: #cf222e; }
  .core { stroke: #0969da; } .core-text { fill: #0969da; font-weight: 600; }
  .other { stroke: #bc4c00; } .other-text { fill: #bc4c00; font-weight: 600; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
  .other.line { stroke-width: 4.5; }
  .degraded { fill: #bc4c00; fill-opacity: 0.20; stroke: none; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #3d444d; }
    .flood { fill: #f85149; fill-opacity: 0.12; }
    .grid { stroke: #2a313a; }
    .axis { stroke: #656c76; }
    text { fill: #9198a1; }
    .title, .head { fill: #f0f6fc; }
    .warn { fill: #ff7b72; }
    .core { stroke: #58a6ff; } .core-text { fill: #58a6ff; }
    .other { stroke: #f0883e; } .other-text { fill: #f0883e; }
    .degraded { fill: #f0883e; fill-opacity: 0.28; }
  }
";

/// The runs to be shown: one without the gateway, and one with it under a flood of the same
/// size, the first of each. `None`: there is no such pair.
fn pair(runs: &[Run]) -> Option<(&Run, &Run)> {
    let size = |run: &Run| run.name.split('-').next().unwrap_or("").to_owned();
    let without = runs.iter().find(|run| run.name.contains("without"))?;
    let with = runs
        .iter()
        .filter(|run| !Kind::of(&run.name).bare)
        .find(|run| size(run) == size(without))?;
    Some((without, with))
}

pub fn draw(runs: &[Run]) -> Option<String> {
    let (without, with) = pair(runs)?;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
        label(without, with),
        WIDTH - 1.0,
        HEIGHT - 1.0
    );
    let attack = with.counts("attack", STEADY)?;
    let seconds = span(with, STEADY)?;
    let rate = attack.asked as f64 / (seconds.1 - seconds.0);
    text(
        &mut svg,
        24.0,
        34.0,
        "title",
        &format!(
            "A flood of {} requests a second on a shop that can serve {}",
            grouped((rate / 100.0).round() * 100.0),
            grouped((judge::backend(with, STEADY)?.served_per_s / 10.0).round() * 10.0)
        ),
    );
    legend(&mut svg);
    for (left, run, name) in [
        (LEFT[0], without, "Without: plain nginx"),
        (LEFT[1], with, "With Sluice"),
    ] {
        column(&mut svg, left, run, name)?;
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

fn label(without: &Run, with: &Run) -> String {
    let of = |run: &Run| {
        let core = judge::attacked(run, "core");
        format!("{} of core requests", judge::percent(core.share(core.full)))
    };
    format!(
        "Under a flood plain nginx serves {}, with Sluice {}",
        of(without),
        of(with)
    )
}

fn legend(svg: &mut String) {
    let y = 58.0;
    let line = |svg: &mut String, x: f64, class: &str, words: &str| {
        let _ = writeln!(
            svg,
            "<line class=\"line {class}\" x1=\"{x}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>",
            x + 22.0,
            y - 4.0,
            y - 4.0
        );
        text(svg, x + 28.0, y, "", words);
    };
    line(svg, 24.0, "core", "core: orders of logged-in users");
    line(svg, 256.0, "other", "other: honest browsing");
    let _ = writeln!(
        svg,
        "<rect class=\"degraded\" x=\"436\" y=\"{}\" width=\"22\" height=\"12\"/>",
        y - 11.0
    );
    text(svg, 464.0, y, "", "other, degraded: a static page instead");
    let _ = writeln!(
        svg,
        "<rect class=\"flood\" x=\"708\" y=\"{}\" width=\"22\" height=\"12\"/>",
        y - 11.0
    );
    text(svg, 736.0, y, "", "while the flood lasts");
}

/// A phase's seconds.
fn span(run: &Run, phase: &str) -> Option<(f64, f64)> {
    let phase = &run.phases[run.phase(phase)?];
    Some((phase.from_s, phase.until_s))
}

/// Where one diagram is, and what seconds it shows.
struct Panel {
    left: f64,
    top: f64,
    from_s: f64,
    until_s: f64,
}

impl Panel {
    fn x(&self, second: f64) -> f64 {
        self.left + PANEL_WIDTH * (second - self.from_s) / (self.until_s - self.from_s)
    }

    /// `height` from 0 at the bottom to 1.
    fn y(&self, height: f64) -> f64 {
        self.top + PANEL_HEIGHT * (1.0 - height.clamp(0.0, 1.0))
    }

    fn frame(&self, svg: &mut String, flood: (f64, f64), lines: &[(f64, &str)]) {
        let (from, until) = (self.x(flood.0), self.x(flood.1));
        let _ = writeln!(
            svg,
            "<rect class=\"flood\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{PANEL_HEIGHT}\"/>",
            self.top,
            until - from
        );
        for &(height, words) in lines {
            let y = self.y(height);
            let class = if height == 0.0 { "axis" } else { "grid" };
            let _ = writeln!(
                svg,
                "<line class=\"{class}\" x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
                self.left,
                self.left + PANEL_WIDTH
            );
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{words}</text>",
                self.left - 6.0,
                y + 4.0
            );
        }
    }

    fn line(&self, svg: &mut String, class: &str, points: &[(f64, Option<f64>)]) {
        let mut path = String::new();
        let mut pen_down = false;
        for &(second, height) in points {
            if let Some(height) = height {
                let letter = if pen_down { 'L' } else { 'M' };
                let _ = write!(path, "{letter}{:.1} {:.1}", self.x(second), self.y(height));
            }
            pen_down = height.is_some();
        }
        let _ = writeln!(svg, "<path class=\"line {class}\" d=\"{path}\"/>");
    }

    /// What lies between two lines.
    fn area(&self, svg: &mut String, class: &str, points: &[(f64, f64, f64)]) {
        let mut path = String::new();
        for (at, &(second, _, upper)) in points.iter().enumerate() {
            let letter = if at == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", self.x(second), self.y(upper));
        }
        for &(second, lower, _) in points.iter().rev() {
            let _ = write!(path, "L{:.1} {:.1}", self.x(second), self.y(lower));
        }
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}Z\"/>");
    }
}

/// A stretch of a class's seconds as one point of a line.
struct Point {
    middle_s: f64,
    full: f64,
    degraded: f64,
    mean_ms: Option<f64>,
}

fn points(class: &Class, from_s: f64, until_s: f64) -> Vec<Point> {
    let (from, until) = (from_s as usize, until_s as usize);
    (from..until)
        .step_by(STEP_S)
        .filter_map(|second| {
            let part = class.by_second.get(second..(second + STEP_S).min(until))?;
            let mut sum = Counts::default();
            part.iter().for_each(|one| sum.add(one));
            let total_ms: f64 = part
                .iter()
                .filter_map(|one| Some(one.mean_ms? * one.full as f64))
                .sum();
            (sum.asked > 0).then(|| Point {
                middle_s: second as f64 + part.len() as f64 / 2.0,
                full: sum.share(sum.full),
                degraded: sum.share(sum.degraded),
                mean_ms: (sum.full > 0).then(|| total_ms / sum.full as f64),
            })
        })
        .collect()
}

fn column(svg: &mut String, left: f64, run: &Run, name: &str) -> Option<()> {
    let (from_s, until_s) = (span(run, BASELINE)?.0, span(run, RECOVERY)?.1);
    let flood = (span(run, ONSET)?.0, span(run, STEADY)?.1);
    let panel = |top| Panel {
        left,
        top,
        from_s,
        until_s,
    };
    let class = |name: &str| {
        let classes = &run.targets.first()?.classes;
        let class = classes.iter().find(|class| class.name == name)?;
        Some(points(class, from_s, until_s))
    };
    let (core, other) = (class("core")?, class("other")?);

    text(svg, left, 88.0, "head", name);
    let counts = judge::attacked(run, "core");
    let times = |phase| run.counts("core", phase).and_then(|counts| counts.mean_ms);
    let mut words = format!("core: {} served", judge::percent(counts.share(counts.full)));
    if let (Some(before), Some(during)) = (times(BASELINE), times(STEADY)) {
        let _ = write!(
            words,
            ", {} ms ({} before)",
            grouped(during),
            grouped(before)
        );
    }
    text(svg, left, 107.0, "core-text", &words);

    let share = panel(SHARE_TOP);
    let marks = [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")];
    share.frame(svg, flood, &marks);
    let stack: Vec<(f64, f64, f64)> = other
        .iter()
        .map(|point| (point.middle_s, point.full, point.full + point.degraded))
        .collect();
    share.area(svg, "degraded", &stack);
    for (class, points) in [("other", &other), ("core", &core)] {
        let line: Vec<_> = points
            .iter()
            .map(|point| (point.middle_s, Some(point.full)))
            .collect();
        share.line(svg, class, &line);
    }
    text(svg, left, SHARE_TOP - 10.0, "", "share answered in full");

    let time = panel(TIME_TOP);
    let height = |ms: f64| (ms / TIME_MS.0).ln() / (TIME_MS.1 / TIME_MS.0).ln();
    let marks = [
        (10.0, "10 ms"),
        (100.0, "100 ms"),
        (1000.0, "1 s"),
        (10_000.0, "10 s"),
    ];
    time.frame(svg, flood, &marks.map(|(ms, words)| (height(ms), words)));
    for (class, points) in [("other", &other), ("core", &core)] {
        let line: Vec<_> = points
            .iter()
            .map(|point| (point.middle_s, point.mean_ms.map(height)))
            .collect();
        time.line(svg, class, &line);
    }
    let below = TIME_TOP + PANEL_HEIGHT;
    text(
        svg,
        left,
        TIME_TOP - 10.0,
        "",
        "mean response time of full answers",
    );
    // The flood begins at 0.
    let marks_s = [from_s, flood.0, flood.1, until_s];
    for (at, second) in marks_s.into_iter().enumerate() {
        let anchor = match at {
            0 => "start",
            3 => "end",
            _ => "middle",
        };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{:.0} s</text>",
            time.x(second),
            below + 16.0,
            second - flood.0
        );
    }
    Some(())
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{words}</text>"
    );
}

/// A whole number with its thousands apart.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Backend, Cpu, Phase, Sample, Target};

    fn run(name: &str) -> Run {
        let class = |name: &str| Class {
            name: name.into(),
            phases: vec![
                Counts {
                    asked: 100,
                    full: 90,
                    degraded: 5,
                    mean_ms: Some(25.0),
                    ..Counts::default()
                };
                4
            ],
            by_second: vec![
                Counts {
                    asked: 10,
                    full: 9,
                    degraded: 1,
                    mean_ms: Some(100.0),
                    ..Counts::default()
                };
                40
            ],
        };
        let spans = [
            (BASELINE, 0.0, 10.0),
            (ONSET, 10.0, 15.0),
            (STEADY, 15.0, 30.0),
        ];
        Run {
            name: name.into(),
            seconds: 40.0,
            phases: spans
                .into_iter()
                .chain([(RECOVERY, 30.0, 40.0)])
                .map(|(name, from_s, until_s)| Phase {
                    name: name.into(),
                    from_s,
                    until_s,
                })
                .collect(),
            targets: vec![Target {
                name: "gateway".into(),
                classes: ["core", "other", "attack"].map(class).into(),
            }],
            samples: (0..80)
                .map(|half| Sample {
                    at_s: f64::from(half) / 2.0,
                    backend: Some(Backend {
                        served: [("core".to_owned(), half as u64 * 380)].into(),
                        ..Backend::default()
                    }),
                    gateway: None,
                    cpu: Cpu::default(),
                })
                .collect(),
            ..Run::default()
        }
    }

    #[test]
    fn a_pair_of_the_same_size_is_drawn_and_nothing_else() {
        let runs = [run("5x-16"), run("10x-16"), run("10x-without")];
        let (without, with) = pair(&runs).unwrap();
        assert_eq!((&*without.name, &*with.name), ("10x-without", "10x-16"));
        let svg = draw(&runs).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.contains("90.0 % served, 25 ms (25 before)"));
        assert!(svg.contains("on a shop that can serve 760"));
        assert!(draw(&runs[..2]).is_none());
    }

    #[test]
    fn a_panel_has_its_scales() {
        let panel = Panel {
            left: 100.0,
            top: 50.0,
            from_s: 10.0,
            until_s: 20.0,
        };
        assert_eq!(panel.x(10.0), 100.0);
        assert_eq!(panel.x(20.0), 100.0 + PANEL_WIDTH);
        assert_eq!((panel.y(1.0), panel.y(0.0)), (50.0, 50.0 + PANEL_HEIGHT));
        assert_eq!(panel.y(7.0), 50.0);
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(grouped(5280.4), "5,280");
        assert_eq!(grouped(25.0), "25");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
    }
}
