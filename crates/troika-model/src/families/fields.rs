//! Reads `config.json` fields with types and bounds.

use std::fmt::Display;

use serde_json::{Map, Value};

/// Why a config cannot be used. Each message names the field and what is supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// What reads a config.
pub(super) type Result<T, E = ConfigError> = std::result::Result<T, E>;

/// The limit of widths, counts and similar, so that products of a few cannot overflow.
const MAX_SIZE: u64 = 1 << 24;
/// The limit of layers and experts.
const MAX_COUNT: u64 = 4096;
/// The limit of positions.
const MAX_CONTEXT: u64 = 1 << 31;

/// The fields of a config object.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub &'a Map<String, Value>);

/// A required field is missing.
pub(super) fn missing(field: impl Display) -> ConfigError {
    ConfigError(format!("the config has no {field}"))
}

/// The same of a key that a GGUF file must have.
pub(super) fn not_in_gguf(key: &str) -> ConfigError {
    missing(format!("{key} in the GGUF metadata"))
}

/// A field of the wrong type or out of range.
pub(super) fn bad(field: &str, value: impl Display, problem: impl Display) -> ConfigError {
    ConfigError(format!("the config's {field} is {value}, which is {problem}"))
}

/// A feature that this build does not support.
pub(super) fn unsupported(what: impl Display, supported: impl Display) -> ConfigError {
    ConfigError(format!("{what} is not supported; supported: {supported}"))
}

impl<'a> Fields<'a> {
    /// A field that is present and not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    /// A field as `read` reads it; what it does not read has the problem.
    fn typed<T>(
        &self,
        name: &str,
        read: impl Fn(&'a Value) -> Option<T>,
        problem: &str,
    ) -> Result<Option<T>> {
        let typed = |v| read(v).ok_or_else(|| bad(name, v, problem));
        self.get(name).map(typed).transpose()
    }

    fn integer(&self, name: &str, low: u64, high: u64) -> Result<Option<usize>> {
        let whole = |v: &Value| v.as_u64().filter(|n| (low..=high).contains(n));
        let whole = self.typed(name, whole, &format!("not a whole number from {low} to {high}"))?;
        Ok(whole.map(|n| n as usize))
    }

    /// A width or size of at least 1.
    pub fn size(&self, name: &str) -> Result<usize> {
        self.size_opt(name)?.ok_or_else(|| missing(name))
    }

    pub fn size_opt(&self, name: &str) -> Result<Option<usize>> {
        self.integer(name, 1, MAX_SIZE)
    }

    /// A number of layers, experts or groups; may be 0.
    pub fn count_opt(&self, name: &str) -> Result<Option<usize>> {
        self.integer(name, 0, MAX_COUNT)
    }

    pub fn count(&self, name: &str) -> Result<usize> {
        let n = self.count_opt(name)?.ok_or_else(|| missing(name))?;
        if n == 0 { Err(bad(name, n, "not at least 1")) } else { Ok(n) }
    }

    pub fn context(&self, name: &str) -> Result<Option<usize>> {
        self.integer(name, 1, MAX_CONTEXT)
    }

    /// A sliding window; 0 means none.
    pub fn window(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.integer(name, 0, MAX_CONTEXT)?.filter(|&w| w > 0))
    }

    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        let finite = |v: &Value| v.as_f64().filter(|n| n.is_finite() && n.abs() <= 1e30);
        self.typed(name, finite, "not a finite number")
    }

    pub fn positive(&self, name: &str) -> Result<Option<f64>> {
        match self.number(name)? {
            Some(n) if n <= 0.0 => Err(bad(name, n, "not more than 0")),
            // It would become 0 in single precision.
            Some(n) if n < 1e-30 => Err(bad(name, format!("{n:?}"), "less than 1e-30")),
            n => Ok(n),
        }
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, Value::as_bool, "neither true nor false")
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, Value::as_str, "not text")
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        self.typed(name, |v| v.as_object().map(Fields), "not an object")
    }

    /// A field as `read` reads it, with a default if absent (null still means none).
    pub fn or<T>(
        &self,
        name: &str,
        default: Option<T>,
        read: impl Fn(&Self, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if self.0.contains_key(name) { read(self, name) } else { Ok(default) }
    }

    /// The first of some fields that is there, as `read` reads it.
    pub fn first<T>(
        &self,
        names: &[&str],
        read: impl Fn(&Self, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        names.iter().find_map(|name| read(self, name).transpose()).transpose()
    }

    fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>> {
        self.typed(name, Value::as_array, "not a list")
    }

    /// A list with at least one entry per layer, truncated to the layers.
    pub fn per_layer(&self, name: &str, layers: usize) -> Result<Option<&'a [Value]>> {
        let Some(list) = self.list(name)? else { return Ok(None) };
        match list.get(..layers) {
            Some(cut) => Ok(Some(cut)),
            None => {
                let problem = format!("too short for {layers} layers");
                Err(bad(name, format!("a list of {}", list.len()), problem))
            }
        }
    }

    /// A list with exactly one entry per layer.
    pub fn each_layer(&self, name: &str, layers: usize) -> Result<Option<&'a [Value]>> {
        let Some(list) = self.list(name)? else { return Ok(None) };
        if list.len() != layers {
            let mut problem = format!("not one for each of {layers} layers");
            if list.len() < layers {
                problem += &format!(": layer {} has none", list.len());
            }
            return Err(bad(name, format!("a list of {}", list.len()), problem));
        }
        Ok(Some(list))
    }

    /// A list of finite numbers.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let Some(list) = self.list(name)? else { return Ok(None) };
        let number = |v: &Value| v.as_f64().filter(|n| n.is_finite());
        let all: Option<Vec<f64>> = list.iter().map(number).collect();
        all.map(Some).ok_or_else(|| bad(name, "a list", "not a list of finite numbers"))
    }

    /// Refuses a feature unless its field is absent, false or null.
    pub fn refuse_flag(&self, name: &str) -> Result<()> {
        match self.flag(name)? {
            Some(true) => Err(unsupported(format!("{name} = true"), "false")),
            _ => Ok(()),
        }
    }
}
