// An init in two halves.
#include <rsccl/preparation.hpp>

#include <cstring>

#include "bridge.hpp"

namespace rsccl::detail {

struct Preparation::Halves {
    rust::Box<ffi::Prepared> prepared = ffi::prepared();
};

Preparation::Preparation(const Config& config) : halves_(std::make_unique<Halves>()) {
    check(ffi::prepare(*halves_->prepared, *settings(config)));
}

Preparation::Preparation(Preparation&&) noexcept = default;
Preparation& Preparation::operator=(Preparation&&) noexcept = default;
Preparation::~Preparation() = default;

std::chrono::milliseconds Preparation::init_timeout() const {
    return std::chrono::milliseconds(ffi::prepared_timeout_ms(*halves_->prepared));
}

std::chrono::milliseconds Preparation::patience(const Config& config) {
    Config alone;
    alone.init_timeout = config.init_timeout;
    try {
        return std::chrono::milliseconds(ffi::patience_ms(*settings(alone)));
    } catch (const Error&) {
        // It is wrong itself: the environment's counts, or the default.
        return std::chrono::milliseconds(ffi::patience_ms(*settings(Config())));
    }
}

UniqueId Preparation::unique_id() const {
    std::array<std::uint8_t, UniqueId::length> made{};
    check(ffi::prepared_id(*halves_->prepared, made));
    UniqueId id;
    std::memcpy(id.data(), made.data(), UniqueId::length);
    return id;
}

Communicator Preparation::join(const UniqueId& id, int rank, int size) {
    rust::Box<ffi::Comm> comm = ffi::comm();
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(id.data());
    check(ffi::join_aside(*halves_->prepared, *comm, {bytes, UniqueId::length}, rank, size));
    return Access::communicator(std::move(comm));
}

std::uint64_t Preparation::number(Communicator& communicator) {
    std::uint64_t number = 0;
    State* state = Access::state(communicator).get();
    const Use use(state);
    check(ffi::number(*state->comm, number));
    return number;
}

std::chrono::milliseconds Preparation::init_timeout(Communicator& communicator) {
    std::int64_t milliseconds = 0;
    State* state = Access::state(communicator).get();
    const Use use(state);
    check(ffi::init_timeout_ms(*state->comm, milliseconds));
    return std::chrono::milliseconds(milliseconds);
}

void Preparation::warn(int rank, const std::string& text) { ffi::warn(rank, bytes(text)); }

void Preparation::warn_of_lone_world() { ffi::warn_of_lone_world(); }

} // namespace rsccl::detail
