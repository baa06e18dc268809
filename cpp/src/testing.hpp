// For the library's own tests and measurements, and not installed: what must never happen, on purpose, and what it is compared with.
#pragma once

#include <rsccl/communicator.hpp>

namespace rsccl::testing {

// Panics behind the bridge, outside of any communicator. Throws what comes of it.
void panic();

// Panics behind the bridge, inside a call on `communicator`. Throws what comes of it.
void panic(Communicator& communicator);

// How many nanoseconds an all-reduce of one float takes from Rust on `communicator`, on average over `turns`. Collective.
double all_reduce_ns(Communicator& communicator, unsigned turns);

} // namespace rsccl::testing
