/* The weighted sum of the clients' moves and the squared length of each, in one pass over the updates.

   Up to HAND clients are summed in float32, some at a time, and hands in float64. The order is that of the clients for
   every parameter. Squares are summed by lane in float32 within a block, the lanes and then the blocks in float64. So
   both have the bits of `sums.py`, however the columns are dealt to threads. */

#include <string.h>

enum { BLOCK = 8192, LANES = 8, MOST = 10, HAND = 50 };

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));

static inline __attribute__((always_inline)) void take(const int clients, long columns, long stride, const float *rows,
                                                       const float *sent, const float *weights, float *moves,
                                                       double *squares)
{
    vector part[MOST] = {{0}};
    long j = 0;
    for (; j + LANES <= columns; j += LANES) {
        vector from = *(const vector *)(sent + j), sum = *(vector *)(moves + j);
        for (int k = 0; k < clients; k++) {
            vector move = *(const vector *)(rows + k * stride + j) - from;
            part[k] += move * move;
            sum += weights[k] * move;
        }
        *(vector *)(moves + j) = sum;
    }
    for (int lane = 0; j < columns; j++, lane++)
        for (int k = 0; k < clients; k++) {
            float move = rows[k * stride + j] - sent[j];
            part[k][lane] += move * move;
            moves[j] += weights[k] * move;
        }
    for (int k = 0; k < clients; k++) {
        double total = 0;
        for (int lane = 0; lane < LANES; lane++) total += part[k][lane];
        squares[k] += total;
    }
}

/* `rows` are `stride` numbers apart; `squares` are added to; without `out` only they are wanted. */
void fused(long clients, long columns, long stride, const float *rows, const float *sent, const float *weights,
           float *out, double *squares)
{
    float moves[BLOCK];
    double sum[BLOCK];
    int many = clients > HAND;
    for (long start = 0; start < columns; start += BLOCK, rows += BLOCK, sent += BLOCK) {
        long width = columns - start < BLOCK ? columns - start : BLOCK;
        if (many) memset(sum, 0, sizeof sum);
        for (long k = 0, end; k < clients; k = end) {
            end = clients - k < HAND ? clients : k + HAND;
            memset(moves, 0, sizeof moves);
            for (; k + MOST <= end; k += MOST)
                take(MOST, width, stride, rows + k * stride, sent, weights + k, moves, squares + k);
            for (; k + 4 <= end; k += 4)
                take(4, width, stride, rows + k * stride, sent, weights + k, moves, squares + k);
            for (; k < end; k++) take(1, width, stride, rows + k * stride, sent, weights + k, moves, squares + k);
            if (many) for (long j = 0; j < width; j++) sum[j] += moves[j];
        }
        if (out) for (long j = 0; j < width; j++) out[start + j] = (float)(sent[j] + (many ? sum[j] : moves[j]));
    }
}
