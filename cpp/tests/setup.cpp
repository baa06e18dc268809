// How communicators begin and end: ids, processes, stores, configuration, splits, shrink, placement, the log.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "ranks.hpp"

using ranks::Path;
using ranks::quick;
using ranks::require;
using rsccl::Communicator;
using rsccl::Config;
using rsccl::ReduceOp;
using rsccl::UniqueId;

namespace {

/// Runs `body(rank)` on threads that have no communicator yet; throws the first error.
void on_threads(int size, const std::function<void(int)>& body) {
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&body, rank, &error = errors[static_cast<std::size_t>(rank)]] {
            try {
                body(rank);
            } catch (...) {
                error = std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const std::exception_ptr& error : errors) {
        if (error) {
            std::rethrow_exception(error);
        }
    }
}

int sum_of_ranks(Communicator& comm) {
    std::array<int, 1> sum = {comm.rank()};
    comm.all_reduce_in_place(sum);
    return sum[0];
}

} // namespace

TEST_CASE("ranks join with an id whose bytes travelled") {
    const UniqueId id = UniqueId::generate(quick());
    std::vector<char> message(UniqueId::size());
    std::copy_n(reinterpret_cast<const char*>(id.data()), message.size(), message.begin());
    on_threads(3, [&](int rank) {
        Communicator comm(UniqueId::from_bytes(message.data(), message.size()), rank, 3, quick());
        require(comm && comm.rank() == rank && comm.size() == 3, "who I am");
        require(sum_of_ranks(comm) == 3, "sum");
        require(!comm.async_error(), "no error");
        comm.finalize();
        require(!comm, "finalized");
    });
}

TEST_CASE("a non-blocking init returns at once and is asked for") {
    const UniqueId id = UniqueId::generate(quick());
    Config config = quick();
    config.blocking = false;
    Communicator first(id, 0, 2, config);
    // The second rank has not come: a call has to wait.
    const auto state = first.async_error();
    REQUIRE(state);
    CHECK(state->code() == rsccl::ErrorCode::in_progress);
    CHECK_THROWS_AS(first.barrier(), rsccl::InProgress);
    on_threads(2, [&](int rank) {
        Communicator other;
        if (rank == 1) {
            other = Communicator(id, 1, 2, config);
        }
        Communicator& mine = rank == 0 ? first : other;
        while (const auto error = mine.async_error()) {
            require(error->code() == rsccl::ErrorCode::in_progress, error->what());
            std::this_thread::yield();
        }
        require(sum_of_ranks(mine) == 1, "sum");
        mine.finalize();
    });
}

TEST_CASE("a non-blocking init that is dropped or aborted ends") {
    Config config = quick();
    config.blocking = false;
    { const Communicator dropped(UniqueId::generate(quick()), 0, 2, config); }
    Communicator aborted(UniqueId::generate(quick()), 0, 2, config);
    aborted.abort("on purpose");
    CHECK_THROWS_AS(aborted.barrier(), rsccl::Error);
}

TEST_CASE("several ids share the work of serving an init") {
    std::vector<UniqueId> ids;
    for (int number = 0; number < 3; ++number) {
        ids.push_back(UniqueId::generate(quick()));
    }
    on_threads(5, [&](int rank) {
        Communicator comm = Communicator::init_scalable(ids, rank, 5, quick());
        require(comm.rank() == rank && sum_of_ranks(comm) == 10, "sum");
    });
    CHECK_THROWS_AS((void)Communicator::init_scalable({}, 0, 1, quick()), rsccl::InvalidArgument);
    CHECK_THROWS_AS((void)Communicator::init_scalable(ids, 0, 2, quick()), rsccl::InvalidArgument);
}

TEST_CASE("init_all makes ranks of one process") {
    std::vector<Communicator> comms = Communicator::init_all(2, quick());
    REQUIRE(comms.size() == 2);
    CHECK(comms[1].rank() == 1);
    CHECK(comms[1].size() == 2);
    CHECK_THROWS_AS(Communicator::init_all(0, quick()), rsccl::InvalidArgument);
    CHECK_THROWS_AS(Communicator::init_all(-3, quick()), rsccl::InvalidArgument);
    CHECK_THROWS_AS(Communicator::init_all(std::numeric_limits<int>::max(), quick()), rsccl::InvalidArgument);
}

TEST_CASE("a rank outside of its world is refused") {
    const UniqueId id = UniqueId::generate(quick());
    CHECK_THROWS_AS((void)Communicator(id, 2, 2, quick()), rsccl::InvalidArgument);
    CHECK_THROWS_AS((void)Communicator(id, -1, 2, quick()), rsccl::InvalidArgument);
    CHECK_THROWS_AS((void)Communicator(id, 0, 0, quick()), rsccl::InvalidArgument);
    CHECK_THROWS_AS((void)Communicator(id, 0, -2, quick()), rsccl::InvalidArgument);
}

TEST_CASE("who does not come is named at the deadline of init") {
    Config config = quick();
    config.init_timeout = std::chrono::milliseconds(300);
    try {
        const Communicator alone(UniqueId::generate(config), 0, 2, config);
        FAIL("rank 1 never came");
    } catch (const rsccl::Timeout& error) {
        CHECK(error.rank() == 0);
        CHECK(error.operation() == "init");
        CHECK(error.message().find('1') != std::string::npos);
    }
}

// ---- processes

namespace {

/// Processes get the same results as threads: of an all_reduce of 100,000 words, a ring of messages and a split.
int process_rank(const std::vector<std::string>&) {
    Communicator comm = Communicator::from_env(quick());
    std::vector<double> values(100'000, comm.rank() + 1.0);
    comm.all_reduce_in_place(values);
    const double wanted = comm.size() * (comm.size() + 1) / 2.0;
    ranks::require_each(values, "sum", [wanted](std::size_t) { return wanted; });
    std::array<int, 1> mine = {comm.rank()};
    std::array<int, 1> left{};
    rsccl::group([&](rsccl::Group& calls) {
        calls.on(comm).send(mine, (comm.rank() + 1) % comm.size());
        calls.on(comm).recv(left, (comm.rank() + comm.size() - 1) % comm.size());
    });
    require(left[0] == (comm.rank() + comm.size() - 1) % comm.size(), "ring");
    Communicator second = Communicator::from_env(quick());
    require(second.rank() == comm.rank(), "a second communicator of the same processes");
    Communicator half = second.by_color(second.rank() % 2);
    require(half.rank() == comm.rank() / 2, "half");
    require(comm.on_my_host().size() == comm.size(), "all on this host");
    rsccl::buffer<float> shared(50'000);
    const std::uint64_t before = comm.memory().registered;
    comm.register_buffer(shared);
    // Ranks that are alone, or share no memory, have nothing of it to share.
    const bool shares = comm.size() > 1 && std::getenv("NCCL_SHM_DISABLE") == nullptr;
    const std::uint64_t more = shares ? shared.size() * sizeof(float) : 0;
    require(comm.memory().registered >= before + more, "memory of the registered buffer");
    require(comm.memory().arenas > 0 || !shares, "memory of arenas");
    require(!comm.memory().gpu_ordinal, "memory of ranks without a GPU");
    std::fill(shared.begin(), shared.end(), 1.0F);
    comm.all_reduce_in_place(shared);
    require(shared[49'999] == static_cast<float>(comm.size()), "registered memory between processes");
    comm.finalize();
    return 0;
}

const ranks::Named process_worker("process_rank", process_rank);

/// Rank 1 exits without finalizing; the errors of the other ranks name it.
int process_dies(const std::vector<std::string>&) {
    Communicator comm = Communicator::from_env(quick());
    comm.barrier();
    if (comm.rank() == 1) {
        std::fflush(nullptr);
        _exit(0);
    }
    try {
        comm.barrier();
    } catch (const rsccl::RemoteError& error) {
        require(error.peer() == 1 && error.rank() == comm.rank(), error.what());
        Communicator rest = comm.shrink({1});
        require(rest.size() == comm.size() - 1 && sum_of_ranks(rest) == 1, "the survivors go on");
        return 0;
    }
    return 3;
}

const ranks::Named dying_worker("process_dies", process_dies);

/// Rank 1 exits while rank 0 sends it large messages: rank 0 gets an error and no signal.
int process_dies_receiving(const std::vector<std::string>&) {
    Communicator comm = Communicator::from_env(quick());
    std::vector<char> message(4 << 20);
    if (comm.rank() == 1) {
        comm.recv(rsccl::view(message.data(), 1), 0);
        std::fflush(nullptr);
        _exit(0);
    }
    comm.send(rsccl::view(message.data(), 1), 1);
    try {
        for (;;) {
            comm.send(message, 1);
        }
    } catch (const rsccl::RemoteError& error) {
        require(error.peer() == 1, error.what());
    }
    return 0;
}

const ranks::Named receiving_worker("process_dies_receiving", process_dies_receiving);

} // namespace

TEST_CASE("ranks are processes: shared memory, then sockets") {
    CHECK(ranks::processes(4, "process_rank") == std::vector<int>{0, 0, 0, 0});
    CHECK(ranks::processes(2, "process_rank", {}, {{"NCCL_SHM_DISABLE", "1"}}) == std::vector<int>{0, 0});
    CHECK(ranks::processes(1, "process_rank") == std::vector<int>{0});
}

TEST_CASE("a process that dies is named, and the others shrink") {
    CHECK(ranks::processes(3, "process_dies") == std::vector<int>{0, 0, 0});
}

TEST_CASE("a process that dies while it is sent to is an error of the sender, not its end by a signal") {
    for (int turn = 0; turn < 10; ++turn) {
        CHECK(ranks::processes(2, "process_dies_receiving", {}, {{"NCCL_SHM_DISABLE", "1"}}) == std::vector<int>{0, 0});
    }
}

TEST_CASE("no launcher: from_env says what it looked for") {
    try {
        const Communicator comm = Communicator::from_env(quick());
        FAIL("there is no launcher");
    } catch (const rsccl::InvalidArgument& error) {
        CHECK(error.message().find("RSCCL_RANK") != std::string::npos);
    }
}

// ---- stores

namespace {

/// Each of three ranks opens the store for itself.
template <class Open>
void share_id_through(Open open) {
    on_threads(3, [&](int rank) {
        auto store = open();
        const UniqueId id = rsccl::share(store, "id", rank, 3, quick());
        Communicator comm(id, rank, 3, quick());
        require(sum_of_ranks(comm) == 3, "sum");
    });
}

void contract(rsccl::Store& store) {
    store.set("a key", std::string("bytes \0 and more", 16));
    CHECK(store.get("a key").size() == 16);
    CHECK(store.add("a number", 5) == 5);
    CHECK(store.add("a number", -7) == -2);
    CHECK(store.get("a number") == "-2");
    store.wait({"a key", "a number"});
    CHECK(store.remove("a key"));
    CHECK_FALSE(store.remove("a key"));
    CHECK_THROWS_AS(store.get("a key", std::chrono::milliseconds(20)), rsccl::Timeout);
    CHECK_THROWS_AS(store.wait({"a key"}, std::chrono::milliseconds(20)), rsccl::Timeout);
    CHECK_THROWS_AS(store.set("", "x"), rsccl::InvalidArgument);
    CHECK_THROWS_AS(store.set(std::string(257, 'k'), "x"), rsccl::InvalidArgument);
    store.set("words", "no number");
    CHECK_THROWS_AS(store.add("words", 1), rsccl::InvalidUsage);
}

/// A program's own store: a HashStore that counts what is put into it.
class OwnStore : public rsccl::Store {
  public:
    int calls = 0;

  private:
    void do_set(const std::string& key, const std::string& value, Milliseconds timeout) override {
        ++calls;
        inner_.set(key, value, timeout);
    }
    std::string do_get(const std::string& key, Milliseconds timeout) override { return inner_.get(key, timeout); }
    std::int64_t do_add(const std::string& key, std::int64_t amount, Milliseconds timeout) override {
        return inner_.add(key, amount, timeout);
    }
    void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) override {
        for (const std::string& key : keys) {
            inner_.wait({key}, timeout);
        }
    }
    bool do_remove(const std::string& key, Milliseconds timeout) override { return inner_.remove(key, timeout); }

    rsccl::HashStore inner_;
};

/// A store whose `add` works, and whose other calls each throw another kind of exception.
class BrokenStore : public rsccl::Store {
  private:
    void do_set(const std::string&, const std::string&, Milliseconds) override { throw std::runtime_error("the disk is full"); }
    std::string do_get(const std::string&, Milliseconds) override { throw rsccl::Timeout("nobody answers"); }
    std::int64_t do_add(const std::string&, std::int64_t, Milliseconds) override { return 1; }
    void do_wait(const std::vector<std::string>&, Milliseconds) override {}
    bool do_remove(const std::string&, Milliseconds) override { return false; }
};

/// A store that throws an exception class of the program, and an error with a code that does not exist.
class DiskFull : public BrokenStore {
  public:
    struct Error : std::runtime_error {
        Error() : std::runtime_error("the disk is full") {}
    };

  private:
    void do_set(const std::string&, const std::string&, Milliseconds) override { throw Error(); }
    std::string do_get(const std::string&, Milliseconds) override {
        throw rsccl::Error(static_cast<rsccl::ErrorCode>(0), "no code");
    }
};

/// A store that throws a number.
class NoCount : public BrokenStore {
  private:
    std::int64_t do_add(const std::string&, std::int64_t, Milliseconds) override { throw 7; }
};

} // namespace

TEST_CASE("a store in memory, in a folder, over TCP") {
    rsccl::HashStore memory;
    contract(memory);
    rsccl::HashStore same = memory;
    CHECK(same.get("a number") == "-2");
    share_id_through([&] { return memory; });

    const ranks::Folder folder;
    rsccl::FileStore files(folder.path() + "/store");
    contract(files);
    share_id_through([&] { return rsccl::FileStore(folder.path() + "/store"); });

    rsccl::TcpStore served = rsccl::TcpStore::serve("127.0.0.1:0", quick());
    contract(served);
    rsccl::TcpStore client = rsccl::TcpStore::connect(served.address(), quick());
    CHECK(client.get("a number") == "-2");
    share_id_through([&] { return rsccl::TcpStore::connect(served.address(), quick()); });
}

TEST_CASE("a program's own store carries an id; what it throws comes through") {
    OwnStore own;
    contract(own);
    on_threads(2, [&](int rank) {
        Communicator comm = Communicator::from_store(own, rank, 2, quick());
        require(sum_of_ranks(comm) == 1, "sum");
    });
    CHECK(own.calls > 0);
    BrokenStore broken;
    try {
        rsccl::share(broken, "id", 0, 2, quick());
        FAIL("the store is broken");
    } catch (const std::exception& error) {
        CHECK(std::string(error.what()).find("the disk is full") != std::string::npos);
    }
    CHECK_THROWS_AS(rsccl::share(broken, "id", 1, 2, quick()), rsccl::Timeout);
    NoCount uncounted;
    CHECK_THROWS_AS(rsccl::share(uncounted, "id", 0, 2, quick()), int);
    DiskFull full;
    CHECK_THROWS_AS(rsccl::share(full, "id", 0, 2, quick()), DiskFull::Error);
    CHECK_THROWS_AS((void)Communicator::from_store(full, 0, 2, quick()), DiskFull::Error);
    // A code that does not exist is not taken for success.
    CHECK_THROWS_AS(rsccl::share(full, "id", 1, 2, quick()), rsccl::Error);
}

namespace {

/// Rank 2 comes when the others have failed without it, before they try again: each try ends by reasons of its own. The words are
/// the store, as `folder` or `address`, and where it is. The ranks wait for each other by other keys of the store.
int process_tries_again(const std::vector<std::string>& words) {
    const int rank = std::atoi(std::getenv("RSCCL_RANK")); // NOLINT: no other thread runs
    Config patient = quick();
    Config hasty = quick();
    hasty.init_timeout = std::chrono::milliseconds(200);
    std::unique_ptr<rsccl::Store> store;
    if (words.at(0) == "folder") {
        store = std::make_unique<rsccl::FileStore>(words.at(1));
    } else {
        store = std::make_unique<rsccl::TcpStore>(rsccl::TcpStore::connect(words.at(1), quick()));
    }
    for (int round = 0; round < 2; ++round) {
        const std::string turn = std::to_string(round);
        if (rank != 2) {
            try {
                (void)Communicator::from_store(*store, rank, 3, hasty, "again");
                throw std::runtime_error("rank 2 has not come");
            } catch (const rsccl::Timeout&) {
                store->set("failed/" + turn + std::to_string(rank), "");
            }
        }
        store->wait({"failed/" + turn + "0", "failed/" + turn + "1"});
        if (rank == 0) {
            // The others are there first, and have a moment to be told what does not concern them.
            store->wait({"begun/" + turn + "1", "begun/" + turn + "2"});
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        } else {
            store->set("begun/" + turn + std::to_string(rank), "");
        }
        Communicator comm = Communicator::from_store(*store, rank, 3, patient, "again");
        require(sum_of_ranks(comm) == 3, "sum");
        comm.finalize();
    }
    return 0;
}

const ranks::Named tries_again_worker("process_tries_again", process_tries_again);

} // namespace

TEST_CASE("a process that comes late to a try meets the others at the next one, under the same key") {
    const ranks::Folder folder;
    CHECK(ranks::processes(3, "process_tries_again", {"folder", folder.path() + "/store"}) == std::vector<int>{0, 0, 0});
    rsccl::TcpStore served = rsccl::TcpStore::serve("127.0.0.1:0", quick());
    CHECK(ranks::processes(3, "process_tries_again", {"address", served.address()}) == std::vector<int>{0, 0, 0});
}

TEST_CASE("stores that cannot be are refused") {
    const ranks::Folder folder;
    CHECK_THROWS_AS(rsccl::FileStore(folder.path() + "/no/such/parent"), rsccl::SystemError);
    REQUIRE(chmod(folder.path().c_str(), 0777) == 0);
    CHECK_THROWS_AS(rsccl::FileStore{folder.path()}, rsccl::InvalidArgument);
    CHECK_THROWS_AS(rsccl::TcpStore::serve("no address", quick()), rsccl::InvalidArgument);
    CHECK_THROWS_AS(rsccl::TcpStore::serve("192.0.2.1:0", quick()), rsccl::SystemError);
    rsccl::HashStore store;
    CHECK_THROWS_AS(rsccl::share(store, "id", 2, 2, quick()), rsccl::InvalidArgument);
}

// ---- configuration

TEST_CASE("every field of the configuration arrives, and a bad one is named with what is allowed") {
    using Set = void (*)(Config&);
    struct Field {
        const char* variable;
        Set good;
        Set bad;
    };
    const std::array<Field, 45> fields = {{
        {"RSCCL_TIMEOUT_MS", [](Config& c) { c.timeout = std::chrono::seconds(0); }, [](Config& c) { c.timeout = std::chrono::milliseconds(-1); }},
        {"RSCCL_INIT_TIMEOUT_MS", [](Config& c) { c.init_timeout = std::chrono::seconds(9); }, [](Config& c) { c.init_timeout = std::chrono::milliseconds(5); }},
        {"RSCCL_SPIN_US", [](Config& c) { c.spin = std::chrono::microseconds(5); }, [](Config& c) { c.spin = std::chrono::microseconds(-5); }},
        {"NCCL_ALGO", [](Config& c) { c.algo = "Ring"; }, [](Config& c) { c.algo = "Circle"; }},
        {"NCCL_PROTO", [](Config& c) { c.proto = "Simple"; }, [](Config& c) { c.proto = "Difficult"; }},
        {"NCCL_MIN_NCHANNELS", [](Config& c) { c.min_channels = 1; }, [](Config& c) { c.min_channels = 100000; }},
        {"NCCL_MAX_NCHANNELS", [](Config& c) { c.max_channels = 2; }, [](Config& c) { c.max_channels = 0; }},
        {"NCCL_BUFFSIZE", [](Config& c) { c.buffer_bytes = 1 << 20; }, [](Config& c) { c.buffer_bytes = 1; }},
        {"RSCCL_SCRATCH_BYTES", [](Config& c) { c.scratch_bytes = 1 << 21; }, [](Config& c) { c.scratch_bytes = 1; }},
        {"RSCCL_PROCESSORS", [](Config& c) { c.processors = "0-3,8"; }, [](Config& c) { c.processors = "8-3"; }},
        {"RSCCL_SWITCH_FILE", nullptr, [](Config& c) { c.switch_file = "/no/such/file"; }},
        {"NCCL_P2P_LEVEL", [](Config& c) { c.p2p_level = "NVL"; }, [](Config& c) { c.p2p_level = "near"; }},
        {"RSCCL_TUNE_FILE", nullptr, [](Config& c) { c.tune_file = "/no/such/file"; }},
        {"RSCCL_TEAM_RANKS", [](Config& c) { c.team_ranks = 8; }, [](Config& c) { c.team_ranks = 0; }},
        {"RSCCL_NET_STRICT", [](Config& c) { c.net_strict = true; }, nullptr},
        {"NCCL_NET_PLUGIN", [](Config& c) { c.net_plugin = "aws-ofi"; }, nullptr},
        {"NCCL_NET", [](Config& c) { c.net = "Socket"; }, [](Config& c) { c.net_strict = true, c.net = "Pigeon"; }},
        {"NCCL_IB_DISABLE", [](Config& c) { c.ib_disable = true; }, nullptr},
        {"NCCL_IB_HCA", [](Config& c) { c.ib_hca = "mlx5"; }, nullptr},
        {"NCCL_IB_GID_INDEX", [](Config& c) { c.ib_gid_index = 3; }, [](Config& c) { c.ib_gid_index = 256; }},
        {"NCCL_IB_ADDR_FAMILY", [](Config& c) { c.ib_addr_family = "AF_INET6"; }, [](Config& c) { c.ib_addr_family = "AF_UNIX"; }},
        {"NCCL_IB_ROCE_VERSION_NUM", [](Config& c) { c.ib_roce_version_num = 1; }, [](Config& c) { c.ib_roce_version_num = 3; }},
        {"NCCL_IB_TIMEOUT", [](Config& c) { c.ib_timeout = 18; }, [](Config& c) { c.ib_timeout = 32; }},
        {"NCCL_IB_RETRY_CNT", [](Config& c) { c.ib_retry_cnt = 6; }, [](Config& c) { c.ib_retry_cnt = 8; }},
        {"NCCL_IB_SL", [](Config& c) { c.ib_sl = 3; }, [](Config& c) { c.ib_sl = 16; }},
        {"NCCL_IB_TC", [](Config& c) { c.ib_tc = 106; }, [](Config& c) { c.ib_tc = 256; }},
        {"NCCL_IB_PKEY", [](Config& c) { c.ib_pkey = 1; }, [](Config& c) { c.ib_pkey = 65536; }},
        {"NCCL_IB_QPS_PER_CONNECTION", [](Config& c) { c.ib_qps_per_connection = 2; }, [](Config& c) { c.ib_qps_per_connection = 0; }},
        {"RSCCL_ENCRYPT", [](Config& c) { c.encrypt = "1"; }, [](Config& c) { c.encrypt = "Enigma"; }},
        {"RSCCL_STORE", [](Config& c) { c.store = "tcp://localhost:1"; }, [](Config& c) { c.store = "gopher://x"; }},
        {"RSCCL_RAILS", [](Config& c) { c.rails = "eth0=0"; }, [](Config& c) { c.rails = "eth0"; }},
        {"RSCCL_NIC_TIMEOUT", [](Config& c) { c.nic_timeout = std::chrono::seconds(3); }, [](Config& c) { c.nic_timeout = std::chrono::seconds(1); }},
        {"RSCCL_TCP_CONGESTION", [](Config& c) { c.tcp_congestion = "reno"; }, [](Config& c) { c.tcp_congestion = "no such control"; }},
        {"NCCL_SOCKET_FAMILY", [](Config& c) { c.socket_family = "AF_INET"; }, [](Config& c) { c.socket_family = "AF_UNIX"; }},
        {"RSCCL_SOCKET_DIR", [](Config& c) { c.socket_dir = "/tmp"; }, [](Config& c) { c.socket_dir = "/no/such/folder"; }},
        {"RSCCL_PORT_RANGE", [](Config& c) { c.port_range = "20000-29999"; }, [](Config& c) { c.port_range = "9-8"; }},
        {"NCCL_SOCKET_NTHREADS", [](Config& c) { c.socket_threads = 1; }, [](Config& c) { c.socket_threads = 1000; }},
        {"NCCL_NSOCKS_PERTHREAD", [](Config& c) { c.sockets_per_thread = 2; }, [](Config& c) { c.sockets_per_thread = 1000; }},
        {"NCCL_SOCKET_RETRY_CNT", [](Config& c) { c.socket_retries = 3; }, nullptr},
        {"NCCL_SOCKET_RETRY_SLEEP_MSEC", [](Config& c) { c.socket_retry_sleep = std::chrono::milliseconds(5); }, [](Config& c) { c.socket_retry_sleep = std::chrono::milliseconds(-5); }},
        {"NCCL_DEBUG", [](Config& c) { c.debug = "WARN"; }, [](Config& c) { c.debug = "CHATTY"; }},
        {"NCCL_DEBUG_SUBSYS", [](Config& c) { c.debug_subsystems = "INIT,NET"; }, [](Config& c) { c.debug_subsystems = "GOSSIP"; }},
        {"NCCL_DEBUG_TIMESTAMP_LEVELS", [](Config& c) { c.debug_time_levels = "WARN,INFO"; }, [](Config& c) { c.debug_time_levels = "SOON"; }},
        {"RSCCL_SECRET", [](Config& c) { c.secret = "a secret of ours"; }, [](Config& c) { c.secret = ""; }},
        {"RSCCL_SECRET_FILE", nullptr, [](Config& c) { c.secret_file = "/no/such/file"; }},
    }};
    for (const Field& field : fields) {
        const std::string variable = field.variable;
        CAPTURE(variable);
        if (field.good != nullptr) {
            Config config = quick();
            field.good(config);
            CHECK_NOTHROW(Communicator::init_all(1, config));
        }
        if (field.bad != nullptr) {
            Config config = quick();
            field.bad(config);
            try {
                Communicator::init_all(1, config);
                FAIL_CHECK("accepted");
            } catch (const rsccl::Error& error) {
                CHECK(std::string(error.what()).find(variable) != std::string::npos);
            }
        }
    }
    Config nowhere = quick();
    nowhere.comm_id = "nowhere";
    CHECK_THROWS_AS((void)UniqueId::generate(nowhere), rsccl::InvalidArgument);
    Config rest = quick();
    rest.name = "named";
    rest.reproducible = true;
    rest.strict_filters = true;
    rest.cohort = "split";
    rest.runtime_connect = false;
    rest.host_id = "this host";
    rest.p2p_disable = true;
    rest.p2p_direct_disable = true;
    rest.p2p_use_cuda_memcpy = true;
    rest.p2p_read_enable = true;
    rest.mnnvl_enable = 1;
    rest.p2p_ll_threshold_bytes = 4096;
    rest.shm_disable = true;
    rest.cma_disable = true;
    rest.cma_force = true;
    rest.cumem_enable = false;
    rest.net_gdr_read = false;
    rest.dmabuf_enable = false;
    rest.ras_enable = false;
    rest.socket_receive_bytes = 1 << 18;
    rest.socket_send_bytes = 1 << 18;
    rest.debug_time_format = "%T ";
    ranks::run(2, rest, [](Communicator& comm) { require(sum_of_ranks(comm) == 1, "sum"); });
    rest.min_channels = 4;
    rest.max_channels = 2;
    CHECK_THROWS_AS(Communicator::init_all(1, rest), rsccl::InvalidArgument);
}

TEST_CASE("ranks of different settings are told so") {
    const UniqueId id = UniqueId::generate(quick());
    std::array<int, 2> mismatches{};
    on_threads(2, [&](int rank) {
        Config config = quick();
        config.reproducible = rank == 0;
        try {
            const Communicator comm(id, rank, 2, config);
        } catch (const rsccl::Mismatch& error) {
            mismatches[static_cast<std::size_t>(rank)] += error.peer() == 1 - rank ? 1 : 0;
        }
    });
    CHECK(mismatches == std::array<int, 2>{1, 1});
}

// ---- parts of a communicator

TEST_CASE("split, by_color, on_my_host, cross, placement, shrink") {
    ranks::run(5, [](Communicator& comm) {
        const int rank = comm.rank();
        std::optional<int> color;
        if (rank != 4) {
            color = rank % 2;
        }
        std::optional<Communicator> half = comm.split(color, -rank);
        require(half.has_value() == (rank != 4), "no color, no communicator");
        if (half) {
            require(half->size() == 2 && half->rank() == 1 - rank / 2, "ordered by key");
            if (rank == 2) { // the others take no part
                require(half->placement().local_size == 2 && half->placement().local_rank == 0, "a child's");
            }
            require(sum_of_ranks(*half) == 1, "sum");
        }
        Communicator thirds = comm.by_color(rank / 2);
        require(thirds.size() == (rank == 4 ? 1 : 2) && thirds.rank() == rank % 2, "by color");
        try {
            (void)comm.split(-1);
            require(false, "a negative color");
        } catch (const rsccl::InvalidArgument&) {
        }
        Communicator local = comm.on_my_host();
        require(local.size() == 5 && local.rank() == rank, "one host");
        Communicator cross = comm.cross();
        require(cross.size() == 1 && cross.rank() == 0, "one host: nobody else has my local rank");
        const rsccl::Placement placement = comm.placement();
        require(placement.hosts == 1 && placement.host == 0, "hosts");
        require(placement.local_rank == rank && placement.local_size == 5, "local rank");
        require(placement.leader_rank.has_value() == (rank == 0), "leaders");
        require(!placement.host_name.empty(), "host name");
        require(placement.printed.find(placement.host_name) != std::string::npos, placement.printed);
        require(comm.placement().local_rank == rank, "answered again");
        // A child outlives its parent.
        if (rank != 2) {
            Communicator rest = comm.shrink({2});
            comm.finalize();
            if (rank == 3) { // alone
                require(rest.placement().local_size == 4 && rest.placement().local_rank == 2, "the survivors'");
            }
            require(rest.size() == 4 && sum_of_ranks(rest) == 6, "shrunk");
        } else {
            for (const std::vector<int>& wrong : {std::vector<int>{}, std::vector<int>{2}, std::vector<int>{5}, std::vector<int>{-1}}) {
                try {
                    (void)comm.shrink(wrong);
                    require(false, "a wrong list");
                } catch (const rsccl::InvalidArgument&) {
                }
            }
        }
        require(sum_of_ranks(thirds) == (rank == 4 ? 0 : 1), "a child of a parent that is gone");
    });
}

// ---- the log

namespace {

/// Runs in a process of its own, because a process reads the log level once.
int log_to_callback(const std::vector<std::string>&) {
    std::mutex guard;
    std::vector<rsccl::LogLine> lines;
    rsccl::set_log_callback([&](const rsccl::LogLine& line) {
        const std::lock_guard<std::mutex> lock(guard);
        lines.push_back(line);
        throw std::runtime_error("dropped: a log must not stop what it is about");
    });
    Config config = quick();
    config.debug = "INFO";
    config.debug_subsystems = "ALL";
    const auto work = [&] { ranks::run(2, config, [](Communicator& comm) { require(sum_of_ranks(comm) == 1, "sum"); }); };
    work();
    rsccl::set_log_callback({});
    std::set<std::optional<int>> complete;
    for (const rsccl::LogLine& line : lines) {
        require(line.printed.find(line.text) != std::string::npos && line.printed.back() == '\n', line.printed);
        if (line.text.find("Init COMPLETE") != std::string::npos) {
            require(line.level == rsccl::LogLevel::info, line.text);
            complete.insert(line.rank);
        }
    }
    require(complete == std::set<std::optional<int>>{0, 1}, "one line of each rank");
    const std::size_t before = lines.size();
    work();
    require(lines.size() == before, "the callback is gone");
    return 0;
}

const ranks::Named logging_worker("log_to_callback", log_to_callback);

} // namespace

TEST_CASE("log lines come to a callback, with level and rank") {
    const ranks::Folder folder;
    // Lines that are logged after the callback was removed go to the file.
    CHECK(ranks::processes(1, "log_to_callback", {}, {{"NCCL_DEBUG_FILE", folder.path() + "/log"}}) == std::vector<int>{0});
    std::ifstream file(folder.path() + "/log");
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    CHECK(text.find("Init COMPLETE") != std::string::npos);
}
