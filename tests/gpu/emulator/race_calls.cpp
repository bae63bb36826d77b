/* What sources built with -fsanitize=thread call, ThreadSanitizer being left out, and what the
 * linker's --wrap puts before the C library. */
#include <malloc.h>

#include "tests/gpu/emulator/race.h"

/* What the emulator itself is made of may be built so that it calls. */
static void seen(const void *data, size_t bytes, bool writes, const void *code)
{
    static bool busy;

    if (busy) {
        return;
    }
    busy = true;
    if (race_thread >= 0) {
        race_touch(data, bytes, writes ? RACE_WRITE : RACE_READ, (unsigned int)race_thread, code);
    } else {
        race_touch_host(data, bytes, writes, code);
    }
    busy = false;
}

#define TELLS(size)                                                                                \
    void __tsan_read##size(void *data)                                                             \
    {                                                                                              \
        seen(data, size, false, __builtin_return_address(0));                                      \
    }                                                                                              \
    void __tsan_write##size(void *data)                                                            \
    {                                                                                              \
        seen(data, size, true, __builtin_return_address(0));                                       \
    }                                                                                              \
    void __tsan_unaligned_read##size(void *data)                                                   \
    {                                                                                              \
        seen(data, size, false, __builtin_return_address(0));                                      \
    }                                                                                              \
    void __tsan_unaligned_write##size(void *data)                                                  \
    {                                                                                              \
        seen(data, size, true, __builtin_return_address(0));                                       \
    }

extern "C" {

TELLS(1)
TELLS(2)
TELLS(4)
TELLS(8)
TELLS(16)

void __tsan_read_range(void *data, long bytes)
{
    seen(data, (size_t)bytes, false, __builtin_return_address(0));
}

void __tsan_write_range(void *data, long bytes)
{
    seen(data, (size_t)bytes, true, __builtin_return_address(0));
}

void __tsan_init(void)
{
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit(void *)
{
}

/* What the compiler does not tell of; the linker puts these before the library's. */
void *__real_memcpy(void *to, const void *from, size_t bytes);
void __real_free(void *data);

void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
    seen(from, bytes, false, __builtin_return_address(0));
    seen(to, bytes, true, __builtin_return_address(0));
    return __real_memcpy(to, from, bytes);
}

void __wrap_free(void *data)
{
    seen(data, malloc_usable_size(data), true, __builtin_return_address(0));
    __real_free(data);
}

} // extern "C"
