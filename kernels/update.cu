// Weight updates in one pass over strided boxes of up to five dimensions, such as parts of a weight matrix.
#include "common.cuh"

// The rule of One Weird Trick.
struct SgdRule {
    WIDE rate, momentum, decay;
    DEVICE void operator()(REAL &w, REAL &velocity, const REAL &grad) const {
        const WIDE weight = w, v = momentum * velocity - rate * (grad + decay * weight);
        velocity = v;
        w = weight + v;
    }
};

// The same without momentum.
struct PlainRule {
    WIDE rate, decay;
    DEVICE void operator()(REAL &w, const REAL &grad) const { w = w - rate * (grad + decay * w); }
};

// Adam. `rate` and `spread` include bias correction: rate / (1 - beta1 ** step) and 1 / sqrt(1 - beta2 ** step). AdamW keeps the part
// `kept` of a weight, other than 1.
struct AdamRule {
    WIDE rate, spread, beta1, beta2, rest1, rest2, eps, decay, kept;
    DEVICE void operator()(REAL &w, REAL &first, REAL &second, const REAL &grad) const {
        const WIDE weight = kept * w, g = grad + decay * weight;
        const WIDE m = beta1 * first + rest1 * g, v = beta2 * second + rest2 * g * g;
        first = m;
        second = v;
        w = weight - rate * m / (sqrt(v) * spread + eps);
    }
};

#define SGD_RULE SgdRule{(WIDE)VALUE(rate), (WIDE)momentum, (WIDE)decay}
#define PLAIN_RULE PlainRule{(WIDE)VALUE(rate), (WIDE)decay}
#define ADAM_NUMBERS NUMBER(rate), NUMBER(step), double beta1, double beta2, double eps, double decay, double decoupled
#define ADAM_RULE \
    AdamRule{ \
        (WIDE)(VALUE(rate) / (1 - pow(beta1, VALUE(step)))), (WIDE)(1 / sqrt(1 - pow(beta2, VALUE(step)))), (WIDE)beta1, (WIDE)beta2, \
        (WIDE)(1 - beta1), (WIDE)(1 - beta2), (WIDE)eps, (WIDE)decay, (WIDE)(1 - VALUE(rate) * decoupled)}

KERNEL sgd_update(
    REAL *w, REAL *velocity, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(velocity), STRIDES5(grad), NUMBER(rate), double momentum,
    double decay) {
    for_each(d0, d1, d2, d3, d4, SGD_RULE, BOX5(REAL, w), BOX5(REAL, velocity), BOX5(const REAL, grad));
}

KERNEL plain_update(REAL *w, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(grad), NUMBER(rate), double decay) {
    for_each(d0, d1, d2, d3, d4, PLAIN_RULE, BOX5(REAL, w), BOX5(const REAL, grad));
}

KERNEL adam_update(
    REAL *w, REAL *first, REAL *second, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(first), STRIDES5(second), STRIDES5(grad),
    ADAM_NUMBERS) {
    for_each(d0, d1, d2, d3, d4, ADAM_RULE, BOX5(REAL, w), BOX5(REAL, first), BOX5(REAL, second), BOX5(const REAL, grad));
}

// Updates of many arrays. Row i of `boxes` has five extents, and the address and five strides of each array of update i. A thread block
// processes pieces (update, first item) of PIECE items.
#define PIECE ((i64)1 << 14)
#define BOXES const i64 *boxes, const i64 *pieces, i64 count

template <class T>
DEVICE Box5<T> box_of(const i64 *row, int array) {
    const i64 *words = row + 5 + 6 * array;
    return {(T *)words[0], words[1], words[2], words[3], words[4], words[5]};
}

// Applies a rule to the items of a piece. A piece begins at a multiple of WIDTH.
template <class Rule, class... T>
DEVICE void for_piece(const i64 *row, i64 first, const Rule &rule, Box5<T>... arrays) {
    const i64 d1 = row[1], d2 = row[2], d3 = row[3], d4 = row[4], items = row[0] * d1 * d2 * d3 * d4;
    const i64 end = first + PIECE < items ? first + PIECE : items;
    if (items == d4 && (... && (arrays.a_4 == 1))) {
        const i64 vectors = (... && aligned(arrays.a)) ? end / WIDTH : first / WIDTH;
        for (i64 v = first / WIDTH + threadIdx.x; v < vectors; v += blockDim.x) apply_to_vectors(rule, arrays.a + v * WIDTH...);
        for (i64 item = vectors * WIDTH + threadIdx.x; item < end; item += blockDim.x) rule(arrays.a[item]...);
    } else {
        for (i64 item = first + threadIdx.x; item < end; item += blockDim.x) {
            const Place5 p = place5(item, d1, d2, d3, d4);
            rule(arrays.a[OFFSET5(arrays.a, p)]...);
        }
    }
}

#define FOR_PIECES(row, ...) \
    for (i64 b = blockIdx.x; b < count; b += gridDim.x) for_piece(row, pieces[2 * b + 1], __VA_ARGS__)

KERNEL sgd_updates(BOXES, NUMBER(rate), double momentum, double decay) {
#define ROW (boxes + pieces[2 * b] * 23)
    FOR_PIECES(ROW, SGD_RULE, box_of<REAL>(ROW, 0), box_of<REAL>(ROW, 1), box_of<const REAL>(ROW, 2));
#undef ROW
}

KERNEL plain_updates(BOXES, NUMBER(rate), double decay) {
#define ROW (boxes + pieces[2 * b] * 17)
    FOR_PIECES(ROW, PLAIN_RULE, box_of<REAL>(ROW, 0), box_of<const REAL>(ROW, 1));
#undef ROW
}

KERNEL adam_updates(BOXES, ADAM_NUMBERS) {
#define ROW (boxes + pieces[2 * b] * 29)
    FOR_PIECES(
        ROW, ADAM_RULE, box_of<REAL>(ROW, 0), box_of<REAL>(ROW, 1), box_of<REAL>(ROW, 2), box_of<const REAL>(ROW, 3));
#undef ROW
}

#undef SGD_RULE
#undef PLAIN_RULE
#undef ADAM_RULE
#undef ADAM_NUMBERS
#undef PIECE
#undef BOXES
#undef FOR_PIECES
