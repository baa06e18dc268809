//! The GPUs that the user lets this process use.

use super::environment::Environment;

/// The value of `CUDA_VISIBLE_DEVICES`, interpreted as CUDA does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VisibleDevices {
    /// The variable is not set: all GPUs of the host.
    All,
    /// These GPUs, in this order; none if the list is empty.
    Only(Vec<DeviceName>),
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceName {
    /// The index in CUDA's order of all GPUs.
    Index(u32),
    /// A UUID, or the beginning of one: `GPU-8932f937`.
    Uuid(String),
    /// A part of a GPU: `MIG-…`.
    Mig(String),
}

impl VisibleDevices {
    /// Reads the list from `environment`. It ends before the first entry that CUDA would not understand, such as `-1`.
    pub fn read(environment: &Environment) -> VisibleDevices {
        match environment.get(VARIABLE) {
            Ok(Some(text)) => VisibleDevices::parse(text),
            // Other variables count as unset if they are empty; but to CUDA an empty value is an empty list.
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
            // CUDA reads the digits at the beginning of an entry and ignores what follows them.
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
