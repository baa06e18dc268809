//! Encrypted connections (`RSCCL_ENCRYPT=1`): what follows the handshake goes in records, each encrypted and
//! authenticated.
//!
//! | offset | width | field |
//! |--------|-------|-------|
//! | 0 | 4 | length of the content, 1 to the connection's bound |
//! | 4 | length | content, encrypted |
//! | 4 + length | 16 | tag of length and content |
//!
//! The [handshake](super::auth) agrees on keys of its own for each connection and direction: X25519 with keys that both
//! sides forget, and HKDF over the key of the id and all that both have said. Whoever records a connection cannot read
//! it, even if the id's secret becomes known later. The n-th record of a direction has the nonce n, so a record that is
//! changed, repeated, left out or moved does not open. After [`RECORDS_A_KEY`] records the key is replaced. Of a
//! direction's secret HKDF derives the cipher's key and the secret that follows.
//!
//! Without the feature `encrypt` the [cipher] has no keys, and [`check_built`] says so.

#[cfg_attr(feature = "encrypt", path = "sealed/by_ring.rs")]
#[cfg_attr(not(feature = "encrypt"), path = "sealed/absent.rs")]
mod cipher;

use std::ops::Range;

use crate::error::{Error, Kind, Result};

pub(super) use cipher::{KeyHalf, has_fast_aes, share};

/// How records are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CipherKind {
    /// AES-128-GCM: where both processors have instructions for it.
    Aes128Gcm,
    /// ChaCha20-Poly1305: everywhere else.
    ChaCha20Poly1305,
}

/// Fails if this build cannot encrypt.
///
/// # Errors
/// [`Kind::InvalidUsage`], which names the feature.
pub(crate) fn check_built() -> Result<()> {
    if cipher::IS_BUILT { Ok(()) } else { Err(not_built()) }
}

fn not_built() -> Error {
    Error::invalid_usage(
        "RSCCL_ENCRYPT=1 (Config::with_encrypt): this build of rsccl cannot encrypt: build it with the cargo feature \
         `encrypt`",
    )
}

/// The keys of one connection, at one end.
#[derive(Debug)]
pub(crate) struct SealedEnds {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

impl SealedEnds {
    /// Of this side's `share` and the other side's public key; the two sides agree on `key` and `transcript`. Nothing
    /// else tells the two sides apart but who `begins`.
    ///
    /// # Errors
    /// [`Kind::Remote`] if the other side's key is none.
    pub(super) fn agree(
        share: KeyHalf,
        other: &[u8; PUBLIC_BYTES],
        (key, transcript): (&[u8; 32], &[u8]),
        (algorithm, begins): (CipherKind, bool),
    ) -> Result<SealedEnds> {
        let [there, back] = cipher::agree(share, other, key, transcript)?;
        let (out, into) = if begins { (there, back) } else { (back, there) };
        Ok(SealedEnds {
            sealer: Sealer(SealedDirection::new(algorithm, out)?),
            opener: Opener {
                direction: SealedDirection::new(algorithm, into)?,
                bytes: Vec::new(),
                opened: 0..0,
                end: 0,
            },
        })
    }
}

/// Both ends of a connection that a handshake might have agreed on.
#[cfg(test)]
#[cfg(feature = "encrypt")]
pub(crate) fn pair(cipher: CipherKind) -> [SealedEnds; 2] {
    let [(one, for_other), (other, for_one)] = [0; 2].map(|_| share().unwrap());
    let known = (&[7; 32], &b"said"[..]);
    let one = SealedEnds::agree(one, &for_one, known, (cipher, true)).unwrap();
    [one, SealedEnds::agree(other, &for_other, known, (cipher, false)).unwrap()]
}

/// One direction of a connection: its key, and how many records it has had.
struct SealedDirection {
    algorithm: CipherKind,
    secret: cipher::DirectionSecret,
    key: cipher::Key,
    count: u64,
}

impl SealedDirection {
    fn new(algorithm: CipherKind, secret: cipher::DirectionSecret) -> Result<SealedDirection> {
        let key = cipher::key(algorithm, &secret)?;
        Ok(SealedDirection { algorithm, secret, key, count: 0 })
    }

    /// The nonce of the next record, for which the key is the right one.
    fn nonce(&mut self) -> Result<[u8; 12]> {
        if self.count > 0 && self.count.is_multiple_of(RECORDS_A_KEY) {
            self.secret = cipher::next_secret(&self.secret)?;
            self.key = cipher::key(self.algorithm, &self.secret)?;
        }
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.count.to_le_bytes());
        // It would take centuries to wrap.
        self.count += 1;
        Ok(nonce)
    }
}

impl std::fmt::Debug for SealedDirection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedDirection({:?}, {} records)", self.algorithm, self.count)
    }
}

/// The end of a direction that encrypts.
#[derive(Debug)]
pub(crate) struct Sealer(SealedDirection);

impl Sealer {
    /// Appends to `out` a record with the first `most` bytes of `parts`, and returns how many these are; without any
    /// there is no record.
    ///
    /// # Errors
    /// Of the cipher, for content that no connection has.
    pub(crate) fn seal<'a>(
        &mut self,
        parts: impl IntoIterator<Item = &'a [u8]>,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        let content = start + LENGTH_BYTES;
        for part in parts {
            let left = most - (out.len() - content);
            out.extend_from_slice(&part[..part.len().min(left)]);
        }
        let taken = out.len() - content;
        if taken == 0 {
            out.truncate(start);
            return Ok(0);
        }
        let length = u32::try_from(taken).map_err(|_| Error::internal("a record of 4 GiB"))?.to_le_bytes();
        out[start..content].copy_from_slice(&length);
        let nonce = self.0.nonce()?;
        let tag = cipher::seal(&self.0.key, nonce, length, &mut out[content..])?;
        out.extend_from_slice(&tag);
        Ok(taken)
    }
}

/// The end of a direction that decrypts: what has come of records, and what of the last one has not been taken.
pub(crate) struct Opener {
    direction: SealedDirection,
    /// Content that was not taken, the tag behind it, then what has come of further records, to `end`.
    bytes: Vec<u8>,
    opened: Range<usize>,
    end: usize,
}

impl Opener {
    /// Where encrypted bytes go that are read next: at least `least`. No content may be left.
    pub(crate) fn room(&mut self, least: usize) -> &mut [u8] {
        self.room_of(least, least)
    }

    /// The same, of a memory for `most` bytes: what has come of the next record is moved to its front only where fewer
    /// than `least` bytes are left behind it.
    pub(crate) fn room_of(&mut self, least: usize, most: usize) -> &mut [u8] {
        debug_assert!(self.opened.is_empty(), "content would be lost");
        let start = self.opened.start;
        if start == self.end || self.bytes.len() < self.end + least {
            self.bytes.copy_within(start..self.end, 0);
            self.end -= start;
            self.opened = 0..0;
        }
        if self.bytes.len() < self.end + least {
            self.bytes.resize((self.end + least).max(most), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes have come into the room.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// The content that has not been taken.
    pub(crate) fn content(&self) -> &[u8] {
        &self.bytes[self.opened.clone()]
    }

    /// Takes so many bytes of the content. The memory of what is all taken is the next record's.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.opened.start += bytes;
        if self.opened.is_empty() {
            self.opened = self.opened.end + TAG_BYTES..self.opened.end + TAG_BYTES;
        }
    }

    /// Decrypts the next record, if all of it has come and all content was taken; false otherwise.
    ///
    /// # Errors
    /// [`Kind::Remote`] if its length is no allowed one (1 to `most`), or if it is not the record that the other side
    /// has sent next. Nothing can be read after that.
    pub(crate) fn open(&mut self, most: usize) -> Result<bool> {
        let start = self.opened.start;
        if !self.opened.is_empty() {
            return Ok(false);
        }
        let Some(length) = self.bytes[start..self.end].first_chunk::<LENGTH_BYTES>().copied() else { return Ok(false) };
        let bytes = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if bytes == 0 || bytes > most {
            return Err(altered());
        }
        let content = start + LENGTH_BYTES;
        if self.end - content < bytes + TAG_BYTES {
            return Ok(false);
        }
        let nonce = self.direction.nonce()?;
        let record = &mut self.bytes[content..content + bytes + TAG_BYTES];
        cipher::open(&self.direction.key, nonce, length, record)?;
        self.opened = content..content + bytes;
        Ok(true)
    }

    /// Whether part of a record has come.
    pub(crate) fn is_midway(&self) -> bool {
        self.end > self.opened.end
    }

    /// Gives the memory back if nothing has come that was not taken: for connections of which there are many.
    pub(crate) fn rest(&mut self) {
        if self.opened.is_empty() && !self.is_midway() {
            (self.bytes, self.opened, self.end) = (Vec::new(), 0..0, 0);
        }
    }
}

/// Without the content, which is decrypted.
impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opener({:?}, content {:?} of {} bytes)", self.direction, self.opened, self.end)
    }
}

fn altered() -> Error {
    Error::new(
        Kind::Remote,
        "what came over the encrypted connection is not what was sent: a record was changed, repeated, left out or \
         moved",
    )
}

/// The bytes of a public key.
pub(super) const PUBLIC_BYTES: usize = 32;
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
/// What a record has besides its content.
pub(crate) const RECORD_OVERHEAD: usize = LENGTH_BYTES + TAG_BYTES;
/// Of 64 KiB each, so many records are 64 GiB: far below what one key of AES-GCM may encrypt.
const RECORDS_A_KEY: u64 = 1 << 20;

#[cfg(test)]
#[cfg(feature = "encrypt")]
mod tests;
