#include "testing.hpp"

#include "bridge.hpp"

namespace rsccl::testing {

void panic() { detail::check(ffi::provoke_panic()); }

void panic(Communicator& communicator) {
    detail::State* state = detail::Access::state(communicator).get();
    const detail::Use use(state);
    detail::check(ffi::provoke_panic_in(*state->comm));
}

} // namespace rsccl::testing
