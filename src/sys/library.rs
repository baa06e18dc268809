//! Shared libraries that are loaded while the program runs, so that it runs without them too.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A loaded library. It is never closed: libraries of drivers start threads that must not lose their code.
#[derive(Debug, Clone, Copy)]
pub struct Library(*mut c_void);

// SAFETY: the handle is a number to the loader, whose calls any thread may make.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library of this name.
    ///
    /// # Errors
    /// What the loader says about a library that it does not find, or that does not load.
    pub fn open(name: &CStr) -> Result<Library, String> {
        // SAFETY: the name ends in a zero byte. Initialisers of the library run: it is the driver's own, found as the
        // system's administrator has set it up.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !library.is_null() {
            return Ok(Library(library));
        }
        // SAFETY: it takes nothing; the text is this thread's until its next call of the loader.
        let reason = unsafe { libc::dlerror() };
        if reason.is_null() {
            return Err(format!("{} cannot be loaded", name.to_string_lossy()));
        }
        // SAFETY: the loader's text ends in a zero byte.
        Err(unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned())
    }

    /// The library of this name if the process has loaded it already.
    pub fn loaded(name: &CStr) -> Option<Library> {
        // SAFETY: the name ends in a zero byte; nothing is loaded.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!library.is_null()).then_some(Library(library))
    }

    /// The function of a name, as `F`; `None` where the library lacks it.
    ///
    /// # Safety
    /// `F` is a pointer to a function of the type that the name has in this library.
    pub unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        // SAFETY: the library is open, and the name ends in a zero byte.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: the caller knows the type of the function.
        unsafe { as_function(address) }
    }

    /// Where what the library exports under a name lies: data, say. `None` where it lacks it.
    pub fn address(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the library is open, and the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.0, name.as_ptr()) })
    }

    /// As [`Library::function`], of one version of the name: a library may keep an older form of a function beside the
    /// newest, which a look-up by the name alone would give.
    ///
    /// # Safety
    /// `F` is a pointer to a function of the type that this version of the name has in this library.
    pub unsafe fn versioned_function<F: Copy>(self, name: &CStr, version: &CStr) -> Option<F> {
        // SAFETY: the library is open, and both texts end in a zero byte.
        let address = unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) };
        // SAFETY: the caller knows the type of the function.
        unsafe { as_function(address) }
    }
}

/// The function at an address, as `F`; `None` for null.
///
/// # Safety
/// `F` is a pointer to a function, of the type of the function at the address.
pub unsafe fn as_function<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    if address.is_null() {
        return None;
    }
    // SAFETY: on POSIX a function's address is a pointer of the same size, which the line above holds `F` to; its
    // type is the caller's word.
    Some(unsafe { (&raw const address).cast::<F>().read() })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_functions_that_are_not_there_are_told() {
        let missing = Library::open(c"librsccl-does-not-exist.so.7").unwrap_err();
        assert!(missing.contains("librsccl-does-not-exist.so.7"), "{missing}");
        assert!(Library::loaded(c"librsccl-does-not-exist.so.7").is_none() && Library::loaded(c"libc.so.6").is_some());
        let library = Library::open(c"libc.so.6").unwrap();
        // SAFETY: the type of `getpid`.
        let pid = unsafe { library.function::<extern "C" fn() -> i32>(c"getpid") }.unwrap();
        assert_eq!(u32::try_from(pid()).unwrap(), std::process::id());
        // SAFETY: there is no such function.
        assert!(unsafe { library.function::<extern "C" fn()>(c"no_such_function") }.is_none());
        // SAFETY: there is no such version.
        assert!(unsafe { library.versioned_function::<extern "C" fn()>(c"getpid", c"GLIBC_0.1") }.is_none());
    }
}
