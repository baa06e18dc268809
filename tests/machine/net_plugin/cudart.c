// A stand-in of the CUDA run time: enough for a network plug-in to start on a machine without a GPU (bench/plug-ins). Each
// function of the driver is there and succeeds; no memory is a GPU's.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int succeed(void) { return 0; }

static int version(int* into) {
    *into = 13000;
    return 0;
}

static int context(void** into) {
    *into = &version;
    return 0;
}

static int zero(int* into) {
    *into = 0;
    return 0;
}

static int allocate(void** into, size_t bytes) {
    *into = calloc(1, bytes);
    return 0;
}

static int words(int code, const char** into) {
    (void)code;
    *into = "of the stand-in";
    return 0;
}

static int attributes(unsigned count, int* names, void** into, void* pointer) {
    for (unsigned place = 0; place < count; ++place)
        if (into[place]) *(int*)into[place] = 0;
    (void)names, (void)pointer;
    return 0;
}

static const struct {
    const char* name;
    void* function;
} known[] = {
    {"cuDriverGetVersion", version},   {"cuGetErrorString", words},  {"cuGetErrorName", words},
    {"cuCtxGetDevice", zero},          {"cuCtxGetCurrent", context}, {"cuDeviceGetAttribute", zero},
    {"cuMemAlloc", allocate},          {"cuPointerGetAttributes", attributes},
};

int cudaRuntimeGetVersion(int* into) { return version(into); }

int cudaGetDriverEntryPointByVersion(const char* name, void** into, unsigned of, unsigned long long flags, int* found) {
    *into = succeed;
    for (size_t place = 0; place < sizeof known / sizeof *known; ++place)
        if (!strcmp(name, known[place].name)) *into = known[place].function;
    if (found) *found = 0;
    (void)of, (void)flags;
    return 0;
}

int cudaGetDriverEntryPoint(const char* name, void** into, unsigned long long flags, int* found) {
    return cudaGetDriverEntryPointByVersion(name, into, 13000, flags, found);
}
