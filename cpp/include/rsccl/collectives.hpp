/// @file
/// The calls that Communicator, its requests and its groups have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <vector>

#include <rsccl/types.hpp>
#include <rsccl/view.hpp>

namespace rsccl {

namespace detail {

// The library's own numbers.
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
[[noreturn]] void refuse_length(int rank, Kind call, const char* name, std::size_t length, std::size_t expected);
/// Says that a buffer is not one block for each rank.
[[noreturn]] void refuse_blocks(int rank, Kind call, std::size_t length, int ranks);
/// Says that there is not one count for each rank.
[[noreturn]] void refuse_counts(int rank, Kind call, std::size_t counts, int ranks);
/// Says that the elements of all ranks are more than can be counted.
[[noreturn]] void refuse_total(int rank, Kind call, std::size_t count, int ranks);

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
/// Buffers come first, then counts, type, operator, and root or peer, and last a Stream; send_recv() has MPI's order. Calls are const: they change nothing of a
/// communicator that its holder could ask for. That does not make them safe beside each other on two threads.
///
/// @throws InvalidArgument (all calls) for what this rank alone can see to be wrong: lengths, null, root or peer that is no rank, an
///   operator that does not fit the type, buffers that overlap. Nothing was sent, the communicator is as before.
/// @throws InvalidUsage (all calls) on a communicator that was moved from, finalized, or is in use by another thread
/// @throws Mismatch, RemoteError, Timeout, SystemError, Aborted (all calls): the communicator has ended, on all ranks
template <class Self, class Result, detail::Lifetime Use>
class Collectives {
    using Kind = detail::Kind;

  public:
    /// Every rank passes `send`, all of one length, and gets the reduction of all in `recv`.
    template <class S, class R>
    Result all_reduce(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        expect(Kind::all_reduce, "recv", detail::count_in(recv), detail::count_in(send));
        return all_reduce(detail::data_of(send), detail::output_of(recv), detail::count_in(recv), type<R>, op, stream);
    }
    /// all_reduce() with one buffer for both.
    template <class R>
    Result all_reduce_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        return all_reduce(detail::output_of(buffer), detail::output_of(buffer), detail::count_in(buffer), type<R>, op, stream);
    }
    /// all_reduce() of `count` elements on each rank.
    Result all_reduce(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                      Stream stream = {}) const {
        return submit(Kind::all_reduce, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// The root's `buffer` comes to every rank's `buffer`. All pass the same length.
    template <class R>
    Result broadcast(R&& buffer, int root, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        return broadcast(detail::output_of(buffer), detail::output_of(buffer), detail::count_in(buffer), type<R>, root, stream);
    }
    /// The root's `send` comes to every rank's `recv`, the root's too. What others pass as `send` is not looked at.
    template <class S, class R>
    Result broadcast_into(S&& send, R&& recv, int root, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        if (root == self().rank_now()) {
            expect(Kind::broadcast, "send", detail::count_in(send), detail::count_in(recv));
        }
        return broadcast(detail::data_of(send), detail::output_of(recv), detail::count_in(recv), type<R>, root, stream);
    }
    /// broadcast() of `count` elements; send and recv may be one buffer.
    Result broadcast(const void* send, void* recv, std::size_t count, DataType data_type, int root, Stream stream = {}) const {
        return submit(Kind::broadcast, {send, recv}, {count, data_type}, ReduceOp::sum, root, stream);
    }

    /// Every rank passes `send`, all of one length; the root gets the reduction of all in `recv`. What others pass as `recv` is
    /// not touched and may be empty.
    template <class S, class R>
    Result reduce(S&& send, R&& recv, ReduceOp op, int root, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        if (root == self().rank_now()) {
            expect(Kind::reduce, "recv", detail::count_in(recv), detail::count_in(send));
        }
        return reduce(detail::data_of(send), detail::output_of(recv), detail::count_in(send), type<R>, op, root, stream);
    }
    /// reduce() where the root's `buffer` is input and output; other ranks' are only read.
    template <class R>
    Result reduce_in_place(R&& buffer, ReduceOp op, int root, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        return reduce(detail::output_of(buffer), detail::output_of(buffer), detail::count_in(buffer), type<R>, op, root, stream);
    }
    /// reduce() of `count` elements on each rank.
    Result reduce(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op, int root,
                  Stream stream = {}) const {
        return submit(Kind::reduce, {send, recv}, {count, data_type}, op, root, stream);
    }

    /// Every rank passes `send`, all of one length, and gets everyone's, in rank order, in `recv`.
    template <class S, class R>
    Result all_gather(S&& send, R&& recv, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        expect(Kind::all_gather, "recv", detail::count_in(recv), times(Kind::all_gather, detail::count_in(send)));
        return all_gather(detail::data_of(send), detail::output_of(recv), detail::count_in(send), type<R>, stream);
    }
    /// all_gather() where a rank's input is its block of `buffer`.
    template <class R>
    Result all_gather_in_place(R&& buffer, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        const std::size_t count = block(Kind::all_gather, detail::count_in(buffer));
        return all_gather(detail::behind(detail::output_of(buffer), mine(count)), detail::output_of(buffer), count, type<R>, stream);
    }
    /// all_gather() of `count` elements from each rank: `recv` has room for `count` times the ranks.
    Result all_gather(const void* send, void* recv, std::size_t count, DataType data_type, Stream stream = {}) const {
        return submit(Kind::all_gather, {send, recv}, {count, data_type}, ReduceOp::sum, 0, stream);
    }

    /// Every rank passes `send`, as many blocks as ranks; rank r gets the reduction of everyone's block r in `recv`.
    template <class S, class R>
    Result reduce_scatter(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        expect(Kind::reduce_scatter, "send", detail::count_in(send), times(Kind::reduce_scatter, detail::count_in(recv)));
        return reduce_scatter(detail::data_of(send), detail::output_of(recv), detail::count_in(recv), type<R>, op, stream);
    }
    /// reduce_scatter() where a rank's output is its block of `buffer`; what the other blocks hold afterwards is not specified.
    template <class R>
    Result reduce_scatter_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        const std::size_t count = block(Kind::reduce_scatter, detail::count_in(buffer));
        return reduce_scatter(detail::output_of(buffer), detail::behind(detail::output_of(buffer), mine(count)), count, type<R>, op, stream);
    }
    /// reduce_scatter() of `count` elements to each rank: `send` has `count` times the ranks.
    Result reduce_scatter(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                          Stream stream = {}) const {
        return submit(Kind::reduce_scatter, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// Every rank passes `send`, as many blocks as ranks; rank r gets everyone's block r, in rank order, in `recv`.
    template <class S, class R>
    Result all_to_all(S&& send, R&& recv, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        expect(Kind::all_to_all, "recv", detail::count_in(recv), detail::count_in(send));
        return all_to_all(detail::data_of(send), detail::output_of(recv), block(Kind::all_to_all, detail::count_in(send)), type<R>, stream);
    }
    /// all_to_all() of `count` elements from each rank to each: both buffers have `count` times the ranks.
    Result all_to_all(const void* send, void* recv, std::size_t count, DataType data_type, Stream stream = {}) const {
        return submit(Kind::all_to_all, {send, recv}, {count, data_type}, ReduceOp::sum, 0, stream);
    }

    /// Every rank passes `send`, all of one length; the root gets everyone's, in rank order, in `recv`. What others pass as `recv`
    /// is not touched and may be empty.
    template <class S, class R>
    Result gather(S&& send, R&& recv, int root, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        if (root == self().rank_now()) {
            expect(Kind::gather, "recv", detail::count_in(recv), times(Kind::gather, detail::count_in(send)));
        }
        return gather(detail::data_of(send), detail::output_of(recv), detail::count_in(send), type<R>, root, stream);
    }
    /// gather() of `count` elements from each rank.
    Result gather(const void* send, void* recv, std::size_t count, DataType data_type, int root, Stream stream = {}) const {
        return submit(Kind::gather, {send, recv}, {count, data_type}, ReduceOp::sum, root, stream);
    }

    /// The root passes `send`, as many blocks as ranks; rank r gets block r in `recv`. What others pass as `send` is not looked at
    /// and may be empty.
    template <class S, class R>
    Result scatter(S&& send, R&& recv, int root, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        if (root == self().rank_now()) {
            expect(Kind::scatter, "send", detail::count_in(send), times(Kind::scatter, detail::count_in(recv)));
        }
        return scatter(detail::data_of(send), detail::output_of(recv), detail::count_in(recv), type<R>, root, stream);
    }
    /// scatter() of `count` elements to each rank.
    Result scatter(const void* send, void* recv, std::size_t count, DataType data_type, int root, Stream stream = {}) const {
        return submit(Kind::scatter, {send, recv}, {count, data_type}, ReduceOp::sum, root, stream);
    }

    /// Nobody goes on before everyone has called.
    Result barrier(Stream stream = {}) const {
        return submit(Kind::barrier, {nullptr, nullptr}, {0, DataType::uint8}, ReduceOp::sum, 0, stream);
    }

    /// all_gather() where rank r passes `counts[r]` elements. All ranks pass the same counts.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result all_gather_v(S&& send, R&& recv, const C& counts, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        const std::vector<std::size_t> all = detail::counts_of(counts, self().rank_now(), Kind::all_gather_v);
        expect(Kind::all_gather_v, "send", detail::count_in(send), mine(Kind::all_gather_v, all));
        expect(Kind::all_gather_v, "recv", detail::count_in(recv), total(Kind::all_gather_v, all));
        return all_gather_v(detail::data_of(send), detail::output_of(recv), view(all.data(), all.size()), type<R>, stream);
    }
    /// all_gather_v() of memory; `counts` is read before the call returns.
    Result all_gather_v(const void* send, void* recv, View<const std::size_t> counts, DataType data_type, Stream stream = {}) const {
        return submit_v(Kind::all_gather_v, {send, recv}, data_type, {counts, {nullptr, 0}}, ReduceOp::sum, stream);
    }

    /// reduce_scatter() where rank r gets `counts[r]` elements. All ranks pass the same counts.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result reduce_scatter_v(S&& send, R&& recv, const C& counts, ReduceOp op = ReduceOp::sum, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        const std::vector<std::size_t> all = detail::counts_of(counts, self().rank_now(), Kind::reduce_scatter_v);
        expect(Kind::reduce_scatter_v, "recv", detail::count_in(recv), mine(Kind::reduce_scatter_v, all));
        expect(Kind::reduce_scatter_v, "send", detail::count_in(send), total(Kind::reduce_scatter_v, all));
        return reduce_scatter_v(detail::data_of(send), detail::output_of(recv), view(all.data(), all.size()), type<R>, op, stream);
    }
    /// reduce_scatter_v() of memory; `counts` is read before the call returns.
    Result reduce_scatter_v(const void* send, void* recv, View<const std::size_t> counts, DataType data_type,
                            ReduceOp op = ReduceOp::sum, Stream stream = {}) const {
        return submit_v(Kind::reduce_scatter_v, {send, recv}, data_type, {counts, {nullptr, 0}}, op, stream);
    }

    /// all_to_all() with a count for each pair: this rank sends `counts.send()[r]` elements to rank r, in rank order in `send`, and
    /// receives `counts.recv()[r]` from it, in rank order in `recv`. What rank a sends to b is what b receives from a. A message between
    /// two ranks that was begun before it is received before it. Both counts stand in braces, `all_to_all_v(in, out, {to, from})`, so
    /// that integers as data cannot be taken for counts.
    template <class S, class R>
    Result all_to_all_v(S&& send, R&& recv, const SendRecvCounts& counts, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        counts.check(self().rank_now(), Kind::all_to_all_v);
        expect(Kind::all_to_all_v, "send", detail::count_in(send), total(Kind::all_to_all_v, counts.send()));
        expect(Kind::all_to_all_v, "recv", detail::count_in(recv), total(Kind::all_to_all_v, counts.recv()));
        return all_to_all_v(detail::data_of(send), detail::output_of(recv), counts, type<R>, stream);
    }
    /// all_to_all_v() of memory; the counts are read before the call returns.
    Result all_to_all_v(const void* send, void* recv, const SendRecvCounts& counts, DataType data_type, Stream stream = {}) const {
        counts.check(self().rank_now(), Kind::all_to_all_v);
        const auto all = [](const std::vector<std::size_t>& of) { return view(of.data(), of.size()); };
        return submit_v(Kind::all_to_all_v, {send, recv}, data_type, {all(counts.send()), all(counts.recv())}, ReduceOp::sum, stream);
    }
    /// Counts behind each buffer, as MPI has them, do not compile: with integers as data they would be taken for one of the buffers.
    template <class S, class C = std::initializer_list<std::size_t>, class R, class D = std::initializer_list<std::size_t>, class... Rest,
              std::enable_if_t<!std::is_same_v<detail::plain<R>, SendRecvCounts>, int> = 0>
    Result all_to_all_v(S&&, const C&, R&&, const D&, Rest&&...) const {
        static_assert(detail::never<S, Rest...>, "rsccl: the buffers come first, and then both counts in braces: "
                                                 "all_to_all_v(send, recv, {send_counts, recv_counts})");
        std::terminate();
    }

    /// gather() where ranks pass different numbers of elements: rank r passes `counts[r]`. What other ranks than the root pass as
    /// `recv` and `counts` is not looked at.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result gather_v(S&& send, R&& recv, const C& counts, int root, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        std::vector<std::size_t> all;
        if (root == self().rank_now()) {
            all = detail::counts_of(counts, self().rank_now(), Kind::gather_v);
            expect(Kind::gather_v, "send", detail::count_in(send), mine(Kind::gather_v, all));
            expect(Kind::gather_v, "recv", detail::count_in(recv), total(Kind::gather_v, all));
        }
        return gather_v(detail::data_of(send), detail::output_of(recv), detail::count_in(send), view(all.data(), all.size()), type<R>, root, stream);
    }
    /// gather_v() of memory: `count` elements from this rank. The root's `counts` are read before the call returns.
    Result gather_v(const void* send, void* recv, std::size_t count, View<const std::size_t> counts, DataType data_type, int root,
                    Stream stream = {}) const {
        return submit_rooted_v(Kind::gather_v, {send, recv}, {count, data_type}, counts, root, stream);
    }

    /// scatter() where ranks get different numbers of elements: rank r gets `counts[r]`. What other ranks than the root pass as
    /// `send` and `counts` is not looked at.
    template <class S, class R, class C = std::initializer_list<std::size_t>>
    Result scatter_v(S&& send, R&& recv, const C& counts, int root, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        std::vector<std::size_t> all;
        if (root == self().rank_now()) {
            all = detail::counts_of(counts, self().rank_now(), Kind::scatter_v);
            expect(Kind::scatter_v, "recv", detail::count_in(recv), mine(Kind::scatter_v, all));
            expect(Kind::scatter_v, "send", detail::count_in(send), total(Kind::scatter_v, all));
        }
        return scatter_v(detail::data_of(send), detail::output_of(recv), detail::count_in(recv), view(all.data(), all.size()), type<R>, root, stream);
    }
    /// scatter_v() of memory: `count` elements to this rank. The root's `counts` are read before the call returns.
    Result scatter_v(const void* send, void* recv, std::size_t count, View<const std::size_t> counts, DataType data_type, int root,
                     Stream stream = {}) const {
        return submit_rooted_v(Kind::scatter_v, {send, recv}, {count, data_type}, counts, root, stream);
    }

    /// Every rank passes `send`, all of one length; rank r gets the reduction of ranks 0 to r in `recv`. Not with avg or premul_sum.
    template <class S, class R>
    Result scan(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        expect(Kind::scan, "recv", detail::count_in(recv), detail::count_in(send));
        return scan(detail::data_of(send), detail::output_of(recv), detail::count_in(recv), type<R>, op, stream);
    }
    /// scan() with one buffer for both.
    template <class R>
    Result scan_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        return scan(detail::output_of(buffer), detail::output_of(buffer), detail::count_in(buffer), type<R>, op, stream);
    }
    /// scan() of `count` elements on each rank.
    Result scan(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                Stream stream = {}) const {
        return submit(Kind::scan, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// Every rank passes `send`, all of one length; rank r gets the reduction of the ranks below it in `recv`, and rank 0's `recv` is
    /// not touched. Not with avg or premul_sum.
    template <class S, class R>
    Result exscan(S&& send, R&& recv, ReduceOp op = ReduceOp::sum, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        expect(Kind::exscan, "recv", detail::count_in(recv), detail::count_in(send));
        return exscan(detail::data_of(send), detail::output_of(recv), detail::count_in(recv), type<R>, op, stream);
    }
    /// exscan() with one buffer for both; rank 0's is not touched.
    template <class R>
    Result exscan_in_place(R&& buffer, ReduceOp op = ReduceOp::sum, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        return exscan(detail::output_of(buffer), detail::output_of(buffer), detail::count_in(buffer), type<R>, op, stream);
    }
    /// exscan() of `count` elements on each rank.
    Result exscan(const void* send, void* recv, std::size_t count, DataType data_type, ReduceOp op = ReduceOp::sum,
                  Stream stream = {}) const {
        return submit(Kind::exscan, {send, recv}, {count, data_type}, op, 0, stream);
    }

    /// Sends `send` to rank `target` and receives into `recv` from rank `source`, side by side. Either may be the own rank, if both
    /// are, and either no_rank, for a rank that has a neighbour on one side alone.
    template <class S, class R>
    Result send_recv(S&& send, int target, R&& recv, int source, detail::StreamFor<S, R> stream = {}) const {
        check<S, R>();
        return send_recv(detail::data_of(send), detail::count_in(send), target, detail::output_of(recv), detail::count_in(recv), source, type<R>, stream);
    }
    /// send_recv() of memory.
    Result send_recv(const void* send, std::size_t send_count, int target, void* recv, std::size_t recv_count, int source,
                     DataType data_type, Stream stream = {}) const {
        return self().submit(detail::Call{detail::Kind::send_recv, data_type, send, recv, 0, ReduceOp::sum, target, stream,
                                          {&send_count, 1}, {&recv_count, 1}, source});
    }

    /// Sends `buffer` to rank `peer`, which calls recv() with a buffer of the same type and length. Ends when the buffer may be
    /// changed. That does not wait for the peer's recv() while the connection to it has room: for eight messages that wait to
    /// be received, and 1 MiB of them together (Config::buffer_bytes, `NCCL_BUFFSIZE`). Over sockets it has 4 MiB while the peer
    /// waits in a send() or recv() of its own, and otherwise what the two systems' socket buffers take (`net.ipv4.tcp_wmem`,
    /// `net.ipv4.tcp_rmem`). A message that finds no room waits for recv(): to exchange large ones, put send and recv into a
    /// group. The first send to a peer also waits until the peer is in some call of this communicator that waits. A message to
    /// the own rank needs a group too. To no_rank nothing goes, and the call does not wait.
    template <class S>
    Result send(S&& buffer, int peer, detail::StreamFor<S> stream = {}) const {
        detail::check_input<S, Use>();
        return send(detail::data_of(buffer), detail::count_in(buffer), type<S>, peer, stream);
    }
    /// send() of `count` elements.
    Result send(const void* buffer, std::size_t count, DataType data_type, int peer, Stream stream = {}) const {
        return submit(Kind::send, {buffer, nullptr}, {count, data_type}, ReduceOp::sum, peer, stream);
    }

    /// Receives into `buffer` from rank `peer`, which calls send() with a buffer of the same type and length. From no_rank nothing
    /// comes, and `buffer` stays as it is.
    template <class R>
    Result recv(R&& buffer, int peer, detail::StreamFor<R> stream = {}) const {
        detail::check_output<R>();
        return recv(detail::output_of(buffer), detail::count_in(buffer), type<R>, peer, stream);
    }
    /// recv() of `count` elements.
    Result recv(void* buffer, std::size_t count, DataType data_type, int peer, Stream stream = {}) const {
        return submit(Kind::recv, {nullptr, buffer}, {count, data_type}, ReduceOp::sum, peer, stream);
    }

    /// @cond what is refused
    // Pointers without a DataType, as MPI's users write them at first: one sentence in place of a list of candidates.
#define RSCCL_REFUSE_POINTERS(name)                                            \
    template <class... Arguments, detail::PointersWithoutType<Arguments...> = 0> \
    Result name(Arguments&&...) const {                                        \
        detail::refuse_pointers<Arguments...>();                               \
    }
    RSCCL_REFUSE_POINTERS(all_reduce)
    RSCCL_REFUSE_POINTERS(all_reduce_in_place)
    RSCCL_REFUSE_POINTERS(broadcast)
    RSCCL_REFUSE_POINTERS(broadcast_into)
    RSCCL_REFUSE_POINTERS(reduce)
    RSCCL_REFUSE_POINTERS(reduce_in_place)
    RSCCL_REFUSE_POINTERS(all_gather)
    RSCCL_REFUSE_POINTERS(all_gather_in_place)
    RSCCL_REFUSE_POINTERS(reduce_scatter)
    RSCCL_REFUSE_POINTERS(reduce_scatter_in_place)
    RSCCL_REFUSE_POINTERS(all_to_all)
    RSCCL_REFUSE_POINTERS(gather)
    RSCCL_REFUSE_POINTERS(scatter)
    RSCCL_REFUSE_POINTERS(all_gather_v)
    RSCCL_REFUSE_POINTERS(reduce_scatter_v)
    RSCCL_REFUSE_POINTERS(gather_v)
    RSCCL_REFUSE_POINTERS(scatter_v)
    RSCCL_REFUSE_POINTERS(scan)
    RSCCL_REFUSE_POINTERS(scan_in_place)
    RSCCL_REFUSE_POINTERS(exscan)
    RSCCL_REFUSE_POINTERS(exscan_in_place)
    RSCCL_REFUSE_POINTERS(send_recv)
    RSCCL_REFUSE_POINTERS(send)
    RSCCL_REFUSE_POINTERS(recv)
#undef RSCCL_REFUSE_POINTERS
    /// @endcond

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
        // One mistake is told once: in most calls both buffers have it.
        if constexpr (detail::is_buffer_of_elements<S>()) {
            detail::check_output<R>();
            detail::check_same<S, R>();
        }
    }

    const Self& self() const noexcept { return static_cast<const Self&>(*this); }

    Result submit(detail::Kind kind, Memory memory, Size size, ReduceOp op, int other, Stream stream) const {
        return self().submit(detail::Call{kind, size.data_type, memory.send, memory.recv, size.count, op, other, stream,
                                          {nullptr, 0}, {nullptr, 0}});
    }
    Result submit_v(detail::Kind kind, Memory memory, DataType data_type, Counts counts, ReduceOp op, Stream stream) const {
        return self().submit(detail::Call{kind, data_type, memory.send, memory.recv, 0, op, 0, stream, counts.send, counts.recv});
    }

    Result submit_rooted_v(detail::Kind kind, Memory memory, Size size, View<const std::size_t> counts, int root, Stream stream) const {
        return self().submit(detail::Call{kind, size.data_type, memory.send, memory.recv, size.count, ReduceOp::sum, root, stream,
                                          counts, {nullptr, 0}});
    }

    void expect(Kind call, const char* name, std::size_t length, std::size_t expected) const {
        if (length != expected) {
            detail::refuse_length(self().rank_now(), call, name, length, expected);
        }
    }
    /// `count` for each rank.
    std::size_t times(Kind call, std::size_t count) const {
        const auto ranks = static_cast<std::size_t>(self().size_now());
        if (count > static_cast<std::size_t>(-1) / ranks) {
            detail::refuse_total(self().rank_now(), call, count, self().size_now());
        }
        return count * ranks;
    }
    /// The count of one of as many blocks as ranks.
    std::size_t block(Kind call, std::size_t length) const {
        const auto ranks = static_cast<std::size_t>(self().size_now());
        if (length % ranks != 0) {
            detail::refuse_blocks(self().rank_now(), call, length, self().size_now());
        }
        return length / ranks;
    }
    /// Where my block of `count` elements begins.
    std::size_t mine(std::size_t count) const { return count * static_cast<std::size_t>(self().rank_now()); }
    /// My count among `counts`.
    std::size_t mine(Kind call, const std::vector<std::size_t>& counts) const {
        if (counts.size() != static_cast<std::size_t>(self().size_now())) {
            detail::refuse_counts(self().rank_now(), call, counts.size(), self().size_now());
        }
        return counts[static_cast<std::size_t>(self().rank_now())];
    }
    /// All counts together.
    std::size_t total(Kind call, const std::vector<std::size_t>& counts) const {
        mine(call, counts);
        std::size_t sum = 0;
        for (const std::size_t count : counts) {
            if (count > static_cast<std::size_t>(-1) - sum) {
                detail::refuse_total(self().rank_now(), call, count, self().size_now());
            }
            sum += count;
        }
        return sum;
    }
};

} // namespace rsccl
