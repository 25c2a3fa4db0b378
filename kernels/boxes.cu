// Kernels over strided boxes of up to five dimensions: packing of messages, copies and sums, dropout masks, and the search for values that are not finite.
#include "common.cuh"

KERNEL pack(const REAL *box, SHAPE5, STRIDES5(box), REAL *flat) {
    const auto formula = [](const REAL &box, REAL &flat) { flat = box; };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const REAL, box), FLAT5(REAL, flat));
}

KERNEL unpack(const REAL *flat, SHAPE5, STRIDES5(box), REAL *box) {
    const auto formula = [](const REAL &flat, REAL &box) { box = flat; };
    for_each(d0, d1, d2, d3, d4, formula, FLAT5(const REAL, flat), BOX5(REAL, box));
}

KERNEL unpack_add(const REAL *flat, SHAPE5, STRIDES5(box), REAL *box) {
    const auto formula = [](const REAL &flat, REAL &box) { box = box + flat; };
    for_each(d0, d1, d2, d3, d4, formula, FLAT5(const REAL, flat), BOX5(REAL, box));
}

KERNEL copy_box(const REAL *x, REAL *out, SHAPE5, STRIDES5(x), STRIDES5(out)) {
    const auto formula = [](const REAL &x, REAL &out) { out = x; };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const REAL, x), BOX5(REAL, out));
}

// Conversions between REAL and WIDE.
KERNEL widen_box(const REAL *x, WIDE *out, SHAPE5, STRIDES5(x), STRIDES5(out)) {
    const auto formula = [](const REAL &x, WIDE &out) { out = x; };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const REAL, x), BOX5(WIDE, out));
}

KERNEL round_box(const WIDE *x, REAL *out, SHAPE5, STRIDES5(x), STRIDES5(out)) {
    const auto formula = [](const WIDE &x, REAL &out) { out = x; };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const WIDE, x), BOX5(REAL, out));
}

// out may be x or y.
KERNEL add_boxes(const REAL *x, const REAL *y, REAL *out, SHAPE5, STRIDES5(x), STRIDES5(y), STRIDES5(out)) {
    const auto formula = [](const REAL &x, const REAL &y, REAL &out) { out = x + y; };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const REAL, x), BOX5(const REAL, y), BOX5(REAL, out));
}

// Keeps the element at global index g if splitmix64's g-th output from `key` is >= rate, with its top 53 bits as a number in [0, 1).
// global_0 .. global_4 are the strides of the box in the global tensor; `first` is the global index of its first element.
KERNEL dropout_mask(REAL *out, SHAPE5, STRIDES5(out), STRIDES5(global), i64 first, u64 key, const u64 *key_at, double rate, double kept) {
    GRID_STRIDE(item, d0 * d1 * d2 * d3 * d4) {
        const Place5 p = place5(item, d1, d2, d3, d4);
        u64 z = VALUE(key) + (u64)(1 + first + OFFSET5(global, p)) * 0x9E3779B97F4A7C15ULL;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        z ^= z >> 31;
        const double uniform = (double)(z >> 11) * (1.0 / 9007199254740992.0);
        out[OFFSET5(out, p)] = uniform >= rate ? (REAL)kept : (REAL)0;
    }
}

// found[b] = 1 if box b has a NaN or an infinity, else 0; 0 for all boxes if `finite`. One thread block per box. A box has 11 words:
// its address, five extents and five strides.
KERNEL nonfinite_boxes(const bool *finite, const i64 *boxes, i64 *found, i64 count) {
    __shared__ double part[MAX_THREADS];
    for (i64 b = blockIdx.x; b < count; b += gridDim.x) {
        const i64 *box = boxes + b * 11;
        const REAL *values = (const REAL *)box[0];
        const i64 items = *finite ? 0 : box[1] * box[2] * box[3] * box[4] * box[5];
        double bad = 0;
        for (i64 item = threadIdx.x; item < items; item += blockDim.x) {
            const Place5 p = place5(item, box[2], box[3], box[4], box[5]);
            const WIDE value = values[p.i0 * box[6] + p.i1 * box[7] + p.i2 * box[8] + p.i3 * box[9] + p.i4 * box[10]];
            if (value - value != 0) bad = 1;
        }
        bad = block_sum(bad, part);
        if (threadIdx.x == 0) found[b] = bad > 0;
    }
}
