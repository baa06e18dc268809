/// @file
/// Communicators: ranks that call collectives together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rsccl/buffer.hpp>
#include <rsccl/collectives.hpp>
#include <rsccl/config.hpp>
#include <rsccl/error.hpp>
#include <rsccl/persistent.hpp>
#include <rsccl/memory_use.hpp>
#include <rsccl/placement.hpp>
#include <rsccl/pool.hpp>
#include <rsccl/request.hpp>
#include <rsccl/store.hpp>
#include <rsccl/unique_id.hpp>
#include <rsccl/version.hpp>

namespace rsccl {

namespace detail {
struct State;

/// Only libraries that fit these headers have it: with another one a program does not link, or does not start.
extern const char RSCCL_DETAIL_ABI;
// Static: a variable that all shared objects have in common would keep plugins from being unloaded.
[[gnu::used]] static const char* const library_is_of_these_headers = &RSCCL_DETAIL_ABI;
} // namespace detail

/// Stops a communicator from any thread. Copies stop the same one; it may outlive its communicator. A moved-from handle stops nothing.
class AbortHandle {
  public:
    /// Makes the call that waits on the communicator now, and every later one, end with Aborted. The first that ends so tells the
    /// other ranks, whose calls then end likewise. Does nothing once the communicator is gone.
    /// @param reason what the ranks' errors say
    void abort(const std::string& reason) const noexcept;

  private:
    friend class Communicator;
    friend struct detail::Access;
    struct Flag;
    explicit AbortHandle(std::shared_ptr<const Flag> flag) noexcept : flag_(std::move(flag)) {}
    std::shared_ptr<const Flag> flag_;
};

/// Begins operations that go on while the program does other things: `comm.start().all_reduce(in, out)`. It has all collectives and
/// messages of Communicator; each returns a Request. A send to the own rank, and a recv from it, go by send_recv() only. Used at once,
/// not kept.
class [[nodiscard]] Starter : public Collectives<Starter, Request, detail::Lifetime::outlives> {
  public:
    /// My rank.
    int rank() const;
    /// The number of ranks.
    int size() const;

  private:
    friend class Communicator;
    friend class Collectives<Starter, Request, detail::Lifetime::outlives>;
    explicit Starter(detail::State& state) noexcept : state_(&state) {}
    int rank_now() const;
    int size_now() const;
    Request submit(const detail::Call& call) const;
    detail::State* state_;
};

/// Prepares calls that run again and again: `comm.prepare().all_reduce(in, out)`. It has all collectives and messages of Communicator; each
/// returns a PersistentCall. A send to the own rank, and a recv from it, go by send_recv() only. On host memory. Used at once, not kept.
class [[nodiscard]] Preparer : public Collectives<Preparer, PersistentCall, detail::Lifetime::outlives> {
  public:
    /// My rank.
    int rank() const;
    /// The number of ranks.
    int size() const;

  private:
    friend class Communicator;
    friend class Collectives<Preparer, PersistentCall, detail::Lifetime::outlives>;
    explicit Preparer(detail::State& state) noexcept : state_(&state) {}
    int rank_now() const;
    int size_now() const;
    PersistentCall submit(const detail::Call& call) const;
    detail::State* state_;
};

/// One rank's handle of a group of ranks that call collectives together.
///
/// Used by one thread at a time: a call while another thread is in one throws InvalidUsage and does no harm. abort(),
/// abort_handle(), async_error(), rank() and size() may be called by any thread at any time.
///
/// Its members are const but those that change the communicator itself: finalize(), set_progress() and assignment. A
/// `const Communicator&` makes calls, as a copy of an `MPI_Comm` does. Const does not mean that two threads may call.
///
/// It can be moved and not copied. A moved-from or default-made communicator is empty: calls throw InvalidUsage.
///
/// It belongs to the process that made it. In a child that fork() has made calls throw InvalidUsage, and the destructors of it and of
/// its requests do nothing; a child makes a communicator of its own, whatever its parent has had or has. A child does not keep its
/// parent's connections open: if the parent ends, the other ranks know that at once. (A child of `_Fork` or a bare clone does; it must
/// run another program at once.)
///
/// The destructor waits for requests that are under way and says goodbye to the other ranks; where an exception is leaving the
/// communicator's scope it aborts, so that nobody waits for this rank. Of a child that a non-blocking split is still making it waits
/// until all ranks have come to the split, or its deadline. It does not throw: finalize() says what went wrong. Of a mismatch that
/// no call has thrown, the destructor tells on standard error.
class [[nodiscard]] Communicator : public Collectives<Communicator, void, detail::Lifetime::call> {
  public:
    /// No communicator.
    Communicator() noexcept;
    /// Joins the communicator of `id` as `rank` of `size`. Collective: all ranks do, with the same id and size. Where the
    /// configuration says non-blocking, it returns at once: async_error() tells when the communicator can be used.
    /// @throws InvalidArgument where `rank` is not below `size`, the id is none, or a field or variable has a bad value
    /// @throws Timeout naming the ranks that have not come by the deadline of init
    /// @throws Mismatch where ranks disagree about the size or the settings, or two have one number
    Communicator(const UniqueId& id, int rank, int size, const Config& config = {});
    /// The other is empty afterwards.
    Communicator(Communicator&&) noexcept;
    /// The other is empty afterwards; what this was ends as by the destructor.
    Communicator& operator=(Communicator&&) noexcept;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator();

    /// The constructor with several ids, so that several processes share the work of serving a large world: the ranks are cut into
    /// as many contiguous blocks. All ranks pass the same ids in the same order.
    /// @throws InvalidArgument also where there are no ids, or more than ranks
    static Communicator init_scalable(const std::vector<UniqueId>& ids, int rank, int size, const Config& config = {});
    /// Communicators of `ranks` ranks in this process, in rank order: each goes to a thread of its own. Returns when all are ready,
    /// also where the configuration says non-blocking.
    /// @throws InvalidArgument for less than 1 rank, or a field or variable with a bad value
    static std::vector<Communicator> init_all(int ranks, const Config& config = {});
    /// The communicator of all processes that a launcher started: `rsccl run`, torchrun, `mpirun`, `srun`. They meet at `NCCL_COMM_ID`,
    /// at `RSCCL_STORE`, in private if the launcher says that all are on one host, or at `MASTER_ADDR` and `MASTER_PORT`
    /// (docs/launchers.md). May be called again: each call makes one more communicator of the same processes, and after a failed
    /// call a further one meets ranks that start later.
    /// @throws InvalidArgument that names the variable which is missing or wrong, or two launchers of which none can be preferred
    /// @throws InvalidUsage if another job has the place
    static Communicator from_env(const Config& config = {});
    /// Joins a communicator whose id travels through `store`, under `key`. All ranks pass the same store, size and key; a key serves
    /// one communicator at a time. After a try that has failed all may try again under it: a rank that comes late for one try waits
    /// for the next.
    /// @throws Error as share() and the constructor
    static Communicator from_store(Store& store, int rank, int size, const Config& config = {},
                                   const std::string& key = "rsccl/id");

    /// Whether it is a communicator: neither empty nor finalized.
    explicit operator bool() const noexcept;
    /// My rank, below size(). Of a child that a non-blocking split is making: waits until it is made; where that fails, rank and size
    /// are 0.
    /// @throws InvalidUsage on an empty communicator
    int rank() const;
    /// The number of ranks; waits as rank() does.
    /// @throws InvalidUsage on an empty communicator
    int size() const;

    /// Begins an operation: `comm.start().all_reduce(in, out)` returns its Request.
    /// @throws InvalidUsage on an empty communicator
    Starter start() const;

    /// Prepares a call that runs again and again: `comm.prepare().all_reduce(in, out)` returns its PersistentCall. Preparing
    /// waits until the collectives of requests that are under way have ended; this method itself does not.
    /// @throws InvalidUsage on an empty communicator
    Preparer prepare() const;

    /// Splits the ranks: those that pass the same `color` form a new communicator, ranked by (`key`, old rank); those that pass
    /// nothing get nothing. Collective over all ranks. The child lives on without its parent. Requests that are under way go on
    /// meanwhile, here as in by_color(), on_my_host(), cross() and register_buffer(). Where the configuration says non-blocking
    /// and no request is under way, it returns at once: async_error() of the child tells when that can be used, and that of this
    /// communicator when it can be used again; rank() and size() of the child wait for it. If one rank cannot make its part of a
    /// child, for want of descriptors, memory or threads, no rank gets a child: all have that rank's error, and this communicator is
    /// as before.
    /// @throws InvalidArgument for a negative color
    [[nodiscard]] std::optional<Communicator> split(std::optional<int> color, std::int64_t key = 0) const;
    /// split() where every rank has a color.
    Communicator by_color(int color, std::int64_t key = 0) const;
    /// The ranks of my host, in rank order. Collective over all ranks; non-blocking as split() is.
    Communicator on_my_host() const;
    /// The ranks with my local rank, one of each host that has as many ranks, in the order of the hosts. Collective over all ranks;
    /// non-blocking as split() is.
    Communicator cross() const;
    /// Tells every rank how many elements this rank will send to it, `send_counts[r]` to rank r; yields how many each will send here: the
    /// `recv_counts` of all_to_all_v(). All ranks call it.
    /// @throws InvalidArgument where there is not one count for each rank
    template <class C = std::initializer_list<std::size_t>>
    std::vector<std::size_t> exchange_counts(const C& send_counts) const {
        const std::vector<std::size_t> sent = detail::counts_of(send_counts, rank_now(), detail::Kind::all_to_all_v);
        if (sent.size() != static_cast<std::size_t>(size_now())) {
            detail::refuse_counts(rank_now(), detail::Kind::all_to_all_v, sent.size(), size_now());
        }
        std::vector<std::size_t> received(sent.size());
        all_to_all(sent, received);
        return received;
    }
    /// The reduction of every rank's `value`, on every rank: all_reduce() of one number.
    /// @code
    /// const double norm = std::sqrt(comm.all_reduce_value(mine));
    /// @endcode
    /// @throws Error as all_reduce()
    template <class T>
    [[nodiscard]] T all_reduce_value(T value, ReduceOp op = ReduceOp::sum) const {
        static_assert(is_element_v<T>, "rsccl: a value is an integer of 1, 4 or 8 bytes, float, double, a small float, or of a type with a "
                                       "data_type_of; several values are a buffer, for all_reduce()");
        if constexpr (is_element_v<T>) {
            all_reduce_in_place(view(&value, 1), op);
        }
        return value;
    }
    /// A new communicator of all ranks but `excluded`, which may be dead; this one may have failed. Called by the survivors, with the
    /// same list. Ranks keep their order. Where the configuration says non-blocking, it returns at once, as split() does.
    /// @throws InvalidArgument where this rank or no rank is excluded
    /// @throws InvalidUsage while requests are under way: wait for them first. Those of a communicator that has failed have ended.
    Communicator shrink(const std::vector<int>& excluded) const;
    /// Where this rank is among the hosts, and the GPU that it is meant to use. Not collective: the ranks have told each other in init
    /// what they see, and a child of split() or shrink() has that from its parent. Any rank may ask at any time, also while requests are
    /// under way. The GPU is chosen by what the threads that called init saw then: their processors, their CUDA_VISIBLE_DEVICES.
    /// A child chooses anew, among its own ranks: its GPU may be another than its parent's.
    /// @throws InProgress while this communicator is being made by a non-blocking init, split or shrink; the error with which that has failed
    /// @throws InvalidUsage in a forked child
    Placement placement() const;
    /// How much memory this rank holds for the communicator, by what it is for. No other rank is asked; the command `rsccl status
    /// --details` shows the same from outside.
    /// @throws InvalidUsage while another thread's call has the communicator; the error with which it has failed
    MemoryUse memory() const;

    /// Makes the call that waits on the communicator now, and every later one, end with Aborted. The first that ends so tells the
    /// other ranks, whose calls then end likewise. Any thread may call it. Nothing happens on an empty communicator.
    /// @param reason what the ranks' errors say
    void abort(const std::string& reason) const noexcept;
    /// What abort() of this communicator is called through where the communicator itself is out of reach.
    /// @throws InvalidUsage on an empty communicator
    [[nodiscard]] AbortHandle abort_handle() const;
    /// What ended this communicator, if anything did; InProgress while a non-blocking init, split or shrink is under way. Never waits.
    /// Any thread may call it, also while another is in a call.
    /// @throws InvalidUsage on an empty communicator
    [[nodiscard]] std::optional<Error> async_error() const;
    /// Waits for requests that are under way, says goodbye to the other ranks and frees everything. They go on with what they have
    /// begun; a collective that would need this rank is an error there. The communicator is finalized afterwards: calls throw
    /// InvalidUsage. Of a communicator whose non-blocking split or shrink is under way it throws InProgress at once: call it again when
    /// async_error() says that it is over. The destructor waits for that.
    /// @throws Error that had ended the communicator before
    void finalize();

    /// Has `hook` called again and again while a call on this communicator waits, on whichever thread waits (where nobody
    /// waits for a request, on a thread of the library; never two at a time): for a second library that needs to
    /// be driven. An exception that it throws ends the wait and the communicator, on all ranks: the call throws Aborted with its
    /// words, or where it is an Error the class of its kind, and the exception itself is nested in that (`std::rethrow_if_nested`). An
    /// empty hook takes the last one away. The hook must not call this communicator. Communicators that are split or shrunk from this
    /// one begin with the same hook.
    /// @throws InvalidUsage while requests are under way: wait for them first
    void set_progress(std::function<void()> hook);

    /// Lets the other ranks work in `memory` during collectives, so that large ones need no copies. Collective: all ranks register, in
    /// the same order; lengths may differ. A call whose ranks use unregistered buffers works all the same, through scratch, and so does
    /// every call of a communicator over several hosts or of more than 64 ranks, where registering does nothing. A message of 8 KiB and
    /// more out of such memory is copied once, by its receiver, if that one comes soon or the message is longer than a connection
    /// has room for; else twice.
    ///
    /// No thread writes the elements of a `buffer`, or of memory that was registered where it lies, while this runs: after a call that
    /// failed they may be copied. The containers of a `pool` may be written.
    ///
    /// The memory stays mapped, here and by the other ranks, until deregister_buffer(), or the end of the communicator. Buffers that
    /// all ranks have destroyed are given back when they next register or deregister one.
    /// @throws InvalidArgument for a moved-from buffer
    /// @throws InvalidUsage for more than 1,024 registrations at a time
    template <class T>
    void register_buffer(buffer<T>& memory) const {
        register_memory(memory.bytes_, false);
    }
    /// The same for memory that was registered where it lies, by rsccl::register_memory().
    template <class T>
    void register_buffer(registered<T>& memory) const {
        register_memory(memory.bytes_, false);
    }
    /// The same for a pool, once: calls work in place in all that lies in it, also in what is allocated later.
    void register_buffer(pool& memory) const { register_memory(*memory.bytes_, false); }
    /// Takes a buffer back: from now on no call works in it in place, and no rank keeps it mapped. Collective: all ranks call it, each with
    /// its buffer of the same register_buffer(). Until all have, the memory stays mapped. A buffer that was not registered changes
    /// nothing. What the buffer holds stays.
    /// @throws InvalidArgument for a moved-from buffer
    template <class T>
    void deregister_buffer(buffer<T>& memory) const {
        register_memory(memory.bytes_, true);
    }
    /// The same for a pool.
    void deregister_buffer(pool& memory) const { register_memory(*memory.bytes_, true); }
    /// The same for memory that was registered where it lies. Destroying that gives its pages back.
    template <class T>
    void deregister_buffer(registered<T>& memory) const {
        register_memory(memory.bytes_, true);
    }

    /// Lets the ranks of other processes and GPUs work in `memory` in place (NCCL: `ncclCommWindowRegister` with `NCCL_WIN_COLL_SYMMETRIC`).
    /// Collective: all ranks register, in the same order, buffers of the same length, and wait for each other.
    ///
    /// A call takes part in this if the buffers in which its peers work lie in windows: of all_reduce `send` and `recv`; of all_gather,
    /// all_gather_v, broadcast and scatter `recv`, or the one buffer of a broadcast; of reduce_scatter, reduce_scatter_v, all_to_all,
    /// reduce and gather `send`, or the one buffer in place. The caller promises that all ranks then pass the same place for these
    /// buffers: the same window, and the same distance from its beginning. A rank that does not ends the call with a Mismatch. Where the
    /// root of a gather or scatter is in place, its own block lies inside its longer buffer: then the others pass their blocks at the same
    /// distance as that block. The other buffer of a call may lie anywhere, on each rank at another place, and what a rank passes that
    /// the call ignores does not count.
    ///
    /// Other calls work in windows as in any buffer: those with ReduceOp::premul_sum, scans, messages, and all_to_all_v, gather_v and
    /// scatter_v, in which a rank does not know the counts of its peers, and so not where their blocks begin. When a call in windows has
    /// failed, other ranks may write into them until they have heard of it.
    ///
    /// Where ranks cannot map the memory, and where all are threads on one GPU, whose calls work in place anyway, the window is
    /// registered in name (Window::is_direct). The memory stays mapped until deregister_window(), or the end of the communicator and of
    /// the graphs that its calls were captured in. The buffer may be destroyed before.
    /// @throws InvalidArgument on all ranks, where lengths differ; for a moved-from buffer
    /// @throws InvalidUsage on all ranks, for more than 1,024 windows, and where a buffer is not of the GPU in which its rank works;
    ///         while requests are under way
    template <class T>
    Window register_window(const gpu_buffer<T>& memory) const {
        return register_window(memory.bytes_);
    }
    /// The same for `bytes` of GPU memory that the program has allocated itself, on the GPU that `stream` belongs to.
    ///
    /// Ranks of other processes can work in it if the driver can hand it over: memory of `cudaMalloc`, and of `cuMemCreate` where that
    /// was asked for a POSIX descriptor, in 256 allocations at most. Ranks of this process on other GPUs can where these
    /// reach it: memory of `cudaMalloc`, and of `cuMemCreate` once `cuMemSetAccess` has allowed it. Otherwise, as with memory of pools
    /// (`cudaMallocAsync`), the window is one in name, and the log says why. The memory must stay until all ranks have taken the window
    /// back, or have destroyed the communicator, and the calls in it and graphs of them are over; a call that finds other memory there
    /// throws InvalidUsage.
    /// @throws InvalidArgument where the GPU has not as much memory there
    Window register_window(void* memory, std::size_t bytes, Stream stream) const;
    /// Takes a window back: from then on no call works in the others' memory. It stays mapped for as long as this process has calls
    /// under way on the GPU, and for the graphs that calls in it were captured in. Collective: all ranks take back the same window. What
    /// the buffer holds stays. Where the communicator has failed it waits for nobody: its error is thrown, and the window is taken back.
    /// @throws InvalidUsage for a moved-from window, and for one of another communicator
    void deregister_window(Window window) const;

  private:
    friend class Collectives<Communicator, void, detail::Lifetime::call>;
    friend struct detail::Access;
    explicit Communicator(std::shared_ptr<detail::State> state) noexcept;
    // Of a call, which does not wait for a child that is being made: throws InProgress.
    int rank_now() const;
    int size_now() const;
    void submit(const detail::Call& call) const;
    void register_memory(detail::SharedBytes& memory, bool takes_back) const;
    void register_memory(detail::PoolBytes& memory, bool takes_back) const;
    Window register_window(const detail::GpuBytes& memory) const;
    std::shared_ptr<detail::State> state_;
};

} // namespace rsccl
