// What a Python program calls through ctypes: a communicator by a folder, a sum, an end.
#include <rsccl/rsccl.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>

namespace {

rsccl::Config quick() {
    rsccl::Config config;
    config.timeout = std::chrono::seconds(20);
    config.init_timeout = std::chrono::seconds(20);
    config.socket_interfaces = "lo";
    return config;
}

/// Null, or -1, where `body` throws; `said` then holds the words.
template <class Body, class Value>
Value guarded(char* said, std::size_t room, Value failed, Body body) {
    try {
        return body();
    } catch (const std::exception& error) {
        std::snprintf(said, room, "%s", error.what());
        return failed;
    }
}

} // namespace

extern "C" {

void* rank_join(const char* folder, int rank, int size, char* said, std::size_t room) {
    return guarded(said, room, static_cast<void*>(nullptr), [&]() -> void* {
        rsccl::FileStore store(folder);
        return new rsccl::Communicator(rsccl::Communicator::from_store(store, rank, size, quick()));
    });
}

/// The sum of every rank's `value`; -1 with words in `said`.
double rank_sum(void* comm, double value, char* said, std::size_t room) {
    return guarded(said, room, -1.0, [&] { return static_cast<rsccl::Communicator*>(comm)->all_reduce_value(value); });
}

void rank_end(void* comm) { delete static_cast<rsccl::Communicator*>(comm); }
}
