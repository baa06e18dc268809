// The binary interface of NCCL's network plug-ins, versions 8, 11 and 12, in our words: what the stand-in exports, and
// what the layouts in src/transport/net_plugin/abi.rs are held against.
#include <stddef.h>
#include <stdint.h>

typedef int result;
typedef void (*logger)(int level, unsigned long subsystems, const char* file, int line, const char* format, ...);
typedef result (*profiler)(void** event, int type, void* parent, int64_t plugin, void* more);

struct properties_v8 {
    const char* name;
    const char* pci_path;
    uint64_t guid;
    int pointers;
    int registers_globally;
    int speed;
    int port;
    float latency;
    int most_comms;
    int most_receives;
    int device_type;
    int device_version;
};

struct properties_v11 {
    const char* name;
    const char* pci_path;
    uint64_t guid;
    int pointers;
    int registers_globally;
    int forces_flush;
    int speed;
    int port;
    float latency;
    int most_comms;
    int most_receives;
    int device_type;
    int device_version;
    int parts;
    int part[4];
    size_t most_message_bytes;
    size_t most_collective_bytes;
    int most_requests_in_one;
};

struct properties_v12 {
    const char* name;
    const char* pci_path;
    uint64_t guid;
    int pointers;
    int registers_globally;
    int forces_flush;
    int speed;
    int port;
    float latency;
    int most_comms;
    int most_receives;
    int device_type;
    int device_version;
    int parts;
    int part[8];
    size_t most_message_bytes;
    size_t most_collective_bytes;
    int most_requests_in_one;
    int16_t rail;
    int16_t plane;
};

struct comm_config {
    int traffic_class;
};

struct net_v8 {
    const char* name;
    result (*init)(logger);
    result (*devices)(int*);
    result (*properties)(int, void*);
    result (*listen)(int, void*, void**);
    result (*connect)(int, void*, void**, void**);
    result (*accept)(void*, void**, void**);
    result (*reg)(void*, void*, size_t, int, void**);
    result (*reg_dma_buf)(void*, void*, size_t, int, uint64_t, int, void**);
    result (*dereg)(void*, void*);
    result (*isend)(void*, void*, int, int, void*, void**);
    result (*irecv)(void*, int, void**, int*, int*, void**, void**);
    result (*iflush)(void*, int, void**, int*, void**, void**);
    result (*test)(void*, int*, int*);
    result (*close_send)(void*);
    result (*close_receive)(void*);
    result (*close_listen)(void*);
    result (*device_mr)(void*, void*, void**);
    result (*receive_consumed)(void*, int, void*);
};

struct net_v11 {
    const char* name;
    result (*init)(void**, uint64_t, struct comm_config*, logger, profiler);
    result (*devices)(int*);
    result (*properties)(int, void*);
    result (*listen)(void*, int, void*, void**);
    result (*connect)(void*, int, void*, void**, void**);
    result (*accept)(void*, void**, void**);
    result (*reg)(void*, void*, size_t, int, void**);
    result (*reg_dma_buf)(void*, void*, size_t, int, uint64_t, int, void**);
    result (*dereg)(void*, void*);
    result (*isend)(void*, void*, size_t, int, void*, void*, void**);
    result (*irecv)(void*, int, void**, size_t*, int*, void**, void**, void**);
    result (*iflush)(void*, int, void**, int*, void**, void**);
    result (*test)(void*, int*, int*);
    result (*close_send)(void*);
    result (*close_receive)(void*);
    result (*close_listen)(void*);
    result (*device_mr)(void*, void*, void**);
    result (*receive_consumed)(void*, int, void*);
    result (*make_virtual_device)(int*, void*);
    result (*finalize)(void*);
    result (*set_attributes)(void*, void*);
};
