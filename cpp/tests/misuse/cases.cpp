// Misuse that must not compile. tests/misuse.sh compiles each case as it stands, which must fail with the words behind "refused:" (a
// regular expression; with "refused alone:" nothing else is an error), and all of them (case 0) with MENDED, which must compile.
#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <string>
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
#if ON(4) // input and output of two types; refused alone: must hold elements of one type
    {
        comm.all_reduce(floats, MISTAKE(doubles, floats));
    }
#endif
#if ON(5) // output into constant elements; refused alone: must not be const
    {
        comm.all_reduce(floats, MISTAKE(constant, floats));
    }
#endif
#if ON(6) // receiving into constant elements; refused alone: must not be const
    {
        comm.recv(MISTAKE(constant, floats), 0);
    }
#endif
#if ON(7) // output into a temporary; refused alone: a temporary container ends with it
    {
        comm.all_gather(floats, MISTAKE(std::vector<float>(8), doubles.empty() ? floats : floats));
    }
#endif
#if ON(8) // a request that reads a temporary; refused alone: a temporary container ends with it
    {
        rsccl::Request request = comm.start().send(MISTAKE(std::vector<float>(4), floats), 0);
        request.wait();
    }
#endif
#if ON(9) // a request that writes to a temporary; refused alone: a temporary container ends with it
    {
        rsccl::Request request = comm.start().recv(MISTAKE(std::vector<float>(4), floats), 0);
        request.wait();
    }
#endif
#if ON(10) // a group that reads a temporary; refused alone: a temporary container ends with it
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
#if ON(16) // a buffer of a type that has no data type; refused alone: no data type for the elements
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
#if ON(19) // counts that are no integers; refused alone: counts are integers
    {
        comm.all_gather_v(floats, doubles.empty() ? floats : floats, std::vector<MISTAKE(double, int)>{1, 3});
    }
#endif
#if ON(20) // a pointer and a count without a type; refused alone: a pointer does not say
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
#if ON(24) // what changes a communicator, on one that is constant; refused alone: const|qualifiers
    {
        MISTAKE(const rsccl::Communicator&, rsccl::Communicator&) fixed = comm;
        fixed.finalize();
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
#if ON(32) // a pointer alone; refused alone: a pointer does not say how many elements there are
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
#if ON(39) // the bytes of a temporary; refused alone: a temporary container ends with it
    {
        comm.send(rsccl::bytes_of(MISTAKE(std::vector<std::int16_t>(4), floats)), 0);
    }
#endif
#if ON(40) // the bytes of what owns memory; refused alone: only bytes of trivially copyable elements
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
#if ON(42) // a tag behind the peer; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        comm.send(MISTAKE(floats, rsccl::view(floats.data(), floats.size())), 1, 0);
    }
#endif
#if ON(43) // a tag behind the peer of a recv; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        MISTAKE(comm.recv(floats, 1, 0), comm.recv(floats, 1));
    }
#endif
#if ON(44) // a count behind the root; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        MISTAKE(comm.broadcast(floats, 0, 0), comm.broadcast(floats, 0));
    }
#endif
#if ON(45) // a number behind the operator; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        MISTAKE(comm.all_reduce(floats, floats, rsccl::ReduceOp::sum, 0), comm.all_reduce(floats, floats, rsccl::ReduceOp::sum));
    }
#endif
#if ON(46) // a tag that is not 0; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        MISTAKE(comm.send(floats, 1, 7), comm.send(floats, 1, rsccl::Stream::host()));
    }
#endif
#if ON(47) // a tag by name; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        constexpr long tag = 0;
        MISTAKE(comm.send(floats, 1, tag), comm.send(floats, 1 + static_cast<int>(tag)));
    }
#endif
#if ON(48) // a tag of an enumeration; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        enum class Tag { halo };
        MISTAKE(comm.send(floats, 1, Tag::halo), comm.send(floats, static_cast<int>(Tag::halo)));
    }
#endif
#if ON(49) // a tag in a request; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        std::array<int, 4> four{};
        rsccl::Request request = MISTAKE(comm.start().recv(four, 0, 0), comm.start().recv(four, 0));
        request.wait();
    }
#endif
#if ON(50) // a tag in a group; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        int four[4] = {};
        MISTAKE(group.on(comm).send(four, 0, 0), group.on(comm).send(four, 0));
    }
#endif
#if ON(51) // tags of a send_recv; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        MISTAKE(comm.send_recv(floats, 1, floats, 1, 0), comm.send_recv(floats, 1, floats, 1));
    }
#endif
#if ON(52) // a number behind the counts; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        MISTAKE(comm.all_gather_v(floats, floats, {4}, 0), comm.all_gather_v(floats, floats, {4}));
    }
#endif
#if ON(53) // a tag beside a string; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        std::string word = "rsccl";
        MISTAKE(comm.broadcast(word, 0, 0), comm.broadcast(word, 0));
    }
#endif
#if ON(54) // a tag beside shared memory of the host; refused alone: the Stream of a call on GPU memory, and these buffers are memory of the host
    {
        rsccl::buffer<float> memory(4);
        MISTAKE(comm.broadcast(memory, 0, 0), comm.broadcast(memory, 0));
    }
#endif
#if ON(55) // a pointer and a count as in MPI; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        MISTAKE(comm.broadcast(floats.data(), 100, 0), comm.broadcast(rsccl::view(floats.data(), 4), 0));
    }
#endif
#if ON(56) // a pointer, a count, and no type; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        MISTAKE(comm.send(floats.data(), 4, 1), comm.send(floats.data(), 4, rsccl::DataType::float32, 1));
    }
#endif
#if ON(57) // a pointer, a count, a peer and a tag; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        MISTAKE(comm.recv(floats.data(), 4, 1, 0), comm.recv(rsccl::view(floats.data(), 4), 1));
    }
#endif
#if ON(58) // two pointers, a count, and no type; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        float one = 1, all = 0;
        MISTAKE(comm.all_reduce(&one, &all, 1), comm.all_reduce(rsccl::view(&one, 1), rsccl::view(&all, 1)));
    }
#endif
#if ON(59) // two pointers, a count, an operator, and no type; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        float one = 1, all = 0;
        MISTAKE(comm.all_reduce(&one, &all, 1, rsccl::ReduceOp::max), comm.all_reduce(rsccl::view(&one, 1), rsccl::view(&all, 1), rsccl::ReduceOp::max));
    }
#endif
#if ON(60) // a struct by its address and its size; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        Pair pair{};
        MISTAKE(comm.send(&pair, sizeof pair, 1), comm.send(rsccl::bytes_of(rsccl::view(&pair, 1)), 1));
    }
#endif
#if ON(61) // pointers and counts of a send_recv; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        MISTAKE(comm.send_recv(floats.data(), 4, 1, floats.data(), 4, 1), comm.send_recv(floats, 1, floats, 1));
    }
#endif
#if ON(62) // a pointer, a count, and no type, in a request; refused alone: a pointer does not say how many elements there are, nor of which type
    {
        rsccl::Request request = MISTAKE(comm.start().send(floats.data(), 4, 1), comm.start().send(floats, 1));
        request.wait();
    }
#endif
#if ON(63) // a struct in place of a buffer; refused alone: for what is only moved, rsccl::bytes_of
    {
        Pair pair{};
        comm.broadcast(MISTAKE(pair, rsccl::bytes_of(rsccl::view(&pair, 1))), 0);
    }
#endif
#if ON(64) // a complex number in place of a buffer; refused alone: for what is only moved, rsccl::bytes_of
    {
        std::complex<double> number;
        comm.broadcast(MISTAKE(number, rsccl::bytes_of(rsccl::view(&number, 1))), 0);
    }
#endif
#if ON(65) // a literal text; refused alone: the elements of an output buffer must not be const
    {
        char word[] = "rsccl";
        comm.broadcast(MISTAKE("rsccl", word), 0);
    }
#endif
#if ON(66) // one count for all ranks; refused alone: counts are integers, one for each rank
    {
        comm.scatter_v(floats, floats, MISTAKE(3, {3}), 0);
    }
#endif
#if ON(67) // complex numbers in a reduction; refused alone: arrays of two floats
    {
        std::vector<std::complex<double>> numbers(4);
        MISTAKE(comm.all_reduce(numbers, numbers), comm.all_reduce_in_place(rsccl::view(reinterpret_cast<double*>(numbers.data()), 8)));
    }
#endif
#if ON(68) // shared memory of a type that has no data type; refused alone: a buffer of std::byte
    {
        rsccl::buffer<MISTAKE(std::complex<float>, std::byte)> memory(4);
    }
#endif
#if ON(69) // one number that is no element; refused alone: a value is an integer of 1, 4 or 8 bytes
    {
        const bool all = MISTAKE(comm.all_reduce_value(true), comm.all_reduce_value(1) != 0);
        (void)all;
    }
#endif
#if ON(70) // counts behind each buffer, as MPI has them; refused alone: the buffers come first, and then both counts in braces
    {
        std::vector<int> counts(4), in(4), out(4);
        MISTAKE(comm.all_to_all_v(in, counts, out, counts), comm.all_to_all_v(in, out, {counts, counts}));
    }
#endif
#if ON(71) // counts behind each buffer, in braces; refused alone: the buffers come first, and then both counts in braces
    {
        MISTAKE(comm.all_to_all_v(floats, {4}, floats, {4}), comm.all_to_all_v(floats, floats, {{4}, {4}}));
    }
#endif
#if ON(72) // both counts without braces; refused alone: the buffers come first, and then both counts in braces
    {
        std::vector<int> counts(4), in(4), out(4);
        MISTAKE(comm.all_to_all_v(in, out, counts, counts), comm.all_to_all_v(in, out, {counts, counts}));
    }
#endif
#if ON(73) // memory whose counts stand behind each buffer; refused alone: the buffers come first, and then both counts in braces
    {
        const std::size_t one[] = {4};
        MISTAKE(comm.all_to_all_v(floats.data(), rsccl::view(one, 1), floats.data(), rsccl::view(one, 1), rsccl::DataType::float32), comm.all_to_all_v(floats.data(), floats.data(), {one, one}, rsccl::DataType::float32));
    }
#endif
#if CASE == 0 // what is right, and looks like the above
    {
        // To CUDA's users a literal 0 is the default stream.
        rsccl::gpu_buffer<float> memory(4, 0);
        comm.all_reduce(memory, memory, rsccl::ReduceOp::sum, 0);
        comm.send(memory, 1, 0);
        comm.broadcast_into(floats, memory, 0, 0);
        float* pointer = memory.data();
        comm.all_reduce(pointer, pointer, 4, rsccl::DataType::float32, rsccl::ReduceOp::sum, 0);
        comm.broadcast(rsccl::view(pointer, 4), 0, 0);
        comm.all_reduce(floats, floats, rsccl::ReduceOp::sum, rsccl::Stream::host());
        comm.all_reduce(floats, floats, rsccl::ReduceOp::sum, {});
        // What changes nothing for the caller may be called on a constant.
        const rsccl::Communicator& fixed = comm;
        fixed.all_reduce_in_place(floats);
        fixed.start().barrier().wait();
        group.on(fixed).all_reduce_in_place(floats);
        rsccl::Communicator part = fixed.by_color(fixed.rank() % 2);
        std::vector<std::size_t> from = fixed.exchange_counts({4});
        [[maybe_unused]] const float sum = fixed.all_reduce_value(1.0f) + part.all_reduce_value(floats[0], rsccl::ReduceOp::max);
        // Both counts may be of two kinds, and be kept.
        const rsccl::SendRecvCounts both(std::vector<int>{4}, from);
        fixed.all_to_all_v(floats, floats, both);
        fixed.all_to_all_v(floats, floats, both, rsccl::Stream::host());
        fixed.start().all_to_all_v(floats, floats, {std::array<long, 1>{4}, from}).wait();
    }
#endif
}
