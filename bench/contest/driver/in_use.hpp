// What programs do besides blocking calls back to back on a quiet machine; ../in_use.rs has the same loops in Rust.
//
//   requests    way=blocking|requests bytes=A,B,... reduced=A,B,... large=A budget_ms=    messages both ways, and an all-reduce, by blocking
//               calls or begun and waited for; a large all-reduce beside as long a computation, and beside as long a sleep
//   persistent  bytes=A,B,... budget_ms=    an all-reduce prepared once and started many times, beside the plain call
//   busy        cells=NAME:BYTES,... seconds=                      each call timed alone: mean, median, tail, processor time burnt
#pragma once

#include <functional>

#include "loop.hpp"
#include "ticks.hpp"

namespace contest {

// What a peer supplies for these.
struct Requests : Library {
    // Whether what was started has ended. `finish` is called even so.
    virtual bool test() = 0;
    // A message to the partner and one from it: a blocking call, and Irecv, Isend, Waitall.
    virtual void exchange(const Case&) = 0;
    virtual void exchange_by_requests(const Case&) = 0;
    // Prepares an all-reduce, where the library has such calls.
    virtual bool prepare(const Case&) { return false; }
    virtual void run_prepared() {}
    virtual void release() {}
};

class InUse final : public Bench {
  public:
    InUse(Requests& library, std::map<std::string, std::string> arguments) : Bench(library, std::move(arguments)), requests_(library) {}

    void run(const std::string& mode) override {
        if (mode == "requests") requests();
        else if (mode == "persistent") each_size([&](std::size_t bytes) { persistent(bytes); });
        else if (mode == "busy") busy();
        else Bench::run(mode);
    }

  private:
    // One way to do something: `calls` times.
    struct Way {
        const char* name;
        std::function<void(int calls)> act;
    };
    template <class Do>
    static Way way(const char* name, Do act) {
        return {name, [act](int calls) {
                    for (int i = 0; i < calls; i++) act();
                }};
    }

    template <class Do>
    void each_of(const std::string& key, const std::string& usual, Do&& act) {
        std::stringstream words(text(key, usual));
        for (std::string word; std::getline(words, word, ',');) act(word);
    }

    double budget_s() { return std::atof(text("budget_ms", "300").c_str()) / 1e3; }

    // Seconds of a call of the slowest rank.
    double block(const Way& way, int calls) {
        library_.barrier();
        double begun = now();
        way.act(calls);
        return library_.max((now() - begun) / calls);
    }

    // What a call takes in this way: the median of blocks.
    void measure(const char* what, std::size_t bytes, Case& it, const Way& way) {
        double errors = wrong(it, [&] { way.act(1); });
        double begun = now(), once = block(way, 1);
        int calls = 1;
        do {
            calls = static_cast<int>(std::clamp(BLOCK_S / once, 1.0, double(MOST_CALLS)));
            once = block(way, calls);
        } while (since(begun) < WARM_UP_SHARE * budget_s());
        std::vector<double> times;
        do times.push_back(block(way, calls));
        while (times.size() < LEAST_BLOCKS || (since(begun) < budget_s() && times.size() < MOST_BLOCKS));
        std::sort(times.begin(), times.end());
        if (rank_ == 0)
            std::printf("{\"what\":\"%s\",\"bytes\":%zu,\"way\":\"%s\",\"us\":%.4f,\"least_us\":%.4f,\"blocks\":%zu,\"calls\":%d,"
                        "\"wrong\":%.0f}\n",
                        what, bytes, way.name, times[times.size() / 2] * 1e6, times[0] * 1e6, times.size(), calls, errors);
        std::fflush(stdout);
    }

    void requests() {
        const bool plain = text("way", "requests") == "blocking";
        // First: it measures the blocking call, too, before a library's threads have moved many requests. Beside such a thread both
        // ranks may come to share a processor.
        if (!plain) beside(std::strtoull(text("large", "16777216").c_str(), nullptr, 10));
        each_size([&](std::size_t bytes) {
            Buffers buffers(Collective::SendRecv, bytes, ranks_);
            measure("exchange", bytes, buffers.it,
                    plain ? way("blocking", [&] { requests_.exchange(buffers.it); })
                          : way("requests", [&] { requests_.exchange_by_requests(buffers.it); }));
        });
        each_of("reduced", "8,1024", [&](const std::string& size) {
            std::size_t bytes = std::strtoull(size.c_str(), nullptr, 10);
            Buffers buffers(Collective::AllReduce, bytes, ranks_);
            auto begun = [&] {
                library_.start(buffers.it);
                library_.finish();
            };
            measure("all_reduce", bytes, buffers.it, plain ? way("blocking", [&] { library_.call(buffers.it); }) : way("requests", begun));
        });
    }

    void persistent(std::size_t bytes) {
        Buffers buffers(Collective::AllReduce, bytes, ranks_);
        measure("all_reduce", bytes, buffers.it, way("blocking", [&] { library_.call(buffers.it); }));
        if (requests_.prepare(buffers.it)) {
            measure("all_reduce", bytes, buffers.it, way("persistent", [&] { requests_.run_prepared(); }));
            requests_.release();
        }
    }

    // Work that needs a processor and no memory: a chain of multiplications, some 4 µs a unit.
    static void compute(long units) {
        for (long unit = 0; unit < units; unit++) {
            volatile double kept = 1.0;
            double x = kept;
            for (int i = 0; i < 4000; i++) x = x * 1.0000001 + 1e-9;
            kept = x;
        }
    }

    // Seconds, of the slowest rank, of the median of some.
    template <class Do>
    double median_of(Do&& act) {
        std::vector<double> times;
        int samples = std::atoi(text("samples", "31").c_str());
        for (int i = 0; i < samples; i++) {
            library_.barrier();
            double begun = now();
            act();
            times.push_back(library_.max(now() - begun));
        }
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }

    // A program that begins an all-reduce, does something else for as long, and waits: the time of all of it. `tested`: the program calls
    // the library's test about every 40 µs meanwhile.
    void beside(std::size_t bytes) {
        constexpr long TESTS_APART = 8;
        Buffers buffers(Collective::AllReduce, bytes, ranks_);
        double errors = wrong(buffers.it);
        for (int i = 0; i < 3; i++) library_.call(buffers.it);
        double call = median_of([&] { library_.call(buffers.it); });
        long units = 100;
        for (int i = 0; i < 3; i++) {
            double took = median_of([&] { compute(units); });
            units = std::clamp(static_cast<long>(static_cast<double>(units) * call / took), 1L, 1000000L);
        }
        auto around = [&](auto&& other) {
            return median_of([&] {
                library_.start(buffers.it);
                other();
                library_.finish();
            });
        };
        double alone = median_of([&] { compute(units); });
        double both = around([&] { compute(units); });
        double tested = around([&] {
            for (long done = 0; done < units; done += TESTS_APART) {
                compute(std::min(TESTS_APART, units - done));
                requests_.test();
            }
        });
        print_beside("computing", bytes, errors, call, alone, both, tested);
        double slept = around([&] { std::this_thread::sleep_for(std::chrono::duration<double>(call)); });
        print_beside("sleeping", bytes, errors, call, call, slept, slept);
    }

    void print_beside(const char* what, std::size_t bytes, double errors, double call, double alone, double both, double tested) {
        if (rank_ == 0)
            std::printf("{\"what\":\"%s\",\"bytes\":%zu,\"way\":\"requests\",\"call_us\":%.1f,\"alone_us\":%.1f,\"us\":%.1f,\"tested_us\":%.1f,"
                        "\"hidden\":%.3f,\"wrong\":%.0f}\n",
                        what, bytes, call * 1e6, alone * 1e6, both * 1e6, tested * 1e6, (call + alone - both) / call, errors);
        std::fflush(stdout);
    }

    void busy() {
        double tick = tick_ns(), seconds = std::atof(text("seconds", "1").c_str());
        each_of("cells", "all_reduce:8", [&](const std::string& cell) {
            auto colon = cell.find(':');
            auto found = collectives().find(cell.substr(0, colon));
            if (colon == std::string::npos || found == collectives().end()) fail("cells=" + cell + ": COLLECTIVE:BYTES expected");
            std::size_t bytes = std::strtoull(cell.c_str() + colon + 1, nullptr, 10);
            Buffers buffers(found->second, bytes, ranks_);
            double errors = wrong(buffers.it);
            // As many calls between two looks at the clock on all ranks: some 20 ms.
            int batch = 1;
            for (double once = 0; once < 0.02 && batch < MOST_CALLS; batch *= 2) {
                double begun = now();
                for (int i = 0; i < batch; i++) library_.call(buffers.it);
                once = since(begun);
            }
            Histogram times;
            double begun = now(), burnt = processor_s();
            do {
                for (int i = 0; i < batch; i++) {
                    const std::uint64_t first = ticks();
                    library_.call(buffers.it);
                    times.add(ticks() - first);
                }
            } while (since(begun) < seconds);
            print_busy(cell.substr(0, colon), bytes, errors, times, tick, processor_s() - burnt);
        });
    }

    void print_busy(const std::string& collective, std::size_t bytes, double errors, const Histogram& times, double tick, double burnt) {
        double us = tick / 1e3 / (collective == "send_recv" ? 2 : 1), calls = static_cast<double>(times.calls());
        double mean = library_.max(times.mean() * us), median = library_.max(times.quantile(0.5) * us);
        double p99 = library_.max(times.quantile(0.99) * us), p999 = library_.max(times.quantile(0.999) * us);
        double cpu = library_.sum(burnt) / calls * 1e6;
        double sessions = library_.max(getsid(0)) == -library_.max(-getsid(0)) ? 1 : 2;
        if (rank_ == 0)
            std::printf("{\"of\":\"%s\",\"bytes\":%zu,\"calls\":%.0f,\"mean_us\":%.4f,\"us\":%.4f,\"p99_us\":%.3f,\"p999_us\":%.3f,"
                        "\"cpu_us\":%.4f,\"tick_ns\":%.4f,\"overhead_ns\":%.1f,\"sessions\":%.0f,\"wrong\":%.0f}\n",
                        collective.c_str(), bytes, calls, mean, median, p99, p999, cpu, tick,
                        static_cast<double>(overhead_ticks()) * tick, sessions, errors);
        std::fflush(stdout);
    }

    Requests& requests_;
};

} // namespace contest
