#include "testing.hpp"

#include "bridge.hpp"

namespace rsccl::testing {

void panic() { detail::check(ffi::provoke_panic()); }

void panic(Communicator& communicator) {
    detail::check(ffi::provoke_panic_in(*detail::use(detail::Access::state(communicator).get()).comm));
}

} // namespace rsccl::testing
