// Memory of the host that ranks can share: what is born so, and what is registered where it lies.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <doctest/doctest.h>

#include "ranks.hpp"

using rsccl::Communicator;
using rsccl::Pins;
using rsccl::ReduceOp;

namespace {

constexpr std::size_t COUNT = 300'001;

void require(bool fine, const std::string& what) {
    if (!fine) {
        throw std::logic_error(what);
    }
}

// Of an all-reduce over `ranks`.
template <class C>
void fill(C& values, int rank) {
    for (std::size_t place = 0; place < values.size(); ++place) {
        values[place] = static_cast<float>(place % 1000) + static_cast<float>(rank);
    }
}

template <class C>
void require_sums(const C& values, int ranks, const std::string& what) {
    const auto all = static_cast<float>(ranks);
    for (std::size_t place = 0; place < values.size(); ++place) {
        require(values[place] == all * static_cast<float>(place % 1000) + all * (all - 1.0F) / 2.0F, what + ", element " + std::to_string(place));
    }
}

// As processes reach each other: threads need no registration.
const rsccl::Config apart = ranks::by(ranks::Path::shared_memory);

bool is_debug_build() {
    // cpp/test.sh builds the library so, but for --all.
    const char* profile = std::getenv("profile");
    return profile != nullptr && std::strcmp(profile, "unoptimised") == 0;
}

} // namespace

TEST_CASE("memory of the program is registered where it lies, used in calls of every kind, and given back") {
    ranks::run(3, apart, [](Communicator& comm) {
        std::vector<float> values(COUNT);
        fill(values, comm.rank());
        {
            auto memory = rsccl::register_memory(values.data(), values.size());
            require(memory.refusal().empty(), memory.refusal());
            require(memory.data() == values.data() && memory.size() == COUNT && memory.end() - memory.begin() == COUNT, "the same memory");
            require(memory[COUNT - 1] == values[COUNT - 1] && memory[1234] == 234.0F + static_cast<float>(comm.rank()), "content stays");
            comm.register_buffer(memory);
            for (int turn = 0; turn < 3; ++turn) {
                fill(memory, comm.rank());
                comm.all_reduce_in_place(memory);
                require_sums(values, 3, "a call that takes the registration");
                fill(values, comm.rank());
                comm.all_reduce_in_place(values);
                require_sums(memory, 3, "a call that takes the vector");
            }
            fill(memory, comm.rank());
            comm.start().all_reduce_in_place(memory).wait();
            require_sums(values, 3, "a request");
            auto sum = comm.prepare().all_reduce_in_place(memory);
            for (int turn = 0; turn < 3; ++turn) {
                fill(memory, comm.rank());
                sum.run();
                require_sums(values, 3, "a persistent call");
            }
            fill(memory, comm.rank());
            std::vector<float> came(COUNT);
            rsccl::group([&](rsccl::Group& calls) {
                calls.on(comm).send(memory, (comm.rank() + 1) % 3);
                calls.on(comm).recv(came, (comm.rank() + 2) % 3);
            });
            require(came[7] == 7.0F + static_cast<float>((comm.rank() + 2) % 3), "a group");
            comm.barrier();
            comm.deregister_buffer(memory);
            rsccl::registered<float> moved = std::move(memory);
            require(memory.empty() && !memory.refusal().empty() && moved.refusal().empty(), "moved from"); // NOLINT: that is what is tested
        }
        values.resize(2 * COUNT);
        values.resize(COUNT);
        fill(values, comm.rank());
        comm.all_reduce_in_place(values);
        require_sums(values, 3, "given back");
        comm.finalize();
    });
}

TEST_CASE("bytes of malloc are registered, and what an exception leaves is given back") {
    ranks::run(2, apart, [](Communicator& comm) {
        constexpr std::size_t bytes = 1'000'003;
        struct Free {
            void operator()(void* memory) const noexcept { std::free(memory); }
        };
        const std::unique_ptr<void, Free> memory(std::malloc(bytes));
        require(memory != nullptr, "no memory");
        std::memset(memory.get(), 1 + comm.rank(), bytes);
        try {
            rsccl::registered<std::byte> shared = rsccl::register_memory(memory.get(), bytes);
            require(shared.refusal().empty() && shared.size() == bytes, shared.refusal());
            comm.register_buffer(shared);
            comm.broadcast(shared, 1);
            throw std::runtime_error("the solver has diverged");
        } catch (const std::runtime_error&) {
            // The destructor has run.
        }
        const std::vector<unsigned char> all(static_cast<unsigned char*>(memory.get()), static_cast<unsigned char*>(memory.get()) + bytes);
        require(all == std::vector<unsigned char>(bytes, 2), "what the broadcast brought is there");
        comm.finalize();
    });
}

TEST_CASE("what must stay where it is says why, and works as other memory does") {
    static std::array<char, 3 * 65536> constant = {1}; // initialised data lie in the program's file
    const auto stays = rsccl::register_memory(constant.data(), constant.size());
    CHECK(stays.refusal().find("mapped from a file") != std::string::npos);
    CHECK_THROWS_AS((void)rsccl::register_memory(static_cast<float*>(nullptr), 8), rsccl::InvalidArgument);
    CHECK_THROWS_AS((void)rsccl::register_memory(constant.data(), ~std::size_t{0} / 2 + 2), rsccl::InvalidArgument);
    std::vector<double> several(4);
    CHECK_THROWS_AS((void)rsccl::register_memory(several.data(), ~std::size_t{0} / 4), rsccl::InvalidArgument);
    ranks::run(2, apart, [](Communicator& comm) {
        std::vector<float> none(1);
        auto nothing = rsccl::register_memory(none.data(), std::size_t{0});
        require(!nothing.refusal().empty(), "no elements");
        comm.register_buffer(nothing);
        std::vector<float> values(COUNT);
        fill(values, comm.rank());
        comm.all_reduce_in_place(values);
        require_sums(values, 2, "beside memory that has stayed");
        comm.deregister_buffer(nothing);
        const auto vouched = rsccl::register_memory(values.data(), values.size(), Pins::none_here);
        require(vouched.refusal().empty(), vouched.refusal());
        comm.finalize();
    });
}

TEST_CASE("a registration whose memory was freed gives nothing back to what lies there now") {
    constexpr std::size_t bytes = 64 * 4096;
    const auto map = [](void* at, int flags) { return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0); };
    void* const memory = map(nullptr, 0);
    REQUIRE(memory != MAP_FAILED);
    {
        const auto shared = rsccl::register_memory(memory, bytes);
        REQUIRE(shared.refusal() == "");
        // Another part of the program has the addresses by now.
        REQUIRE(map(memory, MAP_FIXED) == memory);
        std::memset(memory, 7, bytes);
    }
    const auto* const all = static_cast<const unsigned char*>(memory);
    CHECK(std::vector<unsigned char>(all, all + bytes) == std::vector<unsigned char>(bytes, 7));
    munmap(memory, bytes);
}

TEST_CASE("in a debug build a call in memory that was freed or moved is an error on all ranks") {
    if (!is_debug_build()) {
        MESSAGE("skipped: the library was built for release, which does not look");
        return;
    }
    const ranks::Errors errors = ranks::errors_of(2, apart, [](Communicator& comm) {
        constexpr std::size_t bytes = 256 * 4096;
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(memory != MAP_FAILED, "no memory");
        auto shared = rsccl::register_memory(static_cast<float*>(memory), bytes / sizeof(float));
        comm.register_buffer(shared);
        comm.all_reduce_in_place(shared);
        if (comm.rank() == 1) {
            // As an allocator that moves a block does.
            void* const there = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            require(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there, "mremap");
            require(mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory, "mmap");
        }
        comm.all_reduce_in_place(shared);
    });
    const auto text = [](const std::exception_ptr& error) {
        try {
            std::rethrow_exception(error);
        } catch (const rsccl::Error& told) {
            return std::string(told.what());
        }
    };
    REQUIRE(errors[1]);
    CHECK(text(errors[1]).find("freed or resized while it was registered") != std::string::npos);
    CHECK_THROWS_AS(std::rethrow_exception(errors[1]), rsccl::InvalidUsage);
    REQUIRE(errors[0]);
    CHECK(text(errors[0]).find("freed or resized") != std::string::npos);
}

TEST_CASE("containers of a pool are born shared: vectors with the allocator, and std::pmr") {
    ranks::run(3, apart, [](Communicator& comm) {
        rsccl::pool pool(std::size_t{64} << 20);
        comm.register_buffer(pool);
        // No two ranks have their blocks at the same places.
        const std::vector<char, rsccl::allocator<char>> elsewhere(1000U * static_cast<unsigned>(1 + comm.rank()), pool);
        std::vector<float, rsccl::allocator<float>> values(pool);
        for (std::size_t place = 0; place < COUNT; ++place) {
            values.push_back(0);
        }
        for (int turn = 0; turn < 3; ++turn) {
            fill(values, comm.rank());
            comm.all_reduce_in_place(values);
            require_sums(values, 3, "with the allocator");
        }
        std::pmr::vector<float> resource(COUNT, &pool);
        fill(resource, comm.rank());
        comm.all_reduce_in_place(resource);
        require_sums(resource, 3, "a std::pmr vector");
        std::pmr::vector<std::pmr::vector<float>> rows(&pool);
        for (std::size_t row = 0; row < 100; ++row) {
            rows.emplace_back(500 + row);
            fill(rows.back(), comm.rank());
            comm.all_reduce_in_place(rows.back());
            require_sums(rows.back(), 3, "many small ones");
        }
        // The count goes before the communicator's end, and what was copied with another allocator is elsewhere.
        const std::vector<float> copy(values.begin(), values.end());
        require_sums(copy, 3, "a copy");
        comm.deregister_buffer(pool);
        fill(values, comm.rank());
        comm.all_reduce_in_place(values);
        require_sums(values, 3, "deregistered");
        comm.finalize();
    });
}

TEST_CASE("a pool is bounded, uses blocks again, and its containers keep it") {
    using Vector = std::vector<int, rsccl::allocator<int>>;
    std::optional<rsccl::pool> pool(std::in_place, 1'000'000);
    CHECK(pool->capacity() >= 1'000'000);
    CHECK(pool->in_use() == 0);
    {
        const Vector most(200'000, *pool);
        CHECK_THROWS_AS(Vector(100'000, *pool), std::bad_alloc);
        CHECK_THROWS_AS((void)rsccl::allocator<int>(*pool).allocate(~std::size_t{0} / 2), std::bad_alloc);
    }
    Vector kept(200'000, 5, *pool);
    Vector moved(*pool);
    moved = std::move(kept);
    Vector other(3, 1, *pool);
    std::swap(moved, other);
    CHECK(rsccl::allocator<int>(*pool) == rsccl::allocator<double>(*pool));
    CHECK(rsccl::allocator<int>(*pool) != rsccl::allocator<int>(rsccl::pool(4096)));
    CHECK_FALSE(pool->is_equal(*std::pmr::new_delete_resource()));
    CHECK_THROWS_AS((void)pool->allocate(64, 1 << 20), std::bad_alloc);
    void* const aligned = pool->allocate(100, 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(aligned) % 4096 == 0);
    pool->deallocate(aligned, 100, 4096);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&pool, thread] {
            for (int turn = 0; turn < 200; ++turn) {
                Vector mine(static_cast<std::size_t>(turn + 1), thread, *pool);
                mine.push_back(thread);
                require(mine == Vector(mine.size(), thread, *pool), "blocks of another thread");
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    pool->trim();
    pool.reset();
    CHECK(other.size() == 200'000);
    CHECK(std::count(other.begin(), other.end(), 5) == 200'000);
    CHECK_THROWS_AS(rsccl::pool(0), rsccl::InvalidArgument);
}
