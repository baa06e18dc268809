// The unique id.
#include <rsccl/unique_id.hpp>

#include <cstring>

#include "bridge.hpp"

namespace rsccl {

UniqueId UniqueId::generate(const Config& config) {
    std::array<std::uint8_t, length> made{};
    detail::check(ffi::generate_id(*detail::settings(config), made));
    UniqueId id;
    std::memcpy(id.data(), made.data(), length);
    return id;
}

UniqueId UniqueId::from_bytes(const void* bytes, std::size_t length) {
    if (bytes == nullptr && length > 0) {
        throw InvalidArgument("the bytes of the unique id are null, and their number is not 0");
    }
    detail::check(ffi::check_id({static_cast<const std::uint8_t*>(bytes), length}));
    UniqueId id;
    std::memcpy(id.data(), bytes, UniqueId::length);
    return id;
}

} // namespace rsccl
