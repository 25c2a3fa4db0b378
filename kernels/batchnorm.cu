// Batch normalization per channel. Sums and statistics are double for any REAL.
#include "common.cuh"

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

// out[c][part] = (sum of x, sum of x * x), which the caller adds up; in the next kernel (sum of dy, sum of dy * (x - mean) * inv_std).
KERNEL channel_moments(SHARED5(const REAL, x), double *out, EXTENTS) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        double sum = 0, squares = 0;
        const auto formula = [&](const REAL &x) {
            const double value = (double)x;
            sum += value;
            squares += value * value;
        };
        FOR_SHARE(formula, ARRAY5(const REAL, x));
        sum = block_sum(sum, shared);
        squares = block_sum(squares, shared);
        if (threadIdx.x == 0) {
            out[(c * parts + part) * 2] = sum;
            out[(c * parts + part) * 2 + 1] = squares;
        }
    }
}

KERNEL channel_moments_backward(
    SHARED5(const REAL, x), SHARED5(const REAL, dy), const double *mean, const double *inv_std, double *out, EXTENTS) {
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
        sum = block_sum(sum, shared);
        products = block_sum(products, shared);
        if (threadIdx.x == 0) {
            out[(c * parts + part) * 2] = sum;
            out[(c * parts + part) * 2 + 1] = products * inv_std[c];
        }
    }
}

// Mean and 1 / sqrt(variance + eps) from sums. If `update`, `running` [2, channels] moves toward mean and unbiased variance.
KERNEL batchnorm_statistics(
    VIEW2(const double, moments), double *mean, double *inv_std, VIEW2(REAL, running), i64 update, i64 channels, double count, double eps,
    double momentum) {
    GRID_STRIDE(c, channels) {
        const double m = AT2(moments, c, 0) / count, difference = AT2(moments, c, 1) / count - m * m;
        // Rounding errors could make the variance of a constant channel negative. A NaN stays.
        const double variance = difference < 0 ? 0 : difference;
        mean[c] = m;
        inv_std[c] = 1.0 / sqrt(variance + eps);
        if (update) {
            const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
            AT2(running, 0, c) += (REAL)(momentum * (m - (double)AT2(running, 0, c)));
            AT2(running, 1, c) += (REAL)(momentum * (unbiased - (double)AT2(running, 1, c)));
        }
    }
}

// out[c] = the sum of a channel's shares, in order.
KERNEL channel_sums(const double *shares, VIEW2(double, out), i64 channels, i64 parts) {
    GRID_STRIDE(c, channels) {
        double sum = shares[c * parts * 2], products = shares[c * parts * 2 + 1];
        for (i64 part = 1; part < parts; part++) {
            sum += shares[(c * parts + part) * 2];
            products += shares[(c * parts + part) * 2 + 1];
        }
        AT2(out, c, 0) = sum;
        AT2(out, c, 1) = products;
    }
}

// sums = moments * w, and if `write`, the gradients of bias and weight.
KERNEL batchnorm_gradients(const double *moments, const REAL *w, double *sums, REAL *db, REAL *dw, i64 write, i64 channels) {
    GRID_STRIDE(c, channels) {
        sums[c * 2] = moments[c * 2] * (double)w[c];
        sums[c * 2 + 1] = moments[c * 2 + 1] * (double)w[c];
        if (write) {
            db[c] = (REAL)moments[c * 2];
            dw[c] = (REAL)moments[c * 2 + 1];
        }
    }
}

KERNEL batchnorm_running(VIEW2(const REAL, running), double *mean, double *inv_std, i64 channels, double eps) {
    GRID_STRIDE(c, channels) {
        mean[c] = (double)AT2(running, 0, c);
        inv_std[c] = 1.0 / sqrt((double)AT2(running, 1, c) + eps);
    }
}

KERNEL batchnorm_forward(
    SHARED5(const REAL, x), SHARED5(REAL, out), const double *mean, const double *inv_std, const REAL *w, const REAL *b, EXTENTS) {
    FOR_SHARES {
        const double scale = inv_std[c] * (double)w[c];
        const REAL factor = (REAL)scale, addend = (REAL)((double)b[c] - mean[c] * scale);
        const auto formula = [=](const REAL &x, REAL &out) { out = x * factor + addend; };
        FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(REAL, out));
    }
}

KERNEL batchnorm_backward(
    SHARED5(const REAL, x), SHARED5(const REAL, dy), SHARED5(REAL, dx), const double *mean, const double *inv_std, const REAL *w,
    VIEW2(const double, sums), double count, EXTENTS) {
    FOR_SHARES {
        // dx = dy_factor * dy + x_factor * x + addend
        const double slope = -inv_std[c] * inv_std[c] * AT2(sums, c, 1) / count;
        const REAL dy_factor = (REAL)(inv_std[c] * (double)w[c]), x_factor = (REAL)slope;
        const REAL addend = (REAL)(-inv_std[c] * AT2(sums, c, 0) / count - slope * mean[c]);
        const auto formula = [=](const REAL &x, const REAL &dy, REAL &dx) { dx = dy_factor * dy + (x_factor * x + addend); };
        FOR_SHARE(formula, ARRAY5(const REAL, x), ARRAY5(const REAL, dy), ARRAY5(REAL, dx));
    }
}

#undef EXTENTS
#undef FOR_SHARES
#undef FOR_SHARE
#undef ARRAY5
