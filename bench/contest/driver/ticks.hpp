// The processor's own counter, for times of single calls: a read takes a third of what the system's clock takes. On processors other
// than x86-64 it is the system's clock, in nanoseconds.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <thread>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace contest {

inline std::uint64_t ticks() {
#if defined(__x86_64__)
    // Not before everything above it has ended: the processor would read it earlier.
    _mm_lfence();
    return __rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
#endif
}

// What one tick is in nanoseconds, against the system's clock.
inline double tick_ns() {
    const auto begun = std::chrono::steady_clock::now();
    const std::uint64_t first = ticks();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const std::uint64_t last = ticks();
    const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - begun;
    return passed.count() / static_cast<double>(last - first);
}

// What two reads in a row are apart, as a rule: it is part of each time.
inline std::uint64_t overhead_ticks() {
    std::array<std::uint64_t, 1001> apart;
    for (std::uint64_t& it : apart) {
        const std::uint64_t first = ticks();
        it = ticks() - first;
    }
    std::nth_element(apart.begin(), apart.begin() + apart.size() / 2, apart.end());
    return apart[apart.size() / 2];
}

// How often each time was met. A power of two has 64 classes, so a class is at most 1.6 % wide; what memory it touches stays in the
// caches, as a list of all times would not.
class Histogram {
  public:
    void add(std::uint64_t value) {
        counts_[class_of(value)]++;
        total_ += value;
        calls_++;
    }

    double mean() const { return calls_ ? static_cast<double>(total_) / static_cast<double>(calls_) : 0.0; }
    std::uint64_t calls() const { return calls_; }

    // The middle of the class that has the call below which `share` of all calls lie.
    double quantile(double share) const {
        const auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(calls_));
        std::uint64_t seen = 0;
        for (std::size_t at = 0; at < counts_.size(); at++) {
            seen += counts_[at];
            if (seen > wanted) return middle(at);
        }
        return 0;
    }

  private:
    static constexpr int BITS = 6;
    static constexpr std::uint64_t CLASSES = 1 << BITS;

    static std::size_t class_of(std::uint64_t value) {
        if (value < CLASSES) return value;
        const int shift = 63 - __builtin_clzll(value) - BITS;
        return static_cast<std::size_t>(CLASSES * static_cast<std::uint64_t>(shift + 1) + (value >> shift) - CLASSES);
    }
    static double middle(std::size_t at) {
        if (at < CLASSES) return static_cast<double>(at);
        const int shift = static_cast<int>(at / CLASSES) - 1;
        const auto first = (at % CLASSES + CLASSES) << shift;
        return static_cast<double>(first) + static_cast<double>((std::uint64_t{1} << shift) - 1) / 2;
    }

    std::array<std::uint64_t, CLASSES*(64 - BITS + 1)> counts_{};
    std::uint64_t total_ = 0, calls_ = 0;
};

} // namespace contest
