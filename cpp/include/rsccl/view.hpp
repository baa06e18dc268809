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
    constexpr T* data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return count_; }
    constexpr T* begin() const noexcept { return data_; }
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
using element_of = std::remove_cv_t<std::remove_pointer_t<pointer_of<std::remove_reference_t<C>>>>;

template <class C>
using plain = std::remove_cv_t<std::remove_reference_t<C>>;

/// How long a buffer is used.
enum class Lifetime {
    call,    ///< until the call returns
    outlives ///< longer than the call: a request, a group
};

/// C as it was passed: `V&` for an lvalue, `V` for a temporary. Does not compile where C cannot be an input.
template <class C, Lifetime Use>
constexpr void check_input() {
    static_assert(is_element_v<element_of<C>>,
                  "rsccl: buffers hold integers of 1, 4 or 8 bytes, float, double, the small floats, or a type with a data_type_of");
    static_assert(Use == Lifetime::call || std::is_lvalue_reference_v<C> || is_view<plain<C>>::value,
                  "rsccl: this buffer is used after the call, and a temporary container ends with it: name it, or pass a view");
}

/// Does not compile where C cannot be an output.
template <class C>
constexpr void check_output() {
    check_input<C, Lifetime::outlives>();
    static_assert(!std::is_const_v<std::remove_pointer_t<pointer_of<std::remove_reference_t<C>>>>,
                  "rsccl: the elements of an output buffer must not be const");
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
