/// @file
/// Communicators from MPI communicators. Needs `<mpi.h>` of MPI 3.0 or later; everything is in this header, so the library itself
/// knows no MPI and goes with any.
///
/// from_mpi() does what users of NCCL write by hand: rank 0 makes the unique id, MPI carries it to all, each joins, and all agree on
/// the outcome. A job that does not use MPI itself needs none of this: Communicator::from_env learns all from the launcher.
/// @code
/// MPI_Init(&argc, &argv);
/// {
///     rsccl::mpi::abort_on_terminate(); // a rank that ends alone would leave the others waiting
///     rsccl::Communicator comm = rsccl::from_mpi(MPI_COMM_WORLD);
///     std::vector<float> in(1000, 1.0f), out(1000);
///     comm.all_reduce(in, out);
/// }
/// MPI_Finalize();
/// @endcode
///
/// The rule of progress: MPI moves most messages only while a rank is in a call of MPI, rsccl moves its own only while a rank is in a
/// call of rsccl. So between `MPI_Isend`, `MPI_Irecv` or another call that MPI has begun, and the `MPI_Wait` that ends it, a rank
/// must not wait in rsccl for a rank that needs that very message to get there. Complete it before, or set the hook of mpi::progress().
///
/// Threads: with `MPI_THREAD_SINGLE` and `FUNNELED` only the thread that initialised MPI may call these functions, with `SERIALIZED` any
/// thread while no other calls MPI, with `MULTIPLE` any. rsccl calls MPI on the caller's thread only, and only here; the hook
/// of progress(), on the thread that waits, which at `MULTIPLE` may be one of rsccl's own.
///
/// The end: nothing of MPI is kept. A communicator may be used and destroyed before or after `MPI_Finalize`.
#pragma once

// The C++ bindings that MPI has given up are no use here, and not free of warnings.
/// @cond
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
/// @endcond
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// All of the library: a program that begins with this header needs no other.
#include <rsccl/preparation.hpp>
#include <rsccl/rsccl.hpp>

namespace rsccl {

namespace detail::over_mpi {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// ---- single calls of MPI

/// Throws what MPI says of a call that did not succeed.
inline void check(int code, const char* call) {
    if (code == MPI_SUCCESS) {
        return;
    }
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        length = 0;
    }
    std::string words(text, static_cast<std::size_t>(std::max(length, 0)));
    std::replace(words.begin(), words.end(), '\n', ' ');
    throw SystemError(std::string(call) + " failed with code " + std::to_string(code) + ": " + words);
}

enum class Stage { before, running, over };

/// Where the life of MPI in this process stands. May be asked at any time, from any thread.
inline Stage stage() {
    int begun = 0;
    int ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    return ended != 0 ? Stage::over : begun != 0 ? Stage::running : Stage::before;
}

/// Whether any thread may call MPI at any time; returns only where this thread may call it now.
inline bool check_thread() {
    switch (stage()) {
    case Stage::running: break;
    case Stage::before: throw InvalidUsage("MPI is not initialised: call MPI_Init_thread before this");
    case Stage::over: throw InvalidUsage("MPI is already finalised: make what needs MPI before MPI_Finalize");
    }
    int level = 0;
    int is_main = 0;
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
    if (level < MPI_THREAD_SERIALIZED && is_main == 0) {
        throw InvalidUsage("at this thread level of MPI only the thread that initialised it may call it, and this is another: "
                           "initialise MPI with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE, or call from that thread");
    }
    return level >= MPI_THREAD_MULTIPLE;
}

inline int rank_in(MPI_Comm comm) {
    int rank = 0;
    check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    return rank;
}

inline int size_of(MPI_Comm comm) {
    int size = 0;
    check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    return size;
}

/// Returns where `comm` is an intracommunicator that this thread may use.
inline void check_theirs(MPI_Comm comm) {
    check_thread();
    if (comm == MPI_COMM_NULL) {
        throw InvalidArgument("the communicator is MPI_COMM_NULL: a rank that is not in an MPI communicator does not call this");
    }
    int inter = 0;
    check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
    if (inter != 0) {
        throw InvalidArgument("the communicator is an intercommunicator, which has two groups of ranks: make one group of them by "
                              "MPI_Intercomm_merge");
    }
}

/// The rank in `to` of each rank of `from`, in order; MPI_UNDEFINED for one that is not in it.
inline std::vector<int> translate(MPI_Comm from, MPI_Comm to) {
    std::vector<int> asked(static_cast<std::size_t>(size_of(from)));
    for (std::size_t rank = 0; rank < asked.size(); ++rank) {
        asked[rank] = static_cast<int>(rank);
    }
    std::vector<int> told(asked.size());
    MPI_Group mine = MPI_GROUP_NULL;
    MPI_Group theirs = MPI_GROUP_NULL;
    check(MPI_Comm_group(from, &mine), "MPI_Comm_group");
    check(MPI_Comm_group(to, &theirs), "MPI_Comm_group");
    const int code = MPI_Group_translate_ranks(mine, static_cast<int>(asked.size()), asked.data(), theirs, told.data());
    check(MPI_Group_free(&mine), "MPI_Group_free");
    check(MPI_Group_free(&theirs), "MPI_Group_free");
    check(code, "MPI_Group_translate_ranks");
    return told;
}

/// The rank in MPI_COMM_WORLD of each rank of `comm`, in order. Tells it with no message.
inline std::vector<int> ranks_in_world(MPI_Comm comm) {
    std::vector<int> ranks = translate(comm, MPI_COMM_WORLD);
    if (std::find(ranks.begin(), ranks.end(), MPI_UNDEFINED) != ranks.end()) {
        throw InvalidArgument("the MPI communicator has ranks that are not in this process's MPI_COMM_WORLD");
    }
    return ranks;
}

/// Whether a message is here; takes none, and moves MPI.
inline bool probe(MPI_Comm comm, int source, int tag) {
    int found = 0;
    check(MPI_Iprobe(source, tag, comm, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
    return found != 0;
}

/// Looks for a message that nobody sends: what counts is that MPI moves everything else meanwhile. It moves nothing where it finds one,
/// and MPICH moves nothing for MPI_COMM_SELF. The tag is the greatest that every MPI must have.
inline void poke() { probe(MPI_COMM_WORLD, rank_in(MPI_COMM_WORLD), 32767); }

/// The tag of signals; nobody else sends on a private duplicate.
constexpr int signal_tag = 0;

// ---- waiting for calls that MPI has begun

/// One wait: spins, yields, then sleeps ever longer; throws Timeout with its words at the deadline.
class Lookout {
  public:
    Lookout(Clock::time_point deadline, const std::string& words) : deadline_(deadline), words_(words) {}

    void rest() {
        const Clock::time_point now = Clock::now();
        if (now >= deadline_) {
            throw Timeout(words_);
        }
        // A look at MPI costs about a microsecond and moves its messages: worth a few before the processor is given away.
        if (++turns_ < 16) {
            return;
        }
        if (now - began_ < std::chrono::microseconds(200)) {
            std::this_thread::yield();
            return;
        }
        std::this_thread::sleep_for(nap_);
        nap_ = std::min<std::chrono::microseconds>(nap_ * 2, Milliseconds(1));
    }

  private:
    Clock::time_point deadline_;
    std::string words_;
    Clock::time_point began_ = Clock::now();
    std::chrono::microseconds nap_{50};
    int turns_ = 0;
};

/// A call that MPI has begun, with the buffers that it reads and writes. Destroyed before its end, the buffers stay allocated: MPI may
/// still write to them.
template <class Buffers>
class Begun {
  public:
    explicit Begun(Buffers buffers) : buffers_(std::make_unique<Buffers>(std::move(buffers))) {}
    Begun(Begun&& other) noexcept
        : request_(std::exchange(other.request_, MPI_REQUEST_NULL)), buffers_(std::move(other.buffers_)),
          lent_(std::exchange(other.lent_, false)) {}
    Begun& operator=(Begun&&) = delete;
    ~Begun() {
        if (lent_) {
            static_cast<void>(buffers_.release());
        }
    }

    Buffers& buffers() { return *buffers_; }
    /// Where MPI puts its request; with the call's outcome.
    template <class Call>
    void begin(const char* name, Call&& call) {
        check(call(*buffers_, &request_), name);
        lent_ = true;
    }
    /// Moves MPI, and tells whether the call is complete.
    bool test() {
        if (lent_) {
            int done = 0;
            check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
            lent_ = done == 0;
        }
        return !lent_;
    }
    /// Waits, no longer than until the deadline.
    Buffers finish(Clock::time_point deadline, const std::string& words) {
        Lookout lookout(deadline, words);
        while (!test()) {
            lookout.rest();
        }
        return std::move(*buffers_);
    }

  private:
    MPI_Request request_ = MPI_REQUEST_NULL;
    std::unique_ptr<Buffers> buffers_;
    bool lent_ = false;
};

// ---- the private duplicate

using Numbers = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>; // mine, and what comes of all
using Bytes = std::vector<std::uint8_t>;

/// A duplicate that only this header sends on, which returns its errors. Freed by free() only: freeing is collective, so after an error
/// that not all ranks have it stays with MPI.
class Private {
  public:
    /// Makes one of `theirs`. Collective over that.
    Private(MPI_Comm theirs, Clock::time_point deadline, const std::string& words) {
        Begun<MPI_Comm> begun(MPI_COMM_NULL);
        begun.begin("MPI_Comm_idup", [&](MPI_Comm& made, MPI_Request* request) { return MPI_Comm_idup(theirs, &made, request); });
        comm_ = begun.finish(deadline, words);
        check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
        rank_ = rank_in(comm_);
        size_ = over_mpi::size_of(comm_);
    }

    int rank() const { return rank_; }
    int size() const { return size_; }
    MPI_Comm get() const { return comm_; }
    void free() { check(MPI_Comm_free(&comm_), "MPI_Comm_free"); }

    /// Begins to find the least of all ranks' values, one by one.
    Begun<Numbers> least(const std::vector<std::int64_t>& values) const {
        Begun<Numbers> begun(Numbers(values, values));
        begun.begin("MPI_Iallreduce", [&](Numbers& of, MPI_Request* request) {
            return MPI_Iallreduce(of.first.data(), of.second.data(), static_cast<int>(of.first.size()), MPI_INT64_T, MPI_MIN, comm_,
                                  request);
        });
        return begun;
    }
    /// Begins to bring the root's bytes to all ranks; all pass as many.
    Begun<Bytes> spread(int root, Bytes bytes) const {
        Begun<Bytes> begun(std::move(bytes));
        begun.begin("MPI_Ibcast", [&](Bytes& of, MPI_Request* request) {
            return MPI_Ibcast(of.data(), static_cast<int>(of.size()), MPI_BYTE, root, comm_, request);
        });
        return begun;
    }
    /// Begins to gather one byte of every rank.
    Begun<std::pair<Bytes, Bytes>> gather(std::uint8_t mine) const {
        Begun<std::pair<Bytes, Bytes>> begun({Bytes(1, mine), Bytes(static_cast<std::size_t>(size_))});
        begun.begin("MPI_Iallgather", [&](std::pair<Bytes, Bytes>& of, MPI_Request* request) {
            return MPI_Iallgather(of.first.data(), 1, MPI_BYTE, of.second.data(), 1, MPI_BYTE, comm_, request);
        });
        return begun;
    }
    /// Begins to send, or to take, a message of no bytes.
    Begun<char> signal(int peer) const {
        Begun<char> begun(' ');
        begun.begin("MPI_Isend", [&](char&, MPI_Request* request) { return MPI_Isend(nullptr, 0, MPI_BYTE, peer, signal_tag, comm_, request); });
        return begun;
    }
    Begun<char> take_signal(int peer) const {
        Begun<char> begun(' ');
        begun.begin("MPI_Irecv", [&](char&, MPI_Request* request) { return MPI_Irecv(nullptr, 0, MPI_BYTE, peer, signal_tag, comm_, request); });
        return begun;
    }

  private:
    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = 0;
    int size_ = 0;
};

// ---- agreement: all ranks go on, or all have the same error

/// The error with the rank, unless it names another, and with the operation that failed inside of this one: "check: all_reduce #17".
inline Error named(const Error& error, const std::string& operation, std::optional<int> rank) {
    const std::string& inner = error.operation();
    const bool is_named = inner == operation || inner.rfind(operation + ": ", 0) == 0;
    return Error(error.code(), error.message(), error.rank() ? error.rank() : rank, error.peer(),
                 inner.empty() ? operation : is_named ? inner : operation + ": " + inner);
}

/// Runs `body`; its errors come with the operation and the rank.
template <class Body>
auto naming(const std::string& operation, std::optional<int> rank, Body&& body) {
    try {
        return body();
    } catch (const Error& error) {
        named(error, operation, rank).raise();
    }
}

/// Runs `body`; the error that it throws, if any.
template <class Body>
std::optional<Error> attempt(Body&& body) {
    try {
        body();
        return std::nullopt;
    } catch (const Error& error) {
        return error;
    } catch (const std::exception& error) {
        return Error(ErrorCode::internal, error.what());
    }
}

/// What a rank votes that has not failed, or only since another has.
constexpr std::int64_t no_failure = std::numeric_limits<std::int64_t>::max();

/// What a rank votes: of failures, the lesser the more likely it is the cause of the others', and the lowest rank of those.
inline std::int64_t vote(int rank, const std::optional<Error>& failure) {
    if (!failure) {
        return no_failure;
    }
    std::int64_t likelihood = 0;
    switch (failure->code()) {
    case ErrorCode::timeout:
    case ErrorCode::in_progress: likelihood = 1; break;
    case ErrorCode::remote:
    case ErrorCode::aborted: likelihood = 2; break;
    default: break;
    }
    return (likelihood << 32) | rank;
}

/// An error as it travels: code, peer + 1, bytes of text, the text; always of this length.
constexpr std::size_t text_bytes = 4000;
constexpr std::size_t note_bytes = 12 + text_bytes;

inline void put(Bytes& note, std::size_t at, std::uint32_t value) {
    for (std::size_t byte = 0; byte < 4; ++byte) {
        note[at + byte] = static_cast<std::uint8_t>(value >> (8 * byte));
    }
}

inline std::uint32_t taken(const Bytes& note, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t byte = 0; byte < 4; ++byte) {
        value |= static_cast<std::uint32_t>(note[at + byte]) << (8 * byte);
    }
    return value;
}

inline Bytes encode(const Error& error) {
    const bool init = error.operation().empty() || error.operation() == "init";
    const std::string text = init ? error.message() : error.operation() + ": " + error.message();
    std::size_t length = std::min(text.size(), text_bytes);
    // Not in the middle of a letter: the bytes after the first of one in UTF-8 begin with 10.
    while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) {
        --length;
    }
    Bytes note(note_bytes);
    put(note, 0, static_cast<std::uint32_t>(error.code()));
    put(note, 4, error.peer() ? static_cast<std::uint32_t>(*error.peer()) + 1 : 0);
    put(note, 8, static_cast<std::uint32_t>(length));
    std::copy_n(text.begin(), length, note.begin() + 12);
    return note;
}

/// The error of `source` as another rank sees it.
inline Error decode(int source, const Bytes& note) {
    const std::uint32_t code = taken(note, 0);
    const std::uint32_t peer = taken(note, 4);
    const std::size_t length = std::min<std::size_t>(taken(note, 8), text_bytes);
    const bool known = code >= 1 && code <= static_cast<std::uint32_t>(ErrorCode::in_progress);
    const std::string text(note.begin() + 12, note.begin() + 12 + static_cast<std::ptrdiff_t>(length));
    return Error(known ? static_cast<ErrorCode>(code) : ErrorCode::remote, "rank " + std::to_string(source) + " reports: " + text, {},
                 peer == 0 ? source : static_cast<int>(peer - 1), {});
}

/// Carries votes and notes over a private duplicate.
struct Bounded {
    const Private& comm;
    Clock::time_point deadline;
    std::string words;
    int rank() const { return comm.rank(); }
    std::int64_t least(std::int64_t mine) const { return comm.least({mine}).finish(deadline, words).second[0]; }
    Bytes spread(int root, Bytes bytes) const { return comm.spread(root, std::move(bytes)).finish(deadline, words); }
};

/// Carries votes and notes over an rsccl communicator.
struct Ranks {
    Communicator& comm;
    int rank() const { return comm.rank(); }
    std::int64_t least(std::int64_t mine) const {
        std::int64_t least[1] = {mine};
        comm.all_reduce_in_place(least, ReduceOp::min);
        return least[0];
    }
    Bytes spread(int root, Bytes bytes) const {
        comm.broadcast(bytes, root);
        return bytes;
    }
};

/// agree() after the vote, of which `least` came out.
template <class Carrier>
void conclude(const Carrier& carrier, std::int64_t least, const std::optional<Error>& mine) {
    if (least == no_failure) {
        return;
    }
    const int source = static_cast<int>(least & 0xffffffff);
    std::optional<Error> told = mine;
    try {
        const Bytes note = carrier.spread(source, mine && source == carrier.rank() ? encode(*mine) : Bytes(note_bytes));
        if (source != carrier.rank()) {
            told = decode(source, note);
        }
    } catch (const Error&) {
        // The others learn of this rank's error or time out; here it is known in any case.
        if (!told) {
            throw;
        }
    }
    named(*told, {}, carrier.rank()).raise();
}

/// Returns where no rank has failed; else throws the same error on all ranks.
template <class Carrier>
void agree(const Carrier& carrier, const std::optional<Error>& mine) {
    std::int64_t least = no_failure;
    try {
        least = carrier.least(vote(carrier.rank(), mine));
    } catch (const Error&) {
        // Nobody is there to agree with: what this rank knows of itself says more than that.
        if (mine) {
            mine->raise();
        }
        throw;
    }
    conclude(carrier, least, mine);
}

// ---- the alarm: a rank whose init failed wakes all others, so that none waits for it until the deadline

/// A signal goes to the ranks 1, 2, 4, ... behind the one that rings; whoever hears one rings in turn, once. Heard signals stay where they
/// are until all ranks know who has rung; then each is taken, and nothing is left on the communicator.
class Alarm {
  public:
    explicit Alarm(const Private& comm) : comm_(comm) {}
    bool has_rung() const { return rung_; }
    bool is_heard() const { return probe(comm_.get(), MPI_ANY_SOURCE, signal_tag); }
    void ring() {
        if (!std::exchange(rung_, true)) {
            for (std::int64_t distance = 1; distance < comm_.size(); distance *= 2) {
                open_.push_back(comm_.signal(static_cast<int>((comm_.rank() + distance) % comm_.size())));
            }
        }
    }
    void clear(const Bytes& rung, Clock::time_point deadline) {
        for (std::int64_t distance = 1; distance < comm_.size(); distance *= 2) {
            const auto peer = static_cast<int>((comm_.rank() - distance + comm_.size()) % comm_.size());
            if (rung[static_cast<std::size_t>(peer)] != 0) {
                open_.push_back(comm_.take_signal(peer));
            }
        }
        for (Begun<char>& begun : open_) {
            begun.finish(deadline, "waited for the ranks to take each other's signals of failure");
        }
    }

  private:
    const Private& comm_;
    std::vector<Begun<char>> open_;
    bool rung_ = false;
};

// ---- joining

/// What a wait for MPI says that ends after all ranks were there.
inline std::string gone() {
    return "ranks of the MPI communicator that had begun rsccl::from_mpi went silent; MPI cannot say which: end the job";
}

/// How much later than a rank itself the others give up on it, so that it can tell them why.
constexpr std::chrono::seconds grace{5};

/// Moves MPI until the join is over, or another rank rings. The error of the join, if it failed; `stopped` where it was given up since
/// another's has.
inline std::optional<Error> watch(Communicator& starting, const Alarm& alarm, Clock::time_point deadline, bool& stopped) {
    Lookout lookout(deadline, "the ranks have not joined within the deadline of init");
    for (;;) {
        const std::optional<Error> state = starting.async_error();
        if (!state || state->code() != ErrorCode::in_progress) {
            return state;
        }
        if (alarm.is_heard()) {
            starting.abort("another rank could not join");
            stopped = true;
            return Error(ErrorCode::aborted, "another rank could not join");
        }
        if (const std::optional<Error> late = attempt([&] { lookout.rest(); })) {
            starting.abort("the deadline of init has passed");
            return late;
        }
    }
}

/// Agrees on what came of all joins.
inline void settle(const Private& comm, const std::optional<Error>& failure, bool stopped, Alarm& alarm, Clock::time_point deadline) {
    const Bounded carrier{comm, deadline, gone()};
    std::int64_t least = no_failure;
    try {
        Begun<Numbers> votes = comm.least({stopped ? no_failure : vote(comm.rank(), failure)});
        Lookout lookout(deadline, gone());
        while (!votes.test()) {
            if (!alarm.has_rung() && alarm.is_heard()) {
                alarm.ring();
            }
            lookout.rest();
        }
        least = votes.buffers().second[0];
    } catch (const Error&) {
        if (failure) {
            failure->raise();
        }
        throw;
    }
    if (least != no_failure) {
        alarm.clear(comm.gather(alarm.has_rung() ? 1 : 0).finish(deadline, gone()).second, deadline);
    }
    conclude(carrier, least, failure);
}

/// All ranks are here and well configured: the longest of their deadlines bounds what follows.
inline Communicator meet(const Private& comm, Preparation& prepared) {
    const Clock::time_point deadline = Clock::now() + prepared.init_timeout() + grace;
    const std::int64_t mine = -static_cast<std::int64_t>(prepared.init_timeout().count());
    const Milliseconds longest(-comm.least({mine}).finish(deadline, gone()).second[0]);
    UniqueId id;
    agree(Bounded{comm, deadline, gone()}, attempt([&] {
              if (comm.rank() == 0) {
                  id = prepared.unique_id();
              }
          }));
    const auto* first = reinterpret_cast<const std::uint8_t*>(id.data());
    const Bytes bytes = comm.spread(0, Bytes(first, first + UniqueId::length)).finish(deadline, gone());
    Alarm alarm(comm);
    Communicator joining;
    bool stopped = false;
    std::optional<Error> failure =
        attempt([&] { joining = prepared.join(UniqueId::from_bytes(bytes.data(), bytes.size()), comm.rank(), comm.size()); });
    if (!failure) {
        failure = watch(joining, alarm, Clock::now() + longest + grace, stopped);
    }
    if (failure) {
        // Ends the thread that joins, which looks at the flag whenever it waits.
        joining = Communicator();
        alarm.ring();
    }
    settle(comm, failure, stopped, alarm, Clock::now() + longest + 2 * grace);
    return joining;
}

inline Communicator join(MPI_Comm theirs, const Config& config) {
    std::optional<Preparation> prepared;
    const std::optional<Error> failure = attempt([&] { prepared.emplace(config); });
    // A rank whose settings are wrong waits as long as it was told to: it has bad news to spread.
    const Milliseconds timeout = prepared ? prepared->init_timeout() : Preparation::patience(config);
    const Clock::time_point deadline = Clock::now() + timeout;
    const std::string words = "not all " + std::to_string(over_mpi::size_of(theirs)) +
                              " ranks of the MPI communicator called rsccl::from_mpi within " + std::to_string(timeout.count()) +
                              " ms; MPI cannot say which, nor take back what it has begun: end the job";
    const auto duplicate = [&] {
        try {
            return Private(theirs, deadline, words);
        } catch (const Error&) {
            // What this rank knows of itself says more than that others did not come.
            if (failure) {
                failure->raise();
            }
            throw;
        }
    };
    Private comm = duplicate();
    try {
        // All have called, be it at the last moment.
        agree(Bounded{comm, Clock::now() + timeout + grace, gone()}, failure);
        Communicator made = meet(comm, *prepared);
        comm.free();
        return made;
    } catch (const Error& error) {
        // Where MPI has failed some rank, others may still use the duplicate: it stays with MPI.
        if (error.code() != ErrorCode::timeout && error.code() != ErrorCode::system) {
            comm.free();
        }
        throw;
    }
}

// ---- communicators and MPI communicators of the same ranks

/// The rank in MPI_COMM_WORLD of each rank of `comm`, in order.
inline std::vector<int> told_ranks(Communicator& comm) {
    int here[1] = {0};
    agree(Ranks{comm}, attempt([&] {
              check_thread();
              here[0] = rank_in(MPI_COMM_WORLD);
          }));
    std::vector<int> told(static_cast<std::size_t>(comm.size()));
    comm.all_gather(here, told);
    std::map<int, std::size_t> seen;
    for (std::size_t rank = 0; rank < told.size(); ++rank) {
        const auto [other, fresh] = seen.emplace(told[rank], rank);
        if (!fresh) {
            // All ranks see the same numbers, so all throw this.
            throw InvalidUsage("ranks " + std::to_string(other->second) + " and " + std::to_string(rank) +
                                   " of this communicator are both rank " + std::to_string(told[rank]) +
                                   " of MPI_COMM_WORLD, by which they are compared with MPI: they are threads of one process, or of "
                                   "worlds that MPI has connected (MPI_Comm_spawn)",
                               comm.rank(), {}, {});
        }
    }
    return told;
}

/// Throws where rank i of `mpi` is not, for every i, the rank of MPI_COMM_WORLD that `told` has there.
inline void check_same_ranks(MPI_Comm mpi, const std::vector<int>& told) {
    check_theirs(mpi);
    const std::vector<int> ranks = ranks_in_world(mpi);
    if (ranks.size() != told.size()) {
        throw Mismatch("the MPI communicator has " + std::to_string(ranks.size()) + " ranks, the rsccl communicator " +
                       std::to_string(told.size()));
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (ranks[rank] != told[rank]) {
            throw Mismatch("rank " + std::to_string(rank) + " is the first that differs: rank " + std::to_string(told[rank]) +
                               " of MPI_COMM_WORLD to rsccl, rank " + std::to_string(ranks[rank]) + " to the MPI communicator",
                           {}, static_cast<int>(rank), {});
        }
    }
}

/// What ranks compare their MPI communicator for. What follows differs: a rank that has come for one must not wait for ranks that have
/// come for the other.
enum class Purpose : std::int64_t { check = 1, placement = 2 };

/// A private duplicate of `mpi`, which has the ranks of `comm` in their order, proved on all, which are here for the same purpose.
inline Private private_duplicate(Communicator& comm, MPI_Comm mpi, Purpose purpose) {
    const std::vector<int> told = told_ranks(comm);
    agree(Ranks{comm}, attempt([&] { check_same_ranks(mpi, told); }));
    std::optional<Private> made;
    agree(Ranks{comm}, attempt([&] {
              // A number that only the ranks of this communicator share must be the same to MPI.
              const auto number = static_cast<std::int64_t>(Preparation::number(comm) >> 1);
              const Clock::time_point deadline = Clock::now() + Preparation::init_timeout(comm);
              const std::string words =
                  "the ranks pass different MPI communicators, or not all ranks of this one came to rsccl's check of it";
              made.emplace(mpi, deadline, words);
              const auto mine = static_cast<std::int64_t>(purpose);
              const std::vector<std::int64_t> extremes = made->least({number, -number, mine, -mine}).finish(deadline, words).second;
              if (extremes[0] != number || extremes[1] != -number) {
                  throw Mismatch("the ranks of the MPI communicator are of different rsccl communicators");
              }
              if (extremes[2] != mine || extremes[3] != -mine) {
                  throw Mismatch("some ranks called check, others placement: all make the same call");
              }
          }));
    return *made;
}

/// The ranks of `comm` of the ranks of `sub`, in its order, known to be the same on all of them; none for MPI_COMM_NULL.
inline std::vector<int> members(Communicator& comm, MPI_Comm sub) {
    const std::vector<int> told = told_ranks(comm);
    std::vector<int> mine;
    agree(Ranks{comm}, attempt([&] {
              if (sub == MPI_COMM_NULL) {
                  return;
              }
              check_theirs(sub);
              for (const int world : ranks_in_world(sub)) {
                  const auto here = std::find(told.begin(), told.end(), world);
                  if (here == told.end()) {
                      throw InvalidArgument("rank " + std::to_string(mine.size()) + " of the MPI sub-communicator, which is rank " +
                                            std::to_string(world) + " of MPI_COMM_WORLD, is not in this communicator");
                  }
                  mine.push_back(static_cast<int>(here - told.begin()));
              }
          }));
    // Equal for equal lists, and 0 for none (FNV-1a).
    std::uint64_t hash[1] = {mine.empty() ? 0 : 14695981039346656037u};
    for (const int rank : mine) {
        hash[0] = ((hash[0] ^ static_cast<std::uint64_t>(rank)) * 1099511628211u) | 1u;
    }
    std::vector<std::uint64_t> all(told.size());
    comm.all_gather(hash, all);
    agree(Ranks{comm}, attempt([&] {
              for (const int rank : mine) {
                  if (all[static_cast<std::size_t>(rank)] != hash[0]) {
                      throw Mismatch("rank " + std::to_string(rank) + " is in this rank's MPI sub-communicator, but passes another one",
                                     {}, rank, {});
                  }
              }
          }));
    return mine;
}

/// The ranks of `comm` that MPI says share memory with this one. Blocks until all ranks have called it.
inline std::vector<int> shared_memory_ranks(const Private& comm) {
    MPI_Comm node = MPI_COMM_NULL;
    check(MPI_Comm_split_type(comm.get(), MPI_COMM_TYPE_SHARED, comm.rank(), MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    std::vector<int> ranks = translate(node, comm.get());
    check(MPI_Comm_free(&node), "MPI_Comm_free");
    return ranks;
}

inline std::string listed(const std::vector<int>& ranks) {
    constexpr std::size_t most = 16;
    std::string text;
    for (std::size_t place = 0; place < std::min(ranks.size(), most); ++place) {
        text += (place == 0 ? "" : ", ") + std::to_string(ranks[place]);
    }
    return ranks.size() > most ? text + " and " + std::to_string(ranks.size() - most) + " more" : text;
}

/// Hydra ends at once when the job is aborted, with what it has not read by then: it gets a moment to take over a rank's last words.
inline void abort_job(int code) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    MPI_Abort(MPI_COMM_WORLD, code);
}

} // namespace detail::over_mpi

/// The communicator of the ranks of `comm`, with the same ranks. Collective: every rank of `comm` calls it.
///
/// It works on any intracommunicator: the world, a split, a duplicate, one with its ranks in another order. Nothing of MPI is kept.
/// The ranks talk on a private duplicate meanwhile, so no message of the program can meet theirs. It blocks, also where the
/// configuration says non-blocking: that all ranks have joined, or none, takes all ranks.
///
/// Every rank gets an error where one rank does, and it names that rank. The deadline of init bounds the wait for all ranks to come, and
/// again, with a few seconds more, the wait for all to have joined.
/// @throws InvalidUsage where MPI is not initialised, is finalised, or may not be called by this thread (this rank alone)
/// @throws InvalidArgument for MPI_COMM_NULL and an intercommunicator (this rank alone); for a bad setting of one rank
/// @throws Timeout where not all ranks of `comm` make the call. MPI cannot take back a collective that has begun, so the job should end
///   then, for instance by mpi::abort
/// @throws SystemError with MPI's own words where a call of MPI fails
/// @throws Error what the constructor of Communicator does
inline Communicator from_mpi(MPI_Comm comm, const Config& config = {}) {
    using namespace detail::over_mpi;
    naming("init", {}, [&] { check_theirs(comm); });
    if (size_of(comm) == 1 && size_of(MPI_COMM_WORLD) == 1) {
        rsccl::detail::Preparation::warn_of_lone_world();
    }
    return naming("init", rank_in(comm), [&] { return join(comm, config); });
}

/// What goes with MPI.
namespace mpi {

/// from_mpi() under the name that it has in Rust.
inline Communicator communicator(MPI_Comm comm, const Config& config = {}) { return from_mpi(comm, config); }

/// The split that reproduces MPI's: for each sub-communicator of MPI a communicator of the same ranks in the same order. Collective over
/// `comm`. A rank passes its sub-communicator, and MPI_COMM_NULL where it is in none; it gets a communicator or nothing alike. Sends no
/// message of MPI and keeps no handle.
/// @throws InvalidArgument (on every rank) where a sub-communicator has ranks that are not in `comm`, or is an intercommunicator
/// @throws Mismatch (on every rank) where ranks of one pass different ones
/// @throws InvalidUsage (on every rank) where MPI may not be called
/// @throws Error as Communicator::split
inline std::optional<Communicator> like(Communicator& comm, MPI_Comm sub) {
    using namespace rsccl::detail::over_mpi;
    return naming("like", comm.rank(), [&] {
        const std::vector<int> ranks = members(comm, sub);
        const auto place = std::find(ranks.begin(), ranks.end(), comm.rank()) - ranks.begin();
        return comm.split(ranks.empty() ? std::optional<int>() : ranks.front(), place);
    });
}

/// Asserts that rank i of `comm` is rank i of `mpi`, for every rank. Collective over both.
/// @throws Mismatch (on every rank, naming the first that differs) where a rank has another number in `mpi` or is not in it
/// @throws Timeout (on every rank, at the deadline of init) where ranks pass different communicators of the same ranks in the same order
/// @throws InvalidArgument, InvalidUsage (on every rank) as from_mpi()
inline void check(Communicator& comm, MPI_Comm mpi) {
    using namespace rsccl::detail::over_mpi;
    naming("check", comm.rank(), [&] { private_duplicate(comm, mpi, Purpose::check).free(); });
}

/// Communicator::placement, compared with what MPI says of shared memory: where the two disagree, as in containers and network
/// namespaces, one warning in the log says how, and rsccl's view counts. Collective over both, whose ranks are the same (check()).
/// @throws Error as check() and Communicator::placement
inline Placement placement(Communicator& comm, MPI_Comm mpi) {
    using namespace rsccl::detail::over_mpi;
    return naming("placement", comm.rank(), [&] {
        Placement found = comm.placement();
        Private shared_with = private_duplicate(comm, mpi, Purpose::placement);
        std::vector<int> shared;
        agree(Ranks{comm}, attempt([&] { shared = shared_memory_ranks(shared_with); }));
        shared_with.free();
        std::vector<int> hosts(static_cast<std::size_t>(comm.size()));
        const int mine[1] = {found.host};
        comm.all_gather(mine, hosts);
        std::vector<int> beside;
        for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
            if (hosts[rank] == found.host) {
                beside.push_back(static_cast<int>(rank));
            }
        }
        std::vector<std::uint8_t> differ(hosts.size());
        const std::uint8_t differs[1] = {shared != beside};
        comm.all_gather(differs, differ);
        // One line of the job: the first rank that sees it speaks.
        if (std::find(differ.begin(), differ.end(), 1) - differ.begin() == comm.rank()) {
            rsccl::detail::Preparation::warn(comm.rank(),
                                             "MPI says that the ranks " + listed(shared) + " share memory; on host " + found.host_name +
                                                 " rsccl has the ranks " + listed(beside) +
                                                 " (a host is its name and boot, or NCCL_HOSTID, and its network namespace): rsccl's view counts");
        }
        return found;
    });
}

/// A hook for Communicator::set_progress that moves MPI's messages while a call on the communicator waits: it probes for a
/// message that nobody sends and takes nothing. With MPI_THREAD_MULTIPLE it works on every thread; below that it works on the
/// thread that made it and does nothing on others. Once MPI is finalised it does nothing.
/// @throws InvalidUsage where MPI is not up, or where this thread may not call it
inline std::function<void()> progress() {
    using namespace rsccl::detail::over_mpi;
    const bool everywhere = check_thread();
    const std::thread::id maker = std::this_thread::get_id();
    return [everywhere, maker] {
        if ((everywhere || std::this_thread::get_id() == maker) && stage() == Stage::running) {
            poke();
        }
    };
}

/// Ends the whole MPI job with `error`: one line on standard error, then MPI_Abort on MPI_COMM_WORLD with NCCL's number of the error. Where
/// MPI is not up, this process aborts.
[[noreturn]] inline void abort(const Error& error) {
    // One write: other ranks write too, and the launcher cuts off what comes late.
    std::fputs(("rsccl: " + std::string(error.what()) + ": aborting the MPI job\n").c_str(), stderr);
    if (rsccl::detail::over_mpi::stage() == rsccl::detail::over_mpi::Stage::running) {
        rsccl::detail::over_mpi::abort_job(error.nccl_code());
    }
    std::abort();
}

/// Makes an exception that nobody catches end the whole MPI job: one line on standard error, then MPI_Abort on MPI_COMM_WORLD with NCCL's
/// number of the error, or 1. Without it the job depends on its launcher's noticing.
inline void abort_on_terminate() {
    std::set_terminate([] {
        if (const std::exception_ptr thrown = std::current_exception()) {
            try {
                std::rethrow_exception(thrown);
            } catch (const Error& error) {
                abort(error);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "uncaught exception: %s: aborting the MPI job\n", error.what());
            } catch (...) {
                std::fprintf(stderr, "uncaught exception: aborting the MPI job\n");
            }
        }
        if (rsccl::detail::over_mpi::stage() == rsccl::detail::over_mpi::Stage::running) {
            rsccl::detail::over_mpi::abort_job(1);
        }
        std::abort();
    });
}

} // namespace mpi
} // namespace rsccl
