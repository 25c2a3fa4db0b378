// Runs CUDA C kernels on the CPU, for tests. Every thread of a block is a std::thread, __syncthreads is a barrier, and blocks run in turn.
// Kernels may use threadIdx, blockIdx, blockDim, gridDim, static __shared__ arrays, __syncthreads, atomicInc and the C math functions.
#ifndef HPCPAR_TESTS_CUDA_CPU_H
#define HPCPAR_TESTS_CUDA_CPU_H

#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

inline thread_local dim3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
inline std::barrier<> *cuda_cpu_barrier = nullptr;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __shared__ static  // one copy is enough because only one block runs at a time
#define __syncthreads() cuda_cpu_barrier->arrive_and_wait()
#define __threadfence() std::atomic_thread_fence(std::memory_order_seq_cst)

// Blocks run in turn, and one thread of a block counts.
inline unsigned atomicInc(unsigned *counter, unsigned last) {
    const unsigned old = *counter;
    *counter = old >= last ? 0 : old + 1;
    return old;
}

// CUDA has these functions in the global namespace for both float and double; C has only the double versions there.
using std::erf;
using std::exp;
using std::log;
using std::log1p;
using std::pow;
using std::sqrt;
using std::tanh;

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

// Ticks of a processor of 1 GHz.
inline long long clock64() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// `params` contains the address of every parameter, as for cuLaunchKernel.
template <class... Params, std::size_t... Index>
void cuda_cpu_call(void (*kernel)(Params...), void **params, std::index_sequence<Index...>) {
    kernel(*static_cast<Params *>(params[Index])...);
}

template <class... Params>
void cuda_cpu_launch(void (*kernel)(Params...), const unsigned *grid, const unsigned *block, void **params) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    const unsigned count = blockDim.x * blockDim.y * blockDim.z;
    std::barrier<> barrier(count);
    cuda_cpu_barrier = &barrier;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; t++) {
        threads.emplace_back([&, t] {
            threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
            for (unsigned z = 0; z < gridDim.z; z++)
                for (unsigned y = 0; y < gridDim.y; y++)
                    for (unsigned x = 0; x < gridDim.x; x++) {
                        blockIdx = {x, y, z};
                        cuda_cpu_call(kernel, params, std::index_sequence_for<Params...>{});
                        barrier.arrive_and_wait();
                    }
        });
    }
    for (std::thread &thread : threads) thread.join();
}

template <class... Params>
constexpr unsigned cuda_cpu_count(void (*)(Params...)) {
    return sizeof...(Params);
}

// The C entry point of a kernel, which takes the addresses of its parameters, and their number.
#define CUDA_CPU_ENTRY(kernel) \
    extern "C" unsigned cuda_cpu_count_##kernel() { return cuda_cpu_count(kernel); } \
    extern "C" void cuda_cpu_##kernel(const unsigned *grid, const unsigned *block, void **params) { \
        cuda_cpu_launch(kernel, grid, block, params); \
    }

#endif
