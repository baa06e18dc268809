// The calls of the contest between two ranks that can do no more than move bytes to each other: a floor for libraries.
//
// An all-reduce sends all that it has up to 64 KiB, and halves there and back beyond.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "loop.hpp"

namespace contest {

class Pair : public Library {
  public:
    explicit Pair(int rank) : rank_(rank) {}
    int rank() override { return rank_; }
    int ranks() override { return 2; }
    void barrier() override { other(0); }
    double max(double mine) override { return std::max(mine, other(mine)); }
    double sum(double mine) override { return mine + other(mine); }
    void call(const Case& it) override {
        std::size_t count = it.count, me = static_cast<std::size_t>(rank_), peer = 1 - me;
        switch (it.collective) {
        case Collective::AllReduce: {
            if (count * sizeof(float) <= WHOLE_BYTES) {
                exchange(it.input, count, room(count), count);
                add(it.output, it.input, room_.data(), count);
                break;
            }
            std::size_t first = count / 2, begin[2] = {0, first}, length[2] = {first, count - first};
            exchange(it.input + begin[peer], length[peer], room(length[me]), length[me]);
            add(it.output + begin[me], it.input + begin[me], room_.data(), length[me]);
            exchange(it.output + begin[me], length[me], it.output + begin[peer], length[peer]);
            break;
        }
        case Collective::AllGather:
            exchange(it.input, count, it.output + peer * count, count);
            std::copy(it.input, it.input + count, it.output + me * count);
            break;
        case Collective::AllToAll:
            exchange(it.input + peer * count, count, it.output + peer * count, count);
            std::copy(it.input + me * count, it.input + (me + 1) * count, it.output + me * count);
            break;
        case Collective::SendRecv:
            if (rank_ == 0) exchange(it.input, count, nullptr, 0);
            exchange(nullptr, 0, it.output, count);
            if (rank_ == 1) exchange(it.input, count, nullptr, 0);
            break;
        case Collective::Broadcast:
        case Collective::Reduce:
        case Collective::ReduceScatter: fail("the floor has all_reduce, all_gather, all_to_all and send_recv");
        }
    }
    void start(const Case&) override { fail("the floor has blocking calls alone"); }
    void finish() override {}

  private:
    static constexpr std::size_t WHOLE_BYTES = 64 << 10;

    float* room(std::size_t count) {
        if (room_.size() < count) room_.resize(count);
        return room_.data();
    }
    static void add(float* sum, const float* one, const float* other, std::size_t count) {
        for (std::size_t i = 0; i < count; i++) sum[i] = one[i] + other[i];
    }
    double other(double mine) {
        double theirs = 0;
        move(reinterpret_cast<const char*>(&mine), sizeof mine, reinterpret_cast<char*>(&theirs), sizeof theirs);
        return theirs;
    }
    void exchange(const float* sent, std::size_t out, float* received, std::size_t in) {
        move(reinterpret_cast<const char*>(sent), out * sizeof(float), reinterpret_cast<char*>(received), in * sizeof(float));
    }

  protected:
    // Sends and receives at the same time, and spins. Either may be of no bytes.
    virtual void move(const char* sent, std::size_t out, char* received, std::size_t in) = 0;

    int rank_;

  private:
    std::vector<float> room_;
};

// A variable of the environment that must be there.
inline std::string variable(const char* name) {
    const char* value = std::getenv(name);
    if (!value) fail(std::string(name) + " is missing");
    return value;
}

// The connection of rank 1 to rank 0, which listens at MASTER_ADDR, MASTER_PORT.
inline int connected(int rank) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(variable("MASTER_PORT").c_str())));
    if (inet_pton(AF_INET, variable("MASTER_ADDR").c_str(), &address.sin_addr) != 1) fail("MASTER_ADDR is no IPv4 address");
    auto* to = reinterpret_cast<sockaddr*>(&address);
    int one = 1, connection = -1;
    if (rank == 0) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, to, sizeof address) != 0 || listen(listener, 1) != 0) fail("cannot listen");
        connection = accept(listener, nullptr, nullptr);
        close(listener);
    } else {
        // The other rank may not be there yet.
        for (int tries = 0; connection < 0 && tries < 500; tries++) {
            int made = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(made, to, sizeof address) == 0) connection = made;
            else {
                close(made);
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            }
        }
    }
    if (connection < 0) fail("no connection");
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return connection;
}

} // namespace contest
