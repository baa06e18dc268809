/// @file
/// Element types, operators and streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__STDCPP_FLOAT16_T__) || defined(__STDCPP_BFLOAT16_T__)
#include <stdfloat>
#endif

#include <rsccl/version.hpp>

// What a CUDA stream points to; a pointer to it is CUDA's cudaStream_t.
struct CUstream_st;

namespace rsccl {

/// The type of a buffer's elements, for callers that know it only at run time. The numbers are NCCL's.
enum class DataType : int {
    int8 = 0,
    uint8 = 1,
    int32 = 2,
    uint32 = 3,
    int64 = 4,
    uint64 = 5,
    float16 = 6,      ///< IEEE half precision
    float32 = 7,      ///< IEEE single precision
    float64 = 8,      ///< IEEE double precision
    bfloat16 = 9,     ///< 8 bits of exponent, 7 of mantissa
    float8_e4m3 = 10, ///< 4 bits of exponent, 3 of mantissa, no infinity (OCP E4M3)
    float8_e5m2 = 11, ///< 5 bits of exponent, 2 of mantissa (OCP E5M2)
};

/// Bytes of one element; 0 for a number that is no type.
constexpr std::size_t size_of(DataType type) noexcept {
    switch (type) {
    case DataType::int8:
    case DataType::uint8:
    case DataType::float8_e4m3:
    case DataType::float8_e5m2: return 1;
    case DataType::float16:
    case DataType::bfloat16: return 2;
    case DataType::int32:
    case DataType::uint32:
    case DataType::float32: return 4;
    case DataType::int64:
    case DataType::uint64:
    case DataType::float64: return 8;
    }
    return 0;
}

/// Its name, as tables and errors spell it: "float", "int32". "unknown" for a number that is no type.
const char* name_of(DataType type) noexcept;

namespace detail {
std::uint16_t encode(DataType type, float value) noexcept;
float decode(DataType type, std::uint16_t bits) noexcept;

/// A float narrower than 32 bits: its bits, and conversions that are those of the reductions.
template <DataType Type, class Bits>
class SmallFloat {
  public:
    /// Zero.
    constexpr SmallFloat() noexcept = default;
    /// The nearest to `value`, ties to even; what is too large for an 8-bit type becomes its greatest number.
    explicit SmallFloat(float value) noexcept : bits_(static_cast<Bits>(encode(Type, value))) {}
    /// The number with these bits.
    static constexpr SmallFloat from_bits(Bits bits) noexcept {
        SmallFloat made;
        made.bits_ = bits;
        return made;
    }
    /// Its bits.
    constexpr Bits bits() const noexcept { return bits_; }
    /// Its value, exact.
    operator float() const noexcept { return decode(Type, bits_); }

  private:
    Bits bits_ = 0;
};
} // namespace detail

/// IEEE half precision. Holds and converts; arithmetic is done in float.
using float16 = detail::SmallFloat<DataType::float16, std::uint16_t>;
/// bfloat16. Holds and converts; arithmetic is done in float.
using bfloat16 = detail::SmallFloat<DataType::bfloat16, std::uint16_t>;
/// OCP E4M3. Holds and converts; arithmetic is done in float.
using float8_e4m3 = detail::SmallFloat<DataType::float8_e4m3, std::uint8_t>;
/// OCP E5M2. Holds and converts; arithmetic is done in float.
using float8_e5m2 = detail::SmallFloat<DataType::float8_e5m2, std::uint8_t>;

namespace detail {
template <class T>
inline constexpr bool is_integer_element =
    std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, wchar_t> &&
    !std::is_same_v<T, char16_t> && !std::is_same_v<T, char32_t> && (sizeof(T) == 1 || sizeof(T) == 4 || sizeof(T) == 8);

template <class T>
constexpr DataType integer_type() noexcept {
    switch (sizeof(T)) {
    case 1: return std::is_signed_v<T> ? DataType::int8 : DataType::uint8;
    case 4: return std::is_signed_v<T> ? DataType::int32 : DataType::uint32;
    default: return std::is_signed_v<T> ? DataType::int64 : DataType::uint64;
    }
}
} // namespace detail

/// The data type of a C++ type, as `data_type_of<T>::value`. Integers of 1, 4 and 8 bytes, `std::byte`, float, double and the
/// small floats have one. A program may specialise it for a type of its own that has the same bits as one of the data types:
/// @code
/// template <> struct rsccl::data_type_of<my_half> { static constexpr rsccl::DataType value = rsccl::DataType::float16; };
/// @endcode
template <class T, class = void>
struct data_type_of {};

/// @cond the ones that there are
template <class T>
struct data_type_of<T, std::enable_if_t<detail::is_integer_element<T>>> {
    static constexpr DataType value = detail::integer_type<T>();
};
template <>
struct data_type_of<std::byte> {
    static constexpr DataType value = DataType::uint8;
};
template <>
struct data_type_of<float> {
    static constexpr DataType value = DataType::float32;
};
template <>
struct data_type_of<double> {
    static constexpr DataType value = DataType::float64;
};
template <DataType Type, class Bits>
struct data_type_of<detail::SmallFloat<Type, Bits>> {
    static constexpr DataType value = Type;
};
#if defined(__STDCPP_FLOAT16_T__)
template <>
struct data_type_of<std::float16_t> {
    static constexpr DataType value = DataType::float16;
};
#endif
#if defined(__STDCPP_BFLOAT16_T__)
template <>
struct data_type_of<std::bfloat16_t> {
    static constexpr DataType value = DataType::bfloat16;
};
#endif
/// @endcond

/// Whether buffers may hold a T.
template <class T, class = void>
struct is_element : std::false_type {};
template <class T>
struct is_element<T, std::void_t<decltype(data_type_of<T>::value)>>
    : std::bool_constant<std::is_trivially_copyable_v<T> && sizeof(T) == size_of(data_type_of<T>::value)> {};
/// is_element, short.
template <class T>
inline constexpr bool is_element_v = is_element<T>::value;

namespace detail {
/// The number of ReduceOp::premul_sum.
inline constexpr int premul_sum_code = 8;
} // namespace detail

/// Nobody, as the peer of send(), recv() or send_recv(): the call does nothing and does not wait, and a buffer to receive into stays as
/// it is. What MPI calls `MPI_PROC_NULL`: a rank at the edge of a grid makes the same calls as the others. It is neither MPI's number
/// (rsccl::mpi::peer() translates that) nor near the number of a rank.
inline constexpr int no_rank = std::numeric_limits<int>::min();

/// How elements of all ranks become one. Floats of 16 and 8 bits are accumulated in float; integers wrap.
class ReduceOp {
  public:
    static const ReduceOp sum;  ///< x0 + x1 + ...
    static const ReduceOp prod; ///< x0 * x1 * ...
    static const ReduceOp min;  ///< the least; a NaN on any rank gives the type's one quiet NaN, and -0 is less than +0
    static const ReduceOp max;  ///< the greatest; NaN and zeros as for min
    /// The sum divided by the number of ranks; integers round towards zero, and their sum wraps. The average of finite floats is
    /// finite, also where their sum is too large: inputs are scaled down by a power of two where need be.
    static const ReduceOp avg;
    static const ReduceOp band; ///< bitwise and; integers only
    static const ReduceOp bor;  ///< bitwise or; integers only
    static const ReduceOp bxor; ///< bitwise exclusive or; integers only

    /// s0*x0 + s1*x1 + ...: each rank passes a scalar of its own, which is converted to the element type.
    template <class T>
    static ReduceOp premul_sum(T scalar) noexcept {
        static_assert(std::is_arithmetic_v<T> || is_element_v<T>, "rsccl: the scalar must be a number");
        if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
            return ReduceOp(detail::premul_sum_code, Scalar::integer, static_cast<std::int64_t>(scalar), 0);
        } else if constexpr (std::is_integral_v<T>) {
            return ReduceOp(detail::premul_sum_code, Scalar::natural, static_cast<std::int64_t>(static_cast<std::uint64_t>(scalar)), 0);
        } else if constexpr (std::is_floating_point_v<T>) {
            return ReduceOp(detail::premul_sum_code, Scalar::real, 0, static_cast<double>(scalar));
        } else {
            return ReduceOp(detail::premul_sum_code, Scalar::real, 0, static_cast<double>(static_cast<float>(scalar)));
        }
    }

    /// Its number; equal to that of every other operator of the same name.
    constexpr int code() const noexcept { return code_; }

    /// What kind of scalar the operator has.
    enum class Scalar : int { none, integer, natural, real };
    /// What kind of scalar the operator has.
    constexpr Scalar scalar() const noexcept { return scalar_; }
    /// The scalar, where it is an integer (an unsigned one has the bits of the signed one).
    constexpr std::int64_t integer() const noexcept { return integer_; }
    /// The scalar, where it is a float.
    constexpr double real() const noexcept { return real_; }

  private:
    constexpr explicit ReduceOp(int code, Scalar scalar = Scalar::none, std::int64_t integer = 0, double real = 0) noexcept
        : code_(code), scalar_(scalar), integer_(integer), real_(real) {}

    int code_;
    Scalar scalar_;
    std::int64_t integer_;
    double real_;
};

inline constexpr ReduceOp ReduceOp::sum{0};
inline constexpr ReduceOp ReduceOp::prod{1};
inline constexpr ReduceOp ReduceOp::min{2};
inline constexpr ReduceOp ReduceOp::max{3};
inline constexpr ReduceOp ReduceOp::avg{4};
inline constexpr ReduceOp ReduceOp::band{5};
inline constexpr ReduceOp ReduceOp::bor{6};
inline constexpr ReduceOp ReduceOp::bxor{7};

/// Where an operation runs. The default is the host: the call returns when the buffers hold the result. With a CUDA stream the buffers
/// are memory of its GPU, and the call returns once the operation is in the stream, behind what the stream held before: the buffers
/// may be used by the host when the stream has done it, and the stream must live until then. A gpu_buffer without a stream does not
/// compile; a pointer to GPU memory without one is taken for host memory. Host memory with a stream throws InvalidArgument, a machine
/// without a GPU driver SystemError, and a library that was built without CUDA InvalidUsage. A call of start() takes no stream: a call
/// on a stream returns at once anyway.
class Stream {
  public:
    /// The host.
    constexpr Stream() noexcept = default;
    /// The host, by name.
    static constexpr Stream host() noexcept { return Stream(); }
    /// A CUDA stream; null, and a literal 0, is CUDA's default stream, as it is everywhere in CUDA, and not the host. Beside containers,
    /// which are memory of the host, a number in the place of the stream does not compile.
    constexpr Stream(CUstream_st* handle) noexcept : handle_(handle), host_(false) {}
    /// Whether it is the host.
    constexpr bool is_host() const noexcept { return host_; }
    /// The CUDA stream; null for CUDA's default stream, and for the host.
    constexpr CUstream_st* handle() const noexcept { return handle_; }

  private:
    CUstream_st* handle_ = nullptr;
    bool host_ = true;
};

} // namespace rsccl
