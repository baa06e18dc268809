//! A plug-in, loaded while the program runs: its search, the newest version of its interface that both have, and its
//! functions with one shape for all versions.
//!
//! It is never unloaded: some register work for the end of the process, and start threads.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use crate::device::DmaBuf;
use crate::error::{Error, Kind};
use crate::sys::library::Library;
use crate::sys::{elf, environment, signals};
use crate::transport::net_plugin::abi::{
    HANDLE_BYTES, INVALID_USAGE, NetAccept, NetClose, NetCommConfig, NetConnectV8, NetConnectV11, NetDeregister,
    NetDevices, NetFlush, NetInitV11, NetListenV8, NetListenV11, NetLogger, NetProperties, NetPropertiesHead,
    NetPropertiesV8, NetPropertiesV11, NetPropertiesV12, NetReceiveV8, NetReceiveV11, NetRegister, NetRegisterDmaBuf,
    NetResult, NetSendV8, NetSendV11, NetTest, NetV8, NetV11, POINTER_CUDA, POINTER_DMA_BUF, POINTER_HOST,
    REMOTE_ERROR, RESULTS, SUCCESS, TRAFFIC_CLASS_UNSET,
};
use crate::transport::net_plugin::lines::heard;
use crate::transport::net_plugin::logger::log_of_plug_in;

/// A library that has a plug-in of a known version, which was not started yet: until then nothing but its name and how
/// it starts need be there.
#[derive(Debug)]
pub(super) struct PlugInFile {
    /// The file, as it was found.
    pub(super) file: String,
    /// What the plug-in calls its network before it starts.
    pub(super) net: String,
    /// The version of the interface.
    pub(super) version: u32,
    table: PlugInTable,
    init: InitOfPlugIn,
}

/// Where a library has the functions of its plug-in. Read after each start: some write them there when they start.
#[derive(Debug, Clone, Copy)]
enum PlugInTable {
    V8(NonNull<NetV8>),
    V11(NonNull<NetV11>),
}

/// How a plug-in starts.
#[derive(Debug, Clone, Copy)]
enum InitOfPlugIn {
    V8(unsafe extern "C" fn(NetLogger) -> NetResult),
    V11(NetInitV11),
}

/// A plug-in that has started, one version of its interface.
#[derive(Debug, Clone)]
pub(super) struct PlugIn {
    /// The file, as it was found.
    pub(super) file: String,
    /// What the plug-in calls its network.
    pub(super) net: String,
    /// The version of the interface.
    pub(super) version: u32,
    devices: NetDevices,
    properties: NetProperties,
    accept: NetAccept,
    register: NetRegister,
    /// A plug-in that takes host memory alone may lack these two.
    register_dma_buf: Option<NetRegisterDmaBuf>,
    flush: Option<NetFlush>,
    deregister: NetDeregister,
    test: NetTest,
    close_send: NetClose,
    close_receive: NetClose,
    close_listen: NetClose,
    init: InitOfPlugIn,
    versioned: Versioned,
}

/// The functions whose form depends on the version.
#[derive(Debug, Clone, Copy)]
enum Versioned {
    V8 {
        listen: NetListenV8,
        connect: NetConnectV8,
        send: NetSendV8,
        receive: NetReceiveV8,
    },
    /// And 12, whose functions are the same.
    V11 {
        listen: NetListenV11,
        connect: NetConnectV11,
        send: NetSendV11,
        receive: NetReceiveV11,
        finalize: NetClose,
    },
}

/// An object of a plug-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlugInObject(pub(super) NonNull<c_void>);

// SAFETY: plug-ins are called by several threads of NCCL's, and of ours by one at a time for each object.
unsafe impl Send for PlugInObject {}

/// A registration of memory, or what a plug-in keeps for a communicator: null is a value of these.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlugInKey(pub(super) *mut c_void);

// SAFETY: as above.
unsafe impl Send for PlugInKey {}
// SAFETY: as above.
unsafe impl Sync for PlugInKey {}

/// Where a listener waits, as a plug-in writes it. A plug-in keeps notes in that of a connection that is being made.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlugInHandle(pub(super) [u8; HANDLE_BYTES]);

/// A device, as a plug-in describes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlugInDevice {
    pub(super) name: String,
    pub(super) pci_path: Option<String>,
    pub(super) pointers: c_int,
    /// Whether what comes into memory of a GPU must be flushed whatever the GPU is.
    pub(super) forces_flush: bool,
    pub(super) device_type: c_int,
    /// Mbit/s; 0 where it is not known.
    pub(super) speed: c_int,
    pub(super) most_comms: c_int,
    /// 0 where it is not told.
    pub(super) most_message_bytes: usize,
}

/// A call that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlugInRefusal {
    call: &'static str,
    code: NetResult,
}

impl PlugInRefusal {
    /// As an error, with the name of the plug-in's network.
    pub(super) fn error(self, net: &str) -> Error {
        let kind = if self.code == REMOTE_ERROR { Kind::Remote } else { Kind::System };
        Error::new(kind, format!("net plug-in {net}: {}", self.words()))
    }

    pub(super) fn words(self) -> String {
        let name = usize::try_from(self.code).ok().and_then(|code| RESULTS.get(code));
        format!("{} gives {} ({})", self.call, name.unwrap_or(&"an unknown code"), self.code)
    }
}

impl PlugInFile {
    /// Loads the plug-in that a user calls `name`: that file, or `libnccl-net-NAME.so`.
    ///
    /// # Errors
    /// A sentence: that there is no such file, what the loader says of one, or what it lacks.
    pub(super) fn load(name: &str) -> Result<PlugInFile, String> {
        let mut noes = Vec::new();
        for file in files(name) {
            let Ok(text) = CString::new(&*file) else { return Err(format!("{name:?} is no name of a file")) };
            // Where the loader finds any other name, it alone knows.
            if file.contains('/')
                && let Some(why) = elf::unfit(Path::new(&*file))
            {
                noes.push(format!("{file} {why}"));
                continue;
            }
            match kept(|| Library::open(&text)) {
                Ok(library) => return PlugInFile::in_library(library, &file),
                Err(why) if why.contains(&*file) && why.contains("No such file or directory") => {
                    noes.push(format!("there is no {file} where the loader looks"));
                }
                Err(why) => {
                    // The loader begins with the name too.
                    let why = why.strip_prefix(&*file).map_or(&*why, |why| why.trim_start_matches([':', ' ']));
                    noes.push(format!("{file} cannot be loaded: {}", crate::error::without_controls(why)));
                }
            }
        }
        Err(format!("{} ({TAKES})", noes.join(", ")))
    }

    fn in_library(library: Library, file: &str) -> Result<PlugInFile, String> {
        for (name, version) in [(c"ncclNetPlugin_v12", 12), (c"ncclNetPlugin_v11", 11)] {
            if let Some(place) = library.address(name) {
                let table = place.cast::<NetV11>();
                // SAFETY: the type that the interface gives this structure, and the library stays; here and below.
                let NetV11 { name, init, .. } = unsafe { table.read() };
                let (table, init) = (PlugInTable::V11(table), init.map(InitOfPlugIn::V11));
                return PlugInFile::new((file, version), text_at(name), table, init);
            }
        }
        if let Some(place) = library.address(c"ncclNetPlugin_v8") {
            let table = place.cast::<NetV8>();
            // SAFETY: as above.
            let NetV8 { name, init, .. } = unsafe { table.read() };
            return PlugInFile::new((file, 8), text_at(name), PlugInTable::V8(table), init.map(InitOfPlugIn::V8));
        }
        let others =
            OTHERS.iter().filter(|(name, _)| library.address(name).is_some()).map(|(_, version)| version.to_string());
        let others: Vec<_> = others.collect();
        let its = match others.is_empty() {
            true => "none that is known".to_owned(),
            false => format!("version {}", others.join(" and ")),
        };
        Err(format!("{file} is a library, but of NCCL's interface of net plug-ins it has {its}; 8, 11 or 12 is needed"))
    }

    fn new(
        (file, version): (&str, u32),
        net: Option<String>,
        table: PlugInTable,
        init: Option<InitOfPlugIn>,
    ) -> Result<PlugInFile, String> {
        let lacks = |what: &str| format!("{file} (version {version}) lacks {what}");
        let net = net.ok_or_else(|| lacks("a name"))?;
        let init = init.ok_or_else(|| lacks("init"))?;
        Ok(PlugInFile { file: file.to_owned(), net, version, table, init })
    }

    /// Starts it for this process, as [`PlugIn::init`] does for a communicator, and looks for its functions.
    ///
    /// # Errors
    /// A sentence: the refusal, with what the plug-in has warned of, or what it lacks.
    pub(super) fn start(&self, number: u64) -> Result<(PlugIn, PlugInKey, Vec<String>), String> {
        let of_it = |why: String| format!("{} (version {}) does not start: {why}", self.file, self.version);
        let (context, names) = self.init.call(number).map_err(of_it)?;
        match self.table {
            // SAFETY: the structure of a library that stays, here and below.
            PlugInTable::V8(table) => eighth(&unsafe { table.read() }, self),
            PlugInTable::V11(table) => {
                // SAFETY: as above.
                let table = unsafe { table.read() };
                newer(&table, self).inspect_err(|_| {
                    if let Some(finalize) = table.finalize {
                        // SAFETY: the context was made above, and nothing with it.
                        let _ended = unsafe { finalize(context.0) };
                    }
                })
            }
        }
        .map(|plug_in| (plug_in, context, names))
    }
}

impl InitOfPlugIn {
    /// Variables of NCCL's and rsccl's that the plug-in sets meanwhile are put back; their names are returned, too.
    fn call(self, number: u64) -> Result<(PlugInKey, Vec<String>), String> {
        let mut context = null_mut();
        let mut config = NetCommConfig { traffic_class: TRAFFIC_CLASS_UNSET };
        let call = || match self {
            // SAFETY: the function of the version, and the logger that it asks for.
            InitOfPlugIn::V8(init) => unsafe { init(log_of_plug_in) },
            InitOfPlugIn::V11(init) => {
                let (context, config) = (&raw mut context, &raw mut config);
                // SAFETY: as above; a place for the context, and a configuration that it copies.
                unsafe { init(context, number, config, log_of_plug_in, no_profiler) }
            }
        };
        let ((code, names), warned) = heard(|| environment::kept(is_ours, call));
        match refused("init", code) {
            Ok(()) => Ok((PlugInKey(context), names)),
            Err(refusal) => {
                let why = warned.map_or_else(String::new, |text| format!("; it says: {text}"));
                Err(format!("{}{why}", refusal.words()))
            }
        }
    }
}

impl PlugIn {
    /// Prepares the plug-in for a communicator.
    ///
    /// # Errors
    /// The refusal, with what the plug-in has warned of.
    pub(super) fn init(&self, number: u64) -> Result<PlugInKey, String> {
        self.init.call(number).map(|(context, _)| context)
    }

    /// How often it is prepared: once for a process, or for each communicator.
    pub(super) fn has_contexts(&self) -> bool {
        matches!(self.versioned, Versioned::V11 { .. })
    }

    /// Ends what [`PlugIn::init`] has begun.
    ///
    /// # Safety
    /// The context is one of this plug-in's; it is not used again, nor what was made with it.
    pub(super) unsafe fn finalize(&self, context: PlugInKey) -> Result<(), PlugInRefusal> {
        match self.versioned {
            Versioned::V8 { .. } => Ok(()),
            // SAFETY: the caller's word.
            Versioned::V11 { finalize, .. } => refused("finalize", unsafe { finalize(context.0) }),
        }
    }

    /// How many devices it has.
    pub(super) fn devices(&self) -> Result<c_int, PlugInRefusal> {
        let mut count = 0;
        // SAFETY: a place for the number.
        refused("devices", unsafe { (self.devices)(&raw mut count) }).map(|()| count)
    }

    /// One of its devices.
    pub(super) fn device(&self, number: c_int) -> Result<PlugInDevice, PlugInRefusal> {
        match self.version {
            8 => {
                let known = self.properties_of::<NetPropertiesV8>(number)?;
                let NetPropertiesV8 { name, pci_path, pointers, device_type, speed, most_comms, .. } = known;
                let head =
                    NetPropertiesHead { name, pci_path, pointers, device_type, speed, most_comms, ..no_device() };
                Ok(device(&head, 0))
            }
            11 => self
                .properties_of::<NetPropertiesV11>(number)
                .map(|known| device(&known.head, known.most_message_bytes)),
            _ => self
                .properties_of::<NetPropertiesV12>(number)
                .map(|known| device(&known.head, known.most_message_bytes)),
        }
    }

    /// `T` is the structure of this version. It begins as zeros: plug-ins leave parts of it as they find them.
    fn properties_of<T: Copy>(&self, number: c_int) -> Result<T, PlugInRefusal> {
        // SAFETY: the structures of `abi` are numbers and pointers, for which zero is a value.
        let mut properties: T = unsafe { zeroed() };
        // SAFETY: a place for the properties of this version.
        let code = unsafe { (self.properties)(number, (&raw mut properties).cast()) };
        refused("getProperties", code).map(|()| properties)
    }

    /// Listens on a device.
    pub(super) fn listen(
        &self,
        context: PlugInKey,
        number: c_int,
    ) -> Result<(PlugInObject, PlugInHandle), PlugInRefusal> {
        let (mut handle, mut made) = (PlugInHandle([0; HANDLE_BYTES]), null_mut());
        let (place, made_at) = ((&raw mut handle).cast(), &raw mut made);
        let code = match self.versioned {
            // SAFETY: room for a handle, and a place for the listener.
            Versioned::V8 { listen, .. } => unsafe { listen(number, place, made_at) },
            // SAFETY: as above.
            Versioned::V11 { listen, .. } => unsafe { listen(context.0, number, place, made_at) },
        };
        refused("listen", code)?;
        let made = NonNull::new(made).ok_or(PlugInRefusal { call: "listen without a listener", code })?;
        Ok((PlugInObject(made), handle))
    }

    /// Connects to who listens at `handle`; `None` is "later", with the same handle.
    ///
    /// # Safety
    /// The handle stays where it is, and has come from a [`PlugIn::listen`] of the same network.
    pub(super) unsafe fn connect(
        &self,
        context: PlugInKey,
        number: c_int,
        handle: &mut PlugInHandle,
    ) -> Result<Option<PlugInObject>, PlugInRefusal> {
        let (mut made, mut device) = (null_mut(), null_mut());
        let (place, made_at, device_at) = ((&raw mut *handle).cast(), &raw mut made, &raw mut device);
        let code = match self.versioned {
            // SAFETY: the caller's word; places for what is made.
            Versioned::V8 { connect, .. } => unsafe { connect(number, place, made_at, device_at) },
            // SAFETY: as above.
            Versioned::V11 { connect, .. } => unsafe { connect(context.0, number, place, made_at, device_at) },
        };
        refused("connect", code).map(|()| NonNull::new(made).map(PlugInObject))
    }

    /// The connection for which a listener waits; `None` is "later".
    ///
    /// # Safety
    /// The listener is one of this plug-in's that was not closed.
    pub(super) unsafe fn accept(&self, listener: PlugInObject) -> Result<Option<PlugInObject>, PlugInRefusal> {
        let (mut made, mut device) = (null_mut(), null_mut());
        // SAFETY: the caller's word; places for what is made.
        let code = unsafe { (self.accept)(listener.0.as_ptr(), &raw mut made, &raw mut device) };
        refused("accept", code).map(|()| NonNull::new(made).map(PlugInObject))
    }

    /// Registers memory of the host with a connection.
    ///
    /// # Safety
    /// The connection is open; the memory stays until it is deregistered.
    pub(super) unsafe fn register(
        &self,
        connection: PlugInObject,
        memory: (NonNull<u8>, usize),
    ) -> Result<PlugInKey, PlugInRefusal> {
        // SAFETY: the caller's word.
        unsafe { self.register_kind(connection, memory, POINTER_HOST) }
    }

    /// Registers memory of a GPU by its address.
    ///
    /// # Safety
    /// As [`PlugIn::register`].
    pub(super) unsafe fn register_address(
        &self,
        connection: PlugInObject,
        memory: (NonNull<u8>, usize),
    ) -> Result<PlugInKey, PlugInRefusal> {
        // SAFETY: the caller's word.
        unsafe { self.register_kind(connection, memory, POINTER_CUDA) }
    }

    unsafe fn register_kind(
        &self,
        connection: PlugInObject,
        (start, bytes): (NonNull<u8>, usize),
        kind: c_int,
    ) -> Result<PlugInKey, PlugInRefusal> {
        let mut key = null_mut();
        let (connection, start) = (connection.0.as_ptr(), start.as_ptr().cast());
        // SAFETY: the caller's word; a place for the registration.
        let code = unsafe { (self.register)(connection, start, bytes, kind, &raw mut key) };
        refused("regMr", code).map(|()| PlugInKey(key))
    }

    /// Registers memory of a GPU by its DMA-BUF, which the plug-in duplicates where it needs it longer.
    ///
    /// # Safety
    /// As [`PlugIn::register`].
    pub(super) unsafe fn register_dma_buf(
        &self,
        connection: PlugInObject,
        (start, bytes): (NonNull<u8>, usize),
        DmaBuf { descriptor, offset }: &DmaBuf,
    ) -> Result<PlugInKey, PlugInRefusal> {
        let lacks = PlugInRefusal { call: "regMrDmaBuf, which it lacks,", code: INVALID_USAGE };
        let register = self.register_dma_buf.ok_or(lacks)?;
        let mut key = null_mut();
        let (connection, start, descriptor) = (connection.0.as_ptr(), start.as_ptr().cast(), descriptor.as_raw_fd());
        // SAFETY: the caller's word; a place for the registration.
        let code = unsafe { register(connection, start, bytes, POINTER_CUDA, *offset, descriptor, &raw mut key) };
        refused("regMrDmaBuf", code).map(|()| PlugInKey(key))
    }

    /// Has what a receive has put into memory of a GPU become visible there; `None` where that needs no request.
    ///
    /// # Safety
    /// The connection receives and is open; `key` is a registration of it for memory that has these bytes.
    pub(super) unsafe fn flush(
        &self,
        connection: PlugInObject,
        (start, bytes): (NonNull<u8>, usize),
        key: PlugInKey,
    ) -> Result<Option<PlugInObject>, PlugInRefusal> {
        let flush = self.flush.ok_or(PlugInRefusal { call: "iflush, which it lacks,", code: INVALID_USAGE })?;
        let (mut request, connection) = (null_mut(), connection.0.as_ptr());
        let (mut start, mut bytes, mut key): (*mut c_void, _, _) = (start.as_ptr().cast(), short(bytes), key.0);
        let (starts, lengths, keys) = (&raw mut start, &raw mut bytes, &raw mut key);
        // SAFETY: the caller's word; arrays of one, and a place for the request.
        let code = unsafe { flush(connection, 1, starts, lengths, keys, &raw mut request) };
        refused("iflush", code).map(|()| NonNull::new(request).map(PlugInObject))
    }

    /// Whether it has all that memory of GPUs needs, by the way of an address or of a DMA-BUF.
    pub(super) fn takes_devices(&self, pointers: c_int) -> bool {
        let by_dma_buf = pointers & POINTER_DMA_BUF != 0 && self.register_dma_buf.is_some();
        self.flush.is_some() && (by_dma_buf || pointers & POINTER_CUDA != 0)
    }

    /// Takes a registration back.
    ///
    /// # Safety
    /// It is one of the connection's, and not used again.
    pub(super) unsafe fn deregister(&self, connection: PlugInObject, key: PlugInKey) -> Result<(), PlugInRefusal> {
        // SAFETY: the caller's word.
        refused("deregMr", unsafe { (self.deregister)(connection.0.as_ptr(), key.0) })
    }

    /// Posts a message; `None` is "later".
    ///
    /// # Safety
    /// The connection is open and sends; `key` is a registration of it for memory that has these bytes, which nobody
    /// writes to until the request is done or the connection closed.
    pub(super) unsafe fn send(
        &self,
        connection: PlugInObject,
        (start, bytes): (NonNull<u8>, usize),
        key: PlugInKey,
    ) -> Result<Option<PlugInObject>, PlugInRefusal> {
        let mut request = null_mut();
        let (connection, start, place) = (connection.0.as_ptr(), start.as_ptr().cast(), &raw mut request);
        let code = match self.versioned {
            // SAFETY: the caller's word; a place for the request.
            Versioned::V8 { send, .. } => unsafe { send(connection, start, short(bytes), TAG, key.0, place) },
            // SAFETY: as above.
            Versioned::V11 { send, .. } => unsafe { send(connection, start, bytes, TAG, key.0, null_mut(), place) },
        };
        refused("isend", code).map(|()| NonNull::new(request).map(PlugInObject))
    }

    /// Posts a receive; `None` is "later".
    ///
    /// # Safety
    /// As [`PlugIn::send`], of a connection that receives, into memory that nobody touches.
    pub(super) unsafe fn receive(
        &self,
        connection: PlugInObject,
        (start, bytes): (NonNull<u8>, usize),
        key: PlugInKey,
    ) -> Result<Option<PlugInObject>, PlugInRefusal> {
        let mut request = null_mut();
        let (connection, place) = (connection.0.as_ptr(), &raw mut request);
        let (mut start, mut tag, mut key, mut profiler): (*mut c_void, _, _, *mut c_void) =
            (start.as_ptr().cast(), TAG, key.0, null_mut());
        let (starts, tags, keys) = (&raw mut start, &raw mut tag, &raw mut key);
        let code = match self.versioned {
            Versioned::V8 { receive, .. } => {
                let mut bytes = short(bytes);
                // SAFETY: the caller's word; arrays of one, and a place for the request.
                unsafe { receive(connection, 1, starts, &raw mut bytes, tags, keys, place) }
            }
            Versioned::V11 { receive, .. } => {
                let (mut bytes, profilers) = (bytes, &raw mut profiler);
                // SAFETY: as above.
                unsafe { receive(connection, 1, starts, &raw mut bytes, tags, keys, profilers, place) }
            }
        };
        refused("irecv", code).map(|()| NonNull::new(request).map(PlugInObject))
    }

    /// Whether a request is done: the bytes that the plug-in tells then, and the request is gone.
    ///
    /// # Safety
    /// It is one of this plug-in's, and was not done or refused before.
    pub(super) unsafe fn test(&self, request: PlugInObject) -> Result<Option<c_int>, PlugInRefusal> {
        // A plug-in that takes several messages in one receive may write the lengths of as many.
        let (mut is_done, mut bytes) = (0, [0; MOST_LENGTHS]);
        // SAFETY: the caller's word; places for the answer and the lengths.
        let code = unsafe { (self.test)(request.0.as_ptr(), &raw mut is_done, bytes.as_mut_ptr()) };
        refused("test", code).map(|()| (is_done != 0).then_some(bytes[0]))
    }

    /// Closes what sends, receives, or listens.
    ///
    /// # Safety
    /// It is an open one of its kind, and not used again.
    pub(super) unsafe fn close(&self, what: PlugInEnd) -> Result<(), PlugInRefusal> {
        let (call, close, object) = match what {
            PlugInEnd::Send(object) => ("closeSend", self.close_send, object),
            PlugInEnd::Receive(object) => ("closeRecv", self.close_receive, object),
            PlugInEnd::Listen(object) => ("closeListen", self.close_listen, object),
        };
        // SAFETY: the caller's word.
        refused(call, unsafe { close(object.0.as_ptr()) })
    }
}

/// What can be closed.
#[derive(Debug, Clone, Copy)]
pub(super) enum PlugInEnd {
    Send(PlugInObject),
    Receive(PlugInObject),
    Listen(PlugInObject),
}

/// What to write.
const TAKES: &str = "NCCL_NET_PLUGIN takes the path of a library, or NAME for libnccl-net-NAME.so";

/// The files that a name may mean, in NCCL's order: what it says, and `libnccl-net-NAME.so` unless it is a path or the
/// name of a library.
fn files(name: &str) -> Vec<String> {
    let is_library = name.starts_with("lib") && name.ends_with(".so");
    let mut files = vec![name.to_owned()];
    if !name.contains('/') && !is_library {
        files.push(format!("libnccl-net-{name}.so"));
    }
    files
}

/// Loads, and keeps the environment and the actions of signals as they are.
fn kept<T>(load: impl FnOnce() -> T) -> T {
    environment::kept(is_ours, || signals::kept(load)).0
}

/// Variables that tell NCCL, and therefore us, what to do: later communicators would obey what a plug-in has set.
fn is_ours(name: &str) -> bool {
    name.starts_with("NCCL_") || name.starts_with("RSCCL_")
}

/// A plug-in out of a structure of either form; `$own` is a function of its version.
macro_rules! plug_in {
    ($table:ident, $file:ident, $variant:ident { $($own:ident: $called:literal),+ }) => {{
        let lacks = |what: &str| format!("{} (version {}) lacks {what}", $file.file, $file.version);
        Ok(PlugIn {
            file: $file.file.clone(),
            version: $file.version,
            init: $file.init,
            net: text_at($table.name).ok_or_else(|| lacks("a name"))?,
            devices: $table.devices.ok_or_else(|| lacks("devices"))?,
            properties: $table.properties.ok_or_else(|| lacks("getProperties"))?,
            accept: $table.accept.ok_or_else(|| lacks("accept"))?,
            register: $table.register.ok_or_else(|| lacks("regMr"))?,
            register_dma_buf: $table.register_dma_buf,
            flush: $table.flush,
            deregister: $table.deregister.ok_or_else(|| lacks("deregMr"))?,
            test: $table.test.ok_or_else(|| lacks("test"))?,
            close_send: $table.close_send.ok_or_else(|| lacks("closeSend"))?,
            close_receive: $table.close_receive.ok_or_else(|| lacks("closeRecv"))?,
            close_listen: $table.close_listen.ok_or_else(|| lacks("closeListen"))?,
            versioned: Versioned::$variant { $($own: $table.$own.ok_or_else(|| lacks($called))?),+ },
        })
    }};
}

fn newer(table: &NetV11, file: &PlugInFile) -> Result<PlugIn, String> {
    plug_in!(
        table,
        file,
        V11 { listen: "listen", connect: "connect", send: "isend", receive: "irecv", finalize: "finalize" }
    )
}

fn eighth(table: &NetV8, file: &PlugInFile) -> Result<PlugIn, String> {
    plug_in!(table, file, V8 { listen: "listen", connect: "connect", send: "isend", receive: "irecv" })
}

/// Of a profiler, which nobody here has.
unsafe extern "C" fn no_profiler(_: *mut *mut c_void, _: c_int, _: *mut c_void, _: i64, _: *mut c_void) -> NetResult {
    SUCCESS
}

fn no_device() -> NetPropertiesHead {
    // SAFETY: numbers and pointers, for which zero is a value.
    unsafe { zeroed() }
}

fn device(head: &NetPropertiesHead, most_message_bytes: usize) -> PlugInDevice {
    PlugInDevice {
        name: text_at(head.name).unwrap_or_default(),
        pci_path: text_at(head.pci_path),
        pointers: head.pointers,
        forces_flush: head.forces_flush != 0,
        device_type: head.device_type,
        speed: head.speed,
        most_comms: head.most_comms,
        most_message_bytes,
    }
}

fn refused(call: &'static str, code: NetResult) -> Result<(), PlugInRefusal> {
    if code == SUCCESS { Ok(()) } else { Err(PlugInRefusal { call, code }) }
}

/// The beginning of a text of a plug-in.
fn text_at(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: texts of plug-ins end in a zero byte, and stay.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    Some(crate::error::without_controls(crate::wire::cut(&text, MOST_TEXT_BYTES)))
}

/// A length as version 8 has it: what is posted is far shorter.
fn short(bytes: usize) -> c_int {
    c_int::try_from(bytes).expect("messages are shorter than MOST_MESSAGE_BYTES")
}

/// Messages of a connection are told apart by their order.
const TAG: c_int = 0;
/// Lengths for which there is room: the most messages that any plug-in takes in one receive.
const MOST_LENGTHS: usize = 32;
const MOST_TEXT_BYTES: usize = 256;
/// Structures of other versions, for the sentence that says so.
const OTHERS: [(&CStr, u32); 9] = [
    (c"ncclNetPlugin_v4", 4),
    (c"ncclNetPlugin_v5", 5),
    (c"ncclNetPlugin_v6", 6),
    (c"ncclNetPlugin_v7", 7),
    (c"ncclNetPlugin_v9", 9),
    (c"ncclNetPlugin_v10", 10),
    (c"ncclNetPlugin_v13", 13),
    (c"ncclNetPlugin_v14", 14),
    (c"ncclNetPlugin_v15", 15),
];
