/// @file
/// The calls of MPI that the library makes, as a table that `rsccl/mpi.hpp` fills by the program's own `<mpi.h>`: so the library knows no
/// MPI and goes with any. Programs include `rsccl/mpi.hpp`.
#pragma once

#include <cstdint>
#include <optional>

#include <rsccl/communicator.hpp>
#include <rsccl/config.hpp>
#include <rsccl/placement.hpp>

namespace rsccl::detail {

/// A handle of MPI's (a communicator, a group, a request): its bytes, and behind them bytes that are 0.
using MpiHandle = std::uint64_t;

/// The calls of one MPI, field by field as in `src/over_mpi/table.rs`, which says what each is. Each returns MPI's code.
struct MpiCalls {
    std::uint64_t bytes; ///< of this struct
    MpiHandle null;
    MpiHandle world;
    std::int32_t any_source;
    std::int32_t (*initialized)(std::int32_t*);
    std::int32_t (*finalized)(std::int32_t*);
    std::int32_t (*query_thread)(std::int32_t*);
    std::int32_t (*is_thread_main)(std::int32_t*);
    std::int32_t (*error_string)(std::int32_t, char*, std::int32_t);
    std::int32_t (*test_inter)(MpiHandle, std::int32_t*);
    std::int32_t (*rank)(MpiHandle, std::int32_t*);
    std::int32_t (*size)(MpiHandle, std::int32_t*);
    std::int32_t (*group)(MpiHandle, MpiHandle*);
    std::int32_t (*translate)(MpiHandle, std::int32_t, const std::int32_t*, MpiHandle, std::int32_t*);
    std::int32_t (*free_group)(MpiHandle*);
    std::int32_t (*duplicate)(MpiHandle, MpiHandle*, MpiHandle*);
    std::int32_t (*return_errors)(MpiHandle);
    std::int32_t (*free)(MpiHandle*);
    std::int32_t (*least)(const std::int64_t*, std::int64_t*, std::int32_t, MpiHandle, MpiHandle*);
    std::int32_t (*spread)(std::uint8_t*, std::int32_t, std::int32_t, MpiHandle, MpiHandle*);
    std::int32_t (*gather)(const std::uint8_t*, std::uint8_t*, MpiHandle, MpiHandle*);
    std::int32_t (*signal)(std::int32_t, std::int32_t, MpiHandle, MpiHandle*);
    std::int32_t (*take_signal)(std::int32_t, std::int32_t, MpiHandle, MpiHandle*);
    std::int32_t (*probe)(std::int32_t, std::int32_t, MpiHandle, std::int32_t*);
    std::int32_t (*test)(MpiHandle*, std::int32_t*);
    std::int32_t (*split_by_memory)(MpiHandle, std::int32_t, MpiHandle*);
};
static_assert(sizeof(MpiCalls) == (4 + 22) * 8, "src/over_mpi/table.rs says the same");

/// What `rsccl/mpi.hpp` has of the library. The table lives as long as the process.
class OverMpi {
  public:
    OverMpi() = delete;
    /// rsccl::from_mpi.
    static Communicator join(const MpiCalls& calls, MpiHandle theirs, const Config& config);
    /// rsccl::mpi::like.
    static std::optional<Communicator> like(const MpiCalls& calls, const Communicator& comm, MpiHandle sub);
    /// rsccl::mpi::check.
    static void check(const MpiCalls& calls, const Communicator& comm, MpiHandle theirs);
    /// rsccl::mpi::placement.
    static Placement placement(const MpiCalls& calls, const Communicator& comm, MpiHandle theirs);
    /// Whether any thread may call MPI at any time.
    /// @throws InvalidUsage where this thread may not call it now
    static bool check_thread(const MpiCalls& calls);
    /// Looks for a message that nobody sends, so that MPI moves all others.
    static void poke(const MpiCalls& calls);
};

} // namespace rsccl::detail
