/* What `compare` says: a line for each group, and of what is wrong enough to find the mistake. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/compare.h"

#define RANGES_MAX  6
#define COLUMNS_MAX 512  // Looked at, each by a batch of its own.
#define FAR         1e4f // A target that no value comes near.

void compare_tell(const char *group, int cases, int faults, int refused, double worst)
{
    (void)printf("%s %-58s %4d cases, %d refused, apart by at most %.3g\n",
                 faults == 0 ? "ok  " : "FAIL", group, cases, refused, worst);
    (void)printf("json {\"test\": \"%s\", \"cases\": %d, \"failed\": %d, \"refused\": %d}\n", group,
                 cases, faults, refused);
}

double compare_row(const struct evq_row_result *result, int32_t n)
{
    return sqrt(result->loss / n);
}

double compare_worse(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

bool compare_lost(const struct side *side)
{
    struct evq_error err = {0};

    if (side->ops->settle(side->state, &err) == EVQ_OK) {
        return false;
    }
    (void)printf("FAIL the device is lost to this process (%s): what is left of it was not run\n",
                 err.message);
    return true;
}

void compare_losses(const struct evq_row_result *cpu, const struct evq_row_result *device,
                    int32_t count, double tolerance)
{
    int32_t wrong = 0;
    int32_t broken = 0;
    int32_t first = -1;

    for (int32_t i = 0; i < count; i++) {
        const double apart = fabs(cpu[i].loss - device[i].loss);
        const bool good = apart <= tolerance * (1.0 + fabs(cpu[i].loss)) ||
                          (isnan(cpu[i].loss) && isnan(device[i].loss));
        wrong += !good;
        broken += isnan(device[i].loss);
        first = !good && first < 0 ? i : first;
    }
    (void)printf("     %d of %d losses wrong, %d no numbers", (int)wrong, (int)count, (int)broken);
    if (first >= 0) {
        (void)printf("; number %d: expected %.6g (predicts %d), got %.6g (%d)", (int)first,
                     cpu[first].loss, (int)cpu[first].predicted, device[first].loss,
                     (int)device[first].predicted);
    }
    (void)printf("\n");
}

static void print_ranges(const char *what, const bool *wrong, int32_t count)
{
    int32_t ranges = 0;

    (void)printf("%s", what);
    for (int32_t i = 0, end = 0; i < count && ranges <= RANGES_MAX; i = end + 1) {
        end = i;
        if (!wrong[i]) {
            continue;
        }
        while (end + 1 < count && wrong[end + 1]) {
            end++;
        }
        if (ranges++ == RANGES_MAX) {
            (void)printf(", ...");
        } else if (end > i) {
            (void)printf("%s %d-%d", ranges > 1 ? "," : "", (int)i, (int)end);
        } else {
            (void)printf("%s %d", ranges > 1 ? "," : "", (int)i);
        }
    }
}

struct place { // A row whose columns are looked at.
    const struct side *side;
    const struct evq_plan *plan; // Ends in the squared errors of `width` columns.
    const struct evq_batch *batch;
    int32_t row, width;
    struct evq_op *ops;
    float *targets;
    struct evq_row_result *results;
};

/* How far the row's first `columns` values are from their targets, summed; the last one's is FAR if
 * so wanted. NaN also where it cannot be computed. */
static double sum_to(const struct place *place, int32_t columns, bool from_far)
{
    struct evq_plan plan = *place->plan;
    struct evq_batch batch = *place->batch;

    if (columns == 0) {
        return 0.0;
    }
    for (int32_t r = 0; r < batch.rows; r++) {
        float *to = place->targets + (size_t)r * (size_t)columns;
        memcpy(to, batch.targets + (size_t)r * (size_t)place->width, (size_t)columns * sizeof(*to));
        to[columns - 1] = from_far ? FAR : to[columns - 1];
    }
    place->ops[plan.op_count - 1].n = columns;
    plan.ops = place->ops;
    batch.targets = place->targets;
    return place->side->ops->prepare(place->side->state, &plan, NULL) == EVQ_OK &&
                   place->side->ops->exec(place->side->state, &batch, place->results, NULL) ==
                       EVQ_OK
               ? place->results[place->row].abs_loss
               : (double)NAN;
}

static void print_columns(const struct place *place, double tolerance)
{
    const int32_t looked = place->width < COLUMNS_MAX ? place->width : COLUMNS_MAX;
    bool wrong[COLUMNS_MAX] = {false};
    int32_t first = -1;
    double before = 0.0;
    int32_t c = 0;

    for (; c < looked && !isnan(before); c++) {
        const double sum = sum_to(place, c + 1, false);
        wrong[c] = !(sum - before <= 2.0 * tolerance);
        first = wrong[c] && first < 0 ? c : first;
        before = sum;
    }
    print_ranges("; its wrong columns:", wrong, c);
    (void)printf(" (%d of %d looked at)", (int)c, (int)place->width);
    if (first >= 0) {
        const double far = sum_to(place, first + 1, true) - sum_to(place, first, false);
        (void)printf("; column %d: expected %.7g, got %.7g", (int)first,
                     (double)place->batch
                         ->targets[(size_t)place->row * (size_t)place->width + (size_t)first],
                     (double)FAR - far);
    }
}

void compare_where(const struct side *side, const struct evq_plan *plan,
                   const struct evq_batch *batch, const struct evq_row_result *results,
                   double tolerance)
{
    const size_t rows = (size_t)batch->rows;
    struct place place = {.side = side, .plan = plan, .batch = batch, .row = -1};
    bool *wrong = lm_alloc(rows, sizeof(*wrong));
    int32_t count = 0;
    int32_t broken = 0;
    int32_t sequence = 0;

    place.width = plan->ops[plan->op_count - 1].n;
    for (int32_t r = 0; r < batch->rows; r++) {
        wrong[r] = !(compare_row(&results[r], place.width) <= tolerance);
        count += wrong[r];
        broken += isnan(results[r].abs_loss);
        place.row = wrong[r] && place.row < 0 ? r : place.row;
    }
    print_ranges("     wrong rows:", wrong, batch->rows);
    (void)printf(" (%d of %d, %d without a number)", (int)count, (int)batch->rows, (int)broken);
    if (place.row >= 0) {
        while (batch->starts[sequence + 1] <= place.row) {
            sequence++;
        }
        (void)printf("; row %d is place %d of a sequence of %d", (int)place.row,
                     (int)(place.row - batch->starts[sequence]),
                     (int)(batch->starts[sequence + 1] - batch->starts[sequence]));
        place.ops = lm_alloc(plan->op_count, sizeof(*place.ops));
        place.targets = lm_alloc(rows * (size_t)place.width, sizeof(*place.targets));
        place.results = lm_alloc(rows, sizeof(*place.results));
        memcpy(place.ops, plan->ops, plan->op_count * sizeof(*place.ops));
        print_columns(&place, tolerance);
        (void)side->ops->prepare(side->state, plan, NULL); // Not a plan that is freed here.
    }
    (void)printf("\n");
    free(wrong);
    free(place.ops);
    free(place.targets);
    free(place.results);
}
