// The library's side of rsccl/mpi.hpp: joining a communicator by functions of MPI that the header fills in.
#include <rsccl/mpi_calls.hpp>

#include "bridge.hpp"

namespace rsccl::detail {

namespace {

// The bridge cannot pass a struct of function pointers: this casts its address to bytes, and Rust casts it back.
const std::uint8_t* table(const MpiCalls& calls) { return reinterpret_cast<const std::uint8_t*>(&calls); }

State& state_of(const Communicator& communicator) { return use(Access::state(communicator).get()); }

} // namespace

Communicator OverMpi::join(const MpiCalls& calls, MpiHandle theirs, const Config& config) {
    rust::Box<ffi::Comm> comm = ffi::comm();
    detail::check(ffi::mpi_join(*comm, table(calls), theirs, *settings(config)));
    return Access::communicator(std::move(comm));
}

std::optional<Communicator> OverMpi::like(const MpiCalls& calls, const Communicator& communicator, MpiHandle sub) {
    rust::Box<ffi::Comm> child = ffi::comm();
    State& state = state_of(communicator);
    detail::check(ffi::mpi_like(*state.comm, table(calls), sub, *child), *state.thrown);
    if (!ffi::is_open(*child)) {
        return std::nullopt;
    }
    return Access::child(std::move(child), state);
}

void OverMpi::check(const MpiCalls& calls, const Communicator& communicator, MpiHandle theirs) {
    State& state = state_of(communicator);
    detail::check(ffi::mpi_check(*state.comm, table(calls), theirs), *state.thrown);
}

Placement OverMpi::placement(const MpiCalls& calls, const Communicator& communicator, MpiHandle theirs) {
    ffi::Place place{};
    State& state = state_of(communicator);
    detail::check(ffi::mpi_placement(*state.comm, table(calls), theirs, place), *state.thrown);
    return placement_of(place);
}

bool OverMpi::check_thread(const MpiCalls& calls) {
    bool everywhere = false;
    detail::check(ffi::mpi_check_thread(table(calls), everywhere));
    return everywhere;
}

void OverMpi::poke(const MpiCalls& calls) { detail::check(ffi::mpi_poke(table(calls))); }

} // namespace rsccl::detail
