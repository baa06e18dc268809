//! What a handshake says of encryption. The side that connects asks for it in its hello, by flags and a public key; the
//! challenge has a cipher and the other side's key, or zeros.
//!
//! A root and a store do as they are asked, so that every rank can say which setting it has. A rank that is asked for
//! anything but what its own settings say answers with a difference, and nothing more is said.

use crate::bootstrap::sealed::{self, CipherKind, KeyHalf, PUBLIC_BYTES, SealedEnds};
use crate::config::Encryption;
use crate::error::{Error, Kind, Result};
use crate::wire::Reader;

/// What the side that connects asks for.
pub(super) struct KeyOffer {
    share: Option<KeyHalf>,
    pub(super) flags: u16,
    pub(super) public: [u8; PUBLIC_BYTES],
}

impl std::fmt::Debug for KeyOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyOffer({:#x})", self.flags)
    }
}

impl KeyOffer {
    pub(super) fn new(encryption: Encryption) -> Result<KeyOffer> {
        if encryption == Encryption::Off {
            return Ok(KeyOffer { share: None, flags: 0, public: [0; PUBLIC_BYTES] });
        }
        let (share, public) = sealed::share()?;
        let flags = if takes_aes(encryption) { ENCRYPTED | AES } else { ENCRYPTED };
        Ok(KeyOffer { share: Some(share), flags, public })
    }

    /// The keys, by what the challenge says of encryption. `known` is the key and all that both sides have said.
    pub(super) fn agree(&mut self, said: &[u8], known: (&[u8; 32], &[u8])) -> Result<Option<SealedEnds>> {
        let mut reader = Reader::new(said, "a challenge");
        let (code, public) = (reader.u8()?, reader.array()?);
        match (self.share.take(), cipher(code)) {
            (None, None) if code == NO_CIPHER => Ok(None),
            (Some(share), Some(cipher)) => SealedEnds::agree(share, &public, known, (cipher, true)).map(Some),
            _ => {
                let text = "the other side of a connection does not encrypt as it was asked (RSCCL_ENCRYPT)";
                Err(Error::new(Kind::Remote, text))
            }
        }
    }
}

/// What the side that answers finds in a hello.
#[derive(Debug)]
pub(super) enum Demand {
    Plain,
    Sealed(CipherKind, [u8; PUBLIC_BYTES]),
    /// It cannot be met, for this reason.
    Differs(u8),
}

impl Demand {
    /// By this side's setting, and whether it follows the other side's.
    pub(super) fn of((ours, follows): (Encryption, bool), flags: u16, public: [u8; PUBLIC_BYTES]) -> Demand {
        let is_asked = flags & ENCRYPTED != 0;
        if !is_asked && (follows || ours == Encryption::Off) {
            return Demand::Plain;
        }
        if is_asked && sealed::check_built().is_err() {
            return Demand::Differs(NOT_BUILT);
        }
        if !is_asked || (ours == Encryption::Off && !follows) {
            return Demand::Differs(OTHER_SETTING);
        }
        let is_aes = flags & AES != 0 && takes_aes(ours);
        Demand::Sealed(if is_aes { CipherKind::Aes128Gcm } else { CipherKind::ChaCha20Poly1305 }, public)
    }
}

/// This side's part of a challenge.
pub(super) struct KeyAnswer {
    agreement: Option<(KeyHalf, [u8; PUBLIC_BYTES], CipherKind)>,
    pub(super) code: u8,
    pub(super) public: [u8; PUBLIC_BYTES],
}

impl std::fmt::Debug for KeyAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyAnswer({:#x})", self.code)
    }
}

impl KeyAnswer {
    pub(super) fn plain() -> KeyAnswer {
        KeyAnswer { agreement: None, code: NO_CIPHER, public: [0; PUBLIC_BYTES] }
    }

    pub(super) fn sealed(cipher: CipherKind, theirs: [u8; PUBLIC_BYTES]) -> Result<KeyAnswer> {
        let (share, public) = sealed::share()?;
        let code = match cipher {
            CipherKind::Aes128Gcm => AES_128_GCM,
            CipherKind::ChaCha20Poly1305 => CHACHA20_POLY1305,
        };
        Ok(KeyAnswer { agreement: Some((share, theirs, cipher)), code, public })
    }

    /// The keys, once all has been said that `known` holds beside the key.
    pub(super) fn agree(self, known: (&[u8; 32], &[u8])) -> Result<Option<SealedEnds>> {
        let agreed =
            self.agreement.map(|(share, theirs, kind)| SealedEnds::agree(share, &theirs, known, (kind, false)));
        agreed.transpose()
    }
}

/// The error of the side that asked, for the reason of a difference.
pub(super) fn difference(ours: Encryption, reason: u8) -> Error {
    let ours = ours.name();
    Error::mismatch(match reason {
        NOT_BUILT => format!(
            "RSCCL_ENCRYPT is {ours} on this rank, and the other end's build of rsccl cannot encrypt: build it with \
             the cargo feature `encrypt`"
        ),
        _ => format!("RSCCL_ENCRYPT is {ours} on this rank and something else at the other end of a connection"),
    })
}

fn takes_aes(encryption: Encryption) -> bool {
    encryption != Encryption::ChaCha20 && sealed::has_fast_aes()
}

fn cipher(code: u8) -> Option<CipherKind> {
    match code {
        AES_128_GCM => Some(CipherKind::Aes128Gcm),
        CHACHA20_POLY1305 => Some(CipherKind::ChaCha20Poly1305),
        _ => None,
    }
}

/// Of the hello: the connection is to be encrypted.
const ENCRYPTED: u16 = 1;
/// Of the hello: this side takes AES-GCM.
const AES: u16 = 2;
/// The ciphers of a challenge.
const NO_CIPHER: u8 = 0;
const AES_128_GCM: u8 = 1;
const CHACHA20_POLY1305: u8 = 2;
/// The reasons of a difference.
const OTHER_SETTING: u8 = 0;
const NOT_BUILT: u8 = 1;
