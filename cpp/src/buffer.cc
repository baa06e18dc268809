// Memory that ranks can share: of the host, and of GPUs.
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

struct GpuBytes::Memory {
    rust::Box<ffi::GpuMemory> memory = ffi::gpu_memory();
};

GpuBytes::GpuBytes(std::size_t count, std::size_t element_bytes, Stream stream) : memory_(std::make_unique<Memory>()) {
    if (stream.is_host()) {
        throw InvalidUsage("a gpu_buffer lies on the GPU of a stream, and Stream::host() belongs to none: pass a CUDA stream");
    }
    check(ffi::allocate_on_gpu(*memory_->memory, count, element_bytes, reinterpret_cast<std::uintptr_t>(stream.handle())));
    // NOLINTNEXTLINE: an address of the GPU
    address_ = reinterpret_cast<void*>(ffi::gpu_place(*memory_->memory));
    count_ = count;
}

GpuBytes::GpuBytes(GpuBytes&& other) noexcept
    : memory_(std::move(other.memory_)), address_(std::exchange(other.address_, nullptr)), count_(std::exchange(other.count_, 0)) {}

GpuBytes& GpuBytes::operator=(GpuBytes&& other) noexcept {
    if (this != &other) {
        memory_ = std::move(other.memory_);
        address_ = std::exchange(other.address_, nullptr);
        count_ = std::exchange(other.count_, 0);
    }
    return *this;
}

GpuBytes::~GpuBytes() = default;

const ffi::GpuMemory& Access::memory(const GpuBytes& bytes) {
    if (!bytes.memory_) {
        throw InvalidArgument("the buffer to register was moved from");
    }
    return *bytes.memory_->memory;
}

} // namespace rsccl::detail
