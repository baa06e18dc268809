// A plug-in of one version of the interface, whose functions are those of another library (bench/plug-ins). Built with:
//
//   VERSION=8        the version
//   LIBRARY="path"   whose they are
#include "net_plugin.h"

#include <dlfcn.h>
#include <stdio.h>

#define JOINED(first, second) first##second
#define TABLE_OF(version) JOINED(ncclNetPlugin_v, version)
#define TEXT(words) #words
#define TEXT_OF(words) TEXT(words)

#if VERSION == 8
struct net_v8 TABLE_OF(VERSION);
#else
struct net_v11 TABLE_OF(VERSION);
#endif

__attribute__((constructor)) static void load(void) {
    void* library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void* table = library ? dlsym(library, TEXT_OF(TABLE_OF(VERSION))) : NULL;
    if (table) TABLE_OF(VERSION) = *(__typeof__(TABLE_OF(VERSION))*)table;
    else fprintf(stderr, "%s\n", dlerror());
}
