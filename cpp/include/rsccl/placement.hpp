/// @file
/// Which rank is where.
#pragma once

#include <optional>
#include <string>

#include <rsccl/version.hpp>

namespace rsccl {

/// The GPU that a rank is meant to use, where its host has any.
struct DeviceChoice {
    int ordinal = 0;    ///< what cudaSetDevice takes
    std::string bus_id; ///< its place on the PCI bus; of a part of a GPU (MIG), its name in CUDA_VISIBLE_DEVICES
    int shared_by = 0;  ///< ranks that are meant to use the same device
};

/// Where a rank is among the hosts of its communicator.
struct Placement {
    std::string host_name;            ///< the host's name
    int host = 0;                     ///< the number of the host, from 0
    int hosts = 0;                    ///< how many hosts there are
    int local_rank = 0;               ///< my rank among those of my host
    int local_size = 0;               ///< the ranks of my host
    std::optional<int> leader_rank;   ///< my rank among the leaders, the ranks with local rank 0, where I am one
    std::optional<DeviceChoice> device; ///< the GPU that I am meant to use, where there is one

    std::string printed;                ///< what to_string() says

    /// All of it in one line, for a log.
    const std::string& to_string() const noexcept { return printed; }
};

} // namespace rsccl
