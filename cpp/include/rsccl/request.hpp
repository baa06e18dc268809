/// @file
/// Operations that go on while the program does other things.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <rsccl/persistent.hpp>
#include <rsccl/version.hpp>

namespace rsccl {

namespace detail {
struct Pending;
struct Access;
} // namespace detail

/// An operation that was begun through Communicator::start(). Its buffers are the operation's until it has ended: they
/// must neither be touched nor freed before wait() returns or test() says true.
///
/// It begins on the thread that calls start(), and goes on in whatever the program does with the communicator: waits, tests, blocking
/// calls, which may stand between start() and wait() as in MPI. Where the program computes for long, or waits elsewhere, a thread of
/// the library moves it. Messages run side by side and beside collectives; collectives run one after the other, as they were begun.
/// Any thread may wait, one at a time. Moved-from and default-made requests are empty: they have ended.
class [[nodiscard]] Request {
  public:
    /// No operation.
    Request() noexcept;
    /// The other is empty afterwards.
    Request(Request&&) noexcept;
    /// Waits for the operation that it held before, as the destructor does.
    Request& operator=(Request&&) noexcept;
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;
    /// Waits until the operation has ended; the communicator's time-out bounds it. An error goes unsaid here: where it ended the
    /// communicator, the next call on that says it.
    ~Request();

    /// Waits until the operation has ended; the communicator's time-out bounds it. The request is empty afterwards.
    /// @throws Error the operation's
    void wait();

    /// Whether the operation has ended. Never waits. The request is empty once it says true.
    /// @throws Error the operation's, once it has ended badly
    bool test();

    /// Whether it holds an operation whose end nobody has seen yet.
    explicit operator bool() const noexcept { return pending_ != nullptr; }

  private:
    friend struct detail::Access;
    explicit Request(std::unique_ptr<detail::Pending> pending) noexcept;
    std::unique_ptr<detail::Pending> pending_;
};

namespace detail {
/// What a range holds: persistent calls, or what converts to a request.
template <class Range>
using in_range = std::conditional_t<std::is_same_v<std::decay_t<decltype(*std::begin(std::declval<Range&>()))>, PersistentCall>, PersistentCall, Request>;
} // namespace detail

/// Waits for all requests of a range, or all rounds of a range of persistent calls, then throws the first of their errors.
/// @throws Error that of the first, in the order of the range, that ended badly
template <class Requests>
void wait_all(Requests&& requests) {
    std::exception_ptr first;
    for (detail::in_range<Requests>& request : requests) {
        try {
            request.wait();
        } catch (...) {
            if (!first) {
                first = std::current_exception();
            }
        }
    }
    if (first) {
        std::rethrow_exception(first);
    }
}

/// Waits until some requests of a range have ended, and says which, counted from 0: these are empty afterwards. None where all are
/// empty. All go on meanwhile, also those of several communicators; their time-outs bound the wait.
/// @throws Error that of a request that has ended badly, which is empty then
template <class Requests>
std::vector<std::size_t> wait_some(Requests&& requests) {
    std::vector<std::size_t> ended;
    for (unsigned turn = 0;; ++turn) {
        bool is_waiting = false;
        std::size_t place = 0;
        for (Request& request : requests) {
            if (request) {
                if (request.test()) {
                    ended.push_back(place);
                } else {
                    is_waiting = true;
                }
            }
            ++place;
        }
        if (!is_waiting || !ended.empty()) {
            return ended;
        }
        if (turn < 1000) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    }
}

/// Waits until one request of a range has ended, and says which, counted from 0: that one is empty afterwards. The length of the range
/// where all are empty.
/// @throws Error that of a request that has ended badly, which is empty then
template <class Requests>
std::size_t wait_any(Requests&& requests) {
    for (unsigned turn = 0;; ++turn) {
        bool is_waiting = false;
        std::size_t place = 0;
        for (Request& request : requests) {
            if (request) {
                is_waiting = true;
                if (request.test()) {
                    return place;
                }
            }
            ++place;
        }
        if (!is_waiting) {
            return place;
        }
        if (turn < 1000) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    }
}

/// Whether all requests of a range have ended: those that have are empty afterwards. Never waits.
/// @throws Error that of a request that has ended badly, which is empty then
template <class Requests>
bool test_all(Requests&& requests) {
    bool all = true;
    for (Request& request : requests) {
        all = (!request || request.test()) && all;
    }
    return all;
}

} // namespace rsccl
