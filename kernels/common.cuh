// What every kernel source shares. REAL is set on the compiler's command line: -DREAL=float or -DREAL=double.
//
// Every kernel loops with the grid's stride, so that any launch shape is right, and sums in a fixed order without atomics,
// so that two runs give the same bits. Integers arrive as 64 bits and reals as double whatever REAL is, because these are what
// Python's int and float become; strides are in elements. The same text also compiles as C++ for the tests.
#ifndef HPCPAR_COMMON_CUH
#define HPCPAR_COMMON_CUH

typedef long long i64;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__

// The largest block that kernels with sums over a block are launched with (a power of two).
#define MAX_THREADS 256

// A strided array [N, C, D, H, W] as kernel parameters, and one element of it; an image is a volume of one plane. Of a SHARED5 the memory
// may be that of another parameter.
#define SHARED5(TYPE, a) TYPE *a, i64 a##_n, i64 a##_c, i64 a##_d, i64 a##_h, i64 a##_w
#define VIEW5(TYPE, a) TYPE *__restrict__ a, i64 a##_n, i64 a##_c, i64 a##_d, i64 a##_h, i64 a##_w
#define AT5(a, p) a[(p).n * a##_n + (p).c * a##_c + (p).d * a##_d + (p).h * a##_h + (p).w * a##_w]

// A strided matrix.
#define VIEW2(TYPE, a) TYPE *a, i64 a##_n, i64 a##_c
#define AT2(a, n, c) a[(n) * a##_n + (c) * a##_c]

// The extents of a box of five dimensions, the strides of an array over it, and the place of the index-th element in that array.
#define SHAPE5 i64 d0, i64 d1, i64 d2, i64 d3, i64 d4
#define STRIDES5(a) i64 a##_0, i64 a##_1, i64 a##_2, i64 a##_3, i64 a##_4
#define OFFSET5(a, p) ((p).i0 * a##_0 + (p).i1 * a##_1 + (p).i2 * a##_2 + (p).i3 * a##_3 + (p).i4 * a##_4)

#define GRID_STRIDE(index, items) \
    for (i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x; index < (items); index += (i64)gridDim.x * blockDim.x)

struct Place {
    int n, c, d, h, w;
};

struct Place5 {
    i64 i0, i1, i2, i3, i4;
};

// The place of a row-major index in a box of five dimensions.
// Division of 64-bit integers is many times slower than of 32-bit ones, and nearly every index fits in 32 bits.
DEVICE Place5 place5(i64 index, i64 d1, i64 d2, i64 d3, i64 d4) {
    Place5 p;
    if (index <= 0x7fffffffLL) {
        // An extent above 32 bits leaves every such index where it is: the clipped extent does the same.
        const unsigned e1 = d1 > 0x7fffffffLL ? 0xffffffffu : (unsigned)d1, e2 = d2 > 0x7fffffffLL ? 0xffffffffu : (unsigned)d2;
        const unsigned e3 = d3 > 0x7fffffffLL ? 0xffffffffu : (unsigned)d3, e4 = d4 > 0x7fffffffLL ? 0xffffffffu : (unsigned)d4;
        unsigned rest = (unsigned)index;
        p.i4 = rest % e4;
        rest /= e4;
        p.i3 = rest % e3;
        rest /= e3;
        p.i2 = rest % e2;
        rest /= e2;
        p.i1 = rest % e1;
        p.i0 = rest / e1;
    } else {
        p.i4 = index % d4;
        index /= d4;
        p.i3 = index % d3;
        index /= d3;
        p.i2 = index % d2;
        index /= d2;
        p.i1 = index % d1;
        p.i0 = index / d1;
    }
    return p;
}

// A strided array over a box as an argument of for_each, and a contiguous one in row-major order.
#define BOX5(TYPE, a) Box5<TYPE>{a, a##_0, a##_1, a##_2, a##_3, a##_4}
#define FLAT5(TYPE, a) Box5<TYPE>{a, d1 * d2 * d3 * d4, d2 * d3 * d4, d3 * d4, d4, 1}

// Members are named for OFFSET5.
template <class T>
struct Box5 {
    T *a;
    i64 a_0, a_1, a_2, a_3, a_4;
};

// The widest access of the hardware, by one thread.
struct alignas(16) Vector {
    REAL at[16 / sizeof(REAL)];
};
#define WIDTH ((i64)(16 / sizeof(REAL)))

// The vector that an array holds at an address, to be changed and stored back.
template <class T>
struct Loaded {
    T *address;
    Vector vector;
};

DEVICE bool aligned(const REAL *a) { return (u64)a % sizeof(Vector) == 0; }
DEVICE void store(const Loaded<REAL> &loaded) { *(Vector *)loaded.address = loaded.vector; }
DEVICE void store(const Loaded<const REAL> &) {}  // the formula only reads this array

// Applies a formula to the elements of one vector of each array. All vectors are read before one is written, so arrays may coincide.
// The compiler drops the load of an array that the formula only writes.
template <class Formula, class... T>
DEVICE void apply_to_loaded(const Formula &formula, Loaded<T>... loaded) {
    for (int k = 0; k < WIDTH; k++) formula(loaded.vector.at[k]...);
    (store(loaded), ...);
}
template <class Formula, class... T>
DEVICE void apply_to_vectors(const Formula &formula, T *...arrays) {
    apply_to_loaded(formula, Loaded<T>{arrays, *(const Vector *)arrays}...);
}

// Applies a formula to every element of a box, given the same element of each array. Contiguous boxes, which merge_dims makes one
// dimension, need no division, and vectors where every array is aligned.
template <class Formula, class... T>
DEVICE void for_each(SHAPE5, const Formula &formula, Box5<T>... boxes) {
    if (d0 * d1 * d2 * d3 == 1 && (... && (boxes.a_4 == 1))) {
        const i64 vectors = (... && aligned(boxes.a)) ? d4 / WIDTH : 0, rest = d4 - vectors * WIDTH;
        GRID_STRIDE(vector, vectors) apply_to_vectors(formula, boxes.a + vector * WIDTH...);
        GRID_STRIDE(item, rest) formula(boxes.a[vectors * WIDTH + item]...);
    } else {
        GRID_STRIDE(item, d0 * d1 * d2 * d3 * d4) {
            const Place5 p = place5(item, d1, d2, d3, d4);
            formula(boxes.a[OFFSET5(boxes.a, p)]...);
        }
    }
}

// The place of a row-major index in an array [.., channels, depth, height, width] whose extents fit in 32 bits.
DEVICE Place place(i64 index, i64 channels, i64 depth, i64 height, i64 width) {
    const Place5 p = place5(index, channels, depth, height, width);
    return {(int)p.i0, (int)p.i1, (int)p.i2, (int)p.i3, (int)p.i4};
}

// The windows of `size` elements, one every `stride`, that hold place t (before clipping to the number of windows).
DEVICE int first_window(int t, int size, int stride) { return t < size ? 0 : (t - size) / stride + 1; }
DEVICE int last_window(int t, int stride) { return t < 0 ? -1 : t / stride; }

// The sum over a block of threads, always in the same order; every thread must call it, all get the result.
DEVICE double block_sum(double value, double *part) {
    part[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const double sum = part[0];
    __syncthreads();  // `part` may be written again only after everybody has read it
    return sum;
}

#endif
