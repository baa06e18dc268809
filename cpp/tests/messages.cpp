// Messages, groups and requests.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ranks.hpp"

using ranks::Path;
using ranks::require;
using ranks::require_each;
using rsccl::Communicator;
using rsccl::DataType;
using rsccl::ReduceOp;
using rsccl::Request;

namespace {

constexpr std::size_t large = 200'003;

int left_of(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }
int right_of(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }

/// `count` words that tell whose they are.
std::vector<int> words(int rank, std::size_t count) {
    std::vector<int> made(count);
    std::iota(made.begin(), made.end(), rank * 1'000'000);
    return made;
}

auto words_of(int rank) {
    return [rank](std::size_t place) { return rank * 1'000'000 + static_cast<int>(place); };
}

} // namespace

TEST_CASE("a message comes as it was sent: empty, small, large, by pointer, of every path") {
    for (Path path : {Path::pointers, Path::shared_memory, Path::sockets}) {
        ranks::run(2, ranks::by(path), [](Communicator& comm) {
            for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, large}) {
                if (comm.rank() == 0) {
                    comm.send(words(0, count), 1);
                    std::vector<int> answer(count, -1);
                    comm.recv(answer, 1);
                    require_each(answer, "answer", words_of(1));
                } else {
                    std::vector<int> question(count, -1);
                    comm.recv(question.data(), count, DataType::int32, 0);
                    require_each(question, "question", words_of(0));
                    const std::vector<int> answer = words(1, count);
                    comm.send(answer.data(), count, DataType::int32, 0);
                }
            }
        });
    }
}

TEST_CASE("a group runs sends and recvs side by side, whatever their order") {
    for (Path path : {Path::pointers, Path::sockets}) {
        ranks::run(4, ranks::by(path), [](Communicator& comm) {
            const std::vector<int> mine = words(comm.rank(), large);
            std::vector<int> from_left(large, -1);
            std::vector<int> from_right(large, -1);
            std::vector<int> from_me(3, -1);
            const std::vector<int> to_me = words(comm.rank(), 3);
            rsccl::group([&](rsccl::Group& calls) {
                calls.send(comm, mine, left_of(comm));
                calls.send(comm, mine, right_of(comm));
                calls.recv(comm, from_right, right_of(comm));
                calls.on(comm).recv(from_left.data(), large, DataType::int32, left_of(comm));
                calls.send(comm, to_me, comm.rank());
                calls.recv(comm, from_me, comm.rank());
            });
            require_each(from_left, "from the left", words_of(left_of(comm)));
            require_each(from_right, "from the right", words_of(right_of(comm)));
            require_each(from_me, "from myself", words_of(comm.rank()));
        });
    }
}

TEST_CASE("a group of collectives, and of two communicators that ranks name in different orders") {
    ranks::run(3, [](Communicator& comm) {
        Communicator turned = comm.by_color(0, -comm.rank());
        std::array<float, 2> sum = {1.0F, 2.0F};
        std::array<float, 1> other = {4.0F};
        std::array<int, 3> gathered{};
        std::array<int, 1> me = {turned.rank()};
        std::array<long, 3> parts = {1, 2, 3};
        std::array<long, 1> part{};
        rsccl::Group group;
        const auto first = [&] {
            group.all_reduce_in_place(comm, sum);
            group.all_reduce_in_place(comm, other, ReduceOp::sum);
            group.reduce_scatter(comm, parts, part);
        };
        if (comm.rank() == 1) {
            group.all_gather(turned, me, gathered);
            first();
        } else {
            first();
            group.all_gather(turned, me, gathered);
        }
        // Nothing runs before the end.
        require(sum[0] == 1.0F, "untouched");
        group.end();
        require(sum[0] == 3.0F && sum[1] == 6.0F && other[0] == 12.0F, "sums");
        require(part[0] == 3 * (comm.rank() + 1), "part");
        require(gathered == std::array<int, 3>{0, 1, 2}, "gathered in the turned communicator's order");
        std::array<int, 1> word = {comm.rank()};
        std::vector<int> total(1);
        rsccl::group([&](rsccl::Group& calls) {
            calls.broadcast(comm, word, 2);
            calls.reduce(turned, me, total, ReduceOp::max, 0);
        });
        require(word[0] == 2 && (turned.rank() != 0 || total[0] == 2), "broadcast and reduce");
        rsccl::group([](rsccl::Group&) {});
    });
}

TEST_CASE("an exception inside a group scope: nothing runs, the communicator goes on") {
    ranks::run(2, [](Communicator& comm) {
        std::array<int, 1> buffer = {7};
        for (int kind : {0, 1, 2}) {
            try {
                if (kind == 0) {
                    rsccl::group([&](rsccl::Group& calls) {
                        calls.all_reduce_in_place(comm, buffer);
                        throw std::runtime_error("of the program");
                    });
                } else if (kind == 1) {
                    rsccl::Group calls;
                    calls.all_reduce_in_place(comm, buffer);
                    throw std::runtime_error("of the program");
                } else {
                    rsccl::group([&](rsccl::Group& calls) {
                        calls.send(comm, buffer, 1 - comm.rank());
                        calls.recv(comm, buffer, 5);
                    });
                }
                require(false, "no exception came through");
            } catch (const rsccl::InvalidArgument& error) {
                require(kind == 2 && error.rank() == comm.rank(), error.what());
            } catch (const rsccl::Error& error) {
                require(false, error.what());
            } catch (const std::runtime_error& error) {
                require(kind < 2 && error.what() == std::string("of the program"), error.what());
            }
            require(buffer[0] == 7, "nothing ran");
        }
        comm.all_reduce_in_place(buffer);
        require(buffer[0] == 14, "the communicator goes on");
    });
}

TEST_CASE("a group ends once, and takes only communicators that live") {
    ranks::run(1, [](Communicator& comm) {
        std::array<int, 1> buffer = {7};
        rsccl::Group calls;
        calls.all_reduce_in_place(comm, buffer);
        calls.end();
        CHECK_THROWS_AS(calls.end(), rsccl::InvalidUsage);
        CHECK_THROWS_AS(calls.all_reduce_in_place(comm, buffer), rsccl::InvalidUsage);
        rsccl::Group late;
        Communicator moved = std::move(comm);
        CHECK_THROWS_AS(late.all_reduce_in_place(comm, buffer), rsccl::InvalidUsage); // NOLINT: that is what is tested
        late.all_reduce_in_place(moved, buffer);
        moved.finalize();
        CHECK_THROWS_AS(late.end(), rsccl::InvalidUsage);
    });
}

TEST_CASE("a member of a group stays with the communicator that it was made on") {
    ranks::run(3, [](Communicator& comm) {
        Communicator used = comm.by_color(comm.rank() == 2 ? 1 : 0);
        std::vector<int> mine(1000, comm.rank());
        std::vector<int> all(static_cast<std::size_t>(used.size()) * mine.size(), -1);
        rsccl::Group calls;
        rsccl::Group::Member member = calls.on(used);
        // A larger one takes the name; the buffers would be too small for it.
        used = comm.by_color(0);
        member.all_gather(mine, all);
        calls.end();
        require(all.front() == (comm.rank() == 2 ? 2 : 0) && all.back() == (comm.rank() == 2 ? 2 : 1), "gathered by two, and by one");
    });
}

TEST_CASE("requests: messages cross, collectives go on beside, wait and test") {
    for (Path path : {Path::pointers, Path::sockets}) {
        ranks::run(3, ranks::by(path), [](Communicator& comm) {
            const std::vector<int> mine = words(comm.rank(), large);
            std::vector<int> theirs(large, -1);
            std::vector<int> all(3 * large, -1);
            std::vector<int> greatest(large, -1);
            // Every rank receives first: with calls that block nobody would ever send.
            Request received = comm.start_recv(theirs, left_of(comm));
            Request sent = comm.start_send(mine, right_of(comm));
            Request gathered = comm.start_all_gather(mine, all);
            Request reduced = comm.start_all_reduce(mine, greatest, ReduceOp::max);
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

TEST_CASE("every collective as a request") {
    ranks::run(2, [](Communicator& comm) {
        const int me = comm.rank();
        std::vector<Request> requests;
        const std::array<int, 2> pair = {10 * me, 10 * me + 1};
        std::array<int, 2> reduced{};
        std::array<int, 2> in_place = pair;
        std::array<int, 2> broadcast = pair;
        std::array<int, 2> rooted{};
        std::array<int, 4> gathered{};
        std::array<int, 1> part{};
        std::array<int, 2> swapped{};
        std::array<int, 2> swapped_v{};
        std::array<int, 4> at_root{};
        std::array<int, 1> handed{};
        requests.push_back(comm.start_all_reduce(pair, reduced));
        requests.push_back(comm.start_all_reduce_in_place(in_place, ReduceOp::max));
        requests.push_back(comm.start_broadcast(broadcast, 1));
        requests.push_back(comm.start_reduce(pair, rooted, ReduceOp::sum, 0));
        requests.push_back(comm.start_all_gather(pair, gathered));
        requests.push_back(comm.start_reduce_scatter(pair, part));
        requests.push_back(comm.start_all_to_all(pair, swapped));
        requests.push_back(comm.start_all_to_all_v(pair, std::array<int, 2>{1, 1}, swapped_v, std::array<int, 2>{1, 1}));
        requests.push_back(comm.start_gather(pair, at_root, 1));
        requests.push_back(comm.start_scatter(pair, handed, 0));
        requests.push_back(comm.start_barrier());
        requests.push_back(comm.start().all_gather_in_place(rsccl::view(gathered.data(), 4)));
        rsccl::wait_all(requests);
        require(reduced == std::array<int, 2>{10, 12}, "all_reduce");
        require(in_place == std::array<int, 2>{10, 11}, "all_reduce_in_place");
        require(broadcast == std::array<int, 2>{10, 11}, "broadcast");
        require(me != 0 || rooted == std::array<int, 2>{10, 12}, "reduce");
        require(gathered == std::array<int, 4>{0, 1, 10, 11}, "all_gather");
        require(part[0] == 10 + 2 * me, "reduce_scatter");
        require(swapped == std::array<int, 2>{me, 10 + me}, "all_to_all");
        require(swapped_v == std::array<int, 2>{me, 10 + me}, "all_to_all_v");
        require(me != 1 || at_root == std::array<int, 4>{0, 1, 10, 11}, "gather");
        require(handed[0] == me, "scatter");
    });
}

TEST_CASE("a request that is forgotten, moved or assigned over is waited for") {
    ranks::run(2, [](Communicator& comm) {
        const std::vector<int> mine = words(comm.rank(), large);
        std::vector<int> theirs(large, -1);
        const int peer = 1 - comm.rank();
        {
            Request sent = comm.start_send(mine, peer);
            Request received = comm.start_recv(theirs, peer);
            Request moved = std::move(received);
            require(!received && static_cast<bool>(moved), "moved"); // NOLINT: that is what is tested
        }
        require_each(theirs, "after the scope", words_of(peer));
        std::array<int, 1> first = {1};
        std::array<int, 1> second = {2};
        Request request = comm.start_all_reduce_in_place(first);
        request = comm.start_all_reduce_in_place(second);
        require(first[0] == 2, "assigned over");
        request.wait();
        require(second[0] == 4, "the new one");
        // The communicator may end before its requests are looked at.
        std::array<int, 1> last = {3};
        Request outlives = comm.start_all_reduce_in_place(last);
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
                    Request sent = comm.start_send(message, 1);
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
                    Request request = comm.start_recv(received, 1);
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
            Request request = comms[0].start_send(sent, 1);
            std::thread receiver([&] {
                try {
                    comms[1].recv(received, 0);
                } catch (...) {
                    error = std::current_exception();
                }
            });
            request.wait();
            // No call on rank 0 any more.
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
        // Connections both ways.
        rsccl::group([&](rsccl::Group& calls) {
            calls.send(comm, rsccl::view(there.data(), 1), 1 - comm.rank());
            calls.recv(comm, rsccl::view(back.data(), 1), 1 - comm.rank());
        });
        if (comm.rank() == 0) {
            comm.start_send(there, 1).wait();
            comm.recv(back, 1);
        } else {
            comm.send(back, 0);
            comm.recv(there, 0);
        }
        comm.barrier();
    });
}

TEST_CASE("asking how a communicator is does not wait for a peer that does not receive") {
    rsccl::Config config = ranks::by(Path::sockets);
    // So that what is sent stays in the slots of the connection.
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
            comm.start_send(message, 1).wait();
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
        Request request = comm.start_all_reduce_in_place(buffer, ReduceOp::min);
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
        CHECK_THROWS_AS((void)comm.start_send(buffer, comm.rank()), rsccl::InvalidUsage);
        CHECK_THROWS_AS((void)comm.start_recv(buffer, 2), rsccl::InvalidArgument);
        CHECK_THROWS_AS((void)comm.start_send(buffer, -1), rsccl::InvalidArgument);
        CHECK_THROWS_AS((void)comm.start_broadcast(buffer, 7), rsccl::InvalidArgument);
        comm.barrier();
    });
}
