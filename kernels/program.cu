// The interpreter of programs: the lanes of ranks that wait for ranks on other GPUs, or for each other. Device only.
//
// A launch has the lanes of all ranks of one GPU, one or more of them a block, and is cooperative: all blocks run at the
// same time, because any may wait for any other. Thread 0 of a block walks its lanes, polls and signals; all threads of the
// block fold. What a lane waits for is always a word in its own GPU's memory that only grows.
//
// Who orders what: a fold's stores come before the barrier of the block, and thread 0's release at system scope after it;
// a waiter's thread 0 acquires at system scope, and its block's loads come after the next barrier. Messages of LL and
// LL128 (`lines.h`) carry their flags with the data and need neither; only slots are given back in that order.
//
// module program_i8: -DLANE=LaneI8
// module program_u8: -DLANE=LaneU8
// module program_i32: -DLANE=LaneI32
// module program_u32: -DLANE=LaneU32
// module program_i64: -DLANE=LaneI64
// module program_u64: -DLANE=LaneU64
// module program_f16: -DLANE=LaneF16
// module program_f32: -DLANE=LaneF32
// module program_f64: -DLANE=LaneF64
// module program_bf16: -DLANE=LaneBF16
// module program_f8e4m3: -DLANE=LaneF8E4M3
// module program_f8e5m2: -DLANE=LaneF8E5M2
// module program_bits: -DBITS

#include "launch.h"
#include "lines.h"
#include "program.h"

/// Words of shared memory for copies of images.
constexpr u32 STAGE_WORDS = 2048;
/// Looks of a waiting block at its words between two looks at the status page, which lies in host memory.
constexpr u32 LOOKS = 128;
/// Whether folds count bytes, as copies do.
#ifdef BITS
constexpr bool COUNTS_BYTES = true;
#else
constexpr bool COUNTS_BYTES = false;
#endif

/// A lane at work.
struct LaneState {
    const LaneImage *image;
    const NumbersImage *numbers;
    u64 epoch;
    u64 base;
    // What it waits for: the word at `word`, shifted by `shift`, to reach `value`. 0: nothing.
    u64 word;
    u64 value;
    u32 shift;
    u32 turn;
    u32 step;
    u32 after;
    u32 phase;
    u32 has_told;
};

constexpr u32 BEHIND = 0, RUNS = 1, ENDED = 2;
// What walking a lane came to.
constexpr u32 BLOCKED = 0, FOLD = 1, END = 2, STOP = 3;

/// What a block shares.
struct BlockState {
    const PartImage *part;
    const u64 *label;
    u64 bytes;
    Step step;
    u32 at;
    u32 next;
    u32 left;
    u32 seats;
    u32 op;
    // The protocol of the step's messages; of lines: whether some are taken, and whether a thread found that the launch
    // must stop.
    u32 lines;
    u32 takes;
    u32 failed;
    Operand operands[MOST_OPERANDS];
    LaneState lanes[MOST_SEATS];
    u64 stage[STAGE_WORDS];
};

RSCCL_INLINE u64 load_acquire(u64 address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

RSCCL_INLINE void store_release(u64 address, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

/// The control memory of the rank itself.
RSCCL_INLINE u64 own_control(const PartImage *part) {
    return peers_of(part)[part->rank].control;
}

/// Whether a word has come so far; else the lane waits for it.
RSCCL_INLINE bool has_come(LaneState &lane, u64 word, u64 value) {
    if (load_acquire(word) >= value) return true;
    lane.word = word;
    lane.value = value;
    lane.shift = 0;
    return false;
}

/// Whether a message of lines has begun to come; else the lane waits for the flag of its first word.
RSCCL_INLINE bool has_begun(LaneState &lane, u64 word, u32 flag) {
    if (load_acquire(word) >> 32 == flag) return true;
    lane.word = word;
    lane.value = flag;
    lane.shift = 32;
    return false;
}

/// Whether a lane can go on.
RSCCL_INLINE bool is_ready(const LaneState &lane) {
    if (lane.word == 0) return true;
    const u64 now = load_acquire(lane.word) >> lane.shift;
    return lane.shift == 0 ? now >= lane.value : now == lane.value;
}

/// Tells the peers that the lane has begun, and with which buffers, and waits for theirs.
RSCCL_INLINE u32 enter(const PartImage *part, LaneState &lane, const StepRecord &step) {
    const u32 *ranks = ranks_of(lane.image) + step.first;
    const u64 *label = label_of(part, lane.image->label);
    if (!lane.has_told) {
#pragma unroll 1
        for (u32 i = 0; i < step.sources; i += 1) {
            const u64 at = peers_of(part)[ranks[i]].control + line_at(*part, lane.image->flags, lane.epoch, part->rank);
            EnterLine &line = *reinterpret_cast<EnterLine *>(at);
            line.label[0] = label[0];
            line.label[1] = label[1];
            line.label[2] = label[2];
            line.user[0] = bases_of(part)[INPUT];
            line.user[1] = bases_of(part)[OUTPUT];
            store_release(at, lane.epoch + 1);
        }
        lane.has_told = 1;
    }
#pragma unroll 1
    for (u32 i = 0; i < step.sources; i += 1) {
        const u64 at = own_control(part) + line_at(*part, lane.image->flags, lane.epoch, ranks[i]);
        if (!has_come(lane, at, lane.epoch + 1)) return BLOCKED;
        const EnterLine &line = *reinterpret_cast<const EnterLine *>(at);
        if (differs(line.label, label)) {
            report(part->status, STATUS_MISMATCH, ranks[i], label, line.label);
            return STOP;
        }
    }
    return END;
}

RSCCL_INLINE u64 slot_at(const QueueImage &queue, u64 number) {
    return queue.slots + number % queue.count * (sizeof(SlotHeader) + queue.payload);
}

RSCCL_INLINE SlotHeader &header_of(const QueueImage &queue, u64 number) {
    return *reinterpret_cast<SlotHeader *>(queue.headers + number % queue.count * queue.header_stride);
}

/// Where an operand that is no slot begins in a round.
RSCCL_INLINE u64 memory_of(const PartImage *part, const LaneState &lane, const OperandRecord &operand, u32 times, u32 round) {
    u64 base;
    if (operand.kind == OWN) {
        base = bases_of(part)[operand.base];
    } else if (operand.buffer == SCRATCH) {
        base = peers_of(part)[operand.base].scratch;
    } else {
        // It entered in this epoch, or this step would not be its turn.
        const u64 at = own_control(part) + line_at(*part, lane.image->flags, lane.epoch, operand.base);
        base = reinterpret_cast<const EnterLine *>(at)->user[operand.buffer];
    }
    const NumbersImage &numbers = *lane.numbers;
    u64 start;
    u32 pieces = round;
    if (operand.buffer == SCRATCH) {
        start = numbers.scratch + u64(numbers.depth) * operand.index * numbers.piece;
        pieces = round % numbers.depth;
    } else {
        const BlockNumbers &numbered = blocks_of(lane.numbers)[operand.index];
        start = operand.buffer == INPUT ? numbered.input : numbered.output;
    }
    return base + (start + u64(pieces) * times * numbers.piece) * part->element;
}

/// Elements of a combine's round.
RSCCL_INLINE u64 length_of(const LaneState &lane, const StepRecord &step, u32 round) {
    const u64 piece = lane.numbers->piece, block = blocks_of(lane.numbers)[step.block].length;
    const u64 before = piece * round, rest = block > before ? block - before : 0;
    return (rest < piece ? rest : piece) * step.times;
}

/// Gives the slots of a combine on that was done: the sources' are free, the targets' are full.
RSCCL_INLINE void give_on(const PartImage *part, const LaneState &lane, const StepRecord &step, u64 bytes) {
    const OperandRecord *operands = operands_of(lane.image) + step.first;
    const u64 *label = label_of(part, lane.image->label);
#pragma unroll 1
    for (u32 i = 0; i < step.sources + step.targets; i += 1) {
        if (operands[i].kind < SLOT) continue;
        const QueueImage &queue = queues_of(part)[operands[i].base];
        const u32 protocol = operands[i].kind - SLOT;
        const u64 beside = sizeof(u64) * protocol, done = word_at(queue.mine + beside);
        word_at(queue.mine + beside) = done + 1;
        if (protocol != SIMPLE) {
            // A message of lines says by itself that it has come.
            if (i < step.sources) store_release(queue.head + beside, done + 1);
            continue;
        }
        if (i >= step.sources) {
            SlotHeader &header = header_of(queue, done);
            header.bytes = bytes;
            header.label[0] = label[0];
            header.label[1] = label[1];
            header.label[2] = label[2];
            header.rank = queue.rank;
        }
        store_release(i < step.sources ? queue.head : queue.tail, done + 1);
    }
}

/// The slot of lines of a source or a target, as an operand of `LineWork`, once the lane may work there.
///
/// A block that polls a message cannot work on its other lanes. If it has some, it begins when the message has begun to
/// come. Then it will come whole: its sender waits for messages alone that have begun too, and so on, to a rank that
/// waits for none.
RSCCL_INLINE bool take_lines(
    const BlockState &block, LaneState &lane, const QueueImage &queue, u32 protocol, bool sends, Operand &place) {
    const u64 beside = sizeof(u64) * protocol, done = word_at(queue.mine + beside);
    place = Operand{lines_at(queue, protocol, done), flag_of(protocol, done)};
    if (sends) return done < LINE_SLOTS || has_come(lane, queue.head + beside, done - LINE_SLOTS + 1);
    return block.seats == 1 || has_begun(lane, place.base, u32(place.offset));
}

/// Whether the message for which a lane waits has come by another protocol, and so with another count or type: each of
/// its ends chooses by these. If so, reports both calls.
///
/// A message is known by its number, which no other message of that kind and connection has. That a message has come by
/// another protocol means nothing by itself: it may be a later one, whose words became visible before those of this one.
RSCCL_INLINE bool came_otherwise(const PartImage *part, const LaneState &lane) {
    const StepRecord &step = steps_of(lane.image)[lane.step];
    if (step.kind != COMBINE || step.flag != EVEN_EMPTY) return false;
    const OperandRecord &source = operands_of(lane.image)[step.first];
    if (source.kind < SLOT) return false;
    const QueueImage &queue = queues_of(part)[source.base];
    const u64 *label = label_of(part, lane.image->label);
#pragma unroll 1
    for (u32 protocol = SIMPLE; protocol <= LL128; protocol += 1) {
        if (protocol == source.kind - SLOT || (step.peer >> protocol & 1) == 0) continue;
        const u64 done = word_at(queue.mine + sizeof(u64) * protocol);
        u64 theirs[3];
        bool is_there = true;
        if (protocol == SIMPLE) {
            is_there = load_acquire(queue.tail) > done;
            const SlotHeader &header = header_of(queue, done);
#pragma unroll
            for (u32 word = 0; word < 3; word += 1) theirs[word] = is_there ? header.label[word] : 0;
        } else {
            const u64 place = lines_at(queue, protocol, done);
            const u32 flag = u32(flag_of(protocol, done));
#pragma unroll
            for (u32 word = 0; word < 3; word += 1) is_there &= has_word(place + 16 * (1 + word), flag, theirs[word]);
        }
        if (is_there && theirs[2] == label[2] && u8(theirs[0]) == u8(label[0])) {
            report(part->status, STATUS_MISMATCH, queue.rank, label, theirs);
            return true;
        }
    }
    return false;
}

/// Puts into the block's step how a combine of an average adds up; whether it still `copies`. Other steps leave there what
/// the launch began with: no average and no inputs.
RSCCL_INLINE bool average(Step &work, const StepRecord &step, const PartImage &part, bool copies) {
    const bool may_scale = part.scales == INPUTS_OF_AVERAGES;
    if (may_scale && step.average == SHARES) {
        work.average = SHARES;
        work.first_input = step.first_input;
        work.inputs = step.inputs;
        return copies && !(step.first_input == 0 && step.inputs != 0);
    }
    work.average = step.finish == 0 ? NO_AVERAGE : may_scale ? step.average : DIVIDED;
    return copies;
}

/// Puts a combine into the block's step, once all of its slots are there: FOLD, or END where it has no elements.
RSCCL_INLINE u32 combine(BlockState &block, LaneState &lane, const StepRecord &step, u32 round) {
    const PartImage *part = block.part;
    const u64 length = length_of(lane, step, round), bytes = length * part->element;
    if (length == 0 && step.flag != EVEN_EMPTY) return END;
    const OperandRecord *operands = operands_of(lane.image) + step.first;
    u32 protocol = SIMPLE;
    block.takes = 0;
#pragma unroll 1
    for (u32 i = 0; i < step.sources + step.targets; i += 1) {
        u64 place;
        if (operands[i].kind > SLOT) {
            protocol = operands[i].kind - SLOT;
            const QueueImage &queue = queues_of(part)[operands[i].base];
            if (!take_lines(block, lane, queue, protocol, i >= step.sources, block.operands[i])) return BLOCKED;
            if (i < step.sources) block.takes = 1;
            continue;
        }
        if (operands[i].kind != SLOT) {
            place = memory_of(part, lane, operands[i], step.times, round);
        } else {
            const QueueImage &queue = queues_of(part)[operands[i].base];
            const u64 done = word_at(queue.mine);
            place = slot_at(queue, done) + sizeof(SlotHeader);
            if (i < step.sources) {
                if (!has_come(lane, queue.tail, done + 1)) return BLOCKED;
                const SlotHeader &header = header_of(queue, done);
                const u64 *label = label_of(part, lane.image->label);
                if (differs(header.label, label) || header.bytes != bytes) {
                    if (came_otherwise(part, lane)) return STOP;
                    report(part->status, STATUS_MISMATCH, u32(header.rank), label, header.label);
                    return STOP;
                }
            } else if (done >= queue.count && !has_come(lane, queue.head, done - queue.count + 1)) {
                return BLOCKED;
            }
        }
        block.operands[i] = Operand{place, 0};
    }
    // A message of lines without bytes is its header, which all threads send and take.
    if (length == 0 && protocol == SIMPLE) {
        give_on(part, lane, step, 0);
        return END;
    }
    const bool scales = part->scales == RAW_SOURCES && step.raw != NONE;
    const bool divides = part->divisor != 0 && step.finish != 0;
    bool copies = step.sources == 1 && !(scales && step.raw == 0) && !divides;
    if (part->divisor != 0) copies = average(block.step, step, *part, copies);
    block.step.count = copies || COUNTS_BYTES ? bytes : length;
    block.step.offset = 0;
    block.step.scalar = part->scalar;
    block.step.first_source = 0;
    block.step.sources = step.sources;
    block.step.first_target = step.sources;
    block.step.targets = step.targets;
    block.step.raw = scales ? step.raw : NOT_RAW;
    block.step.divisor = divides ? part->divisor : 0;
    block.step.kind = copies ? 1 : 0;
    block.lines = protocol;
    block.bytes = bytes;
    block.label = label_of(part, lane.image->label);
    return FOLD;
}

/// Raises the lane's flag at each listener.
RSCCL_INLINE void signal(const PartImage *part, const LaneState &lane, const StepRecord &step, u64 value) {
    const u32 *ranks = ranks_of(lane.image) + step.first;
#pragma unroll 1
    for (u32 i = 0; i < step.sources; i += 1) {
        store_release(peers_of(part)[ranks[i]].control + flag_at(*part, lane.image->flags, step.flag, part->rank), value);
    }
}

RSCCL_INLINE void go_on(LaneState &lane) {
    lane.step += 1;
    lane.has_told = 0;
    if (lane.step == lane.image->steps) {
        lane.step = 0;
        lane.turn += 1;
    }
}

/// Takes the lane's epoch and the base of its flags, which it left behind when it ran last.
RSCCL_INLINE void begin(const PartImage *part, LaneState &lane) {
    lane.phase = RUNS;
    if (lane.image->flags == NONE) return;
    const u64 state = own_control(part) + state_at(lane.image->flags);
    lane.epoch = word_at(state);
    lane.base = word_at(state + 8);
}

RSCCL_INLINE void end(const PartImage *part, LaneState &lane) {
    lane.phase = ENDED;
    if (lane.image->flags == NONE) return;
    const u64 state = own_control(part) + state_at(lane.image->flags);
    word_at(state) = lane.epoch + 1;
    word_at(state + 8) = lane.base + lane.numbers->rounds;
}

/// Walks a lane until it must wait, has a fold for the block, has ended, or found that it must stop.
RSCCL_INLINE u32 walk(BlockState &block, LaneState &lane) {
    const PartImage *part = block.part;
    lane.word = 0;
#pragma unroll 1
    while (lane.turn < lane.numbers->turns) {
        const StepRecord &step = steps_of(lane.image)[lane.step];
        const u32 round = lane.turn - step.lag;
        if (lane.turn >= step.lag && round < lane.numbers->rounds && (step.kind != ENTER || lane.turn == 0)) {
            const u64 value = lane.base + round + 1;
            u32 outcome = END;
            if (step.kind == COMBINE) {
                outcome = combine(block, lane, step, round);
            } else if (step.kind == SIGNAL) {
                signal(part, lane, step, value);
            } else if (step.kind == WAIT) {
                const u64 flag = own_control(part) + flag_at(*part, lane.image->flags, step.flag, step.peer);
                if (!has_come(lane, flag, value)) outcome = BLOCKED;
            } else {
                outcome = enter(part, lane, step);
            }
            if (outcome != END) return outcome;
        }
        go_on(lane);
    }
    end(part, lane);
    return END;
}

/// Ends the fold that the block has done.
RSCCL_INLINE void finish(BlockState &block) {
    LaneState &lane = block.lanes[block.at];
    const StepRecord &step = steps_of(lane.image)[lane.step];
    give_on(block.part, lane, step, length_of(lane, step, lane.turn - step.lag) * block.part->element);
    go_on(lane);
}

/// Whether the launch was told to end. Says so on its page, unless that has a fault already.
RSCCL_INLINE bool was_told_to_stop(const PartImage *part) {
    if (!must_stop(part->status)) return false;
    report(part->status, STATUS_ABORTED, 0, nullptr, nullptr);
    return true;
}

/// Whether the launch must end though lanes wait: it was told to, or what one of them waits for does not come.
RSCCL_INLINE bool must_stop_waiting(const BlockState &block, u32 seats) {
    if (was_told_to_stop(block.part)) return true;
#pragma unroll 1
    for (u32 i = 0; i < seats; i += 1) {
        if (block.lanes[i].phase == RUNS && came_otherwise(block.part, block.lanes[i])) return true;
    }
    return false;
}

/// Finds what the block does next: FOLD or STOP.
RSCCL_INLINE u32 choose(BlockState &block, u32 seats) {
    u32 at = block.at, looks = 0;
#pragma unroll 1
    while (block.left != 0) {
        LaneState &lane = block.lanes[at];
        if (lane.phase == RUNS && is_ready(lane)) {
            const u32 outcome = walk(block, lane);
            if (outcome == FOLD) {
                block.at = at;
                return FOLD;
            }
            if (outcome == STOP) return STOP;
            if (outcome == END) {
                block.left -= 1;
#pragma unroll 1
                for (u32 i = 0; i < seats; i += 1) {
                    if (block.lanes[i].after == at) begin(block.part, block.lanes[i]);
                }
            }
        } else {
            looks += 1;
            if (looks % LOOKS == 0 && must_stop_waiting(block, seats)) return STOP;
        }
        at = at + 1 == seats ? 0 : at + 1;
    }
    return STOP;
}

/// A copy of an image in shared memory, made by all threads; the image itself where there is no room.
template <class Image>
RSCCL_INLINE const Image *staged(BlockState &block, u32 &used, u64 address) {
    const Image *image = reinterpret_cast<const Image *>(address);
    const u32 words = image->bytes / 8;
    if (used + words > STAGE_WORDS) return image;
    u64 *place = block.stage + used;
    const u64 *from = reinterpret_cast<const u64 *>(address);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) place[i] = from[i];
    used += words;
    return reinterpret_cast<const Image *>(place);
}

#ifdef BITS
RSCCL_INLINE void fold(u32 op, const Step &step, const Operand *operands, Team team) {
    if (op == 0) bit_fold_step<BitAnd>(step, operands, team);
    else if (op == 1) bit_fold_step<BitOr>(step, operands, team);
    else bit_fold_step<BitXor>(step, operands, team);
}
#else
RSCCL_INLINE void fold(u32 op, const Step &step, const Operand *operands, Team team) {
    if (op == 0) fold_step<LANE, Sum>(step, operands, team);
    else if (op == 1) fold_step<LANE, ScaledSum>(step, operands, team);
    else if (op == 2) fold_step<LANE, Product>(step, operands, team);
    else if (op == 3) fold_step<LANE, Least>(step, operands, team);
    else fold_step<LANE, Greatest>(step, operands, team);
}
#endif

/// The rank that sends a source of the step.
RSCCL_INLINE u32 sender_of(const BlockState &block, u32 source) {
    const LaneState &lane = block.lanes[block.at];
    const StepRecord &step = steps_of(lane.image)[lane.step];
    return queues_of(block.part)[operands_of(lane.image)[step.first + source].base].rank;
}

/// Whether a block that polls a message of lines must stop.
struct ToldOrOther {
    const BlockState &block;

    inline bool operator()() const {
        return must_stop(block.part->status) || came_otherwise(block.part, block.lanes[block.at]);
    }
};

/// Tells of a message of another call; its label comes, word by word, as the rest of it.
RSCCL_INLINE void report_other(const BlockState &block, const LineWork &work, u32 source) {
    if (came_otherwise(block.part, block.lanes[block.at])) return;
    const Operand &from = work.operands[source];
    u64 theirs[3];
#pragma unroll
    for (u32 word = 0; word < 3; word += 1) {
        if (!take_word(from.base + 16 * (1 + word), u32(from.offset), Told{work.status}, theirs[word])) return;
    }
    report(work.status, STATUS_MISMATCH, sender_of(block, source), work.label, theirs);
}

/// The step of a block whose messages are lines. Nothing is stored to a rank's own memory before the headers of all
/// messages are known to be of this call.
RSCCL_INLINE void move_lines(BlockState &block, Team team) {
    const Step &step = block.step;
    const bool scales = step.raw != NOT_RAW || step.inputs != 0;
    const WordWork words = {step.scalar,  block.op,         step.raw,    step.divisor,
                            step.average, step.first_input, step.inputs, scales,
                            step.kind == 1};
    const LineWork work = {words, block.bytes, block.part->status, block.label,
                           block.operands, step.sources, step.targets};
    send_headers(work, team);
    if (block.takes != 0) {
        const u32 other = check_headers(work, ToldOrOther{block}, team);
        if (other < work.sources) report_other(block, work, other);
        if (other != NONE) give_up(block.failed);
        __syncthreads();
        if (has_failed(block.failed)) return;
    }
    const bool moved = block.lines == LL ? move_ll(work, team) : move_ll128(work, team);
    if (!moved) give_up(block.failed);
}

/// Any number of threads up to THREADS; the block's number picks its image.
extern "C" __global__ void __launch_bounds__(THREADS, 1) program(const __grid_constant__ ProgramArguments arguments) {
    __shared__ BlockState block;
    const BlockImage image = reinterpret_cast<const BlockImage *>(arguments.blocks)[blockIdx.x];
    const SeatImage *seats = reinterpret_cast<const SeatImage *>(image.seats);
    u32 used = 0;
    const PartImage *part = staged<PartImage>(block, used, image.part);
#pragma unroll 1
    for (u32 i = 0; i < image.count; i += 1) {
        const LaneImage *lane = staged<LaneImage>(block, used, seats[i].lane);
        const NumbersImage *numbers = staged<NumbersImage>(block, used, seats[i].numbers);
        if (threadIdx.x == 0) block.lanes[i] = LaneState{lane, numbers, 0, 0, 0, 0, 0, 0, 0, seats[i].after, BEHIND, 0};
    }
    if (threadIdx.x == 0) {
        block.part = part;
        block.at = 0;
        block.left = image.count;
        block.seats = image.count;
        block.failed = 0;
        block.step.average = NO_AVERAGE;
        block.step.first_input = 0;
        block.step.inputs = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        block.op = part->op;
        // Behind a meeting of processes (meet.cu): if it has failed, the stages hold what an earlier call has left, which no
        // peer may get. The page was written before the stream went on.
        if (part->asks != 0 && was_told_to_stop(part)) block.left = 0;
#pragma unroll 1
        for (u32 i = 0; i < image.count; i += 1) {
            if (block.lanes[i].after == NONE) begin(part, block.lanes[i]);
        }
    }
#pragma unroll 1
    for (;;) {
        if (threadIdx.x == 0) block.next = choose(block, image.count);
        __syncthreads();
        if (block.next != FOLD) return;
        const Team team = {threadIdx.x, blockDim.x};
        if (block.lines != SIMPLE) move_lines(block, team);
        else if (block.step.kind == 1) copy_step(block.step, block.operands, team);
        else fold(block.op, block.step, block.operands, team);
        __syncthreads();
        if (has_failed(block.failed)) break;
        if (threadIdx.x == 0) finish(block);
    }
    // Unless a thread has found another call, the launch was told to stop.
    if (threadIdx.x == 0) report(part->status, STATUS_ABORTED, 0, nullptr, nullptr);
}
