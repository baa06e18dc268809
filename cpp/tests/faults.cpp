// Bad input and failures: each ends in an exception with a code, and the communicator either goes on or has ended.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "ranks.hpp"

using ranks::quick;
using ranks::require;
using rsccl::Communicator;
using rsccl::Config;
using rsccl::DataType;
using rsccl::ErrorCode;
using rsccl::ReduceOp;

namespace {

/// An event that one thread raises and others wait for.
class Signal {
  public:
    void say() {
        const std::lock_guard<std::mutex> lock(guard_);
        said_ = true;
        changed_.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(guard_);
        require(changed_.wait_for(lock, std::chrono::seconds(30), [this] { return said_; }), "nobody said it");
    }

  private:
    std::mutex guard_;
    std::condition_variable changed_;
    bool said_ = false;
};

/// Checks that `call` throws `Class` with its code and rank, and that the communicator goes on.
template <class Class, class Call>
void refused(Communicator& comm, const std::string& what, Call call) {
    try {
        call();
    } catch (const Class& error) {
        require(error.rank() == comm.rank(), what + ": no rank in: " + error.what());
        require(!comm.async_error(), what + ": ended the communicator");
        return;
    } catch (const std::exception& error) {
        require(false, what + ": another class: " + error.what());
    }
    require(false, what + ": accepted");
}

} // namespace

TEST_CASE("what one rank can see to be wrong is refused, and the communicator goes on") {
    ranks::run(2, [](Communicator& comm) {
        using Wrong = rsccl::InvalidArgument;
        std::array<int, 4> four{};
        std::array<int, 4> other{};
        std::array<int, 3> three{};
        std::vector<int> none;
        const std::array<int, 2> right = {1, 1};
        refused<Wrong>(comm, "shorter output", [&] { comm.all_reduce(four, three); });
        const auto says = [&](const std::string& call, auto wrong) {
            try {
                wrong();
                require(false, call + ": accepted");
            } catch (const Wrong& error) {
                const std::string begins = "rank " + std::to_string(comm.rank()) + ": " + call + ": ";
                require(std::string(error.what()).rfind(begins, 0) == 0, call + ": another beginning: " + error.what());
            }
        };
        says("all_reduce", [&] { comm.all_reduce(four, three); });
        says("all_gather", [&] { comm.all_gather_in_place(three); });
        says("reduce_scatter_v", [&] { comm.reduce_scatter_v(four, three, std::array<int, 2>{-1, 5}); });
        says("all_to_all_v", [&] { comm.all_to_all_v(four, other, {right, right}); });
        says("broadcast", [&] { comm.broadcast(four, 7); });
        says("send", [&] { comm.send(four, 99); });
        says("recv", [&] { comm.start().recv(four, 99).wait(); });
        says("send_recv", [&] { comm.send_recv(four, 99, other, 0); });
        says("all_reduce", [&] { comm.all_reduce(four.data(), other.data(), 4, static_cast<DataType>(12)); });
        refused<Wrong>(comm, "no output", [&] { comm.all_reduce(four, none); });
        refused<Wrong>(comm, "all_gather", [&] { comm.all_gather(three, four); });
        refused<Wrong>(comm, "blocks", [&] { comm.all_gather_in_place(three); });
        refused<Wrong>(comm, "reduce_scatter", [&] { comm.reduce_scatter(three, four); });
        refused<Wrong>(comm, "reduce_scatter blocks", [&] { comm.reduce_scatter_in_place(three); });
        refused<Wrong>(comm, "all_to_all", [&] { comm.all_to_all(four, three); });
        refused<Wrong>(comm, "all_to_all blocks", [&] { comm.all_to_all(three, rsccl::view(four.data(), 3)); });
        refused<Wrong>(comm, "root above", [&] { comm.broadcast(four, 2); });
        refused<Wrong>(comm, "root below", [&] { comm.broadcast(four, -1); });
        refused<Wrong>(comm, "reduce to nobody", [&] { comm.reduce(four, other, ReduceOp::sum, 17); });
        refused<Wrong>(comm, "gather to nobody", [&] { comm.gather(four, other, -7); });
        refused<Wrong>(comm, "peer above", [&] { comm.send(four, 2); });
        refused<Wrong>(comm, "peer below", [&] { comm.recv(four, -1); });
        refused<Wrong>(comm, "one count", [&] { comm.all_gather_v(four, other, std::array<int, 1>{4}); });
        refused<Wrong>(comm, "counts and lengths", [&] { comm.all_gather_v(four, other, right); });
        refused<Wrong>(comm, "a negative count in braces",
                       [&] { comm.all_to_all_v(four, other, {std::array<int, 2>{-1, 5}, std::array<int, 2>{2, 2}}); });
        refused<Wrong>(comm, "a negative count", [&] { comm.all_gather_v(three, four, std::array<int, 2>{-1, 5}); });
        refused<Wrong>(comm, "counts that overflow",
                       [&] { comm.all_gather_v(three, four, std::array<std::size_t, 2>{~std::size_t{0}, 3}); });
        refused<Wrong>(comm, "all_to_all_v", [&] { comm.all_to_all_v(four, other, {right, right}); });
        refused<Wrong>(comm, "null with a count", [&] { comm.all_reduce(nullptr, four.data(), 4, DataType::int32); });
        refused<Wrong>(comm, "null output", [&] { comm.all_reduce(four.data(), nullptr, 4, DataType::int32); });
        refused<Wrong>(comm, "null to send", [&] { comm.send(nullptr, 1, DataType::int32, 1 - comm.rank()); });
        refused<Wrong>(comm, "null to receive", [&] { comm.recv(nullptr, 1, DataType::int32, 1 - comm.rank()); });
        refused<Wrong>(comm, "no counts at all", [&] {
            comm.all_gather_v(four.data(), other.data(), rsccl::View<const std::size_t>(nullptr, 0), DataType::int32);
        });
        refused<Wrong>(comm, "null view", [&] { comm.all_reduce_in_place(rsccl::view<int>(nullptr, 3)); });
        refused<Wrong>(comm, "null view of blocks", [&] { comm.all_gather_in_place(rsccl::view<int>(nullptr, 4)); });
        refused<Wrong>(comm, "null view of blocks to reduce", [&] { comm.reduce_scatter_in_place(rsccl::view<int>(nullptr, 4)); });
        const rsccl::View<const std::size_t> null_counts(nullptr, 2);
        const std::array<std::size_t, 2> ones = {1, 1};
        const rsccl::View<const std::size_t> counts(ones.data(), 2);
        refused<Wrong>(comm, "null counts in a view", [&] { comm.all_gather_v(four, other, null_counts); });
        refused<Wrong>(comm, "null counts", [&] { comm.all_gather_v(four.data(), other.data(), null_counts, DataType::int32); });
        refused<Wrong>(comm, "null counts to receive",
                       [&] { comm.all_to_all_v(four.data(), other.data(), {counts, null_counts}, DataType::int32); });
        refused<Wrong>(comm, "null counts of a request",
                       [&] { comm.start().all_to_all_v(four.data(), other.data(), {null_counts, counts}, DataType::int32).wait(); });
        rsccl::Group calls;
        refused<Wrong>(comm, "null counts in a group",
                       [&] { calls.on(comm).all_gather_v(four.data(), other.data(), null_counts, DataType::int32); });
        refused<Wrong>(comm, "no type", [&] { comm.all_reduce(four.data(), other.data(), 4, static_cast<DataType>(12)); });
        refused<Wrong>(comm, "negative type", [&] { comm.all_reduce(four.data(), other.data(), 4, static_cast<DataType>(-1)); });
        refused<Wrong>(comm, "a count beyond memory",
                       [&] { comm.all_reduce(four.data(), other.data(), ~std::size_t{0} / 2, DataType::float64); });
        refused<Wrong>(comm, "buffers that overlap", [&] { comm.all_reduce(four.data(), four.data() + 1, 3, DataType::int32); });
        refused<Wrong>(comm, "all_to_all_v in place", [&] { comm.all_to_all_v(rsccl::view(four.data(), 2), rsccl::view(four.data(), 2), {right, right}); });
        refused<Wrong>(comm, "all_to_all_v whose buffers touch",
                       [&] { comm.all_to_all_v(four.data(), four.data() + 1, {counts, counts}, DataType::int32); });
        refused<Wrong>(comm, "a misaligned buffer", [&] {
            comm.all_reduce(reinterpret_cast<const char*>(four.data()) + 1, other.data(), 2, DataType::int32);
        });
        refused<rsccl::InvalidUsage>(comm, "a message to myself", [&] { comm.send(four, comm.rank()); });
        comm.barrier(rsccl::Stream::host());
        comm.all_reduce(nullptr, nullptr, 0, DataType::int32);
        comm.barrier();
    });
}

TEST_CASE("ranks that disagree get a Mismatch that names both") {
    for (int kind = 0; kind < 4; ++kind) {
        std::atomic<int> mismatches{0};
        ranks::errors_of(2, quick(), [&](Communicator& comm) {
            std::vector<float> buffer(comm.rank() == 0 && kind == 0 ? 5 : 4);
            try {
                if (kind == 1 && comm.rank() == 0) {
                    comm.broadcast(buffer, 0);
                } else if (kind == 2 && comm.rank() == 0) {
                    comm.all_reduce_in_place(buffer, ReduceOp::max);
                } else if (kind == 3 && comm.rank() == 0) {
                    comm.all_reduce(buffer.data(), buffer.data(), 4, DataType::int32);
                } else {
                    comm.all_reduce_in_place(buffer);
                }
            } catch (const rsccl::Mismatch& error) {
                const auto state = comm.async_error();
                if (error.rank() == comm.rank() && state && state->code() == ErrorCode::mismatch) {
                    ++mismatches;
                }
                CHECK_THROWS_AS(comm.barrier(), rsccl::Mismatch);
                CHECK_THROWS_AS(comm.finalize(), rsccl::Mismatch);
                throw;
            }
        });
        CAPTURE(kind);
        CHECK(mismatches > 0);
    }
}

TEST_CASE("a moved-from, a finalized and an empty communicator: every call says so, nothing crashes") {
    std::vector<Communicator> comms = Communicator::init_all(1, quick());
    Communicator finalized = std::move(comms[0]);
    finalized.finalize();
    Communicator empty;
    for (Communicator* gone : {&comms[0], &finalized, &empty}) {
        std::array<int, 1> buffer{};
        using Usage = rsccl::InvalidUsage;
        CHECK_FALSE(*gone);
        CHECK_THROWS_AS(gone->all_reduce_in_place(buffer), Usage);
        CHECK_THROWS_AS(gone->all_gather(buffer, buffer), Usage);
        CHECK_THROWS_AS(gone->send(buffer, 0), Usage);
        CHECK_THROWS_AS(gone->barrier(), Usage);
        CHECK_THROWS_AS((void)gone->start().barrier(), Usage);
        CHECK_THROWS_AS((void)gone->start().all_reduce_in_place(buffer), Usage);
        CHECK_THROWS_AS((void)gone->split(0), Usage);
        CHECK_THROWS_AS((void)gone->by_color(0), Usage);
        CHECK_THROWS_AS((void)gone->on_my_host(), Usage);
        CHECK_THROWS_AS((void)gone->cross(), Usage);
        CHECK_THROWS_AS((void)gone->shrink({1}), Usage);
        CHECK_THROWS_AS(gone->placement(), Usage);
        CHECK_THROWS_AS(gone->finalize(), Usage);
        CHECK_THROWS_AS(gone->set_progress([] {}), Usage);
        CHECK_NOTHROW(gone->abort("nothing happens"));
    }
    CHECK_THROWS_AS(empty.rank(), rsccl::InvalidUsage);
    CHECK_THROWS_AS(empty.size(), rsccl::InvalidUsage);
    CHECK_THROWS_AS((void)empty.async_error(), rsccl::InvalidUsage);
    CHECK_THROWS_AS((void)empty.abort_handle(), rsccl::InvalidUsage);
    // A moved-from object may be given a new value.
    comms[0] = std::move(Communicator::init_all(1, quick())[0]);
    comms[0].barrier();
}

TEST_CASE("two threads in one communicator: the second is told so, the first goes on") {
    std::vector<Communicator> comms = Communicator::init_all(2, quick());
    Signal waiting;
    Signal refused_once;
    std::exception_ptr error;
    comms[0].set_progress([&] { waiting.say(); });
    std::thread first([&] {
        try {
            comms[0].barrier();
        } catch (...) {
            error = std::current_exception();
        }
    });
    waiting.wait();
    CHECK_THROWS_AS(comms[0].barrier(), rsccl::InvalidUsage);
    std::array<int, 1> buffer{};
    CHECK_THROWS_AS((void)comms[0].start().all_reduce_in_place(buffer), rsccl::InvalidUsage);
    CHECK(comms[0].rank() == 0);
    CHECK(comms[0].size() == 2);
    CHECK_THROWS_AS(comms[0].finalize(), rsccl::InvalidUsage);
    CHECK(comms[0]);
    CHECK_FALSE(comms[0].async_error());
    comms[1].barrier();
    first.join();
    CHECK_FALSE(error);
    CHECK_FALSE(comms[0].async_error());
}

TEST_CASE("a thread that asks how a communicator is does not get in the way of the one that calls") {
    std::vector<Communicator> comms = Communicator::init_all(1, quick());
    std::atomic<bool> over{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> askers;
    for (int asker = 0; asker < 2; ++asker) {
        askers.emplace_back([&] {
            while (!over) {
                wrong += comms[0].async_error() ? 1 : 0;
            }
        });
    }
    std::array<int, 1> buffer = {7};
    for (int call = 0; call < 20'000; ++call) {
        REQUIRE_NOTHROW(comms[0].all_reduce_in_place(buffer));
    }
    over = true;
    for (std::thread& asker : askers) {
        asker.join();
    }
    CHECK(wrong == 0);
    CHECK(buffer[0] == 7);
}

TEST_CASE("abort from another thread ends the call that waits, on all ranks") {
    std::vector<Communicator> comms = Communicator::init_all(3, quick());
    Signal waiting;
    comms[0].set_progress([&] { waiting.say(); });
    rsccl::AbortHandle handle = comms[0].abort_handle();
    std::array<std::string, 2> words;
    std::vector<std::thread> threads;
    for (std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
        threads.emplace_back([&, rank] {
            try {
                comms[rank].barrier();
            } catch (const rsccl::Aborted& error) {
                words[rank] = error.message();
            } catch (const std::exception& error) {
                words[rank] = std::string("another class: ") + error.what();
            }
        });
    }
    waiting.wait();
    handle.abort("the user has pressed a key");
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const std::string& word : words) {
        CHECK(word.find("the user has pressed a key") != std::string::npos);
    }
    CHECK_THROWS_AS(comms[2].barrier(), rsccl::Aborted);
    const auto state = comms[0].async_error();
    REQUIRE(state);
    CHECK(state->code() == ErrorCode::aborted);
    comms.clear();
    handle.abort("nothing is left to abort");
    const rsccl::AbortHandle moved = std::move(handle);
    handle.abort("a handle that was moved from stops nothing"); // NOLINT: that is what is tested
    moved.abort("nothing is left to abort");
}

TEST_CASE("abort() of the communicator itself; a request that waits ends too") {
    std::vector<Communicator> comms = Communicator::init_all(2, quick());
    std::vector<int> buffer(100'000);
    rsccl::Request request = comms[0].start().recv(buffer, 1);
    comms[0].abort("enough");
    CHECK_THROWS_AS(request.wait(), rsccl::Aborted);
    CHECK_THROWS_AS(comms[0].barrier(), rsccl::Aborted);
}

TEST_CASE("a deadline names who was waited for, and in what") {
    Config config = quick();
    config.timeout = std::chrono::milliseconds(200);
    std::vector<Communicator> comms = Communicator::init_all(2, config);
    std::array<int, 1> buffer{};
    try {
        comms[0].all_reduce_in_place(buffer);
        FAIL("rank 1 never called");
    } catch (const rsccl::Timeout& error) {
        CHECK(error.rank() == 0);
        CHECK(error.peer() == 1);
        CHECK(error.operation().find("all_reduce") == 0);
        CHECK(error.nccl_code() == 8);
    }
    CHECK_THROWS_AS(comms[0].finalize(), rsccl::Timeout);
}

TEST_CASE("a deadline ends a request") {
    Config config = quick();
    config.timeout = std::chrono::milliseconds(200);
    std::vector<Communicator> comms = Communicator::init_all(2, config);
    std::vector<int> buffer(10);
    rsccl::Request request = comms[0].start().recv(buffer, 1);
    CHECK_THROWS_AS(request.wait(), rsccl::Timeout);
    rsccl::Request forgotten;
    CHECK_NOTHROW(forgotten.wait());
}

TEST_CASE("a progress hook is called while a call waits, and can be taken away") {
    std::atomic<int> calls{0};
    ranks::run(2, [&](Communicator& comm) {
        if (comm.rank() == 0) {
            Signal seen;
            comm.set_progress([&] {
                ++calls;
                seen.say();
            });
            std::array<int, 1> token{};
            comm.recv(token, 1);
            comm.set_progress({});
            const int before = calls;
            comm.send(token, 1);
            comm.barrier();
            require(calls == before, "taken away");
        } else {
            // Sends after rank 0 has been seen waiting.
            while (calls == 0) {
                std::this_thread::yield();
            }
            std::array<int, 1> token{};
            comm.send(token, 0);
            comm.recv(token, 0);
            comm.barrier();
        }
    });
    CHECK(calls > 0);
}

TEST_CASE("what a progress hook throws ends the communicator, and comes through") {
    struct Own : std::runtime_error {
        Own() : std::runtime_error("the other library has failed") {}
    };
    std::vector<Communicator> comms = Communicator::init_all(2, quick());
    comms[0].set_progress([] { throw Own(); });
    bool nested = false;
    try {
        comms[0].barrier();
        FAIL("the hook threw");
    } catch (const rsccl::Error& error) {
        CHECK(error.message().find("the other library has failed") != std::string::npos);
        CHECK(error.rank() == 0);
        try {
            std::rethrow_if_nested(error);
        } catch (const Own&) {
            nested = true;
        }
    }
    CHECK(nested);
    CHECK_THROWS_AS(comms[0].barrier(), rsccl::Error);
    CHECK_THROWS_AS(comms[1].barrier(), rsccl::Error);
    // An exception that is not a std::exception becomes an error too.
    std::vector<Communicator> others = Communicator::init_all(2, quick());
    others[0].set_progress([] { throw 7; });
    CHECK_THROWS_AS(others[0].barrier(), rsccl::Error);
    // A hook's own rsccl error keeps its code.
    std::vector<Communicator> third = Communicator::init_all(2, quick());
    third[0].set_progress([] { throw rsccl::Timeout("the other library was late"); });
    CHECK_THROWS_AS(third[0].barrier(), rsccl::Timeout);
}

TEST_CASE("a hook that a child has from its parent throws there, and only there") {
    std::atomic<bool> angry{false};
    ranks::run(2, [&](Communicator& comm) {
        if (comm.rank() == 0) {
            comm.set_progress([&] {
                if (angry) {
                    throw rsccl::Timeout("the other library was late");
                }
            });
        }
        Communicator child = comm.by_color(0);
        comm.barrier();
        if (comm.rank() == 0) {
            angry = true;
            bool nested = false;
            try {
                child.barrier();
                require(false, "the hook threw");
            } catch (const rsccl::Timeout& error) {
                try {
                    std::rethrow_if_nested(error);
                } catch (const rsccl::Timeout& own) {
                    nested = own.what() == std::string("the other library was late");
                }
            }
            require(nested, "nested in the child's error");
            angry = false;
        } else {
            try {
                child.recv(std::vector<int>(1).data(), 1, DataType::int32, 0);
                require(false, "the child has ended");
            } catch (const rsccl::Error&) {
            }
        }
        // The parent goes on: the child's errors do not reach it.
        comm.barrier();
        std::array<int, 1> buffer{};
        refused<rsccl::InvalidArgument>(comm, "no such root", [&] { comm.broadcast(buffer, 7); });
    });
}

TEST_CASE("what a hook has thrown is not said of another call's mistake") {
    std::vector<Communicator> comms = Communicator::init_all(2, quick());
    Signal thrown;
    comms[0].set_progress([&] {
        thrown.say();
        throw rsccl::Timeout("the other library was late");
    });
    std::array<int, 1> buffer{};
    rsccl::Request request = comms[0].start().recv(buffer, 1);
    thrown.wait();
    CHECK_THROWS_AS(comms[0].broadcast(buffer, 7), rsccl::InvalidArgument);
    CHECK_THROWS_AS(request.wait(), rsccl::Timeout);
}

TEST_CASE("a hook is given back with its communicator") {
    auto held = std::make_shared<int>(7);
    {
        std::vector<Communicator> comms = Communicator::init_all(1, quick());
        comms[0].set_progress([held] { (void)*held; });
        comms[0].barrier();
        CHECK(held.use_count() > 1);
    }
    CHECK(held.use_count() == 1);
}

TEST_CASE("an exception that leaves a communicator's scope tells the other ranks") {
    const ranks::Errors errors = ranks::errors_of(2, quick(), [](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 1) {
            throw std::runtime_error("of the program");
        }
        comm.barrier();
    });
    CHECK_THROWS_AS(std::rethrow_exception(errors[1]), std::runtime_error);
    try {
        std::rethrow_exception(errors[0]);
    } catch (const rsccl::Error& error) {
        const bool tells = error.code() == ErrorCode::aborted || error.code() == ErrorCode::remote;
        CHECK_MESSAGE(tells, error.what());
    }
}

TEST_CASE("destructors do not throw after any fault") {
    Config config = quick();
    config.timeout = std::chrono::milliseconds(100);
    for (int fault = 0; fault < 4; ++fault) {
        CAPTURE(fault);
        std::vector<Communicator> comms = Communicator::init_all(2, config);
        std::vector<int> buffer(50'000);
        {
            rsccl::Request request;
            rsccl::Group group;
            if (fault == 0) {
                request = comms[0].start().recv(buffer, 1);
            } else if (fault == 1) {
                group.on(comms[0]).send(buffer, 1);
            } else if (fault == 2) {
                comms[0].abort("on purpose");
                group.on(comms[1]).all_reduce_in_place(buffer);
            } else {
                request = comms[0].start().recv(buffer, 1);
                comms[0].abort("while a request is under way");
            }
        }
        comms.pop_back();
        comms.clear();
    }
}

namespace {

/// What a forked child sees when it uses its parent's objects; 0 if each call fails as documented.
int misuse_after_fork(std::vector<Communicator>& comms, rsccl::Request& open, std::unique_ptr<rsccl::TcpStore>& store) {
    alarm(20);
    int wrong = 0;
    const auto refuses = [&wrong](auto call) {
        try {
            call();
            ++wrong;
        } catch (const rsccl::InvalidUsage& error) {
            wrong += error.message().find("forked") == std::string::npos ? 1 : 0;
        }
    };
    refuses([&] { comms[0].barrier(); });
    refuses([&] { (void)comms[1].split(0); });
    refuses([&] { (void)comms[1].async_error(); });
    refuses([&] { comms[1].finalize(); });
    refuses([&] { open.wait(); });
    comms[1].abort("by a child, which has no say");
    open = rsccl::Request();
    comms.clear();
    store.reset();
    return wrong;
}

/// A communicator, and a request of it, that live as long as the program: they end after main.
int ends_after_main(const std::vector<std::string>&) {
    static std::array<int, 1> word{};
    static rsccl::Request request;
    static Communicator comm;
    comm = Communicator::from_env(quick());
    if (comm.rank() == 0) {
        request = comm.start().recv(word, 1);
        return 0;
    }
    comm.send(std::array<int, 1>{7}, 0);
    try {
        comm.recv(word, 0);
    } catch (const rsccl::RemoteError& error) {
        // The peer has left on purpose and is not reported as dead.
        return std::string(error.what()).find("finalized") != std::string::npos ? 0 : 2;
    }
    return 3;
}
const ranks::Named ending_worker("ends_after_main", ends_after_main);

} // namespace

namespace {

/// What `body` writes to standard error.
std::string standard_error_of(const std::function<void()>& body) {
    std::FILE* const file = std::tmpfile();
    require(file != nullptr, "a file");
    std::fflush(stderr);
    const int usual = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    body();
    dup2(usual, STDERR_FILENO);
    close(usual);
    std::rewind(file);
    std::string text;
    for (int letter = std::fgetc(file); letter != EOF; letter = std::fgetc(file)) {
        text.push_back(static_cast<char>(letter));
    }
    std::fclose(file);
    return text;
}

/// Two ranks that are both the root of a small broadcast, which waits for nobody.
void both_are_roots(Communicator& comm) {
    std::array<int, 4> words{};
    for (int root = 0; root < 2; ++root) {
        comm.broadcast(words, root);
    }
    comm.broadcast(words, comm.rank());
}

} // namespace

TEST_CASE("a mismatch that no call has thrown is told by the destructor, and only there") {
    const std::string dropped = standard_error_of([] { ranks::run(2, quick(), both_are_roots); });
    CHECK(dropped.find("rsccl: warning: communicator ") != std::string::npos);
    CHECK(dropped.find("root 0") != std::string::npos);
    CHECK(dropped.find("root 1") != std::string::npos);
    const std::string requested = standard_error_of([] {
        ranks::run(2, quick(), [](Communicator& comm) {
            std::vector<int> words(comm.rank() == 0 ? 3 : 4);
            // Waited for by its destructor, which has nobody to tell.
            const rsccl::Request forgotten = comm.start().all_reduce_in_place(words, ReduceOp::sum);
        });
    });
    CHECK(requested.find("rsccl: warning: communicator ") != std::string::npos);
    const std::string finalized = standard_error_of([] {
        ranks::errors_of(2, quick(), [](Communicator& comm) {
            both_are_roots(comm);
            comm.finalize();
        });
    });
    CHECK(finalized == "");
    const std::string thrown = standard_error_of([] {
        ranks::errors_of(2, quick(), [](Communicator& comm) {
            both_are_roots(comm);
            comm.barrier();
        });
    });
    CHECK(thrown == "");
}

TEST_CASE("a forked child does nothing to its parent's communicators: no goodbye, no hang") {
    for (ranks::Path path : {ranks::Path::pointers, ranks::Path::shared_memory, ranks::Path::sockets}) {
        CAPTURE(static_cast<int>(path));
        std::vector<Communicator> comms = Communicator::init_all(2, ranks::by(path));
        auto store = std::make_unique<rsccl::TcpStore>(rsccl::TcpStore::serve("127.0.0.1:0", quick()));
        std::array<int, 1> word{};
        rsccl::Request open = comms[0].start().recv(word, 1);
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            _exit(misuse_after_fork(comms, open, store));
        }
        int status = -1;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        std::exception_ptr error;
        std::thread second([&] {
            try {
                comms[1].send(std::array<int, 1>{7}, 0);
                comms[1].barrier();
            } catch (...) {
                error = std::current_exception();
            }
        });
        CHECK_NOTHROW(open.wait());
        CHECK_NOTHROW(comms[0].barrier());
        second.join();
        CHECK_FALSE(error);
        CHECK(word[0] == 7);
        store->set("key", "value");
    }
}

TEST_CASE("a communicator that is a global says goodbye after main") {
    CHECK(ranks::processes(2, "ends_after_main") == std::vector<int>{0, 0});
    CHECK(ranks::processes(2, "ends_after_main", {}, {{"NCCL_SHM_DISABLE", "1"}}) == std::vector<int>{0, 0});
}
