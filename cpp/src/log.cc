// The log's lines, for programs that have a log of their own.
#include <rsccl/log.hpp>

#include "bridge.hpp"

namespace rsccl {

void set_log_callback(std::function<void(const LogLine&)> callback) {
    ffi::set_log(callback ? std::make_unique<ffi::LogCallback>(std::move(callback)) : nullptr);
}

void ffi::LogCallback::take(const Line& line) const noexcept {
    try {
        LogLine said;
        said.level = static_cast<LogLevel>(line.level);
        said.rank = line.rank < 0 ? std::nullopt : std::optional<int>(line.rank);
        said.text = std::string(line.text);
        said.printed = std::string(line.printed);
        body_(said);
    } catch (...) {
        // An exception of the program's log must not stop the operation that is logged.
    }
}

} // namespace rsccl
