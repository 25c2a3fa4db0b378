// Pooling. Both backward kernels gather: an element of dx adds up the gradients of the windows that contain it.
#include "common.cuh"

#define GEOMETRY \
    i64 images, i64 channels, i64 depth, i64 height, i64 width, i64 od, i64 oh, i64 ow, i64 kd, i64 kh, i64 kw, i64 sd, i64 sh, i64 sw, \
        i64 pd, i64 ph, i64 pw

// The inputs inside x that the window of output p reads, as loops over r.
#define FOR_READS(r, p) \
    for (r.d = begin(p.d, sd, pd); r.d < end(p.d, sd, pd, kd, depth); r.d++) \
        for (r.h = begin(p.h, sh, ph); r.h < end(p.h, sh, ph, kh, height); r.h++) \
            for (r.w = begin(p.w, sw, pw); r.w < end(p.w, sw, pw, kw, width); r.w++)

// The outputs whose windows contain input p, as loops over o.
#define FOR_WINDOWS(o, p) \
    for (o.d = first_window(p.d + (int)pd, (int)kd, (int)sd); o.d <= last_window(p.d + (int)pd, (int)sd) && o.d < (int)od; o.d++) \
        for (o.h = first_window(p.h + (int)ph, (int)kh, (int)sh); o.h <= last_window(p.h + (int)ph, (int)sh) && o.h < (int)oh; o.h++) \
            for (o.w = first_window(p.w + (int)pw, (int)kw, (int)sw); o.w <= last_window(p.w + (int)pw, (int)sw) && o.w < (int)ow; o.w++)

// The row-major offset of input r in the window of output o.
#define PLACE(o, r) \
    (((r.d - o.d * (int)sd + (int)pd) * (int)kh + r.h - o.h * (int)sh + (int)ph) * (int)kw + r.w - o.w * (int)sw + (int)pw)

DEVICE int begin(int out, i64 stride, i64 pad) {
    const int start = out * (int)stride - (int)pad;
    return start < 0 ? 0 : start;
}

DEVICE int end(int out, i64 stride, i64 pad, i64 size, i64 extent) {
    const int stop = out * (int)stride - (int)pad + (int)size;
    return stop < (int)extent ? stop : (int)extent;
}

// argmax is the row-major offset of the first maximum in the window. A NaN is the maximum, as in NumPy.
// A window completely outside x gets minus infinity and offset 0, which is also outside x, so it has no gradient.
KERNEL maxpool_forward(VIEW5(const REAL, x), VIEW5(REAL, out), VIEW5(short, argmax), GEOMETRY) {
    GRID_STRIDE(item, images * channels * od * oh * ow) {
        const Place p = place(item, channels, od, oh, ow);
        Place r = p;
        WIDE best = 0;
        int where = -1;
        FOR_READS(r, p) {
            const WIDE value = AT5(x, r);
            if (where < 0 || value > best || (value != value && best == best)) {
                best = value;
                where = PLACE(p, r);
            }
        }
        AT5(out, p) = where < 0 ? (WIDE)(-1.0 / 0.0) : best;
        AT5(argmax, p) = (short)(where < 0 ? 0 : where);
    }
}

KERNEL maxpool_backward(VIEW5(const REAL, dy), VIEW5(const short, argmax), VIEW5(REAL, dx), GEOMETRY) {
    GRID_STRIDE(item, images * channels * depth * height * width) {
        const Place p = place(item, channels, depth, height, width);
        Place o = p;
        WIDE sum = 0;
        FOR_WINDOWS(o, p) {
            if (AT5(argmax, o) == PLACE(o, p)) sum += AT5(dy, o);
        }
        AT5(dx, p) = sum;
    }
}

// Average pooling with one factor per output index of each axis, with which the caller decides how borders count.
KERNEL avgpool_forward(
    VIEW5(const REAL, x), const WIDE *__restrict__ scale_d, const WIDE *__restrict__ scale_h, const WIDE *__restrict__ scale_w,
    VIEW5(REAL, out), GEOMETRY) {
    GRID_STRIDE(item, images * channels * od * oh * ow) {
        const Place p = place(item, channels, od, oh, ow);
        Place r = p;
        WIDE sum = 0;
        FOR_READS(r, p) sum += AT5(x, r);
        AT5(out, p) = scale_d[p.d] * scale_h[p.h] * scale_w[p.w] * sum;
    }
}

KERNEL avgpool_backward(
    VIEW5(const REAL, dy), const WIDE *__restrict__ scale_d, const WIDE *__restrict__ scale_h, const WIDE *__restrict__ scale_w,
    VIEW5(REAL, dx), GEOMETRY) {
    GRID_STRIDE(item, images * channels * depth * height * width) {
        const Place p = place(item, channels, depth, height, width);
        Place o = p;
        WIDE sum = 0;
        FOR_WINDOWS(o, p) sum += scale_d[o.d] * scale_h[o.h] * scale_w[o.w] * AT5(dy, o);
        AT5(dx, p) = sum;
    }
}

#undef GEOMETRY
#undef FOR_READS
#undef FOR_WINDOWS
#undef PLACE
