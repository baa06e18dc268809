/// @file
/// The id by which ranks find each other.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

#include <rsccl/config.hpp>

namespace rsccl {

/// Names one communicator-to-be: 128 bytes, which any channel carries that the user trusts (a file, a store, MPI_Bcast): whoever
/// has them can join. One rank generates it, all ranks pass its bytes to Communicator.
///
/// Plain data: it may be broadcast as `sizeof(UniqueId)` bytes at its address.
class UniqueId {
  public:
    /// The length of an id.
    static constexpr std::size_t length = 128;

    /// No id: room for one that is received. Communicators refuse it.
    UniqueId() noexcept = default;

    /// Makes an id. This process serves the ranks that join with it from a thread of its own, which ends when all have come: it waits
    /// half an hour for the first, and from then on as long as init may take. With `NCCL_COMM_ID` the id only names that address, and
    /// rank 0 serves it when it joins.
    /// @throws InvalidUsage where no network interface is usable
    /// @throws InvalidArgument for a field or variable with a bad value
    [[nodiscard]] static UniqueId generate(const Config& config = {});

    /// The id that another rank sent.
    /// @throws InvalidArgument where the length is not 128 or the bytes are no id
    static UniqueId from_bytes(const void* bytes, std::size_t length);

    /// The bytes, to be sent to the other ranks and to nobody else.
    const std::array<std::byte, length>& bytes() const noexcept { return bytes_; }
    /// The first of the bytes.
    std::byte* data() noexcept { return bytes_.data(); }
    /// The first of the bytes.
    const std::byte* data() const noexcept { return bytes_.data(); }
    /// 128.
    static constexpr std::size_t size() noexcept { return length; }

    friend bool operator==(const UniqueId& left, const UniqueId& right) noexcept { return left.bytes_ == right.bytes_; }
    friend bool operator!=(const UniqueId& left, const UniqueId& right) noexcept { return left.bytes_ != right.bytes_; }

  private:
    std::array<std::byte, length> bytes_{};
};

static_assert(sizeof(UniqueId) == UniqueId::length && std::is_trivially_copyable_v<UniqueId>, "an id travels as its bytes");

} // namespace rsccl
