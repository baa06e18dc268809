//! libibverbs, loaded while the program runs: its functions, each as a method that yields an object or a refusal.
//!
//! The library is never closed: drivers of cards are loaded with it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};

use crate::log;
use crate::sys::library::Library;
use crate::transport::verbs::abi::{
    IBV_ACCESS_LOCAL_WRITE, IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvGidEntry,
    IbvMr, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr,
};
use crate::transport::verbs::gids::{GidKind, PortGid};
use crate::transport::verbs::verdicts::{EAGAIN, needs_fork_init};

/// A call that the library or the device has refused, with its code of `errno`; 0 where it gave none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VerbsRefusal {
    pub(super) call: &'static str,
    pub(super) code: i32,
}

macro_rules! functions {
    ($($field:ident: $symbol:literal as $version:literal, ($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions of a loaded library.
        #[derive(Debug, Clone, Copy)]
        pub(super) struct VerbsLibrary {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl VerbsLibrary {
            /// The functions of `library`.
            ///
            /// # Errors
            /// The one that it lacks.
            fn of(library: Library) -> Result<VerbsLibrary, String> {
                Ok(VerbsLibrary {
                    $(
                        // SAFETY: the field has the type that the headers give this version of the function.
                        $field: unsafe { library.versioned_function($symbol, $version) }
                            .ok_or_else(|| lacks($symbol, $version))?,
                    )+
                })
            }
        }
    };
}

functions! {
    fork_init: c"ibv_fork_init" as c"IBVERBS_1.1", () -> c_int;
    get_device_list: c"ibv_get_device_list" as c"IBVERBS_1.1", (*mut c_int) -> *mut *mut IbvDevice;
    free_device_list: c"ibv_free_device_list" as c"IBVERBS_1.1", (*mut *mut IbvDevice);
    get_device_name: c"ibv_get_device_name" as c"IBVERBS_1.1", (*mut IbvDevice) -> *const c_char;
    open_device: c"ibv_open_device" as c"IBVERBS_1.1", (*mut IbvDevice) -> *mut IbvContext;
    close_device: c"ibv_close_device" as c"IBVERBS_1.1", (*mut IbvContext) -> c_int;
    query_device: c"ibv_query_device" as c"IBVERBS_1.1", (*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
    query_port: c"ibv_query_port" as c"IBVERBS_1.1", (*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
    query_gid: c"_ibv_query_gid_ex" as c"IBVERBS_1.11",
        (*mut IbvContext, u32, u32, *mut IbvGidEntry, u32, usize) -> c_int;
    alloc_pd: c"ibv_alloc_pd" as c"IBVERBS_1.1", (*mut IbvContext) -> *mut IbvPd;
    dealloc_pd: c"ibv_dealloc_pd" as c"IBVERBS_1.1", (*mut IbvPd) -> c_int;
    reg_mr: c"ibv_reg_mr" as c"IBVERBS_1.1", (*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
    dereg_mr: c"ibv_dereg_mr" as c"IBVERBS_1.1", (*mut IbvMr) -> c_int;
    create_channel: c"ibv_create_comp_channel" as c"IBVERBS_1.0", (*mut IbvContext) -> *mut IbvCompChannel;
    destroy_channel: c"ibv_destroy_comp_channel" as c"IBVERBS_1.0", (*mut IbvCompChannel) -> c_int;
    create_cq: c"ibv_create_cq" as c"IBVERBS_1.1",
        (*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
    destroy_cq: c"ibv_destroy_cq" as c"IBVERBS_1.1", (*mut IbvCq) -> c_int;
    get_cq_event: c"ibv_get_cq_event" as c"IBVERBS_1.1",
        (*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
    ack_cq_events: c"ibv_ack_cq_events" as c"IBVERBS_1.1", (*mut IbvCq, u32);
    create_qp: c"ibv_create_qp" as c"IBVERBS_1.1", (*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
    modify_qp: c"ibv_modify_qp" as c"IBVERBS_1.1", (*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp" as c"IBVERBS_1.1", (*mut IbvQp) -> c_int;
    get_async_event: c"ibv_get_async_event" as c"IBVERBS_1.1", (*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
    ack_async_event: c"ibv_ack_async_event" as c"IBVERBS_1.1", (*mut IbvAsyncEvent);
    status_text: c"ibv_wc_status_str" as c"IBVERBS_1.1", (u32) -> *const c_char;
}

fn lacks(symbol: &CStr, version: &CStr) -> String {
    let [symbol, version] = [symbol, version].map(|text| text.to_string_lossy());
    format!("it has no {symbol}@{version}: rdma-core 32 or later is needed")
}

/// A pointer that a call has given.
fn given<T>(call: &'static str, object: *mut T) -> Result<NonNull<T>, VerbsRefusal> {
    NonNull::new(object).ok_or_else(|| VerbsRefusal { call, code: last_code() })
}

/// The outcome of a call that gives a code, or -1 and leaves the code to `errno`.
fn checked(call: &'static str, code: c_int) -> Result<(), VerbsRefusal> {
    match code {
        0 => Ok(()),
        -1 => Err(VerbsRefusal { call, code: last_code() }),
        code => Err(VerbsRefusal { call, code: code.wrapping_abs() }),
    }
}

fn last_code() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl VerbsLibrary {
    /// Loads the library of this name, or at this path.
    ///
    /// # Errors
    /// What the loader says, or what the library lacks.
    pub(super) fn load(name: &CStr) -> Result<VerbsLibrary, String> {
        let opened = Library::open(name)?;
        let library = VerbsLibrary::of(opened)?;
        // SAFETY: the type that the headers give this function, which releases since 2021 have.
        let ask: Option<unsafe extern "C" fn() -> c_int> =
            unsafe { opened.versioned_function(c"ibv_is_fork_initialized", c"IBVERBS_1.13") };
        // SAFETY: it takes nothing.
        let answer = ask.map(|ask| unsafe { ask() });
        // Before anything is opened: on kernels before 5.12 a fork would take queues from under the device. Where it
        // is too late, since the program has used verbs before, the program has decided about that.
        if needs_fork_init(answer) {
            // SAFETY: it takes nothing.
            let code = unsafe { (library.fork_init)() };
            if code != 0 {
                log::info!(Net, "NET/IB : ibv_fork_init gives {code}: a program that forks may lose its connections");
            }
        }
        Ok(library)
    }

    /// Opens the device of this name; `None` where the library does not know it.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn open(self, name: &str) -> Result<Option<NonNull<IbvContext>>, VerbsRefusal> {
        let mut count = 0;
        // SAFETY: it writes one number.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        let list = given("ibv_get_device_list", list)?;
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has so many entries, and lives until it is freed below.
        let devices = unsafe { std::slice::from_raw_parts(list.as_ptr(), count) };
        let device = devices.iter().find(|device| self.name(**device).as_deref() == Some(name));
        // SAFETY: an entry of the list.
        let context = device.map(|device| given("ibv_open_device", unsafe { (self.open_device)(*device) }));
        // SAFETY: the list, once. An open device stays.
        unsafe { (self.free_device_list)(list.as_ptr()) };
        context.transpose()
    }

    fn name(self, device: *mut IbvDevice) -> Option<String> {
        // SAFETY: an entry of a list that has not been freed.
        let name = unsafe { (self.get_device_name)(device) };
        if name.is_null() {
            return None;
        }
        // SAFETY: names end in a zero byte and live as long as the list.
        Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// What a completion's status means, with its number.
    pub(super) fn words_of_status(self, status: u32) -> String {
        // SAFETY: it takes any number, and gives a text that stays.
        let text = unsafe { (self.status_text)(status) };
        // SAFETY: a text ends in a zero byte, and stays.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        format!("{} (status {status})", text.unwrap_or_else(|| "no words".to_owned()))
    }
}

/// Methods whose objects are open, and are used by one thread at a time.
impl VerbsLibrary {
    /// # Safety
    /// `context` is open.
    pub(super) unsafe fn device_attributes(
        self,
        context: NonNull<IbvContext>,
    ) -> Result<Box<IbvDeviceAttr>, VerbsRefusal> {
        // SAFETY: numbers, for which zero is a value.
        let mut attributes: Box<IbvDeviceAttr> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: the caller's word; there is room for more than the structure of any release.
        let code = unsafe { (self.query_device)(context.as_ptr(), &raw mut *attributes) };
        checked("ibv_query_device", code).map(|()| attributes)
    }

    /// # Safety
    /// `context` is open.
    pub(super) unsafe fn port_attributes(
        self,
        context: NonNull<IbvContext>,
        port: u8,
    ) -> Result<IbvPortAttr, VerbsRefusal> {
        // SAFETY: numbers, for which zero is a value.
        let mut attributes: IbvPortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the caller's word; there is room for more than the structure of any release.
        let code = unsafe { (self.query_port)(context.as_ptr(), port, &raw mut attributes) };
        checked("ibv_query_port", code).map(|()| attributes)
    }

    /// The entries of a port's table of GIDs that are there, of the first `count` places. Places without an entry, and
    /// those that belong to another network namespace, are refused by the kernel.
    ///
    /// # Safety
    /// `context` is open.
    pub(super) unsafe fn gids(self, context: NonNull<IbvContext>, port: u8, count: u32) -> Vec<PortGid> {
        let entry = |index| {
            // SAFETY: numbers, for which zero is a value.
            let mut entry: IbvGidEntry = unsafe { std::mem::zeroed() };
            let (place, size) = (&raw mut entry, size_of::<IbvGidEntry>());
            // SAFETY: the caller's word; an entry of the size that is told.
            let code = unsafe { (self.query_gid)(context.as_ptr(), u32::from(port), index, place, 0, size) };
            let kind = GidKind::of(entry.gid_type)?;
            let gid = entry.gid.map(u64::to_ne_bytes).as_flattened().try_into().ok()?;
            (code == 0).then_some(PortGid { index: u8::try_from(index).ok()?, gid, kind })
        };
        (0..count).filter_map(entry).collect()
    }

    /// # Safety
    /// `context` is open.
    pub(super) unsafe fn open_domain(self, context: NonNull<IbvContext>) -> Result<NonNull<IbvPd>, VerbsRefusal> {
        // SAFETY: the caller's word.
        given("ibv_alloc_pd", unsafe { (self.alloc_pd)(context.as_ptr()) })
    }

    /// # Safety
    /// `context` is open.
    pub(super) unsafe fn open_channel(
        self,
        context: NonNull<IbvContext>,
    ) -> Result<NonNull<IbvCompChannel>, VerbsRefusal> {
        // SAFETY: the caller's word.
        given("ibv_create_comp_channel", unsafe { (self.create_channel)(context.as_ptr()) })
    }

    /// # Safety
    /// Both are open.
    pub(super) unsafe fn open_queue(
        self,
        context: NonNull<IbvContext>,
        channel: NonNull<IbvCompChannel>,
        entries: c_int,
    ) -> Result<NonNull<IbvCq>, VerbsRefusal> {
        // SAFETY: the caller's word; the first vector of interrupts is always there.
        let queue = unsafe { (self.create_cq)(context.as_ptr(), entries, null_mut(), channel.as_ptr(), 0) };
        given("ibv_create_cq", queue)
    }

    /// Registers memory that this process alone reads and writes: peers are given no right to it.
    ///
    /// # Safety
    /// `domain` is open, and the memory stays mapped until the region is closed.
    pub(super) unsafe fn register(
        self,
        domain: NonNull<IbvPd>,
        (start, bytes): (NonNull<u8>, usize),
    ) -> Result<NonNull<IbvMr>, VerbsRefusal> {
        let start = start.as_ptr().cast();
        // SAFETY: the caller's word.
        let region = unsafe { (self.reg_mr)(domain.as_ptr(), start, bytes, IBV_ACCESS_LOCAL_WRITE) };
        given("ibv_reg_mr", region)
    }

    /// # Safety
    /// `domain` and the queue in `attributes` are open.
    pub(super) unsafe fn open_pair(
        self,
        domain: NonNull<IbvPd>,
        mut attributes: IbvQpInitAttr,
    ) -> Result<NonNull<IbvQp>, VerbsRefusal> {
        // SAFETY: the caller's word.
        given("ibv_create_qp", unsafe { (self.create_qp)(domain.as_ptr(), &raw mut attributes) })
    }

    /// # Safety
    /// `pair` is open.
    pub(super) unsafe fn modify_pair(
        self,
        call: &'static str,
        pair: NonNull<IbvQp>,
        (mut attributes, mask): (IbvQpAttr, c_int),
    ) -> Result<(), VerbsRefusal> {
        // SAFETY: the caller's word.
        checked(call, unsafe { (self.modify_qp)(pair.as_ptr(), &raw mut attributes, mask) })
    }

    /// Takes the events of a queue from its channel, whose descriptor does not block.
    ///
    /// # Errors
    /// Where no event will come any more: the device was removed.
    ///
    /// # Safety
    /// `channel` is open and belongs to one queue.
    pub(super) unsafe fn take_queue_events(self, channel: NonNull<IbvCompChannel>) -> Result<(), VerbsRefusal> {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the caller's word; it writes two pointers.
        while unsafe { (self.get_cq_event)(channel.as_ptr(), &raw mut queue, &raw mut context) } == 0 {
            // SAFETY: the queue whose event was just taken. A queue does not close before that.
            unsafe { (self.ack_cq_events)(queue, 1) };
        }
        match last_code() {
            EAGAIN | EINTR => Ok(()),
            code => Err(VerbsRefusal { call: "ibv_get_cq_event", code }),
        }
    }

    /// The next event of a device: its kind and what it is about. The descriptor does not block.
    ///
    /// # Safety
    /// `context` is open.
    pub(super) unsafe fn take_event(self, context: NonNull<IbvContext>) -> Option<(u32, u64)> {
        // Larger than the structure of any release.
        let mut event = [IbvAsyncEvent::default(); 4];
        // SAFETY: the caller's word; it writes one event.
        let code = unsafe { (self.get_async_event)(context.as_ptr(), event.as_mut_ptr()) };
        if code != 0 {
            return None;
        }
        // SAFETY: the event that was just taken. An object of which an event was taken does not close before that.
        unsafe { (self.ack_async_event)(event.as_mut_ptr()) };
        Some((event[0].event_type, event[0].element))
    }

    /// # Safety
    /// `pair` is open, and is not used any more.
    pub(super) unsafe fn close_pair(self, pair: NonNull<IbvQp>) -> Result<(), VerbsRefusal> {
        // SAFETY: the caller's word.
        checked("ibv_destroy_qp", unsafe { (self.destroy_qp)(pair.as_ptr()) })
    }

    /// # Safety
    /// As above, and no request uses its memory.
    pub(super) unsafe fn close_region(self, region: NonNull<IbvMr>) -> Result<(), VerbsRefusal> {
        // SAFETY: the caller's word.
        checked("ibv_dereg_mr", unsafe { (self.dereg_mr)(region.as_ptr()) })
    }

    /// # Safety
    /// As above, and no pair uses it.
    pub(super) unsafe fn close_queue(self, queue: NonNull<IbvCq>) -> Result<(), VerbsRefusal> {
        // SAFETY: the caller's word.
        checked("ibv_destroy_cq", unsafe { (self.destroy_cq)(queue.as_ptr()) })
    }

    /// # Safety
    /// As above, and no queue uses it.
    pub(super) unsafe fn close_channel(self, channel: NonNull<IbvCompChannel>) -> Result<(), VerbsRefusal> {
        // SAFETY: the caller's word.
        checked("ibv_destroy_comp_channel", unsafe { (self.destroy_channel)(channel.as_ptr()) })
    }

    /// # Safety
    /// As above, and nothing uses it.
    pub(super) unsafe fn close_domain(self, domain: NonNull<IbvPd>) -> Result<(), VerbsRefusal> {
        // SAFETY: the caller's word.
        checked("ibv_dealloc_pd", unsafe { (self.dealloc_pd)(domain.as_ptr()) })
    }

    /// # Safety
    /// As above, and nothing uses it.
    pub(super) unsafe fn close_device_of(self, context: NonNull<IbvContext>) -> Result<(), VerbsRefusal> {
        // SAFETY: the caller's word.
        checked("ibv_close_device", unsafe { (self.close_device)(context.as_ptr()) })
    }
}

/// The descriptors of a device: of its commands, and of its events.
///
/// # Safety
/// It is open.
pub(super) unsafe fn descriptors_of(context: NonNull<IbvContext>) -> [RawFd; 2] {
    // SAFETY: the caller's word; the fields are set when the device is opened.
    let context = unsafe { context.as_ref() };
    [context.cmd_fd, context.async_fd]
}

/// The descriptor of a channel, and that of a device's events.
///
/// # Safety
/// Both are open.
pub(super) unsafe fn descriptors(context: NonNull<IbvContext>, channel: NonNull<IbvCompChannel>) -> (RawFd, RawFd) {
    // SAFETY: the caller's word; the field is set when the channel is made.
    let queue = unsafe { (*channel.as_ptr()).fd };
    // SAFETY: as above.
    let events = unsafe { (*context.as_ptr()).async_fd };
    (queue, events)
}

const EINTR: i32 = 4;
