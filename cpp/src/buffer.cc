// Memory that the ranks of a host can share.
#include <rsccl/buffer.hpp>

#include <utility>

#include "bridge.hpp"

namespace rsccl::detail {

struct SharedBytes::Memory {
    rust::Box<ffi::Memory> memory = ffi::memory();
};

SharedBytes::SharedBytes(std::size_t count, std::size_t element_bytes) : memory_(std::make_unique<Memory>()) {
    check(ffi::allocate(*memory_->memory, count, element_bytes));
    data_ = ffi::place(*memory_->memory);
    count_ = count;
}

SharedBytes::SharedBytes(SharedBytes&& other) noexcept
    : memory_(std::move(other.memory_)), data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}

SharedBytes& SharedBytes::operator=(SharedBytes&& other) noexcept {
    if (this != &other) {
        memory_ = std::move(other.memory_);
        data_ = std::exchange(other.data_, nullptr);
        count_ = std::exchange(other.count_, 0);
    }
    return *this;
}

SharedBytes::~SharedBytes() = default;

ffi::Memory& Access::memory(SharedBytes& bytes) {
    if (!bytes.memory_) {
        throw InvalidArgument("the buffer to register was moved from");
    }
    return *bytes.memory_->memory;
}

} // namespace rsccl::detail
