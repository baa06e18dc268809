// A network plug-in as NCCL has them, over TCP, which behaves as the real ones do where they surprise their callers, and
// checks that its caller does as the interface says. Built by `machine::net_plugin::stand_in`, with options:
//
//   VERSIONS=0b101   which versions it exports: bit 0 version 8, bit 1 version 11, bit 2 version 12; bit 3 version 10 alone
//   NET="name"       what it calls its network
//   AGAIN_EVERY=n    of so many isend and irecv one says "later"
//   LATE=n           so often test says "not yet" of what is done
//   FAIL_CALL="isend", FAIL_AT=n    that call of this name, counted from 1, fails with FAIL_CODE (2)
//   LACKS="irecv"    this function is missing
//   DEVICES=n        how many devices it has
//   POINTERS=n       what memory they take (1 host, 2 CUDA, 4 DMA-BUF)
//   FLUSH=1          what comes into GPU memory lies there when it was flushed, and not before
//   FORCES_FLUSH=1   the device says that it must be flushed, whatever the GPU
//   NO_DMA_BUF=1     regMrDmaBuf fails
//   DEVICE_TYPE=n    who drives them
//   MOST_COMMS=n     how many connections they take
//   TOLD="+1"        what test adds to the length of a message that came
//   LOOPBACK=1       it listens at 127.0.0.1, and else at the first other address
//   VARIABLE="name"  init sets this variable
//   WARNS=1          init warns of something, and fails
//
// It writes 80 of the 128 bytes of a handle, keeps a note in them while it connects, has no PCI path and speed 0, and
// leaves fields unset.
#include "net_plugin.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef VERSIONS
#define VERSIONS 7
#endif
#ifndef NET
#define NET "Stand-in"
#endif
#ifndef AGAIN_EVERY
#define AGAIN_EVERY 0
#endif
#ifndef LATE
#define LATE 0
#endif
#ifndef FAIL_CALL
#define FAIL_CALL ""
#endif
#ifndef FAIL_AT
#define FAIL_AT 1
#endif
#ifndef FAIL_CODE
#define FAIL_CODE 2
#endif
#ifndef LACKS
#define LACKS ""
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef POINTERS
#define POINTERS 3
#endif
#ifndef FLUSH
#define FLUSH 0
#endif
#ifndef FORCES_FLUSH
#define FORCES_FLUSH 0
#endif
#ifndef NO_DMA_BUF
#define NO_DMA_BUF 0
#endif
#ifndef DEVICE_TYPE
#define DEVICE_TYPE 0
#endif
#ifndef MOST_COMMS
#define MOST_COMMS 65536
#endif
#ifndef TOLD
#define TOLD +0
#endif
#ifndef VARIABLE
#define VARIABLE "NCCL_PROTO"
#endif
#ifndef WARNS
#define WARNS 0
#endif
#ifndef LOOPBACK
#define LOOPBACK 0
#endif
// Whether it has nothing but a name, another one, and how it starts, before it has started.
#ifndef FILLS_IN_INIT
#define FILLS_IN_INIT 0
#endif

enum { REQUESTS = 32, HANDLE = 80 };

struct request {
    struct comm* comm;
    char* data;
    size_t bytes, moved;
    uint32_t header;
    size_t header_moved;
    int late, is_used, is_done, has_failed;
    // Of a flush, and of what waits for one: where the bytes belong, and where they wait.
    struct pending* flush;
    char* belongs;
};

// Bytes that have come for GPU memory, and are not seen there before they are flushed.
struct pending {
    char *belongs, *bytes;
    size_t length;
    struct pending* next;
};

struct comm {
    int fd, is_send, is_dead, registrations;
    int by_dma_buf, by_address, flushes;
    size_t moved;
    struct pending* pending;
    struct request flush;
    // A ring: those from `first` on are in use.
    struct request requests[REQUESTS];
    unsigned first, next;
};

struct registration {
    struct comm* comm;
    char* data;
    size_t bytes;
    // Of GPU memory: where this process has the same bytes, as a NIC reaches them, and the mapping behind that.
    char *mapped, *mapping;
    size_t mapping_bytes;
};

struct address {
    struct sockaddr_in at;
    // While it connects: a connection that is being made, and how often it was asked for.
    struct comm* comm;
    int tries;
};
_Static_assert(sizeof(struct address) <= HANDLE, "a handle has room for it");

struct listener {
    int fd, tries;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char fault[256];
static int open_objects, posts, calls;
static logger say;

const char* stand_in_fault(void) { return fault[0] ? fault : NULL; }
int stand_in_open(void) { return open_objects; }

static void find_fault(const char* what) {
    if (!fault[0]) snprintf(fault, sizeof fault, "%s", what);
    fprintf(stderr, "stand-in of a plug-in: %s\n", what);
}

// Whether the call of this name must fail now.
static int fails(const char* call) { return !strcmp(call, FAIL_CALL) && ++calls == FAIL_AT; }
#define ENTER(call) \
    pthread_mutex_lock(&lock); \
    result code = fails(call) ? FAIL_CODE : 0; \
    if (code) goto out;
#define LEAVE \
    out: \
    pthread_mutex_unlock(&lock); \
    return code

static void fill_tables(void);

static result start(logger log) {
    say = log;
    fill_tables();
    setenv(VARIABLE, "simple", 1);
    say(WARNS ? 2 : 3, 1, __FILE__, __LINE__, "%s starts: %d %ld %c %.2f %s %u %.1f %p %.1f %.1f %.1f %.1f %.1f %.1f %.1f %d %ld", NET, -7,
        1L << 40, 'x', 1.5, "text", 9u, 2.5, (void*)16, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10, 11L);
    say(5, 16, __FILE__, __LINE__, "a trace");
    return WARNS ? 2 : 0;
}

static result init_v8(logger log) {
    ENTER("init")
    code = start(log);
    LEAVE;
}

static result init_v11(void** context, uint64_t comm, struct comm_config* config, logger log, profiler profile) {
    ENTER("init")
    code = start(log);
    if (config->traffic_class != -1) find_fault("a traffic class that nobody has chosen");
    if (profile(NULL, 0, NULL, 0, NULL) != 0) find_fault("a profiler that fails");
    (void)comm;
    *context = malloc(1);
    ++open_objects;
    LEAVE;
}

static result finalize(void* context) {
    ENTER("finalize")
    free(context);
    --open_objects;
    LEAVE;
}

static result devices(int* count) {
    ENTER("devices")
    *count = DEVICES;
    LEAVE;
}

// Of the oldest version, which has less in between.
static result properties_v8(int device, void* into) {
    ENTER("getProperties")
    struct properties_v8* it = into;
    it->name = "stand0", it->pci_path = NULL, it->speed = 0;
    it->pointers = POINTERS, it->device_type = DEVICE_TYPE, it->most_comms = MOST_COMMS, it->most_receives = 8;
    (void)device;
    LEAVE;
}

// Flush, parts and lengths are left as they are.
static result properties_v11(int device, void* into) {
    ENTER("getProperties")
    struct properties_v11* it = into;
    it->name = "stand0", it->pci_path = NULL, it->speed = 0;
    it->pointers = POINTERS, it->device_type = DEVICE_TYPE, it->most_comms = MOST_COMMS, it->most_receives = 8;
    if (FORCES_FLUSH) it->forces_flush = 1;
    (void)device;
    LEAVE;
}

static int none_blocking(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fcntl(fd, F_SETFL, O_NONBLOCK) == 0 ? fd : -1;
}

static struct in_addr own_address(void) {
    struct in_addr found = {htonl(INADDR_LOOPBACK)};
    struct ifaddrs* all = NULL;
    if (LOOPBACK || getifaddrs(&all)) return found;
    for (struct ifaddrs* one = all; one; one = one->ifa_next) {
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && !(one->ifa_flags & IFF_LOOPBACK) && (one->ifa_flags & IFF_UP)) {
            found = ((struct sockaddr_in*)one->ifa_addr)->sin_addr;
            break;
        }
    }
    freeifaddrs(all);
    return found;
}

static result listen_at(int device, void* handle, void** made) {
    ENTER("listen")
    struct address address = {{AF_INET, 0, own_address(), {0}}, NULL, 0};
    socklen_t bytes = sizeof address.at;
    struct listener* listener = calloc(1, sizeof *listener);
    listener->fd = none_blocking(socket(AF_INET, SOCK_STREAM, 0));
    if (bind(listener->fd, (struct sockaddr*)&address.at, bytes) || listen(listener->fd, 8) ||
        getsockname(listener->fd, (struct sockaddr*)&address.at, &bytes)) {
        close(listener->fd), free(listener);
        code = 2;
        goto out;
    }
    char room[HANDLE] = {0};
    memcpy(room, &address, sizeof address);
    memcpy(handle, room, HANDLE);
    *made = listener;
    ++open_objects;
    (void)device;
    LEAVE;
}

static struct comm* comm_of(int fd, int is_send) {
    struct comm* comm = calloc(1, sizeof *comm);
    comm->fd = fd, comm->is_send = is_send;
    ++open_objects;
    return comm;
}

// Three calls, at least.
static result connect_to(int device, void* handle, void** made, void** of_device) {
    ENTER("connect")
    struct address* address = handle;
    *made = NULL;
    if (!address->comm) {
        address->comm = comm_of(none_blocking(socket(AF_INET, SOCK_STREAM, 0)), 1);
        --open_objects;
        if (connect(address->comm->fd, (struct sockaddr*)&address->at, sizeof address->at) && errno != EINPROGRESS) code = 6;
    }
    struct pollfd ready = {address->comm->fd, POLLOUT, 0};
    int error = 0;
    socklen_t bytes = sizeof error;
    if (!code && ++address->tries >= 3 && poll(&ready, 1, 0) == 1) {
        getsockopt(address->comm->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
        if (error) code = 6;
        else *made = address->comm, address->comm = NULL, ++open_objects;
    }
    if (code) close(address->comm->fd), free(address->comm), address->comm = NULL;
    (void)device, (void)of_device;
    LEAVE;
}

static result accept_one(void* from, void** made, void** of_device) {
    ENTER("accept")
    struct listener* listener = from;
    *made = NULL;
    int fd = ++listener->tries < 3 ? -1 : accept(listener->fd, NULL, NULL);
    if (fd >= 0) *made = comm_of(none_blocking(fd), 0);
    (void)of_device;
    LEAVE;
}

// Maps GPU memory as a NIC does: of a virtual GPU a DMA-BUF is a file whose position is where its range begins.
static int map(struct registration* one, int fd, size_t offset) {
    off_t begin = lseek(fd, 0, SEEK_CUR);
    if (begin < 0) return 1;
    one->mapping_bytes = offset + one->bytes;
    one->mapping = mmap(NULL, one->mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin);
    if (one->mapping == MAP_FAILED) return 1;
    one->mapped = one->mapping + offset;
    return 0;
}

static result reg(void* at, void* data, size_t bytes, int type, void** made) {
    ENTER("regMr")
    struct comm* comm = at;
    struct registration* one = malloc(sizeof *one);
    *one = (struct registration){comm, data, bytes, NULL, NULL, 0};
    if (!(POINTERS & type)) find_fault("memory of a kind that the device does not take");
    if (type == 2) {
        // As the module of the kernel does: from an address alone.
        void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        int (*range)(int*, uint64_t, size_t, int, uint64_t) = driver ? dlsym(driver, "cuMemGetHandleForAddressRange") : NULL;
        size_t page = sysconf(_SC_PAGESIZE), before = (uintptr_t)data % page, whole = (before + bytes + page - 1) / page * page;
        int fd = -1;
        if (!range || range(&fd, (uintptr_t)data - before, whole, 1, 0) || map(one, fd, before)) {
            free(one);
            code = 1;
            goto out;
        }
        close(fd);
        ++comm->by_address;
    } else if (type != 1) find_fault("memory that is neither the host's nor a GPU's");
    *made = one;
    ++comm->registrations, ++open_objects;
    LEAVE;
}

static result reg_dma_buf(void* at, void* data, size_t bytes, int type, uint64_t offset, int fd, void** made) {
    ENTER("regMrDmaBuf")
    struct comm* comm = at;
    struct registration* one = malloc(sizeof *one);
    *one = (struct registration){comm, data, bytes, NULL, NULL, 0};
    if (type != 2) find_fault("a DMA-BUF of memory that is not a GPU's");
    if (!(POINTERS & 4)) find_fault("a DMA-BUF for a device that takes none");
    // Real ones round address and length to pages, and not the offset.
    if (offset || (size_t)data % 4096 || bytes % 4096) find_fault("a DMA-BUF that is not whole pages");
    if (NO_DMA_BUF || map(one, fd, offset)) {
        free(one);
        code = 1;
        goto out;
    }
    ++comm->by_dma_buf;
    *made = one;
    ++comm->registrations, ++open_objects;
    LEAVE;
}

static result dereg(void* at, void* registration) {
    ENTER("deregMr")
    struct registration* one = registration;
    if (one->comm != at) find_fault("a registration of another connection");
    --one->comm->registrations, --open_objects;
    if (one->mapping) munmap(one->mapping, one->mapping_bytes);
    free(one);
    LEAVE;
}

// The next place of the ring, or null where it says "later".
static struct request* post(struct comm* comm, void* data, size_t bytes, struct registration* registration) {
    if (comm->is_dead && comm->is_send) return NULL;
    if (AGAIN_EVERY && ++posts % (AGAIN_EVERY ? AGAIN_EVERY : 1) == 0) return NULL;
    struct request* one = &comm->requests[comm->next % REQUESTS];
    if (one->is_used) {
        find_fault("more requests than a connection takes");
        return NULL;
    }
    if (registration->comm != comm) find_fault("memory that is registered with another connection");
    if ((char*)data < registration->data || (char*)data + bytes > registration->data + registration->bytes)
        find_fault("memory outside of its registration");
    char* reached = registration->mapped ? registration->mapped + ((char*)data - registration->data) : data;
    *one = (struct request){.comm = comm, .data = reached, .bytes = bytes, .header = bytes, .late = LATE, .is_used = 1};
    if (registration->mapped) comm->moved += bytes;
    if (FLUSH && registration->mapped && !comm->is_send) {
        for (struct pending* other = comm->pending; other; other = other->next)
            if (other->belongs == reached) find_fault("GPU memory that is received into again before it was flushed");
        one->belongs = reached, one->data = malloc(bytes);
    }
    ++comm->next;
    ++open_objects;
    return one;
}

static result isend(void* at, void* data, size_t bytes, int tag, void* registration, void* profile, void** request) {
    ENTER("isend")
    *request = post(at, data, bytes, registration);
    if (!((struct comm*)at)->is_send) find_fault("a send by a connection that receives");
    (void)tag, (void)profile;
    LEAVE;
}

static result irecv(void* at, int count, void** data, size_t* bytes, int* tags, void** registrations, void** profiles, void** request) {
    ENTER("irecv")
    if (count != 1 || tags[0] != 0 || ((struct comm*)at)->is_send) find_fault("a receive that is none");
    *request = post(at, data[0], bytes[0], registrations[0]);
    (void)profiles;
    LEAVE;
}

static result isend_v8(void* at, void* data, int bytes, int tag, void* registration, void** request) {
    return isend(at, data, bytes, tag, registration, NULL, request);
}

static result irecv_v8(void* at, int count, void** data, int* bytes, int* tags, void** registrations, void** request) {
    size_t length = bytes[0];
    return irecv(at, count, data, &length, tags, registrations, NULL, request);
}

// Host memory needs none: success, and no request.
static result iflush(void* at, int count, void** data, int* bytes, void** registrations, void** request) {
    ENTER("iflush")
    struct comm* comm = at;
    struct registration* one = registrations[0];
    *request = NULL;
    if (!one->mapped) goto out;
    if (comm->is_send || one->comm != comm || count != 1) find_fault("a flush that is none");
    if (comm->flush.is_used) goto out_later;
    char* belongs = one->mapped + ((char*)data[0] - one->data);
    struct pending** place = &comm->pending;
    while (*place && (*place)->belongs != belongs) place = &(*place)->next;
    if (FLUSH && (!*place || (*place)->length > (size_t)bytes[0])) find_fault("a flush of what has not come");
    struct pending* found = *place;
    if (found) *place = found->next;
    comm->flush = (struct request){.comm = comm, .header = 0, .late = LATE, .is_used = 1, .is_done = 1, .flush = found};
    ++comm->flushes, ++open_objects;
    *request = &comm->flush;
    LEAVE;
out_later:
    // It takes one at a time; an answer without a request would mean that nothing is to be done.
    find_fault("a flush beside another one of its connection");
    goto out;
}

// Moves a part of one request; false where nothing more can be moved now.
static int move_part(struct comm* comm, struct request* one) {
    int is_header = one->header_moved < sizeof one->header;
    char* from = is_header ? (char*)&one->header + one->header_moved : one->data + one->moved;
    size_t left = is_header ? sizeof one->header - one->header_moved : one->header - one->moved;
    if (!left) return one->is_done = 1;
    ssize_t moved = comm->is_send ? send(comm->fd, from, left, MSG_NOSIGNAL) : recv(comm->fd, from, left, 0);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    if (moved <= 0) {
        comm->is_dead = 1;
        // A receive never ends; a send fails.
        one->has_failed = comm->is_send;
        return 0;
    }
    *(is_header ? &one->header_moved : &one->moved) += moved;
    if (is_header && one->header_moved == sizeof one->header && one->header > one->bytes) {
        find_fault("a receive that is too small");
        one->has_failed = 1;
        return 0;
    }
    return 1;
}

static void move_all(struct comm* comm) {
    for (unsigned place = comm->first; place != comm->next; ++place) {
        struct request* one = &comm->requests[place % REQUESTS];
        while (!one->is_done && !one->has_failed && !comm->is_dead && move_part(comm, one)) {}
        if (!one->is_done) return;
    }
}

static result test(void* request, int* is_done, int* bytes) {
    ENTER("test")
    struct request* one = request;
    struct comm* comm = one->comm;
    *is_done = 0;
    if (!one->is_used) find_fault("a request that was done before");
    move_all(comm);
    // In-flight sends fail once the peer is gone; new ones say "later" for ever.
    if (one->has_failed || (comm->is_send && comm->is_dead && !one->is_done)) code = 2;
    else if (one->is_done && one->late-- <= 0) *is_done = 1, bytes[0] = (int)(one->header TOLD);
    if (code || *is_done) {
        one->is_used = 0;
        --open_objects;
        if (one->flush) {
            memcpy(one->flush->belongs, one->flush->bytes, one->flush->length);
            free(one->flush->bytes), free(one->flush);
        }
        if (one->belongs) {
            struct pending* waits = malloc(sizeof *waits);
            *waits = (struct pending){one->belongs, one->data, one->header, comm->pending};
            comm->pending = waits;
        }
        while (comm->first != comm->next && !comm->requests[comm->first % REQUESTS].is_used) ++comm->first;
    }
    LEAVE;
}

static result close_comm(void* at) {
    struct comm* comm = at;
    pthread_mutex_lock(&lock);
    int is_open = 0;
    for (int place = 0; place < REQUESTS; ++place) is_open += comm->requests[place].is_used;
    if (is_open || comm->flush.is_used) find_fault("a connection that is closed with requests under way");
    if (comm->by_dma_buf + comm->by_address)
        say(3, 1, __FILE__, __LINE__, "%zu bytes of GPU memory were %s: %d registrations by DMA-BUF, %d by address, %d flushes",
            comm->moved, comm->is_send ? "sent" : "asked for", comm->by_dma_buf, comm->by_address, comm->flushes);
    if (comm->registrations) find_fault("a connection that is closed before its registrations");
    close(comm->fd);
    --open_objects;
    // With open requests it keeps them, and what belongs to them, for ever.
    if (!is_open) free(comm);
    pthread_mutex_unlock(&lock);
    return 0;
}

static result close_listen(void* at) {
    pthread_mutex_lock(&lock);
    struct listener* listener = at;
    close(listener->fd);
    free(listener);
    --open_objects;
    pthread_mutex_unlock(&lock);
    return 0;
}

static result listen_v11(void* context, int device, void* handle, void** made) {
    if (!context) find_fault("no context");
    return listen_at(device, handle, made);
}

static result connect_v11(void* context, int device, void* handle, void** made, void** of_device) {
    if (!context) find_fault("no context");
    return connect_to(device, handle, made, of_device);
}

#define HAS(name, function) (__builtin_strcmp(LACKS, name) ? (function) : NULL)
#if FILLS_IN_INIT
#define TABLE(type, table, first, ...) \
    struct type table = {.name = "Before it starts", .init = first}; \
    static const struct type whole_##table = {__VA_ARGS__}
#define FILL(table) table = whole_##table
#else
#define TABLE(type, table, first, ...) const struct type table = {__VA_ARGS__}
#define FILL(table)
#endif
#if VERSIONS & 1
TABLE(net_v8, ncclNetPlugin_v8, init_v8, NET, HAS("init", init_v8), HAS("devices", devices), HAS("getProperties", properties_v8),
    HAS("listen", listen_at), HAS("connect", connect_to), HAS("accept", accept_one), HAS("regMr", reg), HAS("regMrDmaBuf", reg_dma_buf),
    HAS("deregMr", dereg), HAS("isend", isend_v8), HAS("irecv", irecv_v8), HAS("iflush", iflush), HAS("test", test), HAS("closeSend", close_comm), HAS("closeRecv", close_comm),
    HAS("closeListen", close_listen), NULL, NULL);
#endif
#define NEWER \
    NET, HAS("init", init_v11), HAS("devices", devices), HAS("getProperties", properties_v11), HAS("listen", listen_v11), \
        HAS("connect", connect_v11), HAS("accept", accept_one), HAS("regMr", reg), HAS("regMrDmaBuf", reg_dma_buf), HAS("deregMr", dereg), \
        HAS("isend", isend), HAS("irecv", irecv), HAS("iflush", iflush), HAS("test", test), HAS("closeSend", close_comm), HAS("closeRecv", close_comm), \
        HAS("closeListen", close_listen), NULL, NULL, NULL, HAS("finalize", finalize), NULL
#if VERSIONS & 2
TABLE(net_v11, ncclNetPlugin_v11, init_v11, NEWER);
#endif
#if VERSIONS & 4
TABLE(net_v11, ncclNetPlugin_v12, init_v11, NEWER);
#endif

static void fill_tables(void) {
#if VERSIONS & 1
    FILL(ncclNetPlugin_v8);
#endif
#if VERSIONS & 2
    FILL(ncclNetPlugin_v11);
#endif
#if VERSIONS & 4
    FILL(ncclNetPlugin_v12);
#endif
}
#if VERSIONS & 8
const struct net_v8 ncclNetPlugin_v10 = {NET};
#endif

// For the compiler: what the options leave out is used, too.
const void* const stand_in_all[] = {init_v8, init_v11, properties_v8, properties_v11, isend_v8, irecv_v8, listen_v11, connect_v11, finalize, listen_at, connect_to, accept_one, reg, reg_dma_buf, dereg, isend, irecv, iflush, test, close_comm, close_listen, devices};
