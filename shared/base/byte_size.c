#include "shared/base/byte_size.h"

#include <stddef.h>
#include <string.h>

bool evq_byte_size_parse(const char *text, int64_t *ret)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", INT64_C(1) << 10},
        {"MiB", INT64_C(1) << 20},
        {"GiB", INT64_C(1) << 30},
        {"TiB", INT64_C(1) << 40},
        {"kB", 1000},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", INT64_C(1000000000000)},
    };
    size_t digits = strspn(text, "0123456789");
    int64_t whole = 0;
    int64_t thousandths = 0;
    if (digits == 0 || digits > 18) {
        return false;
    }
    for (size_t i = 0; i < digits; i++) {
        whole = whole * 10 + (text[i] - '0');
    }
    const char *rest = text + digits;
    if (*rest == '.') {
        size_t decimals = strspn(rest + 1, "0123456789");
        if (decimals == 0 || decimals > 3) {
            return false;
        }
        for (size_t i = 0; i < 3; i++) {
            thousandths = thousandths * 10 + (i < decimals ? rest[1 + i] - '0' : 0);
        }
        rest += 1 + decimals;
    }
    rest += strspn(rest, " ");
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(rest, units[i].name) == 0) {
            int64_t value;
            // The fraction of a unit of at most 10^12 fits.
            return !__builtin_mul_overflow(whole, units[i].bytes, &value) &&
                   !__builtin_add_overflow(value,
                                           units[i].bytes / 1000 * thousandths +
                                               units[i].bytes % 1000 * thousandths / 1000,
                                           ret) &&
                   *ret < INT64_C(1000000000000000000); // Written out, it can be read again.
        }
    }
    return false;
}
