/// @file
/// Calls that run as one.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <rsccl/collectives.hpp>
#include <rsccl/communicator.hpp>

namespace rsccl {

/// Collects calls on one or several communicators and runs them as one, when end() is called.
///
/// In a group, sends and recvs may stand in any order: all of them run side by side. Collectives of one communicator run in the
/// order in which they were added, after its messages; small all-reduces of one type and operator that follow each other travel as
/// one. Communicators run side by side, so that ranks may name them in any order.
///
/// A group is used by one thread. Its buffers are its own until end() has returned. A group that is destroyed without end(), as when an exception leaves its
/// scope, runs nothing of what was added; outside of an exception that is a defect of the program and logs a warning. Prefer
/// rsccl::group(), which cannot forget it.
/// @code
/// rsccl::group([&](rsccl::Group& calls) {
///     calls.on(comm).recv(from_left, left);
///     calls.on(comm).send(to_right, right);
/// });
/// @endcode
class Group {
  public:
    /// A communicator inside a group: has all collectives and messages of Communicator, and adds each to the group. A message may go to
    /// the own rank, if the group has both its ends.
    class [[nodiscard]] Member : public Collectives<Member, void, detail::Lifetime::outlives> {
      public:
        /// A copy is a member of the same group.
        Member(const Member&) = default;
        /// A copy is a member of the same group.
        Member& operator=(const Member&) = default;
        /// My rank on that communicator; waits as that of the communicator does.
        int rank() const noexcept;
        /// The ranks of that communicator; waits likewise.
        int size() const noexcept;

      private:
        friend class Group;
        friend class Collectives<Member, void, detail::Lifetime::outlives>;
        Member(Group& group, const Communicator& communicator);
        int rank_now() const;
        int size_now() const;
        void submit(const detail::Call& call) const;
        Group* group_;
        std::shared_ptr<detail::State> state_; // the one that it was made on, whatever becomes of the Communicator
    };

    /// An empty group.
    Group();
    /// Runs nothing: what has not run by end() is discarded.
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    /// Adds a call on `communicator`: `calls.on(comm).send(buffer, peer)`. What it yields must not outlive the group, and keeps the
    /// communicator from ending before the group does: one that is destroyed meanwhile ends with the group.
    /// @throws InvalidUsage for a communicator that was moved from, and on a group that has ended; end() throws it for one that
    ///   was finalized
    Member on(const Communicator& communicator) { return Member(*this, communicator); }

    /// Runs everything that was added, and returns when it has ended. The group is over then, well or not.
    /// @throws Error the first of the calls'
    /// @throws InvalidUsage where the group has ended before, or a communicator of it has been finalized or is in use
    void end();

  private:
    friend struct detail::Access;
    template <class Body>
    friend void group(Body&& body);
    // While it lives, a call on a communicator itself, by this thread, is refused: it would not be one of the group.
    class Inside {
      public:
        Inside() noexcept;
        ~Inside();
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;
    };
    struct Batch;
    std::unique_ptr<Batch> batch_;
};

/// Calls `body` with a group, then runs what it has added. Where `body` throws, nothing runs and its exception comes through.
///
/// Inside of `body` calls go to the group: `calls.on(comm).send(…)`. A blocking collective or message of a communicator itself,
/// `comm.send(…)`, would run at once and wait, and so throws InvalidUsage there; `comm.start()` may be used.
/// @throws Error that of Group::end
template <class Body>
void group(Body&& body) {
    Group calls;
    {
        const Group::Inside inside;
        std::forward<Body>(body)(calls);
    }
    calls.end();
}

} // namespace rsccl
