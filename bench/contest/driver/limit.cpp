// What this machine allows, without any library:
//
//   limit memory BYTES,...    all-reduce of two pinned threads that share all four buffers: each adds its half of both inputs and
//                             stores it into both outputs; the better of cached and streaming stores
//   limit staged BYTES,...    the same with private buffers: 64 KiB pieces through shared slots that go round 2 MiB, which is what
//                             any library can reach that copies in and out
//   limit tcp BYTES,...       half of a round trip between two processes over TCP on loopback
//   limit copies BYTES,...    one thread copies into memory that the other has just read, which then copies from there: ns a KiB of
//                             both, by the C library's copy, by vector stores, and by stores past the caches
//   limit exchange BYTES,...  an all-gather of two threads, each with half of BYTES and slots of its own: to output and slot in turns
//                             of 8 KiB before it tells the other, and to the slot, the signal, and then to the output
//   limit places BYTES,...    half of a round trip of BYTES through places that go round a memory of some size, next to each other
//                             and with a page between them
//   limit trip                a flag's round trip between the two processors, in nanoseconds
//
// Prints a JSON object a line. Needs two processors: exits 3 where there is one.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace {

constexpr int BLOCKS = 21;
constexpr double BLOCK_S = 0.005;
int processors[2];

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    std::exit(1);
}

void pin(int place) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processors[place], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

float* pages(std::size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    std::memset(at, 0, bytes);
    return static_cast<float*>(at);
}

// Two threads that spin: nobody can wait for the other in less.
class Meeting {
  public:
    void meet(int place) {
        arrive(place);
        await(place);
    }
    void arrive(int place) { arrived_[place].value.store(++turns_[place].value, std::memory_order_release); }
    void await(int place) {
        while (arrived_[1 - place].value.load(std::memory_order_acquire) < turns_[place].value) {}
    }

  private:
    struct alignas(128) Own {
        std::uint64_t value = 0;
    };
    struct alignas(128) Shared {
        std::atomic<std::uint64_t> value{0};
    };
    Own turns_[2];
    Shared arrived_[2];
};

// Runs `call(place)` on both processors, block after block; the median of a call in µs.
template <class Call>
double time_pair(Call&& call) {
    Meeting meeting;
    std::atomic<long> calls{1};
    std::vector<double> times;
    auto run = [&](int place) {
        pin(place);
        for (int block = -8; block < BLOCKS; block++) {
            meeting.meet(place);
            long loop = calls.load();
            meeting.meet(place);
            double begun = now();
            for (long i = 0; i < loop; i++) {
                call(place);
                meeting.meet(place);
            }
            double each = (now() - begun) / static_cast<double>(loop);
            if (place == 0) {
                if (block >= 0) times.push_back(each);
                else calls.store(std::clamp(static_cast<long>(BLOCK_S / each), 1L, 100000L));
            }
            meeting.meet(place);
        }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    return median(times) * 1e6;
}

template <bool STREAMING>
void add(const float* a, const float* b, float* x, float* y, std::size_t from, std::size_t to) {
#if defined(__SSE__)
    if constexpr (STREAMING) {
        std::size_t i = from;
        for (; i + 4 <= to; i += 4) {
            __m128 sum = _mm_add_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i));
            _mm_stream_ps(x + i, sum);
            _mm_stream_ps(y + i, sum);
        }
        _mm_sfence();
        from = i;
    }
#endif
    for (std::size_t i = from; i < to; i++) x[i] = y[i] = a[i] + b[i];
}

double memory(std::size_t bytes) {
    std::size_t count = std::max<std::size_t>(bytes / sizeof(float), 2), half = count / 2 / 4 * 4;
    if (half == 0) half = count / 2;
    float* buffers[4];
    for (auto& buffer : buffers) buffer = pages(count * sizeof(float));
    auto bounds = [&](int place) { return place == 0 ? std::pair{std::size_t{0}, half} : std::pair{half, count}; };
    auto pass = [&](auto kind) {
        return time_pair([&](int place) {
            auto [from, to] = bounds(place);
            add<decltype(kind)::value>(buffers[0], buffers[1], buffers[2], buffers[3], from, to);
        });
    };
    double cached = pass(std::false_type{}), streaming = pass(std::true_type{});
    for (auto& buffer : buffers) munmap(buffer, count * sizeof(float));
    return std::min(cached, streaming);
}

double staged(std::size_t bytes) {
    constexpr std::size_t PIECE = 64 << 10, SLOTS = 32;
    std::size_t count = std::max<std::size_t>(bytes / sizeof(float), 2), half = count / 2, piece = PIECE / sizeof(float);
    float *input[2], *output[2], *slots[2], *results[2];
    for (int place = 0; place < 2; place++) {
        input[place] = pages(count * sizeof(float));
        output[place] = pages(count * sizeof(float));
        slots[place] = pages(SLOTS * PIECE);
        results[place] = pages(SLOTS * PIECE);
    }
    Meeting inner;
    std::size_t turn[2] = {0, 0};
    double us = time_pair([&](int me) {
        // Each reduces a half: it gets the other's part of it by a slot, and gives the result back by another.
        int peer = 1 - me;
        std::size_t mine = me == 0 ? 0 : half, theirs = me == 0 ? half : 0;
        std::size_t my_end = me == 0 ? half : count, their_end = me == 0 ? count : half, longest = count - half;
        for (std::size_t at = 0; at < longest; at += piece, turn[me]++) {
            std::size_t slot = turn[me] % SLOTS * piece;
            std::size_t give = theirs + at < their_end ? std::min(piece, their_end - theirs - at) : 0;
            std::size_t take = mine + at < my_end ? std::min(piece, my_end - mine - at) : 0;
            std::memcpy(slots[me] + slot, input[me] + theirs + at, give * sizeof(float));
            inner.meet(me);
            for (std::size_t i = 0; i < take; i++)
                output[me][mine + at + i] = results[me][slot + i] = input[me][mine + at + i] + slots[peer][slot + i];
            inner.meet(me);
            std::memcpy(output[me] + theirs + at, results[peer] + slot, give * sizeof(float));
        }
    });
    for (int place = 0; place < 2; place++) {
        munmap(input[place], count * sizeof(float));
        munmap(output[place], count * sizeof(float));
        munmap(slots[place], SLOTS * PIECE);
        munmap(results[place], SLOTS * PIECE);
    }
    return us;
}

enum class Way { Library, Vector, Streaming };

void copy(Way way, float* to, const float* from, std::size_t bytes) {
#if defined(__SSE__)
    std::size_t count = bytes / sizeof(float);
    if (way == Way::Vector) {
        for (std::size_t i = 0; i + 4 <= count; i += 4) _mm_store_ps(to + i, _mm_load_ps(from + i));
        return;
    }
    if (way == Way::Streaming) {
        for (std::size_t i = 0; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
        _mm_sfence();
        return;
    }
#endif
    std::memcpy(to, from, bytes);
}

void copies(std::size_t bytes) {
    bytes = std::max<std::size_t>(bytes / 64 * 64, 64);
    float *own[2] = {pages(bytes), pages(bytes)}, *shared = pages(bytes);
    const char* names[] = {"library", "vector", "streaming"};
    for (Way way : {Way::Library, Way::Vector, Way::Streaming}) {
        std::vector<double> times[2];
        Meeting inner;
        time_pair([&](int me) {
            // Both have the data of the call before: the reader has read it, the writer takes it back.
            if (me == 1) inner.meet(me);
            double begun = now();
            if (me == 0) copy(way, shared, own[0], bytes);
            else copy(Way::Library, own[1], shared, bytes);
            times[me].push_back((now() - begun) * 1e9 / (static_cast<double>(bytes) / 1024));
            if (me == 0) inner.meet(me);
        });
        std::printf("{\"bytes\":%zu,\"stores\":\"%s\",\"write_ns_a_kib\":%.1f,\"read_ns_a_kib\":%.1f}\n", bytes,
                    names[static_cast<int>(way)], median(times[0]), median(times[1]));
    }
    for (float* buffer : {own[0], own[1], shared}) munmap(buffer, bytes);
}

void exchange(std::size_t bytes) {
    constexpr std::size_t TURN = 8 << 10;
    std::size_t half = std::max<std::size_t>(bytes / 2 / 64 * 64, 64);
    char *input[2], *output[2], *slot[2];
    for (int place = 0; place < 2; place++) {
        input[place] = reinterpret_cast<char*>(pages(half));
        output[place] = reinterpret_cast<char*>(pages(2 * half));
        slot[place] = reinterpret_cast<char*>(pages(half));
    }
    Meeting inner;
    auto run = [&](bool in_turns) {
        return time_pair([&](int me) {
            int peer = 1 - me;
            std::size_t mine = static_cast<std::size_t>(me) * half, theirs = static_cast<std::size_t>(peer) * half;
            for (std::size_t at = 0, length; at < half; at += length) {
                length = in_turns ? std::min(TURN, half - at) : half;
                std::memcpy(slot[me] + at, input[me] + at, length);
                if (in_turns) std::memcpy(output[me] + mine + at, input[me] + at, length);
            }
            inner.arrive(me);
            if (!in_turns) std::memcpy(output[me] + mine, input[me], half);
            inner.await(me);
            std::memcpy(output[me] + theirs, slot[peer], half);
        });
    };
    double turns = run(true), slot_first = run(false);
    std::printf("{\"bytes\":%zu,\"in_turns_us\":%.2f,\"slot_first_us\":%.2f}\n", bytes, turns, slot_first);
    for (int place = 0; place < 2; place++) {
        munmap(input[place], half);
        munmap(output[place], 2 * half);
        munmap(slot[place], half);
    }
}

void places(std::size_t bytes) {
    bytes = std::max<std::size_t>(bytes / 64 * 64, 64);
    char* own[2] = {reinterpret_cast<char*>(pages(bytes)), reinterpret_cast<char*>(pages(bytes))};
    for (std::size_t gap : {0, 4096})
        for (std::size_t reach = 64 << 10; reach <= 8 << 20; reach *= 2) {
            std::size_t count = reach / bytes, apart = bytes + gap;
            if (count == 0) continue;
            char* there[2] = {reinterpret_cast<char*>(pages(count * apart)), reinterpret_cast<char*>(pages(count * apart))};
            struct alignas(128) Turn {
                std::size_t value = 0;
            } turns[2];
            Meeting gone, come;
            double us = time_pair([&](int me) {
                std::size_t at = turns[me].value++ % count * apart;
                if (me == 0) {
                    std::memcpy(there[0] + at, own[0], bytes);
                    gone.arrive(0);
                    come.meet(0);
                    std::memcpy(own[0], there[1] + at, bytes);
                } else {
                    gone.meet(1);
                    std::memcpy(own[1], there[0] + at, bytes);
                    std::memcpy(there[1] + at, own[1], bytes);
                    come.arrive(1);
                }
            });
            std::printf("{\"bytes\":%zu,\"round_kib\":%zu,\"gap\":%zu,\"us\":%.2f}\n", bytes, reach >> 10, gap, us / 2);
            for (char* memory : there) munmap(memory, count * apart);
        }
    for (char* memory : own) munmap(memory, bytes);
}

void whole(int socket, char* data, std::size_t bytes, bool send_it) {
    while (bytes > 0) {
        ssize_t moved = send_it ? send(socket, data, bytes, MSG_NOSIGNAL) : recv(socket, data, bytes, 0);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) fail("socket");
        data += moved;
        bytes -= static_cast<std::size_t>(moved);
    }
}

double tcp(std::size_t bytes) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) || listen(listener, 1) ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length))
        fail("listen");
    std::vector<char> data(bytes);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        pin(1);
        int peer = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof address)) fail("connect");
        setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (;;) {
            // The other end closes when it has enough.
            ssize_t got = recv(peer, data.data(), bytes, MSG_PEEK);
            if (got <= 0) _exit(0);
            whole(peer, data.data(), bytes, false);
            whole(peer, data.data(), bytes, true);
        }
    }
    pin(0);
    int peer = accept(listener, nullptr, nullptr);
    if (peer < 0) fail("accept");
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    long loop = 1;
    std::vector<double> times;
    for (int block = -8; block < BLOCKS; block++) {
        double begun = now();
        for (long i = 0; i < loop; i++) {
            whole(peer, data.data(), bytes, true);
            whole(peer, data.data(), bytes, false);
        }
        double each = (now() - begun) / static_cast<double>(loop);
        if (block >= 0) times.push_back(each / 2);
        else loop = std::clamp(static_cast<long>(BLOCK_S / each), 1L, 10000L);
    }
    close(peer);
    close(listener);
    waitpid(child, nullptr, 0);
    return median(times) * 1e6;
}

double trip_ns() {
    constexpr int TRIPS = 20000, RUNS = 5;
    alignas(128) static std::atomic<int> ping{0};
    alignas(128) static std::atomic<int> pong{0};
    std::thread other([] {
        pin(1);
        for (int i = 1; i <= TRIPS * RUNS; i++) {
            while (ping.load(std::memory_order_acquire) != i) {}
            pong.store(i, std::memory_order_release);
        }
    });
    pin(0);
    double least = 1e18;
    for (int run = 0, at = 0; run < RUNS; run++) {
        double begun = now();
        for (int i = 0; i < TRIPS; i++) {
            ping.store(++at, std::memory_order_release);
            while (pong.load(std::memory_order_acquire) != at) {}
        }
        least = std::min(least, (now() - begun) / TRIPS * 1e9);
    }
    other.join();
    return least;
}

} // namespace

int main(int argc, char** argv) {
    cpu_set_t allowed;
    int found = 0;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET(i, &allowed)) processors[found++] = i;
    if (found < 2) return 3;
    std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "trip") {
        std::printf("{\"trip_ns\":%.1f}\n", trip_ns());
        return 0;
    }
    const std::string modes[] = {"memory", "staged", "tcp", "copies", "exchange", "places"};
    if (argc != 3 || std::find(std::begin(modes), std::end(modes), mode) == std::end(modes)) {
        std::fprintf(stderr, "usage: limit memory|staged|tcp|copies|exchange|places BYTES,... | limit trip\n");
        return 2;
    }
    std::stringstream sizes(argv[2]);
    for (std::string size; std::getline(sizes, size, ',');) {
        std::size_t bytes = std::strtoull(size.c_str(), nullptr, 10);
        if (mode == "copies" || mode == "exchange" || mode == "places") {
            mode == "copies" ? copies(bytes) : mode == "exchange" ? exchange(bytes) : places(bytes);
            continue;
        }
        double us = mode == "memory" ? memory(bytes) : mode == "staged" ? staged(bytes) : tcp(bytes);
        std::printf("{\"bytes\":%zu,\"us\":%.4f}\n", bytes, us);
        std::fflush(stdout);
    }
    return 0;
}
