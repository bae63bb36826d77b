#include "random.h"

#include <math.h>

double random_uniform(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)(*state * UINT64_C(0x2545f4914f6cdd1d) >> 11) / 9007199254740992.0;
}

float random_normal(uint64_t *state)
{
    const double radius = sqrt(-2.0 * log(1.0 - random_uniform(state)));

    return (float)(radius * cos(6.283185307179586 * random_uniform(state)));
}
