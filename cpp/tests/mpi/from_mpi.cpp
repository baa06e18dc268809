// rsccl/mpi.hpp in an MPI job of any size: what it makes, and what it refuses on all ranks with one error. test.sh runs it by mpirun.
//   mpirun -n N from_mpi N [abort|late]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <rsccl/mpi.hpp>
#include <rsccl/rsccl.hpp>

namespace {

int rank = 0;
int size = 0;

void require(bool so, const std::string& what) {
    if (!so) {
        std::fprintf(stderr, "rank %d of %d: not so: %s\n", rank, size, what.c_str());
        int up = 0;
        MPI_Initialized(&up);
        if (up != 0) {
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        std::exit(1);
    }
}

// Checks that `call` throws `Class`, and returns the error.
template <class Class, class Call>
Class thrown(const std::string& what, Call call) {
    try {
        call();
    } catch (const Class& error) {
        return error;
    } catch (const std::exception& error) {
        require(false, what + " is of another class: " + error.what());
    }
    require(false, what + " was accepted");
    std::abort();
}

int sum(rsccl::Communicator& comm, int value) {
    std::array<int, 1> total = {value};
    comm.all_reduce_in_place(total);
    return total[0];
}

// The ranks of the job in reverse order.
MPI_Comm turned() {
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &made);
    return made;
}

void any_communicator() {
    MPI_Comm opposite = turned();
    rsccl::Communicator comm = rsccl::mpi::communicator(opposite);
    require(comm.rank() == size - 1 - rank && comm.size() == size, "the order of a communicator that was turned round");
    rsccl::mpi::check(comm, opposite);
    MPI_Comm_free(&opposite);
    require(sum(comm, 1) == size, "it lives on without MPI's communicator");
    rsccl::Communicator self = rsccl::from_mpi(MPI_COMM_SELF);
    require(self.size() == 1, "a rank by itself");
    // The neighbours of a line, as MPI gives them: nobody at its ends.
    MPI_Comm line = MPI_COMM_NULL;
    const int periodic = 0;
    int left = 0;
    int right = 0;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &line);
    MPI_Cart_shift(line, 0, 1, &left, &right);
    MPI_Comm_free(&line);
    require((rsccl::mpi::peer(left) == rsccl::no_rank) == (rank == 0), "the left end");
    require(rsccl::mpi::peer(MPI_ANY_SOURCE) != rsccl::no_rank, "anybody is not nobody");
    const rsccl::Communicator world = rsccl::from_mpi(MPI_COMM_WORLD);
    int from_left = -7;
    world.send_recv(rsccl::view(&rank, 1), rsccl::mpi::peer(right), rsccl::view(&from_left, 1), rsccl::mpi::peer(left));
    require(from_left == (rank == 0 ? -7 : rank - 1), "what the left neighbour has sent");
}

void wrong_communicators() {
    thrown<rsccl::InvalidArgument>("MPI_COMM_NULL", [] { (void)rsccl::from_mpi(MPI_COMM_NULL); });
    if (size < 2) {
        return;
    }
    MPI_Comm half = MPI_COMM_NULL;
    MPI_Comm both = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 7, &both);
    thrown<rsccl::InvalidArgument>("an intercommunicator", [&] { (void)rsccl::from_mpi(both); });
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
}

void one_rank_is_wrong() {
    rsccl::Config config;
    config.init_timeout = std::chrono::seconds(20);
    if (rank == size - 1) {
        config.algo = "Circle";
    }
    const auto error = thrown<rsccl::Error>("a bad setting of one rank", [&] { (void)rsccl::from_mpi(MPI_COMM_WORLD, config); });
    require(error.code() == rsccl::ErrorCode::invalid_argument, error.what());
    require(std::string(error.what()).find("NCCL_ALGO") != std::string::npos, error.what());
    require(rsccl::from_mpi(MPI_COMM_WORLD).size() == size, "the next one is made");
}

void relatives(rsccl::Communicator& comm) {
    rsccl::mpi::check(comm, MPI_COMM_WORLD);
    MPI_Comm parity = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2 == 0 ? 0 : MPI_UNDEFINED, -rank, &parity);
    std::optional<rsccl::Communicator> evens = rsccl::mpi::like(comm, parity);
    require(evens.has_value() == (rank % 2 == 0), "who is in no sub-communicator gets none");
    if (evens) {
        int mine = -1;
        MPI_Comm_rank(parity, &mine);
        require(evens->rank() == mine && sum(*evens, 1) == (size + 1) / 2, "the ranks of MPI's sub-communicator, in its order");
        MPI_Comm_free(&parity);
    }
    const rsccl::Placement placement = rsccl::mpi::placement(comm, MPI_COMM_WORLD);
    require(placement.local_size >= 1 && placement.local_rank < placement.local_size, placement.printed);
    if (size > 1) {
        MPI_Comm opposite = turned();
        thrown<rsccl::Mismatch>("another order", [&] { rsccl::mpi::check(comm, opposite); });
        // After a check and a placement ranks do different things: none of them waits in MPI for a rank that has gone on.
        thrown<rsccl::Mismatch>("a check beside a placement", [&] {
            rank == 0 ? rsccl::mpi::check(comm, MPI_COMM_WORLD) : static_cast<void>(rsccl::mpi::placement(comm, MPI_COMM_WORLD));
        });
        thrown<rsccl::Mismatch>("different sub-communicators",
                                [&] { (void)rsccl::mpi::like(comm, rank == 0 ? opposite : MPI_COMM_SELF); });
        MPI_Comm_free(&opposite);
        rsccl::Communicator doomed = rsccl::from_mpi(MPI_COMM_WORLD);
        const auto end = thrown<rsccl::Mismatch>(
            "a check beside a barrier", [&] { rank == 0 ? rsccl::mpi::check(doomed, MPI_COMM_WORLD) : doomed.barrier(); });
        require(rank > 0 || end.operation().rfind("check: ", 0) == 0, "the call around it is named: " + end.operation());
    }
    require(sum(comm, 1) == size, "the communicator goes on");
}

// Rank 0 has a large message under way in MPI while it waits in rsccl; rank 1 comes to rsccl only once it has that message. MPI moves
// it only when it is called: by the hook.
void two_libraries(rsccl::Communicator& comm) {
    std::vector<char> message(8 << 20, static_cast<char>(rank));
    comm.set_progress(rsccl::mpi::progress());
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0 && size > 1) {
        MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_CHAR, 1, 7, MPI_COMM_WORLD, &request);
    } else if (rank == 1) {
        MPI_Recv(message.data(), static_cast<int>(message.size()), MPI_CHAR, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        require(message.back() == 0, "the message of rank 0");
    }
    comm.barrier();
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    comm.set_progress({});
}

// Joins, uses and drops communicators many times while MPI has few communicators left: MPICH has 2,048 in all.
void again() {
    std::vector<MPI_Comm> taken(1900, MPI_COMM_NULL);
    for (MPI_Comm& comm : taken) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    }
    for (int round = 0; round < 160; ++round) {
        rsccl::Communicator comm = rsccl::from_mpi(MPI_COMM_WORLD);
        switch (round % 4) {
        case 0: (void)rsccl::mpi::placement(comm, MPI_COMM_WORLD); break;
        case 1: rsccl::mpi::check(comm, MPI_COMM_WORLD); break;
        case 2: (void)rsccl::mpi::like(comm, MPI_COMM_WORLD); break;
        default: one_rank_is_wrong(); break;
        }
    }
    for (MPI_Comm& comm : taken) {
        MPI_Comm_free(&comm);
    }
}

// Two threads of each rank join at the same time, each from an MPI communicator of its own.
void side_by_side() {
    std::array<MPI_Comm, 2> theirs = {turned(), MPI_COMM_NULL};
    MPI_Comm_dup(MPI_COMM_WORLD, &theirs[1]);
    std::vector<std::thread> threads;
    for (const MPI_Comm comm : theirs) {
        threads.emplace_back([comm] {
            for (int round = 0; round < 5; ++round) {
                rsccl::Communicator made = rsccl::from_mpi(comm);
                require(sum(made, 1) == size, "a communicator that was made beside another");
                rsccl::mpi::check(made, comm);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    MPI_Comm_free(&theirs[0]);
    MPI_Comm_free(&theirs[1]);
}

// The last rank throws an exception that nobody catches; the others wait in MPI until the job ends.
void last_words() {
    if (rank == size - 1) {
        throw rsccl::InvalidUsage("the input is broken");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// The last rank has an invalid variable, and one that limits how long it waits for the others, which never come.
void gives_up() {
    if (rank == size - 1) {
        setenv("NCCL_SHM_DISABLE", "perhaps", 1);
        setenv("RSCCL_INIT_TIMEOUT_MS", "1500", 1);
        rsccl::mpi::abort(thrown<rsccl::InvalidArgument>("a wrong variable", [] { (void)rsccl::from_mpi(MPI_COMM_WORLD); }));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

} // namespace

int main(int argc, char** argv) {
    thrown<rsccl::InvalidUsage>("a communicator before MPI_Init", [] { (void)rsccl::from_mpi(MPI_COMM_WORLD); });
    int level = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    rsccl::mpi::abort_on_terminate();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    require(argc >= 2 && std::atoi(argv[1]) == size, "as many ranks as the job was started for");
    if (argc == 3) {
        std::string(argv[2]) == "late" ? gives_up() : last_words();
    }
    if (size == 3) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    rsccl::Config config;
    config.timeout = std::chrono::seconds(30);
    rsccl::Communicator comm = rsccl::from_mpi(MPI_COMM_WORLD, config);
    require(comm.rank() == rank && comm.size() == size, "MPI's ranks");
    any_communicator();
    wrong_communicators();
    one_rank_is_wrong();
    relatives(comm);
    two_libraries(comm);
    if (level == MPI_THREAD_MULTIPLE) {
        side_by_side();
    }
    if (size == 2) {
        again();
    }
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    require(handler == (size == 3 ? MPI_ERRORS_RETURN : MPI_ERRORS_ARE_FATAL), "the program's own handler of MPI's errors");
    MPI_Finalize();
    // The library keeps no communicator of MPI.
    require(sum(comm, rank) == size * (size - 1) / 2, "the communicator works after MPI_Finalize");
    thrown<rsccl::InvalidUsage>("a communicator after MPI_Finalize", [] { (void)rsccl::from_mpi(MPI_COMM_WORLD); });
    return 0;
}
