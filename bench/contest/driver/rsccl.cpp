// rsccl's C++ classes in the contest, in the parts of in_use.hpp. The loops of all parts in Rust: ../../contest.rs.
#include <rsccl/rsccl.hpp>

#include "in_use.hpp"

namespace {

using contest::Case;
using contest::Collective;

auto input(const Case& it) { return rsccl::view(it.input, it.count); }
auto output(const Case& it) { return rsccl::view(it.output, it.count); }

class Classes final : public contest::Requests {
  public:
    Classes() : comm_(rsccl::Communicator::from_env()), peer_(comm_.rank() ^ 1) {}
    int rank() override { return comm_.rank(); }
    int ranks() override { return comm_.size(); }
    void barrier() override { comm_.barrier(); }
    double max(double mine) override { return comm_.all_reduce_value(mine, rsccl::ReduceOp::max); }
    double sum(double mine) override { return comm_.all_reduce_value(mine, rsccl::ReduceOp::sum); }
    void call(const Case& it) override {
        switch (it.collective) {
        case Collective::AllReduce: comm_.all_reduce(input(it), output(it)); break;
        case Collective::Broadcast: comm_.broadcast(input(it), 0); break;
        case Collective::SendRecv:
            if (peer_ > rank()) comm_.send(input(it), peer_);
            comm_.recv(output(it), peer_);
            if (peer_ < rank()) comm_.send(input(it), peer_);
            break;
        case Collective::Reduce:
        case Collective::AllGather:
        case Collective::ReduceScatter:
        case Collective::AllToAll: contest::fail("contest.rs measures this collective");
        }
    }

    void start(const Case& it) override { request_ = comm_.start().all_reduce(input(it), output(it)); }
    void finish() override { request_.wait(); }
    bool test() override { return request_.test(); }

    void exchange(const Case& it) override { comm_.send_recv(input(it), peer_, output(it), peer_); }
    void exchange_by_requests(const Case& it) override {
        auto received = comm_.start().recv(output(it), peer_);
        auto sent = comm_.start().send(input(it), peer_);
        received.wait();
        sent.wait();
    }

    bool prepare(const Case& it) override {
        prepared_ = comm_.prepare().all_reduce(input(it), output(it));
        return true;
    }
    void run_prepared() override { prepared_.run(); }
    void release() override { prepared_ = {}; }

  private:
    rsccl::Communicator comm_;
    int peer_;
    rsccl::Request request_;
    rsccl::PersistentCall prepared_;
};

} // namespace

int main(int argc, char** argv) {
    Classes library;
    return contest::main_of<contest::InUse>(library, argc, argv);
}
