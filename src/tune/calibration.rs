//! What things cost on these machines, as a file: `rsccl tune` writes it, communicators read it (`RSCCL_TUNE_FILE`).
//!
//! ```text
//! rsccl-tune 1
//! # What follows a "#" does not count.
//! flag_us = 0.12
//! net_bytes_per_us = 2800
//! hash = 5f1d0c0e6b7a8d21
//! ```
//! The first line is the format's name and version. Each further line is a constant: its name in [`Costs`] and a
//! decimal number; what is not named keeps its usual value. The hash is of all constants, named or not; a file without
//! that line is taken as it is. All ranks must read equal constants: they compare the hash.

use crate::error::{Error, Result, shown};
use crate::tune::Costs;

/// Measured costs and what tells them from others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// What things cost.
    pub costs: Costs,
    /// Equal exactly where all constants are; never 0.
    pub hash: u64,
}

/// A constant that a file may set.
struct Constant {
    name: &'static str,
    least: f64,
    most: f64,
    of: fn(&mut Costs) -> &mut f64,
}

/// From a nanosecond to a second.
const fn micros(name: &'static str, of: fn(&mut Costs) -> &mut f64) -> Constant {
    Constant { name, least: 1e-3, most: 1e6, of }
}

/// From a megabyte to ten terabytes in a second.
const fn rate(name: &'static str, of: fn(&mut Costs) -> &mut f64) -> Constant {
    Constant { name, least: 1.0, most: 1e7, of }
}

/// All constants, in the order of files.
const CONSTANTS: &[Constant] = &[
    micros("local_latency_us", |costs| &mut costs.local.latency_us),
    micros("shm_latency_us", |costs| &mut costs.shm.latency_us),
    micros("net_latency_us", |costs| &mut costs.net.latency_us),
    rate("net_bytes_per_us", |costs| &mut costs.net.bytes_per_us),
    micros("net_message_us", |costs| &mut costs.net_message_us),
    micros("flag_us", |costs| &mut costs.flag_us),
    rate("copy_bytes_per_us", |costs| &mut costs.copy_bytes_per_us),
    rate("cached_bytes_per_us", |costs| &mut costs.cached_bytes_per_us),
    rate("reduce_bytes_per_us", |costs| &mut costs.reduce_bytes_per_us),
];

impl Calibration {
    /// These costs.
    pub fn new(mut costs: Costs) -> Calibration {
        let hash = blake3::hash(lines(&mut costs).as_bytes());
        let hash = u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place]));
        Calibration { costs, hash: hash.max(1) }
    }

    /// The file.
    pub fn write(&self) -> String {
        let mut costs = self.costs;
        format!("{FIRST_LINE}\n{}hash = {:016x}\n", lines(&mut costs), self.hash)
    }

    /// Reads a file that is called `name`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] with file and line: another format or version, a line that is no
    /// constant, a name that is unknown or stands twice, a number that is none or out of its range, a hash that is not
    /// that of the constants.
    pub fn parse(name: &str, text: &str) -> Result<Calibration> {
        let wrong = |line: usize, what: &str| Error::invalid_argument(format!("{name}:{line}: {what}"));
        let mut lines = (1..).zip(text.lines());
        if lines.next().is_none_or(|(_, first)| first.trim_end() != FIRST_LINE) {
            return Err(wrong(
                1,
                &format!("the first line of a tuning file must be \"{FIRST_LINE}\"; `rsccl tune` writes one"),
            ));
        }
        let mut costs = Costs::default();
        let mut seen: Vec<&str> = Vec::new();
        let mut told = None;
        for (line, text) in lines {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let (key, value) = text
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .ok_or_else(|| wrong(line, "a line must be a name, \"=\" and a number"))?;
            if seen.contains(&key) {
                return Err(wrong(line, &format!("{} stands here for the second time", shown(key))));
            }
            seen.push(key);
            if key == "hash" {
                let digits = (value.len() == 16).then(|| u64::from_str_radix(value, 16).ok()).flatten();
                told = Some((line, digits.ok_or_else(|| wrong(line, "the hash must be 16 hexadecimal digits"))?));
                continue;
            }
            let constant = CONSTANTS.iter().find(|constant| constant.name == key).ok_or_else(|| {
                let known: Vec<&str> = CONSTANTS.iter().map(|constant| constant.name).collect();
                wrong(line, &format!("unknown constant {:?}; there are {} and hash", shown(key), known.join(", ")))
            })?;
            let Constant { least, most, .. } = constant;
            let number: Option<f64> = value.parse().ok().filter(|number| (*least..=*most).contains(number));
            let no_number = || format!("{key} must be a number from {least} to {most}, got {:?}", shown(value));
            *(constant.of)(&mut costs) = number.ok_or_else(|| wrong(line, &no_number()))?;
        }
        let read = Calibration::new(costs);
        match told {
            Some((line, told)) if told != read.hash => Err(wrong(
                line,
                &format!(
                    "the constants have the hash {:016x}, so the file was changed or cut short: run `rsccl tune` \
                     again, or leave this line out",
                    read.hash
                ),
            )),
            _ => Ok(read),
        }
    }
}

fn lines(costs: &mut Costs) -> String {
    CONSTANTS.iter().map(|constant| format!("{} = {}\n", constant.name, *(constant.of)(costs))).collect()
}

const FIRST_LINE: &str = "rsccl-tune 1";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let mut costs = Costs { flag_us: 0.123_456, copy_bytes_per_us: 11_000.5, ..Costs::default() };
        costs.net.latency_us = 7.25;
        let made = Calibration::new(costs);
        assert_eq!(Calibration::parse("x", &made.write()).unwrap(), made);
        assert_ne!(made.hash, Calibration::new(Costs::default()).hash);
        let some = Calibration::parse("x", "rsccl-tune 1\n# by hand\n\nflag_us = 0.5 # far\n").unwrap();
        assert_eq!(some.costs, Costs { flag_us: 0.5, ..Costs::default() });
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let usual = Calibration::new(Costs::default()).write();
        let cases = [
            ("", "t:1: the first line"),
            ("rsccl-tune 2\n", "t:1: the first line"),
            ("rsccl-tune 1\nflag_us 0.5\n", "t:2: a line must be"),
            ("rsccl-tune 1\n\nflags_us = 0.5\n", "t:3: unknown constant \"flags_us\"; there are local_latency_us, "),
            ("rsccl-tune 1\nflag_us = 0.5\nflag_us = 0.5\n", "t:3: flag_us stands here for the second time"),
            ("rsccl-tune 1\nflag_us = NaN\n", "t:2: flag_us must be a number from 0.001 to 1000000, got \"NaN\""),
            ("rsccl-tune 1\nnet_bytes_per_us = -1\n", "t:2: net_bytes_per_us must be a number from 1 to"),
            ("rsccl-tune 1\nhash = 12\n", "t:2: the hash must be 16 hexadecimal digits"),
            (&usual.replace("flag_us = 0.15", "flag_us = 0.16"), "t:11: the constants have the hash "),
        ];
        for (text, expected) in cases {
            let error = Calibration::parse("t", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(rsccl-tune 1\n)?[a-z_= .0-9#\n]{0,200}") {
            if let Ok(read) = Calibration::parse("t", &text) {
                prop_assert_eq!(Calibration::parse("t", &read.write()).unwrap(), read);
            }
        }
    }
}
