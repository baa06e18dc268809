//! How an entry point is made: its pointers are types that check themselves, its result is a code, it is in the table that
//! `cuGetProcAddress` searches, and before it runs the faults on demand are asked.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use vcuda::driver::{self, CUresult, Outcome};
use vcuda::{fault, schedule};

/// A place that the caller gives for a result.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Stores the result; a null place is `INVALID_VALUE`.
    pub(crate) fn put(self, value: T) -> Outcome {
        self.check()?;
        // SAFETY: not null, and the caller's documented duty is that it points at a place for a value of this type.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores the result where there is a place.
    pub(crate) fn put_if(self, value: T) {
        // A place that is not there needs nothing.
        let _ = self.put(value);
    }

    /// `INVALID_VALUE` for a null place.
    pub(crate) fn check(self) -> Outcome {
        if self.0.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Stores several values in a row.
    pub(crate) fn put_all(self, values: impl IntoIterator<Item = T>) -> Outcome {
        self.check()?;
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: the caller's documented duty is that there is room for all.
            unsafe { self.0.wrapping_add(index).write_unaligned(value) };
        }
        Ok(())
    }

    /// The value that is there already.
    pub(crate) fn as_in(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// The same place for a value of another type.
    pub(crate) fn at<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// Values that the caller gives.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// The first value; a null pointer is `INVALID_VALUE`.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        self.get_at(0)
    }

    /// A value of several in a row.
    pub(crate) fn get_at(self, index: usize) -> Outcome<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller's documented duty is that so many values are there.
        Ok(unsafe { self.0.wrapping_add(index).read_unaligned() })
    }

    /// Several values in a row; none needs no pointer.
    pub(crate) fn get_all(self, count: usize) -> Outcome<Vec<T>>
    where
        T: Copy,
    {
        (0..count).map(|index| self.get_at(index)).collect()
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// No values.
    pub(crate) fn none() -> In<T> {
        In(std::ptr::null())
    }

    /// Values at an address that stood among others.
    pub(crate) fn from_address(address: usize) -> In<T> {
        In(std::ptr::with_exposed_provenance(address))
    }

    /// The same values as a text.
    pub(crate) fn text(self) -> Text {
        Text(self.0.cast())
    }

    /// The same values as another type.
    pub(crate) fn at<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

/// A text that the caller gives.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text; a null pointer, or bytes that are no UTF-8, are `INVALID_VALUE`.
    pub(crate) fn get<'a>(self) -> Outcome<&'a str> {
        if self.0.is_null() {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller's documented duty is that it ends with a zero byte and stays for the call.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| CUresult::INVALID_VALUE)
    }
}

/// An address of code or of anything, as C's `void *`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) usize);

/// A row of the table of entry points.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The exported name.
    pub(crate) name: &'static str,
    /// The version of CUDA in which it came.
    pub(crate) since: i32,
    /// Its code.
    pub(crate) code: Code,
}

/// The address of an entry point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code(pub(crate) *const ());

// SAFETY: an address of code of this library, which is never unloaded.
unsafe impl Sync for Code {}

/// Makes entry points: `name(since) (arguments) { body }`, whose body gives back an `Outcome`.
macro_rules! entries {
    ($($name:ident($since:literal) ($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> i32 {
                crate::entry::call(stringify!($name), move || -> vcuda::driver::Outcome { $body })
            }
        )*
        pub(crate) static ENTRIES: &[crate::entry::Entry] = &[$(crate::entry::Entry {
            name: stringify!($name),
            since: $since,
            code: crate::entry::Code($name as *const ()),
        }),*];
    };
}
pub(crate) use entries;

/// Runs an entry point's body: faults first, no panic gets out, the code comes back as a number.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Outcome) -> i32 {
    let begun = Instant::now();
    let code = run(name, body);
    let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    USE.set(Use { calls: USE.get().calls + 1, nanoseconds: USE.get().nanoseconds.saturating_add(took) });
    if driver::prints_calls() {
        eprintln!("vcuda: {name}: {code}");
    }
    code.0
}

/// What a thread has asked of the driver.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Use {
    /// Its calls that have returned.
    calls: u64,
    /// How long they took together.
    nanoseconds: u64,
}

thread_local! {
    static USE: Cell<Use> = const { Cell::new(Use { calls: 0, nanoseconds: 0 }) };
}

/// What the calling thread has asked of the driver so far: a program that times its own work takes it away. No driver but
/// this one has it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn vcudaThreadUse() -> Use {
    USE.get()
}

fn run(name: &'static str, body: impl FnOnce() -> Outcome) -> CUresult {
    schedule::enter_call(name);
    if let Some(code) = fault::check(name) {
        return CUresult(code);
    }
    if schedule::is_in_host_function() && !name.starts_with("cuGetError") && !name.starts_with("cuGetProc") {
        return CUresult::NOT_PERMITTED;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            eprintln!("vcuda: {name} panicked: this is a bug in vcuda");
            CUresult::UNKNOWN
        }
    }
}
