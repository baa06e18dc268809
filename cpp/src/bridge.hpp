// The generated bridge, and what every file behind the headers needs of it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
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

// The configuration as the bridge has it.
rust::Box<ffi::Settings> settings(const Config& config);

// What the engine takes of a call.
ffi::What what_of(const Call& call);

// The process that something was made in. A child that fork() has made has its parent's memory and none of its threads, and shares its
// sockets: what it did with its parent's things the parent's peers would take for the parent's doing.
class Origin {
  public:
    Origin() noexcept;
    // Whether this is that process.
    bool is_here() const noexcept { return made_ == forks.load(std::memory_order_relaxed); }

  private:
    // How many forks lie between this process and the first; of the process, as what it counts.
    static std::atomic<unsigned> forks;
    const unsigned made_;
};

// A rank among how many.
struct World {
    int rank;
    int size;
};

// What a Communicator points to, with its requests and groups.
struct State {
    // `thrown` is where its hook's exceptions go: a child begins with its parent's hook, and so has its parent's.
    State(rust::Box<ffi::Comm> made, std::shared_ptr<ffi::Thrown> thrown);
    // Ends the communicator, with a word of abort where an exception takes it away.
    ~State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    // Rank and size. Those of a child that a non-blocking split is making: waits until it is made; 0 and 0 where that fails.
    World world() const;
    // The same for a call, which does not wait: throws InProgress, or the error with which the making has failed.
    World world_now() const;
    // For errors.
    std::optional<int> known_rank() const noexcept;

    rust::Box<ffi::Comm> comm;
    rust::Box<ffi::Stop> stop;
    const int exceptions; // under way when it was made
    const std::shared_ptr<ffi::Thrown> thrown;
    const Origin origin;

  private:
    // Whether rank and size are known.
    bool know() const noexcept;
    void keep(World world) const noexcept;
    mutable std::atomic<int> rank_{0};
    mutable std::atomic<int> size_{0}; // 0 until both are known; written last, read first
};

// Says that counts are null.

// The counts of a call on `state`; throws where they are null and their number is not 0.
inline rust::Slice<const std::size_t> counts(View<const std::size_t> all, const State& state) {
    if (__builtin_expect(all.data() == nullptr && all.size() > 0, 0)) {
        refuse_null_counts(state.known_rank());
    }
    return {all.data(), all.size()};
}

[[noreturn]] void refuse_empty();
[[noreturn]] void refuse_forked(const State& state);

// The communicator, for a call. That one thread at a time is in a call is for the engine to see to.
inline State& use(State* state) {
    if (__builtin_expect(state == nullptr, 0)) {
        refuse_empty();
    }
    if (__builtin_expect(!state->origin.is_here(), 0)) {
        refuse_forked(*state);
    }
    return *state;
}

// A request under way.
struct Pending {
    rust::Box<ffi::Waiting> waiting;
    std::shared_ptr<ffi::Thrown> thrown; // of the communicator's hook
    const Origin origin = {};
};

// A persistent call.
struct Repeated {
    rust::Box<ffi::Persistent> call;
    std::shared_ptr<ffi::Thrown> thrown; // of the communicator's hook
    const Origin origin = {};
};

// Where a rank is, as Rust says it.
Placement placement_of(const ffi::Place& place);

// The way to what the classes keep to themselves.
struct Access {
    static Request request(std::unique_ptr<Pending> pending) { return Request(std::move(pending)); }
    static PersistentCall persistent(std::unique_ptr<Repeated> repeated) { return PersistentCall(std::move(repeated)); }
    static Communicator communicator(rust::Box<ffi::Comm> comm) {
        return Communicator(std::make_shared<State>(std::move(comm), std::make_shared<ffi::Thrown>()));
    }
    static Communicator child(rust::Box<ffi::Comm> comm, const State& parent) {
        return Communicator(std::make_shared<State>(std::move(comm), parent.thrown));
    }
    static const std::shared_ptr<State>& state(const Communicator& communicator) { return communicator.state_; }
    static ffi::Memory& memory(SharedBytes& bytes);
    static ffi::Memory& memory(PoolBytes& bytes);
    static const ffi::GpuMemory& memory(const GpuBytes& bytes);
};

} // namespace rsccl::detail
