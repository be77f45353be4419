//! Targets and their results.

use crate::Result;

use super::lab::Lab;

troika_model::named! {
    /// The use of a target.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// Constants were chosen by it.
        Cal = "CAL",
        /// It was held out from choosing constants.
        Ho = "HO",
        /// It has nothing to fit and must hold.
        Str = "STR",
    }
}

impl Kind {
    /// What the short name stands for.
    pub const fn words(self) -> &'static str {
        match self {
            Kind::Cal => "calibration",
            Kind::Ho => "held out",
            Kind::Str => "structural",
        }
    }
}

/// A claim in a paper.
pub struct Target {
    pub id: &'static str,
    pub kind: Kind,
    pub claim: &'static str,
    /// The condition for passing.
    pub tolerance: &'static str,
    pub run: RunWhen,
}

/// When and how the experiment of a target runs.
#[derive(Clone, Copy)]
pub enum RunWhen {
    Always(fn(&mut Lab) -> Result<Outcome>),
    /// Where its target is named, after what it does and the targets to name: what computes with real
    /// kernels or measures this machine would make a list of all targets slow, and another one each
    /// time.
    Named(&'static str, &'static str, fn(&mut Lab) -> Result<Outcome>),
    /// Not in this command, and where else.
    Elsewhere(&'static str),
}

/// A number of a target.
#[derive(Clone, Debug)]
pub struct Item {
    pub what: String,
    pub printed: f64,
    /// The experiment's value.
    pub ours: f64,
}

impl Item {
    pub fn new(what: impl Into<String>, printed: f64, ours: f64) -> Item {
        Item { what: what.into(), printed, ours }
    }

    pub fn error(&self) -> f64 {
        self.ours / self.printed - 1.0
    }
}

/// The result of an experiment.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Numbers, and whether they are within tolerance.
    Numbers { items: Vec<Item>, pass: bool },
    /// Words: a line, or several.
    Words { printed: String, ours: String, pass: bool },
    /// It cannot be run here.
    NotRun(String),
}

/// The result of a target, with a note.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    pub note: String,
}

impl Outcome {
    /// A result of numbers, judged by `pass`.
    pub fn numbers(items: Vec<Item>, pass: impl FnOnce(&[Item]) -> bool) -> Outcome {
        let pass = pass(&items);
        Outcome { verdict: Verdict::Numbers { items, pass }, note: String::new() }
    }

    /// A result of numbers that pass if each relative error is within a limit.
    pub fn each(items: Vec<Item>, within: f64) -> Outcome {
        Outcome::within(items, std::iter::repeat(within))
    }

    /// The same with a limit for each number.
    pub fn within(items: Vec<Item>, limits: impl IntoIterator<Item = f64>) -> Outcome {
        Outcome::numbers(items, |all| {
            all.iter().zip(limits).all(|(i, limit)| i.error().abs() <= limit)
        })
    }

    pub fn words(printed: impl Into<String>, ours: impl Into<String>, pass: bool) -> Outcome {
        let (printed, ours) = (printed.into(), ours.into());
        Outcome { verdict: Verdict::Words { printed, ours, pass }, note: String::new() }
    }

    pub fn not_run(why: impl Into<String>) -> Outcome {
        Outcome { verdict: Verdict::NotRun(why.into()), note: String::new() }
    }

    pub fn noted(mut self, note: impl Into<String>) -> Outcome {
        self.note = note.into();
        self
    }

    pub fn ran(&self) -> bool {
        !matches!(self.verdict, Verdict::NotRun(_))
    }

    pub fn pass(&self) -> bool {
        match &self.verdict {
            Verdict::Numbers { pass, .. } | Verdict::Words { pass, .. } => *pass,
            Verdict::NotRun(_) => false,
        }
    }

    pub fn word(&self) -> &'static str {
        match (self.ran(), self.pass()) {
            (false, _) => "not run",
            (_, true) => "pass",
            (_, false) => "FAIL",
        }
    }

    pub fn items(&self) -> &[Item] {
        match &self.verdict {
            Verdict::Numbers { items, .. } => items,
            _ => &[],
        }
    }

    pub fn errors(&self) -> Vec<f64> {
        self.items().iter().map(Item::error).filter(|e| e.is_finite()).collect()
    }

    /// Description, printed value, our value and error: a line for each number.
    pub fn lines(&self) -> Vec<[String; 4]> {
        let none = String::new;
        match &self.verdict {
            Verdict::NotRun(why) => vec![[none(), none(), format!("not run: {why}"), none()]],
            Verdict::Words { printed, ours, .. } => {
                let printed = std::iter::once(printed.clone()).chain(std::iter::repeat(none()));
                let lines = ours.lines().zip(printed);
                lines.map(|(ours, printed)| [none(), printed, ours.to_string(), none()]).collect()
            }
            Verdict::Numbers { items, .. } => items
                .iter()
                .map(|i| {
                    let error = match i.error() {
                        e if e.is_finite() => format!("{:+.1} %", e * 100.0),
                        _ => none(),
                    };
                    [i.what.clone(), figure(i.printed), figure(i.ours), error]
                })
                .collect(),
        }
    }
}

/// A number with three or four significant digits.
pub fn figure(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 100.0 => format!("{x:.1}"),
        a if a >= 10.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

pub fn mean(list: &[f64]) -> f64 {
    list.iter().sum::<f64>() / list.len().max(1) as f64
}
