#!/usr/bin/env bash
# libfabric's native TCP, provider "net" of 1.17.0 (Debian libfabric1=1.17.0-3) and "tcp" of 2.5 (in PyPI's mpich==5.0.2): sends that the
# completion queue has told to be done are lost when the sender closes its endpoint.
#
# What happens: a rank sends tagged messages of 1,000 bytes until one is not done at once, reads the completion of each from its queue, and
# closes the endpoint. The peer, which is alive and connected, then posts a receive for each message that was done: all but the last 8 arrive, and
# the last 8 never do. With FI_DELIVERY_COMPLETE none is lost.
#
# The library's own defaults (tx_attr->op_flags, as fi_getinfo gives them) name no level of completion. With FI_TRANSMIT_COMPLETE or
# FI_DELIVERY_COMPLETE in the flags of each send none is lost: then none is done before the peer's library has taken it.
#
# Why it surprises: the queue says that nothing is in flight, the endpoint is a reliable one (FI_EP_RDM), and closing returns 0; the man page of
# fi_endpoint(3) speaks of outstanding operations alone, which a close discards. What is done here lies in a buffer of the provider's, of
# 9,000 bytes a connection, that nobody moves once the endpoint is closed. MPIs end with a barrier, which hides it; a program whose last call
# is a send does not.
#
# Needs cc, apt-get and pip; speaks on loopback alone. Takes under a minute, most of it the downloads, in a temporary folder.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
for tool in cc apt-get dpkg-deb python3; do
    command -v "$tool" >/dev/null || { echo "skipped: there is no $tool"; exit 0; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
(cd "$work" && apt-get download --quiet libfabric1=1.17.0-3 libfabric-dev=1.17.0-3 && for package in *.deb; do dpkg-deb -x "$package" debian; done) >&2 ||
    { echo "cannot install: apt-get does not give libfabric 1.17.0-3" >&2; exit 2; }
{ python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check mpich==5.0.2; } >&2 ||
    { echo "cannot install: pip does not give mpich==5.0.2" >&2; exit 2; }

cat >"$work/show.c" <<'C'
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 1000, TRIES = 1000, PATIENCE = 3000000, MOST = 100000 };

struct side {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fid_cq *queue;
    struct fid_ep *endpoint;
    char name[64];
    size_t length;
};

static int (*open_fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);

static void check(int code, const char *call) {
    if (code) fprintf(stderr, "%s: %d\n", call, code), exit(2);
}

static void begin(struct side *side, struct fi_info *info) {
    struct fi_cq_attr queue = {.size = 1024, .format = FI_CQ_FORMAT_TAGGED};
    struct fi_av_attr addresses = {.type = FI_AV_TABLE};
    check(open_fabric(info->fabric_attr, &side->fabric, NULL), "fi_fabric");
    check(fi_domain(side->fabric, info, &side->domain, NULL), "fi_domain");
    check(fi_cq_open(side->domain, &queue, &side->queue, NULL), "fi_cq_open");
    check(fi_av_open(side->domain, &addresses, &side->addresses, NULL), "fi_av_open");
    check(fi_endpoint(side->domain, info, &side->endpoint, NULL), "fi_endpoint");
    check(fi_ep_bind(side->endpoint, &side->queue->fid, FI_SEND | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(side->endpoint, &side->addresses->fid, 0), "fi_ep_bind");
    check(fi_enable(side->endpoint), "fi_enable");
    side->length = sizeof side->name;
    check(fi_getname(&side->endpoint->fid, side->name, &side->length), "fi_getname");
}

static int done(struct side *side) {
    struct fi_cq_tagged_entry entries[8];
    ssize_t count = fi_cq_read(side->queue, entries, 8);
    if (count < 0 && count != -FI_EAGAIN) check((int)count, "fi_cq_read");
    return count > 0 ? (int)count : 0;
}

int main(int argc, char **argv) {
    (void)argc;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(2);
    int (*get)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) = dlvsym(library, "fi_getinfo", "FABRIC_1.3");
    struct fi_info *(*copy)(const struct fi_info *) = dlsym(library, "fi_dupinfo");
    uint32_t (*version)(void) = dlsym(library, "fi_version");
    open_fabric = dlsym(library, "fi_fabric");
    struct fi_info *hints = copy(NULL), *info;
    hints->caps = FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    check(get(version() < FI_VERSION(2, 0) ? version() : FI_VERSION(2, 0), NULL, NULL, 0, hints, &info), "fi_getinfo");
    // Native TCP has protocol 25, whatever the provider is called.
    while (info && (info->ep_attr->protocol != 25 || strcmp(info->domain_attr->name, "lo") || info->addr_format != FI_SOCKADDR_IN)) info = info->next;
    if (!info) fprintf(stderr, "no native TCP on loopback\n"), exit(2);

    static struct side sender, peer;
    static char out[BYTES], in[BYTES];
    static struct fi_context2 contexts[4];
    fi_addr_t to;
    begin(&sender, info), begin(&peer, info);
    if (fi_av_insert(sender.addresses, peer.name, 1, &to, 0, NULL) != 1) check(1, "fi_av_insert");
    // One message first, so that both are connected.
    check((int)fi_trecv(peer.endpoint, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &contexts[0]), "fi_trecv");
    while (fi_tsend(sender.endpoint, out, 8, NULL, to, 1, &contexts[1])) done(&sender), done(&peer);
    for (int both = 0; both < 2;) both += done(&sender) + done(&peer);

    uint64_t flags = FI_COMPLETION;
    if (!strcmp(argv[2], "transmitted")) flags |= FI_TRANSMIT_COMPLETE;
    if (!strcmp(argv[2], "delivered")) flags |= FI_DELIVERY_COMPLETE;
    int sent = 0;
    for (; sent < MOST; sent++) {
        struct iovec piece = {out, BYTES};
        void *description = NULL;
        struct fi_msg_tagged message = {.msg_iov = &piece, .desc = &description, .iov_count = 1, .addr = to, .tag = 100 + sent, .context = &contexts[2]};
        if (fi_tsendmsg(sender.endpoint, &message, flags)) break;
        int tries = 0;
        while (!done(&sender) && ++tries < TRIES) {}
        if (tries == TRIES) break;
    }
    int closed = fi_close(&sender.endpoint->fid), came = 0;
    for (; came < sent; came++) {
        while (fi_trecv(peer.endpoint, in, BYTES, NULL, FI_ADDR_UNSPEC, 100 + came, 0, &contexts[3])) done(&peer);
        long looks = 0;
        while (!done(&peer) && ++looks < PATIENCE) {}
        if (looks == PATIENCE) break;
    }
    uint64_t levels = FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
    printf("%s: default level %s, %s were done, the close returns %d, lost %d\n", argv[2], info->tx_attr->op_flags & levels ? "named" : "none",
           sent > 1000 ? "thousands" : "few", closed, sent - came);
}
C
include=$(dirname "$(dirname "$(find "$work/debian" -name fabric.h -path '*/rdma/*')")")
cc -O1 -Wall -I"$include" -o "$work/show" "$work/show.c" -ldl || { echo "cannot compile against libfabric-dev 1.17.0-3" >&2; exit 2; }

libraries=("$(find "$work/debian" -name 'libfabric.so.1' | head -1)" "$(find "$work/venv" -name 'libfabric.so.1' | head -1)")
found=
for library in "${libraries[@]}"; do
    for way in plain transmitted delivered; do
        line=$(timeout "$RUN_LIMIT_S" "$work/show" "$library" "$way") || { echo "cannot run with $library" >&2; exit 2; }
        echo "$line"
        found+="$line"$'\n'
    done
done
one='plain: default level none, thousands were done, the close returns 0, lost 8
transmitted: default level none, few were done, the close returns 0, lost 0
delivered: default level none, few were done, the close returns 0, lost 0
'
if [[ $found == "$one$one" ]]; then
    echo "as described: of the messages that were done the last 8 are lost with the endpoint"
else
    echo "not as described" >&2
    exit 1
fi
