// Stores: C++ classes of the library's stores, and stores that the program implements for the library.
#include <rsccl/store.hpp>

#include <algorithm>
#include <cstring>
#include <limits>

#include "bridge.hpp"

namespace rsccl {

Store::~Store() = default;

namespace {

std::uint64_t milliseconds(Store::Milliseconds timeout) {
    return static_cast<std::uint64_t>(std::max<Store::Milliseconds::rep>(timeout.count(), 0));
}

Store::Milliseconds timeout_of(std::uint64_t milliseconds) {
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
    return Store::Milliseconds(static_cast<std::int64_t>(std::min(milliseconds, most)));
}

} // namespace

namespace detail {

struct BuiltInStore::Handle {
    ~Handle() {
        if (!origin.is_here()) {
            // In a forked child the thread that serves the store does not exist, so the destructor must not wait for it.
            std::move(keep).into_raw();
        }
    }
    rust::Box<ffi::Keep> keep;
    const Origin origin = {};
};

BuiltInStore::BuiltInStore(std::unique_ptr<Handle> handle) noexcept : handle_(std::move(handle)) {}
BuiltInStore::BuiltInStore(BuiltInStore&&) noexcept = default;
BuiltInStore& BuiltInStore::operator=(BuiltInStore&&) noexcept = default;
BuiltInStore::~BuiltInStore() = default;

namespace {

template <class Handle>
const ffi::Keep& keep_of(const std::unique_ptr<Handle>& handle) {
    if (!handle) {
        throw InvalidUsage("the store was moved from");
    }
    return *handle->keep;
}

} // namespace

void BuiltInStore::do_set(const std::string& key, const std::string& value, Milliseconds timeout) {
    check(ffi::store_set(keep_of(handle_), bytes(key), bytes(value), milliseconds(timeout)));
}

std::string BuiltInStore::do_get(const std::string& key, Milliseconds timeout) {
    rust::Vec<std::uint8_t> value;
    check(ffi::store_get(keep_of(handle_), bytes(key), milliseconds(timeout), value));
    return std::string(value.begin(), value.end());
}

std::int64_t BuiltInStore::do_add(const std::string& key, std::int64_t amount, Milliseconds timeout) {
    std::int64_t sum = 0;
    check(ffi::store_add(keep_of(handle_), bytes(key), amount, milliseconds(timeout), sum));
    return sum;
}

void BuiltInStore::do_wait(const std::vector<std::string>& keys, Milliseconds timeout) {
    rust::Vec<rust::String> names;
    for (const std::string& key : keys) {
        try {
            names.push_back(rust::String(key));
        } catch (const std::invalid_argument&) {
            throw InvalidArgument("the key is not UTF-8 text");
        }
    }
    check(ffi::store_wait(keep_of(handle_), {names.data(), names.size()}, milliseconds(timeout)));
}

bool BuiltInStore::do_remove(const std::string& key, Milliseconds timeout) {
    bool was_there = false;
    check(ffi::store_remove(keep_of(handle_), bytes(key), milliseconds(timeout), was_there));
    return was_there;
}

} // namespace detail

FileStore::FileStore(const std::string& folder, Milliseconds timeout)
    : BuiltInStore(std::unique_ptr<Handle>(new Handle{ffi::keep(), {}})) {
    detail::check(ffi::keep_file(*handle_->keep, detail::bytes(folder), milliseconds(timeout)));
}

TcpStore TcpStore::serve(const std::string& address, const Config& config) {
    TcpStore store(std::unique_ptr<Handle>(new Handle{ffi::keep(), {}}));
    detail::check(ffi::keep_served(*store.handle_->keep, detail::bytes(address), *detail::settings(config)));
    return store;
}

TcpStore TcpStore::connect(const std::string& address, const Config& config) {
    TcpStore store(std::unique_ptr<Handle>(new Handle{ffi::keep(), {}}));
    detail::check(ffi::keep_remote(*store.handle_->keep, detail::bytes(address), *detail::settings(config)));
    return store;
}

std::string TcpStore::address() const { return std::string(ffi::keep_address(detail::keep_of(handle_))); }

HashStore::HashStore() : BuiltInStore(std::unique_ptr<Handle>(new Handle{ffi::keep_hash(), {}})) {}

HashStore::HashStore(const HashStore& other)
    : BuiltInStore(std::unique_ptr<Handle>(new Handle{ffi::keep_same(detail::keep_of(other.handle_)), {}})) {}

HashStore& HashStore::operator=(const HashStore& other) {
    handle_.reset(new Handle{ffi::keep_same(detail::keep_of(other.handle_)), {}});
    return *this;
}

UniqueId share(Store& store, const std::string& key, int rank, int size, const Config& config) {
    std::array<std::uint8_t, UniqueId::length> shared{};
    const ffi::ForeignStore own(store);
    if (ffi::Failure* failure = ffi::share(own, detail::bytes(key), rank, size, *detail::settings(config), shared)) {
        const Error error = detail::take_error(failure);
        if (own.thrown()) {
            std::rethrow_exception(own.thrown());
        }
        error.raise();
    }
    UniqueId id;
    std::memcpy(id.data(), shared.data(), UniqueId::length);
    return id;
}

namespace ffi {
namespace {

template <class Body>
Status answer(Body&& body) noexcept {
    try {
        body();
        return Status{0, rust::String(), -1, -1, rust::String()};
    } catch (...) {
        return detail::current_status();
    }
}

} // namespace

void Thrown::put(std::exception_ptr what) noexcept {
    const std::lock_guard<std::mutex> lock(guard_);
    what_ = std::move(what);
}

std::exception_ptr Thrown::take() noexcept {
    const std::lock_guard<std::mutex> lock(guard_);
    return std::exchange(what_, nullptr);
}

template <class Body>
Status ForeignStore::answer(Body&& body) const noexcept {
    return ffi::answer([&] {
        try {
            body();
        } catch (const Error&) {
            throw;
        } catch (...) {
            thrown_ = std::current_exception();
            throw;
        }
    });
}

Status Hook::turn() const noexcept {
    return answer([this] {
        try {
            body_();
        } catch (...) {
            thrown_->put(std::current_exception());
            throw;
        }
    });
}

Status ForeignStore::set(rust::Str key, rust::Slice<const std::uint8_t> value, std::uint64_t timeout_ms) const noexcept {
    return answer([&] { store_.set(std::string(key), std::string(value.begin(), value.end()), timeout_of(timeout_ms)); });
}

Status ForeignStore::get(rust::Str key, std::uint64_t timeout_ms, rust::Vec<std::uint8_t>& value) const noexcept {
    return answer([&] {
        const std::string found = store_.get(std::string(key), timeout_of(timeout_ms));
        value.reserve(found.size());
        for (const char byte : found) {
            value.push_back(static_cast<std::uint8_t>(byte));
        }
    });
}

Status ForeignStore::add(rust::Str key, std::int64_t amount, std::uint64_t timeout_ms, std::int64_t& sum) const noexcept {
    return answer([&] { sum = store_.add(std::string(key), amount, timeout_of(timeout_ms)); });
}

Status ForeignStore::wait(rust::Slice<const rust::Str> keys, std::uint64_t timeout_ms) const noexcept {
    return answer([&] {
        std::vector<std::string> names;
        for (const rust::Str key : keys) {
            names.emplace_back(key);
        }
        store_.wait(names, timeout_of(timeout_ms));
    });
}

Status ForeignStore::remove(rust::Str key, std::uint64_t timeout_ms, bool& was_there) const noexcept {
    return answer([&] { was_there = store_.remove(std::string(key), timeout_of(timeout_ms)); });
}

} // namespace ffi
} // namespace rsccl
