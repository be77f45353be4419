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
    /// Homogeneous list of anything but texts.
    Array(Vec<GgufValue>),
    /// List of texts.
    Texts(Texts),
}

/// Texts one after another in one piece of memory: a vocabulary has hundreds of thousands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    all: String,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Texts {
    /// The texts in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.all[std::mem::replace(&mut start, end)..end])
    }
}

impl<S: AsRef<str>> FromIterator<S> for Texts {
    fn from_iter<I: IntoIterator<Item = S>>(texts: I) -> Texts {
        let mut list = Texts::default();
        for text in texts {
            list.all.push_str(text.as_ref());
            list.ends.push(list.all.len());
        }
        list
    }
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
        if let GgufValue::Bool(v) = *self { Some(v) } else { None }
    }

    /// As text.
    pub fn as_str(&self) -> Option<&str> {
        if let GgufValue::Str(v) = self { Some(v) } else { None }
    }

    /// As a list of texts.
    pub fn as_texts(&self) -> Option<&Texts> {
        if let GgufValue::Texts(v) = self { Some(v) } else { None }
    }

    /// As a list of anything but texts.
    pub fn as_array(&self) -> Option<&[GgufValue]> {
        if let GgufValue::Array(v) = self { Some(v) } else { None }
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

    /// A number of the architecture's own keys.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.arch(key)?.as_f64()
    }

    /// A whole number of the architecture's own keys.
    pub fn integer(&self, key: &str) -> Option<u64> {
        self.arch(key)?.as_u64()
    }

    /// A value of the architecture's own keys: `llama.KEY`.
    pub fn arch(&self, key: &str) -> Option<&GgufValue> {
        self.get(&format!("{}.{key}", self.architecture()?))
    }
}
