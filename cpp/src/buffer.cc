// Memory that ranks can share: of the host, and of GPUs.
#include <rsccl/buffer.hpp>
#include <rsccl/pool.hpp>

#include <cstdint>
#include <new>
#include <string>
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

SharedBytes::SharedBytes(void* memory, std::size_t count, std::size_t element_bytes, bool is_unpinned) : memory_(std::make_unique<Memory>()) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, element_bytes, &bytes)) {
        throw InvalidArgument("memory of " + std::to_string(count) + " elements to register: no memory is as large");
    }
    check(ffi::move_in_place(*memory_->memory, static_cast<std::uint8_t*>(memory), bytes, is_unpinned));
    data_ = memory;
    count_ = count;
}

std::string SharedBytes::refusal() const {
    if (!memory_) {
        return "it was moved from";
    }
    const rust::String told = ffi::refusal(*memory_->memory);
    return {told.data(), told.size()};
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

struct PoolBytes::Memory {
    rust::Box<ffi::Memory> memory = ffi::memory();
};

PoolBytes::PoolBytes(std::size_t bytes) : memory_(std::make_unique<Memory>()) { check(ffi::make_pool(*memory_->memory, bytes)); }

PoolBytes::~PoolBytes() = default;

void* PoolBytes::take(std::size_t bytes, std::size_t align) {
    void* const place = ffi::take_block(*memory_->memory, bytes, align);
    if (place == nullptr) {
        throw std::bad_alloc();
    }
    return place;
}

void PoolBytes::give(void* place) noexcept { ffi::give_block(*memory_->memory, reinterpret_cast<std::uintptr_t>(place)); }
std::size_t PoolBytes::capacity() const noexcept { return ffi::pool_use(*memory_->memory)[0]; }
std::size_t PoolBytes::in_use() const noexcept { return ffi::pool_use(*memory_->memory)[1]; }
void PoolBytes::trim() noexcept { ffi::trim_pool(*memory_->memory); }

ffi::Memory& Access::memory(PoolBytes& bytes) { return *bytes.memory_->memory; }

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
