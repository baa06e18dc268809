/* A libfabric that asks for what only hardware asks, and checks that it gets it.
 *
 * One provider with one NIC. Messages go by datagrams between Unix sockets in FOLDER, so its ends may be threads, processes or
 * network namespaces. Layouts are those of release 2.6 (rdma/fabric.h and others), written anew; a test of rsccl compares its own
 * with the headers.
 *
 * Each `-D` below changes what it is. What a caller does wrong is kept as text (stand_in_fault), and the call fails.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef FOLDER
#error "FOLDER: where its sockets lie"
#endif
#ifndef PROVIDER
#define PROVIDER "cxi"
#endif
#ifndef DOMAIN
#define DOMAIN "cxi0"
#endif
#ifndef NICS /* so many: cxi0, cxi1 and on */
#define NICS 1
#endif
#ifndef LINK /* 1: it has none */
#define LINK 2
#endif
#ifndef RELEASE /* 2.6 */
#define RELEASE 0x20006
#endif
#ifndef MODES /* LOCAL, VIRT_ADDR, ALLOCATED, PROV_KEY, ENDPOINT */
#define MODES 0x274
#endif
#ifndef ADDRESS_BYTES
#define ADDRESS_BYTES 256
#endif
#ifndef TAG_FORMAT
#define TAG_FORMAT 0xaaaaaaaaaaULL /* 40 bits */
#endif
#ifndef REQUESTS /* sends, and receives, at a time */
#define REQUESTS 64
#endif
#ifndef LONG /* bytes of a send that is told of: more than a chunk of rsccl */
#define LONG (33 << 10)
#endif
#ifndef AGAIN_EVERY /* each n-th post says EAGAIN */
#define AGAIN_EVERY 0
#endif
#ifndef REORDER /* 1: completions come last first, and none before the second look */
#define REORDER 0
#endif
#ifndef DESCRIPTOR /* 1: there is one to sleep on */
#define DESCRIPTOR 0
#endif
#ifndef FAIL_CALL /* the n-th call of this function fails */
#define FAIL_CALL ""
#endif
#ifndef FAIL_AT
#define FAIL_AT 1
#endif
#ifndef FAIL_FOR /* and so many after it less one */
#define FAIL_FOR 1
#endif
#ifndef FAIL_CODE
#define FAIL_CODE ENOMEM
#endif
#ifndef STUCK /* 1: its queue always says that a request has failed, and never which */
#define STUCK 0
#endif
#ifndef SIGNALS /* 1: it takes signals, as some releases do */
#define SIGNALS 0
#endif

enum { EAVAIL = 259, ETRUNC = 265, ENOKEY_ = 266 };
enum { LOCAL = 4, VIRT_ADDR = 16, ALLOCATED = 32, PROV_KEY = 64, ENDPOINT = 512 };
enum { GETWAIT = 5, ENABLE = 6, WAIT_NONE = 0, WAIT_FD = 3, CLASS_NIC = 20 };
#define MODE_CONTEXT2 (1ULL << 52)
#define CAP_TAGGED (1ULL << 3)
#define RECV (1ULL << 10)
#define SEND (1ULL << 11)

struct fid;
struct ops { size_t size; int (*close)(struct fid *); int (*bind)(struct fid *, struct fid *, uint64_t); int (*control)(struct fid *, int, void *); };
struct fid { size_t class; void *context; const struct ops *ops; };
struct tx { uint64_t caps, mode, op_flags, msg_order, comp_order; size_t inject, size, iov, rma_iov; uint32_t tclass; void *xpu; };
struct rx { uint64_t caps, mode, op_flags, msg_order, comp_order; size_t buffered, size, iov; };
struct epa { int type; uint32_t protocol, version; size_t max_msg, prefix, raw, war, waw; uint64_t tag_format; size_t tx, rx, key_size; uint8_t *key; size_t max_keys; };
struct doma { struct fid *domain; char *name; int threading, control, data, rm, av, mr; size_t key_size, cq_data, cq_cnt, ep_cnt, tx, rx, etx, erx, stx, srx, cntr, iov;
    uint64_t caps, mode; uint8_t *key; size_t keysize, err_data, mr_cnt; uint32_t tclass; uint64_t later[5]; };
struct faba { struct fid *fabric; char *name, *prov_name; uint32_t prov_version, api_version; };
struct dev { char *name, *id, *version, *vendor, *driver, *firmware; };
struct bus { int type; uint16_t domain; uint8_t bus, device, function; };
struct lnk { char *address; size_t mtu, speed; int state; char *network; };
struct nic { struct fid fid; struct dev *dev; struct bus *bus; struct lnk *link; void *prov; };
struct info { struct info *next; uint64_t caps, mode; uint32_t format; size_t src_len, dest_len; void *src, *dest; struct fid *handle;
    struct tx *tx; struct rx *rx; struct epa *ep; struct doma *domain; struct faba *fabric; struct nic *nic; };
struct cqa { size_t size; uint64_t flags; int format, wait, vector, cond; void *set; uint64_t later; };
struct ava { int type, bits; size_t count, per_node; const char *name; void *map; uint64_t flags; };
struct entry { void *context; uint64_t flags; size_t len; void *buf; uint64_t data, tag; };
struct errentry { struct entry done; size_t olen; int err, prov; void *data; size_t data_size; uint64_t src; };

static char fault[256];
static uint32_t asked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *stand_in_fault(void) { return fault[0] ? fault : NULL; }
static int open_objects;
/* How many objects are open. */
int stand_in_open(void) { return open_objects; }

static int wrong(const char *what) {
    if (!fault[0]) snprintf(fault, sizeof fault, "%s", what);
    fprintf(stderr, "stand-in of libfabric: %s\n", what);
    return -EINVAL;
}

/* 0, or the code with which this call is to fail. */
static int failing(const char *call) {
    static int count;
    if (strcmp(call, FAIL_CALL) == 0 && ++count >= FAIL_AT && count - FAIL_AT < FAIL_FOR) return -(FAIL_CODE);
    return 0;
}

#define HOLD __attribute__((cleanup(release))) int held = hold()
static int hold(void) { pthread_mutex_lock(&lock); return 0; }
static void release(int *held) { (void)held; pthread_mutex_unlock(&lock); }

/* Objects. */
struct op { struct op *next; int is_send; void *buf; size_t len, sent; uint64_t tag, ignore, id; char to[108]; uint64_t *context; };
struct done { struct entry entry; int err; size_t olen; };
struct msg { struct msg *next; char from[108]; uint64_t id, tag; size_t total, got; int whole; char *data; };
struct cq { struct fid fid; const void *ops; int refs, epoll, looked; struct ep *ep; struct domain *domain; struct done *list; size_t count, room; };
struct av { struct fid fid; const void *ops; int refs; struct domain *domain; char (*list)[108]; size_t count; };
struct fab { struct fid fid; const void *ops; uint32_t api; int refs; };
struct domain { struct fid fid; const void *ops, *mr; struct fab *fab; int refs; };
struct ep { struct fid fid; const void *ops, *cm, *msg, *rma, *tagged; struct domain *domain; struct cq *cq; struct av *av; int mrs, enabled, socket, under_way[2];
    uint64_t posts, ids; struct op *sends, *receives; struct msg *messages; struct sockaddr_un own; };
struct mr { struct fid fid; void *desc; uint64_t key; struct domain *domain; struct ep *ep; int enabled; char *start; size_t len; uint64_t access; struct mr *next; };
static struct mr *regions;

static void completed(struct cq *cq, struct op *op, size_t len, int err, size_t olen) {
    if (cq->count == cq->room) cq->list = realloc(cq->list, (cq->room = cq->room * 2 + 16) * sizeof *cq->list);
    if (op->context[0] != (uint64_t)(uintptr_t)op || op->context[7] != ~(uint64_t)(uintptr_t)op) wrong("the memory of a request was written by its caller");
    struct done done = { { op->context, (op->is_send ? SEND : RECV) | CAP_TAGGED, len, op->is_send ? NULL : op->buf, 0, op->tag }, err, olen };
    cq->list[cq->count++] = done;
    free(op);
}

/* What has come and what was posted. */
static void match(struct ep *ep) {
    for (struct op **r = &ep->receives; *r;) {
        struct op *op = *r;
        struct msg **m = &ep->messages;
        while (*m && (!(*m)->whole || (((*m)->tag ^ op->tag) & ~op->ignore))) m = &(*m)->next;
        if (!*m) { r = &op->next; continue; }
        struct msg *msg = *m;
        *m = msg->next;
        *r = op->next;
        ep->under_way[0]--;
        size_t fits = msg->total < op->len ? msg->total : op->len;
        memcpy(op->buf, msg->data, fits);
        completed(ep->cq, op, fits, msg->total > op->len ? ETRUNC : 0, msg->total - fits);
        free(msg->data);
        free(msg);
    }
}

struct head { uint64_t tag, total, offset, id; char from[108]; };
enum { PAYLOAD = 16384 };

static void take(struct ep *ep) {
    static char packet[sizeof(struct head) + PAYLOAD];
    for (;;) {
        ssize_t got = recv(ep->socket, packet, sizeof packet, MSG_DONTWAIT);
        if (got < (ssize_t)sizeof(struct head)) return;
        struct head head;
        memcpy(&head, packet, sizeof head);
        struct msg *msg = ep->messages, **last = &ep->messages;
        while (msg && (msg->whole || msg->id != head.id || strcmp(msg->from, head.from))) { last = &msg->next; msg = msg->next; }
        if (!msg) {
            msg = calloc(1, sizeof *msg);
            memcpy(msg->from, head.from, sizeof msg->from);
            msg->id = head.id; msg->tag = head.tag; msg->total = head.total;
            msg->data = malloc(head.total + 1);
            while (*last) last = &(*last)->next;
            *last = msg;
        }
        memcpy(msg->data + head.offset, packet + sizeof head, (size_t)got - sizeof head);
        msg->got += (size_t)got - sizeof head;
        msg->whole = msg->got == msg->total;
    }
}

static void push(struct ep *ep) {
    static char packet[sizeof(struct head) + PAYLOAD];
    for (struct op **s = &ep->sends; *s;) {
        struct op *op = *s;
        int code = 0;
        do {
            size_t part = op->len - op->sent < PAYLOAD ? op->len - op->sent : PAYLOAD;
            struct head head = { op->tag, op->len, op->sent, op->id, "" };
            memcpy(head.from, ep->own.sun_path, sizeof head.from);
            memcpy(packet, &head, sizeof head);
            memcpy(packet + sizeof head, (char *)op->buf + op->sent, part);
            struct sockaddr_un to = { .sun_family = AF_UNIX };
            memcpy(to.sun_path, op->to, sizeof to.sun_path);
            if (sendto(ep->socket, packet, sizeof head + part, MSG_DONTWAIT, (void *)&to, sizeof to) < 0) { code = errno; break; }
            op->sent += part;
        } while (op->sent < op->len);
        if (code == EAGAIN || code == ENOBUFS) { s = &op->next; continue; }
        *s = op->next;
        ep->under_way[1]--;
        completed(ep->cq, op, 0, code, 0); /* a send's completion has no length */
    }
}

static void progress(struct ep *ep) {
    if (!ep || !ep->enabled) return;
    push(ep);
    take(ep);
    match(ep);
}

/* Completions. */
static ssize_t cq_read(struct fid *fid, void *buf, size_t count) {
    HOLD;
    struct cq *cq = (struct cq *)fid;
    int code = failing("cq_read");
    if (code) return code;
    if (STUCK) return cq->looked++ < 1000 ? -EAVAIL : wrong("a queue is asked again and again within a call");
    progress(cq->ep);
    if (cq->count == 0 || (REORDER && cq->looked++ % 2 == 0)) return -EAGAIN;
    if (REORDER)
        for (size_t i = 0; i < cq->count / 2; i++) {
            struct done done = cq->list[i];
            cq->list[i] = cq->list[cq->count - 1 - i];
            cq->list[cq->count - 1 - i] = done;
        }
    size_t got = 0;
    while (got < count && got < cq->count && !cq->list[got].err) { ((struct entry *)buf)[got] = cq->list[got].entry; got++; }
    if (got == 0) return -EAVAIL;
    memmove(cq->list, cq->list + got, (cq->count -= got) * sizeof *cq->list);
    return (ssize_t)got;
}

static ssize_t cq_readerr(struct fid *fid, struct errentry *buf, uint64_t flags) {
    HOLD;
    (void)flags;
    struct cq *cq = (struct cq *)fid;
    if (cq->count == 0 || !cq->list[0].err) return -EAGAIN;
    struct errentry entry = { cq->list[0].entry, cq->list[0].olen, cq->list[0].err, 4711, NULL, 0, 0xfeedULL };
    memcpy(buf, &entry, asked >= 0x10014 ? sizeof entry : offsetof(struct errentry, src));
    memmove(cq->list, cq->list + 1, --cq->count * sizeof *cq->list);
    return 1;
}

static const char *cq_strerror(struct fid *fid, int code, const void *data, char *buf, size_t len) {
    (void)fid; (void)data; (void)buf; (void)len;
    return code == 4711 ? "the stand-in's own words" : "?";
}

static int plain_bind(struct fid *fid, struct fid *to, uint64_t flags) { (void)fid; (void)to; (void)flags; return wrong("this object is bound to nothing"); }
static int plain_control(struct fid *fid, int command, void *argument) { (void)fid; (void)command; (void)argument; return -ENOSYS; }

static int cq_close(struct fid *fid) {
    HOLD;
    struct cq *cq = (struct cq *)fid;
    if (cq->refs) return wrong("a queue is closed before its endpoint"), -EBUSY;
    cq->domain->refs--;
    if (cq->epoll >= 0) close(cq->epoll);
    free(cq->list);
    free(cq);
    open_objects--;
    return 0;
}

static int cq_control(struct fid *fid, int command, void *argument) {
    struct cq *cq = (struct cq *)fid;
    if (command != GETWAIT || cq->epoll < 0) return -ENOSYS;
    *(int *)argument = cq->epoll;
    return 0;
}

struct cqops { size_t size; void *read, *readfrom, *readerr, *sread, *sreadfrom, *signal, *strerror; };
static const struct cqops cq_ops = { sizeof cq_ops, cq_read, NULL, cq_readerr, NULL, NULL, NULL, cq_strerror };
static const struct ops cq_fid = { sizeof cq_fid, cq_close, plain_bind, cq_control };

static int cq_open(struct fid *fid, struct cqa *attr, struct fid **out, void *context) {
    HOLD;
    (void)context;
    int code = failing("cq_open");
    if (code) return code;
    if (attr->wait == WAIT_FD && !DESCRIPTOR) return -ENOSYS;
    if (attr->format != 4 || attr->later) return wrong("a queue of another format, or with a word that no release has");
    struct cq *cq = calloc(1, sizeof *cq);
    cq->fid.ops = &cq_fid; cq->ops = &cq_ops; cq->domain = (struct domain *)fid;
    cq->epoll = attr->wait == WAIT_FD ? epoll_create1(EPOLL_CLOEXEC) : -1;
    cq->domain->refs++;
    *out = &cq->fid;
    open_objects++;
    return 0;
}

/* Addresses. */
static int av_insert(struct fid *fid, const void *address, size_t count, uint64_t *number, uint64_t flags, void *context) {
    HOLD;
    (void)flags; (void)context;
    struct av *av = (struct av *)fid;
    const char *bytes = address;
    int code = failing("av_insert");
    if (code) return code;
    if (count != 1) return wrong("addresses come one by one here");
    if (!bytes[0]) return 0; /* not one address was entered */
    if (ADDRESS_BYTES > 128 && bytes[ADDRESS_BYTES - 1] != (char)0xa5) return wrong("an address was cut");
    av->list = realloc(av->list, (av->count + 1) * sizeof *av->list);
    memcpy(av->list[av->count], bytes, sizeof *av->list);
    av->list[av->count][107] = 0;
    *number = av->count++;
    return 1;
}

static int av_close(struct fid *fid) {
    HOLD;
    struct av *av = (struct av *)fid;
    if (av->refs) return wrong("a table of addresses is closed before its endpoint"), -EBUSY;
    av->domain->refs--;
    free(av->list);
    free(av);
    open_objects--;
    return 0;
}

struct avops { size_t size; void *insert; };
static const struct avops av_ops = { sizeof av_ops, av_insert };
static const struct ops av_fid = { sizeof av_fid, av_close, plain_bind, plain_control };

static int av_open(struct fid *fid, struct ava *attr, struct fid **out, void *context) {
    HOLD;
    (void)context;
    int code = failing("av_open");
    if (code) return code;
    if (attr->type != 2) return wrong("a table of addresses that is no FI_AV_TABLE");
    struct av *av = calloc(1, sizeof *av);
    av->fid.ops = &av_fid; av->ops = &av_ops; av->domain = (struct domain *)fid;
    av->domain->refs++;
    *out = &av->fid;
    open_objects++;
    return 0;
}

/* Memory. */
static int mr_close(struct fid *fid) {
    HOLD;
    struct mr *mr = (struct mr *)fid, **at = &regions;
    int code = failing("mr_close");
    if (code) return code;
    while (*at != mr) at = &(*at)->next;
    *at = mr->next;
    if (mr->ep) mr->ep->mrs--;
    mr->domain->refs--;
    free(mr);
    open_objects--;
    return 0;
}

static int mr_bind(struct fid *fid, struct fid *to, uint64_t flags) {
    HOLD;
    struct mr *mr = (struct mr *)fid;
    if (flags || mr->ep || !(MODES & ENDPOINT)) return wrong("memory is bound that needs no binding");
    mr->ep = (struct ep *)to;
    mr->ep->mrs++;
    return 0;
}

static int mr_control(struct fid *fid, int command, void *argument) {
    HOLD;
    (void)argument;
    struct mr *mr = (struct mr *)fid;
    int code = failing("mr_enable");
    if (code) return code;
    if (command != ENABLE || !mr->ep) return wrong("memory is enabled before it is bound");
    mr->enabled = 1;
    mr->desc = mr;
    return 0;
}

static const struct ops mr_fid = { sizeof mr_fid, mr_close, mr_bind, mr_control };

/* Whether forked children have no copy of this memory; where the system does not tell, they have none. */
static int is_unforked(uintptr_t from, uintptr_t to) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    if (!maps) return 1;
    char line[4096];
    uintptr_t start = 0, end = 0;
    int is_good = 1;
    while (fgets(line, sizeof line, maps)) {
        unsigned long first, last;
        if (sscanf(line, "%lx-%lx ", &first, &last) == 2) start = first, end = last;
        else if (start < to && end > from && !strncmp(line, "VmFlags:", 8)) is_good &= strstr(line, " dc") != NULL;
    }
    fclose(maps);
    return is_good;
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid **out, void *context) {
    HOLD;
    (void)context;
    int code = failing("mr_reg");
    if (code) return code;
    if (offset || flags || !len) return wrong("memory of no bytes, with an offset, or with flags");
    if (!is_unforked((uintptr_t)buf, (uintptr_t)buf + len)) return wrong("memory of which a forked child gets a copy");
    if (!(MODES & PROV_KEY))
        for (struct mr *mr = regions; mr; mr = mr->next)
            if (mr->key == key && mr->domain == (struct domain *)fid) return wrong("two regions have one key"), -ENOKEY_;
    if (MODES & ALLOCATED) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)buf / page * page, pages = ((uintptr_t)buf + len - first + page - 1) / page;
        unsigned char *has = malloc(pages);
        int bad = mincore((void *)first, pages * page, has);
        for (size_t i = 0; i < pages && !bad; i++) bad = !(has[i] & 1);
        free(has);
        if (bad) return wrong("memory has no pages yet");
    }
    struct mr *mr = calloc(1, sizeof *mr);
    mr->fid.ops = &mr_fid; mr->domain = (struct domain *)fid; mr->start = (char *)buf; mr->len = len; mr->access = access;
    mr->key = MODES & PROV_KEY ? (uintptr_t)mr : key;
    if (!(MODES & ENDPOINT)) { mr->enabled = 1; mr->desc = mr; }
    mr->next = regions;
    regions = mr;
    mr->domain->refs++;
    *out = &mr->fid;
    open_objects++;
    return 0;
}

struct mrops { size_t size; void *reg; };
static const struct mrops mr_ops = { sizeof mr_ops, mr_reg };

static int may_use(struct ep *ep, const char *buf, size_t len, struct mr *desc, uint64_t access) {
    if (!(MODES & LOCAL)) return 1;
    for (struct mr *mr = regions; mr; mr = mr->next)
        if (mr == desc)
            return mr->enabled && mr->domain == ep->domain && (!(MODES & ENDPOINT) || mr->ep == ep) && mr->access & access && buf >= mr->start && buf + len <= mr->start + mr->len;
    return 0;
}

/* Endpoints. */
static ssize_t post(struct ep *ep, int is_send, void *buf, size_t len, void *desc, uint64_t peer, uint64_t tag, uint64_t ignore, void *context) {
    int code = failing(is_send ? "send" : "recv");
    if (code) return code;
    if (!ep->enabled) return wrong("an endpoint is used before it is enabled");
    if (tag >> 40) return wrong("a tag of more than 40 bits");
    if (!context || (uintptr_t)context % 8) return wrong("a request without memory of its own");
    if (!may_use(ep, buf, len, desc, is_send ? SEND : RECV)) return wrong("memory is not registered, bound and enabled");
    if (is_send && peer >= ep->av->count) return wrong("an address that was never entered");
    if (!is_send && peer != UINT64_MAX) return wrong("a receive from one peer, which was not asked for");
    for (struct op *op = is_send ? ep->sends : ep->receives; op; op = op->next)
        if (op->context == context) return wrong("two requests have the same memory");
    if ((AGAIN_EVERY && ++ep->posts % (AGAIN_EVERY + !AGAIN_EVERY) == 0) || ep->under_way[is_send] == REQUESTS) return -EAGAIN;
    struct op *op = calloc(1, sizeof *op), **last = is_send ? &ep->sends : &ep->receives;
    op->is_send = is_send; op->buf = buf; op->len = len; op->tag = tag; op->ignore = ignore; op->context = context; op->id = ++ep->ids;
    if (is_send) memcpy(op->to, ep->av->list[peer], sizeof op->to);
    memset(op->context, 0x5a, 64);
    op->context[0] = (uintptr_t)op;
    op->context[7] = ~(uint64_t)(uintptr_t)op;
    while (*last) last = &(*last)->next;
    *last = op;
    ep->under_way[is_send]++;
    static int has_long;
    if (is_send && len > LONG && !has_long++) fprintf(stderr, "stand-in: a long send\n");
    return 0;
}

static ssize_t ep_recv(struct fid *fid, void *buf, size_t len, void *desc, uint64_t from, uint64_t tag, uint64_t ignore, void *context) {
    HOLD;
    return post((struct ep *)fid, 0, buf, len, desc, from, tag, ignore, context);
}

static ssize_t ep_send(struct fid *fid, const void *buf, size_t len, void *desc, uint64_t to, uint64_t tag, void *context) {
    HOLD;
    return post((struct ep *)fid, 1, (void *)buf, len, desc, to, tag, 0, context);
}

static int ep_getname(struct fid *fid, void *address, size_t *len) {
    HOLD;
    struct ep *ep = (struct ep *)fid;
    char own[ADDRESS_BYTES > 108 ? ADDRESS_BYTES : 108];
    int code = failing("getname");
    if (code) return code;
    memset(own, 0xa5, sizeof own);
    memcpy(own, ep->own.sun_path, sizeof ep->own.sun_path);
    if (*len < sizeof own) return *len = sizeof own, -257;
    memcpy(address, own, sizeof own);
    *len = sizeof own;
    return 0;
}

static void drop_ops(struct op *op) { while (op) { struct op *next = op->next; free(op); op = next; } }

static int ep_close(struct fid *fid) {
    HOLD;
    struct ep *ep = (struct ep *)fid;
    int code = failing("ep_close");
    if (code) return code;
    if (ep->mrs) return wrong("an endpoint is closed before memory that is bound to it"), -EBUSY;
    drop_ops(ep->sends);
    drop_ops(ep->receives);
    for (struct msg *msg = ep->messages; msg;) { struct msg *next = msg->next; free(msg->data); free(msg); msg = next; }
    if (ep->cq) ep->cq->refs--, ep->cq->ep = NULL;
    if (ep->av) ep->av->refs--;
    ep->domain->refs--;
    close(ep->socket);
    unlink(ep->own.sun_path);
    free(ep);
    open_objects--;
    return 0;
}

static int ep_bind(struct fid *fid, struct fid *to, uint64_t flags) {
    HOLD;
    struct ep *ep = (struct ep *)fid;
    int code = failing("ep_bind");
    if (code) return code;
    if (to->ops == &cq_fid) {
        if (flags != (SEND | RECV)) return wrong("a queue for sends or receives alone");
        ep->cq = (struct cq *)to;
        ep->cq->refs++;
        ep->cq->ep = ep;
    } else {
        ep->av = (struct av *)to;
        ep->av->refs++;
    }
    return 0;
}

static int ep_control(struct fid *fid, int command, void *argument) {
    HOLD;
    (void)argument;
    static int count;
    struct ep *ep = (struct ep *)fid;
    int code = failing("enable");
    if (code) return code;
    if (command != ENABLE || !ep->cq || !ep->av) return wrong("an endpoint is enabled without queue or addresses");
    ep->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ep->own.sun_family = AF_UNIX;
    snprintf(ep->own.sun_path, sizeof ep->own.sun_path, FOLDER "/%d-%d", (int)getpid(), ++count);
    if (bind(ep->socket, (void *)&ep->own, sizeof ep->own)) return -errno;
    struct epoll_event event = { .events = EPOLLIN };
    if (ep->cq->epoll >= 0 && epoll_ctl(ep->cq->epoll, EPOLL_CTL_ADD, ep->socket, &event)) return -errno;
    ep->enabled = 1;
    return 0;
}

struct cmops { size_t size; void *setname, *getname; };
static const struct cmops cm_ops = { sizeof cm_ops, NULL, ep_getname };
struct tagops { size_t size; void *recv, *recvv, *recvmsg, *send, *sendv, *sendmsg, *inject; };
static const struct tagops tag_ops = { sizeof tag_ops, ep_recv, NULL, NULL, ep_send, NULL, NULL, NULL };
static const struct ops ep_fid = { sizeof ep_fid, ep_close, ep_bind, ep_control };

static int ep_open(struct fid *fid, struct info *info, struct fid **out, void *context) {
    HOLD;
    (void)info; (void)context;
    int code = failing("endpoint");
    if (code) return code;
    struct ep *ep = calloc(1, sizeof *ep);
    ep->fid.ops = &ep_fid; ep->cm = &cm_ops; ep->tagged = &tag_ops; ep->domain = (struct domain *)fid; ep->socket = -1;
    ep->domain->refs++;
    *out = &ep->fid;
    open_objects++;
    return 0;
}

/* Domains and fabrics. */
static int domain_close(struct fid *fid) {
    HOLD;
    struct domain *domain = (struct domain *)fid;
    if (domain->refs) return wrong("a domain is closed before what is open in it"), -EBUSY;
    domain->fab->refs--;
    free(domain);
    open_objects--;
    return 0;
}

struct domops { size_t size; void *av, *cq, *ep; };
static const struct domops dom_ops = { sizeof dom_ops, av_open, cq_open, ep_open };
static const struct ops domain_fid = { sizeof domain_fid, domain_close, plain_bind, plain_control };

static void intruder(int signal) { (void)signal; _exit(99); }

static int domain_open(struct fid *fid, struct info *info, struct fid **out, void *context) {
    HOLD;
    (void)info; (void)context;
    int code = failing("domain");
    if (code) return code;
    if (SIGNALS) signal(SIGQUIT, intruder);
    struct domain *domain = calloc(1, sizeof *domain);
    domain->fid.ops = &domain_fid; domain->ops = &dom_ops; domain->mr = &mr_ops; domain->fab = (struct fab *)fid;
    domain->fab->refs++;
    *out = &domain->fid;
    open_objects++;
    return 0;
}

static int trywait(struct fid *fid, struct fid **fids, int count) {
    HOLD;
    (void)fid;
    struct cq *cq = (struct cq *)fids[0];
    if (count != 1 || cq->epoll < 0) return wrong("fi_trywait of a queue without a descriptor");
    return cq->count || (cq->ep && cq->ep->sends) ? -EAGAIN : 0;
}

static int fab_close(struct fid *fid) {
    HOLD;
    if (((struct fab *)fid)->refs) return wrong("a fabric is closed before its domain"), -EBUSY;
    free(fid);
    open_objects--;
    return 0;
}

struct fabops { size_t size; void *domain, *pep, *eq, *wait, *trywait; };
static const struct fabops fab_ops = { sizeof fab_ops, domain_open, NULL, NULL, NULL, DESCRIPTOR ? (void *)trywait : NULL };
static const struct ops fab_fid = { sizeof fab_fid, fab_close, plain_bind, plain_control };

int fi_fabric(struct faba *attr, struct fid **out, void *context) {
    HOLD;
    (void)attr; (void)context;
    int code = failing("fabric");
    if (code) return code;
    struct fab *fab = calloc(1, sizeof *fab);
    fab->fid.ops = &fab_fid; fab->ops = &fab_ops; fab->api = asked;
    *out = &fab->fid;
    open_objects++;
    return 0;
}

/* The list. */
struct whole { struct info info; struct tx tx; struct rx rx; struct epa ep; struct doma domain; struct faba fabric; struct nic nic; struct dev dev; struct bus bus; struct lnk link; char address[ADDRESS_BYTES], name[16]; };

void fi_freeinfo(struct info *info) { while (info) { struct info *next = info->next; free(info); info = next; } }

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct info *hints, struct info **out) {
    HOLD;
    int code = failing("getinfo");
    if (code) return code;
    if (SIGNALS) signal(SIGHUP, intruder);
    if (version > RELEASE) return -ENOSYS;
    if (node || service || flags || !hints || !hints->ep || !hints->domain) return wrong("it is asked for something else");
    asked = version;
    if ((hints->domain->mr & MODES) != MODES || !(hints->mode & MODE_CONTEXT2) || hints->ep->max_keys || hints->domain->later[4]) return -ENODATA;
    struct info *first = NULL;
    for (int i = 0; i < 2 * NICS; i++) { /* each twice, as real ones do */
        struct whole *w = calloc(1, sizeof *w);
        if (NICS == 1) snprintf(w->name, sizeof w->name, "%s", DOMAIN); else snprintf(w->name, sizeof w->name, "cxi%d", NICS - 1 - i / 2);
        w->info = (struct info){ first, CAP_TAGGED | SEND | RECV, MODE_CONTEXT2, 15, ADDRESS_BYTES, 0, w->address, NULL, NULL, &w->tx, &w->rx, &w->ep, &w->domain, &w->fabric, &w->nic };
        w->tx = (struct tx){ .msg_order = 1 << 8, .size = REQUESTS, .inject = 64 };
        w->rx = (struct rx){ .msg_order = 1 << 8, .size = REQUESTS };
        w->ep = (struct epa){ .type = 3, .protocol = 24, .version = 1, .max_msg = 1 << 30, .tag_format = TAG_FORMAT };
        w->domain = (struct doma){ .name = w->name, .threading = 3, .mr = MODES, .av = 2 };
        w->fabric = (struct faba){ NULL, "stand-in", PROVIDER, RELEASE, version };
        w->nic = (struct nic){ { CLASS_NIC, NULL, NULL }, &w->dev, &w->bus, &w->link, NULL };
        w->dev = (struct dev){ .name = w->name };
        w->bus = (struct bus){ 1, 0, 0x3b, 0, 1 };
        w->link = (struct lnk){ .speed = 200000000000, .state = LINK };
        first = &w->info;
    }
    *out = first;
    return 0;
}

uint32_t fi_version(void) { return RELEASE; }

const char *fi_strerror(int code) { return code == EAVAIL ? "Error available" : code == ETRUNC ? "Truncation error" : code < 256 ? strerror(code) : "Unspecified error"; }

__attribute__((constructor)) static void loaded(void) {
    if (!SIGNALS) return;
    int taken[] = { SIGINT, SIGILL, SIGABRT, SIGBUS, SIGSEGV, SIGTERM };
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) signal(taken[i], intruder);
}
