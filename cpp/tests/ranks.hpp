/// @file
/// Ranks for tests: as threads of this program, and as processes that are this program again.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <rsccl/rsccl.hpp>

namespace ranks {

using namespace std::chrono_literals;

/// Deadlines far above what a healthy test needs, and the loopback interface, which every machine has.
inline rsccl::Config quick() {
    rsccl::Config config;
    config.timeout = 30s;
    config.init_timeout = 30s;
    config.socket_interfaces = "lo";
    return config;
}

/// How the ranks of one process reach each other: by pointers, as if they were processes, as if they were hosts.
enum class Path { pointers, shared_memory, sockets };

inline rsccl::Config by(Path path) {
    rsccl::Config config = quick();
    config.p2p_disable = path != Path::pointers;
    config.shm_disable = path == Path::sockets;
    return config;
}

/// The errors of all ranks; null for a rank that had none.
using Errors = std::vector<std::exception_ptr>;

/// Runs `body(comm)` on `size` threads, each of which is a rank and owns its communicator.
inline Errors errors_of(int size, const rsccl::Config& config, const std::function<void(rsccl::Communicator&)>& body) {
    std::vector<rsccl::Communicator> comms = rsccl::Communicator::init_all(size, config);
    Errors errors(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
        threads.emplace_back([&body, &error = errors[rank], comm = std::move(comms[rank])]() mutable {
            try {
                // Each body owns its communicator, which ends with the body, also where the body throws.
                rsccl::Communicator mine = std::move(comm);
                body(mine);
            } catch (...) {
                error = std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return errors;
}

/// As errors_of, but throws the first cause: not an error that only reports another rank's.
inline void run(int size, const rsccl::Config& config, const std::function<void(rsccl::Communicator&)>& body) {
    std::exception_ptr second;
    for (const std::exception_ptr& error : errors_of(size, config, body)) {
        if (!error) {
            continue;
        }
        try {
            std::rethrow_exception(error);
        } catch (const rsccl::RemoteError&) {
            second = error;
        } catch (const rsccl::Aborted&) {
            second = error;
        }
    }
    if (second) {
        std::rethrow_exception(second);
    }
}

inline void run(int size, const std::function<void(rsccl::Communicator&)>& body) { run(size, quick(), body); }

/// Throws an exception with the text `what` unless `so`; `run` passes it on from the thread.
inline void require(bool so, const std::string& what) {
    if (!so) {
        throw std::runtime_error(what);
    }
}

/// Throws unless element i of `got` is `want(i)` for all i.
template <class Range, class Want>
void require_each(const Range& got, const std::string& what, Want want) {
    const auto* data = std::data(got);
    for (std::size_t place = 0; place < std::size(got); ++place) {
        const auto wanted = want(place);
        if (!(data[place] == wanted)) {
            throw std::runtime_error(what + ": element " + std::to_string(place) + " of " + std::to_string(std::size(got)) +
                                     " is " + std::to_string(static_cast<double>(data[place])) + ", not " +
                                     std::to_string(static_cast<double>(wanted)));
        }
    }
}

/// More elements than fit one slot of any connection.
inline constexpr std::size_t large = 200'003;

inline int left_of(const rsccl::Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }
inline int right_of(const rsccl::Communicator& comm) { return (comm.rank() + 1) % comm.size(); }

/// `count` words whose values name the rank.
inline std::vector<int> words(int rank, std::size_t count) {
    std::vector<int> made(count);
    std::iota(made.begin(), made.end(), rank * 1'000'000);
    return made;
}

/// What stands at a place of them.
inline auto words_of(int rank) {
    return [rank](std::size_t place) { return rank * 1'000'000 + static_cast<int>(place); };
}

/// A folder of its own for one test, gone with the object.
class Folder {
  public:
    Folder();
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

/// What a process that is a rank runs; the value is the process's exit status.
using Worker = int (*)(const std::vector<std::string>& arguments);

/// Names a worker: `static const ranks::Named worker("hello", hello);`.
struct Named {
    Named(const char* name, Worker worker);
};

/// Starts this program `size` times as the ranks of one world, which meet in a file, and yields their exit statuses; a rank that
/// a signal has ended has 128 and its number.
std::vector<int> processes(int size, const std::string& worker, const std::vector<std::string>& arguments = {},
                           std::map<std::string, std::string> variables = {});

/// The worker that this process is asked to be, if it is: `main` begins with it.
bool is_worker(int argc, char** argv, int& status);

} // namespace ranks
