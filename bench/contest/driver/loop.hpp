// The loop that every peer of the contest runs; ../../contest.rs is the same loop in Rust, on the library's public interface.
//
//   driver MODE KEY=VALUE...      prints a JSON object a line, on rank 0
//
//   collective  collective= bytes=A,B,... budget_ms= rewrite=0|1     time of a call
//   first       collective= bytes=A,B,...                            the first calls of a size, each after a barrier
//   late        bytes=A,B,... samples=  rank 1 comes 200 ms late: processor time of rank 0, time of rank 1's call
//   overlap     bytes=A              a call that goes on while the caller sleeps
//   footprint   bytes=A              memory, descriptors and threads of rank 0, after init and after calls
//   startup                          init, one all-reduce of 8 bytes, and the end: the caller takes the time of the whole job
//
// What programs do besides blocking calls on a quiet machine stands in in_use.hpp.
//
// Float sums, out of place; a broadcast is in place. `bytes` counts as nccl-tests counts: the larger of a rank's two buffers.
// send_recv is half of a round trip between ranks 0 and 1, 2 and 3, and so on.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace contest {

enum class Collective { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll, SendRecv };

inline const std::map<std::string, Collective>& collectives() {
    static const std::map<std::string, Collective> names = {
        {"all_reduce", Collective::AllReduce},         {"broadcast", Collective::Broadcast},
        {"reduce", Collective::Reduce},                {"all_gather", Collective::AllGather},
        {"reduce_scatter", Collective::ReduceScatter}, {"all_to_all", Collective::AllToAll},
        {"send_recv", Collective::SendRecv},
    };
    return names;
}

// What a call gets. `count` is the number of elements that the library's function is given.
struct Case {
    Collective collective;
    float* input;
    float* output;
    std::size_t count;
    // Elements of the two buffers.
    std::size_t sent, received;
};

// What a peer supplies.
struct Library {
    virtual ~Library() = default;
    virtual int rank() = 0;
    virtual int ranks() = 0;
    virtual void barrier() = 0;
    virtual double max(double mine) = 0;
    virtual double sum(double mine) = 0;
    virtual void call(const Case&) = 0;
    // Begins an all-reduce; `finish` waits for it.
    virtual void start(const Case&) = 0;
    virtual void finish() = 0;
};

[[noreturn]] inline void fail(const std::string& why) {
    std::fprintf(stderr, "contest driver: %s\n", why.c_str());
    std::exit(2);
}

inline double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Private memory that begins at a multiple of 2 MiB, in small pages: what a program's own arrays are, and the same for all.
class Memory {
  public:
    explicit Memory(std::size_t elements) : bytes_(std::max<std::size_t>(elements, 1) * sizeof(float) + 2 * ALIGNMENT) {
        base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base_ == MAP_FAILED) fail("no memory for " + std::to_string(bytes_) + " bytes");
        madvise(base_, bytes_, MADV_NOHUGEPAGE);
        auto address = (reinterpret_cast<std::uintptr_t>(base_) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        data_ = reinterpret_cast<float*>(address);
    }
    ~Memory() { munmap(base_, bytes_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    float* data() { return data_; }

  private:
    static constexpr std::size_t ALIGNMENT = 2 << 20;
    std::size_t bytes_;
    void* base_;
    float* data_;
};

// Whole numbers so small that sums are exact in any order.
inline float value(int rank, std::size_t index) { return static_cast<float>(index % 64) + 64.0f * static_cast<float>(rank); }

class Bench {
  public:
    virtual ~Bench() = default;
    Bench(Library& library, std::map<std::string, std::string> arguments)
        : library_(library), arguments_(std::move(arguments)), rank_(library.rank()), ranks_(library.ranks()) {}

    virtual void run(const std::string& mode) {
        if (mode == "collective") each_size([&](std::size_t bytes) { collective(bytes); });
        else if (mode == "first") each_size([&](std::size_t bytes) { first(bytes); });
        else if (mode == "late") each_size([&](std::size_t bytes) { late(bytes); });
        else if (mode == "overlap") each_size([&](std::size_t bytes) { overlap(bytes); });
        else if (mode == "footprint") each_size([&](std::size_t bytes) { footprint(bytes); });
        else if (mode == "startup") startup();
        else fail("mode " + mode + ": one of collective, first, late, overlap, footprint, startup");
    }

  protected:
    static constexpr double BLOCK_S = 0.005;
    static constexpr double WARM_UP_SHARE = 0.2;
    static constexpr int MOST_CALLS = 100000, LEAST_BLOCKS = 3, MOST_BLOCKS = 1000;
    static constexpr auto LATE = std::chrono::milliseconds(200);

    struct Buffers {
        Memory input, output;
        Case it;
        Buffers(Collective collective, std::size_t bytes, int ranks) : Buffers(collective, lengths(collective, bytes, ranks)) {}

      private:
        struct Lengths {
            std::size_t sent, received, count;
        };
        static Lengths lengths(Collective collective, std::size_t bytes, int ranks) {
            std::size_t whole = std::max<std::size_t>(bytes / sizeof(float), 1), n = static_cast<std::size_t>(ranks);
            std::size_t share = (whole + n - 1) / n;
            switch (collective) {
            case Collective::AllGather: return {share, share * n, share};
            case Collective::ReduceScatter: return {share * n, share, share};
            case Collective::AllToAll: return {share * n, share * n, share};
            default: return {whole, whole, whole};
            }
        }
        Buffers(Collective collective, Lengths lengths)
            : input(lengths.sent), output(lengths.received),
              it{collective, input.data(), output.data(), lengths.count, lengths.sent, lengths.received} {}
    };

    std::string text(const std::string& key, const std::string& usual) {
        auto found = arguments_.find(key);
        return found == arguments_.end() ? usual : found->second;
    }

    Collective wanted() {
        auto found = collectives().find(text("collective", "all_reduce"));
        if (found == collectives().end()) fail("unknown collective " + text("collective", ""));
        return found->second;
    }

    template <class Do>
    void each_size(Do&& act) {
        std::stringstream sizes(text("bytes", "8"));
        for (std::string size; std::getline(sizes, size, ',');) act(std::strtoull(size.c_str(), nullptr, 10));
    }

    int partner() const { return (rank_ ^ 1) < ranks_ ? rank_ ^ 1 : -1; }

    double wrong(Case& it) {
        return wrong(it, [&] { library_.call(it); });
    }

    // One call on fresh values, and a look at every element. The number of wrong ones on all ranks, as far as rank 0 needs it.
    template <class Do>
    double wrong(Case& it, Do&& call) {
        bool in_place = it.collective == Collective::Broadcast;
        float* result = in_place ? it.input : it.output;
        for (std::size_t i = 0; i < it.sent; i++) it.input[i] = in_place && rank_ != 0 ? -1.0f : value(rank_, i);
        for (std::size_t i = 0; i < it.received; i++) it.output[i] = -1.0f;
        call();
        std::size_t errors = 0;
        for (std::size_t i = 0; i < it.received; i++) errors += result[i] != expected(it, i);
        return library_.max(static_cast<double>(errors));
    }

    float expected(const Case& it, std::size_t index) const {
        auto sum = [&](std::size_t at) {
            float total = 0;
            for (int rank = 0; rank < ranks_; rank++) total += value(rank, at);
            return total;
        };
        auto me = static_cast<std::size_t>(rank_);
        switch (it.collective) {
        case Collective::AllReduce: return sum(index);
        case Collective::Reduce: return rank_ == 0 ? sum(index) : -1.0f;
        case Collective::Broadcast: return value(0, index);
        case Collective::AllGather: return value(static_cast<int>(index / it.count), index % it.count);
        case Collective::ReduceScatter: return sum(me * it.count + index);
        case Collective::AllToAll: return value(static_cast<int>(index / it.count), me * it.count + index % it.count);
        case Collective::SendRecv: return partner() < 0 ? -1.0f : value(partner(), index);
        }
        return -1.0f;
    }

    // Seconds of a call: the mean of a loop, of the slowest rank.
    double block(const Case& it, int calls, bool rewrite) {
        library_.barrier();
        double begun = now();
        for (int i = 0; i < calls; i++) {
            if (rewrite) std::fill(it.input, it.input + it.sent, static_cast<float>(i % 8));
            library_.call(it);
        }
        double call = (now() - begun) / calls;
        return library_.max(it.collective == Collective::SendRecv ? call / 2 : call);
    }

    // Seconds since then on the rank that thinks it longest, so that all ranks decide alike.
    double since(double begun) { return library_.max(now() - begun); }

    void collective(std::size_t bytes) {
        Buffers buffers(wanted(), bytes, ranks_);
        double errors = wrong(buffers.it), budget = std::atof(text("budget_ms", "300").c_str()) / 1e3;
        bool rewrite = text("rewrite", "0") == "1";
        double begun = now(), once = block(buffers.it, 1, rewrite);
        int calls = 1;
        do {
            calls = static_cast<int>(std::clamp(BLOCK_S / once, 1.0, double(MOST_CALLS)));
            once = block(buffers.it, calls, rewrite);
        } while (since(begun) < WARM_UP_SHARE * budget);
        std::vector<double> times;
        do times.push_back(block(buffers.it, calls, rewrite));
        while (times.size() < LEAST_BLOCKS || (since(begun) < budget && times.size() < MOST_BLOCKS));
        std::sort(times.begin(), times.end());
        if (rank_ == 0)
            std::printf("{\"bytes\":%zu,\"us\":%.4f,\"least_us\":%.4f,\"blocks\":%zu,\"calls\":%d,\"wrong\":%.0f}\n", bytes,
                        times[times.size() / 2] * 1e6, times[0] * 1e6, times.size(), calls, errors);
        std::fflush(stdout);
    }

    void first(std::size_t bytes) {
        Buffers buffers(wanted(), bytes, ranks_);
        std::fill(buffers.it.input, buffers.it.input + buffers.it.sent, 1.0f);
        std::fill(buffers.it.output, buffers.it.output + buffers.it.received, 0.0f);
        std::vector<double> times;
        for (int i = 0; i < 100; i++) times.push_back(block(buffers.it, 1, false));
        auto mean = [&](int from, int to) {
            double total = 0;
            for (int i = from; i < to; i++) total += times[static_cast<std::size_t>(i)];
            return total / (to - from) * 1e6;
        };
        if (rank_ == 0)
            std::printf("{\"bytes\":%zu,\"first_us\":%.3f,\"to_20_us\":%.3f,\"to_100_us\":%.3f}\n", bytes, mean(0, 1), mean(1, 20),
                        mean(20, 100));
        std::fflush(stdout);
    }

    static double processor_s() {
        rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        auto seconds = [](timeval time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6; };
        return seconds(usage.ru_utime) + seconds(usage.ru_stime);
    }

    void late(std::size_t bytes) {
        Buffers buffers(Collective::AllReduce, bytes, ranks_);
        block(buffers.it, 100, false);
        std::vector<double> burnt, call;
        int samples = std::atoi(text("samples", "10").c_str());
        for (int i = 0; i < samples; i++) {
            library_.barrier();
            if (rank_ == 1) std::this_thread::sleep_for(LATE);
            double before = processor_s(), begun = now();
            library_.call(buffers.it);
            double took = now() - begun, used = processor_s() - before;
            call.push_back(library_.max(rank_ == 1 ? took : 0.0));
            burnt.push_back(library_.max(rank_ == 0 ? used : 0.0));
        }
        std::sort(call.begin(), call.end());
        std::sort(burnt.begin(), burnt.end());
        if (rank_ == 0)
            std::printf("{\"bytes\":%zu,\"late_call_us\":%.1f,\"waiting_cpu_ms\":%.2f}\n", bytes, call[call.size() / 2] * 1e6,
                        burnt[burnt.size() / 2] * 1e3);
        std::fflush(stdout);
    }

    void overlap(std::size_t bytes) {
        Buffers buffers(Collective::AllReduce, bytes, ranks_);
        for (int i = 0; i < 3; i++) library_.call(buffers.it);
        auto median = [&](auto&& act) {
            std::vector<double> times;
            for (int i = 0; i < 5; i++) {
                library_.barrier();
                double begun = now();
                act();
                times.push_back(library_.max(now() - begun));
            }
            std::sort(times.begin(), times.end());
            return times[times.size() / 2];
        };
        double blocking = median([&] { library_.call(buffers.it); });
        auto alone = median([&] {
            library_.start(buffers.it);
            library_.finish();
        });
        auto both = median([&] {
            library_.start(buffers.it);
            std::this_thread::sleep_for(std::chrono::duration<double>(alone));
            library_.finish();
        });
        if (rank_ == 0)
            std::printf("{\"bytes\":%zu,\"blocking_ms\":%.3f,\"alone_ms\":%.3f,\"behind_sleep_ms\":%.3f,\"hidden\":%.3f}\n", bytes,
                        blocking * 1e3, alone * 1e3, both * 1e3, (2 * alone - both) / alone);
        std::fflush(stdout);
    }

    void footprint(std::size_t bytes) {
        std::string after_init = usage();
        {
            Buffers small(Collective::AllReduce, 8, ranks_);
            for (int i = 0; i < 100; i++) library_.call(small.it);
        }
        std::string after_small = usage();
        Buffers large(Collective::AllReduce, bytes, ranks_);
        for (int i = 0; i < 20; i++) library_.call(large.it);
        library_.barrier();
        if (rank_ == 0)
            std::printf("{\"bytes\":%zu,\"init\":%s,\"small\":%s,\"large\":%s}\n", bytes, after_init.c_str(), after_small.c_str(),
                        usage().c_str());
        std::fflush(stdout);
        library_.barrier();
    }

    // Of this process: kB resident, kB of its share of shared pages, descriptors, threads.
    static std::string usage() {
        auto field = [](const char* file, const std::string& name) {
            std::ifstream lines(file);
            for (std::string line; std::getline(lines, line);)
                if (line.rfind(name, 0) == 0) return std::strtol(line.c_str() + name.size(), nullptr, 10);
            return -1L;
        };
        long descriptors = 0;
        for (int fd = 0; fd < 65536; fd++) {
            char path[32];
            std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            char target[8];
            if (readlink(path, target, sizeof target) >= 0) descriptors++;
        }
        char out[128];
        std::snprintf(out, sizeof out, "{\"rss_kb\":%ld,\"pss_kb\":%ld,\"descriptors\":%ld,\"threads\":%ld}",
                      field("/proc/self/status", "VmRSS:"), field("/proc/self/smaps_rollup", "Pss:"), descriptors,
                      field("/proc/self/status", "Threads:"));
        return out;
    }

    void startup() {
        Buffers small(Collective::AllReduce, 8, ranks_);
        double errors = wrong(small.it);
        if (rank_ == 0) std::printf("{\"ranks\":%d,\"wrong\":%.0f}\n", ranks_, errors);
        std::fflush(stdout);
    }

    Library& library_;
    std::map<std::string, std::string> arguments_;
    int rank_, ranks_;
};

template <class Loops = Bench, class Peer>
int main_of(Peer& library, int argc, char** argv) {
    if (argc < 2) fail("which mode?");
    std::map<std::string, std::string> arguments;
    for (int i = 2; i < argc; i++) {
        const char* equals = std::strchr(argv[i], '=');
        if (!equals) fail(std::string(argv[i]) + ": KEY=VALUE expected");
        arguments[std::string(argv[i], static_cast<std::size_t>(equals - argv[i]))] = equals + 1;
    }
    Loops(library, std::move(arguments)).run(argv[1]);
    return 0;
}

} // namespace contest
