/// @file
/// The calls that Communicator, its requests and its groups have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <vector>

#include <rsccl/types.hpp>
#include <rsccl/view.hpp>

namespace rsccl {

namespace detail {

/// What a call does. The library's own numbers.
enum class Kind : std::uint8_t {
    all_reduce = 0,
    broadcast = 1,
    reduce = 2,
    all_gather = 3,
    reduce_scatter = 4,
    all_to_all = 5,
    gather = 6,
    scatter = 7,
    barrier = 8,
    send = 9,
    recv = 10,
    all_gather_v = 11,
    reduce_scatter_v = 12,
    all_to_all_v = 13,
    gather_v = 14,
    scatter_v = 15,
    scan = 16,
    exscan = 17,
    send_recv = 255,
};

/// A call, described.
struct Call {
    Kind kind;
    DataType data_type;
    const void* send;
    void* recv;
    std::size_t count; ///< for each rank
    ReduceOp op;
    int other; ///< root or peer; of send_recv the target
    Stream stream;
    View<const std::size_t> counts;      ///< of a vector form
    View<const std::size_t> recv_counts; ///< of all_to_all_v
    int source = 0;                      ///< of send_recv
};

/// Says that a buffer has the wrong length.
[[noreturn]] void refuse_length(int rank, const char* name, std::size_t length, std::size_t expected);
/// Says that a buffer is not one block for each rank.
[[noreturn]] void refuse_blocks(int rank, std::size_t length, int ranks);
/// Says that there is not one count for each rank.
[[noreturn]] void refuse_counts(int rank, std::size_t counts, int ranks);
/// Says that the elements of all ranks are more than can be counted.
[[noreturn]] void refuse_total(int rank, std::size_t count, int ranks);

} // namespace detail

/// The collectives and messages of a communicator. `Self` does what a call describes: Communicator at once, Starter as a request,
/// Group::Member when its group ends.
///
/// Every rank makes the same calls in the same order, with the same counts, types, operators and roots; a rank that does not is named
/// in a Mismatch on all of them. Buffers are anything contiguous that has `std::data` and `std::size` (`std::vector`, `std::array`,
/// arrays, rsccl::buffer, rsccl::view of a pointer or of two iterators, `std::span`), of one element type for input and output. Lengths are checked; counts are in
/// elements.
///
/// Each call has a second form for callers that know their types only at run time: pointers, a count, a DataType. There, input and
/// output may be one buffer where the call's in-place form allows it; a null pointer goes with a count of 0 or where the rank's
/// buffer is not looked at.
///
/// @throws InvalidArgument (all calls) for what this rank alone can see to be wrong: lengths, null, root or peer that is no rank, an
///   operator that does not fit the type, buffers that overlap. Nothing was sent, the communicator is as before.
/// @throws InvalidUsage (all calls) on a communicator that was moved from, finalized, or is in use by another thread
/// @throws Mismatch, RemoteError, Timeout, SystemError, Aborted (all calls): the communicator has ended, on all ranks
template <class Self, class Result, detail::Lifetime Use>
class Collectives {
  public:
    /// Every rank passes `send`, all of one length, and gets the reduction of all in `recv`.
    template <class S, class R>
    Result all_reduce(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        check<S, R>();
        expect("recv", std::size(recv), std::size(send));
        return all_reduce(std::data(send), std::data(recv), std::size(recv), type<R>, op, stream);
    }
    /// all_reduce() with one buffer for both.
    template <class R>
    Result all_reduce_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        detail::check_output<R>();
        return all_reduce(std::data(buffer), std::data(buffer), std::size(buffer), type<R>, op, stream);
    }
    /// all_reduce() of `count` elements on each rank.
    Result all_reduce(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                      Stream stream = {}) {
        return submit(detail::Kind::all_reduce, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// The root's `buffer` comes to every rank's `buffer`. All pass the same length.
    template <class R>
    Result broadcast(R&& buffer, int root, Stream stream = {}) {
        detail::check_output<R>();
        return broadcast(std::data(buffer), std::data(buffer), std::size(buffer), type<R>, root, stream);
    }
    /// The root's `send` comes to every rank's `recv`, the root's too. What others pass as `send` is not looked at.
    template <class S, class R>
    Result broadcast_into(S&& send, R&& recv, int root, Stream stream = {}) {
        check<S, R>();
        if (root == self().rank()) {
            expect("send", std::size(send), std::size(recv));
        }
        return broadcast(std::data(send), std::data(recv), std::size(recv), type<R>, root, stream);
    }
    /// broadcast() of `count` elements; send and recv may be one buffer.
    Result broadcast(const void* send, void* recv, std::size_t count, DataType data_type, int root, Stream stream = {}) {
        return submit(detail::Kind::broadcast, {send, recv}, {count, data_type}, ReduceOp::sum, root, stream);
    }

    /// Every rank passes `send`, all of one length; the root gets the reduction of all in `recv`. What others pass as `recv` is
    /// not touched and may be empty.
    template <class S, class R>
    Result reduce(S&& send, R&& recv, ReduceOp op, int root, Stream stream = {}) {
        check<S, R>();
        if (root == self().rank()) {
            expect("recv", std::size(recv), std::size(send));
        }
        return reduce(std::data(send), std::data(recv), std::size(send), type<R>, op, root, stream);
    }
    /// reduce() where the root's `buffer` is input and output; other ranks' are only read.
    template <class R>
    Result reduce_in_place(R&& buffer, ReduceOp op, int root, Stream stream = {}) {
        detail::check_output<R>();
        return reduce(std::data(buffer), std::data(buffer), std::size(buffer), type<R>, op, root, stream);
    }
    /// reduce() of `count` elements on each rank.
    Result reduce(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op, int root,
                  Stream stream = {}) {
        return submit(detail::Kind::reduce, {send, recv}, {count, data_type}, op, root, stream);
    }

    /// Every rank passes `send`, all of one length, and gets everyone's, in rank order, in `recv`.
    template <class S, class R>
    Result all_gather(S&& send, R&& recv, Stream stream = {}) {
        check<S, R>();
        expect("recv", std::size(recv), times(std::size(send)));
        return all_gather(std::data(send), std::data(recv), std::size(send), type<R>, stream);
    }
    /// all_gather() where a rank's input is its block of `buffer`.
    template <class R>
    Result all_gather_in_place(R&& buffer, Stream stream = {}) {
        detail::check_output<R>();
        const std::size_t count = block(std::size(buffer));
        return all_gather(detail::behind(std::data(buffer), mine(count)), std::data(buffer), count, type<R>, stream);
    }
    /// all_gather() of `count` elements from each rank: `recv` has room for `count` times the ranks.
    Result all_gather(const void* send, void* recv, std::size_t count, DataType data_type, Stream stream = {}) {
        return submit(detail::Kind::all_gather, {send, recv}, {count, data_type}, ReduceOp::sum, 0, stream);
    }

    /// Every rank passes `send`, as many blocks as ranks; rank r gets the reduction of everyone's block r in `recv`.
    template <class S, class R>
    Result reduce_scatter(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        check<S, R>();
        expect("send", std::size(send), times(std::size(recv)));
        return reduce_scatter(std::data(send), std::data(recv), std::size(recv), type<R>, op, stream);
    }
    /// reduce_scatter() where a rank's output is its block of `buffer`; what the other blocks hold afterwards is not specified.
    template <class R>
    Result reduce_scatter_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        detail::check_output<R>();
        const std::size_t count = block(std::size(buffer));
        return reduce_scatter(std::data(buffer), detail::behind(std::data(buffer), mine(count)), count, type<R>, op, stream);
    }
    /// reduce_scatter() of `count` elements to each rank: `send` has `count` times the ranks.
    Result reduce_scatter(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                          Stream stream = {}) {
        return submit(detail::Kind::reduce_scatter, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// Every rank passes `send`, as many blocks as ranks; rank r gets everyone's block r, in rank order, in `recv`.
    template <class S, class R>
    Result all_to_all(S&& send, R&& recv, Stream stream = {}) {
        check<S, R>();
        expect("recv", std::size(recv), std::size(send));
        return all_to_all(std::data(send), std::data(recv), block(std::size(send)), type<R>, stream);
    }
    /// all_to_all() of `count` elements from each rank to each: both buffers have `count` times the ranks.
    Result all_to_all(const void* send, void* recv, std::size_t count, DataType data_type, Stream stream = {}) {
        return submit(detail::Kind::all_to_all, {send, recv}, {count, data_type}, ReduceOp::sum, 0, stream);
    }

    /// Every rank passes `send`, all of one length; the root gets everyone's, in rank order, in `recv`. What others pass as `recv`
    /// is not touched and may be empty.
    template <class S, class R>
    Result gather(S&& send, R&& recv, int root, Stream stream = {}) {
        check<S, R>();
        if (root == self().rank()) {
            expect("recv", std::size(recv), times(std::size(send)));
        }
        return gather(std::data(send), std::data(recv), std::size(send), type<R>, root, stream);
    }
    /// gather() of `count` elements from each rank.
    Result gather(const void* send, void* recv, std::size_t count, DataType data_type, int root, Stream stream = {}) {
        return submit(detail::Kind::gather, {send, recv}, {count, data_type}, ReduceOp::sum, root, stream);
    }

    /// The root passes `send`, as many blocks as ranks; rank r gets block r in `recv`. What others pass as `send` is not looked at
    /// and may be empty.
    template <class S, class R>
    Result scatter(S&& send, R&& recv, int root, Stream stream = {}) {
        check<S, R>();
        if (root == self().rank()) {
            expect("send", std::size(send), times(std::size(recv)));
        }
        return scatter(std::data(send), std::data(recv), std::size(recv), type<R>, root, stream);
    }
    /// scatter() of `count` elements to each rank.
    Result scatter(const void* send, void* recv, std::size_t count, DataType data_type, int root, Stream stream = {}) {
        return submit(detail::Kind::scatter, {send, recv}, {count, data_type}, ReduceOp::sum, root, stream);
    }

    /// Nobody goes on before everyone has called.
    Result barrier(Stream stream = {}) {
        return submit(detail::Kind::barrier, {nullptr, nullptr}, {0, DataType::uint8}, ReduceOp::sum, 0, stream);
    }

    /// all_gather() where rank r passes `counts[r]` elements. All ranks pass the same counts.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result all_gather_v(S&& send, R&& recv, const C& counts, Stream stream = {}) {
        check<S, R>();
        const std::vector<std::size_t> all = detail::counts_of(counts, self().rank());
        expect("send", std::size(send), mine(all));
        expect("recv", std::size(recv), total(all));
        return all_gather_v(std::data(send), std::data(recv), view(all.data(), all.size()), type<R>, stream);
    }
    /// all_gather_v() of memory; `counts` is read before the call returns.
    Result all_gather_v(const void* send, void* recv, View<const std::size_t> counts, DataType data_type, Stream stream = {}) {
        return submit_v(detail::Kind::all_gather_v, {send, recv}, data_type, {counts, {nullptr, 0}}, ReduceOp::sum, stream);
    }

    /// reduce_scatter() where rank r gets `counts[r]` elements. All ranks pass the same counts.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result reduce_scatter_v(S&& send, R&& recv, const C& counts, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        check<S, R>();
        const std::vector<std::size_t> all = detail::counts_of(counts, self().rank());
        expect("recv", std::size(recv), mine(all));
        expect("send", std::size(send), total(all));
        return reduce_scatter_v(std::data(send), std::data(recv), view(all.data(), all.size()), type<R>, op, stream);
    }
    /// reduce_scatter_v() of memory; `counts` is read before the call returns.
    Result reduce_scatter_v(const void* send, void* recv, View<const std::size_t> counts, DataType data_type,
                            ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        return submit_v(detail::Kind::reduce_scatter_v, {send, recv}, data_type, {counts, {nullptr, 0}}, op, stream);
    }

    /// all_to_all() with a count for each pair: this rank sends `send_counts[r]` elements to rank r, in rank order in `send`, and
    /// receives `recv_counts[r]` from it, in rank order in `recv`. What rank a sends to b is what b receives from a. A message between
    /// two ranks that was begun before it is received before it.
    template <class S, class R, class C = std::initializer_list<std::size_t>, class D = std::initializer_list<std::size_t>>
    Result all_to_all_v(S&& send, const C& send_counts, R&& recv, const D& recv_counts, Stream stream = {}) {
        check<S, R>();
        const std::vector<std::size_t> to = detail::counts_of(send_counts, self().rank());
        const std::vector<std::size_t> from = detail::counts_of(recv_counts, self().rank());
        expect("send", std::size(send), total(to));
        expect("recv", std::size(recv), total(from));
        return all_to_all_v(std::data(send), view(to.data(), to.size()), std::data(recv), view(from.data(), from.size()),
                            type<R>, stream);
    }
    /// all_to_all_v() of memory; the counts are read before the call returns.
    Result all_to_all_v(const void* send, View<const std::size_t> send_counts, void* recv, View<const std::size_t> recv_counts,
                        DataType data_type, Stream stream = {}) {
        return submit_v(detail::Kind::all_to_all_v, {send, recv}, data_type, {send_counts, recv_counts}, ReduceOp::sum, stream);
    }

    /// gather() where ranks pass different numbers of elements: rank r passes `counts[r]`. What other ranks than the root pass as
    /// `recv` and `counts` is not looked at.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result gather_v(S&& send, R&& recv, const C& counts, int root, Stream stream = {}) {
        check<S, R>();
        std::vector<std::size_t> all;
        if (root == self().rank()) {
            all = detail::counts_of(counts, self().rank());
            expect("send", std::size(send), mine(all));
            expect("recv", std::size(recv), total(all));
        }
        return gather_v(std::data(send), std::size(send), std::data(recv), view(all.data(), all.size()), type<R>, root, stream);
    }
    /// gather_v() of memory: `count` elements from this rank. The root's `counts` are read before the call returns.
    Result gather_v(const void* send, std::size_t count, void* recv, View<const std::size_t> counts, DataType data_type, int root,
                    Stream stream = {}) {
        return submit_rooted_v(detail::Kind::gather_v, {send, recv}, {count, data_type}, counts, root, stream);
    }

    /// scatter() where ranks get different numbers of elements: rank r gets `counts[r]`. What other ranks than the root pass as
    /// `send` and `counts` is not looked at.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result scatter_v(S&& send, R&& recv, const C& counts, int root, Stream stream = {}) {
        check<S, R>();
        std::vector<std::size_t> all;
        if (root == self().rank()) {
            all = detail::counts_of(counts, self().rank());
            expect("recv", std::size(recv), mine(all));
            expect("send", std::size(send), total(all));
        }
        return scatter_v(std::data(send), view(all.data(), all.size()), std::data(recv), std::size(recv), type<R>, root, stream);
    }
    /// scatter_v() of memory: `count` elements to this rank. The root's `counts` are read before the call returns.
    Result scatter_v(const void* send, View<const std::size_t> counts, void* recv, std::size_t count, DataType data_type, int root,
                     Stream stream = {}) {
        return submit_rooted_v(detail::Kind::scatter_v, {send, recv}, {count, data_type}, counts, root, stream);
    }

    /// Every rank passes `send`, all of one length; rank r gets the reduction of ranks 0 to r in `recv`. Not with avg or premul_sum.
    template <class S, class R>
    Result scan(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        check<S, R>();
        expect("recv", std::size(recv), std::size(send));
        return scan(std::data(send), std::data(recv), std::size(recv), type<R>, op, stream);
    }
    /// scan() with one buffer for both.
    template <class R>
    Result scan_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        detail::check_output<R>();
        return scan(std::data(buffer), std::data(buffer), std::size(buffer), type<R>, op, stream);
    }
    /// scan() of `count` elements on each rank.
    Result scan(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                Stream stream = {}) {
        return submit(detail::Kind::scan, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// Every rank passes `send`, all of one length; rank r gets the reduction of the ranks below it in `recv`, and rank 0's `recv` is
    /// not touched. Not with avg or premul_sum.
    template <class S, class R>
    Result exscan(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        check<S, R>();
        expect("recv", std::size(recv), std::size(send));
        return exscan(std::data(send), std::data(recv), std::size(recv), type<R>, op, stream);
    }
    /// exscan() with one buffer for both; rank 0's is not touched.
    template <class R>
    Result exscan_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, Stream stream = {}) {
        detail::check_output<R>();
        return exscan(std::data(buffer), std::data(buffer), std::size(buffer), type<R>, op, stream);
    }
    /// exscan() of `count` elements on each rank.
    Result exscan(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                  Stream stream = {}) {
        return submit(detail::Kind::exscan, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// Sends `send` to rank `target` and receives into `recv` from rank `source`, side by side. Either may be the own rank, if both
    /// are.
    template <class S, class R>
    Result send_recv(S&& send, int target, R&& recv, int source, Stream stream = {}) {
        check<S, R>();
        return send_recv(std::data(send), std::size(send), target, std::data(recv), std::size(recv), source, type<R>, stream);
    }
    /// send_recv() of memory.
    Result send_recv(const void* send, std::size_t send_count, int target, void* recv, std::size_t recv_count, int source,
                     DataType data_type, Stream stream = {}) {
        return self().submit(detail::Call{detail::Kind::send_recv, data_type, send, recv, 0, ReduceOp::sum, target, stream,
                                          {&send_count, 1}, {&recv_count, 1}, source});
    }

    /// Sends `buffer` to rank `peer`, which calls recv() with a buffer of the same type and length. Ends when the buffer may be
    /// changed. That does not wait for the peer's recv() while the connection to it has room: for eight messages that wait to
    /// be received, and 1 MiB of them together (Config::buffer_bytes, `NCCL_BUFFSIZE`). Over sockets it has 4 MiB while the peer
    /// waits in a send() or recv() of its own, and otherwise what the two systems' socket buffers take (`net.ipv4.tcp_wmem`,
    /// `net.ipv4.tcp_rmem`). A message that finds no room waits for recv(): to exchange large ones, put send and recv into a
    /// group. The first send to a peer also waits until the peer is in some call of this communicator that waits. A message to
    /// the own rank needs a group too.
    template <class S>
    Result send(S&& buffer, int peer, Stream stream = {}) {
        detail::check_input<S, Use>();
        return send(std::data(buffer), std::size(buffer), type<S>, peer, stream);
    }
    /// send() of `count` elements.
    Result send(const void* buffer, std::size_t count, DataType data_type, int peer, Stream stream = {}) {
        return submit(detail::Kind::send, {buffer, nullptr}, {count, data_type}, ReduceOp::sum, peer, stream);
    }

    /// Receives into `buffer` from rank `peer`, which calls send() with a buffer of the same type and length.
    template <class R>
    Result recv(R&& buffer, int peer, Stream stream = {}) {
        detail::check_output<R>();
        return recv(std::data(buffer), std::size(buffer), type<R>, peer, stream);
    }
    /// recv() of `count` elements.
    Result recv(void* buffer, std::size_t count, DataType data_type, int peer, Stream stream = {}) {
        return submit(detail::Kind::recv, {nullptr, buffer}, {count, data_type}, ReduceOp::sum, peer, stream);
    }

  protected:
    Collectives() noexcept = default;
    ~Collectives() = default;
    /// Copies refer to the same.
    Collectives(const Collectives&) noexcept = default;
    /// Copies refer to the same.
    Collectives& operator=(const Collectives&) noexcept = default;

  private:
    struct Memory {
        const void* send;
        void* recv;
    };
    struct Size {
        std::size_t count;
        DataType data_type;
    };
    struct Counts {
        View<const std::size_t> send;
        View<const std::size_t> recv;
    };

    template <class C>
    static constexpr DataType type = detail::data_type_or_any<detail::element_of<C>>();

    template <class S, class R>
    static constexpr void check() {
        detail::check_input<S, Use>();
        detail::check_output<R>();
        detail::check_same<S, R>();
    }

    Self& self() noexcept { return static_cast<Self&>(*this); }

    Result submit(detail::Kind kind, Memory memory, Size size, ReduceOp op, int other, Stream stream) {
        return self().submit(detail::Call{kind, size.data_type, memory.send, memory.recv, size.count, op, other, stream,
                                          {nullptr, 0}, {nullptr, 0}});
    }
    Result submit_v(detail::Kind kind, Memory memory, DataType data_type, Counts counts, ReduceOp op, Stream stream) {
        return self().submit(detail::Call{kind, data_type, memory.send, memory.recv, 0, op, 0, stream, counts.send, counts.recv});
    }

    Result submit_rooted_v(detail::Kind kind, Memory memory, Size size, View<const std::size_t> counts, int root, Stream stream) {
        return self().submit(detail::Call{kind, size.data_type, memory.send, memory.recv, size.count, ReduceOp::sum, root, stream,
                                          counts, {nullptr, 0}});
    }

    void expect(const char* name, std::size_t length, std::size_t expected) {
        if (length != expected) {
            detail::refuse_length(self().rank(), name, length, expected);
        }
    }
    /// `count` for each rank.
    std::size_t times(std::size_t count) {
        const auto ranks = static_cast<std::size_t>(self().size());
        if (count > static_cast<std::size_t>(-1) / ranks) {
            detail::refuse_total(self().rank(), count, self().size());
        }
        return count * ranks;
    }
    /// The count of one of as many blocks as ranks.
    std::size_t block(std::size_t length) {
        const auto ranks = static_cast<std::size_t>(self().size());
        if (length % ranks != 0) {
            detail::refuse_blocks(self().rank(), length, self().size());
        }
        return length / ranks;
    }
    /// Where my block of `count` elements begins.
    std::size_t mine(std::size_t count) { return count * static_cast<std::size_t>(self().rank()); }
    /// My count among `counts`.
    std::size_t mine(const std::vector<std::size_t>& counts) {
        if (counts.size() != static_cast<std::size_t>(self().size())) {
            detail::refuse_counts(self().rank(), counts.size(), self().size());
        }
        return counts[static_cast<std::size_t>(self().rank())];
    }
    /// All counts together.
    std::size_t total(const std::vector<std::size_t>& counts) {
        mine(counts);
        std::size_t sum = 0;
        for (const std::size_t count : counts) {
            if (count > static_cast<std::size_t>(-1) - sum) {
                detail::refuse_total(self().rank(), count, self().size());
            }
            sum += count;
        }
        return sum;
    }
};

} // namespace rsccl
