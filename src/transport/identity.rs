//! Who this process is to its peers: which host, which process.

use crate::error::Result;
use crate::sys::fork::PerProcess;
use crate::sys::{host, random};
use crate::transport::socket_folder::SocketFolder;

/// A number that is equal on two ranks that can share memory: a hash of the host's name and boot, or of `NCCL_HOSTID`
/// in their place, and of the network namespace, since shared memory is handed over by sockets that end there. With a
/// folder for these sockets, of the folder in place of name and namespace: two pods of one host have their own of both.
///
/// # Errors
/// [`crate::error::Kind::System`] where the system has no host name, or no descriptor is left to read who it is.
pub fn host_id(chosen: Option<&str>, folder: Option<SocketFolder>) -> Result<u64> {
    let mut hasher = blake3::Hasher::new();
    let boot = if chosen.is_none() { host::known_boot_id()? } else { None };
    let name = match (chosen, folder, &boot) {
        (Some(chosen), _, _) => chosen.to_owned(),
        (None, Some(_), Some(_)) => String::new(),
        (None, _, _) => host::hostname()?,
    };
    let space = match folder {
        Some(folder) => format!("{:?}", folder.identity()).into(),
        None => std::fs::read_link("/proc/self/ns/net").unwrap_or_default(),
    };
    let boot = boot.unwrap_or_default();
    for part in [name.as_bytes(), boot.as_bytes(), space.as_os_str().as_encoded_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let hash = hasher.finalize();
    Ok(u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place])))
}

/// A number that is equal on two ranks which mean the same process by one number: a hash of the boot and the process
/// namespace. 0 where the system does not tell.
pub fn process_space() -> u64 {
    let (Ok(Some(boot)), Ok(namespace)) = (host::known_boot_id(), std::fs::read_link("/proc/self/ns/pid")) else {
        return 0;
    };
    let hash = blake3::hash(format!("rsccl processes {boot} {}", namespace.display()).as_bytes());
    u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place]))
}

/// A random number that all threads of this process share: unlike a process id, it is not the same in two containers. A
/// forked child has one of its own.
///
/// # Errors
/// [`crate::error::Kind::System`] where the kernel has no randomness.
pub fn process_token() -> Result<u64> {
    token().copied()
}

/// The number, at the address where other processes read it to know this one again.
///
/// # Errors
/// As [`process_token`].
pub(super) fn token() -> Result<&'static u64> {
    static TOKEN: PerProcess<u64> = PerProcess::new();
    TOKEN.get_or_try_init(|| Ok(u64::from_le_bytes(random::bytes()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_id_is_stable_and_a_chosen_one_sets_hosts_apart() {
        assert_eq!(host_id(None, None).unwrap(), host_id(None, None).unwrap());
        assert_ne!(host_id(None, None).unwrap(), host_id(Some("rack 2"), None).unwrap());
        let folder = SocketFolder::at(std::path::Path::new("/")).unwrap();
        assert_ne!(host_id(None, None).unwrap(), host_id(None, Some(folder)).unwrap());
        assert_eq!(process_token().unwrap(), process_token().unwrap());
    }

    /// Regression: forked workers had their parent's token, and took each other for its threads.
    #[test]
    #[cfg(not(loom))]
    fn a_forked_child_has_a_token_of_its_own() {
        let mine = process_token().unwrap();
        assert!(crate::sys::fork::in_child(|| process_token().is_ok_and(|own| own != mine)));
        assert_eq!(process_token().unwrap(), mine);
    }
}
