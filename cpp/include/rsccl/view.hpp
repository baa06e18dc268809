/// @file
/// What collectives take as buffers, checked at compile time.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
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

/// Whether a C only refers to elements that somebody else owns, so that a temporary C may be passed where the buffer must
/// outlive the call. True for View and for C++20's borrowed ranges (`std::span`); a program may specialise it.
template <class C>
struct is_view : std::false_type {};
template <class T>
struct is_view<View<T>> : std::true_type {};
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

/// Says that a count is negative.
[[noreturn]] void refuse_negative_count();

/// The counts of the ranks, whatever integers they came as.
template <class C>
std::vector<std::size_t> counts_of(const C& counts) {
    using Count = plain<decltype(*std::begin(counts))>;
    static_assert(std::is_integral_v<Count>, "rsccl: counts are integers");
    std::vector<std::size_t> all;
    all.reserve(std::size(counts));
    for (Count count : counts) {
        if constexpr (std::is_signed_v<Count>) {
            if (count < 0) {
                refuse_negative_count();
            }
        }
        all.push_back(static_cast<std::size_t>(count));
    }
    return all;
}

} // namespace detail
} // namespace rsccl
