/// @file
/// What goes wrong, who is at fault, and where.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <rsccl/version.hpp>

namespace rsccl {

/// What kind of failure an Error is.
enum class ErrorCode : int {
    invalid_argument = 1, ///< see InvalidArgument
    invalid_usage = 2,    ///< see InvalidUsage
    mismatch = 3,         ///< see Mismatch
    remote = 4,           ///< see RemoteError
    timeout = 5,          ///< see Timeout
    system = 6,           ///< see SystemError
    internal = 7,         ///< see InternalError
    aborted = 8,          ///< see Aborted
    in_progress = 9,      ///< see InProgress
};

/// Its name: "invalid argument", "time-out". "unknown" for a number that is no code.
const char* name_of(ErrorCode code) noexcept;

/// The number that NCCL's `ncclResult_t` has for this kind of failure.
int nccl_code(ErrorCode code) noexcept;

/// The base of everything that rsccl throws. `what()` is one line: "rank 2: all_reduce #17: rank 5 has died".
///
/// Each kind of failure has a class of its own, so that a program catches what it can mend and lets the rest pass. After
/// InvalidArgument, InvalidUsage and InProgress the communicator is as before; every other error ends it on all ranks,
/// except one of a split or shrink in which a rank could not do its part: see Communicator::split().
class RSCCL_PUBLIC Error : public std::runtime_error {
  public:
    /// An error for a program's own use, as in a store or a progress hook that it wrote.
    Error(ErrorCode code, const std::string& message);
    /// An error that names the rank that reports, the peer concerned and the operation, where they are known.
    Error(ErrorCode code, const std::string& message, std::optional<int> rank, std::optional<int> peer,
          const std::string& operation);
    /// Moving copies: an error says what it is as long as it lives.
    Error(const Error&) noexcept = default;
    /// Moving copies.
    Error& operator=(const Error&) noexcept = default;

    /// What kind of failure this is.
    ErrorCode code() const noexcept;
    /// The number that NCCL's `ncclResult_t` has for it.
    int nccl_code() const noexcept { return rsccl::nccl_code(code()); }
    /// The sentence without rank and operation.
    const std::string& message() const noexcept;
    /// The rank that reports, where known.
    std::optional<int> rank() const noexcept;
    /// The peer concerned, where known.
    std::optional<int> peer() const noexcept;
    /// The operation and its number, "all_reduce #17"; empty where unknown.
    const std::string& operation() const noexcept;

    /// Throws this error as the class of its kind.
    [[noreturn]] void raise() const;

  private:
    struct Details;
    std::shared_ptr<const Details> details_; // shared: copying an exception must not throw
};

namespace detail {
/// The class of one kind of error.
template <ErrorCode Code>
class RSCCL_PUBLIC ErrorOf : public Error {
  public:
    explicit ErrorOf(const std::string& message) : Error(Code, message) {}
    ErrorOf(const std::string& message, std::optional<int> rank, std::optional<int> peer, const std::string& operation)
        : Error(Code, message, rank, peer, operation) {}
    /// That error, as its class.
    explicit ErrorOf(const Error& error) : Error(error) {}
};
} // namespace detail

/// An argument is wrong (count, rank, buffer, variable, id). Correct the call; nothing was sent.
class RSCCL_PUBLIC InvalidArgument : public detail::ErrorOf<ErrorCode::invalid_argument> {
    using ErrorOf::ErrorOf;
};
/// The call does not fit the state (after finalize, from two threads at once, no usable interface). Correct the program.
class RSCCL_PUBLIC InvalidUsage : public detail::ErrorOf<ErrorCode::invalid_usage> {
    using ErrorOf::ErrorOf;
};
/// Ranks disagree: different counts, types, operations, world sizes. The message names both sides.
class RSCCL_PUBLIC Mismatch : public detail::ErrorOf<ErrorCode::mismatch> {
    using ErrorOf::ErrorOf;
};
/// A peer died, left, or broke the protocol. Shrink without it, or end the job.
class RSCCL_PUBLIC RemoteError : public detail::ErrorOf<ErrorCode::remote> {
    using ErrorOf::ErrorOf;
};
/// A deadline passed. The message names who was waited for; raise the time-out or look at that rank.
class RSCCL_PUBLIC Timeout : public detail::ErrorOf<ErrorCode::timeout> {
    using ErrorOf::ErrorOf;
};
/// The operating system refused a call, which the message names.
class RSCCL_PUBLIC SystemError : public detail::ErrorOf<ErrorCode::system> {
    using ErrorOf::ErrorOf;
};
/// A defect of rsccl. Please report it with the message.
class RSCCL_PUBLIC InternalError : public detail::ErrorOf<ErrorCode::internal> {
    using ErrorOf::ErrorOf;
};
/// Somebody called abort, here or on another rank. Destroy the communicator.
class RSCCL_PUBLIC Aborted : public detail::ErrorOf<ErrorCode::aborted> {
    using ErrorOf::ErrorOf;
};
/// A non-blocking call has not finished. Ask again later.
class RSCCL_PUBLIC InProgress : public detail::ErrorOf<ErrorCode::in_progress> {
    using ErrorOf::ErrorOf;
};

} // namespace rsccl
