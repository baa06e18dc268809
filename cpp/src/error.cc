// Errors: what crosses the bridge, and the class that each becomes.
#include <rsccl/error.hpp>

#include <exception>
#include <new>
#include <utility>

#include "bridge.hpp"

namespace rsccl {

static_assert(static_cast<int>(ErrorCode::invalid_argument) == static_cast<int>(ffi::Code::InvalidArgument));
static_assert(static_cast<int>(ErrorCode::invalid_usage) == static_cast<int>(ffi::Code::InvalidUsage));
static_assert(static_cast<int>(ErrorCode::mismatch) == static_cast<int>(ffi::Code::Mismatch));
static_assert(static_cast<int>(ErrorCode::remote) == static_cast<int>(ffi::Code::Remote));
static_assert(static_cast<int>(ErrorCode::timeout) == static_cast<int>(ffi::Code::Timeout));
static_assert(static_cast<int>(ErrorCode::system) == static_cast<int>(ffi::Code::System));
static_assert(static_cast<int>(ErrorCode::internal) == static_cast<int>(ffi::Code::Internal));
static_assert(static_cast<int>(ErrorCode::aborted) == static_cast<int>(ffi::Code::Aborted));
static_assert(static_cast<int>(ErrorCode::in_progress) == static_cast<int>(ffi::Code::InProgress));

struct Error::Details {
    ErrorCode code;
    std::string message;
    std::optional<int> rank;
    std::optional<int> peer;
    std::string operation;
};

namespace {

// The one line that Rust prints too.
std::string line_of(const std::string& message, std::optional<int> rank, const std::string& operation) {
    std::string line;
    if (rank) {
        line += "rank " + std::to_string(*rank) + ": ";
    }
    if (!operation.empty()) {
        line += operation + ": ";
    }
    return line + message;
}

std::optional<int> place_of(std::int32_t rank) { return rank < 0 ? std::nullopt : std::optional<int>(rank); }

} // namespace

Error::Error(ErrorCode code, const std::string& message) : Error(code, message, {}, {}, {}) {}

Error::Error(ErrorCode code, const std::string& message, std::optional<int> rank, std::optional<int> peer,
             const std::string& operation)
    : std::runtime_error(line_of(message, rank, operation)),
      details_(std::make_shared<const Details>(Details{code, message, rank, peer, operation})) {}

ErrorCode Error::code() const noexcept { return details_->code; }
const std::string& Error::message() const noexcept { return details_->message; }
std::optional<int> Error::rank() const noexcept { return details_->rank; }
std::optional<int> Error::peer() const noexcept { return details_->peer; }
const std::string& Error::operation() const noexcept { return details_->operation; }

void Error::raise() const {
    switch (code()) {
    case ErrorCode::invalid_argument: throw InvalidArgument(*this);
    case ErrorCode::invalid_usage: throw InvalidUsage(*this);
    case ErrorCode::mismatch: throw Mismatch(*this);
    case ErrorCode::remote: throw RemoteError(*this);
    case ErrorCode::timeout: throw Timeout(*this);
    case ErrorCode::system: throw SystemError(*this);
    case ErrorCode::internal: throw InternalError(*this);
    case ErrorCode::aborted: throw Aborted(*this);
    case ErrorCode::in_progress: throw InProgress(*this);
    }
    throw *this;
}

const char* name_of(ErrorCode code) noexcept {
    switch (code) {
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::invalid_usage: return "invalid usage";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::remote: return "remote error";
    case ErrorCode::timeout: return "time-out";
    case ErrorCode::system: return "system error";
    case ErrorCode::internal: return "internal error";
    case ErrorCode::aborted: return "aborted";
    case ErrorCode::in_progress: return "in progress";
    }
    return "unknown";
}

int nccl_code(ErrorCode code) noexcept { return ffi::nccl_code(static_cast<std::int32_t>(code)); }

namespace detail {

Error take_error(ffi::Failure* failure) {
    const rust::Box<ffi::Failure> owned = rust::Box<ffi::Failure>::from_raw(failure);
    const ffi::Status status = ffi::explain(*owned);
    return Error(static_cast<ErrorCode>(status.code), std::string(status.message), place_of(status.rank),
                 place_of(status.peer), std::string(status.operation));
}

void raise(ffi::Failure* failure) { take_error(failure).raise(); }

namespace {

// Throws `error` as the class of its kind, with the exception that is being handled nested into it.
[[noreturn]] void raise_nested(const Error& error) {
    switch (error.code()) {
    case ErrorCode::invalid_argument: std::throw_with_nested(InvalidArgument(error));
    case ErrorCode::invalid_usage: std::throw_with_nested(InvalidUsage(error));
    case ErrorCode::mismatch: std::throw_with_nested(Mismatch(error));
    case ErrorCode::remote: std::throw_with_nested(RemoteError(error));
    case ErrorCode::timeout: std::throw_with_nested(Timeout(error));
    case ErrorCode::system: std::throw_with_nested(SystemError(error));
    case ErrorCode::internal: std::throw_with_nested(InternalError(error));
    case ErrorCode::aborted: std::throw_with_nested(Aborted(error));
    case ErrorCode::in_progress: std::throw_with_nested(InProgress(error));
    }
    std::throw_with_nested(error);
}

} // namespace

void raise(ffi::Failure* failure, ffi::Thrown& thrown) {
    const Error error = take_error(failure);
    // A hook that throws ends its call with Aborted. Errors of other kinds did not come from a hook.
    const std::exception_ptr cause = error.code() == ErrorCode::aborted ? thrown.take() : nullptr;
    if (!cause) {
        error.raise();
    }
    try {
        std::rethrow_exception(cause);
    } catch (const Error& own) {
        raise_nested(Error(own.code(), error.message(), error.rank(), error.peer(), error.operation()));
    } catch (...) {
        raise_nested(error);
    }
}

ffi::Status current_status() noexcept {
    const auto internal = static_cast<std::int32_t>(ErrorCode::internal);
    const auto plain = [internal](const char* words) {
        // Lossy, because the text of a program's exception may hold any bytes.
        return ffi::Status{internal, rust::String::lossy(words), -1, -1, rust::String()};
    };
    try {
        throw;
    } catch (const Error& error) {
        // Code 0 would mean that the call succeeded.
        const auto code = static_cast<std::int32_t>(error.code());
        return ffi::Status{code == 0 ? internal : code, rust::String::lossy(error.message()), error.rank().value_or(-1),
                           error.peer().value_or(-1), rust::String::lossy(error.operation())};
    } catch (const std::exception& error) {
        return plain(error.what());
    } catch (...) {
        return plain("an exception that is no std::exception");
    }
}

} // namespace detail
} // namespace rsccl
