// Requests: messages and collectives that go on beside other calls.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks.hpp"

using ranks::large;
using ranks::left_of;
using ranks::Path;
using ranks::require;
using ranks::require_each;
using ranks::right_of;
using ranks::words;
using ranks::words_of;
using rsccl::Communicator;
using rsccl::ReduceOp;
using rsccl::Request;

TEST_CASE("requests: messages cross, collectives go on beside, wait and test") {
    for (Path path : {Path::pointers, Path::sockets}) {
        ranks::run(3, ranks::by(path), [](Communicator& comm) {
            const std::vector<int> mine = words(comm.rank(), large);
            std::vector<int> theirs(large, -1);
            std::vector<int> all(3 * large, -1);
            std::vector<int> greatest(large, -1);
            // Every rank receives first: with blocking calls nobody would ever send.
            Request received = comm.start().recv(theirs, left_of(comm));
            Request sent = comm.start().send(mine, right_of(comm));
            Request gathered = comm.start().all_gather(mine, all);
            Request reduced = comm.start().all_reduce(mine, greatest, ReduceOp::max);
            require(static_cast<bool>(reduced), "under way");
            reduced.wait();
            require(!reduced, "empty after wait");
            reduced.wait();
            require(reduced.test(), "an empty request has ended");
            received.wait();
            while (!sent.test() || !gathered.test()) {
                std::this_thread::yield();
            }
            require(!sent && !gathered, "empty after test");
            require_each(theirs, "from the left", words_of(left_of(comm)));
            require_each(greatest, "greatest", words_of(2));
            require_each(all, "all", [](std::size_t place) { return words_of(static_cast<int>(place / large))(place % large); });
            // Blocking calls after requests.
            std::array<int, 1> one = {1};
            comm.all_reduce_in_place(one);
            require(one[0] == 3, "blocking call after requests");
        });
    }
}

TEST_CASE("requests: blocking calls stand between start and wait, and whichever ends first is found") {
    for (Path path : {Path::pointers, Path::sockets}) {
        ranks::run(2, ranks::by(path), [](Communicator& comm) {
            const int other = 1 - comm.rank();
            const std::vector<int> mine = words(comm.rank(), large);
            std::vector<int> first(large, -1);
            std::vector<int> second(large, -1);
            Communicator beside = comm.by_color(0);
            std::vector<Request> requests;
            requests.push_back(comm.start().recv(first, other));
            requests.push_back(beside.start().recv(second, other));
            std::vector<int> sum(large, 1);
            comm.all_reduce_in_place(sum);
            require(sum.back() == 2, "a blocking call beside a receive");
            require(!rsccl::test_all(requests), "nothing was sent");
            // Nobody sends before both have looked.
            comm.barrier();
            beside.send(mine, other);
            // One has ended, and stays what it is while the other one has not.
            for (int look = 0; look < 1000; ++look) {
                require(!rsccl::test_all(requests) && requests[0] && requests[1], "the first one has not ended");
            }
            beside.barrier();
            require(!rsccl::test_all(requests) && requests[1], "the second one has ended, and nobody has asked for it");
            require(rsccl::wait_any(requests) == 1, "the second one");
            // The other rank goes on, and sends more, once this one has found it.
            beside.barrier();
            require_each(second, "by the second communicator", words_of(other));
            Request reduced = comm.start().all_reduce_in_place(sum);
            comm.send(mine, other);
            require(rsccl::wait_some(requests) == std::vector<std::size_t>{0}, "the first one");
            require_each(first, "by the first communicator", words_of(other));
            require(rsccl::wait_any(requests) == 2 && rsccl::wait_some(requests).empty(), "all are empty");
            requests.push_back(std::move(reduced));
            while (!rsccl::test_all(requests)) {
                std::this_thread::yield();
            }
            require(!requests[2], "all have ended, so all are empty");
            require(rsccl::test_all(requests) && sum.back() == 4, "all have ended");
        });
    }
}

namespace {

/// The buffers of every call, between two ranks.
struct Everything {
    explicit Everything(int rank)
        : me(rank), mine(rank == 1 ? 2 : 1), pair{10 * rank, 10 * rank + 1}, in_place(pair), broadcast(pair), rooted_in_place(pair),
          scattered_in_place(pair) {
        gathered_in_place[static_cast<std::size_t>(rank)] = 7 + rank;
    }

    void check(const std::string& how) const {
        using Pair = std::array<int, 2>;
        using Four = std::array<int, 4>;
        require(reduced == Pair{10, 12}, how + "all_reduce");
        require(in_place == Pair{10, 11}, how + "all_reduce_in_place");
        require(broadcast == Pair{10, 11}, how + "broadcast");
        require(told == Pair{0, 1}, how + "broadcast_into");
        require(me != 0 || rooted == Pair{10, 12}, how + "reduce");
        require(me != 1 || rooted_in_place == Pair{10, 12}, how + "reduce_in_place");
        require(gathered == Four{0, 1, 10, 11}, how + "all_gather");
        require(gathered_in_place == Pair{7, 8}, how + "all_gather_in_place");
        require(part[0] == 10 + 2 * me, how + "reduce_scatter");
        require(scattered_in_place[static_cast<std::size_t>(me)] == 10 + 2 * me, how + "reduce_scatter_in_place");
        require(swapped == Pair{me, 10 + me}, how + "all_to_all");
        require(me != 1 || at_root == Four{0, 1, 10, 11}, how + "gather");
        require(handed[0] == me, how + "scatter");
        require(gathered_v == std::array<int, 3>{0, 10, 11}, how + "all_gather_v");
        require(me == 0 ? part_v[0] == 10 : part_v[0] == 12 && part_v[1] == 14, how + "reduce_scatter_v");
        require(swapped_v == Pair{me, 10 + me}, how + "all_to_all_v");
        require(swapped_again == Pair{10 * me, 10 * me + 1}, how + "all_to_all_v of what all_to_all_v has brought");
    }

    const int me;
    const std::size_t mine; // my count in the vector forms
    const std::array<int, 2> pair;
    std::array<int, 2> in_place;
    std::array<int, 2> broadcast;
    std::array<int, 2> rooted_in_place;
    std::array<int, 2> scattered_in_place;
    std::array<int, 2> gathered_in_place{};
    std::array<int, 2> reduced{};
    std::array<int, 2> told{};
    std::array<int, 2> rooted{};
    std::array<int, 4> gathered{};
    std::array<int, 1> part{};
    std::array<int, 2> swapped{};
    std::array<int, 4> at_root{};
    std::array<int, 1> handed{};
    std::array<int, 3> gathered_v{};
    std::array<int, 3> triple{10, 12, 14};
    std::array<int, 2> part_v{};
    std::array<int, 2> swapped_v{};
    std::array<int, 2> swapped_again{};
};

// Every collective with buffers once; `CALL(name, arguments...)` makes it.
#define EVERY_COLLECTIVE(b, CALL)                                                                                                \
    CALL(all_reduce, (b).pair, (b).reduced);                                                                                     \
    CALL(all_reduce_in_place, (b).in_place, ReduceOp::max);                                                                      \
    CALL(broadcast, (b).broadcast, 1);                                                                                           \
    CALL(broadcast_into, (b).pair, (b).told, 0);                                                                                 \
    CALL(reduce, (b).pair, (b).rooted, ReduceOp::sum, 0);                                                                        \
    CALL(reduce_in_place, (b).rooted_in_place, ReduceOp::sum, 1);                                                                \
    CALL(all_gather, (b).pair, (b).gathered);                                                                                    \
    CALL(all_gather_in_place, (b).gathered_in_place);                                                                            \
    CALL(reduce_scatter, (b).pair, (b).part);                                                                                    \
    CALL(reduce_scatter_in_place, (b).scattered_in_place);                                                                       \
    CALL(all_to_all, (b).pair, (b).swapped);                                                                                     \
    CALL(gather, (b).pair, (b).at_root, 1);                                                                                      \
    CALL(scatter, (b).pair, (b).handed, 0);                                                                                      \
    CALL(all_gather_v, rsccl::view((b).pair.data(), (b).mine), (b).gathered_v, {1, 2});                                          \
    CALL(reduce_scatter_v, (b).triple, rsccl::view((b).part_v.data(), (b).mine), {1, 2}, ReduceOp::max);                         \
    CALL(all_to_all_v, (b).pair, (b).swapped_v, {{1, 1}, {1, 1}})

} // namespace

TEST_CASE("every collective as a request, and in a group, at rest and beside requests") {
    ranks::run(2, [](Communicator& comm) {
        const int me = comm.rank();
        Everything now(me);
#define NOW(name, ...) comm.name(__VA_ARGS__)
        EVERY_COLLECTIVE(now, NOW);
        comm.barrier();
        comm.all_to_all_v(now.swapped_v, now.swapped_again, {{1, 1}, {1, 1}});
        now.check("now: ");

        Everything begun(me);
        std::vector<Request> requests;
#define BEGUN(name, ...) requests.push_back(comm.start().name(__VA_ARGS__))
        EVERY_COLLECTIVE(begun, BEGUN);
        requests.push_back(comm.start().barrier());
        rsccl::wait_all(requests);
        comm.start().all_to_all_v(begun.swapped_v, begun.swapped_again, {{1, 1}, {1, 1}}).wait();
        begun.check("begun: ");

        for (bool beside : {false, true}) {
            const std::vector<int> mine = words(me, 10 * large);
            std::vector<int> theirs(mine.size(), -1);
            std::vector<Request> open;
            if (beside) {
                open.push_back(comm.start().send(mine, 1 - me));
                open.push_back(comm.start().recv(theirs, 1 - me));
            }
            Everything grouped(me);
            Everything member(me);
            rsccl::group([&](rsccl::Group& calls) {
#define GROUPED(name, ...) calls.on(comm).name(__VA_ARGS__)
                EVERY_COLLECTIVE(grouped, GROUPED);
                calls.on(comm).barrier();
                // The calls run in order: the second reads what the first has written, this rank's own part included.
                calls.on(comm).all_to_all_v(grouped.swapped_v, grouped.swapped_again, {{1, 1}, {1, 1}});
                rsccl::Group::Member on = calls.on(comm);
#define MEMBER(name, ...) on.name(__VA_ARGS__)
                EVERY_COLLECTIVE(member, MEMBER);
                on.barrier();
                on.all_to_all_v(member.swapped_v, member.swapped_again, {{1, 1}, {1, 1}});
            });
            grouped.check(beside ? "in a group beside a request: " : "in a group: ");
            member.check("by its member: ");
            rsccl::wait_all(open);
            require(!beside || theirs == words(1 - me, mine.size()), "beside the groups");
        }
    });
}

TEST_CASE("a group beside requests runs its messages, then its collectives, each on what those before it have made") {
    ranks::run(2, [](Communicator& comm) {
        const int peer = 1 - comm.rank();
        const std::vector<int> mine = words(comm.rank(), 10 * large);
        std::vector<int> first(mine.size(), -1);
        std::vector<int> second(mine.size(), -1);
        std::vector<Request> open;
        open.push_back(comm.start().send(mine, peer));
        open.push_back(comm.start().recv(first, peer));
        rsccl::group([&](rsccl::Group& calls) {
            calls.on(comm).recv(second, peer);
            calls.on(comm).send(mine, peer);
            calls.on(comm).all_reduce_in_place(second, ReduceOp::max);
        });
        require(second == words(1, mine.size()), "the greatest of what came");
        rsccl::wait_all(open);
        require(first == words(peer, mine.size()), "beside the group");
    });
}

TEST_CASE("splits, placement and registering run beside requests") {
    for (Path path : {Path::pointers, Path::shared_memory, Path::sockets}) {
        CAPTURE(static_cast<int>(path));
        ranks::run(3, ranks::by(path), [](Communicator& comm) {
            const std::vector<int> mine = words(comm.rank(), large);
            std::vector<int> early(large, -1);
            std::vector<int> late(large, -1);
            std::vector<Request> open;
            if (comm.rank() == 0) {
                open.push_back(comm.start().send(mine, 1));
                open.push_back(comm.start().recv(late, 2));
            } else if (comm.rank() == 1) {
                // This rank comes to the split after it has received the message.
                comm.recv(early, 0);
                require(early == words(0, large), "sent before the split, received before it");
            }
            Communicator half = comm.by_color(comm.rank() % 2);
            require(half.size() == 2 - comm.rank() % 2, "half");
            require(comm.split(comm.rank() == 0 ? std::optional<int>(0) : std::nullopt).has_value() == (comm.rank() == 0), "alone");
            require(comm.placement().local_rank == comm.rank() && comm.on_my_host().size() == 3 && comm.cross().size() == 1, "placement");
            rsccl::buffer<int> memory(large);
            comm.register_buffer(memory);
            half.barrier();
            if (comm.rank() == 2) {
                comm.send(mine, 0);
            }
            rsccl::wait_all(open);
            require(comm.rank() != 0 || late == words(2, large), "posted before the split, sent after it");
        });
    }
}

TEST_CASE("what cannot run beside requests says what to do") {
    ranks::run(2, [](Communicator& comm) {
        std::array<int, 1> word{};
        Request open = comm.start().recv(word, 1 - comm.rank());
        try {
            (void)comm.shrink({1 - comm.rank()});
            require(false, "refused");
        } catch (const rsccl::InvalidUsage& error) {
            require(error.message().find("wait for them") != std::string::npos, error.what());
        }
        comm.set_progress([] {});
        // Nobody sends before both have been refused: the request that is the reason would have ended.
        comm.barrier();
        const std::array<int, 1> mine = {7};
        comm.start().send(mine, 1 - comm.rank()).wait();
        open.wait();
        comm.barrier();
    });
}

TEST_CASE("a request that is forgotten, moved or assigned over is waited for") {
    ranks::run(2, [](Communicator& comm) {
        const std::vector<int> mine = words(comm.rank(), large);
        std::vector<int> theirs(large, -1);
        const int peer = 1 - comm.rank();
        {
            Request sent = comm.start().send(mine, peer);
            Request received = comm.start().recv(theirs, peer);
            Request moved = std::move(received);
            require(!received && static_cast<bool>(moved), "moved"); // NOLINT: that is what is tested
        }
        require_each(theirs, "after the scope", words_of(peer));
        std::array<int, 1> first = {1};
        std::array<int, 1> second = {2};
        Request request = comm.start().all_reduce_in_place(first);
        request = comm.start().all_reduce_in_place(second);
        require(first[0] == 2, "assigned over");
        request.wait();
        require(second[0] == 4, "the new one");
        // A communicator may end before the program looks at its requests.
        std::array<int, 1> last = {3};
        Request outlives = comm.start().all_reduce_in_place(last);
        comm.finalize();
        outlives.wait();
        require(last[0] == 6, "ended before finalize did");
    });
}

TEST_CASE("requests go on while the first collective is set up, whose peers may need them to get there") {
    for (Path path : {Path::pointers, Path::shared_memory, Path::sockets}) {
        for (std::size_t count : {std::size_t{1}, 10 * large}) {
            CAPTURE(static_cast<int>(path));
            CAPTURE(count);
            ranks::run(2, ranks::by(path), [count](Communicator& comm) {
                std::vector<int> message = words(0, count);
                if (comm.rank() == 0) {
                    Request sent = comm.start().send(message, 1);
                    comm.barrier();
                    sent.wait();
                } else {
                    std::vector<int> received(count, -1);
                    comm.recv(received, 0);
                    comm.barrier();
                    require(received == message, "sent before the barrier, received before it");
                }
            });
            ranks::run(2, ranks::by(path), [count](Communicator& comm) {
                std::vector<int> message = words(0, count);
                if (comm.rank() == 0) {
                    std::vector<int> received(count, -1);
                    Request request = comm.start().recv(received, 1);
                    comm.barrier();
                    request.wait();
                    require(received == message, "posted before the barrier, sent after it");
                } else {
                    comm.barrier();
                    comm.send(message, 0);
                }
            });
        }
    }
}

TEST_CASE("what a request has sent arrives with no further help") {
    for (Path path : {Path::pointers, Path::sockets}) {
        for (std::size_t count : {std::size_t{1}, std::size_t{50'000}, 10 * large}) {
            std::vector<Communicator> comms = Communicator::init_all(2, ranks::by(path));
            const std::vector<int> sent = words(0, count);
            std::vector<int> received(count, -1);
            std::exception_ptr error;
            Request request = comms[0].start().send(sent, 1);
            std::thread receiver([&] {
                try {
                    comms[1].recv(received, 0);
                } catch (...) {
                    error = std::current_exception();
                }
            });
            request.wait();
            // Rank 0 makes no further call.
            receiver.join();
            CHECK_FALSE(error);
            CHECK(received == sent);
        }
    }
}

TEST_CASE("a message does not wait for what requests have sent before it") {
    rsccl::Config config = ranks::by(Path::sockets);
    // `there` fits what lies between the ranks, 1 MiB of slots on both sides and the sockets, but its end stays with its sender until
    // rank 1 receives, which it does once it has sent.
    config.socket_send_bytes = 1 << 16;
    config.socket_receive_bytes = 1 << 16;
    config.buffer_bytes = 1 << 20;
    ranks::run(2, config, [](Communicator& comm) {
        std::vector<char> there(1'900'000, 't');
        std::vector<char> back(8 << 20, 'b');
        // Opens the connections of both directions.
        rsccl::group([&](rsccl::Group& calls) {
            calls.on(comm).send(rsccl::view(there.data(), 1), 1 - comm.rank());
            calls.on(comm).recv(rsccl::view(back.data(), 1), 1 - comm.rank());
        });
        if (comm.rank() == 0) {
            comm.start().send(there, 1).wait();
            comm.recv(back, 1);
        } else {
            comm.send(back, 0);
            comm.recv(there, 0);
        }
        comm.barrier();
    });
}

TEST_CASE("what is installed encrypts") {
    rsccl::Config config = ranks::by(Path::sockets);
    config.encrypt = "1";
    ranks::run(2, config, [](Communicator& comm) {
        std::vector<int> sum(100'000, comm.rank() + 1);
        comm.all_reduce_in_place(sum);
        require(sum == std::vector<int>(100'000, 3), "the sum of both ranks");
    });
}

TEST_CASE("asking how a communicator is does not wait for a peer that does not receive") {
    rsccl::Config config = ranks::by(Path::sockets);
    // The message is small enough to stay in the slots of the connection.
    config.socket_send_bytes = 1 << 16;
    config.socket_receive_bytes = 1 << 16;
    config.buffer_bytes = 4 << 20;
    struct {
        std::mutex guard;
        std::condition_variable changed;
        bool said = false;
    } asked;
    ranks::run(2, config, [&asked](Communicator& comm) {
        std::vector<char> message(1 << 19, 'm');
        if (comm.rank() == 0) {
            comm.send(rsccl::view(message.data(), 1), 1);
            comm.start().send(message, 1).wait();
            const auto before = std::chrono::steady_clock::now();
            require(!comm.async_error(), "all is well");
            require(std::chrono::steady_clock::now() - before < std::chrono::seconds(10), "asking does not wait");
            std::lock_guard<std::mutex> lock(asked.guard);
            asked.said = true;
            asked.changed.notify_all();
        } else {
            comm.recv(rsccl::view(message.data(), 1), 0);
            std::unique_lock<std::mutex> lock(asked.guard);
            asked.changed.wait_for(lock, std::chrono::seconds(40), [&] { return asked.said; });
            comm.recv(message, 0);
        }
        comm.barrier();
    });
}

TEST_CASE("requests are waited for by another thread") {
    ranks::run(2, [](Communicator& comm) {
        std::vector<int> buffer = words(comm.rank(), large);
        Request request = comm.start().all_reduce_in_place(buffer, ReduceOp::min);
        std::exception_ptr error;
        std::thread waiter([&error, request = std::move(request)]() mutable {
            try {
                request.wait();
            } catch (...) {
                error = std::current_exception();
            }
        });
        waiter.join();
        require(!error, "no error");
        require_each(buffer, "least", words_of(0));
    });
}

TEST_CASE("wrong requests are refused when they are begun") {
    ranks::run(2, [](Communicator& comm) {
        std::array<int, 1> buffer{};
        CHECK_THROWS_AS((void)comm.start().send(buffer, comm.rank()), rsccl::InvalidUsage);
        CHECK_THROWS_AS((void)comm.start().recv(buffer, 2), rsccl::InvalidArgument);
        CHECK_THROWS_AS((void)comm.start().send(buffer, -1), rsccl::InvalidArgument);
        CHECK_THROWS_AS((void)comm.start().broadcast(buffer, 7), rsccl::InvalidArgument);
        comm.barrier();
    });
}

TEST_CASE("a constant communicator makes every call") {
    ranks::run(2, [](const Communicator& comm) {
        Everything now(comm.rank());
        EVERY_COLLECTIVE(now, NOW);
        comm.all_to_all_v(now.swapped_v, now.swapped_again, {{1, 1}, {1, 1}});
        now.check("constant: ");
        const Communicator child = comm.by_color(0);
        comm.start().barrier().wait();
        rsccl::group([&](rsccl::Group& calls) { calls.on(child).barrier(); });
        require(child.placement().local_size == 2 && comm.placement().hosts == 1, "its place");
        rsccl::buffer<float> memory(4);
        child.register_buffer(memory);
        const Communicator again = child.shrink({1 - child.rank()});
        require(again.size() == 1, "shrunk");
    });
}
