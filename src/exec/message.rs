//! One send or recv: the user's memory, and what both ends must agree on. A [`MessageRun`](super::MessageRun) moves it.

use std::marker::PhantomData;

use crate::device::{self, Home, Place, Region};
use crate::error::{Error, Result};
use crate::exec::{Keeper, MessageEnd, ReadBuffer, WriteBuffer};
use crate::sync::ring::Label;
use crate::transport::{Channel, Need, Way};
use crate::types::{DataType, Element, NO_RANK, Rank, World};

/// One end of a message: the user's memory, and what both ends must agree on.
#[derive(Debug)]
pub struct Message<'a> {
    peer: Rank,
    pub(super) direction: Direction,
    count: u64,
    data_type: DataType,
    home: Home,
    /// Who sees to it that the memory lives until the message has run.
    keeper: Keeper<'a>,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: the borrow of `'a` is of plain data without thread affinity; moving it moves the right to use it.
unsafe impl Send for Message<'_> {}

/// Which end of the message, and its memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    Send(*const u8),
    Recv(*mut u8),
}

impl<'a> Message<'a> {
    /// The sending end.
    pub fn send<T: Element>(buffer: &'a [T], peer: Rank) -> Message<'a> {
        Message::of::<T>(Direction::Send(buffer.as_ptr().cast()), buffer.len(), peer)
    }

    /// The receiving end.
    pub fn recv<T: Element>(buffer: &'a mut [T], peer: Rank) -> Message<'a> {
        Message::of::<T>(Direction::Recv(buffer.as_mut_ptr().cast()), buffer.len(), peer)
    }

    /// An end of a message of `elements` in the caller's memory on the host.
    fn of<T: Element>(direction: Direction, elements: usize, peer: Rank) -> Message<'a> {
        Message {
            peer,
            direction,
            count: (elements * T::VALUES) as u64,
            data_type: T::DATA_TYPE,
            home: Home::Host,
            keeper: Keeper::Caller,
            borrow: PhantomData,
        }
    }

    /// [`Message::send`], of any memory.
    #[inline]
    pub(crate) fn sending<T: Element>(buffer: impl ReadBuffer<'a, T>, peer: Rank) -> Message<'a> {
        let count = (buffer.count() * T::VALUES) as u64;
        let (Place { address, home, .. }, keeper) = buffer.place();
        let direction = Direction::Send(address.cast_const());
        Message { peer, direction, count, data_type: T::DATA_TYPE, home, keeper, borrow: PhantomData }
    }

    /// [`Message::recv`], of any memory.
    #[inline]
    pub(crate) fn receiving<T: Element>(buffer: impl WriteBuffer<'a, T>, peer: Rank) -> Message<'a> {
        let count = (buffer.count() * T::VALUES) as u64;
        let (Place { address, home, .. }, keeper) = buffer.place();
        let direction = Direction::Recv(address);
        Message { peer, direction, count, data_type: T::DATA_TYPE, home, keeper, borrow: PhantomData }
    }

    /// The same message, for as long as this one is borrowed: so it goes by reference to where it begins. Each move of
    /// what was just written waits until it has left the store buffer, which a message of 8 bytes feels.
    #[inline]
    pub(crate) fn reborrow(&mut self) -> Message<'_> {
        let Message { peer, direction, count, data_type, home, keeper, borrow: _ } = *self;
        Message { peer, direction, count, data_type, home, keeper, borrow: PhantomData }
    }

    /// Takes the message, and leaves one of nothing: so it goes by reference to where it begins, for the reason that
    /// [`Message::reborrow`] gives.
    #[inline]
    pub(crate) fn take(&mut self) -> Message<'a> {
        let Message { peer, direction, count, data_type, home, keeper, borrow: _ } = *self;
        (self.direction, self.count) = (Direction::Send(std::ptr::null()), 0);
        Message { peer, direction, count, data_type, home, keeper, borrow: PhantomData }
    }

    /// The two messages of a `send_recv`; to or from [`NO_RANK`] there is none.
    #[inline]
    pub(crate) fn pair<T: Element>(
        (send, target): (impl ReadBuffer<'a, T>, u32),
        (recv, source): (impl WriteBuffer<'a, T>, u32),
    ) -> (Option<Message<'a>>, Option<Message<'a>>) {
        let sent = (target != NO_RANK).then(|| Message::sending(send, Rank::new(target)));
        let received = (source != NO_RANK).then(|| Message::receiving(recv, Rank::new(source)));
        (sent, received)
    }

    /// The sending end of memory that the type system knows nothing of.
    ///
    /// # Safety
    /// For `'a`, `place` is good for reading `count` elements, and nobody writes them.
    pub unsafe fn send_raw(place: *const u8, (count, data_type): (u64, DataType), peer: Rank) -> Message<'a> {
        Message {
            peer,
            direction: Direction::Send(place),
            count,
            data_type,
            home: Home::Host,
            keeper: Keeper::Caller,
            borrow: PhantomData,
        }
    }

    /// The receiving end of memory that the type system knows nothing of.
    ///
    /// # Safety
    /// For `'a`, `place` is good for writing `count` elements, and nobody else touches them.
    pub unsafe fn recv_raw(place: *mut u8, (count, data_type): (u64, DataType), peer: Rank) -> Message<'a> {
        Message {
            peer,
            direction: Direction::Recv(place),
            count,
            data_type,
            home: Home::Host,
            keeper: Keeper::Caller,
            borrow: PhantomData,
        }
    }

    /// [`Buffers::exposed`](crate::exec::Buffers::exposed), for a message.
    pub(crate) fn exposed(mut self) -> Message<'a> {
        self.direction = match self.direction {
            Direction::Send(from) => Direction::Send(std::ptr::with_exposed_provenance(from.expose_provenance())),
            Direction::Recv(into) => Direction::Recv(std::ptr::with_exposed_provenance_mut(into.expose_provenance())),
        };
        self
    }

    /// The same message once more, of the caller's host.
    ///
    /// # Safety
    /// As [`Buffers::again`](crate::exec::Buffers::again).
    pub(crate) unsafe fn again<'b>(&self) -> Message<'b> {
        let &Message { peer, direction, count, data_type, home, .. } = self;
        Message { peer, direction, count, data_type, home, keeper: Keeper::Caller, borrow: PhantomData }
    }

    /// The home of its memory; the host if the message has no bytes.
    pub fn home(&self) -> Home {
        if self.count > 0 { self.home } else { Home::Host }
    }

    /// What must stay alive until the message has run.
    pub(crate) fn kept(&self) -> Option<Region> {
        self.keeper.region()
    }

    /// Who keeps its memory.
    pub(crate) fn keeper(&self) -> Keeper<'a> {
        self.keeper
    }

    /// The address of its buffer, which its home may follow.
    pub(crate) fn address(&self) -> u64 {
        match self.direction {
            Direction::Send(from) => from.addr() as u64,
            Direction::Recv(into) => into.addr() as u64,
        }
    }

    /// This end of the message, which its rank calls by `label`, for a rendezvous.
    pub(crate) fn end(&self, label: Label) -> MessageEnd {
        MessageEnd {
            peer: self.peer,
            sends: self.sends(),
            label,
            address: self.address(),
            bytes: self.bytes() as u64,
            keep: self.kept(),
        }
    }

    /// The same message, of memory of another home.
    pub(crate) fn in_home(mut self, home: Home) -> Message<'a> {
        self.home = home;
        self
    }

    /// The same message, in the home that `locate` finds by its buffer's name and address; it is not asked where there
    /// are no bytes.
    #[cfg(all(feature = "cpp", feature = "cuda"))]
    pub(crate) fn located(self, locate: &dyn Fn(&str, u64) -> Result<Home>) -> Result<Message<'a>> {
        if self.count == 0 {
            return Ok(self);
        }
        let home = locate(if self.sends() { "send" } else { "recv" }, self.address())?;
        Ok(self.in_home(home))
    }

    /// The other end.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// The elements' type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The elements.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Where a send's input and a receive's output begin; null for the other.
    pub fn places(&self) -> (*const u8, *const u8) {
        match self.direction {
            Direction::Send(from) => (from, std::ptr::null()),
            Direction::Recv(into) => (std::ptr::null(), into.cast_const()),
        }
    }

    /// Whether this end sends.
    pub fn sends(&self) -> bool {
        matches!(self.direction, Direction::Send(_))
    }

    /// The connection's end that the message needs.
    pub fn need(&self) -> Need {
        let way = if self.sends() { Way::Send } else { Way::Receive };
        Need { way, peer: self.peer, channel: Channel::PointToPoint }
    }

    /// Checks what one rank alone can see.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a peer that is not a rank, a null buffer, a count beyond the address
    /// space.
    pub fn check(&self, world: World) -> Result<()> {
        self.check_all(world).map_err(|error| error.during(if self.sends() { "send" } else { "recv" }))
    }

    fn check_all(&self, world: World) -> Result<()> {
        if self.peer.get() >= world.size {
            let message = format!("peer {} is out of range: the world has {} ranks", self.peer, world.size);
            return Err(Error::invalid_argument(message));
        }
        let null = match self.direction {
            Direction::Send(from) => from.is_null(),
            Direction::Recv(into) => into.is_null(),
        };
        if null && self.count > 0 {
            return Err(Error::invalid_argument("the buffer of a message is null, and its count is not 0"));
        }
        if self.home != Home::Host && self.count > 0 {
            device::of(self.home)?;
        }
        let bytes = self.count.checked_mul(u64::from(self.data_type.size()));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(Error::invalid_argument(format!("a message of {} elements is too large", self.count)));
        }
        Ok(())
    }

    /// Its length; of a message that has been checked.
    pub(crate) fn bytes(&self) -> usize {
        let bytes =
            self.count.checked_mul(u64::from(self.data_type.size())).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.expect("checked before the message runs")
    }
}

/// Checks that sends to `me` and recvs from `me` match, in order.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] where one has no partner, [`crate::error::Kind::InvalidArgument`] where
/// partners differ.
pub fn check_to_self(me: Rank, messages: &[Message<'_>]) -> Result<()> {
    let own = || messages.iter().filter(|message| message.peer == me);
    let (mut sends, mut recvs) = (own().filter(|message| message.sends()), own().filter(|message| !message.sends()));
    loop {
        match (sends.next(), recvs.next()) {
            (None, None) => return Ok(()),
            (Some(send), Some(recv)) if (send.count, send.data_type) == (recv.count, recv.data_type) => {}
            (Some(send), Some(recv)) => {
                return Err(Error::invalid_argument(format!(
                    "this rank's send to itself has {} {}, and its recv from itself has {} {}",
                    send.count, send.data_type, recv.count, recv.data_type
                )));
            }
            (Some(_), None) | (None, Some(_)) => {
                return Err(Error::invalid_usage("a send to this rank itself needs its recv in the same group"));
            }
        }
    }
}

/// Matches sends to `me` with recvs from `me`, in order, and copies them; returns the messages to other ranks.
///
/// # Errors
/// As [`check_to_self`]; nothing is copied then.
pub fn copy_to_self<'a>(me: Rank, messages: Vec<Message<'a>>) -> Result<Vec<Message<'a>>> {
    check_to_self(me, &messages)?;
    let (own, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.peer == me);
    let (sends, recvs): (Vec<_>, Vec<_>) = own.iter().partition(|message| message.sends());
    for (send, recv) in sends.iter().zip(&recvs) {
        let (Direction::Send(from), Direction::Recv(into)) = (send.direction, recv.direction) else { continue };
        // SAFETY: both are good for the message by `Message`'s construction; `copy` allows them to overlap.
        unsafe { std::ptr::copy(from, into, send.bytes()) };
    }
    Ok(others)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::DeviceId;

    #[test]
    fn a_message_of_memory_that_no_executor_reaches_is_refused() {
        let world = World { rank: Rank::new(0), size: 2 };
        let far = Home::Device(DeviceId(4));
        let message = Message::send(&[1u8; 3], Rank::new(1));
        assert!(message.check(world).is_ok());
        let error = message.in_home(far).check(world).unwrap_err();
        assert!(error.message().contains("the memory of device 4"), "{error}");
        let nothing = Message::send::<u8>(&[], Rank::new(1)).in_home(far);
        assert!(nothing.check(world).is_ok());
    }
}
