// What processes that share a GPU do around the work of a call: a member brings its input, the leader compares the calls and lets
// the members go on. Device only.
//
// Streams of processes wait for each other by memory operations on words of shared pages
// (`src/device/cuda/launch/members.rs`). When the leader's stream gets to `meet`, all members have arrived: each has written
// the label of its call into its page.
// One thread of `meet` and of `leave` works; all threads of `bring` share a copy.

#include "copy.h"
#include "launch.h"
#include "status.h"

/// Bytes of a page; the pages of all ranks lie behind each other.
constexpr u64 STATUS_BYTES = 4096;
/// The words of a page that a member's stream waits for, and where its call is named.
constexpr u64 STATUS_DONE = 384, STATUS_LABEL = 512;
/// Ranks of a GPU at most.
constexpr u32 MOST_RANKS = 64;

/// The place of the rank that leads among the ranks of the GPU.
constexpr u32 LEADER = 0;

/// The parameter of `meet` and `leave`. The ranks of this GPU are numbered by their places, in the order of the ranks.
struct MeetArguments {
    u64 pages;              // 0    where the leader's page lies
    u64 label[3];           // 8    what the leader has called
    u32 ranks;              // 32   how many ranks the GPU has
    u32 reserved;           // 36
    u32 rank[MOST_RANKS];   // 40   of each place: the rank
    u32 first[MOST_RANKS];  // 296  of each place: that of the lowest rank of its process
};

static_assert(sizeof(MeetArguments) == 40 + 8 * MOST_RANKS, "filled by the host");

/// The parameter of `bring`.
struct BringArguments {
    u64 page;   // 0    that of the member
    u64 from;   // 8    in the member's input
    u64 to;     // 16   in its stage
    u64 bytes;  // 24
};

static_assert(sizeof(BringArguments) == 32, "filled by the host");

RSCCL_INLINE u64 page_of(const MeetArguments &arguments, u32 place) {
    return arguments.pages + STATUS_BYTES * place;
}

/// What the process of a rank has called.
RSCCL_INLINE const u64 *label_of(const MeetArguments &arguments, u32 place) {
    const u32 first = arguments.first[place];
    if (first == LEADER) return arguments.label;
    return reinterpret_cast<const u64 *>(page_of(arguments, first) + STATUS_LABEL);
}

/// Copies a part of a member's input to its stage, unless the member was told to stop: then its host let its stream go on, and
/// the leader may still work on the call before, in this stage. The leader finds the same fault on the member's page, and does
/// without what was not brought. Threads may see the fault one after the other, and leave some of the bytes as they were.
extern "C" __global__ void __launch_bounds__(THREADS, 1) bring(const __grid_constant__ BringArguments arguments) {
    if (look(arguments.page + STATUS_FAULT) != 0) return;
    copy_range(arguments.from, arguments.to, arguments.bytes, team_of_grid());
}

/// Compares the calls. A difference is told to every rank: to one that differs from the leader the leader's call, to the
/// others that of the first that differs. If the leader or a member was told to stop, the leader says so to the ranks of its
/// process; the hosts of the others find out why for themselves. The programs behind this kernel ask for what it says (program.cu).
extern "C" __global__ void meet(const __grid_constant__ MeetArguments arguments) {
    if (threadIdx.x != 0) return;
    u32 differing = arguments.ranks;
#pragma unroll 1
    for (u32 place = 0; place < arguments.ranks; place += 1) {
        const bool is_first = differing == arguments.ranks;
        if (is_first && differs(label_of(arguments, place), arguments.label)) differing = place;
    }
    // After the labels: the stream of a member that was told to stop goes on, and names its next call on the page. Pairs with the
    // host's release of the word that lets it go on: whoever sees that label sees the fault.
    __threadfence_system();
    bool stops = look(page_of(arguments, LEADER) + STATUS_ABORT) != 0;
#pragma unroll 1
    for (u32 place = 0; place < arguments.ranks; place += 1) {
        stops = stops || look(page_of(arguments, place) + STATUS_FAULT) != 0;
    }
#pragma unroll 1
    for (u32 place = 0; stops && place < arguments.ranks; place += 1) {
        if (arguments.first[place] != LEADER) continue;
        report(page_of(arguments, place), STATUS_ABORTED, 0, nullptr, nullptr);
    }
    if (stops || differing == arguments.ranks) return;
#pragma unroll 1
    for (u32 place = 0; place < arguments.ranks; place += 1) {
        const u64 *mine = label_of(arguments, place);
        const bool is_other = differs(mine, arguments.label);
        const u32 peer = is_other ? LEADER : differing;
        report(page_of(arguments, place), STATUS_MISMATCH, arguments.rank[peer], mine, label_of(arguments, peer));
    }
}

/// Lets the members go on, unless the leader was told to stop: then some of them may have been missing, and the host of each
/// learns why, and lets its stream go on itself. A mismatch with ranks of other GPUs, which stands on the leader's page, is told
/// to all members first. Pairs with the members' waits; the work of the stream comes before.
extern "C" __global__ void leave(const __grid_constant__ MeetArguments arguments) {
    if (threadIdx.x != 0) return;
    const u64 own = page_of(arguments, LEADER);
    const u32 fault = look(own + STATUS_FAULT);
    // Any other fault, or one that is being written, is of a launch that was told to stop.
    if (look(own + STATUS_ABORT) != 0 || (fault != 0 && fault != STATUS_MISMATCH)) return;
    const u64 *details = &word_at(own + STATUS_DETAILS);
#pragma unroll 1
    for (u32 place = 1; place < arguments.ranks; place += 1) {
        if (arguments.first[place] == LEADER) continue;
        if (fault == STATUS_MISMATCH) {
            report(page_of(arguments, place), fault, u32(details[0]), details + 1, details + 4);
        }
        if (arguments.first[place] != place) continue;
        asm volatile("st.release.sys.global.u32 [%0], 1;" : : "l"(page_of(arguments, place) + STATUS_DONE) : "memory");
    }
}
