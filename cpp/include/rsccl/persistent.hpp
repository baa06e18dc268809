/// @file
/// Calls that are prepared once and run again and again.
#pragma once

#include <memory>

#include <rsccl/version.hpp>

namespace rsccl {

namespace detail {
struct Repeated;
struct Access;
} // namespace detail

/// A call that was prepared through Communicator::prepare(), and runs any number of times on the same buffers: `MPI_Allreduce_init`.
///
/// A round is run(), or start() and wait(). The buffers' addresses, counts and operator are settled where it is prepared: the memory
/// must live as long as this object. Between two rounds the program reads and writes it; while a round is under way it must neither be
/// touched nor freed, but for reading what is sent.
///
/// Each rank prepares for itself, in any order: nothing is sent, and no rank waits for another to prepare. Where collectives of requests
/// are under way, preparing waits until they have ended, as blocking calls do, so until all ranks have begun them. Rounds are calls like
/// any other: all ranks start those of collectives in the same order among their collectives. Several persistent calls may be under way
/// at once, beside requests and blocking calls. Moved-from and default-made ones are empty.
///
/// @code
/// std::vector<double> mine(n), sum(n);
/// rsccl::PersistentCall reduce = comm.prepare().all_reduce(mine, sum);
/// for (int step = 0; step < steps; ++step) {
///     compute(mine);
///     reduce.run(); // or start(), other work, wait()
///     use(sum);
/// }
/// @endcode
class [[nodiscard]] PersistentCall {
  public:
    /// No call.
    PersistentCall() noexcept;
    /// The other is empty afterwards.
    PersistentCall(PersistentCall&&) noexcept;
    /// Waits for the round of the call that it held before, as the destructor does.
    PersistentCall& operator=(PersistentCall&&) noexcept;
    PersistentCall(const PersistentCall&) = delete;
    PersistentCall& operator=(const PersistentCall&) = delete;
    /// Waits until the round that was started has ended; the communicator's time-out bounds it. An error goes unsaid here: where it ended
    /// the communicator, the next call on that says it.
    ~PersistentCall();

    /// Starts a round, and goes as far as that goes without waiting.
    /// @throws InvalidUsage while the round before has not been waited for, and on an empty call
    void start();

    /// Waits until the round that was started has ended; the communicator's time-out bounds it. Returns at once where none was.
    /// @throws Error the round's
    void wait();

    /// Whether no round is under way any more. Never waits. Another one may be started once it says true.
    /// @throws Error the round's, once it has ended badly
    bool test();

    /// A whole round: start() and wait() at once, and faster than the two.
    /// @throws Error as those
    void run();

    /// Whether it holds a call.
    explicit operator bool() const noexcept { return repeated_ != nullptr; }

  private:
    template <class Requests>
    friend bool test_all(Requests&& requests);
    /// Whether no round is under way, well ended or not; what has ended is still to be waited for.
    bool has_ended() const;
    friend struct detail::Access;
    explicit PersistentCall(std::unique_ptr<detail::Repeated> repeated) noexcept;
    detail::Repeated& repeated() const;
    std::unique_ptr<detail::Repeated> repeated_;
};

/// Starts a round of each call of a range, in its order.
/// @throws Error the first of PersistentCall::start(): those before it are under way, those behind it are not
template <class Calls>
void start_all(Calls&& calls) {
    for (PersistentCall& call : calls) {
        call.start();
    }
}

} // namespace rsccl
