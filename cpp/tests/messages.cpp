// Messages and groups.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
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
using rsccl::DataType;
using rsccl::ReduceOp;
using rsccl::Request;

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
                calls.on(comm).send(mine, left_of(comm));
                calls.on(comm).send(mine, right_of(comm));
                calls.on(comm).recv(from_right, right_of(comm));
                calls.on(comm).recv(from_left.data(), large, DataType::int32, left_of(comm));
                calls.on(comm).send(to_me, comm.rank());
                calls.on(comm).recv(from_me, comm.rank());
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
            group.on(comm).all_reduce_in_place(sum);
            group.on(comm).all_reduce_in_place(other, ReduceOp::sum);
            group.on(comm).reduce_scatter(parts, part);
        };
        if (comm.rank() == 1) {
            group.on(turned).all_gather(me, gathered);
            first();
        } else {
            first();
            group.on(turned).all_gather(me, gathered);
        }
        // The calls run at the end of the group.
        require(sum[0] == 1.0F, "untouched");
        group.end();
        require(sum[0] == 3.0F && sum[1] == 6.0F && other[0] == 12.0F, "sums");
        require(part[0] == 3 * (comm.rank() + 1), "part");
        require(gathered == std::array<int, 3>{0, 1, 2}, "gathered in the turned communicator's order");
        std::array<int, 1> word = {comm.rank()};
        std::vector<int> total(1);
        rsccl::group([&](rsccl::Group& calls) {
            calls.on(comm).broadcast(word, 2);
            calls.on(turned).reduce(me, total, ReduceOp::max, 0);
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
                        calls.on(comm).all_reduce_in_place(buffer);
                        throw std::runtime_error("of the program");
                    });
                } else if (kind == 1) {
                    rsccl::Group calls;
                    calls.on(comm).all_reduce_in_place(buffer);
                    throw std::runtime_error("of the program");
                } else {
                    rsccl::group([&](rsccl::Group& calls) {
                        calls.on(comm).send(buffer, 1 - comm.rank());
                        calls.on(comm).recv(buffer, 5);
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

TEST_CASE("a call on the communicator itself inside a group's body is refused, and names both calls") {
    ranks::run(2, {}, [](Communicator& comm) {
        const std::vector<int> mine = words(comm.rank(), 3);
        std::vector<int> from_left(3, -1);
        const auto refused = [&](const char* name, auto call) {
            try {
                rsccl::group([&](rsccl::Group& calls) {
                    calls.on(comm).barrier();
                    call();
                });
            } catch (const rsccl::InvalidUsage& error) {
                const std::string text = error.what();
                require(text.find("comm." + std::string(name) + "()") != std::string::npos, text);
                require(text.find("calls.on(comm)." + std::string(name) + "()") != std::string::npos, text);
                return;
            }
            require(false, name);
        };
        refused("send", [&] { comm.send(mine, right_of(comm)); });
        refused("recv", [&] { comm.recv(from_left, left_of(comm)); });
        refused("send_recv", [&] { comm.send_recv(mine, right_of(comm), from_left, left_of(comm)); });
        refused("exscan", [&] { comm.exscan(mine, from_left); });
        // A request does not wait; after the group's body, calls block again.
        rsccl::group([&](rsccl::Group& calls) {
            rsccl::Request sent = comm.start().send(mine, right_of(comm));
            calls.on(comm).recv(from_left, left_of(comm));
            sent.wait();
        });
        require(from_left == words(left_of(comm), 3), "the neighbour's words");
        comm.barrier();
    });
}

TEST_CASE("a group ends once, and takes only communicators that live") {
    ranks::run(1, [](Communicator& comm) {
        std::array<int, 1> buffer = {7};
        rsccl::Group calls;
        calls.on(comm).all_reduce_in_place(buffer);
        calls.end();
        CHECK_THROWS_AS(calls.end(), rsccl::InvalidUsage);
        CHECK_THROWS_AS(calls.on(comm).all_reduce_in_place(buffer), rsccl::InvalidUsage);
        rsccl::Group late;
        Communicator moved = std::move(comm);
        CHECK_THROWS_AS(late.on(comm).all_reduce_in_place(buffer), rsccl::InvalidUsage); // NOLINT: that is what is tested
        late.on(moved).all_reduce_in_place(buffer);
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
        // The name now means a larger communicator, for which the buffers would be too small.
        used = comm.by_color(0);
        member.all_gather(mine, all);
        calls.end();
        require(all.front() == (comm.rank() == 2 ? 2 : 0) && all.back() == (comm.rank() == 2 ? 2 : 1), "gathered by two, and by one");
    });
}

TEST_CASE("a vector form in a group is checked as it is added") {
    ranks::run(2, [](Communicator& comm) {
        std::array<int, 2> pair{};
        std::array<int, 2> other{};
        rsccl::Group calls;
        CHECK_THROWS_AS(calls.on(comm).all_to_all_v(pair, other, {{1}, {1, 1}}), rsccl::InvalidArgument);
        CHECK_THROWS_AS(calls.on(comm).all_to_all_v(pair, other, {{1, 2}, {1, 1}}), rsccl::InvalidArgument);
        CHECK_THROWS_AS(calls.on(comm).all_gather_v(pair, other, {2, 2}), rsccl::InvalidArgument);
        // This rank's own part of the two lists differs.
        std::array<int, 2> to = {1, 1};
        std::array<int, 2> from = {comm.rank() == 0 ? 2 : 0, comm.rank() == 0 ? 0 : 2};
        CHECK_THROWS_AS(calls.on(comm).all_to_all_v(pair, other, {to, from}), rsccl::InvalidArgument);
        calls.end();
        comm.barrier();
    });
}

TEST_CASE("gather_v, scatter_v, scans and send_recv: at once, as requests and in a group, by container and by pointer") {
    for (const Path path : {Path::pointers, Path::shared_memory, Path::sockets}) {
        ranks::run(3, ranks::by(path), [](rsccl::Communicator& comm) {
            const int me = comm.rank();
            const auto place = static_cast<std::size_t>(me);
            const std::vector<int> mine(place, 10 + me), parts = {1, 2, 2}, sums = {1, 3, 6}, below = {9, 1, 3};
            const std::vector<std::size_t> counts = {0, 1, 2};
            const auto require_refused = [](const auto& call) {
                try {
                    call();
                } catch (const rsccl::InvalidArgument&) {
                    return;
                }
                throw std::logic_error("a wrong call was not refused");
            };
            const int right = (me + 1) % 3, left = (me + 2) % 3;
            std::vector<int> all(me == 1 ? 3 : 0), part(place), up_to_me = {me + 1}, under_me = {9}, from_left(2);
            const std::vector<int> to_right = {me, -me}, one = {me + 1};
            const auto clear = [&] {
                all.assign(all.size(), 0), part.assign(part.size(), 0), up_to_me = {me + 1}, under_me = {9}, from_left = {9, 9};
            };
            const auto check = [&] {
                require(all == (me == 1 ? std::vector<int>{11, 12, 12} : std::vector<int>{}), "all == (me == 1 ? std::vector<int>{11, 1");
                require(part == std::vector<int>(parts.begin() + (me == 2 ? 1 : 0), parts.begin() + (me == 2 ? 3 : me)), "part == std::vector<int>(parts.begin() +");
                require(up_to_me[0] == sums[place], "up_to_me[0] == sums[place]");
                require(under_me[0] == below[place], "under_me[0] == below[place]");
                require(from_left == std::vector<int>{left, -left}, "from_left == std::vector<int>{left, -lef");
            };
            clear();
            comm.gather_v(mine, all, counts, 1);
            comm.scatter_v(me == 2 ? rsccl::view(parts.data(), 3) : rsccl::view(parts.data(), 0), part, counts, 2);
            comm.scan_in_place(up_to_me);
            comm.exscan(one, under_me, ReduceOp::sum);
            comm.send_recv(to_right, right, from_left, left);
            check();
            clear();
            std::vector<rsccl::Request> requests;
            requests.push_back(comm.start().gather_v(mine, all, counts, 1));
            requests.push_back(comm.start().send_recv(to_right, right, from_left, left));
            requests.push_back(comm.start().scatter_v(rsccl::view(parts.data(), me == 2 ? 3 : 0), part, counts, 2));
            requests.push_back(comm.start().scan(one, up_to_me));
            requests.push_back(comm.start().exscan(one, under_me));
            rsccl::wait_all(requests);
            check();
            clear();
            rsccl::group([&](rsccl::Group& calls) {
                calls.on(comm).gather_v(mine, all, counts, 1);
                calls.on(comm).scatter_v(rsccl::view(parts.data(), me == 2 ? 3 : 0), part, counts, 2);
                calls.on(comm).scan(one, up_to_me);
                calls.on(comm).exscan(one, under_me);
                calls.on(comm).send_recv(to_right, right, from_left, left);
            });
            check();
            const rsccl::View<const std::size_t> sizes(counts.data(), 3);
            comm.gather_v(mine.data(), all.data(), place, sizes, DataType::int32, 1);
            comm.scatter_v(parts.data(), part.data(), place, sizes, DataType::int32, 2);
            check();
            comm.send_recv(to_right.data(), 2, right, from_left.data(), 2, left, DataType::int32);
            comm.send_recv(to_right, me, from_left, me); // a world of its own
            require(from_left == to_right, "from_left == to_right");
            require_refused([&] { comm.scan_in_place(up_to_me, ReduceOp::avg); });
            require_refused([&] { comm.send_recv(to_right, 3, from_left, 0); });
            comm.barrier();
            if (me == 2) { // the others take no part
                const rsccl::Placement here = comm.placement();
                require(here.local_rank == 2, "here.local_rank == 2");
                require(here.local_size == 3, "here.local_size == 3");
                require(here.hosts == 1, "here.hosts == 1");
                require(!here.host_name.empty(), "!here.host_name.empty()");
            }
        });
    }
}

TEST_CASE("a peer that is nobody: nothing goes and nothing comes, in every kind of call") {
    ranks::run(3, [](Communicator& comm) {
        const int me = comm.rank();
        const int left = me == 0 ? rsccl::no_rank : me - 1, right = me == 2 ? rsccl::no_rank : me + 1;
        const std::vector<int> mine(large, me);
        const std::vector<int> untouched(large, 9);
        const std::vector<int> wanted = me == 0 ? untouched : std::vector<int>(large, me - 1);
        std::vector<int> from_left = untouched;
        const auto check = [&](const char* how) {
            require(from_left == wanted, how);
            from_left = untouched;
        };
        comm.send_recv(mine, right, from_left, left);
        check("send_recv");
        comm.send_recv(mine.data(), large, right, from_left.data(), large, left, DataType::int32);
        check("send_recv of memory");
        comm.send_recv(mine, rsccl::no_rank, from_left, rsccl::no_rank);
        require(from_left == untouched, "between nobody and nobody");
        rsccl::group([&](rsccl::Group& calls) {
            calls.on(comm).send(mine, right);
            calls.on(comm).recv(from_left, left);
        });
        check("in a group");
        std::vector<Request> requests;
        requests.push_back(comm.start().recv(from_left, left));
        requests.push_back(comm.start().send(mine, right));
        requests.push_back(comm.start().send_recv(mine, rsccl::no_rank, from_left, rsccl::no_rank));
        rsccl::wait_all(requests);
        check("requests");
        if (me != 0) {
            comm.recv(from_left, left);
        }
        comm.send(mine, right);
        comm.recv(from_left, me == 0 ? left : rsccl::no_rank);
        check("one after the other");
        // Nobody is not a root, and not the next number below 0.
        for (const int peer : {-1, -2}) {
            CHECK_THROWS_AS(comm.send(mine, peer), rsccl::InvalidArgument);
        }
        CHECK_THROWS_AS(comm.broadcast(from_left, rsccl::no_rank), rsccl::InvalidArgument);
        comm.barrier();
    });
}

TEST_CASE("one number of every rank") {
    ranks::run(3, [](const Communicator& comm) {
        require(comm.all_reduce_value(comm.rank() + 1) == 6, "a sum of integers");
        require(comm.all_reduce_value(0.5 * comm.rank(), ReduceOp::max) == 1.0, "the greatest float");
        const rsccl::bfloat16 narrow(2.0F);
        require(comm.all_reduce_value(narrow, ReduceOp::prod) == 8.0F, "a product of small floats");
        require(comm.all_reduce_value<std::uint8_t>(4, ReduceOp::avg) == 4, "an average");
        CHECK_THROWS_AS(static_cast<void>(comm.all_reduce_value(1.0, ReduceOp::band)), rsccl::InvalidArgument);
    });
}
