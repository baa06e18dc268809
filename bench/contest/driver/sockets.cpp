// The floor between two hosts: what bare TCP takes for the calls of the contest, one connection between two ranks that spin.
//
//   RANK=0|1 MASTER_ADDR=ADDRESS MASTER_PORT=PORT contest.sockets collective KEY=VALUE...
#include <fcntl.h>

#include <cerrno>

#include "pair.hpp"

namespace {

class Sockets final : public contest::Pair {
  public:
    Sockets() : Pair(std::atoi(contest::variable("RANK").c_str())), socket_(contest::connected(rank_)) { fcntl(socket_, F_SETFL, O_NONBLOCK); }
    ~Sockets() override { close(socket_); }

  private:
    void move(const char* sent, std::size_t out, char* received, std::size_t in) override {
        while (out > 0 || in > 0) {
            if (out > 0) {
                ssize_t moved = send(socket_, sent, out, MSG_NOSIGNAL);
                if (moved > 0) sent += moved, out -= static_cast<std::size_t>(moved);
                else if (errno != EAGAIN) contest::fail("the connection has broken");
            }
            if (in > 0) {
                ssize_t moved = recv(socket_, received, in, 0);
                if (moved > 0) received += moved, in -= static_cast<std::size_t>(moved);
                else if (moved == 0 || errno != EAGAIN) contest::fail("the connection has broken");
            }
        }
    }

    int socket_;
};

} // namespace

int main(int argc, char** argv) {
    Sockets library;
    return contest::main_of(library, argc, argv);
}
