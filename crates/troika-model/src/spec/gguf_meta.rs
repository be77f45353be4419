//! GGUF metadata: key-value pairs of the header.

use std::collections::BTreeMap;

/// A metadata value. Integers and floats are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// Any unsigned integer.
    Uint(u64),
    /// Any signed integer.
    Int(i64),
    /// f32 or f64.
    Float(f64),
    /// bool.
    Bool(bool),
    /// UTF-8 text (invalid bytes replaced).
    Str(String),
    /// Homogeneous list.
    Array(Vec<GgufValue>),
}

/// All metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufMeta(pub BTreeMap<String, GgufValue>);

impl GgufValue {
    /// As a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            GgufValue::Uint(v) => Some(v),
            GgufValue::Int(v) => u64::try_from(v).ok(),
            _ => None,
        }
    }

    /// As a number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            GgufValue::Uint(v) => Some(v as f64),
            GgufValue::Int(v) => Some(v as f64),
            GgufValue::Float(v) => Some(v),
            _ => None,
        }
    }

    /// As a bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            GgufValue::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// As text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            GgufValue::Str(s) => Some(s),
            _ => None,
        }
    }

    /// As a list.
    pub fn as_array(&self) -> Option<&[GgufValue]> {
        match self {
            GgufValue::Array(a) => Some(a),
            _ => None,
        }
    }
}

impl GgufMeta {
    /// A value by its full key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.0.get(key)
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Option<&str> {
        self.get("general.architecture")?.as_str()
    }

    /// A value of the architecture's own keys: `llama.KEY`.
    pub fn arch(&self, key: &str) -> Option<&GgufValue> {
        self.get(&format!("{}.{key}", self.architecture()?))
    }
}
