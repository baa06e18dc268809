//! The values of the `NCCL_DEBUG` family: levels and subsystems.

use std::fmt;

use crate::error::shown;

/// How much is logged; each level includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DebugLevel {
    /// One line with the version.
    Version,
    /// Warnings and errors.
    Warn,
    /// Also how communicators are set up.
    Info,
    /// Also every event.
    Trace,
}

impl DebugLevel {
    /// The names that `NCCL_DEBUG` takes.
    pub const NAMES: &'static [&'static str] = &["VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE"];

    /// The level with this name, in any case. NCCL's ATTN equals WARN here, and its ABORT equals INFO.
    pub fn from_name(name: &str) -> Option<DebugLevel> {
        match name.to_ascii_uppercase().as_str() {
            "VERSION" => Some(DebugLevel::Version),
            "WARN" | "ATTN" => Some(DebugLevel::Warn),
            "INFO" | "ABORT" => Some(DebugLevel::Info),
            "TRACE" => Some(DebugLevel::Trace),
            _ => None,
        }
    }

    /// Its name in variables and log lines.
    pub const fn name(self) -> &'static str {
        match self {
            DebugLevel::Version => "VERSION",
            DebugLevel::Warn => "WARN",
            DebugLevel::Info => "INFO",
            DebugLevel::Trace => "TRACE",
        }
    }
}

/// The levels whose lines begin with the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugLevels(u8);

impl DebugLevels {
    /// No level.
    pub const NONE: DebugLevels = DebugLevels(0);

    /// Warnings only, as NCCL has it.
    pub const WARN: DebugLevels = DebugLevels(1 << DebugLevel::Warn as u8);

    /// Whether the set contains `level`.
    pub const fn contains(self, level: DebugLevel) -> bool {
        self.0 & (1 << level as u8) != 0
    }

    /// Parses `WARN,INFO`, `^TRACE` (all but), `ALL` or `NONE`.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<DebugLevels, String> {
        const ALL: u64 = 0b1111;
        let bit = |name: &str| match name.to_ascii_uppercase().as_str() {
            "ALL" => Some(ALL),
            "NONE" => Some(0),
            _ => DebugLevel::from_name(name).map(|level| 1 << level as u8),
        };
        let mask = parse_set(text, ALL, bit).map_err(|name| format!("there is no level {:?}", shown(name)))?;
        Ok(DebugLevels(u8::try_from(mask & ALL).unwrap_or(u8::MAX)))
    }
}

impl fmt::Display for DebugLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = [DebugLevel::Version, DebugLevel::Warn, DebugLevel::Info, DebugLevel::Trace];
        let named = levels.into_iter().filter(|level| self.contains(*level)).map(DebugLevel::name);
        write_list(f, named)
    }
}

macro_rules! subsystems {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $target:literal;)+) => {
        /// A part of the library that logs under its own name. The names are NCCL's; some parts do not log yet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Subsystem { $($(#[$doc])* $variant,)+ }

        impl Subsystem {
            /// All of them, in order.
            pub const ALL: &'static [Subsystem] = &[$(Subsystem::$variant),+];

            /// Its name in `NCCL_DEBUG_SUBSYS`.
            pub const fn name(self) -> &'static str {
                match self { $(Subsystem::$variant => $name,)+ }
            }

            /// The target of its `tracing` events.
            pub const fn target(self) -> &'static str {
                match self { $(Subsystem::$variant => $target,)+ }
            }
        }
    };
}

subsystems! {
    /// Communicators: their beginning and end.
    Init = "INIT", "rsccl::init";
    /// Collective calls.
    Coll = "COLL", "rsccl::coll";
    /// The local transport.
    P2p = "P2P", "rsccl::p2p";
    /// Shared memory.
    Shm = "SHM", "rsccl::shm";
    /// The network.
    Net = "NET", "rsccl::net";
    /// Topology and channels.
    Graph = "GRAPH", "rsccl::graph";
    /// Choice of algorithm and protocol.
    Tuning = "TUNING", "rsccl::tuning";
    /// Variables and configuration files.
    Env = "ENV", "rsccl::env";
    /// Memory.
    Alloc = "ALLOC", "rsccl::alloc";
    /// API calls.
    Call = "CALL", "rsccl::call";
    /// The proxy of device memory; nothing logs here.
    Proxy = "PROXY", "rsccl::proxy";
    /// NVLink SHARP; nothing logs here.
    Nvls = "NVLS", "rsccl::nvls";
    /// The control connections.
    Bootstrap = "BOOTSTRAP", "rsccl::bootstrap";
    /// Registered buffers.
    Reg = "REG", "rsccl::reg";
    /// Measurement; nothing logs here.
    Profile = "PROFILE", "rsccl::profile";
    /// Faults and their survivors.
    Ras = "RAS", "rsccl::ras";
    /// Host memory; nothing logs here.
    AllocHost = "ALLOC_HOST", "rsccl::alloc_host";
    /// The end of communicators; nothing logs here, but in INIT.
    Destroy = "DESTROY", "rsccl::destroy";
}

impl Subsystem {
    /// Whether nothing logs here: a name that NCCL has, and no event of this library.
    pub(crate) fn is_silent(self) -> bool {
        use Subsystem::{AllocHost, Destroy, Nvls, Profile, Proxy};
        matches!(self, AllocHost | Destroy | Nvls | Profile | Proxy)
    }

    /// The subsystem with this name, in any case.
    pub fn from_name(name: &str) -> Option<Subsystem> {
        Subsystem::ALL.iter().copied().find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// The subsystem whose events have this target, or a target below it.
    pub fn from_target(target: &str) -> Option<Subsystem> {
        let mut parts = target.split("::");
        let (crate_name, part) = (parts.next()?, parts.next()?);
        let known = |known: &Subsystem| known.target().strip_prefix("rsccl::") == Some(part);
        (crate_name == "rsccl").then(|| Subsystem::ALL.iter().copied().find(known)).flatten()
    }
}

/// A set of subsystems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubsystemSet(u32);

impl SubsystemSet {
    /// Every subsystem.
    pub const ALL: SubsystemSet = SubsystemSet(u32::MAX >> (u32::BITS - COUNT));

    /// The subsystems that `NCCL_DEBUG=INFO` shows by default.
    pub const USUAL: SubsystemSet =
        SubsystemSet(1 << Subsystem::Init as u8 | 1 << Subsystem::Bootstrap as u8 | 1 << Subsystem::Env as u8);

    /// Whether `subsystem` is in the set.
    pub const fn contains(self, subsystem: Subsystem) -> bool {
        self.0 & (1 << subsystem as u8) != 0
    }

    /// Parses `INIT,COLL`, `^NET` (all but), `ALL`.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<SubsystemSet, String> {
        let bit = |name: &str| match name {
            _ if name.eq_ignore_ascii_case("ALL") => Some(u64::from(SubsystemSet::ALL.0)),
            _ if name.eq_ignore_ascii_case("NONE") => Some(0),
            _ => Subsystem::from_name(name).map(|subsystem| 1 << subsystem as u8),
        };
        let mask = parse_set(text, u64::from(SubsystemSet::ALL.0), bit)
            .map_err(|name| format!("there is no subsystem {:?}", shown(name)))?;
        Ok(SubsystemSet(u32::try_from(mask).unwrap_or(u32::MAX)))
    }

    /// What [`SubsystemSet::parse`] takes, in words.
    pub fn allowed() -> String {
        let names: Vec<&str> = Subsystem::ALL.iter().map(|known| known.name()).collect();
        format!("a list of {}, ALL; with ^ before it, all but those", names.join(", "))
    }
}

impl fmt::Display for SubsystemSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == SubsystemSet::ALL {
            return f.write_str("ALL");
        }
        write_list(f, Subsystem::ALL.iter().filter(|known| self.contains(**known)).map(|known| known.name()))
    }
}

/// Parses a comma-separated list, or with `^` before it all names but those, into a set of bits. The error is the
/// unknown name.
fn parse_set(text: &str, all: u64, bit: impl Fn(&str) -> Option<u64>) -> Result<u64, &str> {
    let (inverted, list) = match text.trim().strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let mut mask = 0;
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        mask |= bit(name).ok_or(name)?;
    }
    Ok(if inverted { all & !mask } else { mask })
}

fn write_list<'a>(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = &'a str>) -> fmt::Result {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { f.write_str("NONE") } else { f.write_str(&names.join(",")) }
}

const COUNT: u32 = 18;
const _: () = assert!(Subsystem::ALL.len() == COUNT as usize, "one bit for each subsystem");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_their_inverse() {
        let set = SubsystemSet::parse("init, Coll").unwrap();
        assert!(set.contains(Subsystem::Init) && set.contains(Subsystem::Coll) && !set.contains(Subsystem::Env));
        assert_eq!(set.to_string(), "INIT,COLL");
        let inverse = SubsystemSet::parse("^INIT,COLL").unwrap();
        assert!(Subsystem::ALL.iter().all(|known| set.contains(*known) != inverse.contains(*known)));
        assert_eq!(SubsystemSet::parse("ALL").unwrap(), SubsystemSet::ALL);
        assert_eq!(SubsystemSet::parse("^ALL").unwrap().to_string(), "NONE");
        assert_eq!(SubsystemSet::USUAL.to_string(), "INIT,ENV,BOOTSTRAP");
        assert!(SubsystemSet::parse("INIT,COL").unwrap_err().contains("\"COL\""));
    }

    #[test]
    fn targets_lead_to_their_subsystem() {
        for known in Subsystem::ALL {
            assert_eq!(Subsystem::from_target(known.target()), Some(*known));
        }
        assert_eq!(Subsystem::from_target("rsccl::net::socket"), Some(Subsystem::Net));
        assert_eq!(Subsystem::from_target("rsccl"), None);
        assert_eq!(Subsystem::from_target("other::net"), None);
    }

    #[test]
    fn levels_hold_those_before_them() {
        assert!(DebugLevel::Trace > DebugLevel::Info && DebugLevel::Info > DebugLevel::Warn);
        for name in DebugLevel::NAMES {
            assert!(DebugLevel::from_name(&name.to_lowercase()).is_some());
        }
        assert_eq!(DebugLevels::parse("WARN").unwrap(), DebugLevels::WARN);
        assert_eq!(DebugLevels::parse("^trace").unwrap().to_string(), "VERSION,WARN,INFO");
        assert!(DebugLevels::parse("LOUD").is_err());
    }
}
