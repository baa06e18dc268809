/// @file
/// The log, for programs that have one of their own.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <rsccl/version.hpp>

namespace rsccl {

/// How loud a line is; each level holds the ones before it.
enum class LogLevel : int {
    version = 0, ///< one line with the version
    warn = 1,    ///< what went wrong
    info = 2,    ///< how the communicator was set up
    trace = 3,   ///< everything
};

/// One line of the log.
struct LogLine {
    LogLevel level = LogLevel::info; ///< how loud it is
    std::optional<int> rank;         ///< the rank that speaks, where known
    std::string text;                ///< what it says
    std::string printed;             ///< the whole line as it would be printed, its end of line included
};

/// Sends the lines of this process's log to `callback` in place of standard output or a file; an empty one takes the last one away.
/// What is logged is still what `NCCL_DEBUG` and Config::debug ask for.
///
/// The callback is called by whichever thread logs, several at a time; what it makes rsccl log itself is dropped. So is an exception
/// that it throws: a log must not stop what it is about. Threads that are in a callback when it is replaced go on in it; it is
/// destroyed when the last has left it, at the end of the process not at all. So what it refers to must outlive every communicator.
void set_log_callback(std::function<void(const LogLine&)> callback);

} // namespace rsccl
