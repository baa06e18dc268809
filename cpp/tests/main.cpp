// The tests' main function: a rank that a test has started as a process, or all tests.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.hpp"

extern char** environ; // NOLINT: posix_spawn needs this variable

namespace ranks {
namespace {

/// After this time the system ends a rank that hangs.
constexpr unsigned worker_limit_s = 60;

std::map<std::string, Worker>& workers() {
    static std::map<std::string, Worker> all;
    return all;
}

pid_t start(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& variables) {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string name(*entry, std::strcspn(*entry, "="));
        if (variables.count(name) == 0) {
            environment.emplace_back(*entry);
        }
    }
    for (const auto& [name, value] : variables) {
        environment.push_back(name + "=" + value);
    }
    auto pointers = [](const std::vector<std::string>& texts) {
        std::vector<char*> all;
        for (const std::string& text : texts) {
            all.push_back(const_cast<char*>(text.c_str()));
        }
        all.push_back(nullptr);
        return all;
    };
    pid_t child = 0;
    const int error = posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, pointers(arguments).data(),
                                  pointers(environment).data());
    if (error != 0) {
        throw std::runtime_error(std::string("cannot start a rank: ") + std::strerror(error));
    }
    return child;
}

int status_of(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            throw std::runtime_error(std::string("cannot wait for a rank: ") + std::strerror(errno));
        }
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

} // namespace

Folder::Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "rsccl-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
        throw std::runtime_error("cannot make " + pattern);
    }
    path_ = pattern;
}

Folder::~Folder() {
    std::error_code ignored; // what is left lies in the system's temporary folder
    std::filesystem::remove_all(path_, ignored);
}

Named::Named(const char* name, Worker worker) { workers().emplace(name, worker); }

std::vector<int> processes(int size, const std::string& worker, const std::vector<std::string>& arguments,
                           std::map<std::string, std::string> variables) {
    const Folder folder;
    variables.emplace("RSCCL_STORE", "file://" + folder.path() + "/store");
    variables.emplace("NCCL_SOCKET_IFNAME", "lo");
    variables["RSCCL_WORLD_SIZE"] = std::to_string(size);
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
        variables["RSCCL_RANK"] = std::to_string(rank);
        std::vector<std::string> words = {"rank", "--worker", worker};
        words.insert(words.end(), arguments.begin(), arguments.end());
        children.push_back(start(words, variables));
    }
    std::vector<int> statuses;
    for (pid_t child : children) {
        statuses.push_back(status_of(child));
    }
    return statuses;
}

bool is_worker(int argc, char** argv, int& status) {
    if (argc < 3 || std::strcmp(argv[1], "--worker") != 0) {
        return false;
    }
    alarm(worker_limit_s);
    const auto found = workers().find(argv[2]);
    if (found == workers().end()) {
        std::fprintf(stderr, "no worker %s\n", argv[2]);
        status = 2;
        return true;
    }
    try {
        status = found->second(std::vector<std::string>(argv + 3, argv + argc));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "worker %s: %s\n", argv[2], error.what());
        status = 1;
    }
    return true;
}

} // namespace ranks

int main(int argc, char** argv) {
    int status = 0;
    if (ranks::is_worker(argc, argv, status)) {
        return status;
    }
    doctest::Context context(argc, argv);
    return context.run();
}
