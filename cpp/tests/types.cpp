// Values that need no communicator: element types, operators, ids, errors, configuration, version.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "ranks.hpp"

namespace {

/// A 16-bit float type that the program has from another library.
struct OwnHalf {
    std::uint16_t bits;
};
struct Unknown {
    int value;
};

} // namespace

template <>
struct rsccl::data_type_of<OwnHalf> {
    static constexpr rsccl::DataType value = rsccl::DataType::float16;
};

static_assert(rsccl::is_element_v<OwnHalf> && !rsccl::is_element_v<Unknown> && !rsccl::is_element_v<bool>);
static_assert(!rsccl::is_element_v<std::int16_t> && !rsccl::is_element_v<long double> && !rsccl::is_element_v<int*>);
static_assert(rsccl::data_type_of<int>::value == rsccl::DataType::int32);
static_assert(rsccl::data_type_of<long>::value == rsccl::data_type_of<long long>::value);
static_assert(rsccl::data_type_of<unsigned long>::value == rsccl::DataType::uint64);
static_assert(rsccl::data_type_of<std::byte>::value == rsccl::DataType::uint8);
static_assert(std::is_nothrow_move_constructible_v<rsccl::Communicator> && std::is_nothrow_move_assignable_v<rsccl::Communicator>);
static_assert(!std::is_copy_constructible_v<rsccl::Communicator> && !std::is_copy_assignable_v<rsccl::Communicator>);
static_assert(std::is_nothrow_move_constructible_v<rsccl::Request> && !std::is_copy_constructible_v<rsccl::Request>);
static_assert(!std::is_copy_constructible_v<rsccl::Group>);
static_assert(std::is_nothrow_destructible_v<rsccl::Communicator> && std::is_nothrow_destructible_v<rsccl::Group>);
static_assert(std::is_nothrow_destructible_v<rsccl::Request> && std::is_nothrow_destructible_v<rsccl::buffer<float>>);
static_assert(std::is_nothrow_copy_constructible_v<rsccl::Error>, "copying an exception must not throw");

TEST_CASE("every data type has NCCL's number, a size and a name") {
    const std::array<std::size_t, 12> sizes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    const std::array<const char*, 12> names = {"int8",  "uint8",  "int32",    "uint32", "int64",  "uint64",
                                               "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
    for (std::size_t code = 0; code < sizes.size(); ++code) {
        const auto type = static_cast<rsccl::DataType>(code);
        CHECK(rsccl::size_of(type) == sizes[code]);
        CHECK(rsccl::name_of(type) == std::string(names[code]));
    }
    CHECK(rsccl::size_of(static_cast<rsccl::DataType>(12)) == 0);
    CHECK(rsccl::name_of(static_cast<rsccl::DataType>(-1)) == std::string("unknown"));
}

TEST_CASE("small floats convert as the reductions do") {
    CHECK(rsccl::float16(1.5F).bits() == 0x3e00);
    CHECK(rsccl::bfloat16(1.5F).bits() == 0x3fc0);
    CHECK(rsccl::float8_e4m3(1.5F).bits() == 0x3c);
    CHECK(rsccl::float8_e5m2(1.5F).bits() == 0x3e);
    CHECK(float(rsccl::float8_e4m3(1e9F)) == 448.0F);
    CHECK(float(rsccl::float8_e5m2(1e9F)) == 57344.0F);
    CHECK(float(rsccl::float16::from_bits(0x3e00)) == 1.5F);
    CHECK(rsccl::bfloat16().bits() == 0);
    // Ties to even: 1 + 2^-8 lies between two numbers of bfloat16.
    CHECK(rsccl::bfloat16(1.00390625F).bits() == 0x3f80);
    CHECK(rsccl::bfloat16(1.01171875F).bits() == 0x3f82);
}

TEST_CASE("operators know their scalars") {
    using rsccl::ReduceOp;
    const std::array<ReduceOp, 8> plain = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                                           ReduceOp::avg, ReduceOp::band, ReduceOp::bor, ReduceOp::bxor};
    for (std::size_t code = 0; code < plain.size(); ++code) {
        CHECK(plain[code].code() == static_cast<int>(code));
        CHECK(plain[code].scalar() == ReduceOp::Scalar::none);
    }
    CHECK(ReduceOp::premul_sum(-3).integer() == -3);
    CHECK(ReduceOp::premul_sum(-3).scalar() == ReduceOp::Scalar::integer);
    CHECK(ReduceOp::premul_sum(~std::uint64_t{0}).scalar() == ReduceOp::Scalar::natural);
    CHECK(ReduceOp::premul_sum(0.5F).real() == 0.5);
    CHECK(ReduceOp::premul_sum(rsccl::bfloat16(0.5F)).real() == 0.5);
}

TEST_CASE("an id comes back from its bytes") {
    const auto id = rsccl::UniqueId::generate(ranks::quick());
    const auto again = rsccl::UniqueId::from_bytes(id.bytes().data(), id.bytes().size());
    CHECK(again == id);
    CHECK(again.bytes() == id.bytes());
    CHECK(id != rsccl::UniqueId::generate(ranks::quick()));
    CHECK(std::memcmp(id.data(), again.data(), rsccl::UniqueId::size()) == 0);
}

TEST_CASE("an id of another length, or of other bytes, is refused") {
    const auto id = rsccl::UniqueId::generate(ranks::quick());
    for (std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{127}}) {
        CHECK_THROWS_AS(rsccl::UniqueId::from_bytes(id.data(), length), rsccl::InvalidArgument);
    }
    std::array<std::byte, 129> longer{};
    std::copy(id.bytes().begin(), id.bytes().end(), longer.begin());
    CHECK_THROWS_AS(rsccl::UniqueId::from_bytes(longer.data(), longer.size()), rsccl::InvalidArgument);
    const std::array<std::byte, 128> zeros{};
    CHECK_THROWS_AS(rsccl::UniqueId::from_bytes(zeros.data(), zeros.size()), rsccl::InvalidArgument);
    CHECK_THROWS_AS(rsccl::UniqueId::from_bytes(nullptr, 128), rsccl::InvalidArgument);
    // An id that was default-constructed and never filled.
    CHECK_THROWS_AS((void)rsccl::Communicator(rsccl::UniqueId(), 0, 2, ranks::quick()), rsccl::InvalidArgument);
}

namespace {

template <class Class>
void class_keeps_all(rsccl::ErrorCode code, int nccl) {
    const rsccl::Error plain(code, "what happened", 2, 5, "all_reduce #17");
    CHECK(plain.code() == code);
    CHECK(plain.nccl_code() == nccl);
    try {
        plain.raise();
        FAIL("raise() returned");
    } catch (const Class& error) {
        CHECK(error.code() == code);
        CHECK(error.message() == "what happened");
        CHECK(error.rank() == 2);
        CHECK(error.peer() == 5);
        CHECK(error.operation() == "all_reduce #17");
        CHECK(error.what() == std::string("rank 2: all_reduce #17: what happened"));
        const rsccl::Error copy = error;
        CHECK(copy.what() == std::string(error.what()));
    } catch (...) {
        FAIL("an error of code " << static_cast<int>(code) << " has another class");
    }
}

} // namespace

TEST_CASE("every kind of failure has a class that keeps code, rank, peer and operation") {
    using rsccl::ErrorCode;
    class_keeps_all<rsccl::InvalidArgument>(ErrorCode::invalid_argument, 4);
    class_keeps_all<rsccl::InvalidUsage>(ErrorCode::invalid_usage, 5);
    class_keeps_all<rsccl::Mismatch>(ErrorCode::mismatch, 5);
    class_keeps_all<rsccl::RemoteError>(ErrorCode::remote, 6);
    class_keeps_all<rsccl::Timeout>(ErrorCode::timeout, 8);
    class_keeps_all<rsccl::SystemError>(ErrorCode::system, 2);
    class_keeps_all<rsccl::InternalError>(ErrorCode::internal, 3);
    class_keeps_all<rsccl::Aborted>(ErrorCode::aborted, 6);
    class_keeps_all<rsccl::InProgress>(ErrorCode::in_progress, 7);
    CHECK(rsccl::name_of(static_cast<ErrorCode>(99)) == std::string("unknown"));
    CHECK(rsccl::Error(ErrorCode::timeout, "late").rank() == std::nullopt);
    CHECK(rsccl::Error(ErrorCode::timeout, "late").operation().empty());
}

TEST_CASE("an error that was moved from still says what it is") {
    rsccl::Error error(rsccl::ErrorCode::timeout, "late", 1, 2, "barrier #3");
    const rsccl::Error taken = std::move(error);
    CHECK(error.code() == rsccl::ErrorCode::timeout); // NOLINT: that is what is tested
    CHECK(error.message() == taken.message());
    CHECK(error.rank() == 1);
}

TEST_CASE("headers and library are of one version") { CHECK(rsccl::version() == RSCCL_VERSION_STRING); }
