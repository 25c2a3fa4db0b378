// Definitions for all kernel sources. The compiler's command line sets REAL, the type of arrays: -DREAL=float, -DREAL=double or
// -DREAL=Bfloat16. Formulas compute in WIDE, which is REAL or wider, and round where they store.
//
// Every kernel uses grid-stride loops, so any launch shape is correct, and sums in a fixed order, so all runs give the same bits: atomics
// only count thread blocks. Integer parameters have 64 bits and real parameters are double for any REAL, because CuPy passes Python's int and
// float this way; strides are in elements. The tests compile the same text as C++.
#ifndef HPCPAR_COMMON_CUH
#define HPCPAR_COMMON_CUH

typedef long long i64;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__

// The upper 16 bits of a float, rounded to nearest even; NaN stays NaN. CUDA's own type would need a header that NVRTC may not find, and
// gives the same bits.
struct Bfloat16 {
    unsigned short bits;
    Bfloat16() = default;
    DEVICE Bfloat16(float value) {
        const unsigned all = __float_as_uint(value);
        bits = (unsigned short)((value == value ? all + 0x7fffu + (all >> 16 & 1u) : all | 0x400000u) >> 16);
    }
    DEVICE operator float() const { return __uint_as_float((unsigned)bits << 16); }
};

template <class T>
struct WideOf {
    typedef T type;
};
template <>
struct WideOf<Bfloat16> {
    typedef float type;
};
typedef WideOf<REAL>::type WIDE;

// The largest thread block for kernels with sums over a block (a power of two).
#define MAX_THREADS 256

// A strided array [N, C, D, H, W] as kernel parameters, and one of its elements. An image is a volume with one plane. A SHARED5 may
// alias another parameter.
#define SHARED5(TYPE, a) TYPE *a, i64 a##_n, i64 a##_c, i64 a##_d, i64 a##_h, i64 a##_w
#define VIEW5(TYPE, a) TYPE *__restrict__ a, i64 a##_n, i64 a##_c, i64 a##_d, i64 a##_h, i64 a##_w
#define AT5(a, p) a[(p).n * a##_n + (p).c * a##_c + (p).d * a##_d + (p).h * a##_h + (p).w * a##_w]

// A strided matrix.
#define VIEW2(TYPE, a) TYPE *a, i64 a##_n, i64 a##_c
#define AT2(a, n, c) a[(n) * a##_n + (c) * a##_c]

// The extents of a five-dimensional box, the strides of an array over it, and the offset of position p in that array.
#define SHAPE5 i64 d0, i64 d1, i64 d2, i64 d3, i64 d4
#define STRIDES5(a) i64 a##_0, i64 a##_1, i64 a##_2, i64 a##_3, i64 a##_4
#define OFFSET5(a, p) ((p).i0 * a##_0 + (p).i1 * a##_1 + (p).i2 * a##_2 + (p).i3 * a##_3 + (p).i4 * a##_4)

// A number that changes between iterations: a value, or its address where that is not 0 (numbers.py).
#define NUMBER(a) double a, const double *a##_at
#define VALUE(a) (a##_at ? *a##_at : a)

#define GRID_STRIDE(index, items) \
    for (i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x; index < (items); index += (i64)gridDim.x * blockDim.x)

struct Place {
    int n, c, d, h, w;
};

struct Place5 {
    i64 i0, i1, i2, i3, i4;
};

// The position of a row-major index in a five-dimensional box.
// Division is many times slower with 64-bit integers than with 32-bit ones, and nearly every index fits in 32 bits.
DEVICE Place5 place5(i64 index, i64 d1, i64 d2, i64 d3, i64 d4) {
    Place5 p;
    if (index <= 0x7fffffffLL) {
        // A 32-bit index is below any larger extent, and also below the clipped extent, so clipping does not change the result.
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

// A strided array over a box as an argument of for_each, and a contiguous array in row-major order.
#define BOX5(TYPE, a) Box5<TYPE>{a, a##_0, a##_1, a##_2, a##_3, a##_4}
#define FLAT5(TYPE, a) Box5<TYPE>{a, d1 * d2 * d3 * d4, d2 * d3 * d4, d3 * d4, d4, 1}

// The names of the members suit OFFSET5.
template <class T>
struct Box5 {
    T *a;
    i64 a_0, a_1, a_2, a_3, a_4;
};

// The items of REAL that a thread's widest memory access has, and as many items of another type.
#define WIDTH ((i64)(16 / sizeof(REAL)))
template <class T>
struct alignas(16) Vector {
    T at[WIDTH];
};

// A vector of an array, loaded from an address, to be changed and stored back.
template <class T>
struct Loaded {
    T *address;
    Vector<T> vector;
};
template <class T>
struct Loaded<const T> {
    Vector<T> vector;
};

template <class T>
DEVICE bool aligned(const T *a) { return (u64)a % alignof(Vector<T>) == 0; }
template <class T>
DEVICE Loaded<T> load(T *a) { return {a, *(const Vector<T> *)a}; }
template <class T>
DEVICE Loaded<const T> load(const T *a) { return {*(const Vector<T> *)a}; }
template <class T>
DEVICE void store(const Loaded<T> &loaded) { *(Vector<T> *)loaded.address = loaded.vector; }
template <class T>
DEVICE void store(const Loaded<const T> &) {}  // the formula only reads this array

// Applies a formula to the elements of one vector of each array. All vectors are read before any is written, so arrays may coincide.
// If the formula only writes an array, the compiler drops the array's load, where it sees that all elements are written.
template <class Formula, class... T>
DEVICE void apply_to_loaded(const Formula &formula, Loaded<T>... loaded) {
#pragma unroll
    for (int k = 0; k < WIDTH; k++) formula(loaded.vector.at[k]...);
    (store(loaded), ...);
}
template <class Formula, class... T>
DEVICE void apply_to_vectors(const Formula &formula, T *...arrays) {
    apply_to_loaded(formula, load(arrays)...);
}

// Applies a formula to every element of a box; its arguments are the matching elements of all arrays. Contiguous boxes, which
// merge_dims reduces to one dimension, do not need divisions, and use vectors if all arrays are aligned.
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

// The position of a row-major index in an array [.., channels, depth, height, width] whose extents fit in 32 bits.
DEVICE Place place(i64 index, i64 channels, i64 depth, i64 height, i64 width) {
    const Place5 p = place5(index, channels, depth, height, width);
    return {(int)p.i0, (int)p.i1, (int)p.i2, (int)p.i3, (int)p.i4};
}

// The first and last of the windows, of `size` elements each at distance `stride`, that contain position t (not clipped to their number).
DEVICE int first_window(int t, int size, int stride) { return t < size ? 0 : (t - size) / stride + 1; }
DEVICE int last_window(int t, int stride) { return t < 0 ? -1 : t / stride; }

// The sum over a thread block, in a fixed order. All threads must call it, and all get the result.
DEVICE double block_sum(double value, double *part) {
    part[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const double sum = part[0];
    __syncthreads();  // all threads must read part[0] before the caller reuses `part`
    return sum;
}

#endif
