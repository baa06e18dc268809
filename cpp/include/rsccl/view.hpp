/// @file
/// What collectives take as buffers, checked at compile time.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#if __cplusplus >= 202002L
#include <ranges>
#include <span>
#endif

#include <rsccl/types.hpp>

namespace rsccl {

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

/// The data type of T. Of a T that buffers may not hold, any: check_buffer() and the like say that, and no other error stands before theirs.
template <class T>
constexpr DataType data_type_or_any() noexcept {
    if constexpr (is_element_v<T>) {
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
                  "rsccl: this is one number, and a buffer is wanted: pass rsccl::view(&number, 1)");
    static_assert(!std::is_pointer_v<plain<C>>,
                  "rsccl: a pointer alone does not say how many elements there are: pass rsccl::view(pointer, count)");
    static_assert(IsBuffer<C>::value || IsVectorOfBool<plain<C>>::value || std::is_arithmetic_v<plain<C>> ||
                      std::is_enum_v<plain<C>> || std::is_pointer_v<plain<C>>,
                  "rsccl: a buffer has its elements one behind the other, and std::data and std::size take it: std::vector, "
                  "std::array, an array, std::span, rsccl::view");
}

/// C as it was passed: `V&` for an lvalue, `V` for a temporary. Does not compile where C cannot be an input.
template <class C, Lifetime Use>
constexpr void check_input() {
    check_buffer<C>();
    static_assert(!IsBuffer<C>::value || is_element_v<element_of<C>>,
                  "rsccl: buffers hold integers of 1, 4 or 8 bytes, float, double, the small floats, or a type with a data_type_of");
    static_assert(Use == Lifetime::call || std::is_lvalue_reference_v<C> || is_view<plain<C>>::value,
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
    static_assert(std::is_same_v<element_of<Send>, element_of<Recv>>,
                  "rsccl: input and output must hold elements of one type");
}

/// `count` elements behind `data`; null stays null, for the call to refuse.
template <class T>
constexpr T* behind(T* data, std::size_t count) noexcept {
    return data == nullptr ? nullptr : data + count;
}

/// Says that a count is negative.
[[noreturn]] void refuse_negative_count(int rank);

/// The counts of the ranks, whatever integers they came as.
template <class C>
std::vector<std::size_t> counts_of(const C& counts, [[maybe_unused]] int rank) {
    using Count = plain<decltype(*std::begin(counts))>;
    static_assert(std::is_integral_v<Count>, "rsccl: counts are integers");
    std::vector<std::size_t> all;
    all.reserve(std::size(counts));
    for (Count count : counts) {
        if constexpr (std::is_signed_v<Count>) {
            if (count < 0) {
                refuse_negative_count(rank);
            }
        }
        all.push_back(static_cast<std::size_t>(count));
    }
    return all;
}

} // namespace detail
} // namespace rsccl
