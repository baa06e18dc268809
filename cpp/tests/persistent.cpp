// Persistent calls: prepared once, run again and again on the same memory.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ranks.hpp"

using ranks::Path;
using ranks::require;
using ranks::require_each;
using rsccl::Communicator;
using rsccl::PersistentCall;
using rsccl::ReduceOp;
using rsccl::Request;

namespace {

template <class Body>
std::optional<rsccl::ErrorCode> code_of(Body body) {
    try {
        body();
    } catch (const rsccl::Error& error) {
        return error.code();
    }
    return {};
}

} // namespace

TEST_CASE("persistent calls: rounds with data that changes, in both forms, small and large, of every path") {
    for (Path path : {Path::pointers, Path::shared_memory, Path::sockets}) {
        ranks::run(2, ranks::by(path), [](Communicator& comm) {
            const int me = comm.rank();
            const int peer = 1 - me;
            for (std::size_t count : {std::size_t{1}, std::size_t{128}, std::size_t{50'000}}) {
                std::vector<long long> mine(count), sum(count), all(2 * count), theirs(count), both(2 * count), swapped(2 * count);
                PersistentCall reduce = comm.prepare().all_reduce(mine, sum, ReduceOp::sum);
                PersistentCall gather = comm.prepare().all_gather(mine, all);
                PersistentCall swap = comm.prepare().all_to_all_v(both, swapped, {{count, count}, {count, count}});
                PersistentCall exchange = comm.prepare().send_recv(mine, peer, theirs, peer);
                PersistentCall barrier = comm.prepare().barrier();
                for (long long round = 0; round < 20; ++round) {
                    mine.assign(count, round + me);
                    both.assign(2 * count, 10 * round + me);
                    if (round % 2 == 0) {
                        reduce.run();
                        gather.run();
                        swap.run();
                        exchange.run();
                        barrier.run();
                    } else {
                        for (PersistentCall* call : {&reduce, &gather, &swap, &exchange, &barrier}) {
                            call->start();
                        }
                        exchange.wait();
                        while (!swap.test()) {
                        }
                        for (PersistentCall* call : {&barrier, &gather, &reduce}) {
                            call->wait();
                        }
                    }
                    require_each(sum, "sum", [&](std::size_t) { return 2 * round + 1; });
                    require_each(theirs, "theirs", [&](std::size_t) { return round + peer; });
                    require_each(all, "all", [&](std::size_t place) { return round + (place < count ? 0 : 1); });
                    require_each(swapped, "swapped", [&](std::size_t place) { return 10 * round + (place < count ? 0 : 1); });
                }
            }
        });
    }
}

TEST_CASE("persistent calls: in groups, beside requests and blocking calls") {
    ranks::run(2, [](Communicator& comm) {
        const int peer = 1 - comm.rank();
        std::array<std::vector<int>, 3> words = {std::vector<int>(1), std::vector<int>(10), std::vector<int>(1000)};
        std::vector<PersistentCall> calls;
        for (auto& word : words) {
            calls.push_back(comm.prepare().all_reduce_in_place(word));
        }
        for (int round = 0; round < 10; ++round) {
            for (auto& word : words) {
                word.assign(word.size(), round);
            }
            std::vector<int> received(300'000);
            Request request = comm.start().recv(received, peer);
            rsccl::start_all(calls);
            comm.send(std::vector<int>(300'000, round), peer);
            require(comm.all_reduce_value(round) == 2 * round, "a blocking call beside them");
            if (round % 2 == 0) {
                for (PersistentCall& call : calls) {
                    while (!call.test()) {
                    }
                }
            }
            rsccl::wait_all(calls);
            request.wait();
            for (const auto& word : words) {
                require_each(word, "sum", [&](std::size_t) { return 2 * round; });
            }
        }
    });
}

TEST_CASE("persistent calls: what is wrong is told, and changes nothing") {
    ranks::run(2, [](Communicator& comm) {
        const int peer = 1 - comm.rank();
        std::vector<int> word(1), other(2);
        require(code_of([&] { (void)comm.prepare().all_reduce(word, other); }) == rsccl::ErrorCode::invalid_argument, "lengths differ");
        require(code_of([&] { (void)comm.prepare().send(word, comm.rank()); }) == rsccl::ErrorCode::invalid_usage, "a send to itself");
        PersistentCall empty;
        require(!empty, "empty");
        require(code_of([&] { empty.start(); }) == rsccl::ErrorCode::invalid_usage, "empty");
        require(code_of([&] { empty.run(); }) == rsccl::ErrorCode::invalid_usage, "empty");
        PersistentCall receive = comm.prepare().recv(word, peer);
        receive.wait();
        receive.start();
        require(code_of([&] { receive.start(); }) == rsccl::ErrorCode::invalid_usage, "started twice");
        require(code_of([&] { receive.run(); }) == rsccl::ErrorCode::invalid_usage, "started twice");
        PersistentCall moved = std::move(receive);
        require(moved && !receive, "moved"); // NOLINT(bugprone-use-after-move)
        comm.send(std::vector<int>(1, 7), peer);
        moved.wait();
        require(word[0] == 7, "the message");
        // The destructor waits, and so does what is put in its place.
        moved.start();
        comm.send(std::vector<int>(1, 8), peer);
        moved = comm.prepare().all_reduce_in_place(word);
        require(word[0] == 8, "the message before");
        moved.run();
        require(word[0] == 16, "the sum");
    });
}

TEST_CASE("persistent calls: ranks that differ are named, and the communicator ends") {
    for (bool starts : {false, true}) {
        const ranks::Errors errors = ranks::errors_of(2, ranks::quick(), [starts](Communicator& comm) {
            std::vector<int> word(3 + static_cast<std::size_t>(comm.rank()));
            PersistentCall call = comm.prepare().all_reduce_in_place(word);
            if (starts) {
                call.start();
                call.wait();
            } else {
                call.run();
            }
        });
        for (const std::exception_ptr& error : errors) {
            std::string words;
            require(code_of([&] {
                        try {
                            require(error != nullptr, "an error");
                            std::rethrow_exception(error);
                        } catch (const std::exception& said) {
                            words = said.what();
                            throw;
                        }
                    }) == rsccl::ErrorCode::mismatch,
                    words);
            require(words.find("count 3") != std::string::npos && words.find("count 4") != std::string::npos, words);
        }
    }
}
