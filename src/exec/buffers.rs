//! The user's memory of one operation, as raw pointers, with the contract that replaces the borrow checker.

use std::marker::PhantomData;

use crate::device::{self, Home, Place, Region};
use crate::error::{Error, Result};
use crate::exec::{DeviceSlice, DeviceSliceMut, Keeper, Order, ReadBuffer, WriteBuffer};
use crate::types::Element;

/// Input and output of one collective on one rank.
///
/// Holds, for `'a`: the input is good for reading, the output for writing, and nobody but the operation touches them.
/// Everything that follows pointers of an operation rests on this.
#[derive(Debug)]
pub struct Buffers<'a> {
    pub(super) input: Place,
    pub(super) output: Place,
    /// Who sees to it that the memory lives until the call has run, where that is not the caller.
    keepers: Option<Box<[Keeper<'a>; 2]>>,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: the borrow of `'a` is of plain data without thread affinity; moving it moves the right to use it.
unsafe impl Send for Buffers<'_> {}

impl<'a> Buffers<'a> {
    /// No memory, as a barrier needs.
    pub fn none() -> Buffers<'a> {
        Buffers::apart::<u8>(&[], &mut [])
    }

    /// Input and output apart.
    pub fn apart<T: Element>(input: &'a [T], output: &'a mut [T]) -> Buffers<'a> {
        let (input_bytes, output_bytes) = (size_of_val(input), size_of_val(output));
        Buffers::of((input.as_ptr().cast(), input_bytes), (output.as_mut_ptr().cast(), output_bytes))
    }

    /// One buffer for both.
    pub fn shared<T: Element>(buffer: &'a mut [T]) -> Buffers<'a> {
        let (bytes, place) = (size_of_val(buffer), buffer.as_mut_ptr().cast::<u8>());
        Buffers::of((place.cast_const(), bytes), (place, bytes))
    }

    /// [`Buffers::apart`], in any memory.
    #[inline]
    pub(crate) fn of_two<T: Element>(input: impl ReadBuffer<'a, T>, output: impl WriteBuffer<'a, T>) -> Buffers<'a> {
        let ((input, one), (output, other)) = (input.place(), output.place());
        Buffers::keeping(input, output, [one, other])
    }

    /// [`Buffers::shared`], in any memory.
    #[inline]
    pub(crate) fn of_one<T: Element>(buffer: impl WriteBuffer<'a, T>) -> Buffers<'a> {
        let (place, keeper) = buffer.place();
        Buffers::keeping(place, place, [keeper, Keeper::Caller])
    }

    /// The output is all of `buffer`, the input `count` elements of it from `start` on.
    ///
    /// # Panics
    /// Where they are not inside.
    pub fn input_inside<T: Element>(buffer: &'a mut [T], start: usize, count: usize) -> Buffers<'a> {
        Buffers::input_within(buffer, start, count)
    }

    /// The input is all of `buffer`, the output `count` elements of it from `start` on.
    ///
    /// # Panics
    /// Where they are not inside.
    pub fn output_inside<T: Element>(buffer: &'a mut [T], start: usize, count: usize) -> Buffers<'a> {
        Buffers::output_within(buffer, start, count)
    }

    /// [`Buffers::apart`], in the memory of a device.
    pub fn apart_on_device<T: Element>(input: DeviceSlice<'a, T>, output: DeviceSliceMut<'a, T>) -> Buffers<'a> {
        Buffers::of_two(input, output)
    }

    /// [`Buffers::shared`], in the memory of a device.
    pub fn shared_on_device<T: Element>(buffer: DeviceSliceMut<'a, T>) -> Buffers<'a> {
        Buffers::of_one(buffer)
    }

    /// [`Buffers::input_inside`], in the memory of a device.
    ///
    /// # Panics
    /// As there.
    pub fn input_inside_device<T: Element>(buffer: DeviceSliceMut<'a, T>, start: usize, count: usize) -> Buffers<'a> {
        Buffers::input_within(buffer, start, count)
    }

    /// [`Buffers::output_inside`], in the memory of a device.
    ///
    /// # Panics
    /// As there.
    pub fn output_inside_device<T: Element>(buffer: DeviceSliceMut<'a, T>, start: usize, count: usize) -> Buffers<'a> {
        Buffers::output_within(buffer, start, count)
    }

    /// [`Buffers::input_inside`], in any memory.
    pub(crate) fn input_within<T: Element>(buffer: impl WriteBuffer<'a, T>, start: usize, count: usize) -> Buffers<'a> {
        let (whole, keeper) = buffer.place();
        Buffers::keeping(inside::<T>(whole, start, count), whole, [keeper, Keeper::Caller])
    }

    /// [`Buffers::output_inside`], in any memory.
    pub(crate) fn output_within<T: Element>(
        buffer: impl WriteBuffer<'a, T>,
        start: usize,
        count: usize,
    ) -> Buffers<'a> {
        let (whole, keeper) = buffer.place();
        Buffers::keeping(whole, inside::<T>(whole, start, count), [keeper, Keeper::Caller])
    }

    #[inline]
    fn keeping(input: Place, output: Place, keepers: [Keeper<'a>; 2]) -> Buffers<'a> {
        let keepers = if keepers.iter().all(|keeper| keeper.is_caller()) { None } else { Some(Box::new(keepers)) };
        Buffers { input, output, keepers, borrow: PhantomData }
    }

    fn keepers(&self) -> impl Iterator<Item = Keeper<'a>> {
        self.keepers.iter().flat_map(|keepers| keepers.iter().copied())
    }

    /// What must stay alive until the call has run.
    pub(crate) fn kept(&self) -> Vec<Region> {
        self.keepers().filter_map(Keeper::region).collect()
    }

    /// Refuses an order for which the memory was not lent.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] for another stream than the one whose calls it was lent for, or one that
    /// is captured.
    #[inline]
    pub(crate) fn check_order(&self, order: Order<'_>) -> Result<()> {
        self.keepers().try_for_each(|keeper| keeper.check(order))
    }

    /// Tells lenders that a call has got the memory.
    #[inline]
    pub(crate) fn note_call(&self) {
        self.keepers().for_each(Keeper::note);
    }

    /// Memory that the type system knows nothing of. Null goes with 0 bytes.
    ///
    /// # Safety
    /// For `'a`, `input` is good for reading `input_bytes`, `output` for writing `output_bytes`, and nobody else
    /// touches either. They may be one buffer, or the one the rank's block of the other; else they are apart.
    pub unsafe fn from_raw(
        (input, input_bytes): (*const u8, usize),
        (output, output_bytes): (*mut u8, usize),
    ) -> Buffers<'a> {
        Buffers::of((input, input_bytes), (output, output_bytes))
    }

    /// The same memory, as its owner may reach it by pointers whose provenance was exposed: it is the call's again and
    /// again, and in between its owner's.
    pub(crate) fn exposed(mut self) -> Buffers<'a> {
        for place in [&mut self.input, &mut self.output] {
            place.address = std::ptr::with_exposed_provenance_mut(place.address.expose_provenance());
        }
        self
    }

    /// The same memory once more, of the caller's host.
    ///
    /// # Safety
    /// One of the two is in use at a time, and the memory lives as long as the copy is.
    pub(crate) unsafe fn again<'b>(&self) -> Buffers<'b> {
        Buffers { input: self.input, output: self.output, keepers: None, borrow: PhantomData }
    }

    fn of(input: (*const u8, usize), output: (*mut u8, usize)) -> Buffers<'a> {
        let input = Place::on_host(input.0.cast_mut(), input.1);
        Buffers { input, output: Place::on_host(output.0, output.1), keepers: None, borrow: PhantomData }
    }

    /// [`Buffers::from_raw`] for memory of any home.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn from_places(input: Place, output: Place) -> Buffers<'a> {
        Buffers { input, output, keepers: None, borrow: PhantomData }
    }

    /// The same buffers, in the homes that `locate` finds by name and address; a buffer without bytes is not asked for.
    #[cfg(all(feature = "cpp", feature = "cuda"))]
    pub(crate) fn located(mut self, locate: &dyn Fn(&str, u64) -> Result<Home>) -> Result<Buffers<'a>> {
        for (name, place) in [("send", &mut self.input), ("recv", &mut self.output)] {
            if place.bytes > 0 {
                place.home = locate(name, place.address.addr() as u64)?;
            }
        }
        Ok(self)
    }

    /// Where input and output begin.
    pub fn places(&self) -> (*const u8, *const u8) {
        (self.input.address.cast_const(), self.output.address.cast_const())
    }

    /// The input, for the host's executor: [`Buffers::check_homes`] has seen that it is host memory.
    #[inline]
    pub(crate) fn source(&self) -> *const u8 {
        debug_assert!(self.input.home == Home::Host || self.input.bytes == 0, "checked before the call runs");
        self.input.address.cast_const()
    }

    /// The output, for the host's executor: [`Buffers::check_homes`] has seen that it is host memory.
    #[inline]
    pub(crate) fn target(&self) -> *mut u8 {
        debug_assert!(self.output.home == Home::Host || self.output.bytes == 0, "checked before the call runs");
        self.output.address
    }

    /// Where both buffers live, once [`Buffers::check_homes`] has seen that it is one memory. Without bytes: on the
    /// host.
    #[inline]
    pub(crate) fn home(&self) -> Home {
        match (self.input, self.output) {
            (place, _) | (_, place) if place.bytes > 0 && place.home != Home::Host => place.home,
            _ => Home::Host,
        }
    }

    /// Whether both buffers live in one memory that this process reaches.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where they live in two memories, which it names with the buffer that
    /// lives there, or in one of a device that this process does not have.
    #[inline]
    pub(super) fn check_homes(&self) -> Result<()> {
        if self.input.home == Home::Host && self.output.home == Home::Host { Ok(()) } else { self.foreign_homes() }
    }

    #[cold]
    fn foreign_homes(&self) -> Result<()> {
        let (input, output) = (self.input, self.output);
        let used = |place: Place| place.bytes > 0;
        if used(input) && used(output) && input.home != output.home {
            return Err(Error::invalid_argument(format!(
                "the input buffer lies in {} and the output buffer in {}: give both in one memory",
                input.home, output.home
            )));
        }
        let foreign = [input, output].into_iter().find(|place| used(*place) && place.home != Home::Host);
        foreign.map_or(Ok(()), |place| device::of(place.home).map(|_| ()))
    }
}

/// `count` elements of a place, from `start` on.
fn inside<T>(whole: Place, start: usize, count: usize) -> Place {
    let (start, bytes) = (start * size_of::<T>(), count * size_of::<T>());
    assert!(start + bytes <= whole.bytes, "bytes {start} to {} of a buffer of {}", start + bytes, whole.bytes);
    Place { address: whole.address.wrapping_add(start), bytes, home: whole.home }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::DeviceId;
    use crate::error::Kind;
    use crate::exec::{Call, CallCount};
    use crate::types::{Collective, DataType, Rank, ReduceOp, World};

    /// The error of an all-reduce of one byte whose buffers live there.
    fn refused(homes: [Home; 2], bytes: [usize; 2]) -> Option<String> {
        let mut memory = [0u8; 2];
        let address = memory.as_mut_ptr();
        let places = [0, 1].map(|at| Place { address: address.wrapping_add(at), bytes: bytes[at], home: homes[at] });
        let call = Call {
            collective: Collective::AllReduce,
            data_type: DataType::U8,
            op: Some(ReduceOp::Sum),
            root: None,
            count: CallCount::Each(bytes[0] as u64),
            // SAFETY: nothing runs the call.
            buffers: unsafe { Buffers::from_places(places[0], places[1]) },
        };
        let error = call.check(World { rank: Rank::new(0), size: 2 }).err()?;
        // With feature `cuda`, and without a driver, the driver is what is missing.
        let kinds: &[Kind] =
            if cfg!(feature = "cuda") { &[Kind::InvalidArgument, Kind::System] } else { &[Kind::InvalidArgument] };
        assert!(kinds.contains(&error.kind()), "{error}");
        Some(error.message().to_owned())
    }

    #[test]
    fn buffers_of_two_memories_are_one_clear_error() {
        let (host, one, two) = (Home::Host, Home::Device(DeviceId(1)), Home::Device(DeviceId(2)));
        assert_eq!(refused([host, host], [1, 1]), None);
        let mixed = [([host, one], "host memory", "the memory of device 1"), ([two, one], "device 2", "device 1")];
        for (homes, input, output) in mixed {
            let said = refused(homes, [1, 1]).unwrap();
            let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("{text} in {said}"));
            assert!(
                at("input buffer") < at(input)
                    && at(input) < at("output buffer")
                    && at("output buffer") < said.rfind(output).unwrap(),
                "{said}"
            );
        }
        let said = refused([one, one], [1, 1]).unwrap();
        assert!(said.contains("device 1"), "{said}");
        // A buffer without bytes has no home.
        assert_eq!(refused([host, one], [0, 0]), None);
    }
}
