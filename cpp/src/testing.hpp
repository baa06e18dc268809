// For the library's own tests, and not installed: what must never happen, on purpose.
#pragma once

#include <rsccl/communicator.hpp>

namespace rsccl::testing {

// Panics behind the bridge, outside of any communicator. Throws what comes of it.
void panic();

// Panics behind the bridge, inside a call on `communicator`. Throws what comes of it.
void panic(Communicator& communicator);

} // namespace rsccl::testing
