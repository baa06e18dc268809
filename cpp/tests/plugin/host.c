/* A program in C that loads the plugin it is told of, runs it and unloads it, twice; and leaves the third at its own end. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
    for (int turn = 0; turn < 3; ++turn) {
        void* plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
        int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "run") : NULL;
        if (!run) {
            fprintf(stderr, "no plugin: %s\n", dlerror());
            return 1;
        }
        int outcome = run();
        if (outcome != 0) {
            fprintf(stderr, "turn %d: the plugin says %d\n", turn, outcome);
            return 1;
        }
        if (turn < 2 && dlclose(plugin) != 0) {
            fprintf(stderr, "turn %d: %s\n", turn, dlerror());
            return 1;
        }
    }
    return 0;
}
