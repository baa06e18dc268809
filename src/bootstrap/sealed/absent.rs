//! The cipher of a build without the feature `encrypt`: it has no key, so nothing is ever encrypted, or sent as if.

pub(in crate::bootstrap) use std::convert::Infallible as KeyHalf;
pub(super) use std::convert::Infallible as Key;
pub(super) use std::convert::Infallible as DirectionSecret;

use super::{CipherKind, PUBLIC_BYTES, not_built};
use crate::error::Result;

pub(super) const IS_BUILT: bool = false;

pub(in crate::bootstrap) fn has_fast_aes() -> bool {
    false
}

pub(in crate::bootstrap) fn share() -> Result<(KeyHalf, [u8; PUBLIC_BYTES])> {
    Err(not_built())
}

pub(super) fn agree(share: KeyHalf, _: &[u8; PUBLIC_BYTES], _: &[u8; 32], _: &[u8]) -> Result<[DirectionSecret; 2]> {
    match share {}
}

pub(super) fn next_secret(secret: &DirectionSecret) -> Result<DirectionSecret> {
    match *secret {}
}

pub(super) fn key(_: CipherKind, secret: &DirectionSecret) -> Result<Key> {
    match *secret {}
}

pub(super) fn seal(key: &Key, _: [u8; 12], _: [u8; 4], _: &mut [u8]) -> Result<[u8; 16]> {
    match *key {}
}

pub(super) fn open(key: &Key, _: [u8; 12], _: [u8; 4], _: &mut [u8]) -> Result<()> {
    match *key {}
}
