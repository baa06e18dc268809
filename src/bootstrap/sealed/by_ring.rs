//! The cipher by the crate `ring`, whose code is that of BoringSSL.

use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::SystemRandom;

use super::{CipherKind, PUBLIC_BYTES, TAG_BYTES, altered};
use crate::error::{Error, Kind, Result};
use crate::sys::cpu;

pub(super) const IS_BUILT: bool = true;

/// The secret half of a key pair that serves one connection.
pub(in crate::bootstrap) type KeyHalf = EphemeralPrivateKey;
/// A key for one direction.
pub(super) type Key = LessSafeKey;

/// The secret of one direction, of which its key and the next secret are derived. It lies in one place, which is wiped.
pub(super) struct DirectionSecret(pub(super) Box<[u8; 32]>);

impl Drop for DirectionSecret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Somebody might look: the zeros must be there.
        std::hint::black_box(&mut self.0);
    }
}

/// Whether the processor encrypts by AES-GCM faster than by anything else.
pub(in crate::bootstrap) fn has_fast_aes() -> bool {
    cpu::has_aes()
}

/// A new key pair: the public half goes to the other side.
pub(in crate::bootstrap) fn share() -> Result<(KeyHalf, [u8; PUBLIC_BYTES])> {
    let failed = |_| Error::new(Kind::System, "the system has no randomness for a key (RSCCL_ENCRYPT)");
    let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(failed)?;
    let public = private.compute_public_key().map_err(failed)?;
    let public = public.as_ref().try_into().map_err(|_| Error::internal("X25519 has keys of 32 bytes"))?;
    Ok((private, public))
}

/// The secrets of both directions, that of the side that connects first.
pub(super) fn agree(
    share: KeyHalf,
    other: &[u8; PUBLIC_BYTES],
    key: &[u8; 32],
    transcript: &[u8],
) -> Result<[DirectionSecret; 2]> {
    let other = UnparsedPublicKey::new(&X25519, other);
    let secrets = agree_ephemeral(share, &other, |shared| {
        let prk = Salt::new(HKDF_SHA256, key).extract(shared);
        Ok([derived(&prk, &[b"rsccl there", transcript])?, derived(&prk, &[b"rsccl back", transcript])?])
    });
    let none = "the other side of a connection has sent no key for the encryption (RSCCL_ENCRYPT)";
    secrets.map_err(|_| Error::new(Kind::Remote, none))?
}

/// The secret that follows one that has served.
pub(super) fn next_secret(secret: &DirectionSecret) -> Result<DirectionSecret> {
    derived(&Prk::new_less_safe(HKDF_SHA256, &*secret.0), &[b"rsccl next"])
}

fn derived(prk: &Prk, about: &[&[u8]]) -> Result<DirectionSecret> {
    let mut secret = DirectionSecret(Box::new([0; 32]));
    let filled = prk.expand(about, HKDF_SHA256).and_then(|all| all.fill(&mut *secret.0));
    filled.map_err(|_| Error::internal("HKDF yields 32 bytes"))?;
    Ok(secret)
}

/// The key of a direction while `secret` serves.
pub(super) fn key(algorithm: CipherKind, secret: &DirectionSecret) -> Result<Key> {
    let algorithm = match algorithm {
        CipherKind::Aes128Gcm => &AES_128_GCM,
        CipherKind::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    };
    let prk = Prk::new_less_safe(HKDF_SHA256, &*secret.0);
    let key = prk.expand(&[b"rsccl key"], algorithm).map(UnboundKey::from);
    Ok(LessSafeKey::new(key.map_err(|_| Error::internal("HKDF yields a key of the cipher's length"))?))
}

/// Encrypts `content` in place; yields its tag.
pub(super) fn seal(key: &Key, nonce: [u8; 12], length: [u8; 4], content: &mut [u8]) -> Result<[u8; TAG_BYTES]> {
    let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(length), content);
    let tag = tag.map_err(|_| Error::internal("a record is far shorter than a cipher's bound"))?;
    tag.as_ref().try_into().map_err(|_| Error::internal("both ciphers have tags of 16 bytes"))
}

/// Decrypts the content of `record`, behind which its tag stands, in place.
pub(super) fn open(key: &Key, nonce: [u8; 12], length: [u8; 4], record: &mut [u8]) -> Result<()> {
    let opened = key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(length), record);
    opened.map(drop).map_err(|_| altered())
}
