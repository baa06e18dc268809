// The generated bridge, and what every file behind the headers needs of it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <rsccl/src/ffi.rs.h>

#include <rsccl/communicator.hpp>
#include <rsccl/error.hpp>

namespace rsccl::detail {

// The error that `failure` holds; frees it.
Error take_error(ffi::Failure* failure);

// Throws what `failure` holds.
[[noreturn]] void raise(ffi::Failure* failure);

// Throws what a call of the bridge returned, unless that is null: all is well.
inline void check(ffi::Failure* failure) {
    if (__builtin_expect(failure != nullptr, 0)) {
        raise(failure);
    }
}

// Throws what a call on a communicator returned, where that is not null; where its hook threw, with that nested and its code.
[[noreturn]] void raise(ffi::Failure* failure, ffi::Thrown& thrown);
inline void check(ffi::Failure* failure, ffi::Thrown& thrown) {
    if (__builtin_expect(failure != nullptr, 0)) {
        raise(failure, thrown);
    }
}

// The exception that is being handled, as C++ programs tell it to the library.
ffi::Status current_status() noexcept;

inline rust::Slice<const std::uint8_t> bytes(const std::string& text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

inline rust::Slice<const std::size_t> counts(View<const std::size_t> all) { return {all.data(), all.size()}; }

// The configuration as the bridge has it.
rust::Box<ffi::Settings> settings(const Config& config);

// What the engine takes of a call of `rank`.
ffi::What what_of(const Call& call, int rank);

// What a Communicator points to, with its requests and groups.
struct State {
    explicit State(rust::Box<ffi::Comm> made);
    // Ends the communicator, with a word of abort where an exception takes it away.
    ~State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    rust::Box<ffi::Comm> comm;
    rust::Box<ffi::Stop> stop;
    const int rank;
    const int size;
    const int exceptions; // under way when it was made
    const std::shared_ptr<ffi::Thrown> thrown = std::make_shared<ffi::Thrown>();
    std::atomic<bool> busy{false};
    std::atomic<bool> open{true};
};

// The right to use a communicator, for the length of a call.
class Use {
  public:
    explicit Use(State* state) : state_(state) {
        if (__builtin_expect(state == nullptr, 0)) {
            refuse_empty();
        }
        // Pairs with the release below: what the thread before did to the communicator is seen.
        if (__builtin_expect(state->busy.exchange(true, std::memory_order_acquire), 0)) {
            refuse_busy(*state);
        }
    }
    ~Use() { state_->busy.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    [[noreturn]] static void refuse_empty();
    [[noreturn]] static void refuse_busy(const State& state);

  private:
    State* state_;
};

// A request under way.
struct Pending {
    rust::Box<ffi::Waiting> waiting;
    std::shared_ptr<ffi::Thrown> thrown; // of the communicator's hook
};

// The way to what the classes keep to themselves.
struct Access {
    static Request request(rust::Box<ffi::Waiting> waiting, const std::shared_ptr<ffi::Thrown>& thrown) {
        return Request(std::unique_ptr<Pending>(new Pending{std::move(waiting), thrown}));
    }
    static Communicator communicator(rust::Box<ffi::Comm> comm) {
        return Communicator(std::make_shared<State>(std::move(comm)));
    }
    static std::shared_ptr<State>& state(Communicator& communicator) { return communicator.state_; }
    static ffi::Memory& memory(SharedBytes& bytes);
};

} // namespace rsccl::detail
