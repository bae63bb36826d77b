/* The CUDA module as the worker meets it: one symbol, the right version, a reason instead of a
 * crash without a GPU. */
#include <dlfcn.h>
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/backend.h"

#define MODULE EVQ_TEST_BIN "/../lib/libevalq_cuda.so"

static const struct evq_backend_ops *load_module(void)
{
    evq_backend_module_fn entry = NULL;

    if (access(MODULE, F_OK) != 0) {
        print_message("skipped: %s was not built (no nvcc)\n", MODULE);
        skip();
    }
    // Never unloaded: the CUDA runtime inside does not survive that.
    void *module = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (module == NULL) {
        fail_msg("%s", dlerror());
    }
    void *symbol = dlsym(module, EVQ_BACKEND_MODULE_SYMBOL);
    assert_non_null(symbol);
    memcpy(&entry, &symbol, sizeof(entry));
    return entry();
}

static void backend_module_speaks_this_version(void **state)
{
    const struct evq_backend_ops *ops = load_module();

    (void)state;
    assert_int_equal(ops->abi_version, EVQ_BACKEND_ABI);
    assert_string_equal(ops->name, "cuda");
    assert_true(ops->probe != NULL && ops->open != NULL && ops->caps != NULL &&
                ops->alloc != NULL && ops->free != NULL && ops->prepare != NULL &&
                ops->put != NULL && ops->exec != NULL && ops->stats != NULL && ops->close != NULL);
}

static void backend_module_gives_a_reason_when_there_is_no_gpu(void **state)
{
    const struct evq_backend_ops *ops = load_module();
    const struct evq_backend_config config = {.device = 0};
    struct evq_error err = {0};
    void *opened = NULL;

    (void)state;
    for (int again = 0; again < 2; again++) {
        const int32_t devices = ops->probe(&err);
        if (devices > 0) {
            print_message("skipped: this machine has %d GPUs\n", (int)devices);
            skip();
        }
        assert_int_equal(devices, 0);
        assert_true(err.message[0] != '\0');
        print_message("probe: %s\n", err.message);
        assert_int_equal(ops->probe(NULL), 0);
    }
    assert_int_not_equal(ops->open(&config, &opened, &err), EVQ_OK);
    assert_null(opened);
    assert_true(err.message[0] != '\0');
    print_message("open: %s\n", err.message);
    ops->close(NULL);
}

static char *read_module(size_t *ret_bytes)
{
    FILE *file = fopen(MODULE, "rb");

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long bytes = ftell(file);
    assert_true(bytes > (long)sizeof(Elf64_Ehdr));
    rewind(file);
    char *data = malloc((size_t)bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    *ret_bytes = (size_t)bytes;
    return data;
}

static void backend_module_exports_one_symbol(void **state)
{
    size_t bytes = 0;
    size_t exported = 0;
    Elf64_Ehdr head;

    (void)state;
    (void)load_module(); // Skips where there is none.
    char *data = read_module(&bytes);
    memcpy(&head, data, sizeof(head));
    assert_memory_equal(head.e_ident, ELFMAG, SELFMAG);
    for (size_t i = 0; i < head.e_shnum; i++) {
        Elf64_Shdr section;
        Elf64_Shdr names;
        memcpy(&section, data + head.e_shoff + i * sizeof(section), sizeof(section));
        if (section.sh_type != SHT_DYNSYM) {
            continue;
        }
        memcpy(&names, data + head.e_shoff + section.sh_link * sizeof(names), sizeof(names));
        for (size_t at = 0; at < section.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, data + section.sh_offset + at, sizeof(symbol));
            if (symbol.st_shndx != SHN_UNDEF && ELF64_ST_BIND(symbol.st_info) != STB_LOCAL) {
                assert_string_equal(data + names.sh_offset + symbol.st_name,
                                    EVQ_BACKEND_MODULE_SYMBOL);
                exported++;
            }
        }
    }
    assert_int_equal(exported, 1);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backend_module_speaks_this_version),
        cmocka_unit_test(backend_module_gives_a_reason_when_there_is_no_gpu),
        cmocka_unit_test(backend_module_exports_one_symbol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
