// What the leader of a GPU that several processes share does before and after the folds of a call. Device only.
//
// Streams of processes wait for each other by memory operations on words of shared pages
// (`src/device/cuda/launch/members.rs`). When the leader's stream gets to `meet`, all members have arrived: each has written
// the label of its call into its page.
// One thread of each kernel works.

#include "status.h"

/// Bytes of a page; the pages of all ranks lie behind each other.
constexpr u64 STATUS_BYTES = 4096;
/// The words of a page that a member's stream waits for, and where its call is named.
constexpr u64 STATUS_DONE = 384, STATUS_LABEL = 512;
/// Ranks of a GPU at most.
constexpr u32 MOST_RANKS = 64;

/// The place of the rank that leads among the ranks of the GPU.
constexpr u32 LEADER = 0;

/// The parameter of both kernels. The ranks of this GPU are numbered by their places, in the order of the ranks.
struct MeetArguments {
    u64 pages;              // 0    where the leader's page lies
    u64 label[3];           // 8    what the leader has called
    u32 ranks;              // 32   how many ranks the GPU has
    u32 reserved;           // 36
    u32 rank[MOST_RANKS];   // 40   of each place: the rank
    u32 first[MOST_RANKS];  // 296  of each place: that of the lowest rank of its process
};

static_assert(sizeof(MeetArguments) == 40 + 8 * MOST_RANKS, "filled by the host");

RSCCL_INLINE u64 page_of(const MeetArguments &arguments, u32 place) {
    return arguments.pages + STATUS_BYTES * place;
}

/// What the process of a rank has called.
RSCCL_INLINE const u64 *label_of(const MeetArguments &arguments, u32 place) {
    const u32 first = arguments.first[place];
    if (first == LEADER) return arguments.label;
    return reinterpret_cast<const u64 *>(page_of(arguments, first) + STATUS_LABEL);
}

/// Compares the calls. A difference is told to every rank: to one that differs from the leader the leader's call, to the
/// others that of the first that differs. If the leader was told to stop, it says so to the ranks of its process; the hosts
/// of the others find out why for themselves. The programs behind this kernel ask for what it says (program.cu).
extern "C" __global__ void meet(const __grid_constant__ MeetArguments arguments) {
    if (threadIdx.x != 0) return;
    u32 differing = arguments.ranks;
    const bool stops = look(page_of(arguments, LEADER) + STATUS_ABORT) != 0;
#pragma unroll 1
    for (u32 place = 0; place < arguments.ranks; place += 1) {
        if (stops && arguments.first[place] == LEADER) {
            report(page_of(arguments, place), STATUS_ABORTED, 0, nullptr, nullptr);
        }
        const bool is_first = differing == arguments.ranks;
        if (is_first && differs(label_of(arguments, place), arguments.label)) differing = place;
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
