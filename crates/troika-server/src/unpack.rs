//! Bodies that clients compress.

use std::io::{self, Read};

use axum::http::StatusCode;
use axum::http::header::{CONTENT_ENCODING, HeaderMap};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::FrameDecoderError;

use crate::problem::Problem;

/// The codings of a body, the last one first.
///
/// # Errors
/// One of them is not read.
pub fn codings(headers: &HeaderMap) -> Result<Vec<String>, Problem> {
    let given = headers.get_all(CONTENT_ENCODING).iter().map(|h| h.to_str().unwrap_or("?"));
    let given = given.collect::<Vec<_>>().join(",").to_ascii_lowercase();
    let names = given.rsplit(',').map(str::trim).filter(|name| !matches!(*name, "" | "identity"));
    let names: Vec<String> = names.map(str::to_string).collect();
    if names.iter().all(|name| matches!(&**name, "gzip" | "x-gzip" | "deflate" | "zstd")) {
        return Ok(names);
    }
    let why =
        "this Content-Encoding is not read; send the body as it is, or in gzip, deflate or zstd";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why))
}

/// A body without its coding; `None`: it has more than `most` bytes.
///
/// # Errors
/// It is not of that coding.
pub fn unpack(coding: &str, mut packed: &[u8], most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    let end = most as u64 + 1;
    match coding {
        "deflate" => ZlibDecoder::new(packed).take(end).read_to_end(&mut body)?,
        "zstd" => loop {
            // There may be several frames.
            let frame = match StreamingDecoder::new(&mut packed) {
                Ok(frame) => frame,
                // It holds as much as it looks back.
                Err(FrameDecoderError::WindowSizeTooBig { .. }) => return Ok(None),
                Err(e) => return Err(io::Error::other(e)),
            };
            frame.take(end - body.len() as u64).read_to_end(&mut body)?;
            if packed.is_empty() || body.len() > most {
                break body.len();
            }
        },
        _ => MultiGzDecoder::new(packed).take(end).read_to_end(&mut body)?,
    };
    Ok((body.len() <= most).then_some(body))
}
