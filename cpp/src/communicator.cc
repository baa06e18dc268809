// Communicators, their requests and their groups.
#include <rsccl/communicator.hpp>

#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include <pthread.h>

#include <rsccl/group.hpp>

#include "bridge.hpp"

namespace rsccl {

namespace detail {

State::State(rust::Box<ffi::Comm> made, std::shared_ptr<ffi::Thrown> where)
    : comm(std::move(made)), stop(ffi::stop(*comm)), exceptions(std::uncaught_exceptions()), thrown(std::move(where)) {
    know();
}

void State::keep(World world) const noexcept {
    rank_.store(world.rank, std::memory_order_relaxed);
    // Release: pairs with the acquire in `know`, so that the rank is seen too.
    size_.store(world.size, std::memory_order_release);
}

bool State::know() const noexcept {
    if (__builtin_expect(size_.load(std::memory_order_acquire) > 0, 1)) {
        return true;
    }
    World world{0, 0};
    const bool known = ffi::knows_world(*comm, world.rank, world.size);
    if (known) {
        keep(world);
    }
    return known;
}

World State::world() const {
    if (__builtin_expect(!know(), 0)) {
        return {ffi::rank(*comm), ffi::size(*comm)};
    }
    return {rank_.load(std::memory_order_relaxed), size_.load(std::memory_order_relaxed)};
}

World State::world_now() const {
    if (__builtin_expect(!know(), 0)) {
        World world{0, 0};
        check(ffi::world_now(*comm, world.rank, world.size), *thrown);
        return world;
    }
    return {rank_.load(std::memory_order_relaxed), size_.load(std::memory_order_relaxed)};
}

std::optional<int> State::known_rank() const noexcept {
    return know() ? std::optional<int>(rank_.load(std::memory_order_relaxed)) : std::nullopt;
}

State::~State() {
    if (origin.is_here()) {
        ffi::discard(*comm, std::uncaught_exceptions() > exceptions);
    } else {
        // Nothing of it is this process's: not even to free it, since threads that do not exist here may hold what it waits for.
        std::move(comm).into_raw();
    }
}

std::atomic<unsigned> Origin::forks{0};

Origin::Origin() noexcept : made_(forks.load(std::memory_order_relaxed)) {
    // Where it cannot be had, forks are not noticed; nothing else is lost.
    [[maybe_unused]] static const int watched =
        pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
}

void refuse_empty() { throw InvalidUsage("there is no communicator: it was moved from, or never made"); }

void refuse_forked(const State& state) {
    throw InvalidUsage("the communicator belongs to the process that this one was forked from: make one of its own", state.known_rank(), {}, {});
}

namespace {

std::string name_of_call(Kind call) { return std::string(ffi::call_name(static_cast<std::uint8_t>(call))); }

} // namespace

void refuse_length(int rank, Kind call, const char* name, std::size_t length, std::size_t expected) {
    throw InvalidArgument("`" + std::string(name) + "` has " + std::to_string(length) + " elements where " +
                              std::to_string(expected) + " are needed",
                          rank, {}, name_of_call(call));
}

void refuse_blocks(int rank, Kind call, std::size_t length, int ranks) {
    throw InvalidArgument("a buffer of " + std::to_string(length) + " elements is not one block for each of " +
                              std::to_string(ranks) + " ranks",
                          rank, {}, name_of_call(call));
}

void refuse_counts(int rank, Kind call, std::size_t counts, int ranks) {
    throw InvalidArgument(std::to_string(counts) + " counts for " + std::to_string(ranks) + " ranks: give one for each", rank, {},
                          name_of_call(call));
}

void refuse_total(int rank, Kind call, std::size_t count, int ranks) {
    throw InvalidArgument(std::to_string(count) + " elements for one of " + std::to_string(ranks) + " ranks is too large", rank, {},
                          name_of_call(call));
}

void refuse_host_for_gpu() {
    throw InvalidUsage("a gpu_buffer is memory of a GPU, and the stream of the call is the host: pass a Stream of that GPU (a cudaStream_t)");
}

void refuse_null_counts(std::optional<int> rank) { throw InvalidArgument("the counts are null, and their number is not 0", rank, {}, {}); }

void refuse_negative_count(int rank, Kind call) { throw InvalidArgument("a count is negative", rank, {}, name_of_call(call)); }

namespace {

State& there(const std::shared_ptr<State>& state) {
    if (!state) {
        refuse_empty();
    }
    return *state;
}

const std::uint8_t* input(const Call& call) { return static_cast<const std::uint8_t*>(call.send); }
std::uint8_t* output(const Call& call) { return static_cast<std::uint8_t*>(call.recv); }

} // namespace

ffi::What what_of(const Call& call) {
    return {call.count,
            call.op.integer(),
            call.op.real(),
            static_cast<std::int32_t>(call.data_type),
            call.op.code(),
            static_cast<std::int32_t>(call.op.scalar()),
            call.other,
            call.source,
            static_cast<std::uint8_t>(call.kind),
            !call.stream.is_host(),
            reinterpret_cast<std::uintptr_t>(call.stream.handle())};
}

} // namespace detail

// ---- making one

Communicator::Communicator() noexcept = default;
Communicator::Communicator(std::shared_ptr<detail::State> state) noexcept : state_(std::move(state)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Communicator::Communicator(const UniqueId& id, int rank, int size, const Config& config)
    : Communicator(init_scalable({id}, rank, size, config)) {}

Communicator Communicator::init_scalable(const std::vector<UniqueId>& ids, int rank, int size, const Config& config) {
    rust::Box<ffi::Comm> comm = ffi::comm();
    // Ids are plain data of 128 bytes each, one behind the other.
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(ids.data());
    detail::check(ffi::join(*comm, {bytes, ids.size() * sizeof(UniqueId)}, rank, size, *detail::settings(config)));
    return detail::Access::communicator(std::move(comm));
}

std::vector<Communicator> Communicator::init_all(int ranks, const Config& config) {
    rust::Box<ffi::Family> family = ffi::family();
    detail::check(ffi::join_all(*family, ranks, *detail::settings(config)));
    std::vector<Communicator> all;
    all.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        all.push_back(detail::Access::communicator(ffi::take(*family)));
    }
    return all;
}

Communicator Communicator::from_env(const Config& config) {
    rust::Box<ffi::Comm> comm = ffi::comm();
    detail::check(ffi::join_launched(*comm, *detail::settings(config)));
    return detail::Access::communicator(std::move(comm));
}

Communicator Communicator::from_store(Store& store, int rank, int size, const Config& config, const std::string& key) {
    return Communicator(share(store, key, rank, size, config), rank, size, config);
}

// ---- what it is

Communicator::operator bool() const noexcept { return state_ && ffi::is_open(*state_->comm); }
int Communicator::rank() const { return detail::there(state_).world().rank; }
int Communicator::size() const { return detail::there(state_).world().size; }
int Communicator::rank_now() const { return detail::there(state_).world_now().rank; }
int Communicator::size_now() const { return detail::there(state_).world_now().size; }

// ---- calls

namespace {

// Bodies of rsccl::group() that this thread is in.
thread_local int bodies = 0;

[[noreturn]] void refuse_beside_group(detail::Kind kind, std::optional<int> rank) {
    const std::string name = detail::name_of_call(kind);
    throw InvalidUsage("comm." + name + "() inside the body of rsccl::group() would run at once, and not with the group: call calls.on(comm)." +
                           name + "(), where `calls` is the body's argument",
                       rank, {}, name);
}

} // namespace

Group::Inside::Inside() noexcept { ++bodies; }
Group::Inside::~Inside() { --bodies; }

void Communicator::submit(const detail::Call& call) const {
    if (__builtin_expect(bodies > 0, 0)) {
        refuse_beside_group(call.kind, detail::there(state_).known_rank());
    }
    const detail::State& state = detail::use(state_.get());
    const ffi::Comm& comm = *state.comm;
    const ffi::What what = detail::what_of(call);
    if (call.counts.size() == 0) {
        detail::check(ffi::run(comm, what, detail::input(call), detail::output(call)), *state_->thrown);
    } else {
        detail::check(ffi::run_v(comm, what, detail::input(call), detail::output(call), detail::counts(call.counts, state),
                                 detail::counts(call.recv_counts, state)),
                      *state_->thrown);
    }
}

Starter Communicator::start() const { return Starter(detail::there(state_)); }

int Starter::rank() const { return state_->world().rank; }
int Starter::size() const { return state_->world().size; }
int Starter::rank_now() const { return state_->world_now().rank; }
int Starter::size_now() const { return state_->world_now().size; }

Request Starter::submit(const detail::Call& call) const {
    const ffi::What what = detail::what_of(call);
    // All memory that the request takes, first: what has begun and is held by nobody would go on in the program's buffers.
    std::unique_ptr<detail::Pending> pending(new detail::Pending{ffi::waiting(), state_->thrown, {}});
    detail::check(ffi::begin(*detail::use(state_).comm, what, detail::input(call), detail::output(call), detail::counts(call.counts, *state_),
                             detail::counts(call.recv_counts, *state_), *pending->waiting));
    return detail::Access::request(std::move(pending));
}

Preparer Communicator::prepare() const { return Preparer(detail::there(state_)); }

int Preparer::rank() const { return state_->world().rank; }
int Preparer::size() const { return state_->world().size; }
int Preparer::rank_now() const { return state_->world_now().rank; }
int Preparer::size_now() const { return state_->world_now().size; }

PersistentCall Preparer::submit(const detail::Call& call) const {
    const ffi::What what = detail::what_of(call);
    std::unique_ptr<detail::Repeated> repeated(new detail::Repeated{ffi::persistent(), state_->thrown, {}});
    detail::check(ffi::prepare(*detail::use(state_).comm, what, detail::input(call), detail::output(call), detail::counts(call.counts, *state_),
                               detail::counts(call.recv_counts, *state_), *repeated->call),
                  *state_->thrown);
    return detail::Access::persistent(std::move(repeated));
}

// ---- families

std::optional<Communicator> Communicator::split(std::optional<int> color, std::int64_t key) const {
    if (color && *color < 0) {
        throw InvalidArgument("color " + std::to_string(*color) + " is negative: pass no color to be left out",
                              detail::there(state_).known_rank(), {}, {});
    }
    rust::Box<ffi::Comm> child = ffi::comm();
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::split(*state.comm, color ? *color : -1, key, *child), *state.thrown);
    if (!ffi::is_open(*child)) {
        return std::nullopt;
    }
    return detail::Access::child(std::move(child), *state_);
}

Communicator Communicator::by_color(int color, std::int64_t key) const {
    std::optional<Communicator> child = split(color, key);
    if (!child) {
        throw InternalError("a rank with a color got no communicator", state_->known_rank(), {}, "split");
    }
    return std::move(*child);
}

Communicator Communicator::on_my_host() const {
    rust::Box<ffi::Comm> child = ffi::comm();
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::on_my_host(*state.comm, *child), *state.thrown);
    return detail::Access::child(std::move(child), *state_);
}

Communicator Communicator::cross() const {
    rust::Box<ffi::Comm> child = ffi::comm();
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::cross(*state.comm, *child), *state.thrown);
    return detail::Access::child(std::move(child), *state_);
}

Placement Communicator::placement() const {
    ffi::Place place{};
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::placement(*state.comm, place), *state.thrown);
    return detail::placement_of(place);
}

MemoryUse Communicator::memory() const {
    rust::Vec<std::uint64_t> held;
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::memory_use(*state.comm, held), *state.thrown);
    MemoryUse found;
    found.arenas = held[0];
    found.rings = held[1];
    found.registered = held[2];
    found.windows = held[3];
    found.pinned = held[4];
    found.gpu = held[5];
    if (held[6] != 0) {
        found.gpu_ordinal = static_cast<std::uint32_t>(held[6] - 1);
    }
    return found;
}

Placement detail::placement_of(const ffi::Place& place) {
    Placement found;
    found.host_name = std::string(place.host_name);
    found.host = place.host;
    found.hosts = place.hosts;
    found.local_rank = place.local_rank;
    found.local_size = place.local_size;
    if (place.leader_rank >= 0) {
        found.leader_rank = place.leader_rank;
    }
    if (place.device >= 0) {
        found.device = DeviceChoice{place.device, std::string(place.bus_id), place.shared_by};
    }
    found.printed = std::string(place.printed);
    return found;
}

Communicator Communicator::shrink(const std::vector<int>& excluded) const {
    static_assert(sizeof(int) == sizeof(std::int32_t));
    rust::Box<ffi::Comm> child = ffi::comm();
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::shrink(*state.comm, {excluded.data(), excluded.size()}, *child), *state.thrown);
    return detail::Access::child(std::move(child), *state_);
}

// ---- ends

struct AbortHandle::Flag {
    rust::Box<ffi::Stop> stop;
};

void AbortHandle::abort(const std::string& reason) const noexcept {
    if (flag_) {
        ffi::abort(*flag_->stop, detail::bytes(reason));
    }
}

void Communicator::abort(const std::string& reason) const noexcept {
    if (state_) {
        ffi::abort(*state_->stop, detail::bytes(reason));
    }
}

AbortHandle Communicator::abort_handle() const {
    detail::State& state = detail::there(state_);
    return AbortHandle(std::make_shared<const AbortHandle::Flag>(AbortHandle::Flag{ffi::same(*state.stop)}));
}

std::optional<Error> Communicator::async_error() const {
    ffi::Failure* failure = ffi::async_error(*detail::use(state_.get()).comm);
    return failure == nullptr ? std::nullopt : std::optional<Error>(detail::take_error(failure));
}

void Communicator::finalize() { detail::check(ffi::finalize(*detail::use(state_.get()).comm)); }

void Communicator::set_progress(std::function<void()> hook) {
    const ffi::Comm& comm = *detail::use(state_.get()).comm;
    auto held = hook ? std::make_unique<ffi::Hook>(std::move(hook), state_->thrown) : nullptr;
    detail::check(ffi::set_progress(comm, std::move(held)));
}

void Communicator::register_memory(detail::SharedBytes& memory, bool takes_back) const {
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::register_memory(*state.comm, detail::Access::memory(memory), takes_back), *state.thrown);
}

void Communicator::register_memory(detail::PoolBytes& memory, bool takes_back) const {
    const detail::State& state = detail::use(state_.get());
    detail::check(ffi::register_memory(*state.comm, detail::Access::memory(memory), takes_back), *state.thrown);
}

// ---- windows

struct Window::Registered {
    rust::Box<ffi::GpuWindow> window = ffi::gpu_window();
};

Window::Window(std::unique_ptr<Registered> registered) noexcept : registered_(std::move(registered)) {}
Window::Window(Window&&) noexcept = default;
Window& Window::operator=(Window&&) noexcept = default;
Window::~Window() = default;

bool Window::is_direct() const noexcept { return registered_ && ffi::is_direct(*registered_->window); }

Window Communicator::register_window(const detail::GpuBytes& memory) const {
    const detail::State& state = detail::use(state_.get());
    auto registered = std::make_unique<Window::Registered>();
    detail::check(ffi::register_window(*state.comm, detail::Access::memory(memory), *registered->window), *state.thrown);
    return Window(std::move(registered));
}

Window Communicator::register_window(void* memory, std::size_t bytes, Stream stream) const {
    const detail::State& state = detail::use(state_.get());
    if (stream.is_host()) {
        throw InvalidUsage("a window lies on the GPU of a stream, and Stream::host() belongs to none: pass a CUDA stream", state.known_rank(), {},
                           {});
    }
    auto registered = std::make_unique<Window::Registered>();
    detail::check(ffi::register_memory_of(*state.comm, reinterpret_cast<std::uintptr_t>(memory), bytes,
                                          reinterpret_cast<std::uintptr_t>(stream.handle()), *registered->window),
                  *state.thrown);
    return Window(std::move(registered));
}

void Communicator::deregister_window(Window window) const {
    const detail::State& state = detail::use(state_.get());
    if (!window.registered_) {
        throw InvalidUsage("the window was moved from", state.known_rank(), {}, {});
    }
    detail::check(ffi::deregister_window(*state.comm, *window.registered_->window), *state.thrown);
}

// ---- requests

Request::Request() noexcept = default;
Request::Request(std::unique_ptr<detail::Pending> pending) noexcept : pending_(std::move(pending)) {}
Request::Request(Request&&) noexcept = default;

Request& Request::operator=(Request&& other) noexcept {
    if (this != &other) {
        const Request before(std::move(*this));
        pending_ = std::move(other.pending_);
    }
    return *this;
}

Request::~Request() {
    if (pending_ && !pending_->origin.is_here()) {
        // Nobody works at it here.
        std::move(pending_->waiting).into_raw();
    } else if (pending_) {
        // A destructor has nobody to tell; the communicator remembers what ended it.
        ffi::await_end(*pending_->waiting);
    }
}

void Request::wait() {
    if (pending_ && !pending_->origin.is_here()) {
        throw InvalidUsage("the request belongs to the process that this one was forked from");
    }
    if (const auto pending = std::move(pending_)) {
        detail::check(ffi::wait(*pending->waiting), *pending->thrown);
    }
}

bool Request::has_ended() const { return !pending_ || ffi::is_finished(*pending_->waiting); }

bool Request::test() {
    if (!has_ended()) {
        return false;
    }
    wait();
    return true;
}

// ---- persistent calls

PersistentCall::PersistentCall() noexcept = default;
PersistentCall::PersistentCall(std::unique_ptr<detail::Repeated> repeated) noexcept : repeated_(std::move(repeated)) {}
PersistentCall::PersistentCall(PersistentCall&&) noexcept = default;

PersistentCall& PersistentCall::operator=(PersistentCall&& other) noexcept {
    if (this != &other) {
        const PersistentCall before(std::move(*this));
        repeated_ = std::move(other.repeated_);
    }
    return *this;
}

PersistentCall::~PersistentCall() {
    if (repeated_ && !repeated_->origin.is_here()) {
        // Nobody works at it here.
        std::move(repeated_->call).into_raw();
    } else if (repeated_) {
        // A destructor has nobody to tell; the communicator remembers what ended it.
        ffi::await_round(*repeated_->call);
    }
}

detail::Repeated& PersistentCall::repeated() const {
    if (__builtin_expect(!repeated_, 0)) {
        throw InvalidUsage("the persistent call is empty: it was never prepared, or was moved from");
    }
    if (__builtin_expect(!repeated_->origin.is_here(), 0)) {
        throw InvalidUsage("the persistent call belongs to the process that this one was forked from");
    }
    return *repeated_;
}

void PersistentCall::start() {
    detail::Repeated& it = repeated();
    detail::check(ffi::start_round(*it.call), *it.thrown);
}

void PersistentCall::wait() {
    detail::Repeated& it = repeated();
    detail::check(ffi::wait_round(*it.call), *it.thrown);
}

bool PersistentCall::has_ended() const { return ffi::is_round_over(*repeated().call); }

bool PersistentCall::test() {
    if (!has_ended()) {
        return false;
    }
    wait();
    return true;
}

void PersistentCall::run() {
    detail::Repeated& it = repeated();
    detail::check(ffi::run_round(*it.call), *it.thrown);
}

// ---- groups

struct Group::Batch {
    std::vector<std::shared_ptr<detail::State>> states; // what the batch points to lives longer than it
    rust::Box<ffi::Batch> batch = ffi::batch();
    bool any = false;
};

Group::Group() : batch_(std::make_unique<Batch>()) {}

Group::~Group() {
    if (batch_ && batch_->any && std::uncaught_exceptions() == 0) {
        ffi::warn_discarded();
    }
}

Group::Member::Member(Group& group, const Communicator& communicator)
    : group_(&group), state_(detail::Access::state(communicator)) {
    const detail::State& state = detail::there(state_);
    if (!group.batch_) {
        throw InvalidUsage("the group has ended: make a new one", state.known_rank(), {}, {});
    }
}

int Group::Member::rank() const noexcept { return state_->world().rank; }
int Group::Member::size() const noexcept { return state_->world().size; }
int Group::Member::rank_now() const { return state_->world_now().rank; }
int Group::Member::size_now() const { return state_->world_now().size; }

void Group::Member::submit(const detail::Call& call) const {
    const ffi::What what = detail::what_of(call);
    if (!group_->batch_) {
        throw InvalidUsage("the group has ended: make a new one", state_->known_rank(), {}, {});
    }
    Batch& batch = *group_->batch_;
    bool known = false;
    for (const auto& other : batch.states) {
        known = known || other == state_;
    }
    if (!known) {
        batch.states.push_back(state_);
    }
    const ffi::Comm* comm = &*detail::use(state_.get()).comm;
    detail::check(ffi::add(*batch.batch, comm, what, detail::input(call), detail::output(call), detail::counts(call.counts, *state_),
                           detail::counts(call.recv_counts, *state_)));
    batch.any = true;
}

void Group::end() {
    if (!batch_) {
        throw InvalidUsage("the group has ended: make a new one");
    }
    const std::unique_ptr<Batch> batch = std::move(batch_);
    for (const auto& state : batch->states) {
        detail::use(state.get());
    }
    ffi::Failure* failure = ffi::run_batch(*batch->batch);
    if (failure != nullptr) {
        for (const auto& state : batch->states) {
            if (std::exception_ptr cause = state->thrown->take()) {
                state->thrown->put(std::move(cause));
                detail::raise(failure, *state->thrown);
            }
        }
        detail::raise(failure);
    }
}

} // namespace rsccl
