//! Writing GGUF files, version 3: header, metadata, tensor infos, then the tensors, each at a
//! multiple of 32 bytes. See ggml's `docs/gguf.md`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::command::{Result, failed};

/// The alignment of tensors.
const ALIGNMENT: u64 = 32;

/// The element types that this writer supports, by their numbers in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Single precision.
    F32 = 0,
    /// Blocks of 32 values of four bits, with a scale each.
    Q4_0 = 2,
    /// Blocks of 32 values of eight bits, with a scale each.
    Q8_0 = 8,
    /// bfloat16.
    BF16 = 30,
}

impl Kind {
    /// Bytes of a number of values.
    pub fn bytes(self, values: u64) -> u64 {
        match self {
            Kind::F32 => 4 * values,
            Kind::Q4_0 => 18 * (values / 32),
            Kind::Q8_0 => 34 * (values / 32),
            Kind::BF16 => 2 * values,
        }
    }
}

/// Makes a tensor's bytes.
type Fill<'a> = Box<dyn Fn() -> Vec<u8> + 'a>;

struct Tensor<'a> {
    name: String,
    /// Dimensions, columns first.
    dims: Vec<u64>,
    kind: Kind,
    fill: Fill<'a>,
}

/// A file under construction.
#[derive(Default)]
pub struct Gguf<'a> {
    meta: Vec<u8>,
    keys: u64,
    tensors: Vec<Tensor<'a>>,
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

impl<'a> Gguf<'a> {
    fn key(&mut self, key: &str, kind: u32) {
        self.keys += 1;
        put_str(&mut self.meta, key);
        self.meta.extend(kind.to_le_bytes());
    }

    fn list(&mut self, key: &str, kind: u32, len: usize) {
        self.key(key, 9);
        self.meta.extend(kind.to_le_bytes());
        self.meta.extend((len as u64).to_le_bytes());
    }

    /// Adds a number.
    pub fn u32(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.meta.extend(value.to_le_bytes());
    }

    /// Adds a float.
    pub fn f32(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.meta.extend(value.to_le_bytes());
    }

    /// Adds text.
    pub fn str(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        put_str(&mut self.meta, value);
    }

    /// Adds a list of texts.
    pub fn strs(&mut self, key: &str, values: &[String]) {
        self.list(key, 8, values.len());
        values.iter().for_each(|v| put_str(&mut self.meta, v));
    }

    /// Adds a list of signed numbers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.list(key, 5, values.len());
        values.iter().for_each(|v| self.meta.extend(v.to_le_bytes()));
    }

    /// Adds a tensor; `dims` starts with the columns.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        kind: Kind,
        fill: impl Fn() -> Vec<u8> + 'a,
    ) {
        let (name, dims, fill) = (name.to_string(), dims.to_vec(), Box::new(fill));
        self.tensors.push(Tensor { name, dims, kind, fill });
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written, or a tensor's bytes are not as many as its dimensions say.
    pub fn save(&self, path: &Path) -> Result<()> {
        let file = File::create(path).map_err(|e| failed("create", path, &e))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let written = self.write(&mut out).and_then(|()| out.flush());
        written.map_err(|e| failed("write", path, &e))
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut head = b"GGUF".to_vec();
        head.extend(3u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend(self.keys.to_le_bytes());
        head.extend(&self.meta);
        let mut at = 0u64;
        for t in &self.tensors {
            put_str(&mut head, &t.name);
            head.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| head.extend(d.to_le_bytes()));
            head.extend((t.kind as u32).to_le_bytes());
            head.extend(at.to_le_bytes());
            at += t.bytes().next_multiple_of(ALIGNMENT);
        }
        out.write_all(&head)?;
        pad(out, head.len() as u64)?;
        for t in &self.tensors {
            let bytes = (t.fill)();
            if bytes.len() as u64 != t.bytes() {
                let why = format!("{}: {} bytes, not {}", t.name, bytes.len(), t.bytes());
                return Err(io::Error::other(why));
            }
            out.write_all(&bytes)?;
            pad(out, t.bytes())?;
        }
        Ok(())
    }
}

impl Tensor<'_> {
    fn bytes(&self) -> u64 {
        self.kind.bytes(self.dims.iter().product())
    }
}

fn pad(out: &mut dyn Write, written: u64) -> io::Result<()> {
    let gap = written.next_multiple_of(ALIGNMENT) - written;
    out.write_all(&[0; ALIGNMENT as usize][..gap as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut g = Gguf::default();
        g.u32("a.b", 7);
        g.strs("l", &["x".to_string()]);
        g.tensor("t", &[3, 1], Kind::BF16, || vec![1; 6]);
        g.tensor("u", &[2], Kind::F32, || vec![2; 8]);
        let mut out = Vec::new();
        g.write(&mut out).unwrap();
        assert_eq!(&out[..8], b"GGUF\x03\0\0\0");
        assert_eq!(&out[8..24], [2u64.to_le_bytes(), 2u64.to_le_bytes()].concat());
        assert_eq!(&out[24..43], b"\x03\0\0\0\0\0\0\0a.b\x04\0\0\0\x07\0\0\0");
        // Key, array of strings, one string.
        assert_eq!(&out[43..52], b"\x01\0\0\0\0\0\0\0l");
        assert_eq!(&out[52..77], b"\x09\0\0\0\x08\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0x");
        // Two infos of 41 and 33 bytes, then data at multiples of 32.
        let data = (77usize + 41 + 33).next_multiple_of(32);
        assert_eq!(out.len(), data + 64);
        assert_eq!(&out[data..data + 8], [1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(&out[data + 32..data + 41], [2, 2, 2, 2, 2, 2, 2, 2, 0]);
    }

    #[test]
    fn a_tensor_of_the_wrong_size_is_an_error() {
        let mut g = Gguf::default();
        g.tensor("t", &[3], Kind::F32, || vec![1; 6]);
        assert!(g.write(&mut Vec::new()).unwrap_err().to_string().contains("t: 6 bytes, not 12"));
    }
}
