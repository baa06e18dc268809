// Goal: processes that meet by a channel of their own, here a file. Rank 0 makes a unique id and writes its 128 bytes; the others
// read them. Whoever has the bytes can join: they hold a secret, so the file is for its owner only, and its name appears at once
// with all of its bytes. A pipe, a database or MPI_Bcast would do as well.
//
//     ./id_in_a_file            starts three processes of itself
//     ./id_in_a_file RANK FILE  is one of them
//
// Prints:
//
//     3 processes have added up their ranks: 3
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <spawn.h>
#include <sys/wait.h>

#include <rsccl/rsccl.hpp>

extern char** environ;

namespace {

constexpr int world = 3;
constexpr auto patience = std::chrono::seconds(30);

void put(const std::string& file, const rsccl::UniqueId& id) {
    namespace fs = std::filesystem;
    std::ofstream out(file + ".new", std::ios::binary);
    fs::permissions(file + ".new", fs::perms::owner_read | fs::perms::owner_write);
    out.write(reinterpret_cast<const char*>(id.data()), static_cast<std::streamsize>(id.size()));
    out.close();
    fs::rename(file + ".new", file);
}

rsccl::UniqueId take(const std::string& file) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!std::filesystem::exists(file)) {
        if (std::chrono::steady_clock::now() > deadline) {
            throw rsccl::Timeout("rank 0 has written no id to " + file);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::array<char, rsccl::UniqueId::length> bytes{};
    std::ifstream(file, std::ios::binary).read(bytes.data(), bytes.size());
    return rsccl::UniqueId::from_bytes(bytes.data(), bytes.size());
}

int rank_main(int rank, const std::string& file) {
    // All on one machine here, so the loopback will do. Without this, the interface that leads out is taken.
    rsccl::Config config;
    config.socket_interfaces = "lo";
    rsccl::UniqueId id;
    if (rank == 0) {
        id = rsccl::UniqueId::generate(config);
        put(file, id);
    } else {
        id = take(file);
    }
    rsccl::Communicator comm(id, rank, world, config);
    const int sum = comm.all_reduce_value(rank);
    if (rank == 0) {
        std::printf("%d processes have added up their ranks: %d\n", world, sum);
    }
    comm.finalize();
    return sum == 3 ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) try {
    if (argc == 3) {
        return rank_main(std::atoi(argv[1]), argv[2]);
    }
    std::string folder = (std::filesystem::temp_directory_path() / "rsccl-example-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) {
        throw std::runtime_error("cannot make a folder for the id");
    }
    std::array<pid_t, world> ranks{};
    bool good = true;
    for (int rank = 0; rank < world; ++rank) {
        std::string number = std::to_string(rank);
        std::string file = folder + "/id";
        std::array<char*, 4> words = {argv[0], number.data(), file.data(), nullptr};
        good &= posix_spawn(&ranks[static_cast<std::size_t>(rank)], "/proc/self/exe", nullptr, nullptr, words.data(), environ) == 0;
    }
    for (pid_t rank : ranks) {
        int status = 1;
        good &= rank > 0 && waitpid(rank, &status, 0) == rank && status == 0;
    }
    std::filesystem::remove_all(folder);
    return good ? 0 : 1;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
