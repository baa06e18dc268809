#!/usr/bin/env bash
# libfabric 1.17.0 of Debian 12 (libfabric1=1.17.0-3, libpsm-infinipath1=3.3+20.604758e7-6.2): loading it replaces six of the program's signal
# handlers.
#
# What happens: a program has a handler for SIGINT and one for SIGTERM, and opens libfabric.so.1 by dlopen. When dlopen returns, actions of
# SIGINT, SIGILL, SIGABRT, SIGBUS, SIGSEGV and SIGTERM are those of libinfinipath, which libfabric is linked with by way of libpsm_infinipath: the program's own handlers
# are gone, though no function of either library was called, no card is there, and no provider was asked for. The load takes a fifth of a second.
#
# Why it surprises: a library that is only loaded is expected to leave the process as it was, and libfabric itself has no such code. A
# program that ends cleanly by SIGTERM, or a runtime that needs SIGSEGV (a garbage collector, a guard page), no longer does, and nothing tells so. A
# program can ask for the actions before the load and put them back behind it.
#
# Needs cc and apt-get. Takes some seconds, in a temporary folder.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
readonly PACKAGES=(libfabric1=1.17.0-3 libpsm-infinipath1=3.3+20.604758e7-6.2 libpsm2-2=11.2.185-2 librdmacm1=44.0-2
                  libibverbs1=44.0-2 libnl-3-200=3.7.0-0.2+b1 libnl-route-3-200=3.7.0-0.2+b1 libnuma1=2.0.16-1)
for tool in cc apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "skipped: there is no $tool"; exit 0; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
(cd "$work" && apt-get download --quiet "${PACKAGES[@]}" && for package in *.deb; do dpkg-deb -x "$package" debian; done) >&2 ||
    { echo "cannot install: apt-get does not give Debian 12's libfabric and what it is linked with" >&2; exit 2; }

cat >"$work/show.c" <<'C'
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct { int number; const char *name; } SIGNALS[] = {
    {SIGHUP, "HUP"}, {SIGINT, "INT"}, {SIGQUIT, "QUIT"}, {SIGILL, "ILL"}, {SIGABRT, "ABRT"}, {SIGBUS, "BUS"},
    {SIGFPE, "FPE"}, {SIGSEGV, "SEGV"}, {SIGTERM, "TERM"}, {SIGUSR1, "USR1"}, {SIGCHLD, "CHLD"},
};
enum { COUNT = sizeof SIGNALS / sizeof *SIGNALS };

static void own(int number) { (void)number; }

int main(int argc, char **argv) {
    struct sigaction before[COUNT], after;
    (void)argc;
    signal(SIGINT, own), signal(SIGTERM, own);
    for (int i = 0; i < COUNT; i++) sigaction(SIGNALS[i].number, NULL, &before[i]);
    if (!dlopen(argv[1], RTLD_NOW)) return fprintf(stderr, "%s\n", dlerror()), 2;
    for (int i = 0; i < COUNT; i++) {
        Dl_info place;
        sigaction(SIGNALS[i].number, NULL, &after);
        if (after.sa_handler == before[i].sa_handler) continue;
        const char *file = dladdr((void *)after.sa_handler, &place) ? strrchr(place.dli_fname, '/') + 1 : "?";
        printf("%s%s: %s\n", SIGNALS[i].name, before[i].sa_handler == own ? " (had the program's)" : "", file);
    }
    return 0;
}
C
cc -O1 -Wall -D_GNU_SOURCE -o "$work/show" "$work/show.c" -ldl
library=$(find "$work/debian" -name 'libfabric.so.1' | head -1)
found=$(LD_LIBRARY_PATH=$(dirname "$library") timeout "$RUN_LIMIT_S" "$work/show" "$library") || { echo "cannot load libfabric" >&2; exit 2; }
echo "$found"
if [[ $found == "INT (had the program's): libinfinipath.so.4
ILL: libinfinipath.so.4
ABRT: libinfinipath.so.4
BUS: libinfinipath.so.4
SEGV: libinfinipath.so.4
TERM (had the program's): libinfinipath.so.4" ]]; then
    echo "as described: six signal actions are replaced by the load"
else
    echo "not as described" >&2
    exit 1
fi
