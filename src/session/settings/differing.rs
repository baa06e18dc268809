//! Which settings must be equal on all ranks, and in which of them two ranks differ.
//!
//! What one rank alone can say (`NCCL_P2P_READ_ENABLE`, a topology file, its processors) is told to the others, and all
//! come to the same; such settings may differ. What all ranks must know to do the same stands here: init compares a
//! hash of it, and where that differs the ranks exchange what they have and each fails with one sentence.

use std::fmt::Write as _;

use crate::config::{Config, VARIABLES, Variable};
use crate::error::{self, Result};
use crate::sync::primitive::Arc;
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// The settings that are equal on all ranks, as a rank has them.
#[derive(Debug, Clone, Default)]
pub(crate) struct EqualSettings(Arc<[EqualSetting]>);

/// What some variables bring about.
#[derive(Debug, Clone)]
struct EqualSetting {
    /// The values of the variables, as a user writes them; empty where the library chooses.
    written: Vec<(&'static str, String)>,
    /// A hash of what they bring about.
    effect: u64,
}

/// Variables, and what they bring about: ranks with other values may do the same.
pub(crate) type Effect = (&'static [&'static str], String);

impl EqualSettings {
    /// Of what the values of `config` bring about.
    pub(super) fn of(effects: impl IntoIterator<Item = Effect>, config: &Config) -> EqualSettings {
        let written = |name: &&'static str| (*name, variable(name).map_or_else(String::new, |it| it.shown(config)));
        let setting = |(names, effect): Effect| EqualSetting {
            written: names.iter().map(written).collect(),
            effect: hash(effect.as_bytes()),
        };
        EqualSettings(effects.into_iter().map(setting).collect())
    }

    /// A number that is equal on two ranks of which all these settings bring about the same.
    pub(crate) fn fingerprint(&self) -> u64 {
        let effects: Vec<u8> = self.0.iter().flat_map(|setting| setting.effect.to_le_bytes()).collect();
        hash(&effects)
    }

    /// What a rank tells the others where [fingerprints](EqualSettings::fingerprint) differ.
    pub(crate) fn told(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        for EqualSetting { written, effect } in &*self.0 {
            writer.u64(*effect);
            written.iter().for_each(|(_, value)| _ = writer.text(&error::shown(value)));
        }
        writer.finish()
    }

    /// In what `other` differs from this rank, in words, by what it has [told](EqualSettings::told); empty where that
    /// cannot be read.
    pub(crate) fn differing(&self, other: Rank, theirs: &[u8]) -> String {
        let mut reader = Reader::new(theirs, "a rank's settings");
        let mut text = String::new();
        for setting in &*self.0 {
            let Ok(differing) = setting.differing(other, &mut reader) else { return String::new() };
            for part in differing {
                let comma = if text.is_empty() { "" } else { ", " };
                // The filters share a variable.
                if !text.contains(&part) {
                    write!(text, "{comma}{part}").expect("a string takes any text");
                }
            }
        }
        text
    }
}

impl EqualSetting {
    fn differing(&self, other: Rank, theirs: &mut Reader<'_>) -> Result<Vec<String>> {
        let is_equal = theirs.u64()? == self.effect;
        let mut parts = Vec::new();
        for (name, mine) in &self.written {
            let (mine, theirs) = (error::shown(mine), theirs.text(MOST_TOLD_BYTES)?);
            if mine != theirs {
                let (mine, theirs) = (or_unset(&mine), or_unset(&theirs));
                parts.push(format!("{name} is {mine} on this rank and {theirs} on rank {other}"));
            }
        }
        Ok(match (is_equal, parts.is_empty()) {
            (true, _) => Vec::new(),
            (false, false) => parts,
            // As of another version of the library.
            (false, true) => self.written.iter().map(|(name, _)| (*name).to_owned()).collect(),
        })
    }
}

fn variable(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| variable.full_name() == name)
}

fn or_unset(value: &str) -> String {
    if value.is_empty() { "not set".to_owned() } else { value.escape_debug().to_string() }
}

fn hash(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place]))
}

/// Above what [`error::shown`] leaves of a value.
const MOST_TOLD_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::settings::Settings;

    fn equal(config: &Config) -> EqualSettings {
        Settings::read(config).unwrap().equal
    }

    #[test]
    fn what_differs_is_named() {
        let (mine, other) = (equal(&Config::default()), Rank::new(3));
        assert_eq!(mine.differing(other, &mine.told()), "");
        let mut config = Config::default().with_reproducible(true);
        config.buffer_bytes = Some(4 << 20);
        assert_eq!(
            mine.differing(other, &equal(&config).told()),
            "NCCL_BUFFSIZE is not set on this rank and 4194304 on rank 3, \
             RSCCL_REPRODUCIBLE is 0 on this rank and 1 on rank 3"
        );
        config = Config::default();
        config.algo = Some("Ring\u{1b}[31m".to_owned() + &"x".repeat(9000));
        let told = EqualSettings::of(Settings::read(&Config::default()).unwrap().effects(), &config).told();
        assert_eq!(mine.differing(other, &told), "", "it does the same");
        config.algo = Some("Ring;all_gather:^Direct".to_owned());
        let said = mine.differing(other, &equal(&config).told());
        assert_eq!(said, "NCCL_ALGO is not set on this rank and Ring;all_gather:^Direct on rank 3");
    }

    #[test]
    fn values_that_bring_about_the_same_do_not_differ() {
        let with = |name, value| equal(&Config::default().with_variable(name, value).unwrap());
        let [threads, each] = ["NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"].map(|name| with(name, "2"));
        assert_eq!(threads.fingerprint(), each.fingerprint());
        assert_eq!(with("RSCCL_STRICT_FILTERS", "1").fingerprint(), with("NCCL_ALGO", "").fingerprint());
        assert_ne!(threads.fingerprint(), with("NCCL_SOCKET_NTHREADS", "3").fingerprint());
        // In other words the same.
        for (one, other) in [
            (("NCCL_ALGO", "ring"), ("NCCL_ALGO", "Ring;all_gather:Ring")),
            (("NCCL_MIN_CTAS", "2"), ("NCCL_MIN_NCHANNELS", "2")),
            (("NCCL_P2P_LEVEL", "4"), ("NCCL_P2P_LEVEL", "sys")),
            (("NCCL_MAX_NCHANNELS", "64"), ("NCCL_MIN_NCHANNELS", "1")),
            (("RSCCL_COHORT", "joint"), ("NCCL_BUFFSIZE", "-1")),
        ] {
            let [mine, theirs] = [one, other].map(|(name, value)| with(name, value));
            assert_eq!(mine.fingerprint(), theirs.fingerprint(), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_build_that_cannot_encrypt_says_so() {
        let read = Settings::read(&Config::default().with_encrypt(crate::config::Encryption::On));
        assert_eq!(read.is_ok(), cfg!(feature = "encrypt"));
        if let Err(error) = read {
            assert_eq!(error.kind(), error::Kind::InvalidUsage);
            assert!(error.message().contains("RSCCL_ENCRYPT=1") && error.message().contains("feature `encrypt`"));
        }
    }

    /// Each name is one of the table, whose value is shown.
    #[test]
    fn the_variables_exist() {
        for (names, _) in Settings::read(&Config::default()).unwrap().effects() {
            assert!(names.iter().all(|name| variable(name).is_some()), "{names:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_differs_in_nothing() {
        let mine = equal(&Config::default());
        let told = mine.told();
        for bytes in [&b""[..], b"=", b"\xff\xfe=1\n", &told[..told.len() - 1], &[9; 7], &[255; 900]] {
            assert_eq!(mine.differing(Rank::new(1), bytes), "");
        }
        let mut odd = told;
        odd[0] ^= 1;
        odd[12] = 0x1b;
        assert_eq!(mine.differing(Rank::new(1), &odd), "NCCL_P2P_DISABLE is 0 on this rank and \\u{1b} on rank 1");
    }
}
