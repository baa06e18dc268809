//! Which GPUs the user lets this process see.

use super::environment::Environment;

/// What `CUDA_VISIBLE_DEVICES` says, as CUDA reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VisibleDevices {
    /// It is not set: all of the host.
    All,
    /// These, in this order; none where the list is empty.
    Only(Vec<DeviceName>),
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceName {
    /// The place in CUDA's order of all GPUs.
    Index(u32),
    /// A UUID, or the beginning of one: `GPU-8932f937`.
    Uuid(String),
    /// A part of a GPU: `MIG-…`.
    Mig(String),
}

impl VisibleDevices {
    /// Reads it from `environment`. The list ends at the first entry that CUDA would not know, such as `-1`; what stands before
    /// counts.
    pub fn read(environment: &Environment) -> VisibleDevices {
        match environment.get(VARIABLE) {
            Ok(Some(text)) => VisibleDevices::parse(text),
            // An empty value counts as not set elsewhere; to CUDA it is a list of no GPU.
            Ok(None) if !environment.names(VARIABLE).any(|name| name == VARIABLE) => VisibleDevices::All,
            Ok(None) | Err(_) => VisibleDevices::Only(Vec::new()),
        }
    }

    fn parse(text: &str) -> VisibleDevices {
        let names = text.split(',').map_while(|entry| DeviceName::parse(entry.trim())).take(MAX_ENTRIES);
        VisibleDevices::Only(names.collect())
    }
}

impl DeviceName {
    fn parse(entry: &str) -> Option<DeviceName> {
        if entry.len() > MAX_ENTRY_BYTES {
            None
        } else if entry.starts_with("GPU-") {
            Some(DeviceName::Uuid(entry.to_owned()))
        } else if entry.starts_with("MIG-") {
            Some(DeviceName::Mig(entry.to_owned()))
        } else {
            // CUDA reads the digits that an entry begins with, and nothing behind them.
            let digits = entry.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
            digits.parse().ok().map(DeviceName::Index)
        }
    }
}

const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// More GPUs than any host has.
const MAX_ENTRIES: usize = 256;
/// The old names of MIG devices are the longest: a UUID and two numbers.
const MAX_ENTRY_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> VisibleDevices {
        VisibleDevices::read(&Environment::of([(VARIABLE, value)]))
    }

    #[test]
    fn the_list_ends_where_cuda_would_stop() {
        let index = |numbers: &[u32]| VisibleDevices::Only(numbers.iter().copied().map(DeviceName::Index).collect());
        assert_eq!(VisibleDevices::read(&Environment::of([("CUDA_VISIBLE_DEVICES_OLD", "1")])), VisibleDevices::All);
        assert_eq!(read(""), index(&[]));
        assert_eq!(read("-1"), index(&[]));
        assert_eq!(read("NoDevFiles"), index(&[]));
        assert_eq!(read("2, 0"), index(&[2, 0]));
        assert_eq!(read("1,-1,0"), index(&[1]));
        assert_eq!(read("1,,0"), index(&[1]));
        assert_eq!(read("99999999999"), index(&[]));
        assert_eq!(read("1st, 0"), index(&[1, 0]));
        let uuids = vec![
            DeviceName::Uuid("GPU-8932f937".to_owned()),
            DeviceName::Mig("MIG-3eb87630".to_owned()),
            DeviceName::Index(3),
        ];
        assert_eq!(read("GPU-8932f937,MIG-3eb87630,3,x"), VisibleDevices::Only(uuids));
        assert_eq!(read(&format!("GPU-{}", "0".repeat(100))), index(&[]));
        assert_eq!(read(&"0,".repeat(9999)), index(&[0; MAX_ENTRIES]));
    }
}
