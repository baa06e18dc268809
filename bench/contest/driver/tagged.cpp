// The floor over libfabric: what its tagged messages take for the calls of the contest, between two ranks that spin. Messages of up to what
// the provider copies are injected; there is no header, no credit and no check.
//
//   RANK=0|1 MASTER_ADDR=ADDRESS MASTER_PORT=PORT FI_PROVIDER=tcp FI_TCP_IFACE=eth0 contest.tagged collective KEY=VALUE...
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include "pair.hpp"

namespace {

void must(long code, const char* what) {
    if (code < 0) contest::fail(std::string(what) + ": " + fi_strerror(static_cast<int>(-code)));
}

class Tagged final : public contest::Pair {
  public:
    Tagged() : Pair(std::atoi(contest::variable("RANK").c_str())) {
        fi_info* hints = fi_allocinfo();
        hints->caps = FI_TAGGED;
        hints->mode = FI_CONTEXT;
        hints->ep_attr->type = FI_EP_RDM;
        hints->domain_attr->threading = FI_THREAD_DOMAIN;
        must(fi_getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, hints, &info_), "fi_getinfo");
        fi_freeinfo(hints);
        must(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
        must(fi_domain(fabric_, info_, &domain_, nullptr), "fi_domain");
        fi_cq_attr queue{};
        queue.format = FI_CQ_FORMAT_TAGGED;
        fi_av_attr addresses{};
        addresses.type = FI_AV_TABLE;
        must(fi_cq_open(domain_, &queue, &queue_, nullptr), "fi_cq_open");
        must(fi_av_open(domain_, &addresses, &addresses_, nullptr), "fi_av_open");
        must(fi_endpoint(domain_, info_, &endpoint_, nullptr), "fi_endpoint");
        must(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
        must(fi_ep_bind(endpoint_, &addresses_->fid, 0), "fi_ep_bind");
        must(fi_enable(endpoint_), "fi_enable");
        char own[256] = {}, theirs[256] = {};
        std::size_t length = sizeof own;
        must(fi_getname(&endpoint_->fid, own, &length), "fi_getname");
        int connection = contest::connected(rank_);
        if (send(connection, own, sizeof own, 0) != sizeof own || recv(connection, theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs)
            contest::fail("no address of the other rank");
        close(connection);
        if (fi_av_insert(addresses_, theirs, 1, &peer_, 0, nullptr) != 1) contest::fail("fi_av_insert");
    }
    ~Tagged() override {
        for (fid* it : {&endpoint_->fid, &addresses_->fid, &queue_->fid, &domain_->fid, &fabric_->fid}) fi_close(it);
        fi_freeinfo(info_);
    }

  private:
    void move(const char* sent, std::size_t out, char* received, std::size_t in) override {
        int awaited = 0;
        if (in > 0) {
            post([&] { return fi_trecv(endpoint_, received, in, nullptr, peer_, 0, 0, &contexts_[0]); }, "fi_trecv");
            awaited++;
        }
        if (out > 0 && out <= info_->tx_attr->inject_size) {
            post([&] { return fi_tinject(endpoint_, sent, out, peer_, 0); }, "fi_tinject");
        } else if (out > 0) {
            post([&] { return fi_tsend(endpoint_, sent, out, nullptr, peer_, 0, &contexts_[1]); }, "fi_tsend");
            awaited++;
        }
        while (awaited > 0) awaited -= done();
    }
    template <typename Post> void post(Post post, const char* what) {
        for (long code; (code = post()) != 0;) {
            if (code != -FI_EAGAIN) must(code, what);
            // What is done meanwhile is not ours: nothing is under way.
            fi_cq_read(queue_, nullptr, 0);
        }
    }
    int done() {
        fi_cq_tagged_entry entries[2];
        long count = fi_cq_read(queue_, entries, 2);
        if (count == -FI_EAGAIN) return 0;
        must(count, "fi_cq_read");
        return static_cast<int>(count);
    }

    fi_info* info_ = nullptr;
    fid_fabric* fabric_ = nullptr;
    fid_domain* domain_ = nullptr;
    fid_cq* queue_ = nullptr;
    fid_av* addresses_ = nullptr;
    fid_ep* endpoint_ = nullptr;
    fi_addr_t peer_ = 0;
    fi_context contexts_[2];
};

} // namespace

int main(int argc, char** argv) {
    Tagged library;
    return contest::main_of(library, argc, argv);
}
