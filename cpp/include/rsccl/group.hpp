/// @file
/// Calls that run as one.
#pragma once

#include <cstddef>
#include <initializer_list>
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
///     calls.recv(comm, from_left, left);
///     calls.send(comm, to_right, right);
/// });
/// @endcode
class Group {
  public:
    /// A communicator inside a group: has all collectives and messages of Communicator.
    class [[nodiscard]] Member : public Collectives<Member, void, detail::Lifetime::outlives> {
      public:
        /// A copy is a member of the same group.
        Member(const Member&) = default;
        /// A copy is a member of the same group.
        Member& operator=(const Member&) = default;
        /// My rank on that communicator.
        int rank() const noexcept { return rank_; }
        /// The ranks of that communicator.
        int size() const noexcept { return size_; }

      private:
        friend class Group;
        friend class Collectives<Member, void, detail::Lifetime::outlives>;
        Member(Group& group, Communicator& communicator);
        void submit(const detail::Call& call);
        Group* group_;
        std::shared_ptr<detail::State> state_; // the one that it was made on, whatever becomes of the Communicator
        int rank_;
        int size_;
    };

    /// An empty group.
    Group();
    /// Runs nothing: what has not run by end() is discarded.
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    /// The group's calls on `communicator`. What it yields must not outlive the group.
    /// @throws InvalidUsage for a communicator that was moved from, and on a group that has ended; calls throw it for one that was
    ///   finalized
    Member on(Communicator& communicator) { return Member(*this, communicator); }

    /// Adds Collectives::send; to the own rank too, if the group has the recv.
    template <class S, class... More>
    void send(Communicator& communicator, S&& buffer, More&&... more) {
        on(communicator).send(std::forward<S>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::recv.
    template <class R, class... More>
    void recv(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).recv(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::all_reduce.
    template <class S, class R, class... More>
    void all_reduce(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).all_reduce(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::all_reduce_in_place.
    template <class R, class... More>
    void all_reduce_in_place(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).all_reduce_in_place(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::broadcast.
    template <class R, class... More>
    void broadcast(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).broadcast(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::broadcast_into.
    template <class S, class R, class... More>
    void broadcast_into(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).broadcast_into(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::reduce.
    template <class S, class R, class... More>
    void reduce(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).reduce(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::reduce_in_place.
    template <class R, class... More>
    void reduce_in_place(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).reduce_in_place(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::all_gather.
    template <class S, class R, class... More>
    void all_gather(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).all_gather(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::all_gather_in_place.
    template <class R, class... More>
    void all_gather_in_place(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).all_gather_in_place(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::reduce_scatter.
    template <class S, class R, class... More>
    void reduce_scatter(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).reduce_scatter(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::reduce_scatter_in_place.
    template <class R, class... More>
    void reduce_scatter_in_place(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).reduce_scatter_in_place(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::all_to_all.
    template <class S, class R, class... More>
    void all_to_all(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).all_to_all(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::gather.
    template <class S, class R, class... More>
    void gather(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).gather(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::scatter.
    template <class S, class R, class... More>
    void scatter(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).scatter(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::barrier.
    void barrier(Communicator& communicator, Stream stream = {}) { on(communicator).barrier(stream); }
    /// Adds Collectives::all_gather_v; the counts are read now.
    template <class S, class R, class C = std::initializer_list<std::size_t>, class... More>
    void all_gather_v(Communicator& communicator, S&& send, R&& recv, const C& counts, More&&... more) {
        on(communicator).all_gather_v(std::forward<S>(send), std::forward<R>(recv), counts, std::forward<More>(more)...);
    }
    /// Adds Collectives::reduce_scatter_v; the counts are read now.
    template <class S, class R, class C = std::initializer_list<std::size_t>, class... More>
    void reduce_scatter_v(Communicator& communicator, S&& send, R&& recv, const C& counts, More&&... more) {
        on(communicator).reduce_scatter_v(std::forward<S>(send), std::forward<R>(recv), counts, std::forward<More>(more)...);
    }
    /// Adds Collectives::all_to_all_v; the counts are read now.
    template <class S, class R, class C = std::initializer_list<std::size_t>, class D = std::initializer_list<std::size_t>, class... More>
    void all_to_all_v(Communicator& communicator, S&& send, const C& send_counts, R&& recv, const D& recv_counts, More&&... more) {
        on(communicator)
            .all_to_all_v(std::forward<S>(send), send_counts, std::forward<R>(recv), recv_counts, std::forward<More>(more)...);
    }

    /// Adds Collectives::gather_v; the counts are read now.
    template <class S, class R, class C = std::initializer_list<std::size_t>, class... More>
    void gather_v(Communicator& communicator, S&& send, R&& recv, const C& counts, More&&... more) {
        on(communicator).gather_v(std::forward<S>(send), std::forward<R>(recv), counts, std::forward<More>(more)...);
    }
    /// Adds Collectives::scatter_v; the counts are read now.
    template <class S, class R, class C = std::initializer_list<std::size_t>, class... More>
    void scatter_v(Communicator& communicator, S&& send, R&& recv, const C& counts, More&&... more) {
        on(communicator).scatter_v(std::forward<S>(send), std::forward<R>(recv), counts, std::forward<More>(more)...);
    }
    /// Adds Collectives::scan.
    template <class S, class R, class... More>
    void scan(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).scan(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::scan_in_place.
    template <class R, class... More>
    void scan_in_place(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).scan_in_place(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::exscan.
    template <class S, class R, class... More>
    void exscan(Communicator& communicator, S&& send, R&& recv, More&&... more) {
        on(communicator).exscan(std::forward<S>(send), std::forward<R>(recv), std::forward<More>(more)...);
    }
    /// Adds Collectives::exscan_in_place.
    template <class R, class... More>
    void exscan_in_place(Communicator& communicator, R&& buffer, More&&... more) {
        on(communicator).exscan_in_place(std::forward<R>(buffer), std::forward<More>(more)...);
    }
    /// Adds Collectives::send_recv.
    template <class S, class R, class... More>
    void send_recv(Communicator& communicator, S&& send, int target, R&& recv, int source, More&&... more) {
        on(communicator).send_recv(std::forward<S>(send), target, std::forward<R>(recv), source, std::forward<More>(more)...);
    }

    /// Runs everything that was added, and returns when it has ended. The group is over then, well or not.
    /// @throws Error the first of the calls'
    /// @throws InvalidUsage where the group has ended before, or a communicator of it has been finalized or is in use
    void end();

  private:
    friend struct detail::Access;
    struct Batch;
    std::unique_ptr<Batch> batch_;
};

/// Calls `body` with a group, then runs what it has added. Where `body` throws, nothing runs and its exception comes through.
/// @throws Error that of Group::end
template <class Body>
void group(Body&& body) {
    Group calls;
    std::forward<Body>(body)(calls);
    calls.end();
}

} // namespace rsccl
