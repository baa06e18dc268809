/// @file
/// The log, for programs that have one of their own.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace rsccl {

/// One line of the log.
struct LogLine {
    std::string level;       ///< "VERSION", "WARN", "INFO" or "TRACE"
    std::string subsystem;   ///< the part of the library: "INIT", "NET", ...; empty where the line has none
    std::optional<int> rank; ///< the rank, where known
    std::string text;        ///< what is said
    std::string file;        ///< the source file, where known
    int line = 0;            ///< the line in it, 0 where unknown
};

/// Sends the lines of this process's log to `callback` in place of standard output or a file; an empty one takes the last one away.
/// What is logged is still what `NCCL_DEBUG` and Config::debug ask for.
///
/// The callback is called by whichever thread logs, several at a time; it must not call rsccl. An exception that it throws is
/// dropped: a log must not stop what it is about.
void set_log_callback(std::function<void(const LogLine&)> callback);

} // namespace rsccl
