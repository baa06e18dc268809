// Every collective with exact values: all types, all operators, all forms, by pointers, shared memory and sockets.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

#include "ranks.hpp"

using ranks::Path;
using ranks::require;
using ranks::require_each;
using rsccl::Communicator;
using rsccl::DataType;
using rsccl::ReduceOp;

namespace {

constexpr int four = 4;

/// A number that every element type holds exactly.
template <class T>
T number(int value) {
    return static_cast<T>(static_cast<float>(value));
}

/// What rank contributes at `place` before it is scaled for an operator: 0 or 1, differently on each rank.
int bit(int rank, std::size_t place) { return static_cast<int>((place + place / 3 + static_cast<std::size_t>(rank) * 5) % 7 % 2); }

/// An operator, the inputs that keep its results exact in 8 bits, and the result.
struct Reduction {
    const char* name;
    ReduceOp op;
    int (*input)(int bit);
    int (*result)(int sum_of_bits);
    bool integers_only;
};

const std::array<Reduction, 8> reductions = {{
    {"sum", ReduceOp::sum, [](int bit) { return bit; }, [](int sum) { return sum; }, false},
    {"prod", ReduceOp::prod, [](int bit) { return 1 + bit; }, [](int sum) { return 1 << sum; }, false},
    {"min", ReduceOp::min, [](int bit) { return 3 - bit; }, [](int sum) { return sum > 0 ? 2 : 3; }, false},
    {"max", ReduceOp::max, [](int bit) { return 5 + bit; }, [](int sum) { return sum > 0 ? 6 : 5; }, false},
    {"avg", ReduceOp::avg, [](int bit) { return four * bit; }, [](int sum) { return sum; }, false},
    {"band", ReduceOp::band, [](int bit) { return 6 + bit; }, [](int sum) { return sum == four ? 7 : 6; }, true},
    {"bor", ReduceOp::bor, [](int bit) { return 8 + bit; }, [](int sum) { return sum > 0 ? 9 : 8; }, true},
    {"bxor", ReduceOp::bxor, [](int bit) { return 4 * bit; }, [](int sum) { return sum % 2 * 4; }, true},
}};

int sum_of_bits(int ranks, std::size_t place) {
    int sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        sum += bit(rank, place);
    }
    return sum;
}

template <class T>
void reduce_every_way(Communicator& comm, const Reduction& reduction, std::size_t count) {
    const std::string what = std::string(rsccl::name_of(rsccl::data_type_of<T>::value)) + " " + reduction.name;
    std::vector<T> send(count);
    for (std::size_t place = 0; place < count; ++place) {
        send[place] = number<T>(reduction.input(bit(comm.rank(), place)));
    }
    const auto wanted = [&](std::size_t place) { return number<T>(reduction.result(sum_of_bits(four, place))); };

    std::vector<T> recv(count);
    comm.all_reduce(send, recv, reduction.op);
    require_each(recv, what, wanted);

    std::vector<T> both = send;
    comm.all_reduce_in_place(both, reduction.op);
    require_each(both, what + " in place", wanted);

    std::vector<T> erased(count);
    comm.all_reduce(send.data(), erased.data(), count, rsccl::data_type_of<T>::value, reduction.op);
    require_each(erased, what + " by pointer", wanted);
}

} // namespace

#define EVERY_TYPE                                                                                                               \
    std::int8_t, std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, rsccl::float16, float, double,          \
        rsccl::bfloat16, rsccl::float8_e4m3, rsccl::float8_e5m2

TEST_CASE_TEMPLATE("all_reduce: every operator on every type", T, EVERY_TYPE) {
    constexpr bool floats = !std::is_integral_v<T>;
    ranks::run(four, [](Communicator& comm) {
        for (const Reduction& reduction : reductions) {
            for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{33}, std::size_t{9001}}) {
                if (!(floats && reduction.integers_only)) {
                    reduce_every_way<T>(comm, reduction, count);
                }
            }
        }
    });
}

TEST_CASE_TEMPLATE("bitwise operators refuse floats, and the communicator goes on", T, float, double, rsccl::bfloat16) {
    ranks::run(2, [](Communicator& comm) {
        std::array<T, 3> buffer{};
        for (const ReduceOp& op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
            try {
                comm.all_reduce_in_place(buffer, op);
                require(false, "no error");
            } catch (const rsccl::InvalidArgument& error) {
                require(error.rank() == comm.rank(), error.what());
            }
        }
        comm.barrier();
    });
}

TEST_CASE("premul_sum: each rank has a scalar of its own, of any type") {
    ranks::run(3, [](Communicator& comm) {
        std::vector<double> doubles(100, 2.0);
        comm.all_reduce_in_place(doubles, ReduceOp::premul_sum(0.5 * (comm.rank() + 1)));
        require_each(doubles, "double", [](std::size_t) { return 6.0; });
        std::vector<std::int32_t> integers(5000, -3);
        comm.all_reduce_in_place(integers, ReduceOp::premul_sum(comm.rank() - 1));
        require_each(integers, "int32", [](std::size_t) { return 0; });
        std::array<std::uint64_t, 1> wide = {1};
        comm.all_reduce_in_place(wide, ReduceOp::premul_sum(~std::uint64_t{0}));
        require(wide[0] == ~std::uint64_t{0} - 2, "three times the greatest number wraps");
        std::array<rsccl::float16, 2> halves = {rsccl::float16(4.0F), rsccl::float16(8.0F)};
        comm.all_reduce_in_place(halves, ReduceOp::premul_sum(rsccl::float16(0.25F)));
        require(float(halves[0]) == 3.0F && float(halves[1]) == 6.0F, "half");
    });
}

TEST_CASE("averages of integers round towards zero, sums wrap, a NaN stays") {
    ranks::run(2, [](Communicator& comm) {
        std::array<std::int32_t, 2> odd = {comm.rank() == 0 ? 4 : 3, comm.rank() == 0 ? -4 : -3};
        comm.all_reduce_in_place(odd, ReduceOp::avg);
        require(odd[0] == 3 && odd[1] == -3, "7 / 2 and -7 / 2");
        std::array<std::uint8_t, 1> bytes = {200};
        comm.all_reduce_in_place(bytes, ReduceOp::sum);
        require(bytes[0] == 144, "400 is 144 in a byte");
        std::array<float, 2> numbers = {comm.rank() == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0F, 1.0F};
        comm.all_reduce_in_place(numbers, ReduceOp::max);
        require(std::isnan(numbers[0]) && numbers[1] == 1.0F, "the NaN of rank 0 comes to all");
    });
}

namespace {

int word(int rank, std::size_t place) { return 1000 * (rank + 1) + static_cast<int>(place % 997); }

std::vector<int> words(int rank, std::size_t from, std::size_t count) {
    std::vector<int> made(count);
    for (std::size_t place = 0; place < count; ++place) {
        made[place] = word(rank, from + place);
    }
    return made;
}

int word_sum(int ranks, std::size_t place) {
    int sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        sum += word(rank, place);
    }
    return sum;
}

/// The collectives that move blocks between ranks: out of place, in place, and by pointers.
void blocks(Communicator& comm, std::size_t count) {
    const int me = comm.rank();
    const auto ranks = static_cast<std::size_t>(comm.size());
    const auto rank = static_cast<std::size_t>(me);
    const auto from = [count](std::size_t place) { return static_cast<int>(place / count); };
    const auto gathered = [&](std::size_t place) { return word(from(place), place % count); };

    const std::vector<int> mine = words(me, 0, count);
    std::vector<int> all(count * ranks, -1);
    comm.all_gather(mine, all);
    require_each(all, "all_gather", gathered);
    std::vector<int> inside(count * ranks, -1);
    std::copy(mine.begin(), mine.end(), inside.begin() + static_cast<std::ptrdiff_t>(count * rank));
    comm.all_gather_in_place(inside);
    require_each(inside, "all_gather in place", gathered);
    std::fill(all.begin(), all.end(), -1);
    comm.all_gather(mine.data(), all.data(), count, DataType::int32);
    require_each(all, "all_gather by pointer", gathered);

    const std::vector<int> everything = words(me, 0, count * ranks);
    std::vector<int> part(count, -1);
    const auto scattered = [&](std::size_t place) { return word_sum(comm.size(), count * rank + place); };
    comm.reduce_scatter(everything, part);
    require_each(part, "reduce_scatter", scattered);
    std::vector<int> reduced = everything;
    comm.reduce_scatter_in_place(reduced, ReduceOp::sum);
    require_each(rsccl::view(reduced.data() + count * rank, count), "reduce_scatter in place", scattered);
    std::fill(part.begin(), part.end(), -1);
    comm.reduce_scatter(everything.data(), part.data(), count, DataType::int32, ReduceOp::sum);
    require_each(part, "reduce_scatter by pointer", scattered);

    std::vector<int> turned(count * ranks, -1);
    const auto swapped = [&](std::size_t place) { return word(from(place), count * rank + place % count); };
    comm.all_to_all(everything, turned);
    require_each(turned, "all_to_all", swapped);
    std::fill(turned.begin(), turned.end(), -1);
    comm.all_to_all(everything.data(), turned.data(), count, DataType::int32);
    require_each(turned, "all_to_all by pointer", swapped);
}

/// The collectives that have a root, with each rank as root.
void rooted(Communicator& comm, std::size_t count, int root) {
    const int me = comm.rank();
    const bool is_root = me == root;
    const auto ranks = static_cast<std::size_t>(comm.size());
    const std::vector<int> mine = words(me, 0, count);
    const auto roots = [root](std::size_t place) { return word(root, place); };

    std::vector<int> both = mine;
    comm.broadcast(both, root);
    require_each(both, "broadcast", roots);
    std::vector<int> recv(count, -1);
    // Other ranks may pass any input: it is not read.
    comm.broadcast_into(is_root ? mine : std::vector<int>{}, recv, root);
    require_each(recv, "broadcast_into", roots);
    std::fill(recv.begin(), recv.end(), -1);
    comm.broadcast(is_root ? mine.data() : nullptr, recv.data(), count, DataType::int32, root);
    require_each(recv, "broadcast by pointer", roots);

    const auto sums = [&](std::size_t place) { return word_sum(comm.size(), place); };
    std::vector<int> sum(is_root ? count : 0, -1);
    comm.reduce(mine, sum, ReduceOp::sum, root);
    require_each(sum, "reduce", sums);
    both = mine;
    comm.reduce_in_place(both, ReduceOp::sum, root);
    require_each(both, "reduce in place", [&](std::size_t place) { return is_root ? sums(place) : word(me, place); });
    std::fill(sum.begin(), sum.end(), -1);
    comm.reduce(mine.data(), is_root ? sum.data() : nullptr, count, DataType::int32, ReduceOp::sum, root);
    require_each(sum, "reduce by pointer", sums);

    std::vector<int> all(is_root ? count * ranks : 0, -1);
    const auto gathered = [&](std::size_t place) { return word(static_cast<int>(place / count), place % count); };
    comm.gather(mine, all, root);
    require_each(all, "gather", gathered);
    std::fill(all.begin(), all.end(), -1);
    comm.gather(mine.data(), is_root ? all.data() : nullptr, count, DataType::int32, root);
    require_each(all, "gather by pointer", gathered);

    const std::vector<int> parts = is_root ? words(root, 0, count * ranks) : std::vector<int>{};
    const auto handed = [&](std::size_t place) { return word(root, count * static_cast<std::size_t>(me) + place); };
    std::fill(recv.begin(), recv.end(), -1);
    comm.scatter(parts, recv, root);
    require_each(recv, "scatter", handed);
    std::fill(recv.begin(), recv.end(), -1);
    comm.scatter(is_root ? parts.data() : nullptr, recv.data(), count, DataType::int32, root);
    require_each(recv, "scatter by pointer", handed);
}

/// Rank r has r times `step` elements: rank 0 has none.
void vectors(Communicator& comm, std::size_t step) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::vector<std::size_t> counts(ranks);
    std::vector<int> owner;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
        counts[peer] = peer * step;
        owner.insert(owner.end(), counts[peer], static_cast<int>(peer));
    }
    const auto begin = [&](std::size_t peer) { return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(peer), std::size_t{0}); };
    const std::size_t total = owner.size();
    const std::vector<int> mine = words(comm.rank(), begin(rank), counts[rank]);

    std::vector<int> all(total, -1);
    const auto gathered = [&](std::size_t place) { return word(owner[place], place); };
    comm.all_gather_v(mine, all, counts);
    require_each(all, "all_gather_v", gathered);
    std::fill(all.begin(), all.end(), -1);
    comm.all_gather_v(mine.data(), all.data(), rsccl::View<const std::size_t>(counts.data(), ranks), DataType::int32);
    require_each(all, "all_gather_v by pointer", gathered);

    const std::vector<int> everything = words(comm.rank(), 0, total);
    std::vector<int> part(counts[rank], -1);
    // Counts may have any integer type.
    const std::vector<int> narrow(counts.begin(), counts.end());
    comm.reduce_scatter_v(everything, part, narrow);
    require_each(part, "reduce_scatter_v", [&](std::size_t place) { return word_sum(comm.size(), begin(rank) + place); });

    // Rank a sends (a + b) * step words to b.
    std::vector<long> to(ranks);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
        to[peer] = static_cast<long>((rank + peer) * step);
    }
    const auto sent = static_cast<std::size_t>(std::accumulate(to.begin(), to.end(), 0L));
    const std::vector<int> outgoing(sent, comm.rank());
    std::vector<int> incoming(sent, -1);
    std::vector<int> from;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
        from.insert(from.end(), (rank + peer) * step, static_cast<int>(peer));
    }
    require(comm.exchange_counts(to) == std::vector<std::size_t>(to.begin(), to.end()), "exchange_counts of a symmetric exchange");
    std::vector<int> ordinal(ranks);
    std::iota(ordinal.begin(), ordinal.end(), 0);
    require(comm.exchange_counts(ordinal) == std::vector<std::size_t>(ranks, rank), "exchange_counts of r elements for rank r");
    comm.all_to_all_v(outgoing, incoming, {to, to});
    require_each(incoming, "all_to_all_v", [&](std::size_t place) { return from[place]; });
}

void everything(int size, Path path) {
    ranks::run(size, ranks::by(path), [](Communicator& comm) {
        for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1000}, std::size_t{30'011}}) {
            blocks(comm, count);
            for (int root = 0; root < comm.size(); ++root) {
                rooted(comm, count, root);
            }
        }
        for (std::size_t step : {std::size_t{0}, std::size_t{1}, std::size_t{700}}) {
            vectors(comm, step);
        }
        comm.barrier();
    });
}

} // namespace

TEST_CASE("every collective, every form: pointers") {
    for (int size : {1, 2, 3, 5}) {
        everything(size, Path::pointers);
    }
}

TEST_CASE("every collective, every form: shared memory") {
    for (int size : {2, 3}) {
        everything(size, Path::shared_memory);
    }
}

TEST_CASE("every collective, every form: sockets") {
    for (int size : {2, 3}) {
        everything(size, Path::sockets);
    }
}

TEST_CASE("what has no data type is moved as bytes") {
    ranks::run(2, [](Communicator& comm) {
        std::vector<std::complex<double>> numbers(5);
        bool truths[3] = {};
        if (comm.rank() == 1) {
            numbers.assign(5, {1.5, -2.5});
            truths[1] = true;
        }
        comm.broadcast(rsccl::bytes_of(numbers), 1);
        comm.broadcast(rsccl::bytes_of(truths), 1);
        require(numbers == std::vector<std::complex<double>>(5, {1.5, -2.5}), "complex numbers");
        require(!truths[0] && truths[1] && !truths[2], "truths");
        const std::array<std::int16_t, 2> mine = {static_cast<std::int16_t>(comm.rank()), -7};
        std::array<std::int16_t, 4> all{};
        comm.all_gather(rsccl::bytes_of(mine), rsccl::bytes_of(rsccl::view(all.data(), 4)));
        require(all == std::array<std::int16_t, 4>{0, -7, 1, -7}, "integers of 16 bits");
    });
}

TEST_CASE("anything contiguous is a buffer") {
    ranks::run(2, [](Communicator& comm) {
        const int me = comm.rank();
        const std::vector<float> constant = {1.0F, 2.0F};
        float plain[2] = {};
        comm.all_reduce(constant, plain);
        require(plain[0] == 2.0F && plain[1] == 4.0F, "from a const vector into an array");
        std::array<float, 2> array{};
        comm.all_reduce(plain, array);
        require(array[1] == 8.0F, "from an array into a std::array");
        rsccl::buffer<float> shared(2);
        comm.all_reduce(array, shared);
        require(shared[0] == 8.0F && shared.size() == 2, "into a buffer");
        comm.all_reduce(rsccl::view(shared.data() + 1, 1), rsccl::view(plain, 1));
        require(plain[0] == 32.0F, "views");
        std::vector<float> halves = {1.0F, 2.0F, 3.0F, 4.0F};
        comm.all_reduce(rsccl::view(constant.begin(), constant.end()), rsccl::view(halves.begin() + 2, halves.end()));
        require(halves == std::vector<float>{1.0F, 2.0F, 2.0F, 4.0F}, "two iterators");
        comm.all_reduce_in_place(rsccl::view(&halves[0], &halves[2]));
        comm.all_reduce_in_place(rsccl::view(halves.end(), halves.end()));
        require(halves == std::vector<float>{2.0F, 4.0F, 2.0F, 4.0F}, "two pointers, and nothing");
        comm.all_reduce(std::vector<float>{1.5F, 2.5F}, array);
        require(array[0] == 3.0F, "a temporary as input of a call that ends");
        std::string text = me == 0 ? "rsccl" : "     ";
        comm.broadcast(text, 0);
        require(text == "rsccl", "a string");
        std::array<std::byte, 2> bytes = {std::byte{1}, std::byte{static_cast<unsigned char>(me)}};
        comm.all_reduce_in_place(bytes, ReduceOp::bor);
        require(bytes[1] == std::byte{1}, "bytes");
        std::array<int, 2> both{};
        comm.all_gather(std::array<int, 1>{me}, both);
        require(both[1] == 1, "gathered");
#if __cplusplus >= 202002L
        comm.all_reduce(std::span<const float>(constant), std::span<float>(array));
        require(array[0] == 2.0F, "spans");
        comm.all_reduce(std::span<const float, 2>(constant), std::span<float, 2>(array));
        require(array[1] == 4.0F, "spans of a fixed extent");
#endif
        std::string greatest(2, ' ');
        comm.start().all_reduce(std::string_view("ab"), greatest, ReduceOp::max).wait();
        require(greatest == "ab", "a temporary string_view, which only refers to its elements");
        // A list of counts need not be const.
        std::vector<std::size_t> counts = {1, 1};
        comm.all_gather_v(&me, both.data(), rsccl::view(counts.data(), counts.size()), DataType::int32);
        require(both == std::array<int, 2>{0, 1}, "counts as a view");
    });
}

TEST_CASE("registered buffers: large calls in them, beside unregistered ones") {
    ranks::run(3, [](Communicator& comm) {
        constexpr std::size_t count = 300'001;
        rsccl::buffer<float> input(count);
        rsccl::buffer<float> output(count);
        comm.register_buffer(input);
        comm.register_buffer(output);
        for (std::size_t place = 0; place < count; ++place) {
            input[place] = static_cast<float>(place % 1000) + static_cast<float>(comm.rank());
        }
        const auto wanted = [](std::size_t place) { return 3.0F * static_cast<float>(place % 1000) + 3.0F; };
        comm.all_reduce(input, output);
        require_each(output, "registered", wanted);
        std::vector<float> loose(count);
        comm.all_reduce(input, loose);
        require_each(loose, "into loose memory", wanted);
        comm.all_reduce_in_place(input);
        require_each(input, "in place", wanted);
        rsccl::buffer<float> moved = std::move(input);
        require(moved.size() == count && input.empty(), "a moved-from buffer is empty"); // NOLINT: that is what is tested
        comm.all_reduce_in_place(moved, ReduceOp::max);
        require_each(moved, "moved", wanted);
        comm.finalize();
    });
    CHECK_THROWS_AS(rsccl::buffer<double>(0), rsccl::InvalidArgument);
    CHECK_THROWS_AS(rsccl::buffer<double>(~std::size_t{0} / 4), rsccl::Error);
}
