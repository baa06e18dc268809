/// @file
/// Small values under names, by which processes find each other before there is a communicator.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rsccl/config.hpp>
#include <rsccl/unique_id.hpp>

namespace rsccl {

/// Values under keys, shared by all who use the same store. Keys have 1 to 256 bytes; values are bytes, at most 1 MiB.
///
/// A program may derive a store of its own: it overrides the `do_` calls, which may be made from any thread, one at a time, and
/// throws Timeout where the time is over. Other exceptions of its own come through share() as they are.
/// @throws InvalidArgument (all calls) for a key or value out of bounds
/// @throws Timeout (all calls) at the deadline, with the key's name
/// @throws RemoteError, SystemError (all calls) where the store is out of reach
class RSCCL_PUBLIC Store {
  public:
    /// How long a call may take.
    using Milliseconds = std::chrono::milliseconds;
    /// How long a call waits where it does not say.
    static constexpr Milliseconds default_timeout{120000};

    virtual ~Store();

    /// Puts `value` under `key`, in place of what was there.
    void set(const std::string& key, const std::string& value, Milliseconds timeout = default_timeout) {
        do_set(key, value, timeout);
    }
    /// The value under `key`; waits until there is one.
    std::string get(const std::string& key, Milliseconds timeout = default_timeout) { return do_get(key, timeout); }
    /// Adds to the number under `key`, which begins at 0, and yields the sum. get() yields it as decimal digits.
    /// @throws InvalidUsage where the value is not a number or the sum overflows
    std::int64_t add(const std::string& key, std::int64_t amount, Milliseconds timeout = default_timeout) {
        return do_add(key, amount, timeout);
    }
    /// Waits until all `keys` (at most 1024) have values.
    void wait(const std::vector<std::string>& keys, Milliseconds timeout = default_timeout) { do_wait(keys, timeout); }
    /// Removes `key`; false where there was none.
    bool remove(const std::string& key, Milliseconds timeout = default_timeout) { return do_remove(key, timeout); }

  protected:
    Store() noexcept = default;
    /// For classes that can be copied.
    Store(const Store&) noexcept = default;
    /// For classes that can be copied.
    Store& operator=(const Store&) noexcept = default;

  private:
    virtual void do_set(const std::string& key, const std::string& value, Milliseconds timeout) = 0;
    virtual std::string do_get(const std::string& key, Milliseconds timeout) = 0;
    virtual std::int64_t do_add(const std::string& key, std::int64_t amount, Milliseconds timeout) = 0;
    virtual void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) = 0;
    virtual bool do_remove(const std::string& key, Milliseconds timeout) = 0;
};

namespace detail {
/// A store that the library has.
class RSCCL_PUBLIC BuiltInStore : public Store {
  public:
    BuiltInStore(BuiltInStore&&) noexcept;
    BuiltInStore& operator=(BuiltInStore&&) noexcept;
    ~BuiltInStore() override;

  protected:
    struct Handle;
    explicit BuiltInStore(std::unique_ptr<Handle> handle) noexcept;
    std::unique_ptr<Handle> handle_;

  private:
    void do_set(const std::string& key, const std::string& value, Milliseconds timeout) override;
    std::string do_get(const std::string& key, Milliseconds timeout) override;
    std::int64_t do_add(const std::string& key, std::int64_t amount, Milliseconds timeout) override;
    void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) override;
    bool do_remove(const std::string& key, Milliseconds timeout) override;
};
} // namespace detail

/// A folder that all processes can reach. Only its owner may write to it.
class RSCCL_PUBLIC FileStore : public detail::BuiltInStore {
  public:
    /// Opens the store in `folder`, which is made where it does not exist (mode 0700; its parent must exist).
    /// @throws SystemError where the folder cannot be made or used
    /// @throws InvalidArgument where others than its owner may write to it
    explicit FileStore(const std::string& folder, Milliseconds timeout = default_timeout);
};

/// A store that one process serves at an address, over TCP. Calls of several threads on one TcpStore take turns.
class RSCCL_PUBLIC TcpStore : public detail::BuiltInStore {
  public:
    /// Serves a store at `address`, "ip:port" or "[ipv6]:port" (port 0 takes a free one), as long as it lives. Clients prove that
    /// they hold the configuration's secret; without one any process that reaches the port can read and write.
    /// @throws InvalidArgument where the address is none
    /// @throws SystemError where it is taken or not ours
    static TcpStore serve(const std::string& address, const Config& config = {});
    /// Opens the store that is or will be served at `address`, "host:port". Connects with the first call.
    /// @throws InvalidArgument where the address is none or the host is not known
    static TcpStore connect(const std::string& address, const Config& config = {});
    /// Where it is served: "ip:port".
    std::string address() const;

  private:
    using BuiltInStore::BuiltInStore;
};

/// Values in memory, for the threads of one process. Copies share them.
class RSCCL_PUBLIC HashStore : public detail::BuiltInStore {
  public:
    /// An empty store.
    HashStore();
    /// The same store once more.
    HashStore(const HashStore& other);
    /// The same store once more.
    HashStore& operator=(const HashStore& other);
};

/// Gives all of `size` members the same id: rank 0 makes it and puts it under `key`, the others take it. When all have it, the last
/// one removes it, for it holds a secret.
/// @throws InvalidArgument where something else lies under the key, or `rank` is not below `size`
/// @throws Error rank 0's in making the id, on every rank; those of the store
UniqueId share(Store& store, const std::string& key, int rank, int size, const Config& config = {});

} // namespace rsccl
