/// @file
/// Memory for containers that ranks can share from the start.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <type_traits>

#include <rsccl/buffer.hpp>

namespace rsccl {

namespace detail {
/// The blocks of a pool. Any thread may call it.
class PoolBytes {
  public:
    explicit PoolBytes(std::size_t bytes);
    PoolBytes(const PoolBytes&) = delete;
    PoolBytes& operator=(const PoolBytes&) = delete;
    ~PoolBytes();
    /// @throws std::bad_alloc
    void* take(std::size_t bytes, std::size_t align);
    void give(void* place) noexcept;
    std::size_t capacity() const noexcept;
    std::size_t in_use() const noexcept;
    void trim() noexcept;

  private:
    friend struct Access;
    struct Memory;
    std::unique_ptr<Memory> memory_;
};
} // namespace detail

template <class T>
class allocator;

/// Memory for many containers that processes of this host can share from the start: a `std::pmr::memory_resource`, and what an `allocator`
/// allocates from.
///
/// Registered once by Communicator::register_buffer, large collectives of one host work in place in all that lies in it, as in a `buffer`:
/// also in what is allocated later. Memory is taken when it is first written, so a pool may be made as large as the program will ever
/// need. Blocks that are freed are used again.
///
/// Each page lies on the NUMA node of the thread that first writes it; a block that is used again lies where it lay. A `std::vector` of a
/// length writes all its elements as it is made: for first touch by the threads of a solver, take bytes by `allocate` and let each thread
/// write its own. All blocks of a pool are one registration, and need one file descriptor.
///
/// Containers of an `allocator` keep the pool's memory; what was allocated from the pool as a `std::pmr::memory_resource` ends before the
/// pool. Any thread may allocate, at an alignment of up to 4096. A child that the process forks has the same memory, not a copy of it, and
/// gets no block (`std::bad_alloc`).
///
/// A call in the pool that fails while a peer's process stands still there takes the whole pool out of the peers' reach: what is in use is
/// copied, calls of other communicators that work in the pool at that moment fail, and trim() does nothing from then on. Later calls in it
/// work through scratch, until the pool is registered anew while it has no block.
/// @code
/// rsccl::pool pool(std::size_t{1} << 30);
/// comm.register_buffer(pool);
/// std::vector<float, rsccl::allocator<float>> field(1 << 20, pool);
/// std::pmr::vector<double> halo(1 << 16, &pool);
/// comm.all_reduce_in_place(field);
/// @endcode
class pool : public std::pmr::memory_resource {
  public:
    /// For `bytes` in all.
    /// @throws InvalidArgument for 0 bytes or more than there are addresses
    /// @throws SystemError where the system has no such memory
    explicit pool(std::size_t bytes) : bytes_(std::make_shared<detail::PoolBytes>(bytes)) {}
    pool(const pool&) = delete;
    pool& operator=(const pool&) = delete;
    ~pool() override = default;
    /// The bytes for all blocks.
    std::size_t capacity() const noexcept { return bytes_->capacity(); }
    /// The bytes in blocks, rounded up as each of them is.
    std::size_t in_use() const noexcept { return bytes_->in_use(); }
    /// Gives the memory of what is free back to the system.
    void trim() noexcept { bytes_->trim(); }

  private:
    friend class Communicator;
    template <class T>
    friend class allocator;
    void* do_allocate(std::size_t bytes, std::size_t align) override { return bytes_->take(bytes, align); }
    void do_deallocate(void* place, std::size_t, std::size_t) override { bytes_->give(place); }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
    std::shared_ptr<detail::PoolBytes> bytes_;
};

/// Allocates from a `pool`, which converts to it: `std::vector<float, rsccl::allocator<float>> field(count, pool)`. Its containers keep the
/// pool's memory.
template <class T>
class allocator {
  public:
    /// What it allocates.
    using value_type = T;
    /// A container that is assigned another one's elements by moving keeps that one's blocks.
    using propagate_on_container_move_assignment = std::true_type;
    /// Containers that are swapped swap their pools.
    using propagate_on_container_swap = std::true_type;

    /// Of this pool.
    allocator(const pool& of) noexcept : bytes_(of.bytes_) {} // NOLINT: that is how containers are made
    /// Of the same pool.
    template <class U>
    allocator(const allocator<U>& other) noexcept : bytes_(other.bytes_) {} // NOLINT: as allocators must

    /// Memory for `count` elements.
    /// @throws std::bad_alloc where the pool or the system has no room, and in a forked child
    T* allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        return static_cast<T*>(bytes_->take(count * sizeof(T), alignof(T)));
    }
    /// Frees it.
    void deallocate(T* place, std::size_t) noexcept { bytes_->give(place); }

    /// Whether one frees what the other has allocated.
    template <class U>
    bool operator==(const allocator<U>& other) const noexcept {
        return bytes_ == other.bytes_;
    }
    /// The opposite.
    template <class U>
    bool operator!=(const allocator<U>& other) const noexcept {
        return bytes_ != other.bytes_;
    }

  private:
    template <class U>
    friend class allocator;
    std::shared_ptr<detail::PoolBytes> bytes_;
};

} // namespace rsccl
