//! Reads a table field by field, with an error sentence for each fault.

use std::ops::RangeInclusive;

use toml::{Table, Value};

use crate::error::SocError;

/// The range of rates and times, so that results computed from them are finite.
const FIGURES: RangeInclusive<f64> = 1e-6..=1e12;

/// A table of a file, which records the fields that were read.
pub(crate) struct Fields<'a> {
    file: &'a str,
    place: String,
    table: &'a Table,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// `place` is the section of the file, such as `, processor npu`, or empty.
    pub fn new(file: &'a str, place: String, table: &'a Table) -> Fields<'a> {
        Fields { file, place, table, known: Vec::new() }
    }

    pub fn wrong(&self, field: &str, why: impl Into<String>) -> SocError {
        let why: String = why.into();
        SocError::Invalid(format!("{}{}: {field} {why}", self.file, self.place))
    }

    /// The field's value: as written, or the `value` of a table that also gives its source.
    pub fn get(&mut self, field: &'static str) -> Option<&'a Value> {
        if !self.known.contains(&field) {
            self.known.push(field);
        }
        self.table.get(field).map(plain)
    }

    /// A table in a field, if the field exists.
    pub fn table(&mut self, field: &'static str) -> Result<Option<Fields<'a>>, SocError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Table(table)) => {
                let place = format!("{}, {field}", self.place);
                Ok(Some(Fields::new(self.file, place, table)))
            }
            Some(_) => Err(self.wrong(field, format!("must be a table, [{field}]"))),
        }
    }

    /// The tables of a list, each named by its number; none if the field is missing.
    pub fn tables(&mut self, field: &'static str) -> Result<Vec<Fields<'a>>, SocError> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let each = |(i, v): (usize, &'a Value)| {
            let place = format!("{}, {field} {}", self.place, i + 1);
            Some(Fields::new(self.file, place, v.as_table()?))
        };
        let all = value.as_array().and_then(|list| list.iter().enumerate().map(each).collect());
        all.ok_or_else(|| self.wrong(field, "must be a list of tables"))
    }

    /// What a field should be, where its value is such.
    fn found<T>(
        &self,
        field: &str,
        value: &Value,
        found: Option<T>,
        must: impl Fn() -> String,
    ) -> Result<T, SocError> {
        let why = || format!("is {}; it must be {}", shown(value), must());
        found.ok_or_else(|| self.wrong(field, why()))
    }

    fn need(&mut self, field: &'static str, what: &str) -> Result<&'a Value, SocError> {
        let value = self.get(field);
        value.ok_or_else(|| self.wrong(field, format!("is missing; it is {what}")))
    }

    pub fn text(&mut self, field: &'static str, what: &str) -> Result<&'a str, SocError> {
        let value = self.need(field, what)?;
        self.found(field, value, value.as_str(), || what.into())
    }

    /// One of some words; `None` if the field is missing.
    pub fn word(
        &mut self,
        field: &'static str,
        words: &[&'static str],
    ) -> Result<Option<usize>, SocError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let found = value.as_str().and_then(|v| words.iter().position(|w| *w == v));
        self.found(field, value, found, || format!("one of {}", words.join(", "))).map(Some)
    }

    /// A rate above 0.
    pub fn rate(&mut self, field: &'static str, what: &str) -> Result<f64, SocError> {
        let value = self.need(field, what)?;
        self.rate_of(field, value)
    }

    /// A rate from a given value.
    pub fn rate_of(&self, field: &str, value: &Value) -> Result<f64, SocError> {
        let value = plain(value);
        let rate = number(value).filter(|n| FIGURES.contains(n));
        let (least, most) = (FIGURES.start(), FIGURES.end());
        self.found(field, value, rate, || format!("a number from {least} to {most:e}"))
    }

    pub fn maybe_rate(&mut self, field: &'static str) -> Result<Option<f64>, SocError> {
        self.get(field).map(|value| self.rate_of(field, value)).transpose()
    }

    /// An optional figure of 0 or more; 0 if missing.
    pub fn maybe_figure(&mut self, field: &'static str) -> Result<f64, SocError> {
        self.get(field).map_or(Ok(0.0), |value| self.figure_of(field, value, "a number"))
    }

    /// A figure of 0 or more; `what` is a number of something.
    fn figure_of(&self, field: &str, value: &Value, what: &str) -> Result<f64, SocError> {
        let most = FIGURES.end();
        let figure = number(value).filter(|n| (0.0..=*most).contains(n));
        self.found(field, value, figure, || format!("{what} from 0 to {most:e}"))
    }

    /// Microseconds, 0 or more, converted to nanoseconds.
    pub fn micros(&mut self, field: &'static str, what: &str) -> Result<u64, SocError> {
        let value = self.need(field, what)?;
        self.micros_of(field, value)
    }

    /// Optional microseconds; 0 if missing.
    pub fn maybe_micros(&mut self, field: &'static str) -> Result<u64, SocError> {
        self.get(field).map_or(Ok(0), |value| self.micros_of(field, value))
    }

    fn micros_of(&self, field: &str, value: &Value) -> Result<u64, SocError> {
        let micros = self.figure_of(field, value, "a number of microseconds")?;
        Ok((micros * 1e3).round() as u64)
    }

    /// An optional count above 0.
    pub fn maybe_count(&mut self, field: &'static str) -> Result<Option<u64>, SocError> {
        self.get(field).map(|value| self.count_of(field, value)).transpose()
    }

    fn count_of(&self, field: &str, value: &Value) -> Result<u64, SocError> {
        let count = value.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        count.ok_or_else(|| {
            self.wrong(field, format!("has {}; give whole numbers from 1 on", shown(value)))
        })
    }

    /// Counts above 0; `None` if the field is missing.
    pub fn counts(&mut self, field: &'static str) -> Result<Option<Vec<u64>>, SocError> {
        self.list(field, Fields::count_of)
    }

    fn list<T>(
        &mut self,
        field: &'static str,
        of: fn(&Fields<'a>, &str, &Value) -> Result<T, SocError>,
    ) -> Result<Option<Vec<T>>, SocError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let list =
            value.as_array().ok_or_else(|| self.wrong(field, "must be a list of numbers"))?;
        list.iter().map(|n| of(self, field, n)).collect::<Result<_, _>>().map(Some)
    }

    /// Rates above 0; `None` if the field is missing.
    pub fn rates(&mut self, field: &'static str) -> Result<Option<Vec<f64>>, SocError> {
        self.list(field, Fields::rate_of)
    }

    /// A boolean; `None` if the field is missing.
    pub fn flag(&mut self, field: &'static str) -> Result<Option<bool>, SocError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        self.found(field, value, value.as_bool(), || "true or false".into()).map(Some)
    }

    /// Some of the given words; `None` if the field is missing.
    pub fn words(
        &mut self,
        field: &'static str,
        words: &[&'static str],
    ) -> Result<Option<Vec<&'static str>>, SocError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.wrong(field, "must be a list of names"))?;
        let find = |v: &Value| {
            let found = v.as_str().and_then(|v| words.iter().find(|w| **w == v)).copied();
            let known = words.join(", ");
            found.ok_or_else(|| {
                self.wrong(field, format!("has {}, which is none of {known}", shown(v)))
            })
        };
        list.iter().map(find).collect::<Result<_, _>>().map(Some)
    }

    /// Refuses fields that were not read.
    pub fn finish(self) -> Result<(), SocError> {
        let mut names = self.table.keys();
        let Some(unknown) = names.find(|k| !self.known.contains(&k.as_str())) else {
            return Ok(());
        };
        let known = self.known.join(", ");
        Err(self.wrong(unknown, format!("is not known here; the fields are {known}")))
    }
}

/// The `value` of a table with `value` and `from`, or the value itself.
pub(crate) fn plain(value: &Value) -> &Value {
    let table = value.as_table().filter(|t| t.len() == 2 && t.contains_key("from"));
    table.and_then(|t| t.get("value")).unwrap_or(value)
}

/// Integers count as numbers too.
fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

/// A value for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(n) => n.to_string(),
        Value::Float(n) => n.to_string(),
        Value::Boolean(b) => b.to_string(),
        other => format!("a {}", other.type_str()),
    }
}
