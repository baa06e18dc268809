//! The first message of a connection: the peer that connects says who it is, since a message of libfabric's has no
//! sender. And the memory for such messages.
//!
//! ```text
//! width  meaning
//! 8      nonce, which the listener has put into its handle
//! 4      number of the connection at the peer
//! 2      length of the address
//! n      the peer's address, as libfabric writes it
//! ```

use std::ptr::NonNull;

use crate::device::{HostMemory, HostRegion};
use crate::error::{Error, Kind, Result};
use crate::transport::libfabric::endpoint::{OfiEndpoint, OfiMemory, RegionKey};
use crate::transport::libfabric::library::MOST_ADDRESS_BYTES;
use crate::transport::net::request_nic::MOST_HANDLE_BYTES;
use crate::wire::{Reader, Writer};

/// What one end tells the other of itself: a listener in its handle, whoever connects in its greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OfiGreeting {
    /// Only who has the handle knows it.
    pub(super) nonce: u64,
    /// The number of the connection at this end.
    pub(super) number: u32,
    pub(super) address: Vec<u8>,
}

impl OfiGreeting {
    /// # Errors
    /// Where the address is longer than any that is known.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let length = self.address.len();
        let Some(short) = u16::try_from(length).ok().filter(|_| length <= MOST_ADDRESS_BYTES) else {
            let message = format!("libfabric has an address of {length} bytes, of which {MOST_ADDRESS_BYTES} fit");
            return Err(Error::new(Kind::System, message));
        };
        let mut writer = Writer::with_capacity(MOST_GREETING_BYTES);
        writer.u64(self.nonce).u32(self.number).u16(short).raw(&self.address);
        Ok(writer.finish())
    }

    /// # Errors
    /// Where the bytes are no greeting.
    pub(super) fn decode(bytes: &[u8]) -> Result<OfiGreeting> {
        let mut reader = Reader::new(bytes, "where a NIC of libfabric listens");
        let (nonce, number, length) = (reader.u64()?, reader.u32()?, reader.u16()?);
        let address = reader.rest();
        if address.len() != usize::from(length) || address.is_empty() || address.len() > MOST_ADDRESS_BYTES {
            return Err(Error::new(Kind::Remote, "a peer tells a broken address of libfabric"));
        }
        Ok(OfiGreeting { nonce, number, address: address.to_vec() })
    }
}

/// Memory for greetings that are under way.
#[derive(Debug, Default)]
pub(super) struct GreetingPool {
    chunks: Vec<HostRegion>,
    free: Vec<GreetingRoom>,
}

/// Room for one greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GreetingRoom {
    chunk: u32,
    room: usize,
}

impl GreetingPool {
    /// Room for a greeting, in memory that is registered with the endpoint.
    ///
    /// # Errors
    /// Of the memory, or of its registration.
    pub(super) fn take(&mut self, endpoint: &mut OfiEndpoint) -> Result<GreetingRoom> {
        if self.free.is_empty() {
            let chunk = HostMemory.allocate_for_nic(CHUNK_BYTES)?;
            let number = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
            let memory = OfiMemory { region: RegionKey::Own(number), start: chunk.base(), bytes: CHUNK_BYTES };
            // First: a provider that fails halfway may have pinned it.
            self.chunks.push(chunk);
            // SAFETY: the chunk stays where it is, and is unmapped after the endpoint was closed, or never.
            unsafe { endpoint.register(memory) }?;
            self.free.extend((0..ROOMS).rev().map(|room| GreetingRoom { chunk: number, room }));
        }
        self.free.pop().ok_or_else(|| Error::internal("a chunk has no room"))
    }

    /// The room is no longer used.
    pub(super) fn give_back(&mut self, place: GreetingRoom) {
        self.free.push(place);
    }

    fn room(&self, place: GreetingRoom) -> NonNull<u8> {
        self.chunks[place.chunk as usize].at(place.room * ROOM_BYTES, ROOM_BYTES)
    }

    /// The whole room, for a receive.
    pub(super) fn memory(&self, place: GreetingRoom) -> OfiMemory {
        OfiMemory { region: RegionKey::Own(place.chunk), start: self.room(place), bytes: ROOM_BYTES }
    }

    /// Writes a greeting; the part of the room that it takes.
    pub(super) fn write(&mut self, place: GreetingRoom, greeting: &[u8]) -> OfiMemory {
        let bytes = greeting.len().min(ROOM_BYTES);
        let start = self.room(place);
        // SAFETY: a room of the pool, which is borrowed exclusively, and no request has it.
        unsafe { start.as_ptr().copy_from_nonoverlapping(greeting.as_ptr(), bytes) };
        OfiMemory { bytes, ..self.memory(place) }
    }

    /// The first bytes of what has come.
    pub(super) fn read(&self, place: GreetingRoom, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes.min(ROOM_BYTES)];
        let start = self.room(place);
        // SAFETY: a room of the pool, and the receive into it is over.
        unsafe { start.as_ptr().copy_to_nonoverlapping(content.as_mut_ptr(), content.len()) };
        content
    }
}

/// The longest greeting.
pub(super) const MOST_GREETING_BYTES: usize = 8 + 4 + 2 + MOST_ADDRESS_BYTES;
const ROOM_BYTES: usize = 320;
/// Three pages of a chunk have so many rooms, and the least that a page has is 4 KiB.
const ROOMS: usize = CHUNK_BYTES / ROOM_BYTES;
const CHUNK_BYTES: usize = 3 * 4096;

const _: () = assert!(MOST_GREETING_BYTES <= ROOM_BYTES && MOST_GREETING_BYTES <= MOST_HANDLE_BYTES);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back_and_broken_ones_are_refused() {
        let longest = OfiGreeting { nonce: 1 << 63, number: 7, address: vec![0xa5; MOST_ADDRESS_BYTES] };
        let bytes = longest.encode().unwrap();
        assert_eq!((bytes.len(), OfiGreeting::decode(&bytes).unwrap()), (MOST_GREETING_BYTES, longest.clone()));
        for cut in 0..bytes.len() {
            assert!(OfiGreeting::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let longer = OfiGreeting { address: vec![0; MOST_ADDRESS_BYTES + 1], ..longest };
        let error = longer.encode().unwrap_err();
        assert_eq!(error.to_string(), "libfabric has an address of 257 bytes, of which 256 fit");
        let mut more = OfiGreeting { address: vec![1; 16], ..longer }.encode().unwrap();
        more.push(0);
        assert!(OfiGreeting::decode(&more).is_err(), "a byte too many");
    }
}
