//! The encoding of data that leaves the process: fields of fixed width, little endian, one by one, and frames on a
//! stream.
//!
//! [`Writer`] builds a message, [`Reader`] decodes one; a reader never reads past the end and never trusts a length.
//! [`frame`] splits a byte stream into frames. This module does no I/O.

#![forbid(unsafe_code)]

pub mod frame;

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::{Error, Result};

/// The longest beginning of `text` with whole characters and at most `most` bytes.
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Builds a message field by field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// An empty message.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// An empty message with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer(Vec::with_capacity(bytes))
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Writer {
        self.raw(&[value])
    }

    /// Appends 2 bytes.
    pub fn u16(&mut self, value: u16) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends 4 bytes.
    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends 8 bytes.
    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends 8 bytes.
    pub fn i64(&mut self, value: i64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends bytes; the reader must know how many.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a 32-bit length and the bytes.
    ///
    /// # Panics
    /// For 4 GiB and more: every caller bounds its data far below that.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        let length = u32::try_from(bytes.len()).expect("messages are bounded far below 4 GiB");
        self.u32(length).raw(bytes)
    }

    /// Appends a length and the text.
    pub fn text(&mut self, text: &str) -> &mut Writer {
        self.bytes(text.as_bytes())
    }

    /// Appends a socket address: family (4 or 6), port, scope, 16 address bytes; [`ADDRESS_BYTES`] in all.
    pub fn address(&mut self, address: &SocketAddr) -> &mut Writer {
        let (family, scope, octets) = match address {
            SocketAddr::V4(v4) => (4, 0, v4.ip().to_ipv6_mapped().octets()),
            SocketAddr::V6(v6) => (6, v6.scope_id(), v6.ip().octets()),
        };
        self.u8(family).u16(address.port()).u32(scope).raw(&octets)
    }

    /// The message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// The message so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of an encoded address.
pub const ADDRESS_BYTES: usize = 1 + 2 + 4 + 16;

/// Decodes a message field by field.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`; errors call them `what` ("a check-in").
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    /// Takes `count` bytes.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] if fewer are left; so do all methods here.
    pub fn raw(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.malformed(&format!("{count} bytes wanted, {} left", self.rest.len()))),
        }
    }

    /// Takes `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.raw(N)?;
        Ok(std::array::from_fn(|i| taken[i]))
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Takes 2 bytes.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Takes 4 bytes.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes 8 bytes.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes 8 bytes.
    pub fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Takes a length, at most `most`, and that many bytes.
    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8]> {
        let length = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if length > most {
            return Err(self.malformed(&format!("a field of {length} bytes where at most {most} are allowed")));
        }
        self.raw(length)
    }

    /// Takes a length, at most `most`, and a text. Invalid UTF-8 becomes replacement characters.
    pub fn text(&mut self, most: usize) -> Result<String> {
        Ok(String::from_utf8_lossy(self.bytes(most)?).into_owned())
    }

    /// Takes an address that [`Writer::address`] wrote.
    pub fn address(&mut self) -> Result<SocketAddr> {
        let family = self.u8()?;
        let port = self.u16()?;
        let scope = self.u32()?;
        let ip = Ipv6Addr::from(self.array::<16>()?);
        match (family, ip.to_ipv4_mapped()) {
            (4, Some(v4)) => Ok(SocketAddr::V4(SocketAddrV4::new(v4, port))),
            (6, _) => Ok(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))),
            _ => Err(self.malformed(&format!("an address of family {family}"))),
        }
    }

    /// The remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that the message has ended.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] if bytes are left over.
    pub fn finish(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed(&format!("{} bytes left over", self.rest.len()))) }
    }

    /// The error for a field with an impossible value.
    pub fn malformed(&self, why: &str) -> Error {
        Error::new(crate::error::Kind::Remote, format!("{} is malformed: {why}", self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_order() {
        let v4: SocketAddr = "10.1.2.3:4567".parse().unwrap();
        let v6 = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 7));
        let mut writer = Writer::new();
        writer.u8(1).u16(2).u32(3).u64(4).i64(-5).bytes(b"six").text("sept").address(&v4).address(&v6).raw(&[8, 9]);
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes, "a test");
        assert_eq!((reader.u8().unwrap(), reader.u16().unwrap(), reader.u32().unwrap()), (1, 2, 3));
        assert_eq!((reader.u64().unwrap(), reader.i64().unwrap()), (4, -5));
        assert_eq!((reader.bytes(3).unwrap(), reader.text(4).unwrap()), (&b"six"[..], "sept".to_owned()));
        assert_eq!((reader.address().unwrap(), reader.address().unwrap()), (v4, v6));
        assert_eq!(reader.array().unwrap(), [8, 9]);
        reader.finish().unwrap();
    }

    #[test]
    fn short_long_and_oversized_messages_are_errors() {
        assert_eq!(
            Reader::new(&[1], "a test").u16().unwrap_err().to_string(),
            "a test is malformed: 2 bytes wanted, 1 left"
        );
        assert!(Reader::new(&[1], "a test").finish().is_err());
        assert!(Reader::new(&[5, 0, 0, 0, 1, 2, 3, 4, 5], "a test").bytes(4).is_err());
        assert!(Reader::new(&[255; 4], "a test").bytes(usize::MAX).is_err());
        assert!(Reader::new(&[7; ADDRESS_BYTES], "a test").address().is_err());
    }
}
