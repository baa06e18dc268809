/// @file
/// An init in two halves, for what joins ranks by other means: `rsccl/mpi.hpp`. Programs have Communicator's constructor.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <rsccl/communicator.hpp>
#include <rsccl/config.hpp>
#include <rsccl/unique_id.hpp>

namespace rsccl::detail {

/// What joining takes, read and checked: the half of an init that needs no other rank.
class Preparation {
  public:
    /// Reads `config` with the environment laid over it.
    explicit Preparation(const Config& config);
    Preparation(Preparation&&) noexcept;
    Preparation& operator=(Preparation&&) noexcept;
    ~Preparation();

    /// How long the join may take.
    std::chrono::milliseconds init_timeout() const;
    /// How long init may take by `config` and the environment, whatever else is wrong with them.
    static std::chrono::milliseconds patience(const Config& config);
    /// Makes an id and serves it as long as this lives.
    UniqueId unique_id() const;
    /// Joins on a thread of its own, whatever the settings say: async_error() tells when that is over. Called once.
    Communicator join(const UniqueId& id, int rank, int size);

    /// A number that the ranks of `communicator` share and nobody else has.
    static std::uint64_t number(Communicator& communicator);
    /// How long a set-up on `communicator` may take.
    static std::chrono::milliseconds init_timeout(Communicator& communicator);
    /// Logs a warning about the ranks' set-up.
    static void warn(int rank, const std::string& text);
    /// Says on standard error that each process is a world of its own, where a launcher has started several. For MPI worlds of one rank.
    static void warn_of_lone_world();

  private:
    struct Halves;
    std::unique_ptr<Halves> halves_;
};

} // namespace rsccl::detail
