/// @file
/// Communicators from MPI communicators. Needs `<mpi.h>` of MPI 3.0 or later. Only this header knows it: it hands the library a table of
/// the program's own MPI calls, so the library itself knows no MPI and goes with any.
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

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <rsccl/mpi_calls.hpp>
// All of the library: a program that begins with this header needs no other.
#include <rsccl/rsccl.hpp>

namespace rsccl {

namespace detail::over_mpi {

/// A handle as a number. On the machines that rsccl runs on its bytes come first.
template <class T>
MpiHandle handle(T raw) noexcept {
    static_assert(sizeof(T) <= sizeof(MpiHandle), "rsccl: handles of this MPI are larger than any known one's");
    MpiHandle number = 0;
    std::memcpy(&number, &raw, sizeof raw);
    return number;
}

/// The handle that a number was made of.
template <class T>
T raw(MpiHandle number) noexcept {
    T made;
    std::memcpy(&made, &number, sizeof made);
    return made;
}

inline MPI_Comm comm_of(MpiHandle number) noexcept { return raw<MPI_Comm>(number); }

/// The place of a number, for MPI to write a handle there; the bytes behind it stay 0.
template <class T>
T* place(MpiHandle* number) noexcept {
    return reinterpret_cast<T*>(number);
}

inline std::int32_t thread_level(std::int32_t* level) noexcept {
    const int code = MPI_Query_thread(level);
    *level = *level >= MPI_THREAD_MULTIPLE ? 3 : *level >= MPI_THREAD_SERIALIZED ? 2 : 0;
    return code;
}

inline std::int32_t error_text(std::int32_t code, char* text, std::int32_t room) noexcept {
    char words[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS || length < 0) {
        return 0;
    }
    const int kept = length < room ? length : room;
    std::memcpy(text, words, static_cast<std::size_t>(kept));
    return kept;
}

/// This program's MPI.
inline const MpiCalls& calls() noexcept {
    using N = MpiHandle;
    using I = std::int32_t;
    static const MpiCalls table = {
        sizeof(MpiCalls),
        handle(MPI_COMM_NULL),
        handle(MPI_COMM_WORLD),
        MPI_ANY_SOURCE,
        [](I* begun) noexcept -> I { return MPI_Initialized(begun); },
        [](I* ended) noexcept -> I { return MPI_Finalized(ended); },
        thread_level,
        [](I* is_main) noexcept -> I { return MPI_Is_thread_main(is_main); },
        error_text,
        [](N comm, I* inter) noexcept -> I { return MPI_Comm_test_inter(comm_of(comm), inter); },
        [](N comm, I* rank) noexcept -> I { return MPI_Comm_rank(comm_of(comm), rank); },
        [](N comm, I* size) noexcept -> I { return MPI_Comm_size(comm_of(comm), size); },
        [](N comm, N* group) noexcept -> I { return MPI_Comm_group(comm_of(comm), place<MPI_Group>(group)); },
        [](N from, I count, const I* asked, N to, I* told) noexcept -> I {
            return MPI_Group_translate_ranks(raw<MPI_Group>(from), count, asked, raw<MPI_Group>(to), told);
        },
        [](N* group) noexcept -> I { return MPI_Group_free(place<MPI_Group>(group)); },
        [](N comm, N* made, N* request) noexcept -> I {
            return MPI_Comm_idup(comm_of(comm), place<MPI_Comm>(made), place<MPI_Request>(request));
        },
        [](N comm) noexcept -> I { return MPI_Comm_set_errhandler(comm_of(comm), MPI_ERRORS_RETURN); },
        [](N* comm) noexcept -> I { return MPI_Comm_free(place<MPI_Comm>(comm)); },
        [](const std::int64_t* mine, std::int64_t* all, I count, N comm, N* request) noexcept -> I {
            return MPI_Iallreduce(mine, all, count, MPI_INT64_T, MPI_MIN, comm_of(comm), place<MPI_Request>(request));
        },
        [](std::uint8_t* bytes, I count, I root, N comm, N* request) noexcept -> I {
            return MPI_Ibcast(bytes, count, MPI_BYTE, root, comm_of(comm), place<MPI_Request>(request));
        },
        [](const std::uint8_t* mine, std::uint8_t* all, N comm, N* request) noexcept -> I {
            return MPI_Iallgather(mine, 1, MPI_BYTE, all, 1, MPI_BYTE, comm_of(comm), place<MPI_Request>(request));
        },
        [](I to, I tag, N comm, N* request) noexcept -> I {
            return MPI_Isend(nullptr, 0, MPI_BYTE, to, tag, comm_of(comm), place<MPI_Request>(request));
        },
        [](I from, I tag, N comm, N* request) noexcept -> I {
            return MPI_Irecv(nullptr, 0, MPI_BYTE, from, tag, comm_of(comm), place<MPI_Request>(request));
        },
        [](I source, I tag, N comm, I* found) noexcept -> I { return MPI_Iprobe(source, tag, comm_of(comm), found, MPI_STATUS_IGNORE); },
        [](N* request, I* done) noexcept -> I { return MPI_Test(place<MPI_Request>(request), done, MPI_STATUS_IGNORE); },
        [](N comm, I key, N* part) noexcept -> I {
            return MPI_Comm_split_type(comm_of(comm), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, place<MPI_Comm>(part));
        },
    };
    return table;
}

/// Whether MPI may be called in this process. May be asked at any time, from any thread.
inline bool is_running() noexcept {
    int begun = 0;
    int ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    return begun != 0 && ended == 0;
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
    namespace over_mpi = detail::over_mpi;
    return detail::OverMpi::join(over_mpi::calls(), over_mpi::handle(comm), config);
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
/// @throws InvalidUsage (on every rank) where MPI may not be called; (this rank alone) while requests are under way
/// @throws Error as Communicator::split
inline std::optional<Communicator> like(const Communicator& comm, MPI_Comm sub) {
    namespace over_mpi = rsccl::detail::over_mpi;
    return rsccl::detail::OverMpi::like(over_mpi::calls(), comm, over_mpi::handle(sub));
}

/// Asserts that rank i of `comm` is rank i of `mpi`, for every rank. Collective over both.
/// @throws Mismatch (on every rank, naming the first that differs) where a rank has another number in `mpi` or is not in it
/// @throws Timeout (on every rank, at the deadline of operations) where ranks pass different communicators of the same ranks in the same order
/// @throws InvalidArgument, InvalidUsage (on every rank) as from_mpi()
inline void check(const Communicator& comm, MPI_Comm mpi) {
    namespace over_mpi = rsccl::detail::over_mpi;
    rsccl::detail::OverMpi::check(over_mpi::calls(), comm, over_mpi::handle(mpi));
}

/// Communicator::placement, compared with what MPI says of shared memory: where the two disagree, as in containers and network
/// namespaces, one warning in the log says how, and rsccl's view counts. Collective over both, whose ranks are the same (check()).
/// @throws Error as check() and Communicator::placement
inline Placement placement(const Communicator& comm, MPI_Comm mpi) {
    namespace over_mpi = rsccl::detail::over_mpi;
    return rsccl::detail::OverMpi::placement(over_mpi::calls(), comm, over_mpi::handle(mpi));
}

/// A rank as MPI's calls give it, such as `MPI_Cart_shift`: rsccl::no_rank for MPI_PROC_NULL.
inline int peer(int rank) noexcept { return rank == MPI_PROC_NULL ? no_rank : rank; }

/// A hook for Communicator::set_progress that moves MPI's messages while a call on the communicator waits: it probes for a
/// message that nobody sends and takes nothing. With MPI_THREAD_MULTIPLE it works on every thread; below that it works on the
/// thread that made it and does nothing on others. Once MPI is finalised it does nothing.
/// @throws InvalidUsage where MPI is not up, or where this thread may not call it
inline std::function<void()> progress() {
    using namespace rsccl::detail::over_mpi;
    const bool everywhere = rsccl::detail::OverMpi::check_thread(calls());
    const std::thread::id maker = std::this_thread::get_id();
    return [everywhere, maker] {
        if ((everywhere || std::this_thread::get_id() == maker) && is_running()) {
            rsccl::detail::OverMpi::poke(calls());
        }
    };
}

/// Ends the whole MPI job with `error`: one line on standard error, then MPI_Abort on MPI_COMM_WORLD with NCCL's number of the error. Where
/// MPI is not up, this process aborts.
[[noreturn]] inline void abort(const Error& error) {
    // One write: other ranks write too, and the launcher cuts off what comes late.
    std::fputs(("rsccl: " + std::string(error.what()) + ": aborting the MPI job\n").c_str(), stderr);
    if (rsccl::detail::over_mpi::is_running()) {
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
        if (rsccl::detail::over_mpi::is_running()) {
            rsccl::detail::over_mpi::abort_job(1);
        }
        std::abort();
    });
}

} // namespace mpi
} // namespace rsccl
