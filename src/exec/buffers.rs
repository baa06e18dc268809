//! The user's memory of one operation: where the borrow checker's knowledge ends, and what stands in for it.

use std::marker::PhantomData;

use crate::types::Element;

/// Input and output of one collective on one rank.
///
/// Holds, for `'a`: `input` is good for reading `input_bytes`, `output` for writing `output_bytes`, and nobody but the operation
/// touches them. Everything that follows pointers of an operation rests on this.
#[derive(Debug)]
pub struct Buffers<'a> {
    pub(super) input: *const u8,
    pub(super) input_bytes: usize,
    pub(super) output: *mut u8,
    pub(super) output_bytes: usize,
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
        Buffers {
            input: input.as_ptr().cast(),
            input_bytes: size_of_val(input),
            output: output.as_mut_ptr().cast(),
            output_bytes: size_of_val(output),
            borrow: PhantomData,
        }
    }

    /// One buffer for both.
    pub fn shared<T: Element>(buffer: &'a mut [T]) -> Buffers<'a> {
        let output = buffer.as_mut_ptr();
        let bytes = size_of_val(buffer);
        let (input, output) = (output.cast_const().cast(), output.cast());
        Buffers { input, input_bytes: bytes, output, output_bytes: bytes, borrow: PhantomData }
    }

    /// The output is all of `buffer`, the input `count` elements of it from `start` on.
    ///
    /// # Panics
    /// Where they are not inside.
    pub fn input_inside<T: Element>(buffer: &'a mut [T], start: usize, count: usize) -> Buffers<'a> {
        let input_bytes = size_of_val(&buffer[start..start + count]);
        let whole = Buffers::shared(buffer);
        let input = whole.input.wrapping_add(start * size_of::<T>());
        Buffers { input, input_bytes, ..whole }
    }

    /// The input is all of `buffer`, the output `count` elements of it from `start` on.
    ///
    /// # Panics
    /// Where they are not inside.
    pub fn output_inside<T: Element>(buffer: &'a mut [T], start: usize, count: usize) -> Buffers<'a> {
        let output_bytes = size_of_val(&buffer[start..start + count]);
        let whole = Buffers::shared(buffer);
        let output = whole.output.wrapping_add(start * size_of::<T>());
        Buffers { output, output_bytes, ..whole }
    }

    /// Memory that the type system knows nothing of. Null goes with 0 bytes.
    ///
    /// # Safety
    /// For `'a`, `input` is good for reading `input_bytes`, `output` for writing `output_bytes`, and nobody else touches either. They may
    /// be one buffer, or the one the rank's block of the other; else they are apart.
    pub unsafe fn from_raw(
        (input, input_bytes): (*const u8, usize),
        (output, output_bytes): (*mut u8, usize),
    ) -> Buffers<'a> {
        Buffers { input, input_bytes, output, output_bytes, borrow: PhantomData }
    }

    /// Where input and output begin.
    pub fn places(&self) -> (*const u8, *const u8) {
        (self.input, self.output.cast_const())
    }
}
