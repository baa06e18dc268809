//! How a connection is made of a plug-in's, which go one way.
//!
//! ```text
//! listener                                    who connects
//! listens ──── nonce, handle (over the bootstrap) ────► connects, listens, too
//! accepts ◄─── greeting: nonce, its own handle ─────── as the first message
//! connects ──────────────────────────────────────────► accepts
//! ```
//! The nonce has come over an authenticated connection, so whoever sends it has the handle from a rank. The handshake
//! that proves the secret of the communicator follows over both ways, as on every data connection.

use std::ffi::c_int;

use crate::device::{HostMemory, HostRegion};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::Arc;
use crate::transport::net::request_nic::NicHandle;
use crate::transport::net_plugin::abi::HANDLE_BYTES;
use crate::transport::net_plugin::library::{PlugIn, PlugInEnd, PlugInHandle, PlugInKey, PlugInObject, PlugInRefusal};
use crate::wire::{Reader, Writer};

/// A device of a plug-in, as one endpoint uses it.
#[derive(Debug, Clone)]
pub(super) struct PlugInPort {
    pub(super) plug_in: Arc<PlugIn>,
    pub(super) device: c_int,
    pub(super) context: PlugInKey,
}

impl PlugInPort {
    /// A refusal as an error.
    pub(super) fn error(&self, refusal: PlugInRefusal) -> Error {
        refusal.error(&self.plug_in.net)
    }

    /// Closes an end. What the plug-in says against it is logged: nobody can do anything about it.
    pub(super) fn close(&self, end: PlugInEnd) {
        // SAFETY: whoever owned the end has given it up.
        if let Err(refusal) = unsafe { self.plug_in.close(end) } {
            log::detail!(Net, "NET/Plugin: {}", refusal.words());
        }
    }

    /// Takes a registration back, as [`PlugInPort::close`].
    pub(super) fn deregister(&self, connection: PlugInObject, key: PlugInKey) {
        // SAFETY: as above.
        if let Err(refusal) = unsafe { self.plug_in.deregister(connection, key) } {
            log::detail!(Net, "NET/Plugin: {}", refusal.words());
        }
    }
}

/// What both ends know of a connection before it is made.
pub(super) type PlugInNonce = [u8; NONCE_BYTES];

/// A handle and its nonce: where a listener waits, or what whoever connects greets it with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlugInGreeting {
    pub(super) nonce: PlugInNonce,
    pub(super) handle: PlugInHandle,
}

impl PlugInGreeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(GREETING_BYTES);
        writer.raw(&self.nonce).raw(&self.handle.0);
        writer.finish()
    }

    /// # Errors
    /// Where the bytes are no greeting.
    pub(super) fn decode(bytes: &[u8]) -> Result<PlugInGreeting> {
        let mut reader = Reader::new(bytes, "where a net plug-in listens");
        let (nonce, handle) = (reader.array()?, PlugInHandle(reader.array()?));
        reader.finish()?;
        Ok(PlugInGreeting { nonce, handle })
    }
}

/// Both ways of a connection.
#[derive(Debug)]
pub(super) struct PlugInWays {
    pub(super) nonce: PlugInNonce,
    pub(super) send: PlugInObject,
    pub(super) receive: PlugInObject,
    /// A page for what the ends tell each other beside the messages of the callers, registered with the sending way.
    pub(super) room: HostRegion,
    pub(super) room_key: PlugInKey,
}

/// The end that listens.
#[derive(Debug)]
pub(super) struct PlugInListening {
    port: PlugInPort,
    nonce: PlugInNonce,
    listener: PlugInObject,
    room: HostRegion,
    stage: ListenStage,
    has_accepted: bool,
}

#[derive(Debug)]
enum ListenStage {
    Accepting,
    Hearing {
        receive: PlugInObject,
        key: PlugInKey,
        request: Option<PlugInObject>,
    },
    Answering {
        receive: PlugInObject,
        handle: Box<PlugInHandle>,
    },
    /// The plug-in accepts nobody any more: the deadline of whoever waits ends it.
    Broken,
    Over,
}

/// The end that connects.
#[derive(Debug)]
pub(super) struct PlugInDialling {
    port: PlugInPort,
    nonce: PlugInNonce,
    room: HostRegion,
    stage: DialStep,
}

#[derive(Debug)]
enum DialStep {
    Connecting(Box<PlugInHandle>),
    Telling {
        send: PlugInObject,
        key: PlugInKey,
        listener: PlugInObject,
        told: GreetingStep,
        receive: Option<PlugInObject>,
    },
    Over,
}

/// How far a greeting is.
#[derive(Debug, Clone, Copy)]
enum GreetingStep {
    Not,
    UnderWay(PlugInObject),
    Done,
}

impl PlugInListening {
    /// Listens, and says where.
    ///
    /// # Errors
    /// Of the plug-in, or of memory.
    pub(super) fn new(port: &PlugInPort, nonce: PlugInNonce) -> Result<(PlugInListening, NicHandle)> {
        let room = HostMemory.allocate_for_nic(ROOM_BYTES)?;
        let (listener, handle) =
            port.plug_in.listen(port.context, port.device).map_err(|refusal| port.error(refusal))?;
        let (port, stage) = (port.clone(), ListenStage::Accepting);
        let listening = PlugInListening { port, nonce, listener, room, stage, has_accepted: false };
        NicHandle::new(&PlugInGreeting { nonce, handle }.encode()).map(|handle| (listening, handle))
    }

    /// Goes on; both ways, once they are there.
    ///
    /// # Errors
    /// Of the plug-in as a whole: a wrong greeting, or a peer that leaves, is logged, and it listens on.
    pub(super) fn progress(&mut self) -> Result<Option<PlugInWays>> {
        if matches!(self.stage, ListenStage::Accepting) {
            // SAFETY: the listener is open until `give_up`.
            match unsafe { self.port.plug_in.accept(self.listener) } {
                Ok(None) => return Ok(None),
                Ok(Some(receive)) => self.begin_to_hear(receive)?,
                Err(refusal) if self.has_accepted => {
                    log::detail!(Net, "NET/Plugin: a listener has ended: {}", refusal.words());
                    self.stage = ListenStage::Broken;
                }
                Err(refusal) => return Err(self.port.error(refusal)),
            }
        }
        if matches!(self.stage, ListenStage::Hearing { .. })
            && let Err(error) = self.hear()
        {
            self.listen_on(&error);
        }
        match self.answer() {
            Ok(ways) => Ok(ways),
            Err(error) => {
                self.listen_on(&error);
                Ok(None)
            }
        }
    }

    fn begin_to_hear(&mut self, receive: PlugInObject) -> Result<()> {
        self.has_accepted = true;
        let memory = (self.room.base(), ROOM_BYTES);
        // SAFETY: the room stays until `give_up`, which takes the registration back.
        match unsafe { self.port.plug_in.register(receive, memory) } {
            Ok(key) => {
                self.stage = ListenStage::Hearing { receive, key, request: None };
                Ok(())
            }
            Err(refusal) => {
                self.port.close(PlugInEnd::Receive(receive));
                Err(self.port.error(refusal))
            }
        }
    }

    /// Waits for the greeting.
    fn hear(&mut self) -> Result<()> {
        let ListenStage::Hearing { receive, key, request } = &mut self.stage else { return Ok(()) };
        let (receive, key) = (*receive, *key);
        let failed = |refusal| self.port.error(refusal);
        let Some(under_way) = *request else {
            let memory = (self.room.base(), GREETING_BYTES);
            // SAFETY: the room is the receive's until it is done.
            *request = unsafe { self.port.plug_in.receive(receive, memory, key) }.map_err(failed)?;
            return Ok(());
        };
        // SAFETY: it is not done, or the stage would be another one.
        let Some(bytes) = unsafe { self.port.plug_in.test(under_way) }.map_err(failed)? else { return Ok(()) };
        *request = None;
        let length = usize::try_from(bytes).unwrap_or(0).min(GREETING_BYTES);
        let mut came = vec![0; length];
        // SAFETY: inside the room, and the receive into it is over.
        unsafe { self.room.base().as_ptr().copy_to_nonoverlapping(came.as_mut_ptr(), length) };
        let greeting = PlugInGreeting::decode(&came)?;
        if greeting.nonce != self.nonce {
            return Err(Error::new(Kind::Remote, "a greeting by a sender that does not have the handle"));
        }
        self.port.deregister(receive, key);
        self.stage = ListenStage::Answering { receive, handle: Box::new(greeting.handle) };
        Ok(())
    }

    /// Connects the other way.
    fn answer(&mut self) -> Result<Option<PlugInWays>> {
        let ListenStage::Answering { receive, handle } = &mut self.stage else { return Ok(None) };
        let (receive, port) = (*receive, &self.port);
        // SAFETY: the handle lies in a box, and came with the nonce of this listener: from the rank that was told it,
        // or from somebody who has read what ranks say while they connect, against whom docs/from-nccl.md asks for a
        // network of the job's own.
        let send = unsafe { port.plug_in.connect(port.context, port.device, handle) };
        let Some(send) = send.map_err(|refusal| port.error(refusal))? else { return Ok(None) };
        // SAFETY: the room goes to the connection, which takes the registration back.
        let key = unsafe { port.plug_in.register(send, (self.room.base(), ROOM_BYTES)) };
        let room_key = key.map_err(|refusal| {
            port.close(PlugInEnd::Send(send));
            port.error(refusal)
        })?;
        self.stage = ListenStage::Over;
        self.port.close(PlugInEnd::Listen(self.listener));
        Ok(Some(PlugInWays { nonce: self.nonce, send, receive, room: self.room.clone(), room_key }))
    }

    fn listen_on(&mut self, error: &Error) {
        log::detail!(Net, "NET/Plugin: a listener goes on after a wrong connection: {}", error.message());
        let is_lost = self.let_go();
        self.stage = if is_lost { ListenStage::Broken } else { ListenStage::Accepting };
    }

    /// Closes the connection that is being made. True where the plug-in may still write to the room.
    fn let_go(&mut self) -> bool {
        match std::mem::replace(&mut self.stage, ListenStage::Over) {
            // Left as it is: some plug-ins end other connections where one is closed with a request under way.
            ListenStage::Hearing { request: Some(_), .. } => true,
            ListenStage::Hearing { receive, key, request: None } => {
                self.port.deregister(receive, key);
                self.port.close(PlugInEnd::Receive(receive));
                false
            }
            ListenStage::Answering { receive, .. } => {
                self.port.close(PlugInEnd::Receive(receive));
                false
            }
            // What `Broken` has lost was counted before.
            ListenStage::Broken | ListenStage::Accepting | ListenStage::Over => false,
        }
    }

    /// Closes all. True where the plug-in may still write to the room, which is kept then.
    pub(super) fn give_up(mut self) -> bool {
        let may_be_lost = matches!(self.stage, ListenStage::Broken);
        if !matches!(self.stage, ListenStage::Over) {
            let is_lost = self.let_go() || may_be_lost;
            self.port.close(PlugInEnd::Listen(self.listener));
            if is_lost {
                std::mem::forget(self.room);
                return true;
            }
        }
        false
    }
}

impl PlugInDialling {
    /// Begins to connect to who listens at `to`.
    ///
    /// # Errors
    /// Of a broken handle, or of memory.
    pub(super) fn new(port: &PlugInPort, to: &NicHandle) -> Result<PlugInDialling> {
        let PlugInGreeting { nonce, handle } = PlugInGreeting::decode(to.content())?;
        let room = HostMemory.allocate_for_nic(ROOM_BYTES)?;
        Ok(PlugInDialling { port: port.clone(), nonce, room, stage: DialStep::Connecting(Box::new(handle)) })
    }

    /// Goes on; both ways, once they are there.
    ///
    /// # Errors
    /// Of the connection.
    pub(super) fn progress(&mut self) -> Result<Option<PlugInWays>> {
        if let DialStep::Connecting(handle) = &mut self.stage {
            let port = &self.port;
            // SAFETY: the handle lies in a box, and has come from a rank over an authenticated connection.
            let send = unsafe { port.plug_in.connect(port.context, port.device, handle) };
            let Some(send) = send.map_err(|refusal| port.error(refusal))? else { return Ok(None) };
            self.stage = DialStep::Over;
            self.begin_to_tell(send)?;
        }
        let port = &self.port;
        let failed = |refusal| port.error(refusal);
        let DialStep::Telling { send, key, listener, told, receive } = &mut self.stage else { return Ok(None) };
        *told = match *told {
            GreetingStep::Not => {
                // SAFETY: the greeting lies in the room, which nobody writes to now.
                let request = unsafe { port.plug_in.send(*send, (self.room.base(), GREETING_BYTES), *key) };
                request.map_err(failed)?.map_or(GreetingStep::Not, GreetingStep::UnderWay)
            }
            // SAFETY: it was not done before.
            GreetingStep::UnderWay(request) => match unsafe { port.plug_in.test(request) }.map_err(failed)? {
                None => GreetingStep::UnderWay(request),
                Some(_) => GreetingStep::Done,
            },
            GreetingStep::Done => GreetingStep::Done,
        };
        if receive.is_none() {
            // SAFETY: the listener is open.
            *receive = unsafe { port.plug_in.accept(*listener) }.map_err(failed)?;
        }
        let (Some(receive), GreetingStep::Done) = (*receive, *told) else { return Ok(None) };
        let (send, room_key, listener) = (*send, *key, *listener);
        self.stage = DialStep::Over;
        self.port.close(PlugInEnd::Listen(listener));
        Ok(Some(PlugInWays { nonce: self.nonce, send, receive, room: self.room.clone(), room_key }))
    }

    /// Makes the way back, and the greeting that says where.
    fn begin_to_tell(&mut self, send: PlugInObject) -> Result<()> {
        let port = &self.port;
        let failed = |refusal| {
            port.close(PlugInEnd::Send(send));
            port.error(refusal)
        };
        // SAFETY: the room stays until `give_up`, or as long as the connection.
        let key = unsafe { port.plug_in.register(send, (self.room.base(), ROOM_BYTES)) }.map_err(failed)?;
        let (listener, handle) = port.plug_in.listen(port.context, port.device).map_err(|refusal| {
            port.deregister(send, key);
            failed(refusal)
        })?;
        let greeting = PlugInGreeting { nonce: self.nonce, handle }.encode();
        // SAFETY: inside the room, which no request has.
        unsafe { self.room.base().as_ptr().copy_from_nonoverlapping(greeting.as_ptr(), greeting.len()) };
        self.stage = DialStep::Telling { send, key, listener, told: GreetingStep::Not, receive: None };
        Ok(())
    }

    /// Closes all. True where the plug-in may still read the room, which is kept then.
    pub(super) fn give_up(mut self) -> bool {
        let DialStep::Telling { send, key, listener, told, receive } =
            std::mem::replace(&mut self.stage, DialStep::Over)
        else {
            return false;
        };
        if let Some(receive) = receive {
            self.port.close(PlugInEnd::Receive(receive));
        }
        self.port.close(PlugInEnd::Listen(listener));
        let is_lost = matches!(told, GreetingStep::UnderWay(_));
        if is_lost {
            // As above.
            std::mem::forget(self.room);
        } else {
            self.port.deregister(send, key);
            self.port.close(PlugInEnd::Send(send));
        }
        is_lost
    }
}

const NONCE_BYTES: usize = 16;
const GREETING_BYTES: usize = NONCE_BYTES + HANDLE_BYTES;
/// A page: a greeting, and a farewell behind it.
pub(super) const ROOM_BYTES: usize = 4096;
/// Where the farewell lies.
pub(super) const FAREWELL_AT: usize = 1024;

const _: () = assert!(GREETING_BYTES <= FAREWELL_AT);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back_and_others_are_refused() {
        let greeting = PlugInGreeting { nonce: [7; NONCE_BYTES], handle: PlugInHandle([3; HANDLE_BYTES]) };
        let bytes = greeting.encode();
        assert_eq!(PlugInGreeting::decode(&bytes).unwrap(), greeting);
        for cut in 0..bytes.len() {
            assert!(PlugInGreeting::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        assert!(PlugInGreeting::decode(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many");
    }
}
