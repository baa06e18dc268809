/// @file
/// What collectives take as buffers, checked at compile time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L
#include <ranges>
#include <span>
#endif

#include <rsccl/types.hpp>

namespace rsccl {

template <class T>
class buffer;
template <class T>
class gpu_buffer;
template <class T>
class registered;

/// A pointer and a count of elements: a buffer that somebody else owns. What `std::span` is from C++20 on.
template <class T>
class View {
  public:
    /// `count` elements from `data` on. Null goes with 0 elements.
    constexpr View(T* data, std::size_t count) noexcept : data_(data), count_(count) {}
    /// The same elements, not to be written to: a `View<float>` is a `View<const float>`.
    template <class U, std::enable_if_t<!std::is_same_v<U, T> && std::is_convertible_v<U (*)[], T (*)[]>, int> = 0>
    constexpr View(View<U> other) noexcept : data_(other.data()), count_(other.size()) {}
    /// Where the elements begin.
    constexpr T* data() const noexcept { return data_; }
    /// How many elements there are.
    constexpr std::size_t size() const noexcept { return count_; }
    /// The first element.
    constexpr T* begin() const noexcept { return data_; }
    /// Behind the last element.
    constexpr T* end() const noexcept { return data_ + count_; }

  private:
    T* data_;
    std::size_t count_;
};

/// The buffer of `count` elements at `data`: `comm.all_reduce(view(in, n), view(out, n))`.
template <class T>
constexpr View<T> view(T* data, std::size_t count) noexcept {
    return View<T>(data, count);
}

namespace detail {

/// Whether what lies between two of these iterators lies in one piece: pointers and the iterators of std::vector and std::string; in
/// C++20 all that say so.
#if __cplusplus >= 202002L
template <class Iterator>
inline constexpr bool is_contiguous = std::contiguous_iterator<Iterator>;
#else
template <class Iterator, class Container>
inline constexpr bool is_iterator_of =
    std::is_same_v<Iterator, typename Container::iterator> || std::is_same_v<Iterator, typename Container::const_iterator>;

template <class Iterator>
using value_of = typename std::iterator_traits<Iterator>::value_type;

template <class Iterator, class = void>
struct IsContiguous : std::is_pointer<Iterator> {};
template <class Iterator>
struct IsContiguous<Iterator, std::enable_if_t<!std::is_pointer_v<Iterator> && is_element_v<value_of<Iterator>>>>
    : std::bool_constant<is_iterator_of<Iterator, std::vector<value_of<Iterator>>> || is_iterator_of<Iterator, std::string>> {};
template <class Iterator>
inline constexpr bool is_contiguous = IsContiguous<Iterator>::value;
#endif

} // namespace detail

/// The buffer from `first` to before `last`: `comm.all_reduce(view(v.begin(), v.begin() + n), view(out, n))`.
template <class Iterator, std::enable_if_t<detail::is_contiguous<Iterator>, int> = 0>
constexpr auto view(Iterator first, Iterator last) noexcept {
    using T = std::remove_reference_t<decltype(*first)>;
    // An iterator that is an end must not be followed.
    return View<T>(first == last ? nullptr : std::addressof(*first), static_cast<std::size_t>(last - first));
}

/// Whether a C only refers to elements that somebody else owns, so that a temporary C may be passed where the buffer must
/// outlive the call. True for View, std::string_view and C++20's borrowed ranges (`std::span`); a program may specialise it.
template <class C>
struct is_view : std::false_type {};
template <class T>
struct is_view<View<T>> : std::true_type {};
template <class Char, class Traits>
struct is_view<std::basic_string_view<Char, Traits>> : std::true_type {};
#if __cplusplus >= 202002L
template <std::ranges::borrowed_range C>
    requires(!std::is_lvalue_reference_v<C>)
struct is_view<C> : std::true_type {};
#endif

namespace detail {

template <class C>
using pointer_of = decltype(std::data(std::declval<C&>()));

template <class C>
using plain = std::remove_cv_t<std::remove_reference_t<C>>;

/// Whether C has its elements one behind the other, and says where and how many: `std::data` and `std::size` take it.
template <class C, class = void>
struct IsBuffer : std::false_type {};
template <class C>
struct IsBuffer<C, std::void_t<pointer_of<std::remove_reference_t<C>>, decltype(std::size(std::declval<std::remove_reference_t<C>&>()))>>
    : std::bool_constant<std::is_pointer_v<pointer_of<std::remove_reference_t<C>>>> {};
// std::vector<bool> has no bools in memory. Some libraries declare its data() all the same.
template <class Allocator>
struct IsBuffer<std::vector<bool, Allocator>&, void> : std::false_type {};
template <class Allocator>
struct IsBuffer<const std::vector<bool, Allocator>&, void> : std::false_type {};
template <class Allocator>
struct IsBuffer<std::vector<bool, Allocator>, void> : std::false_type {};

template <class C>
struct IsVectorOfBool : std::false_type {};
template <class Allocator>
struct IsVectorOfBool<std::vector<bool, Allocator>> : std::true_type {};

/// Where the elements of a buffer begin. For an argument that is no buffer the function yields null, so that the assertions of
/// check_buffer() are the only errors of the compiler.
template <class C>
constexpr auto data_of(C& buffer) noexcept {
    if constexpr (IsBuffer<C&>::value) {
        return std::data(buffer);
    } else {
        return static_cast<void*>(nullptr);
    }
}

/// data_of() of a buffer that is written to. Of one with constant elements too: check_output() says that.
template <class C>
constexpr auto output_of(C& buffer) noexcept {
    using T = std::remove_pointer_t<decltype(data_of(buffer))>;
    return const_cast<std::remove_const_t<T>*>(data_of(buffer));
}

/// How many elements a buffer has; 0 for what is no buffer, as in data_of().
template <class C>
constexpr std::size_t count_in(const C& buffer) noexcept {
    if constexpr (IsBuffer<const C&>::value) {
        return static_cast<std::size_t>(std::size(buffer));
    } else {
        return 0;
    }
}

template <class C, bool = IsBuffer<C>::value>
struct ElementOf {
    using type = void;
};
template <class C>
struct ElementOf<C, true> {
    using type = std::remove_cv_t<std::remove_pointer_t<pointer_of<std::remove_reference_t<C>>>>;
};

/// The type of the elements of a C; void where it is no buffer.
template <class C>
using element_of = typename ElementOf<C>::type;

/// The data type of T. For a T that buffers may not hold the function yields some type, so that the assertions of check_buffer() and
/// the like are the only errors of the compiler.
template <class T>
constexpr DataType data_type_or_any() noexcept {
    if constexpr (std::is_void_v<T>) {
        return DataType::uint8;
    } else if constexpr (is_element_v<T>) {
        return data_type_of<T>::value;
    } else {
        return DataType::uint8;
    }
}

/// How long a buffer is used.
enum class Lifetime {
    call,    ///< until the call returns
    outlives ///< longer than the call: a request, a group
};

/// Does not compile where C is no buffer, and says what is one.
template <class C>
constexpr void check_buffer() {
    static_assert(!IsVectorOfBool<plain<C>>::value,
                  "rsccl: std::vector<bool> has no bools in memory that could be sent: use std::vector<unsigned char>");
    static_assert(!std::is_arithmetic_v<plain<C>> && !std::is_enum_v<plain<C>>,
                  "rsccl: this is one number, and a buffer is wanted: pass rsccl::view(&number, 1), or call all_reduce_value(number)");
    static_assert(!std::is_pointer_v<plain<C>>,
                  "rsccl: a pointer does not say how many elements there are, nor of which type: pass rsccl::view(pointer, count), or "
                  "pointers, a count and a DataType");
    static_assert(IsBuffer<C>::value || IsVectorOfBool<plain<C>>::value || std::is_arithmetic_v<plain<C>> ||
                      std::is_enum_v<plain<C>> || std::is_pointer_v<plain<C>>,
                  "rsccl: a buffer has its elements one behind the other, and std::data and std::size take it: std::vector, "
                  "std::array, an array, std::span, rsccl::view; one value is rsccl::view(&value, 1), and for what is only moved, "
                  "rsccl::bytes_of(rsccl::view(&value, 1))");
}

/// Whether a T may be an element. True for void too, the element type of an argument that is no buffer: check_buffer() refuses that
/// argument with a sentence of its own.
template <class T>
constexpr bool is_element_or_void() noexcept {
    if constexpr (std::is_void_v<T>) {
        return true;
    } else {
        return is_element_v<T>;
    }
}

/// Whether C is a buffer, of what may be an element.
template <class C>
constexpr bool is_buffer_of_elements() noexcept {
    return IsBuffer<C>::value && is_element_or_void<element_of<C>>();
}

/// False, once the types are known.
template <class...>
inline constexpr bool never = false;

template <class First, class... Others>
constexpr bool begins_with_pointer() noexcept {
    return std::is_pointer_v<plain<First>>;
}

/// There where a call has memory, and no DataType among its arguments.
template <class... Arguments>
using PointersWithoutType =
    std::enable_if_t<begins_with_pointer<Arguments..., int>() && !(std::is_same_v<plain<Arguments>, DataType> || ...), int>;

/// Does not compile, and says what to pass.
template <class Pointer, class... Others>
[[noreturn]] void refuse_pointers() {
    check_buffer<Pointer>();
    std::terminate();
}

/// C as it was passed: `V&` for an lvalue, `V` for a temporary. Does not compile where C cannot be an input.
template <class C, Lifetime Use>
constexpr void check_input() {
    check_buffer<C>();
    static_assert(is_element_or_void<element_of<C>>(),
                  "rsccl: buffers hold integers of 1, 4 or 8 bytes, float, double, the small floats, or a type with a data_type_of; what "
                  "is only moved (complex numbers, 16-bit integers, bool, plain structs) goes as rsccl::bytes_of(buffer), as std::byte; "
                  "complex numbers are added up as arrays of two floats");
    static_assert(!IsBuffer<C>::value || Use == Lifetime::call || std::is_lvalue_reference_v<C> || is_view<plain<C>>::value,
                  "rsccl: this buffer is used after the call, and a temporary container ends with it: name it, or pass a view");
}

/// Does not compile where C cannot be an output.
template <class C>
constexpr void check_output() {
    check_input<C, Lifetime::outlives>();
    if constexpr (IsBuffer<C>::value) {
        static_assert(!std::is_const_v<std::remove_pointer_t<pointer_of<std::remove_reference_t<C>>>>,
                      "rsccl: the elements of an output buffer must not be const");
    }
}

template <class Send, class Recv>
constexpr void check_same() {
    static_assert(!IsBuffer<Send>::value || !IsBuffer<Recv>::value || std::is_same_v<element_of<Send>, element_of<Recv>>,
                  "rsccl: input and output must hold elements of one type");
}

/// `count` elements behind `data`; null stays null, for the call to refuse.
template <class T>
constexpr T* behind(T* data, std::size_t count) noexcept {
    return data == nullptr ? nullptr : data + count;
}

template <class C>
struct IsGpuBuffer : std::false_type {};
template <class T>
struct IsGpuBuffer<gpu_buffer<T>> : std::true_type {};

/// Whether what a C holds is memory of the host for certain. What a view or a span refers to may be memory of a GPU.
template <class C>
struct IsHostBuffer : std::false_type {};
template <class T, class A>
struct IsHostBuffer<std::vector<T, A>> : std::true_type {};
template <class T, std::size_t Count>
struct IsHostBuffer<std::array<T, Count>> : std::true_type {};
template <class T, std::size_t Count>
struct IsHostBuffer<T[Count]> : std::true_type {};
template <class Char, class Traits>
struct IsHostBuffer<std::basic_string<Char, Traits>> : std::true_type {};
template <class T>
struct IsHostBuffer<buffer<T>> : std::true_type {};
template <class T>
struct IsHostBuffer<registered<T>> : std::true_type {};

/// Says that a gpu_buffer was passed with the host in place of a stream.
[[noreturn]] void refuse_host_for_gpu();

/// The stream of a call with these buffers. Where it is left out it is the host, which does not compile with a gpu_buffer.
template <class... Buffers>
class StreamOf {
    static constexpr bool on_gpu = (IsGpuBuffer<plain<Buffers>>::value || ...);
    static constexpr bool on_host = !on_gpu && (IsHostBuffer<plain<Buffers>>::value || ...);

  public:
    constexpr StreamOf() noexcept {
        static_assert(!on_gpu, "rsccl: a gpu_buffer is memory of a GPU: the call needs a Stream of that GPU (a cudaStream_t) as its last "
                               "argument");
    }
    /// What a Stream is made of: a Stream, a cudaStream_t, nullptr.
    template <class S, std::enable_if_t<!std::is_same_v<plain<S>, StreamOf> && std::is_convertible_v<S, Stream>, int> = 0>
    constexpr StreamOf(S&& stream) : stream_(std::forward<S>(stream)) {
        if constexpr (on_gpu) {
            if (stream_.is_host()) {
                refuse_host_for_gpu();
            }
        }
    }
    constexpr StreamOf(CUstream_st* handle) noexcept : stream_(handle) {}
    /// A number beside memory of the host: to users of MPI a tag or a count, and where it is 0 CUDA's default stream to the compiler.
    template <class N, std::enable_if_t<on_host && (std::is_integral_v<N> || std::is_enum_v<N>), int> = 0>
    constexpr StreamOf(N) noexcept {
        static_assert(never<N>, "rsccl: the argument in this place is the Stream of a call on GPU memory, and these buffers are memory of "
                                "the host: leave it out (there are no tags, and buffers bring their counts along)");
    }
    constexpr operator Stream() const noexcept { return stream_; }

  private:
    Stream stream_;
};

// The compiler must not look for the buffers' types in the stream.
template <class... Buffers>
struct StreamBeside {
    using type = StreamOf<Buffers...>;
};
template <class... Buffers>
using StreamFor = typename StreamBeside<Buffers...>::type;

/// What a call does.
enum class Kind : std::uint8_t;

/// Says that a count is negative.
[[noreturn]] void refuse_negative_count(int rank, Kind call);
/// Says that counts are null, and not none.
[[noreturn]] void refuse_null_counts(std::optional<int> rank);

template <class C, class = void>
struct CountIn {
    using type = void;
};
template <class C>
struct CountIn<C, std::void_t<decltype(*std::begin(std::declval<const C&>()))>> {
    using type = plain<decltype(*std::begin(std::declval<const C&>()))>;
};

/// The counts of the ranks, whatever integers they came as.
struct Counted {
    std::vector<std::size_t> counts;
    bool negative = false; ///< whether one of them was
    bool null = false;     ///< whether they were a null pointer, and not none
};

template <class C>
Counted read_counts(const C& counts) {
    using Count = typename CountIn<C>::type;
    static_assert(std::is_integral_v<Count>, "rsccl: counts are integers, one for each rank: a vector, an array, {3, 4}");
    Counted all;
    if constexpr (std::is_integral_v<Count>) {
        if constexpr (IsBuffer<const C&>::value) {
            all.null = std::data(counts) == nullptr && std::size(counts) != 0;
        }
        if (all.null) {
            return all;
        }
        all.counts.reserve(static_cast<std::size_t>(std::size(counts)));
        for (Count count : counts) {
            if constexpr (std::is_signed_v<Count>) {
                all.negative = all.negative || count < 0;
            }
            all.counts.push_back(static_cast<std::size_t>(count));
        }
    }
    return all;
}

inline void check_counts(const Counted& all, int rank, Kind call) {
    if (all.negative) {
        refuse_negative_count(rank, call);
    }
    if (all.null) {
        refuse_null_counts(rank);
    }
}

template <class C>
std::vector<std::size_t> counts_of(const C& counts, int rank, Kind call) {
    Counted all = read_counts(counts);
    check_counts(all, rank, call);
    return std::move(all.counts);
}

} // namespace detail

/// How many elements go to each rank, and how many come from each, for all_to_all_v(): `{to, from}` there. Either is anything with a
/// `std::begin` and a `std::size`, of integers, and is copied.
class SendRecvCounts {
  public:
    /// `send[r]` elements go to rank r, and `recv[r]` come from it.
    template <class C = std::initializer_list<std::size_t>, class D = std::initializer_list<std::size_t>>
    SendRecvCounts(const C& send, const D& recv) : send_(detail::read_counts(send)), recv_(detail::read_counts(recv)) {}
    /// What goes to each rank.
    const std::vector<std::size_t>& send() const noexcept { return send_.counts; }
    /// What comes from each rank.
    const std::vector<std::size_t>& recv() const noexcept { return recv_.counts; }
    /// @cond calls do it
    void check(int rank, detail::Kind call) const {
        detail::check_counts(send_, rank, call);
        detail::check_counts(recv_, rank, call);
    }
    /// @endcond

  private:
    detail::Counted send_;
    detail::Counted recv_;
};

/// The bytes of a buffer whose elements have no data type, for calls that only move them: `comm.broadcast(bytes_of(complex), 0)`. The
/// elements must be trivially copyable; ranks with other compilers or processors must have the same layout.
template <class C>
constexpr auto bytes_of(C&& buffer) noexcept {
    detail::check_buffer<C>();
    static_assert(std::is_lvalue_reference_v<C> || is_view<detail::plain<C>>::value,
                  "rsccl: the bytes are used after this, and a temporary container ends with it: name it, or pass a view");
    if constexpr (detail::IsBuffer<C>::value) {
        using T = std::remove_pointer_t<detail::pointer_of<std::remove_reference_t<C>>>;
        static_assert(std::is_trivially_copyable_v<T>, "rsccl: only bytes of trivially copyable elements mean the same elsewhere");
        using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
        return View<Byte>(reinterpret_cast<Byte*>(std::data(buffer)), static_cast<std::size_t>(std::size(buffer)) * sizeof(T));
    } else {
        return View<std::byte>(nullptr, 0);
    }
}

} // namespace rsccl
