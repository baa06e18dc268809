//! `libcuda.so.1` of the virtual GPU machine: C entry points over the crate `vcuda`.
