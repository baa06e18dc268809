#!/usr/bin/env bash
# libfabric's native TCP, provider "net" of 1.17.0 (Debian libfabric1=1.17.0-3) and "tcp" of 2.5 (in PyPI's mpich==5.0.2): a tagged receive from
# anybody at one endpoint takes a message that was sent to another endpoint of the same domain.
#
# What happens: a domain has two reliable endpoints (FI_EP_RDM), A and B, each with a completion queue and an address vector of its own. A sender
# in another domain knows A's address alone, and sends it a message with tag 1 before A has posted a receive. Then B posts a receive for tag 1
# from anybody (FI_ADDR_UNSPEC): the message for A is written to B's buffer. A's own receive, posted afterwards, stays empty. In 2.5 B's
# queue has the completion; in 1.17.0 A's queue has it, with the context of B's receive. No call fails, and no queue has an error.
#
# It does not happen where A's receive is posted before the message comes, where B's receive has another tag or names the sender
# (FI_DIRECTED_RECV), or where A and B lie in two domains. In 2.5 it does not happen either where A's address vector lacks the sender: only
# messages of known peers are saved. In 1.17.0 that makes no difference. Nor does it happen by the provider "tcp;ofi_rxm" of either library.
#
# Why it surprises: fi_trecv(3) posts a buffer to the receive queue of its own endpoint, and an address names one endpoint. But what has come
# without a receive stands in a list of the domain, and a receive from anybody takes the first of its tag there, whichever endpoint it was
# sent to. A program with an endpoint for each thread, and tags that begin anew in each, gets other threads' messages, and only when a message is
# early. Programs with one endpoint in a domain do not meet it.
#
# Needs cc, apt-get and pip; speaks on loopback alone. Takes under a minute, in a temporary folder.
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
#include <time.h>

enum { GREETING = 7, TAG = 1, OTHER_TAG = 2, MOST_MS = 10000, EMPTY_MS = 400, LEAST_ROUNDS = 1000, BYTES = 32 };

struct side {
    const char *title;
    struct fid_av *addresses;
    struct fid_cq *queue;
    struct fid_ep *endpoint;
    char name[64];
    size_t length;
};

// A send or a receive, found again by its context.
struct operation {
    struct fi_context2 context;
    char buffer[BYTES];
    const struct side *told_by;
};

static struct side sender = {"the sender"}, a = {"A"}, b = {"B"};

static void check(int code, const char *call) {
    if (code) fprintf(stderr, "%s: %d\n", call, code), exit(2);
}

static void begin(struct side *side, struct fi_info *info, struct fid_domain *domain) {
    struct fi_cq_attr queue = {.size = 64, .format = FI_CQ_FORMAT_TAGGED};
    struct fi_av_attr addresses = {.type = FI_AV_TABLE};
    check(fi_cq_open(domain, &queue, &side->queue, NULL), "fi_cq_open");
    check(fi_av_open(domain, &addresses, &side->addresses, NULL), "fi_av_open");
    check(fi_endpoint(domain, info, &side->endpoint, NULL), "fi_endpoint");
    check(fi_ep_bind(side->endpoint, &side->queue->fid, FI_SEND | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(side->endpoint, &side->addresses->fid, 0), "fi_ep_bind");
    check(fi_enable(side->endpoint), "fi_enable");
    side->length = sizeof side->name;
    check(fi_getname(&side->endpoint->fid, side->name, &side->length), "fi_getname");
}

static fi_addr_t insert(struct side *side, const struct side *peer) {
    fi_addr_t address;
    check(fi_av_insert(side->addresses, peer->name, 1, &address, 0, NULL) != 1, "fi_av_insert");
    return address;
}

// Moves all three on until the operation is done (none: to the end) or the time is over, and not before some rounds.
static void wait_for(const struct operation *operation, long wait_ms) {
    const struct side *sides[] = {&sender, &a, &b};
    struct timespec begun, now;
    int rounds = 0;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int i = 0; i < 3; i++) {
            struct fi_cq_tagged_entry entry;
            ssize_t count = fi_cq_read(sides[i]->queue, &entry, 1);
            if (count == 1) ((struct operation *)entry.op_context)->told_by = sides[i];
            else if (count != -FI_EAGAIN) check((int)count, "fi_cq_read");
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (operation && operation->told_by) return;
        rounds += rounds < LEAST_ROUNDS;
    } while (rounds < LEAST_ROUNDS || (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < wait_ms);
}

static void send_to_a(fi_addr_t to, uint64_t tag, const char *text, struct operation *send) {
    strcpy(send->buffer, text);
    while (fi_tsend(sender.endpoint, send->buffer, BYTES, NULL, to, tag, &send->context)) wait_for(NULL, 1);
    wait_for(send, MOST_MS);
    check(!send->told_by, "the send is not done");
}

static void receive(struct side *side, fi_addr_t from, uint64_t tag, struct operation *receive) {
    check((int)fi_trecv(side->endpoint, receive->buffer, BYTES, NULL, from, tag, 0, &receive->context), "fi_trecv");
}

static void print(const char *whose, const struct operation *receive) {
    printf("%s has %s", whose, *receive->buffer ? receive->buffer : "nothing");
    if (receive->told_by) printf(" (told by %s's queue)", receive->told_by->title);
}

int main(int argc, char **argv) {
    (void)argc;
    const char *way = argv[2];
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(2);
    int (*get)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) = dlvsym(library, "fi_getinfo", "FABRIC_1.3");
    struct fi_info *(*copy)(const struct fi_info *) = dlsym(library, "fi_dupinfo");
    uint32_t (*version)(void) = dlsym(library, "fi_version");
    int (*open_fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *) = dlsym(library, "fi_fabric");
    struct fi_info *hints = copy(NULL), *info;
    int is_directed = !strcmp(way, "directed");
    uint32_t protocol = strcmp(way, "layered") ? FI_PROTO_XNET : FI_PROTO_RXM;
    hints->caps = FI_TAGGED | (is_directed ? FI_DIRECTED_RECV : 0);
    hints->ep_attr->type = FI_EP_RDM;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    check(get(version() < FI_VERSION(2, 0) ? version() : FI_VERSION(2, 0), NULL, NULL, 0, hints, &info), "fi_getinfo");
    // Native TCP has one protocol, whatever the provider is called.
    while (info && (info->ep_attr->protocol != protocol || strcmp(info->domain_attr->name, "lo") || info->addr_format != FI_SOCKADDR_IN)) info = info->next;
    if (!info) fprintf(stderr, "no such provider on loopback\n"), exit(2);

    struct fid_fabric *fabric;
    struct fid_domain *outside, *domain, *second;
    check(open_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &outside, NULL), "fi_domain");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    check(fi_domain(fabric, info, &second, NULL), "fi_domain");
    begin(&sender, info, outside), begin(&a, info, domain), begin(&b, info, strcmp(way, "two-domains") ? domain : second);
    fi_addr_t to = insert(&sender, &a), to_a_from = FI_ADDR_UNSPEC, to_b_from = FI_ADDR_UNSPEC;
    if (strcmp(way, "stranger")) {
        fi_addr_t known_to_a = insert(&a, &sender), known_to_b = insert(&b, &sender);
        if (is_directed) to_a_from = known_to_a, to_b_from = known_to_b;
    }

    static struct operation sends[2], greeting, at_a, at_b;
    // One message first, so that the sender and A are connected.
    receive(&a, FI_ADDR_UNSPEC, GREETING, &greeting);
    send_to_a(to, GREETING, "greeting", &sends[0]);
    wait_for(&greeting, MOST_MS);
    check(greeting.told_by != &a, "the greeting is not at A");

    if (!strcmp(way, "posted-before")) receive(&a, to_a_from, TAG, &at_a);
    send_to_a(to, TAG, "the message for A", &sends[1]);
    wait_for(NULL, EMPTY_MS);
    receive(&b, to_b_from, strcmp(way, "other-tag") ? TAG : OTHER_TAG, &at_b);
    wait_for(&at_b, EMPTY_MS);
    if (strcmp(way, "posted-before")) receive(&a, to_a_from, TAG, &at_a);
    wait_for(&at_a, EMPTY_MS);
    printf("%s %u.%u, %s: ", info->fabric_attr->prov_name, FI_MAJOR(version()), FI_MINOR(version()), way);
    print("B's receive", &at_b), print("; A's", &at_a), puts("");
}
C
include=$(dirname "$(dirname "$(find "$work/debian" -name fabric.h -path '*/rdma/*')")")
cc -O1 -Wall -I"$include" -o "$work/show" "$work/show.c" -ldl || { echo "cannot compile against libfabric-dev 1.17.0-3" >&2; exit 2; }

libraries=("$(find "$work/debian" -name 'libfabric.so.1' | head -1)" "$(find "$work/venv" -name 'libfabric.so.1' | head -1)")
found=
for library in "${libraries[@]}"; do
    for way in anybody stranger posted-before other-tag directed two-domains layered; do
        line=$(timeout "$RUN_LIMIT_S" "$work/show" "$library" "$way") || { echo "cannot run with $library" >&2; exit 2; }
        echo "$line"
        found+="$line"$'\n'
    done
done
if [[ $found == "net 1.17, anybody: B's receive has the message for A (told by A's queue); A's has nothing
net 1.17, stranger: B's receive has the message for A (told by A's queue); A's has nothing
net 1.17, posted-before: B's receive has nothing; A's has the message for A (told by A's queue)
net 1.17, other-tag: B's receive has nothing; A's has the message for A (told by A's queue)
net 1.17, directed: B's receive has nothing; A's has the message for A (told by A's queue)
net 1.17, two-domains: B's receive has nothing; A's has the message for A (told by A's queue)
tcp;ofi_rxm 1.17, layered: B's receive has nothing; A's has the message for A (told by A's queue)
tcp 2.5, anybody: B's receive has the message for A (told by B's queue); A's has nothing
tcp 2.5, stranger: B's receive has nothing; A's has the message for A (told by A's queue)
tcp 2.5, posted-before: B's receive has nothing; A's has the message for A (told by A's queue)
tcp 2.5, other-tag: B's receive has nothing; A's has the message for A (told by A's queue)
tcp 2.5, directed: B's receive has nothing; A's has the message for A (told by A's queue)
tcp 2.5, two-domains: B's receive has nothing; A's has the message for A (told by A's queue)
tcp;ofi_rxm 2.5, layered: B's receive has nothing; A's has the message for A (told by A's queue)
" ]]; then
    echo "as described: a receive from anybody at B takes the message that was sent to A"
else
    echo "not as described" >&2
    exit 1
fi
