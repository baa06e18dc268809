/// @file
/// Memory that ranks can share: of the host, and of GPUs.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <rsccl/types.hpp>

namespace rsccl {

class Communicator;

namespace detail {
struct Access;

/// Bytes in memory that other processes can map.
class SharedBytes {
  public:
    // New ones, zero at first.
    SharedBytes(std::size_t count, std::size_t element_bytes);
    // Memory of the program, where it lies.
    SharedBytes(void* memory, std::size_t count, std::size_t element_bytes, bool is_unpinned);
    SharedBytes(SharedBytes&&) noexcept;
    SharedBytes& operator=(SharedBytes&&) noexcept;
    SharedBytes(const SharedBytes&) = delete;
    SharedBytes& operator=(const SharedBytes&) = delete;
    ~SharedBytes();
    void* data() const noexcept { return data_; }
    std::size_t count() const noexcept { return count_; }
    std::string refusal() const;

  private:
    friend struct Access;
    struct Memory;
    std::unique_ptr<Memory> memory_;
    void* data_ = nullptr;
    std::size_t count_ = 0;
};

/// Bytes in the memory of a GPU, zero at first.
class GpuBytes {
  public:
    GpuBytes(std::size_t count, std::size_t element_bytes, Stream stream);
    GpuBytes(GpuBytes&&) noexcept;
    GpuBytes& operator=(GpuBytes&&) noexcept;
    GpuBytes(const GpuBytes&) = delete;
    GpuBytes& operator=(const GpuBytes&) = delete;
    ~GpuBytes();
    void* address() const noexcept { return address_; }
    std::size_t count() const noexcept { return count_; }

  private:
    friend struct Access;
    struct Memory;
    std::unique_ptr<Memory> memory_;
    void* address_ = nullptr;
    std::size_t count_ = 0;
};
} // namespace detail

/// A buffer of `T`, zero at first, in memory that processes of this host can share. A contiguous range like `std::vector`, of a
/// fixed size.
///
/// Registered by Communicator::register_buffer, large collectives of one host work in it in place: nothing is copied on the way.
/// Moved-from buffers are empty. A child that the process forks has the same memory, not a copy of it.
template <class T>
class buffer {
    static_assert(is_element_v<T>, "rsccl: no data type for the elements of this buffer: for what is only moved, make it a buffer of std::byte");

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

/// What the program knows of pages that it, or a library in it, has pinned for a device (io_uring, RDMA).
enum class Pins {
    /// Nothing. In a process that has pinned pages (`VmPin` in `/proc/self/status`) memory stays where it is.
    unknown,
    /// None of these pages is pinned, and none will be: what a device wrote into one would be lost.
    none_here,
};

/// Elements that the program has allocated, registered where they lie; made by register_memory(). A contiguous range like `buffer`, which calls
/// take. Destroying it gives the pages back, also on the way of an exception. It can be moved and not copied.
template <class T>
class [[nodiscard]] registered {
    static_assert(is_element_v<T>, "rsccl: no data type for the elements of this memory: for what is only moved, register it as std::byte");

  public:
    /// Of the elements.
    using value_type = T;
    /// A pointer will do.
    using iterator = T*;
    /// A pointer will do.
    using const_iterator = const T*;

    /// Why the pages have stayed where they were, in a sentence; empty if they have moved. Calls work either way.
    std::string refusal() const { return bytes_.refusal(); }
    /// Where the elements begin; null for what was moved from.
    T* data() noexcept { return static_cast<T*>(bytes_.data()); }
    /// Where the elements begin; null for what was moved from.
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
    template <class U>
    friend registered<U> register_memory(U* memory, std::size_t count, Pins pins);
    explicit registered(detail::SharedBytes bytes) noexcept : bytes_(std::move(bytes)) {}
    detail::SharedBytes bytes_;
};

/// Moves the whole pages of `count` elements that the program has allocated, as a `std::vector` does or a solver's arena, to memory that
/// processes of this host can share, and maps them over themselves: address and content stay. Registered by
/// Communicator::register_buffer, large collectives of one host work in it in place, as in a `buffer`. Calls take the result, or pointers
/// into it.
///
/// Moving costs as much as some dozens of calls save, and giving back as much again: it pays for memory that is used in some hundred calls,
/// and is a loss around a single one. A GiB took 460 ms to register and 850 to 880 to give back. From 1 MiB on it pays after 21 to
/// 31 all-reduces of two ranks, below that after up to 57 (measured in Rust: bench/NOTES.md, "Registered where it lies"). A `buffer` or a `pool` costs nothing.
///
/// The program promises: no thread reads or writes the elements while this runs, nor while the result is destroyed, and no call is at work
/// in them then; no thread writes them while Communicator::register_buffer runs; they are neither freed nor resized in between, so that a
/// vector does not grow. Otherwise stores are lost, or ranks work in memory that is no longer there. A debug build of the library looks at
/// the mapping in each call that would work there, and throws InvalidUsage; each build looks before it gives pages back, and gives nothing
/// back to memory that is no longer there.
///
/// Memory that must stay where it is, stays, and registered::refusal says why: mapped files, and so the initialised data of a program;
/// shared mappings; hugetlbfs; locked pages; the main thread's stack; all memory of a process that has pinned pages, for Pins::unknown.
/// Policies of NUMA nodes and huge pages go along. A forked child has a copy of its own. Each registration needs a file descriptor.
/// @code
/// std::vector<float> field(1 << 20);
/// auto shared = rsccl::register_memory(field.data(), field.size());
/// comm.register_buffer(shared);
/// for (int step = 0; step < steps; ++step) {
///     comm.all_reduce_in_place(shared);
/// }
/// @endcode
/// @throws InvalidArgument for a null pointer, and for more elements than memory holds
template <class T>
registered<T> register_memory(T* memory, std::size_t count, Pins pins = Pins::unknown) {
    return registered<T>(detail::SharedBytes(memory, count, sizeof(T), pins == Pins::none_here));
}
/// The same for bytes of any type.
inline registered<std::byte> register_memory(void* memory, std::size_t bytes, Pins pins = Pins::unknown) {
    return register_memory(static_cast<std::byte*>(memory), bytes, pins);
}

/// A buffer of `T` in the memory of a GPU, zero at first, which other processes of this host can map (NCCL: `ncclMemAlloc`).
///
/// Registered by Communicator::register_window, calls of ranks in several processes or on several GPUs work in it in place. The host cannot read its
/// elements: every call that gets the buffer needs a Stream of the GPU, or does not compile, and a kernel or a copy of the program's own gets data().
/// Moved-from buffers are empty. It takes whole granules of 2 MiB: allocate few, large ones.
template <class T>
class gpu_buffer {
    static_assert(is_element_v<T>, "rsccl: no data type for the elements of this buffer: for what is only moved, make it a buffer of std::byte");

  public:
    /// Of the elements.
    using value_type = T;

    /// A buffer of `count` elements, all zero, on the GPU that `stream` belongs to; `Stream(nullptr)` belongs to the GPU that is current
    /// in this thread.
    /// @throws InvalidArgument for a count of 0 or one that no address space holds
    /// @throws InvalidUsage for the host as the stream, and where the library was built without GPUs
    /// @throws SystemError where there is no driver or no memory
    gpu_buffer(std::size_t count, Stream stream) : bytes_(count, sizeof(T), stream) {}

    /// Where the elements begin, on the GPU.
    T* data() noexcept { return static_cast<T*>(bytes_.address()); }
    /// Where the elements begin, on the GPU.
    const T* data() const noexcept { return static_cast<const T*>(bytes_.address()); }
    /// How many elements there are.
    std::size_t size() const noexcept { return bytes_.count(); }
    /// Whether there are none.
    bool empty() const noexcept { return size() == 0; }

  private:
    friend class Communicator;
    detail::GpuBytes bytes_;
};

/// Memory of a GPU that Communicator::register_window has registered on all ranks. It can be moved and not copied. Destroying it leaves
/// the memory registered until the communicator ends; Communicator::deregister_window takes it back before.
class [[nodiscard]] Window {
  public:
    /// The other is empty afterwards.
    Window(Window&&) noexcept;
    /// The other is empty afterwards.
    Window& operator=(Window&&) noexcept;
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    ~Window();
    /// Whether ranks of other processes and GPUs work in it. Otherwise calls in it run as calls in any buffer do; the log says why
    /// (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=REG`). The same on all ranks; false for a moved-from window.
    bool is_direct() const noexcept;

  private:
    friend class Communicator;
    struct Registered;
    explicit Window(std::unique_ptr<Registered> registered) noexcept;
    std::unique_ptr<Registered> registered_;
};

} // namespace rsccl
