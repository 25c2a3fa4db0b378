// Batch normalization per channel. Sums and statistics are double for any REAL.
#include "common.cuh"
#include "activation.cuh"

#define EXTENTS i64 images, i64 channels, i64 depth, i64 height, i64 width, i64 parts

// The items of a channel are divided into `parts` shares. Thread blocks along x process shares, along y channels.
#define FOR_SHARES \
    for (i64 c = blockIdx.y; c < channels; c += gridDim.y) \
        for (i64 part = blockIdx.x; part < parts; part += gridDim.x)
#define FOR_SHARE(...) for_share(c, part, parts, images, depth, height, width, __VA_ARGS__)

// A SHARED5 as an argument of FOR_SHARE. The names of its members suit AT5.
#define ARRAY5(TYPE, a) Array5<TYPE>{a, a##_n, a##_c, a##_d, a##_h, a##_w}
template <class T>
struct Array5 {
    T *a;
    i64 a_n, a_c, a_d, a_h, a_w;
};

template <class T>
DEVICE bool aligned_lines(const Array5<T> &x) { return aligned(x.a) && x.a_n % WIDTH == 0 && x.a_c % WIDTH == 0; }

// The positions (n, w) of a thread's items in lines of `width` items. They advance by a constant, so no item needs a division.
struct Walk {
    const i64 width, n_step, w_step;
    i64 item, n, w;

    DEVICE Walk(i64 first, i64 width)
        : width(width), n_step(blockDim.x / width), w_step(blockDim.x % width), item(first), n(first / width), w(first % width) {}
    DEVICE void next() {
        item += blockDim.x;
        n += n_step;
        w += w_step;
        if (w >= width) {
            w -= width;
            n++;
        }
    }
};

// Applies a formula to every element of a share; its arguments are the matching elements of all arrays. The caller merges contiguous
// pixels into lines. The order depends on extents and strides but not on alignment, so sums do not depend on addresses.
template <class Formula, class... T>
DEVICE void for_share(
    i64 c, i64 part, i64 parts, i64 images, i64 depth, i64 height, i64 width, const Formula &formula, Array5<T>... arrays) {
    const bool lines = depth * height == 1, whole = lines && width % WIDTH == 0 && (... && (arrays.a_w == 1));
    const i64 unit = whole ? WIDTH : 1, items = images * depth * height * (width / unit);
    const i64 first = part * items / parts + threadIdx.x, end = (part + 1) * items / parts;
    if (whole && (... && aligned_lines(arrays))) {
        // Strides are in vectors: with strides in elements, the compiler would lose the alignment and split the stores.
        for (Walk at(first, width / WIDTH); at.item < end; at.next())
            apply_to_vectors(formula, arrays.a + (at.n * (arrays.a_n / WIDTH) + c * (arrays.a_c / WIDTH) + at.w) * WIDTH...);
    } else if (lines) {
        for (Walk at(first, width / unit); at.item < end; at.next())
            for (i64 w = at.w * unit; w < (at.w + 1) * unit; w++)
                formula(arrays.a[at.n * arrays.a_n + c * arrays.a_c + w * arrays.a_w]...);
    } else {
        for (i64 item = first; item < end; item += blockDim.x) {
            Place p = place(item, 1, depth, height, width);
            p.c = (int)c;
            formula(AT5(arrays.a, p)...);
        }
    }
}

// Shares count themselves in `done`, so the last one of a channel can add the sums of all, in a fixed order. `done` is 0 before and after.
#define SUMS double *shares, unsigned *done

// The sums of a channel from this share's sums: all threads get them in its last share, which returns true. Without more than one share,
// `shares` and `done` are not used.
DEVICE bool channel_sums(i64 c, i64 part, i64 parts, double &sum, double &products, double *shared, SUMS) {
    sum = block_sum(sum, shared);
    products = block_sum(products, shared);
    if (parts == 1) return true;
    __shared__ bool last;
    volatile double *own = shares + c * parts * 2;  // volatile: other blocks write it during this kernel
    if (threadIdx.x == 0) {
        own[part * 2] = sum;
        own[part * 2 + 1] = products;
        __threadfence();
        last = atomicInc(done + c, (unsigned)parts - 1) == (unsigned)parts - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return false;
    sum = products = 0;
    for (i64 p = threadIdx.x; p < parts; p += blockDim.x) {
        sum += own[p * 2];
        products += own[p * 2 + 1];
    }
    sum = block_sum(sum, shared);
    products = block_sum(products, shared);
    return true;
}

// out[c] = sum of x, in double and rounded once.
KERNEL sum_samples(SHARED5(const REAL, x), WIDE *out, SUMS, EXTENTS) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        double sum = 0, none = 0;
        const auto formula = [&](const REAL &x) { sum += (double)x; };
        FOR_SHARE(formula, ARRAY5(const REAL, x));
        if (channel_sums(c, part, parts, sum, none, shared, shares, done) && threadIdx.x == 0) out[c] = (WIDE)sum;
    }
}

// out[c] = (sum of x, sum of x * x); in the next kernel (sum of dy, sum of dy * (x - mean) * inv_std).
KERNEL channel_moments(SHARED5(const REAL, x), VIEW2(double, out), SUMS, EXTENTS) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        double sum = 0, squares = 0;
        const auto formula = [&](const REAL &x) {
            const double value = (double)x;
            sum += value;
            squares += value * value;
        };
        FOR_SHARE(formula, ARRAY5(const REAL, x));
        if (channel_sums(c, part, parts, sum, squares, shared, shares, done) && threadIdx.x == 0) {
            AT2(out, c, 0) = sum;
            AT2(out, c, 1) = squares;
        }
    }
}

KERNEL channel_moments_backward(
    SHARED5(const REAL, x), SHARED5(const REAL, dy), const double *mean, const double *inv_std, VIEW2(double, out), SUMS, EXTENTS) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        const double center = mean[c];
        double sum = 0, products = 0;
        const auto formula = [&](const REAL &x, const REAL &dy) {
            const double gradient = (double)dy;
            sum += gradient;
            products += gradient * ((double)x - center);
        };
        FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(const REAL, dy));
        if (channel_sums(c, part, parts, sum, products, shared, shares, done) && threadIdx.x == 0) {
            AT2(out, c, 0) = sum;
            AT2(out, c, 1) = products * inv_std[c];
        }
    }
}

// Statistics of a batch: if `update`, `running` [2, channels] moves toward mean and unbiased variance.
#define STATISTICS double *mean, double *inv_std, VIEW2(WIDE, running), i64 update, double count, double eps, double momentum

// Mean and 1 / sqrt(variance + eps) of a channel from its sums. One thread `writes` them.
DEVICE void find_statistics(i64 c, double sum, double squares, bool writes, double &center, double &factor, STATISTICS) {
    center = sum / count;
    const double difference = squares / count - center * center;
    // Rounding errors could make the variance of a constant channel negative. A NaN stays.
    const double variance = difference < 0 ? 0 : difference;
    factor = 1.0 / sqrt(variance + eps);
    if (!writes) return;
    mean[c] = center;
    inv_std[c] = factor;
    if (update) {
        const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
        AT2(running, 0, c) += (WIDE)(momentum * (center - (double)AT2(running, 0, c)));
        AT2(running, 1, c) += (WIDE)(momentum * (unbiased - (double)AT2(running, 1, c)));
    }
}
#define FIND_STATISTICS(...) \
    find_statistics(__VA_ARGS__, mean, inv_std, running, running_n, running_c, update, count, eps, momentum)

KERNEL batchnorm_statistics(VIEW2(const double, moments), STATISTICS, i64 channels) {
    GRID_STRIDE(c, channels) {
        double center, factor;
        FIND_STATISTICS(c, AT2(moments, c, 0), AT2(moments, c, 1), true, center, factor);
    }
}

// sums = moments * w, and if `write`, the gradients of bias and weight.
KERNEL batchnorm_gradients(const double *moments, const WIDE *w, double *sums, WIDE *db, WIDE *dw, i64 write, i64 channels) {
    GRID_STRIDE(c, channels) {
        sums[c * 2] = moments[c * 2] * (double)w[c];
        sums[c * 2 + 1] = moments[c * 2 + 1] * (double)w[c];
        if (write) {
            db[c] = (WIDE)moments[c * 2];
            dw[c] = (WIDE)moments[c * 2 + 1];
        }
    }
}

KERNEL batchnorm_running(VIEW2(const WIDE, running), double *mean, double *inv_std, i64 channels, double eps) {
    GRID_STRIDE(c, channels) {
        mean[c] = (double)AT2(running, 0, c);
        inv_std[c] = 1.0 / sqrt((double)AT2(running, 1, c) + eps);
    }
}

KERNEL batchnorm_forward(
    SHARED5(const REAL, x), SHARED5(REAL, out), const double *mean, const double *inv_std, const WIDE *w, const WIDE *b, EXTENTS) {
    FOR_SHARES {
        const double scale = inv_std[c] * (double)w[c];
        const WIDE factor = (WIDE)scale, addend = (WIDE)((double)b[c] - mean[c] * scale);
        const auto formula = [=](const REAL &x, REAL &out) { out = x * factor + addend; };
        FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(REAL, out));
    }
}

KERNEL batchnorm_backward(
    SHARED5(const REAL, x), SHARED5(const REAL, dy), SHARED5(REAL, dx), const double *mean, const double *inv_std, const WIDE *w,
    VIEW2(const double, sums), double count, EXTENTS) {
    FOR_SHARES {
        // dx = dy_factor * dy + x_factor * x + addend
        const double slope = -inv_std[c] * inv_std[c] * AT2(sums, c, 1) / count;
        const WIDE dy_factor = (WIDE)(inv_std[c] * (double)w[c]), x_factor = (WIDE)slope;
        const WIDE addend = (WIDE)(-inv_std[c] * AT2(sums, c, 0) / count - slope * mean[c]);
        const auto formula = [=](const REAL &x, const REAL &dy, REAL &dx) { dx = dy_factor * dy + (x_factor * x + addend); };
        FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(const REAL, dy), ARRAY5(REAL, dx));
    }
}

// batchnorm_forward and what is before and after it: the statistics come from x if `source` is 2 (with parts = 1), from `moments` if it is 1,
// and if it is 0, mean and inv_std have them. With y = batchnorm_forward's result, out = f(y) if `second` is 0, f(y + other) if it is 1; if it
// is 2, out = f(y) and other = y. f is an activation, or the identity if `function` is negative.
KERNEL batchnorm_joint_forward(
    SHARED5(const REAL, x), SHARED5(REAL, other), SHARED5(REAL, out), const double *moments, STATISTICS, const WIDE *w, const WIDE *b,
    i64 source, i64 second, double function, double p, double q, EXTENTS) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        double center, inverse;
        if (source == 0) {
            center = mean[c];
            inverse = inv_std[c];
        } else {
            double sum = 0, squares = 0;
            if (source == 2) {
                const auto formula = [&](const REAL &x) {
                    const double value = (double)x;
                    sum += value;
                    squares += value * value;
                };
                FOR_SHARE(formula, ARRAY5(const REAL, x));
                channel_sums(c, 0, 1, sum, squares, shared, nullptr, nullptr);
            } else {
                sum = moments[c * 2];
                squares = moments[c * 2 + 1];
            }
            FIND_STATISTICS(c, sum, squares, part == 0 && threadIdx.x == 0, center, inverse);
        }
        const double scale = inverse * (double)w[c];
        const WIDE factor = (WIDE)scale, addend = (WIDE)((double)b[c] - center * scale);
        const auto f = [=](REAL y) -> WIDE { return function < 0 ? (WIDE)y : act_value((int)function, (WIDE)p, (WIDE)q, y); };
        if (second == 0) {
            const auto formula = [=](const REAL &x, REAL &out) { out = f(x * factor + addend); };
            FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(REAL, out));
        } else if (second == 1) {
            const auto formula = [=](const REAL &x, const REAL &other, REAL &out) { out = f((REAL)(x * factor + addend) + other); };
            FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(const REAL, other), ARRAY5(REAL, out));
        } else {
            const auto formula = [=](const REAL &x, REAL &other, REAL &out) {
                const REAL y = x * factor + addend;
                other = y;
                out = f(y);
            };
            FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(REAL, other), ARRAY5(REAL, out));
        }
    }
}

// What is before batchnorm_backward, and that itself. If `sums`, moments = those of channel_moments_backward for the gradient g: dy if `first`
// is 0; f'(kept) * dy if it is 1, and then g is written; f'(kept) * (dy + arriving) if it is 2, and then g and copy are written. f' is 1 if
// `function` is negative. If `rest`, batchnorm_gradients and batchnorm_backward follow (with parts = 1, or without `sums`).
KERNEL batchnorm_joint_backward(
    SHARED5(const REAL, x), SHARED5(const REAL, dy), SHARED5(const REAL, kept), SHARED5(const REAL, arriving), SHARED5(REAL, g),
    SHARED5(REAL, copy), SHARED5(REAL, dx), const double *mean, const double *inv_std, const WIDE *w, double *moments, WIDE *db, WIDE *dw,
    i64 write, double count, i64 sums, i64 first, i64 adds, i64 rest, double function, double p, double q, SUMS, EXTENTS) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        const double center = mean[c], inverse = inv_std[c];
        double sum = 0, products = 0;
        if (sums) {
            const auto add = [&](const REAL &x, const REAL &g) {
                const double gradient = (double)g;
                sum += gradient;
                products += gradient * ((double)x - center);
            };
            const auto slope = [=](REAL kept, REAL dy) -> WIDE {
                return function < 0 ? (WIDE)dy : act_gradient((int)function, (WIDE)p, (WIDE)q, kept, dy);
            };
            if (first == 0) {
                FOR_SHARE(add, ARRAY5(const REAL, x), ARRAY5(const REAL, dy));
            } else if (first == 1) {
                const auto formula = [&](const REAL &x, const REAL &dy, const REAL &kept, REAL &g) {
                    const REAL gradient = slope(kept, dy);
                    g = gradient;
                    add(x, gradient);
                };
                FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(const REAL, dy), ARRAY5(const REAL, kept), ARRAY5(REAL, g));
            } else {
                const auto formula = [&](const REAL &x, const REAL &dy, const REAL &kept, const REAL &arriving, REAL &g, REAL &copy) {
                    const REAL gradient = slope(kept, adds ? (REAL)(dy + arriving) : dy);
                    g = gradient;
                    copy = gradient;
                    add(x, gradient);
                };
                FOR_SHARE(
                    formula, ARRAY5(const REAL, x), ARRAY5(const REAL, dy), ARRAY5(const REAL, kept), ARRAY5(const REAL, arriving),
                    ARRAY5(REAL, g), ARRAY5(REAL, copy));
            }
            const bool complete = channel_sums(c, part, parts, sum, products, shared, shares, done);
            products *= inverse;
            if (complete && threadIdx.x == 0) {
                moments[c * 2] = sum;
                moments[c * 2 + 1] = products;
            }
        } else {
            sum = moments[c * 2];
            products = moments[c * 2 + 1];
        }
        if (!rest) continue;
        if (write && part == 0 && threadIdx.x == 0) {
            db[c] = (WIDE)sum;
            dw[c] = (WIDE)products;
        }
        const auto slope = -inverse * inverse * (products * (double)w[c]) / count;
        const WIDE dy_factor = (WIDE)(inverse * (double)w[c]), x_factor = (WIDE)slope;
        const WIDE addend = (WIDE)(-inverse * (sum * (double)w[c]) / count - slope * center);
        const auto formula = [=](const REAL &x, const REAL &g, REAL &dx) { dx = dy_factor * g + (x_factor * x + addend); };
        FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(const REAL, g), ARRAY5(REAL, dx));
    }
}

#undef SUMS
#undef STATISTICS
#undef FIND_STATISTICS
#undef EXTENTS
#undef FOR_SHARES
#undef FOR_SHARE
#undef ARRAY5
