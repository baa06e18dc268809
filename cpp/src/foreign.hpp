// What programs write and the library calls, as the bridge sees it. Nothing here throws: exceptions become a Status.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <rust/cxx.h>

#include <rsccl/log.hpp>
#include <rsccl/store.hpp>

namespace rsccl::ffi {

struct Status;
struct Line;

// What a hook has thrown, until a call of its communicator throws it on.
class Thrown {
  public:
    void put(std::exception_ptr what) noexcept;
    std::exception_ptr take() noexcept;

  private:
    std::mutex guard_;
    std::exception_ptr what_;
};

class Hook {
  public:
    Hook(std::function<void()> body, std::shared_ptr<Thrown> thrown) : body_(std::move(body)), thrown_(std::move(thrown)) {}
    Status turn() const noexcept;

  private:
    std::function<void()> body_;
    std::shared_ptr<Thrown> thrown_;
};

class LogCallback {
  public:
    explicit LogCallback(std::function<void(const LogLine&)> body) : body_(std::move(body)) {}
    void take(const Line& line) const noexcept;

  private:
    std::function<void(const LogLine&)> body_;
};

// A store, for the length of a call. Errors travel as such; what else it throws is kept for the caller.
class ForeignStore {
  public:
    explicit ForeignStore(Store& store) noexcept : store_(store) {}
    Status set(rust::Str key, rust::Slice<const std::uint8_t> value, std::uint64_t timeout_ms) const noexcept;
    Status get(rust::Str key, std::uint64_t timeout_ms, rust::Vec<std::uint8_t>& value) const noexcept;
    Status add(rust::Str key, std::int64_t amount, std::uint64_t timeout_ms, std::int64_t& sum) const noexcept;
    Status wait(rust::Slice<const rust::Str> keys, std::uint64_t timeout_ms) const noexcept;
    Status remove(rust::Str key, std::uint64_t timeout_ms, bool& was_there) const noexcept;
    const std::exception_ptr& thrown() const noexcept { return thrown_; }

  private:
    template <class Body>
    Status answer(Body&& body) const noexcept;
    Store& store_;
    mutable std::exception_ptr thrown_;
};

} // namespace rsccl::ffi
