// Starts a rank of the contest beside busy processes:
//
//   beside burners=N session=own|same -- PROGRAM [ARGUMENT]...     burners are dealt out to the ranks: rank 0 has the first
//
// A burner computes for as long as the rank lives, and a few minutes at most: the kernel ends it with its parent. It is started here,
// below the launcher, since launchers differ in whether their ranks have a session in common; the scheduler shares processors out among
// sessions (autogroups), so it matters whether a burner has its rank's.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

[[noreturn]] void fail(const char* why) {
    std::fprintf(stderr, "contest beside: %s\n", why);
    std::exit(2);
}

int rank() {
    for (const char* name : {"RSCCL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
        if (const char* text = std::getenv(name)) return std::atoi(text);
    fail("no launcher has said which rank this is");
}

[[noreturn]] void burn(pid_t parent, bool own_session) {
    constexpr unsigned MOST_S = 600;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    alarm(MOST_S);
    if (own_session) setsid();
    // An ordinary process that may run anywhere, however the rank is bound and scheduled.
    sched_param ordinary = {};
    sched_setscheduler(0, SCHED_OTHER, &ordinary);
    cpu_set_t all;
    std::memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    // It keeps nothing open: launchers wait for the ends of pipes.
    for (int fd = 0; fd < 1024; fd++) close(fd);
    for (volatile double x = 1.0;;) x = x * 1.0000001;
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 5 || std::strncmp(argv[1], "burners=", 8) != 0 || std::strncmp(argv[2], "session=", 8) != 0 || std::strcmp(argv[3], "--") != 0)
        fail("beside burners=N session=own|same -- PROGRAM [ARGUMENT]...");
    if (rank() < std::atoi(argv[1] + 8)) {
        const pid_t me = getpid();
        const pid_t child = fork();
        if (child < 0) fail("no burner could be started");
        if (child == 0) burn(me, std::strcmp(argv[2] + 8, "own") == 0);
    }
    execvp(argv[4], argv + 4);
    fail("the program could not be started");
}
