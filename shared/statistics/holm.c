#include "shared/statistics/holm.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = **(double *const *)a;
    const double y = **(double *const *)b;

    return (x > y) - (x < y);
}

enum evq_status evq_holm_correct(double *p, size_t count, struct evq_error *err)
{
    size_t tests = 0;
    double largest = 0.0;
    double **order = calloc(count > 0 ? count : 1, sizeof *order);

    if (order == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu p-values", count);
    }
    for (size_t i = 0; i < count; i++) {
        if (!isnan(p[i])) {
            order[tests++] = &p[i];
        }
    }
    qsort(order, tests, sizeof(double *), by_value);
    for (size_t i = 0; i < tests; i++) {
        const double corrected = fmin(1.0, (double)(tests - i) * *order[i]);
        largest = fmax(largest, corrected);
        *order[i] = largest;
    }
    free(order);
    return EVQ_OK;
}
