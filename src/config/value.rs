//! The types of variables: which texts they allow, and the typed values of those texts.

use std::path::PathBuf;
use std::time::Duration;

use super::debug::{DebugLevel, DebugLevels, SubsystemSet};
use super::launch::StoreAddress;
use super::secret::{MAX_SECRET_BYTES, REDACTED, Secret};
use super::socket::{Encryption, PortRange, SocketFamily};

/// The type of a variable, with its range or its list of values.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Kind {
    /// Yes or no.
    Flag,
    /// A whole number.
    Count {
        /// The smallest allowed.
        least: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A number of bytes; K, M and G are powers of 1024.
    Bytes {
        /// The smallest allowed.
        least: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A length of time, written as a whole number of `unit`.
    Time {
        /// The unit of the number.
        unit: TimeUnit,
        /// The smallest allowed, in `unit`.
        least: u64,
        /// The largest allowed, in `unit`.
        most: u64,
    },
    /// How long something may last at most, in milliseconds; 0: for ever, which is [`Duration::MAX`].
    Deadline {
        /// The shortest allowed.
        least: u64,
        /// The longest allowed.
        most: u64,
    },
    /// One of these words, in any case.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// A file's name.
    Path,
    /// Text that is never printed.
    Secret,
    /// A set of subsystems.
    Subsystems,
    /// A set of log levels.
    Levels,
    /// `tcp://host:port` or `file:///path`.
    Store,
    /// The first and the last of a range of ports: `50000-50100`.
    Ports,
}

/// The unit of a [`Kind::Time`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Thousandths of a second.
    Milliseconds,
    /// Millionths of a second.
    Microseconds,
}

/// A parsed value, before it is stored in its field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// The library chooses.
    Automatic,
    Flag(bool),
    Number(u64),
    Time(Duration),
    Text(String),
    Secret(Secret),
}

impl Kind {
    /// Its name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Flag => "flag",
            Kind::Count { .. } => "count",
            Kind::Bytes { .. } => "bytes",
            Kind::Time { unit: TimeUnit::Seconds, .. } => "s",
            Kind::Time { unit: TimeUnit::Milliseconds, .. } | Kind::Deadline { .. } => "ms",
            Kind::Time { unit: TimeUnit::Microseconds, .. } => "us",
            Kind::Choice(_) => "choice",
            Kind::Text => "text",
            Kind::Path => "path",
            Kind::Secret => "secret",
            Kind::Subsystems | Kind::Levels => "list",
            Kind::Store => "address",
            Kind::Ports => "ports",
        }
    }

    /// What is allowed, in words.
    pub fn allowed(&self) -> String {
        match self {
            Kind::Flag => "1 or 0 (also true, false, yes, no, on, off)".to_owned(),
            Kind::Count { least, most } => format!("a whole number from {least} to {most}"),
            Kind::Bytes { least, most } => {
                format!("bytes from {least} to {most}, also with K, M or G (powers of 1024)")
            }
            Kind::Time { unit: TimeUnit::Seconds, least, most } => format!("{least} to {most} seconds"),
            Kind::Time { unit: TimeUnit::Milliseconds, least, most } => format!("{least} to {most} milliseconds"),
            Kind::Time { unit: TimeUnit::Microseconds, least, most } => format!("{least} to {most} microseconds"),
            Kind::Deadline { least, most } => format!("{least} to {most} milliseconds, or 0 to wait for ever"),
            Kind::Choice(words) => words.join(", "),
            Kind::Text | Kind::Path => format!("text of at most {MAX_TEXT_BYTES} bytes"),
            Kind::Secret => format!("1 to {MAX_SECRET_BYTES} bytes"),
            Kind::Subsystems => SubsystemSet::allowed(),
            Kind::Levels => {
                format!("a list of {}, ALL, NONE; with ^ before it, all but those", DebugLevel::NAMES.join(", "))
            }
            Kind::Store => StoreAddress::ALLOWED.to_owned(),
            Kind::Ports => PortRange::ALLOWED.to_owned(),
        }
    }

    /// Whether -1 stands for what the library chooses, where it may choose.
    pub(super) fn takes_automatic(&self) -> bool {
        matches!(self, Kind::Flag | Kind::Count { .. } | Kind::Bytes { .. } | Kind::Time { .. })
    }

    /// Whether an empty text is a value: a list of nothing. Other variables count as unset.
    pub(super) fn takes_empty(&self) -> bool {
        matches!(self, Kind::Subsystems)
    }

    /// Parses `text`, or says what is wrong with it. If the variable is `automatic`, `-1` lets the library choose, as
    /// in NCCL.
    pub(super) fn parse(&self, text: &str, automatic: bool) -> Result<Value, String> {
        // Text keeps its white space: a time format may end in a blank.
        let text = if matches!(self, Kind::Text) { text } else { text.trim() };
        if automatic && self.takes_automatic() && text == "-1" {
            return Ok(Value::Automatic);
        }
        let value = match self {
            Kind::Flag => Value::Flag(flag(text).ok_or("neither yes nor no")?),
            Kind::Count { .. } => Value::Number(whole(text)?),
            Kind::Bytes { .. } => Value::Number(bytes(text)?),
            Kind::Time { unit, .. } => Value::Time(unit.times(whole(text)?)),
            Kind::Deadline { .. } => match whole(text)? {
                0 => Value::Time(Duration::MAX),
                number => Value::Time(TimeUnit::Milliseconds.times(number)),
            },
            Kind::Choice(words) => {
                let known = words.iter().find(|word| word.eq_ignore_ascii_case(text));
                Value::Text((*known.ok_or("no such choice")?).to_owned())
            }
            Kind::Secret => Value::Secret(Secret::new(text)),
            Kind::Text | Kind::Path | Kind::Subsystems | Kind::Levels | Kind::Store | Kind::Ports => {
                Value::Text(text.to_owned())
            }
        };
        self.check(&value)?;
        Ok(value)
    }

    /// Fails if `value` is out of range, with a sentence that says what is wrong.
    pub(super) fn check(&self, value: &Value) -> Result<(), String> {
        match (self, value) {
            (_, Value::Automatic) => Ok(()),
            (Kind::Count { least, most } | Kind::Bytes { least, most }, Value::Number(number)) => {
                within(number, least, most)
            }
            (Kind::Time { unit, least, most }, Value::Time(time)) => {
                within(time, &unit.times(*least), &unit.times(*most))
            }
            (Kind::Deadline { .. }, Value::Time(Duration::MAX)) => Ok(()),
            (Kind::Deadline { least, most }, Value::Time(time)) => {
                let times = |number: &u64| TimeUnit::Milliseconds.times(*number);
                within(time, &times(least), &times(most))
            }
            (Kind::Secret, Value::Secret(secret)) => within(&(secret.expose().len() as u64), &1, &MAX_SECRET_BYTES),
            (Kind::Subsystems, Value::Text(text)) => SubsystemSet::parse(text).map(|_| ()),
            (Kind::Levels, Value::Text(text)) => DebugLevels::parse(text).map(|_| ()),
            (Kind::Store, Value::Text(text)) => StoreAddress::parse(text).map(|_| ()),
            (Kind::Ports, Value::Text(text)) => PortRange::parse(text).map(|_| ()),
            (Kind::Choice(words), Value::Text(text)) => words
                .iter()
                .any(|word| word.eq_ignore_ascii_case(text))
                .then_some(())
                .ok_or("no such choice".to_owned()),
            (_, Value::Text(text)) if text.len() > MAX_TEXT_BYTES => Err("too long".to_owned()),
            _ => Ok(()),
        }
    }

    /// The value as the variable would be written.
    pub(super) fn show(&self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Automatic) => String::new(),
            (_, Value::Flag(flag)) => u8::from(*flag).to_string(),
            (_, Value::Number(number)) => number.to_string(),
            (Kind::Time { unit: TimeUnit::Microseconds, .. }, Value::Time(time)) => time.as_micros().to_string(),
            (Kind::Time { unit: TimeUnit::Seconds, .. }, Value::Time(time)) => time.as_secs().to_string(),
            (Kind::Deadline { .. }, Value::Time(Duration::MAX)) => "0".to_owned(),
            (_, Value::Time(time)) => time.as_millis().to_string(),
            (_, Value::Text(text)) => text.clone(),
            (_, Value::Secret(_)) => REDACTED.to_owned(),
        }
    }
}

impl TimeUnit {
    fn times(self, number: u64) -> Duration {
        match self {
            TimeUnit::Seconds => Duration::from_secs(number),
            TimeUnit::Milliseconds => Duration::from_millis(number),
            TimeUnit::Microseconds => Duration::from_micros(number),
        }
    }
}

fn within<T: PartialOrd>(value: &T, least: &T, most: &T) -> Result<(), String> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err("out of range".to_owned()),
    }
}

fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A whole number, decimal or with 0x.
fn whole(text: &str) -> Result<u64, String> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let digits_only = !digits.is_empty() && digits.bytes().all(|byte| char::from(byte).is_digit(radix));
    if !digits_only {
        return Err("not a whole number".to_owned());
    }
    u64::from_str_radix(digits, radix).map_err(|_| "too large a number".to_owned())
}

/// Parses a number of bytes: `4194304`, `4M`, `4MiB`.
fn bytes(text: &str) -> Result<u64, String> {
    let upper = text.to_ascii_uppercase();
    let stem = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match stem.as_bytes().last() {
        Some(b'K') => (&stem[..stem.len() - 1], 10),
        Some(b'M') => (&stem[..stem.len() - 1], 20),
        Some(b'G') => (&stem[..stem.len() - 1], 30),
        // In "0x1B" the B is a digit: only a B after K, M or G is part of a suffix.
        _ => (text, 0),
    };
    whole(&digits.to_ascii_lowercase())?.checked_mul(1 << shift).ok_or("too large a number".to_owned())
}

/// A type that a field of the configuration may have.
pub(super) trait Field: Sized {
    /// Whether the library can choose the field's value.
    const AUTOMATIC: bool = false;
    fn value(&self) -> Value;
    /// `None` if the value is of another type; the registry's test shows that this never happens.
    fn from_value(value: &Value) -> Option<Self>;
}

impl<T: Field> Field for Option<T> {
    const AUTOMATIC: bool = true;
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Automatic, T::value)
    }
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Automatic => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

macro_rules! field {
    ($type:ty, |$this:ident| $value:expr, $pattern:pat => $back:expr) => {
        impl Field for $type {
            fn value(&self) -> Value {
                let $this = self;
                $value
            }
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    $pattern => $back,
                    _ => None,
                }
            }
        }
    };
}

field!(bool, |this| Value::Flag(*this), Value::Flag(flag) => Some(*flag));
field!(u64, |this| Value::Number(*this), Value::Number(number) => Some(*number));
field!(u32, |this| Value::Number(u64::from(*this)), Value::Number(number) => u32::try_from(*number).ok());
field!(Duration, |this| Value::Time(*this), Value::Time(time) => Some(*time));
field!(String, |this| Value::Text(this.clone()), Value::Text(text) => Some(text.clone()));
field!(PathBuf, |this| Value::Text(this.display().to_string()), Value::Text(text) => Some(PathBuf::from(text)));
field!(Secret, |this| Value::Secret(this.clone()), Value::Secret(secret) => Some(secret.clone()));
field!(SocketFamily, |this| Value::Text(this.name().to_owned()), Value::Text(text) => SocketFamily::from_name(text));
field!(Encryption, |this| Value::Text(this.name().to_owned()), Value::Text(text) => Encryption::from_name(text));
field!(DebugLevel, |this| Value::Text(this.name().to_owned()), Value::Text(text) => DebugLevel::from_name(text));
field!(DebugLevels, |this| Value::Text(this.to_string()), Value::Text(text) => DebugLevels::parse(text).ok());
field!(SubsystemSet, |this| Value::Text(this.to_string()), Value::Text(text) => SubsystemSet::parse(text).ok());
field!(PortRange, |this| Value::Text(this.to_string()), Value::Text(text) => PortRange::parse(text).ok());
field!(StoreAddress, |this| Value::Text(this.to_string()), Value::Text(text) => StoreAddress::parse(text).ok());

/// The most bytes of a text value.
pub(super) const MAX_TEXT_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_bytes() {
        assert_eq!(bytes("4194304"), Ok(4 << 20));
        assert_eq!(bytes("4M"), Ok(4 << 20));
        assert_eq!(bytes("16kib"), Ok(16 << 10));
        assert_eq!(bytes("1GB"), Ok(1 << 30));
        assert_eq!(bytes("0x1B"), Ok(27));
        for wrong in ["", "M", "4MM", "-4", "4 M", "99999999999G", "4T", "+4", "B"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_kind_refuses_what_it_must() {
        let count = Kind::Count { least: 1, most: 8 };
        assert_eq!(count.parse(" 8 ", false), Ok(Value::Number(8)));
        assert_eq!(count.parse("-1", true), Ok(Value::Automatic));
        for wrong in ["0", "9", "-1", "x", "1.5", "18446744073709551616"] {
            assert!(count.parse(wrong, false).is_err(), "{wrong}");
        }
        assert_eq!(Kind::Flag.parse("ON", false), Ok(Value::Flag(true)));
        assert!(Kind::Flag.parse("2", false).is_err());
        assert_eq!(Kind::Choice(&["Socket"]).parse("socket", true), Ok(Value::Text("Socket".to_owned())));
        assert!(Kind::Choice(&["Socket"]).parse("IB", true).is_err());
        assert!(Kind::Text.parse(&"x".repeat(5000), false).is_err());
        let time = Kind::Time { unit: TimeUnit::Milliseconds, least: 1, most: 10 };
        assert_eq!(time.parse("10", false), Ok(Value::Time(Duration::from_millis(10))));
        assert!(time.parse("11", false).is_err());
        assert!(time.parse("10s", false).is_err());
        let time = Kind::Time { unit: TimeUnit::Seconds, least: 2, most: 60 };
        assert_eq!(time.parse("10", false).map(|value| time.show(&value)), Ok("10".to_owned()));
        assert!(Kind::Levels.parse("LOUD", false).is_err());
        assert!(Kind::Store.parse("ftp://x", true).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,40}") {
            let kinds = [
                Kind::Flag, Kind::Count { least: 0, most: 9 }, Kind::Bytes { least: 0, most: u64::MAX },
                Kind::Time { unit: TimeUnit::Microseconds, least: 0, most: u64::MAX }, Kind::Choice(&["A"]), Kind::Text,
                Kind::Path, Kind::Secret, Kind::Subsystems, Kind::Levels, Kind::Store,
            ];
            for kind in kinds {
                if let Ok(value) = kind.parse(&text, true) {
                    prop_assert!(kind.check(&value).is_ok());
                    let _shown = kind.show(&value);
                }
            }
        }
    }
}
