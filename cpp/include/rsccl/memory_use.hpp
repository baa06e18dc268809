/// @file
/// How much memory a rank holds.
#pragma once

#include <cstdint>
#include <optional>

#include <rsccl/version.hpp>

namespace rsccl {

/// Bytes of memory that a rank holds for one communicator. What its children hold is theirs.
struct MemoryUse {
    std::uint64_t arenas = 0;     ///< what the ranks of a host map of this rank: slots of small calls, flags and scratch
    std::uint64_t rings = 0;      ///< slots of messages, which come with the first message or plan between two ranks
    std::uint64_t registered = 0; ///< the program's registered buffers
    std::uint64_t windows = 0;    ///< the program's windows on a GPU
    std::uint64_t pinned = 0;     ///< memory of the host that is pinned for a GPU
    std::uint64_t gpu = 0;        ///< the library's own memory on the GPU
    std::optional<std::uint32_t> gpu_ordinal = {}; ///< which GPU that is; nothing before the first call there
};

} // namespace rsccl
