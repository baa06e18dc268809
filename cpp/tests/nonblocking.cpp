// Communicators that do not block: what each method does while a peer is late. The peer comes when all of it is done, so a method that
// waits for it ends this test by a deadline.
//
// tests/parity.rs compares the lists here with the headers: every method of Communicator and of Collectives stands in one of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "ranks.hpp"

using namespace rsccl;
using ranks::require;

namespace {

Config nonblocking() {
    Config config = ranks::quick();
    config.blocking = false;
    return config;
}

// Memory for any call of two ranks.
struct Memory {
    std::vector<float> one = std::vector<float>(4, 1), two = std::vector<float>(8, 1), other = std::vector<float>(8), result = std::vector<float>(4);
    std::vector<std::size_t> counts = {4, 4};
};

using Call = std::function<void(Communicator&)>;

// A method that throws InProgress at once on a communicator that is being made, and on one whose child is being made.
struct Refused {
    std::string name;
    std::vector<Call> forms;
};

// A call: on the communicator itself, as a request, as a persistent call, in a group.
template <class Body>
Refused in_all_forms(const char* name, Body body) {
    return {name,
            {[body](Communicator& comm) {
                 Memory memory;
                 (void)body(comm, memory);
             },
             [body](Communicator& comm) {
                 Memory memory;
                 (void)body(comm.start(), memory);
             },
             [body](Communicator& comm) {
                 Memory memory;
                 (void)body(comm.prepare(), memory);
             },
             [body](Communicator& comm) {
                 Memory memory;
                 Group group;
                 auto member = group.on(comm);
                 (void)body(member, memory);
                 group.end();
             }}};
}

#define FORMS(name, ...) \
    in_all_forms(#name, [](auto&& on, Memory& m) { \
        (void)m; \
        if constexpr (std::is_void_v<decltype(on.name(__VA_ARGS__))>) { \
            on.name(__VA_ARGS__); \
            return 0; \
        } else { \
            return on.name(__VA_ARGS__); \
        } \
    })

std::vector<Refused> refused() {
    return {
        FORMS(all_reduce, m.one, m.result),
        FORMS(all_reduce_in_place, m.one),
        FORMS(broadcast, m.one, 0),
        FORMS(broadcast_into, m.one, m.result, 0),
        FORMS(reduce, m.one, m.result, ReduceOp::sum, 0),
        FORMS(reduce_in_place, m.one, ReduceOp::sum, 0),
        FORMS(all_gather, m.one, m.two),
        FORMS(all_gather_in_place, m.two),
        FORMS(reduce_scatter, m.two, m.result),
        FORMS(reduce_scatter_in_place, m.two),
        FORMS(all_to_all, m.two, m.other),
        FORMS(gather, m.one, m.two, 0),
        FORMS(scatter, m.two, m.result, 0),
        FORMS(barrier, ),
        FORMS(all_gather_v, m.one, m.two, m.counts),
        FORMS(reduce_scatter_v, m.two, m.result, m.counts),
        FORMS(all_to_all_v, m.two, m.other, {m.counts, m.counts}),
        FORMS(gather_v, m.one, m.two, m.counts, 0),
        FORMS(scatter_v, m.two, m.result, m.counts, 0),
        FORMS(scan, m.one, m.result),
        FORMS(scan_in_place, m.one),
        FORMS(exscan, m.one, m.result),
        FORMS(exscan_in_place, m.one),
        FORMS(send_recv, m.one, 1, m.result, 1),
        FORMS(send, m.one, 1),
        FORMS(recv, m.result, 1),
        {"split", {[](Communicator& comm) { (void)comm.split(0); }}},
        {"by_color", {[](Communicator& comm) { (void)comm.by_color(0); }}},
        {"on_my_host", {[](Communicator& comm) { (void)comm.on_my_host(); }}},
        {"cross", {[](Communicator& comm) { (void)comm.cross(); }}},
        {"exchange_counts", {[](Communicator& comm) { (void)comm.exchange_counts({1, 2}); }}},
        {"all_reduce_value", {[](Communicator& comm) { (void)comm.all_reduce_value(1.0F); }}},
        {"set_progress", {[](Communicator& comm) { comm.set_progress([] {}); }}},
        {"register_buffer", {[](Communicator& comm) {
             buffer<float> memory(16);
             comm.register_buffer(memory);
         }}},
        {"memory", {[](Communicator& comm) { (void)comm.memory(); }}},
        {"deregister_buffer", {[](Communicator& comm) {
             buffer<float> memory(16);
             comm.deregister_buffer(memory);
         }}},
    };
}

// Others that return at once.
const std::vector<std::string> at_once = {
    "Communicator",  // an init: "a non-blocking init returns at once" in setup.cpp
    "init_scalable", // below
    "bool",          // below
    "start",         // below; the calls behind it are refused
    "prepare",       // the same
    "shrink",        // below
    "placement",     // below
    "abort",         // below
    "abort_handle",  // below
    "async_error",   // below
    "finalize",      // below
    "from_env",      // as init_scalable, once the environment is read
};

// Those that wait, as their documentation says.
const std::vector<std::string> waiting = {
    "init_all",          // yields communicators that are ready
    "from_store",        // the id comes from rank 0
    "rank",              // of a child that a split is making
    "size",              // of the same
    "register_window",   // all ranks wait for each other
    "deregister_window", // the same
};

void must_be_in_progress(const std::string& name, const Call& call, Communicator& comm) {
    try {
        call(comm);
    } catch (const InProgress&) {
        return;
    } catch (const std::exception& other) {
        throw std::runtime_error(name + ": " + other.what());
    }
    throw std::runtime_error(name + " did not throw");
}

void settle(const Communicator& comm) {
    while (const auto error = comm.async_error()) {
        if (error->code() != ErrorCode::in_progress) {
            error->raise();
        }
        std::this_thread::yield();
    }
}

// Runs `first` as rank 0 and `late` as rank 1, each with a communicator that does not block and is ready. `late` waits for the
// promise, which `first` keeps.
void beside_a_late_one(const std::function<void(Communicator&, std::promise<void>&)>& first, const std::function<void(Communicator&)>& late) {
    std::promise<void> done;
    std::future<void> come = done.get_future();
    ranks::run(2, nonblocking(), [&](Communicator& comm) {
        if (comm.rank() == 0) {
            try {
                first(comm, done);
            } catch (...) {
                comm.abort("the first rank has failed");
                try {
                    done.set_value();
                } catch (const std::future_error&) {
                }
                throw;
            }
        } else {
            come.wait();
            late(comm);
        }
    });
}

void use(Communicator& comm) {
    std::vector<int> ones(1, 1);
    comm.all_reduce_in_place(ones);
    require(ones[0] == comm.size(), "a sum");
}

} // namespace

TEST_CASE("non-blocking: a split returns before a late rank has come, and no method waits for it meanwhile") {
    beside_a_late_one(
        [](Communicator& comm, std::promise<void>& done) {
            std::optional<Communicator> child = comm.split(0, 0);
            require(child.has_value(), "a color was passed");
            for (Communicator* other : {&*child, &comm}) {
                const auto state = other->async_error();
                require(state && state->code() == ErrorCode::in_progress, "in progress");
                require(static_cast<bool>(*other), "it is a communicator");
                for (const Refused& method : refused()) {
                    for (const Call& form : method.forms) {
                        must_be_in_progress(method.name, form, *other);
                    }
                }
            }
            (void)child->start();
            (void)child->prepare();
            require(comm.placement().local_size == 2, "known since init, also while a child is made");
            must_be_in_progress("placement", [](Communicator& one) { (void)one.placement(); }, *child);
            for (Communicator* other : {&*child, &comm}) {
                must_be_in_progress("finalize", [](Communicator& one) { one.finalize(); }, *other);
            }
            must_be_in_progress("shrink", [](Communicator& one) { (void)one.shrink({1}); }, *child);
            done.set_value();
            require(child->rank() == 0 && child->size() == 2, "rank and size wait");
            settle(*child);
            settle(comm);
            require(child->placement().local_rank == 0, "of the child, which no other rank is asked for");
            use(*child);
            use(comm);
            child->finalize();
            comm.finalize();
        },
        [](Communicator& comm) {
            Communicator child = comm.by_color(0);
            settle(child);
            settle(comm);
            use(child);
            use(comm);
        });
}

TEST_CASE("non-blocking: on_my_host and cross return before a late rank has come") {
    for (auto make : {&Communicator::on_my_host, &Communicator::cross}) {
        beside_a_late_one(
            [make](Communicator& comm, std::promise<void>& done) {
                Communicator child = (comm.*make)();
                for (Communicator* other : {&child, &comm}) {
                    const auto state = other->async_error();
                    require(state && state->code() == ErrorCode::in_progress, "in progress");
                }
                done.set_value();
                settle(child);
                settle(comm);
                use(child);
            },
            [make](Communicator& comm) {
                Communicator child = (comm.*make)();
                settle(child);
                settle(comm);
                use(child);
            });
    }
}

TEST_CASE("non-blocking: splits of two communicators in crossed orders") {
    const auto all = [] { return Communicator::init_all(2, nonblocking()); };
    std::vector<Communicator> first = all(), second = all();
    std::vector<std::thread> threads;
    std::array<std::string, 2> failed;
    for (std::size_t rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank, a = std::move(first[rank]), b = std::move(second[rank])]() mutable {
            try {
                for (int turn = 0; turn < 3; ++turn) {
                    Communicator& one = rank == 0 ? a : b;
                    Communicator& other = rank == 0 ? b : a;
                    Communicator child_of_one = one.by_color(0);
                    Communicator child_of_other = other.by_color(0);
                    for (Communicator* made : {&child_of_one, &child_of_other, &a, &b}) {
                        settle(*made);
                    }
                    use(rank == 0 ? child_of_one : child_of_other);
                    use(rank == 0 ? child_of_other : child_of_one);
                }
            } catch (const std::exception& error) {
                failed[rank] = error.what();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(failed == std::array<std::string, 2>{});
}

TEST_CASE("non-blocking: a shrink returns before a late survivor has come") {
    beside_a_late_one(
        [](Communicator& comm, std::promise<void>& done) {
            // Of one rank alone nobody is late; what is tried is that it returns.
            Communicator rest = comm.shrink({1});
            require(rest.rank() == 0 && rest.size() == 1, "known at once");
            settle(rest);
            done.set_value();
        },
        [](Communicator&) {});
    std::promise<void> done;
    std::future<void> come = done.get_future();
    ranks::run(3, nonblocking(), [&](Communicator& comm) {
        if (comm.rank() == 2) {
            return;
        }
        if (comm.rank() == 1) {
            come.wait();
        }
        Communicator rest = comm.shrink({2});
        require(rest.rank() == comm.rank() && rest.size() == 2, "known at once");
        if (comm.rank() == 0) {
            const auto state = rest.async_error();
            require(state && state->code() == ErrorCode::in_progress, "in progress");
            must_be_in_progress("finalize", [](Communicator& other) { other.finalize(); }, comm);
            done.set_value();
        }
        settle(rest);
        use(rest);
    });
}

TEST_CASE("non-blocking: an init and a split that are aborted or dropped wait for nobody") {
    const UniqueId id = UniqueId::generate(ranks::quick());
    {
        Communicator alone = Communicator::init_scalable({id}, 0, 2, nonblocking());
        require(alone.rank() == 0 && alone.size() == 2, "known at once");
        for (const Refused& method : refused()) {
            for (const Call& form : method.forms) {
                must_be_in_progress(method.name, form, alone);
            }
        }
        alone.finalize();
        require(!alone, "finalized");
    }
    beside_a_late_one(
        [](Communicator& comm, std::promise<void>& done) {
            Communicator child = comm.by_color(0);
            child.abort_handle().abort("enough");
            comm.abort("enough");
            for (const Communicator* ended : {&child, &comm}) {
                try {
                    settle(*ended);
                    require(false, "it was aborted");
                } catch (const Aborted&) {
                }
            }
            done.set_value();
        },
        [](Communicator&) {});
}

TEST_CASE("the lists of what blocks and what does not name each method once") {
    std::vector<std::string> all = at_once;
    all.insert(all.end(), waiting.begin(), waiting.end());
    for (const Refused& method : refused()) {
        all.push_back(method.name);
    }
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}
