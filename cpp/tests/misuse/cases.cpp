// Misuse that must not compile. tests/misuse.sh compiles each case as it stands, which must fail with the words behind "refused:" (a
// regular expression; with "refused alone:" nothing else is an error), and all of them (case 0) with MENDED, which must compile.
#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include <rsccl/rsccl.hpp>

#ifdef MENDED
#define MISTAKE(wrong, right) right
#else
#define MISTAKE(wrong, right) wrong
#endif

#define ON(number) (CASE == 0 || CASE == (number))

struct Pair {
    float one;
    float two;
};

void use(rsccl::Communicator& comm, rsccl::Communicator& other, rsccl::Group& group) {
    std::vector<float> floats(4);
    std::vector<double> doubles(4);
    const std::vector<float> constant(4);
    [[maybe_unused]] std::vector<Pair> pairs(4);
    (void)comm, (void)other, (void)group, (void)floats, (void)doubles, (void)constant;

#if ON(1) // an element type that has no data type; refused alone: buffers hold integers
    {
        comm.all_reduce(MISTAKE(pairs, floats), MISTAKE(pairs, floats));
    }
#endif
#if ON(2) // 16-bit integers; refused alone: buffers hold integers
    {
        MISTAKE(std::vector<std::int16_t>, std::vector<std::int32_t>) narrow(4);
        comm.all_reduce_in_place(narrow);
    }
#endif
#if ON(3) // bool; refused alone: buffers hold integers
    {
        std::array<MISTAKE(bool, unsigned char), 4> truths{};
        comm.broadcast(truths, 0);
    }
#endif
#if ON(4) // input and output of two types; refused: must hold elements of one type
    {
        comm.all_reduce(floats, MISTAKE(doubles, floats));
    }
#endif
#if ON(5) // output into constant elements; refused: must not be const
    {
        comm.all_reduce(floats, MISTAKE(constant, floats));
    }
#endif
#if ON(6) // receiving into constant elements; refused: must not be const
    {
        comm.recv(MISTAKE(constant, floats), 0);
    }
#endif
#if ON(7) // output into a temporary; refused: a temporary container ends with it
    {
        comm.all_gather(floats, MISTAKE(std::vector<float>(8), doubles.empty() ? floats : floats));
    }
#endif
#if ON(8) // a request that reads a temporary; refused: a temporary container ends with it
    {
        rsccl::Request request = comm.start().send(MISTAKE(std::vector<float>(4), floats), 0);
        request.wait();
    }
#endif
#if ON(9) // a request that writes to a temporary; refused: a temporary container ends with it
    {
        rsccl::Request request = comm.start().recv(MISTAKE(std::vector<float>(4), floats), 0);
        request.wait();
    }
#endif
#if ON(10) // a group that reads a temporary; refused: a temporary container ends with it
    {
        group.on(comm).send(MISTAKE(std::vector<float>(4), floats), 0);
    }
#endif
#if ON(11) // the copy of a communicator; refused: deleted|implicitly-deleted
    {
        rsccl::Communicator copy = MISTAKE(comm, std::move(comm));
    }
#endif
#if ON(12) // copy assignment of a communicator; refused: deleted
    {
        other = MISTAKE(comm, std::move(comm));
    }
#endif
#if ON(13) // the copy of a request; refused: deleted
    {
        rsccl::Request request = comm.start().barrier();
        rsccl::Request copy = MISTAKE(request, std::move(request));
        copy.wait();
    }
#endif
#if ON(14) // the copy of a group; refused: deleted
    {
        rsccl::Group mine;
        rsccl::Group MISTAKE(copy = mine, copy);
    }
#endif
#if ON(15) // the copy of registered memory; refused: deleted
    {
        rsccl::buffer<float> memory(4);
        rsccl::buffer<float> copy = MISTAKE(memory, std::move(memory));
    }
#endif
#if ON(16) // a buffer of a type that has no data type; refused: no data type for the elements
    {
        rsccl::buffer<MISTAKE(Pair, float)> memory(4);
    }
#endif
#if ON(17) // a request that is thrown away, and so waited for at once; refused: nodiscard|unused
    {
        MISTAKE(, rsccl::Request request =) comm.start().barrier();
    }
#endif
#if ON(18) // a number by the name of a container; refused alone: this is one number, and a buffer is wanted
    {
        MISTAKE(float, std::vector<float>) scalar(4);
        comm.all_reduce_in_place(scalar);
    }
#endif
#if ON(19) // counts that are no integers; refused: counts are integers
    {
        comm.all_gather_v(floats, doubles.empty() ? floats : floats, std::vector<MISTAKE(double, int)>{1, 3});
    }
#endif
#if ON(20) // a pointer and a count without a type; refused: no matching|data
    {
        comm.broadcast(floats.data(), floats.data(), floats.size(), MISTAKE(0, rsccl::DataType::float32), 0);
    }
#endif
#if ON(21) // an operator out of thin air; refused: private
    {
        rsccl::ReduceOp op = MISTAKE(rsccl::ReduceOp(3), rsccl::ReduceOp::max);
        (void)op;
    }
#endif
#if ON(22) // a scalar that is not a number; refused: the scalar must be a number
    {
        rsccl::ReduceOp op = rsccl::ReduceOp::premul_sum(MISTAKE("2", 2));
        (void)op;
    }
#endif
#if ON(23) // all_to_all_v of a vector in a vector; refused alone: buffers hold integers
    {
        std::vector<std::vector<float>> nested(4);
        comm.all_to_all(MISTAKE(nested, floats), MISTAKE(nested, floats));
    }
#endif
#if ON(24) // a group on a communicator that is constant; refused: const|qualifiers|no matching
    {
        MISTAKE(const rsccl::Communicator&, rsccl::Communicator&) fixed = comm;
        group.on(fixed).all_reduce_in_place(floats);
    }
#endif
#if ON(25) // the bridge, which no program may name; refused: not been declared|no member named|undeclared
    {
        (void)sizeof(MISTAKE(rsccl::ffi::Status, rsccl::Communicator));
    }
#endif
#if ON(26) // vector<bool>, which is no array; refused alone: std::vector<bool> has no bools in memory
    {
        std::vector<MISTAKE(bool, unsigned char)> truths(4);
        comm.all_reduce_in_place(truths);
    }
#endif
#if ON(27) // memory of one type registered as a container of another kind; refused: no matching
    {
        MISTAKE(std::vector<float>, rsccl::buffer<float>) memory(4);
        comm.register_buffer(memory);
    }
#endif
#if ON(28) // a child that is thrown away, and so leaves at once; refused: nodiscard|unused
    {
        MISTAKE(, rsccl::Communicator child =) comm.by_color(0);
    }
#endif
#if ON(29) // two iterators of what is not in one piece; refused: no matching function
    {
        MISTAKE(std::deque<float>, std::vector<float>) pieces(4);
        comm.all_reduce_in_place(rsccl::view(pieces.begin(), pieces.end()));
    }
#endif
#if ON(30) // one number in place of a buffer; refused alone: this is one number, and a buffer is wanted
    {
        float number = 1;
        comm.all_reduce_in_place(MISTAKE(number, rsccl::view(&number, 1)));
    }
#endif
#if ON(31) // a constant number in place of a buffer; refused alone: this is one number, and a buffer is wanted
    {
        const int number = 1;
        comm.send(MISTAKE(number, rsccl::view(&number, 1)), 0);
    }
#endif
#if ON(32) // a pointer alone; refused alone: a pointer alone does not say how many elements there are
    {
        comm.all_reduce(MISTAKE(floats.data(), floats), floats);
    }
#endif
#if ON(33) // a container in pieces; refused alone: a buffer has its elements one behind the other
    {
        MISTAKE(std::deque<float>, std::vector<float>) pieces(4);
        comm.broadcast(pieces, 0);
    }
#endif
#if ON(34) // a request into one number; refused alone: this is one number, and a buffer is wanted
    {
        int number = 1;
        rsccl::Request request = comm.start().recv(MISTAKE(number, rsccl::view(&number, 1)), 0);
        request.wait();
    }
#endif
#if ON(35) // GPU memory and no stream; refused alone: a gpu_buffer is memory of a GPU: the call needs a Stream
    {
        rsccl::gpu_buffer<float> memory(4, nullptr);
        MISTAKE(comm.all_reduce(memory, memory), comm.all_reduce(memory, memory, rsccl::ReduceOp::sum, nullptr));
    }
#endif
#if ON(36) // a message from GPU memory and no stream; refused alone: a gpu_buffer is memory of a GPU: the call needs a Stream
    {
        const rsccl::gpu_buffer<float> memory(4, nullptr);
        MISTAKE(comm.send(memory, 0), comm.send(memory, 0, static_cast<CUstream_st*>(nullptr)));
    }
#endif
#if ON(37) // GPU memory in a group and no stream; refused alone: a gpu_buffer is memory of a GPU: the call needs a Stream
    {
        rsccl::gpu_buffer<float> memory(4, nullptr);
        MISTAKE(group.on(comm).gather(floats, memory, 0), group.on(comm).gather(floats, memory, 0, rsccl::Stream(nullptr)));
    }
#endif
#if ON(38) // complex numbers that are only moved; refused alone: goes as rsccl::bytes_of
    {
        std::vector<std::complex<double>> numbers(4);
        comm.broadcast(MISTAKE(numbers, rsccl::bytes_of(numbers)), 0);
    }
#endif
#if ON(39) // the bytes of a temporary; refused: a temporary container ends with it
    {
        comm.send(rsccl::bytes_of(MISTAKE(std::vector<std::int16_t>(4), floats)), 0);
    }
#endif
#if ON(40) // the bytes of what owns memory; refused: only bytes of trivially copyable elements
    {
        std::vector<MISTAKE(std::vector<int>, int)> nested(4);
        comm.send(rsccl::bytes_of(nested), 0);
    }
#endif
#if ON(41) // a list, whose elements are in pieces; refused alone: a buffer has its elements one behind the other
    {
        MISTAKE(std::list<int>, std::vector<int>) pieces(4);
        comm.all_reduce_in_place(pieces);
    }
#endif
}
