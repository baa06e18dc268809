// Goal: an MPI program that used NCCL, ported line by line. What it was stands above each line as a comment; what has no line any
// more stands alone. It gives each rank an array, adds the arrays up, passes them round a ring in a group, and checks the results.
//
// What changes: errors are exceptions, so nothing is wrapped in a macro; the objects free themselves. The arrays are in host memory
// here, so that the program runs on any machine: such a call has no stream, and has ended when it returns. The lines for GPU memory,
// with the program's own stream, stand behind "on a GPU:"; examples/cpp/07_gpu.cpp is a whole program of them.
//
// Prints:
//
//     2 ranks: sum and ring are right
#include <cstdio>
#include <exception>
#include <string>

// #include <cuda_runtime.h>
// #include <nccl.h>
#include <mpi.h>
#include <rsccl/mpi.hpp>
#include <rsccl/rsccl.hpp>

// #define NCCLCHECK(call) do { ncclResult_t r = (call); if (r != ncclSuccess) { ... MPI_Abort(...); } } while (0)
// #define CUDACHECK(call) ...

namespace {

constexpr std::size_t count = 1 << 18;

int run(int rank, int ranks) {
    // int local_rank = 0;
    // MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    // MPI_Comm_rank(node, &local_rank);
    // CUDACHECK(cudaSetDevice(local_rank));
    //   On a GPU: the same, or cudaSetDevice(comm.placement().device->ordinal), once comm is there.

    // ncclUniqueId id;
    rsccl::UniqueId id;
    // if (rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
    if (rank == 0) id = rsccl::UniqueId::generate();
    // MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(id.data(), static_cast<int>(id.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    // ncclComm_t comm;
    // NCCLCHECK(ncclCommInitRank(&comm, ranks, id, rank));
    rsccl::Communicator comm(id, rank, ranks);
    //   The three steps above in one: rsccl::Communicator comm = rsccl::from_mpi(MPI_COMM_WORLD);

    // cudaStream_t stream;
    // CUDACHECK(cudaStreamCreate(&stream));
    // float *send, *recv;
    // CUDACHECK(cudaMalloc(&send, count * sizeof(float)));
    // CUDACHECK(cudaMalloc(&recv, count * sizeof(float)));
    rsccl::buffer<float> send(count);
    rsccl::buffer<float> recv(count);
    //   On a GPU: cudaStreamCreate and cudaMalloc stay, or rsccl::gpu_buffer<float> send(count, stream), which is ncclMemAlloc.
    // NCCLCHECK(ncclCommRegister(comm, send, count * sizeof(float), &handle));
    comm.register_buffer(send);
    comm.register_buffer(recv);
    //   On a GPU: rsccl::Window window = comm.register_window(send, count * sizeof(float), stream), collective.
    // CUDACHECK(cudaMemcpy(send, host.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    for (std::size_t place = 0; place < count; ++place) send[place] = static_cast<float>(rank + 1);

    // NCCLCHECK(ncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, stream));
    comm.all_reduce(send, recv, rsccl::ReduceOp::sum);
    //   On a GPU: comm.all_reduce(send, recv, count, rsccl::DataType::float32, rsccl::ReduceOp::sum, stream) with pointers, or
    //   comm.all_reduce(send, recv, rsccl::ReduceOp::sum, stream) with two gpu_buffers. A pointer to GPU memory without the stream
    //   would be taken for host memory; a gpu_buffer without it does not compile.
    // CUDACHECK(cudaStreamSynchronize(stream));
    //   On a GPU: stays, as ncclAllReduce's does.
    // CUDACHECK(cudaMemcpy(host.data(), recv, count * sizeof(float), cudaMemcpyDeviceToHost));
    bool right = true;
    for (float value : recv) right = right && value == static_cast<float>(ranks * (ranks + 1) / 2);

    // NCCLCHECK(ncclGroupStart());
    rsccl::Group group;
    // NCCLCHECK(ncclSend(send, count, ncclFloat, (rank + 1) % ranks, comm, stream));
    group.on(comm).send(send, (rank + 1) % ranks);
    //   On a GPU: group.on(comm).send(send, count, rsccl::DataType::float32, (rank + 1) % ranks, stream), and recv alike.
    // NCCLCHECK(ncclRecv(recv, count, ncclFloat, (rank + ranks - 1) % ranks, comm, stream));
    group.on(comm).recv(recv, (rank + ranks - 1) % ranks);
    // NCCLCHECK(ncclGroupEnd());
    group.end();
    // CUDACHECK(cudaStreamSynchronize(stream));
    for (float value : recv) right = right && value == static_cast<float>((rank + ranks - 1) % ranks + 1);

    // A call whose type is known at run time only keeps its shape:
    // NCCLCHECK(ncclBroadcast(send, recv, count, ncclFloat, 0, comm, stream));
    comm.broadcast(send.data(), recv.data(), count, rsccl::DataType::float32, 0);
    for (float value : recv) right = right && value == 1.0F;

    // ncclResult_t state;
    // NCCLCHECK(ncclCommGetAsyncError(comm, &state));
    right = right && !comm.async_error();

    // NCCLCHECK(ncclCommFinalize(comm));
    comm.finalize();
    // NCCLCHECK(ncclCommDeregister(comm, handle));
    // CUDACHECK(cudaFree(send));
    // CUDACHECK(cudaFree(recv));
    // CUDACHECK(cudaStreamDestroy(stream));
    // NCCLCHECK(ncclCommDestroy(comm));
    if (right && rank == 0) std::printf("%d ranks: sum and ring are right\n", ranks);
    return right ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    int rank = 0;
    int ranks = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    try {
        // As the other programs here: an mpirun of another MPI would start ranks that each believe to be alone.
        if (argc == 3 && std::stoi(argv[2]) != ranks) MPI_Abort(MPI_COMM_WORLD, 1);
        if (run(rank, ranks) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
    } catch (const std::exception& error) {
        // What NCCLCHECK did.
        std::fprintf(stderr, "%s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
