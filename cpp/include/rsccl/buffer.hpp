/// @file
/// Memory that the ranks of a host can share.
#pragma once

#include <cstddef>
#include <memory>

#include <rsccl/types.hpp>

namespace rsccl {

class Communicator;

namespace detail {
struct Access;

/// Bytes in shared memory, zero at first.
class SharedBytes {
  public:
    SharedBytes(std::size_t count, std::size_t element_bytes);
    SharedBytes(SharedBytes&&) noexcept;
    SharedBytes& operator=(SharedBytes&&) noexcept;
    SharedBytes(const SharedBytes&) = delete;
    SharedBytes& operator=(const SharedBytes&) = delete;
    ~SharedBytes();
    void* data() const noexcept { return data_; }
    std::size_t count() const noexcept { return count_; }

  private:
    friend struct Access;
    struct Memory;
    std::unique_ptr<Memory> memory_;
    void* data_ = nullptr;
    std::size_t count_ = 0;
};
} // namespace detail

/// A buffer of `T`, zero at first, in memory that processes of this host can share. A contiguous range like `std::vector`, of a
/// fixed size.
///
/// Registered by Communicator::register_buffer, large collectives of one host work in it in place: nothing is copied on the way.
/// Moved-from buffers are empty.
template <class T>
class buffer {
    static_assert(is_element_v<T>, "rsccl: no data type for the elements of this buffer");

  public:
    /// Of the elements.
    using value_type = T;
    /// A pointer will do.
    using iterator = T*;
    /// A pointer will do.
    using const_iterator = const T*;

    /// A buffer of `count` elements, all zero.
    /// @throws InvalidArgument for a count of 0 or one that memory cannot hold
    /// @throws SystemError where there is no memory
    explicit buffer(std::size_t count) : bytes_(count, sizeof(T)) {}

    /// Where the elements begin.
    T* data() noexcept { return static_cast<T*>(bytes_.data()); }
    /// Where the elements begin.
    const T* data() const noexcept { return static_cast<const T*>(bytes_.data()); }
    /// How many elements there are.
    std::size_t size() const noexcept { return bytes_.count(); }
    /// Whether there are none.
    bool empty() const noexcept { return size() == 0; }
    /// The first element.
    T* begin() noexcept { return data(); }
    /// Behind the last element.
    T* end() noexcept { return data() + size(); }
    /// The first element.
    const T* begin() const noexcept { return data(); }
    /// Behind the last element.
    const T* end() const noexcept { return data() + size(); }
    /// One element, unchecked.
    T& operator[](std::size_t place) noexcept { return data()[place]; }
    /// One element, unchecked.
    const T& operator[](std::size_t place) const noexcept { return data()[place]; }

  private:
    friend class Communicator;
    detail::SharedBytes bytes_;
};

} // namespace rsccl
