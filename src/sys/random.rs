//! Randomness from the kernel, for ids, secrets and nonces.

use crate::error::{Error, Result};

/// Fills `bytes` with random bytes that are fit for keys.
///
/// # Errors
/// [`crate::error::Kind::System`] if the kernel has no `getrandom`.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: the pointer and the length describe `rest`, which is exclusively ours for the call.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Error::system("getrandom", error));
                }
            }
        }
    }
    Ok(())
}

/// `N` random bytes.
///
/// # Errors
/// As [`fill`].
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ() {
        assert_ne!(bytes::<32>().unwrap(), bytes::<32>().unwrap());
        assert!(bytes::<0>().unwrap().is_empty());
    }
}
